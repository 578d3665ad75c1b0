"""DP-SGD: local training that hides single examples.

Abadi et al., "Deep Learning with Differential Privacy", 2016, Algorithm 1.  A step of a client with n examples:

    take each example by itself with probability q = min(1, batch_size / n)       (Poisson sampling)
    g(x)  <-  g(x) / max(1, |g(x)| / C)                                           for each example x that was taken
    g     <-  (sum of the g(x) + N(0, z^2 C^2 I)) / (q n)

and then the step of `LocalSGD` with g as the gradient: momentum, weight decay, the proximal term and the correction of
an algorithm see no examples, and cost no privacy.  The gradient of each example comes from Opacus (Yousefpour et al.,
"Opacus: User-Friendly Differential Privacy Library in PyTorch", 2021).  `phalanx.runs.accounting.example_epsilon` has
the guarantee.

Where the paper is silent: the loss of an example is computed by itself, since the mean over the labels of a minibatch
would let the number of labels of one example scale the gradients of others; an example whose gradient is not finite
counts as zero; and the gradients of a large minibatch are computed a part at a time.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from typing_extensions import override

from phalanx.core import Algorithm, InfeasibleError
from phalanx.data import Dataset
from phalanx.data.dataset import Inputs
from phalanx.fields import NonNegativeFloat, PositiveFloat
from phalanx.installation import installation
from phalanx.rng import Entropy, borrowed, generator, numpy_generator
from phalanx.training.local import LocalTask, LocalTrainer, LocalTraining
from phalanx.training.sgd import SERVER, Added, LocalSGD, Trainer, split
from phalanx.training.task import Task
from phalanx.training.vector import FlatModule

ROOM = 1 << 25  # entries of the gradients of single examples that are in memory at a time
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass(frozen=True)
class PrivateSGD(LocalTraining):
    """Local training that hides single examples of a client, by DP-SGD (extra `dp`).

    Args:
        training: number of steps, learning rate and the rest. Its `batch_size` is the expected size of a minibatch.
        clip: largest norm C of the gradient of one example.
        noise_multiplier: standard deviation z of the noise on the sum of gradients, as a multiple of `clip`; 0 clips
            only, and guarantees nothing.
        delta: of the guarantee (epsilon, delta) in the summary; well below 1 / n for n examples of a client.
        noise: source of the noise and of the minibatches: "stream", which a run can repeat; or "system", which nobody
            can. A `Participant` takes "system", unless its own `noise` is "stream".
    """

    hides: ClassVar[bool] = True

    training: LocalSGD = LocalSGD()
    clip: PositiveFloat = 1.0
    noise_multiplier: NonNegativeFloat = 1.0
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    noise: Literal["stream", "system"] = "stream"

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        checks = (
            (
                self.training.clip_norm is None,
                "PrivateSGD clips the gradient of each example to clip; leave training.clip_norm out",
            ),
            (self.training.precision == "float32", "PrivateSGD computes in float32; leave training.precision out"),
        )
        if problems := [message for fine, message in checks if not fine]:
            raise ValueError("; ".join(problems) + ".")

    @override
    def check(self, algorithm: Algorithm) -> None:
        super().check(algorithm)
        if algorithm.traits.exact_losses:
            raise InfeasibleError(
                f"{algorithm.title} needs the exact loss of each client, which reveals what PrivateSGD hides. Choose "
                "an algorithm that does not, or another training."
            )

    @override
    def learning_rate(self, version: int) -> float:
        return self.training.learning_rate(version)

    def share(self, held: int) -> float:
        """Return q, the probability with which a step takes an example of a client that holds so many."""
        return min(1.0, self.training.examples(held) / held) if held else 0.0

    @override
    def secretly(self) -> LocalTraining:
        return replace(self, noise="system")

    @override
    def trainer(self, model: FlatModule, task: Task, seed: int) -> LocalTrainer:
        """See `LocalTraining`.

        Raises:
            InfeasibleError: Opacus cannot separate the gradients of examples in this model, or buffers are averaged.
        """
        if self.training.engine not in (None, "loop"):
            warnings.warn(
                f"Clients that train by PrivateSGD do so by Opacus: training.engine ({self.training.engine}) has no "
                "effect.",
                stacklevel=2,
            )
        return PrivateTrainer(model, self._plain(), seed, task, self)

    @override
    def fine_tuning(self, epochs: int) -> LocalTraining:
        """See `LocalTraining`: without noise, as the result is not sent."""
        return self._plain().fine_tuning(epochs)

    def _plain(self) -> LocalSGD:
        return replace(self.training, engine="loop")


class PrivateTrainer(Trainer):
    """A trainer by DP-SGD.  The server's own training, and attacks by local training, have no noise.

    Args:
        model: the module, bound to its vector.
        recipe: the training without clipping and noise.
        seed: seed of the run. A task draws its minibatches from the stream "batches", as with `LocalSGD`, and its noise
            from "example noise".
        task: the task that is trained.
        privacy: clipping and noise.
    """

    def __init__(self, model: FlatModule, recipe: LocalSGD, seed: int, task: Task, privacy: PrivateSGD) -> None:
        super().__init__(model, recipe, seed, task)
        self.privacy = privacy
        self._hooks = hooks_of(model.module)
        if len(model.values) > model.trainable:
            raise InfeasibleError("PrivateSGD adds no noise to averaged buffers. Set buffers to freeze.")
        self._weights = [p for p in model.module.parameters() if p.requires_grad]
        self._at_once = max(1, ROOM // model.trainable)  # examples

    @override
    def train(self, task: LocalTask, data: Dataset) -> float:
        """See `LocalTrainer`: the loss is the mean over the examples of the first epoch's minibatches."""
        if task.client == SERVER:
            return super().train(task, data)
        recipe, model, privacy, key = self.recipe, self.model, self.privacy, (task.client, task.turn)
        lr = recipe.learning_rate(task.version)
        model.load(task.start)
        model.module.train()
        self.begin()
        added = None if task.correction is None else Added.of(task.correction, model)
        q, steps, draws = privacy.share(len(data)), recipe.count(len(data)), self._draws(task)
        first = math.ceil(1 / q) if q else 0  # steps of the first epoch
        total, seen = torch.zeros((), dtype=torch.float64, device=model.device), 0
        with borrowed(self.seed, "dropout", *key, device=model.device), self._hooked():
            for step in range(steps):
                taken = torch.from_numpy(np.flatnonzero(draws.minibatches.random(len(data)) < q))
                batch = data.of(taken.to(data.y.device))
                loss = self._sum(batch)
                noise = torch.from_numpy(draws.noise.standard_normal(model.trainable))
                model.gradient.add_(noise.to(model.gradient), alpha=privacy.noise_multiplier * privacy.clip)
                model.gradient /= q * len(data)
                self.descend(lr, added)
                if step < first:
                    total += loss
                    seen += len(batch)
        model.write_change(task.start, task.row)
        return float(total) / seen if seen else math.nan

    def _draws(self, task: LocalTask) -> "Draws":
        """Return the random numbers of a task."""
        if self.privacy.noise == "system":
            return Draws(Entropy(), Entropy())
        names = ("batches", "example noise")
        return Draws(*(numpy_generator(self.seed, name, task.client, task.turn) for name in names))

    def _sum(self, batch: Dataset) -> Tensor:
        """Set the gradient to the sum of the clipped gradients of the examples, and return the sum of their losses."""
        gradient, total = torch.zeros_like(self.model.gradient), self.model.gradient.new_zeros((), dtype=torch.float64)
        if not len(batch):
            self.model.gradient.zero_()
            return total
        for x, y in zip(split(batch.x, self._at_once), torch.split(batch.y, self._at_once), strict=True):
            losses, each = self._by_example(x, y)
            norms = sum(part.reshape(len(part), -1).double().square().sum(1) for part in each)
            factors = (self.privacy.clip / torch.as_tensor(norms).sqrt()).clamp(max=1.0)
            used = factors.isfinite() & (factors > 0)  # neither NaN nor, of a gradient that is not finite, 0
            self.model.gradient.zero_()
            for weight, part in zip(self._weights, each, strict=True):
                clipped = factors[used].to(part.dtype) @ part.reshape(len(part), -1)[used]
                assert weight.grad is not None  # a view of the model's gradient
                weight.grad.copy_(clipped.view(weight.shape))
            gradient += self.model.gradient
            total += losses.nansum()
        self.model.gradient.copy_(gradient)
        return total

    def _by_example(self, x: Inputs, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the loss of each example (B,), and its gradient in each parameter (B, ...); hooks are on."""
        outputs = self.model.outputs(x)
        pairs = zip(torch.split(outputs, 1), torch.split(y, 1), strict=True)
        losses = torch.stack([self.task.loss(one, label) for one, label in pairs])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Full backward hook is firing")  # the data have no gradient
            losses.sum().backward()  # type: ignore[no-untyped-call]
        each = [_gradients(weight, len(y)) for weight in self._weights]
        for weight in self._weights:
            weight.grad_sample = None  # type: ignore[attr-defined]
        return losses.detach(), each

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Let Opacus keep the gradients of examples; other code that uses the module is not slowed down."""
        self._hooks.add_hooks(loss_reduction="sum")
        try:
            yield
        finally:
            self._hooks.remove_hooks()

    @override
    def try_out(self, few: Dataset) -> None:
        """See `LocalTrainer`: compare the gradients of examples in a minibatch with those of each by itself."""
        model = self.model
        start = model.read()
        model.load(start + 0.1 * torch.randn(start.shape, generator=generator(self.seed, "try out")).to(start))
        model.module.train()
        for layer in model.module.modules():
            if isinstance(layer, DROPOUT):
                layer.eval()  # which draws otherwise for a minibatch than for one example
        alone, buffers = [], [buffer.clone() for buffer in model.module.buffers()]
        try:
            for x, y in zip(split(few.x, 1), torch.split(few.y, 1), strict=True):
                model.gradient.zero_()
                self.task.loss(model.outputs(x), y).backward()  # type: ignore[no-untyped-call]
                alone.append([weight.grad.clone() for weight in self._weights if weight.grad is not None])
            with self._hooked():
                _, each = self._by_example(next(split(few.x, len(few))), few.y)
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            raise InfeasibleError(_refusal(str(error).splitlines()[0])) from error
        for part, expected in zip(each, map(torch.stack, zip(*alone, strict=True)), strict=True):
            if not torch.allclose(part, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()), equal_nan=True):
                raise InfeasibleError(_refusal("the gradients of a minibatch are not those of its examples"))
        if not all(map(torch.equal, buffers, model.module.buffers())):
            raise InfeasibleError(_refusal("training changes its buffers, without noise"))
        model.load(start)


