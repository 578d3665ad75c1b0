"""Executors: the clients of a round train one after the other in this process, or elsewhere.

The result of a task depends on the task, the client's data and the `Blueprint` alone, so that it is the same to the bit
wherever the client trains.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from phalanx.data import Dataset
from phalanx.models import Model
from phalanx.rng import borrowed
from phalanx.training.evaluation import evaluate
from phalanx.training.local import LocalTask, LocalTrainer, LocalTraining
from phalanx.training.task import Task
from phalanx.training.vector import BufferPolicy, FlatModule

T = TypeVar("T")


@runtime_checkable
class Executor(Protocol):
    """A function that trains clients."""

    def __call__(self, tasks: Iterable[LocalTask], /) -> Iterable[tuple[LocalTask, float]]:
        """Yield each task with its loss, in their order; its row is written by then."""


@runtime_checkable
class AheadExecutor(Executor, Protocol):
    """An executor whose clients train while the run goes on, until their results are needed."""

    def begin(self, tasks: Iterable[tuple[LocalTask, float]], /) -> None:
        """Begin tasks, each with the time at which its result is needed; infinite if it may never be."""

    def result(self, task: LocalTask, /) -> float:
        """Wait until a task has trained, and return its loss; its row is written by then.  Called once for a task."""

    def forget(self, task: LocalTask, /) -> None:
        """Drop a task: its result is not needed any more."""


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
    """Train a client, write the change to the row of its task, and return its loss per label.

    The loss is the mean over the minibatches of the first epoch; or if it is to be exact, that of the model which the
    client received, over all its examples.  NaN if there are none.

    Args:
        trainer: of this client.
        task: of this client.
        data: its examples.
        exact: see `ExecutorFactory.executor`.
    """
    before = evaluate(trainer.model, task.start, data, trainer.task).loss if exact and len(data) else None
    loss = trainer.train(task, data)
    return loss if before is None else before


@dataclass(frozen=True, eq=False)
class SerialExecutor:
    """The clients of a round in this process, one after the other.

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


@dataclass(frozen=True, eq=False)
class DividedExecutor:
    """Some clients train by one executor, all others by another; the results come in the order of the tasks.

    Args:
        clients: the clients that `theirs` trains.
        theirs: the executor of these clients, in this process.
        others: the executor of all others.
    """

    clients: Set[int]
    theirs: Executor
    others: Executor

    def __call__(self, tasks: Iterable[LocalTask], /) -> Iterator[tuple[LocalTask, float]]:
        """See `Executor`."""
        waiting = deque[LocalTask]()  # tasks before the last one that the others were given, and that one
        for task, loss in self.others(self._for_others(tasks, waiting)):
            while waiting[0] is not task:
                yield from self.theirs([waiting.popleft()])
            yield waiting.popleft(), loss
        yield from self.theirs(waiting)

    def _for_others(self, tasks: Iterable[LocalTask], waiting: deque[LocalTask]) -> Iterator[LocalTask]:
        for task in tasks:
            waiting.append(task)
            if task.client not in self.clients:
                yield task
