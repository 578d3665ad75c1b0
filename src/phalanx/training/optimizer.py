"""Local training by any optimizer of torch."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn
from typing_extensions import override

from phalanx.data import Dataset
from phalanx.data.dataset import Inputs
from phalanx.fields import INFINITE, NonNegativeInt, PositiveFloat, PositiveInt
from phalanx.rng import borrowed, generator
from phalanx.training.augmentation import Transform
from phalanx.training.local import LocalTask, LocalTrainer, LocalTraining
from phalanx.training.sgd import LocalSGD, Precision, Schedule, in_pairs, split
from phalanx.training.task import Task
from phalanx.training.vector import FlatModule, Reached
from phalanx.trust import UntrustedError, named


@dataclass(frozen=True)
class LocalOptimizer(LocalTraining):
    """The local training of a client by any optimizer of torch, such as Adam.

    A step takes one minibatch; epochs, steps and minibatches are those of `LocalSGD`.

    Args:
        optimizer: name of a class of `torch.optim`, or the import path of another `torch.optim.Optimizer`.
        lr: learning rate, or a schedule by the version of the downloaded model.
        options: more arguments of the optimizer, such as `{"weight_decay": 0.01}`.
        epochs: number of passes over the client's data.
        steps: number of minibatches; if given, it replaces `epochs`.
        batch_size: number of examples per minibatch, or, below 1, a share of the client's examples.
        schedule: the learning rate within a task: "constant", or "cosine", which falls to 0 at the end.
        warmup: number of first steps of a task, in which the learning rate grows linearly to its value.
        remember: whether a client goes on with the optimizer's state of its last task; if not, each task begins with a
            new one. The state of all clients is held in memory: twice the model for each client with Adam.
        parts: number of parts in which a minibatch goes through the model, one after the other, to save memory
            (gradient accumulation). The gradient is that of the whole minibatch.
        clip_norm: largest norm of the gradient of a minibatch; longer gradients are scaled down. Null: no limit.
        precision: type in which the model computes: "float32", its own; or "bfloat16", where torch's autocast uses it.
        augment: random transformation of the inputs of each minibatch; null for none.
    """

    optimizer: str = "Adam"
    lr: PositiveFloat | Schedule = 0.001
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: PositiveInt = 1
    steps: PositiveInt | None = None
    batch_size: int | float = 32
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: NonNegativeInt = 0
    remember: bool = False
    parts: PositiveInt = 1
    clip_norm: Annotated[float, Meta(gt=0), INFINITE] | None = None
    precision: Precision = "float32"
    augment: Transform | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.minibatches  # which checks its own settings
        self.make([nn.Parameter(torch.zeros(1))], 1.0)

    @override
    def __hash__(self) -> int:
        """Return the hash of the optimizer's name alone, because options may be unhashable."""
        return hash(self.optimizer)

    @property
    def minibatches(self) -> LocalSGD:
        """The local SGD that has the same epochs, minibatches and rates."""
        return LocalSGD(self.epochs, self.steps, self.batch_size, self.lr, clip_norm=self.clip_norm)

    @property
    @override
    def remembers(self) -> bool:
        return self.remember

    @property
    def source_modules(self) -> tuple[str, ...]:
        """The module of the optimizer; see `phalanx.runs.canonical.source`."""
        return (self.optimizer.rpartition(".")[0] or "torch.optim",)

    @override
    def learning_rate(self, version: int) -> float:
        return self.minibatches.learning_rate(version)

    def make(self, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """Return the optimizer of some parameters.

        Raises:
            ValueError: if there is no such optimizer, or it does not take the options.
        """
        name = self.optimizer.rpartition(".")[2]
        try:
            kind = named(self.optimizer, "torch.optim")
        except UntrustedError:
            raise
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"optimizer must be the name of a class of torch.optim, such as AdamW, or an import path, got "
                f"{self.optimizer!r}: {error}."
            ) from error
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise ValueError(f"optimizer must be a class of optimizers, got {self.optimizer!r}.")
        closure = inspect.signature(kind.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(f"{name} evaluates the loss several times a step, which minibatches do not allow.")
        try:
            return kind(parameters, **{"lr": lr, **self.options})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} does not take lr and the options {dict(self.options)}: {error}.") from error

    def rate(self, step: int, steps: int) -> float:
        """Return the factor of the learning rate in a step, counted from 0, of a task of so many steps."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.schedule == "constant":
            return 1.0
        return (1 + math.cos(math.pi * (step - self.warmup) / max(steps - self.warmup, 1))) / 2

    @override
    def trainer(self, model: FlatModule, task: Task, seed: int) -> LocalTrainer:
        return OptimizerTrainer(model, self, seed, task)

    @override
    def fine_tuning(self, epochs: int) -> LocalTraining:
        return replace(self, epochs=epochs, steps=None, remember=False)


class OptimizerTrainer(LocalTrainer):
    """A trainer by an optimizer of torch.

    Args:
        model: the module, bound to its vector.
        recipe: the local training.
        seed: seed of the run. Each task has the streams "batches" and "dropout", as with `LocalSGD`, and "augment".
        task: the task that is trained.
    """

    def __init__(self, model: FlatModule, recipe: LocalOptimizer, seed: int, task: Task) -> None:
        super().__init__(model, task)
        self.recipe, self.seed = recipe, seed
        self._parameters = [p for p in model.module.parameters() if p.requires_grad]
        self._pairs = in_pairs(model.module)
        self._reached = Reached(model.module)
        self._states = dict[int, Any]()  # of the optimizer, by client

    @override
    def train(self, task: LocalTask, data: Dataset) -> float:
        recipe, model, key = self.recipe, self.model, (task.client, task.turn)
        lr = recipe.learning_rate(task.version)
        model.load(task.start)
        model.module.train()
        optimizer = self._optimizer(task.client, lr)
        noise = generator(self.seed, "augment", *key)
        total, seen = torch.zeros((), dtype=torch.float64, device=model.device), self.task.count(data.y[:0])
        minibatches = recipe.minibatches.minibatches(data, generator(self.seed, "batches", *key), alone=not self._pairs)
        steps = recipe.minibatches.count(len(data), alone=not self._pairs)
        with borrowed(self.seed, "dropout", *key, device=model.device):
            for step, (epoch, x, y) in enumerate(minibatches):
                loss = self._gradient(x if recipe.augment is None else recipe.augment(x, noise), y)
                for group in optimizer.param_groups:
                    group["lr"] = lr * recipe.rate(step, steps)
                self._step(optimizer)
                if epoch == 0:
                    total += loss
                    seen += self.task.count(y)
        if recipe.remember:
            self._states[task.client] = optimizer.state_dict()["state"]
        model.write_change(task.start, task.row)
        return float(total) / int(seen) if seen else math.nan

    def _optimizer(self, client: int, lr: float) -> torch.optim.Optimizer:
        """Return an optimizer, with the state that the client remembers."""
        optimizer = self.recipe.make(self._parameters, lr)
        if client in self._states:
            state = optimizer.state_dict() | {"state": _copy(self._states[client])}
            optimizer.load_state_dict(state)
        return optimizer

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step, which leaves parameters that the gradient does not reach as they are."""
        kept = [(parameter, parameter.grad) for parameter in self._reached.missing()]
        for parameter, _ in kept:
            parameter.grad = None
        optimizer.step()
        for parameter, gradient in kept:
            parameter.grad = gradient

    def _gradient(self, x: Inputs, y: Tensor) -> Tensor:
        """Compute the gradient of the mean loss of a minibatch, and return the sum of its loss."""
        recipe, model, task = self.recipe, self.model, self.task
        model.gradient.zero_()
        parts = min(recipe.parts, len(y))
        size, labels = -(-len(y) // parts), task.count(y)
        total = torch.zeros((), dtype=torch.float64, device=model.device)
        for part, labelled in zip(split(x, size), torch.split(y, size), strict=True):
            with torch.autocast(model.device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
                loss = task.loss(model.outputs(part), labelled)
            share = task.count(labelled)
            (loss * (share / labels) if parts > 1 else loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach() * share
        if recipe.clip_norm is not None:
            norm = torch.linalg.vector_norm(model.gradient)
            model.gradient *= (recipe.clip_norm / norm).clamp(max=1.0)
        return total

    @override
    def snapshot(self) -> Mapping[int, Any]:
        """See `LocalTrainer`: the state of the optimizer of each client, whose tensors are replaced, never changed."""
        return dict(self._states)

    @override
    def restore(self, snapshot: Mapping[int, Any], /) -> None:
        self._states = dict(snapshot)


def _copy(state: Any) -> Any:
    """Return a copy of the state of an optimizer, which changes its tensors in place."""
    if isinstance(state, Tensor):
        return state.clone()
    return {key: _copy(value) for key, value in state.items()} if isinstance(state, dict) else state