class Draws(NamedTuple):
    """The sources of the random numbers of one task."""

    minibatches: np.random.Generator | Entropy
    noise: np.random.Generator | Entropy


def hooks_of(module: nn.Module) -> Any:
    """Return Opacus's hooks for a module, switched off.

    Raises:
        InfeasibleError: Opacus refuses the module.
        ModuleNotFoundError: Opacus is not installed.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of its own imports
            import dp_accounting  # noqa: F401, PLC0415  (a run is not to fail when it ends)
            from opacus import GradSampleModule  # noqa: PLC0415  (optional, and slow to import)
            from opacus.validators import ModuleValidator  # noqa: PLC0415
    except ImportError as error:
        raise ModuleNotFoundError(f"PrivateSGD needs Opacus and dp-accounting: {installation('dp')}.") from error
    if errors := ModuleValidator.validate(module.train(), strict=False):
        raise InfeasibleError(_refusal(str(errors[0]).split(". ")[0]))

    class Contiguous(GradSampleModule):  # type: ignore[misc]
        """Opacus's hooks, for layers whose inputs are channels last: its convolutions take strides for granted."""

        def rearrange_grad_samples(self, **options: Any) -> tuple[list[Tensor], Tensor]:
            activations, gradients = super().rearrange_grad_samples(**options)
            return [part.contiguous() for part in activations], gradients.contiguous()

    try:
        hooks = Contiguous(module, loss_reduction="sum")
    except NotImplementedError as error:
        raise InfeasibleError(_refusal(str(error))) from error
    hooks.remove_hooks()
    return hooks


def _gradients(weight: Any, count: int) -> Tensor:
    """Return the gradients of examples that Opacus left at a parameter; zeros if the loss does not depend on it."""
    found = weight.grad_sample
    if found is None:
        return torch.zeros((count, *weight.shape), dtype=weight.dtype, device=weight.device)
    gradients: Tensor = found
    if len(gradients) != count:
        raise ValueError(f"{len(gradients)} gradients came for {count} examples")
    return gradients


def _refusal(why: str) -> str:
    return (
        f"PrivateSGD cannot separate the examples of a minibatch in this model: {why.rstrip('.')}. Layers may not "
        "combine examples: replace batch normalisation by group normalisation (ResNet18(normalisation='group')), and "
        "give embeddings of positions an index for each example; or train only other parameters (PartlyTrained, LoRA)."
    )
