"""The clients that train at one time, and where they do: one after the other in this process, or elsewhere.

What a client makes of a task depends on the task, its data and the `Blueprint` alone, so that the bits are the same
wherever it trains.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.models import Model
from phalanx.rng import borrowed
from phalanx.training.evaluation import evaluate
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import BufferPolicy, FlatModule


class LocalTask(NamedTuple):
    """What one client trains in one turn."""

    client: int
    turn: int  # how often it has trained before
    version: int  # of the model that it was sent
    start: Vector  # parameters from which it trains; shared storage where equal
    row: Vector  # receives trained minus start


@runtime_checkable
class Executor(Protocol):
    """Where clients train."""

    def __call__(self, tasks: Iterable[LocalTask], /) -> Iterable[tuple[LocalTask, float]]:
        """Each task with its loss, in their order; its row is written by then."""


@dataclass(frozen=True)
class Blueprint:
    """What another process needs to train as this one does, beside the clients' data.

    Args:
        model: what is trained.
        shape: of an example.
        classes: number of classes.
        buffers: what becomes of buffers of the model.
        training: how a client trains.
        seed: the run's.
    """

    model: Model
    shape: tuple[int, ...]
    classes: int
    buffers: BufferPolicy
    training: LocalSGD
    seed: int

    def trainer(self) -> Trainer:
        """The same trainer as in every other process, on the CPU."""
        with borrowed(self.seed, "model"):
            module = self.model.build(self.shape, self.classes)
        return Trainer(FlatModule(module, self.buffers), self.training, self.seed)


@runtime_checkable
class ExecutorFactory(Protocol):
    """Makes cohorts that train elsewhere."""

    def executor(self, blueprint: Blueprint, data: Mapping[int, Dataset], *, exact: bool) -> Executor:
        """Where the clients of one run train.

        Args:
            blueprint: of the run.
            data: what each client trains on.
            exact: whether a loss is that of the model which the client received, on all its data; see `learnt`.
        """


def learnt(trainer: Trainer, task: LocalTask, data: Dataset, *, exact: bool) -> float:
    """Has a client train, writes the change to the task's row, and returns its loss, in nats per label.

    The loss is the mean over the minibatches of the first epoch; or if it is to be exact, that of the model which the
    client received, over all its examples.  NaN if there are none.
    """
    client, turn, version, start, row = task
    before = evaluate(trainer.model, start, data).loss if exact and len(data) else None
    loss = trainer.train(start, data, client=client, turn=turn, version=version, out=row)
    return loss if before is None else before


@dataclass(frozen=True, eq=False)
class SerialExecutor:
    """One client after the other, in this process.

    Args:
        trainer: of all of them.
        data: what each client trains on, on the trainer's device.
        exact: see `ExecutorFactory.cohort`.
    """

    trainer: Trainer
    data: Mapping[int, Dataset]
    exact: bool

    def __call__(self, tasks: Iterable[LocalTask], /) -> Iterator[tuple[LocalTask, float]]:
        """See `Executor`: a client trains when it is its turn, and no task is made before."""
        for task in tasks:
            yield task, learnt(self.trainer, task, self.data[task.client], exact=self.exact)
