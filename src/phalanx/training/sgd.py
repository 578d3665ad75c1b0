"""Local training: stochastic gradient descent on the data of one client.

No data loader, no copy of the module and no new optimiser per round: the client's tensors stay in memory, the
parameters of the module are views of one vector (`phalanx.training.vector.FlatModule`), and a step is one addition.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from phalanx.core import Correction, Pace, Vector
from phalanx.data import Dataset
from phalanx.data.dataset import Inputs
from phalanx.fields import INFINITE, NULL_IS, CheckedFields, NonNegativeFloat, PositiveFloat, PositiveInt
from phalanx.rng import borrowed, generator
from phalanx.training.engines import DEFAULT, Engine, trainer_of
from phalanx.training.gradient import Gradient
from phalanx.training.local import CorrectableTrainer, LocalTask, LocalTrainer, LocalTraining
from phalanx.training.task import CLASSIFICATION, Task
from phalanx.training.vector import FlatModule, Reached, channels_last

Precision = Literal["float32", "bfloat16"]


class Schedule(CheckedFields, ABC):
    """A learning rate that depends on the version of the global model."""

    @abstractmethod
    def __call__(self, version: int) -> float:
        """Return the learning rate for training that starts from this version."""


@dataclass(frozen=True)
class ExponentialLR(Schedule):
    """lr(version) = start * decay^version.

    Args:
        start: learning rate at version 0.
        decay: factor per version, in (0, 1].
    """

    start: PositiveFloat = 0.1
    decay: Annotated[float, Meta(gt=0, le=1)] = 0.977

    @override
    def __call__(self, version: int) -> float:
        return self.start * self.decay**version


@dataclass(frozen=True)
class StepLR(Schedule):
    """lr(version) = start * decay^(version // every).

    Args:
        start: learning rate at version 0.
        every: number of versions between two reductions.
        decay: factor of a reduction, in (0, 1].
    """

    start: PositiveFloat = 0.1
    every: PositiveInt = 10
    decay: Annotated[float, Meta(gt=0, le=1)] = 0.5

    @override
    def __call__(self, version: int) -> float:
        return self.start * self.decay ** (version // self.every)


@dataclass(frozen=True)
class LocalSGD(LocalTraining):
    """The local training of a client between a download and its upload, by stochastic gradient descent.

    Each epoch visits every example once, in a random order; the last minibatch of an epoch may be smaller.

    Args:
        epochs: number of passes over the client's data.
        steps: number of minibatches; if given, it replaces `epochs`.
        batch_size: number of examples per minibatch, or, below 1, a share of the client's examples, rounded down but at
            least one example.
        lr: learning rate, or a schedule by the version of the downloaded model.
        momentum: momentum, in [0, 1); the velocity starts at zero after every download.
        weight_decay: lambda of the penalty lambda/2 |w|^2.
        clip_norm: largest norm of the gradient of a minibatch; longer gradients are scaled down. Null: no limit.
        proximal: rho of the penalty rho/2 |w - w_0|^2, where w_0 is the downloaded model, as in FedProx (Li et al.,
            "Federated Optimization in Heterogeneous Networks", 2020) and FedAsync (Xie et al. 2019). Not clipped.
        engine: what computes the training. "loop" takes any network. "compiled", a compiled loop with gradients written
            by hand, trains small networks several times as fast; results differ by rounding. It takes chains of
            convolutions, 2x2 pooling, linear layers, ReLU, tanh and dropout, on the CPU, and an embedding before them.
            Null: by rule in `simulate` and `phalanx run`, compiled if the network has it and the examples of the whole
            run, times the parameters, exceed 1e11; the loop everywhere else, as in studies and on real clients.
        precision: type in which products are computed: "float32", that of the model; or "bfloat16", where torch's
            autocast uses it, and compiled in convolutions.
    """

    default_of: ClassVar[type | None] = LocalTraining

    epochs: PositiveInt = 1
    steps: PositiveInt | None = None
    batch_size: int | float = 32
    lr: PositiveFloat | Schedule = 0.1
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    weight_decay: NonNegativeFloat = 0.0
    clip_norm: Annotated[float, Meta(gt=0), INFINITE] | None = None
    proximal: NonNegativeFloat = 0.0
    engine: Engine | None = field(default=None, metadata={NULL_IS: DEFAULT})
    precision: Precision = "float32"

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.batch_size < 1 or (self.batch_size >= 1 and self.batch_size == int(self.batch_size))):
            raise ValueError(f"batch_size must be at least 1, or a share in (0, 1), got {self.batch_size}.")

    @property
    @override
    def pace(self) -> Pace:
        return Pace(self.epochs, self.steps, self.batch_size, self.momentum)

    @property
    @override
    def computed_by(self) -> str:
        return self.engine or DEFAULT if type(self).trainer is LocalSGD.trainer else super().computed_by

    @override
    def learning_rate(self, version: int) -> float:
        return self.lr(version) if isinstance(self.lr, Schedule) else self.lr

    def examples(self, held: int) -> int:
        """Return the number of examples per minibatch of a client with `held` examples."""
        if self.batch_size >= 1:
            return int(min(self.batch_size, max(held, 1)))
        return max(1, math.floor(self.batch_size * held + 1e-9))

    def count(self, held: int, *, alone: bool = True) -> int:
        """Return the number of minibatches of one task; see `minibatches`."""
        if self.steps is not None or not held:
            return self.steps if self.steps is not None and held else 0
        size = self.examples(held)
        joined = not alone and held > size and held % size == 1
        return self.epochs * (-(-held // size) - joined)

    @override
    def trainer(self, model: FlatModule, task: Task, seed: int) -> LocalTrainer:
        return trainer_of(self.engine or DEFAULT)(model, self, seed, task)

    @override
    def fine_tuning(self, epochs: int) -> LocalTraining:
        return replace(self, epochs=epochs, steps=None)

    def minibatches(
        self, data: Dataset, rng: torch.Generator, *, alone: bool = True
    ) -> Iterator[tuple[int, Inputs, Tensor]]:
        """Yield the minibatches of one task, each with its epoch, counted from 0.

        Args:
            data: data of the client.
            rng: random numbers for the order of the examples.
            alone: whether the last minibatch of an epoch may be a single example; if not, it joins the previous one.
        """
        count = epoch = 0
        if not len(data):
            return
        while epoch < self.epochs if self.steps is None else count < self.steps:
            order = torch.randperm(len(data), generator=rng).to(data.y.device)
            size = self.examples(len(data))
            if self.steps is not None and alone:
                order = order[: (self.steps - count) * size]  # do not gather examples that are not used
            x, y = data.rows(order)
            minibatches = zip(split(x, size), _split(y, size), strict=True)
            for x, y in minibatches if alone else _without_a_last_one(minibatches):
                if count == self.steps:
                    return
                yield epoch, x, y
                count += 1
            epoch += 1


def _without_a_last_one(minibatches: Iterator[tuple[Inputs, Tensor]]) -> Iterator[tuple[Inputs, Tensor]]:
    """Yield the minibatches, with a last one of a single example joined to the previous one."""
    held: tuple[Inputs, Tensor] | None = None
    for x, y in minibatches:
        if held is not None and len(y) == 1 < len(held[1]):
            x, y = _joined(held[0], x), torch.cat([held[1], y])  # noqa: PLW2901
        elif held is not None:
            yield held
        held = x, y
    if held is not None:
        yield held


def _joined(x: Inputs, last: Inputs) -> Inputs:
    """Return the inputs of both minibatches."""
    if isinstance(x, Tensor) and isinstance(last, Tensor):
        return torch.cat([x, last])
    assert isinstance(x, Mapping)
    assert isinstance(last, Mapping)
    return {name: torch.cat([x[name], last[name]]) for name in x}


def batches(data: Dataset, size: int, *, last: bool = True) -> Iterator[tuple[Inputs, Tensor]]:
    """Return the examples in their order, `size` at a time; images are channels last, the fastest layout of torch."""
    return zip(split(data.x, size, last=last), _split(data.y, size), strict=True)


def split(x: Inputs, size: int, *, last: bool = True) -> Iterator[Inputs]:
    """Yield the inputs, `size` examples at a time; images are channels last, unless that is not wanted."""
    if isinstance(x, Tensor):
        yield from _split(channels_last(x) if last and x.ndim == 4 else x, size)
    else:
        parts = zip(*(split(part, size, last=last) for part in x.values()), strict=True)
        yield from (dict(zip(x, part, strict=True)) for part in parts)


def _split(x: Tensor, size: int) -> Sequence[Tensor]:
    return [x] if len(x) <= size else torch.split(x, size)


def in_pairs(module: nn.Module) -> bool:
    """Return whether a minibatch needs two examples: batch normalisation computes a variance."""
    return any(isinstance(layer, _BatchNorm) for layer in module.modules())


class Trainer(CorrectableTrainer):
    """A trainer by stochastic gradient descent.

    Args:
        model: the module, bound to its vector.
        recipe: the local training.
        seed: seed of the run; minibatches come from the stream "batches", dropout from the stream "dropout" of each
            task.
        task: the task that is trained.
    """

    def __init__(self, model: FlatModule, recipe: LocalSGD, seed: int, task: Task = CLASSIFICATION) -> None:
        super().__init__(model, task)
        self.recipe, self.seed = recipe, seed
        self._gradient = Gradient(model, task, half=recipe.precision == "bfloat16")
        self._parameters = model.values[: model.trainable]
        self._velocity = torch.zeros_like(model.gradient) if recipe.momentum else None
        self._received = torch.empty_like(self._parameters) if recipe.proximal else None
        self._alone = not in_pairs(model.module)
        # A chain of layers has no parameter that a gradient does not reach.
        self._reached = Reached(model.module) if recipe.weight_decay and not self._gradient.chain else None

    @override
    def reach(self, held: int, version: int) -> float:
        return self.recipe.count(held, alone=self._alone) * self.recipe.learning_rate(version)

    @override
    def train(self, task: LocalTask, data: Dataset) -> float:
        """See `CorrectableTrainer`: clipping leaves the correction as it is, momentum does not."""
        recipe, model, key = self.recipe, self.model, (task.client, task.turn)
        lr = recipe.learning_rate(task.version)
        model.load(task.start)
        self.begin()
        added = None if task.correction is None else Added.of(task.correction, model)
        # Sums stay on the device: a GPU is read only once, at the end.
        total: Tensor | float = 0.0
        seen: Tensor | int = 0
        minibatches = recipe.minibatches(data, generator(self.seed, "batches", *key), alone=self._alone)
        with self._mode(key):
            for epoch, x, y in minibatches:
                loss = self._gradient(x, y)
                self.descend(lr, added)
                if epoch == 0:
                    count = self.task.count(y)
                    total, seen = total + (loss * count).double(), seen + count
        model.write_change(task.start, task.row)
        return float(total) / int(seen) if seen else math.nan

    def _mode(self, key: tuple[int, int]) -> AbstractContextManager[None]:
        """Return a context in which the module trains, and draws from a stream of its own if it draws anything."""
        if self._gradient.plain:
            return nullcontext()
        self.model.module.train()
        return borrowed(self.seed, "dropout", *key, device=self.model.device)

    def begin(self) -> None:
        """Begin a task with the parameters that are loaded."""
        if self._velocity is not None:
            self._velocity.zero_()
        if self._received is not None:
            self._received.copy_(self._parameters)

    def descend(self, lr: float, added: "Added | None") -> None:
        """Take one step of gradient descent, in place; `added` is the correction of the task."""
        recipe, gradient, parameters = self.recipe, self.model.gradient, self._parameters
        if recipe.clip_norm is not None:
            # Clipping comes first: weight decay and the proximal term are not clipped.
            norm = torch.linalg.vector_norm(gradient)
            gradient *= (recipe.clip_norm / norm).clamp(max=1.0)
        if recipe.weight_decay:
            gradient.add_(parameters, alpha=recipe.weight_decay)
            for parameter in () if self._reached is None else self._reached.missing():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        if self._received is not None:
            gradient.add_(parameters - self._received, alpha=recipe.proximal)
        if added is not None:
            gradient.add_(added.vector)
            if added.proximal:
                gradient.add_(parameters, alpha=added.proximal)
        if self._velocity is not None:
            gradient = self._velocity.mul_(recipe.momentum).add_(gradient)
        parameters.add_(gradient, alpha=-lr)


class Added(NamedTuple):
    """A correction of a task: vector + proximal w is added to each gradient, in the order of its entries."""

    vector: Vector
    proximal: float

    @staticmethod
    def of(correction: Correction, model: FlatModule) -> "Added":
        """Return the correction of a task that begins with the parameters that are loaded."""
        vector, proximal = model.arranged(correction.vector), correction.proximal
        return Added(vector - proximal * model.values[: model.trainable] if proximal else vector, proximal)


SERVER = -1  # id of the server in the names of random streams


@dataclass(frozen=True, eq=False)
class ServerTraining:
    """The training of the server on its own examples: `reference` of `phalanx.run`.

    Its minibatches come from separate random streams, named by the version, so those of clients do not change.

    Args:
        trainer: the trainer, which may be that of the clients of a simulation.
        data: the examples of the server, on the device of the trainer.
    """

    trainer: LocalTrainer
    data: Dataset

    def __post_init__(self) -> None:
        if not len(self.data):
            raise ValueError("The server needs examples to train on, got none.")

    def __call__(self, model: Vector, version: int) -> Vector:
        """Return the change of the model of this version by training."""
        change = torch.empty_like(model)
        self.trainer.train(LocalTask(SERVER, version, version, model, change), self.data)
        return change
