"""Executors: the clients of a round train one after the other in this process, or elsewhere.

The result of a task depends on the task, the client's data and the `Blueprint` alone, so that it is the same to the bit
wherever the client trains.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.models import Model
from phalanx.rng import borrowed
from phalanx.training.evaluation import evaluate
from phalanx.training.local import LocalTrainer, LocalTraining
from phalanx.training.task import Task
from phalanx.training.vector import BufferPolicy, FlatModule


class LocalTask(NamedTuple):
    """One training task of one client."""

    client: int
    turn: int  # number of its earlier tasks
    version: int  # of the model that it was sent
    start: Vector  # parameters from which it trains; shared storage where equal
    row: Vector  # receives trained minus start


@runtime_checkable
class Executor(Protocol):
    """A function that trains clients."""

    def __call__(self, tasks: Iterable[LocalTask], /) -> Iterable[tuple[LocalTask, float]]:
        """Yield each task with its loss, in their order; its row is written by then."""


@dataclass(frozen=True)
class Blueprint:
    """The settings, besides the clients' data, with which another process trains as this one does.

    Args:
        model: the model that is trained.
        shape: of an example.
        outputs: number of outputs of the model, such as that of classes.
        buffers: the treatment of buffers of the model.
        training: the local training of a client.
        seed: seed of the run.
        task: the task that is trained.
    """

    model: Model
    shape: tuple[int, ...]
    outputs: int
    buffers: BufferPolicy
    training: LocalTraining
    seed: int
    task: Task

    def trainer(self) -> LocalTrainer:
        """Return the same trainer as in every other process, on the CPU."""
        with borrowed(self.seed, "model"):
            module = self.model.build(self.shape, self.outputs)
        return self.training.trainer(FlatModule(module, self.buffers), self.task, self.seed)


@runtime_checkable
class ExecutorFactory(Protocol):
    """A factory of executors that train elsewhere."""

    def executor(self, blueprint: Blueprint, data: Mapping[int, Dataset], *, exact: bool) -> Executor:
        """Return the executor for the clients of one run.

        Args:
            blueprint: of the run.
            data: the examples of each client.
            exact: whether a loss is that of the model which the client received, on all its data; see `learnt`.
        """


def learnt(trainer: LocalTrainer, task: LocalTask, data: Dataset, *, exact: bool) -> float:
    """Train a client, write the change to the task's row, and return its loss per label.

    The loss is the mean over the minibatches of the first epoch; or if it is to be exact, that of the model which the
    client received, over all its examples.  NaN if there are none.
    """
    client, turn, version, start, row = task
    before = evaluate(trainer.model, start, data, trainer.task).loss if exact and len(data) else None
    loss = trainer.train(start, data, client=client, turn=turn, version=version, out=row)
    return loss if before is None else before


@dataclass(frozen=True, eq=False)
class SerialExecutor:
    """One client after the other, in this process.

    Args:
        trainer: of all clients.
        data: the examples of each client, on the trainer's device.
        exact: see `ExecutorFactory.executor`.
    """

    trainer: LocalTrainer
    data: Mapping[int, Dataset]
    exact: bool

    def __call__(self, tasks: Iterable[LocalTask], /) -> Iterator[tuple[LocalTask, float]]:
        """See `Executor`: a client trains when the result is requested, and no task is made before."""
        for task in tasks:
            yield task, learnt(self.trainer, task, self.data[task.client], exact=self.exact)
