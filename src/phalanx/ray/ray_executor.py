"""The clients of one round on several machines, with the same results to the bit as in one process.

The examples of all clients are put once into the shared memory of a machine's workers, a model once for each round, and
each worker takes the next client when it has finished one, those with the most examples first.
"""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from torch import Tensor

from phalanx.core import InfeasibleError
from phalanx.data import Dataset
from phalanx.pool import Done, Failed, Requeued
from phalanx.ray.crew import Crew, Job, RayWorker, joined, log, stated
from phalanx.simulation.executor import Blueprint, Executor, learnt
from phalanx.training.local import LocalTask

AHEAD = 2  # clients that a worker is given at a time, so that it need not wait for the next one


class HeldExamples(NamedTuple):
    """A client's examples, as arrays in memory that several processes can read."""

    x: np.ndarray | dict[str, np.ndarray]
    y: np.ndarray
    classes: int

    @classmethod
    def of(cls, data: Dataset) -> "HeldExamples":
        """Return the arrays of a data set, without writers, which training does not use."""
        x = {name: as_array(part) for name, part in data.inputs.items()}
        return cls(x[""] if isinstance(data.x, Tensor) else x, as_array(data.y), data.classes)

    def dataset(self) -> Dataset:
        """Return the data set, in the same memory."""
        x = self.x if isinstance(self.x, np.ndarray) else {name: as_tensor(part) for name, part in self.x.items()}
        return Dataset(as_tensor(x) if isinstance(x, np.ndarray) else x, as_tensor(self.y), self.classes)


def as_array(tensor: Tensor) -> np.ndarray:
    """Return the tensor as an array; raise InfeasibleError if NumPy has no such dtype."""
    try:
        found: np.ndarray = tensor.numpy()
    except TypeError as error:
        raise InfeasibleError(
            f"What travels to other machines must have a dtype of NumPy's, got {tensor.dtype}."
        ) from error
    return found


def as_tensor(array: np.ndarray) -> Tensor:
    """Return the array as a tensor in the same memory, which must not be written."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


class Teacher(RayWorker):
    """A worker that trains one client after another."""

    def prepare(self, blueprint: Blueprint, data: Mapping[int, HeldExamples], exact: bool) -> None:
        """Load the clients of a run."""
        self._trainer, self._exact = blueprint.trainer(), exact
        self._data = {client: held.dataset() for client, held in data.items()}
        self._row = torch.empty_like(self._trainer.model.values)

    def train(self, client: int, turn: int, version: int, start: np.ndarray) -> tuple[np.ndarray, float, list[str]]:
        """Return the change by training, the loss, and the warnings."""
        task = LocalTask(client, turn, version, as_tensor(start), self._row)
        with warnings.catch_warnings(record=True) as caught:
            loss = learnt(self._trainer, task, self._data[client], exact=self._exact)
        return as_array(self._row), loss, [str(warning.message) for warning in caught]


class RayExecutors:
    """A Ray cluster on which the clients of a round train: `executors` of `phalanx.simulate`.  A context.

    Args:
        address: of the cluster; see `phalanx.ray.joined`.
        workers: largest number; the free CPUs of the cluster if None.
    """

    def __init__(self, address: str, workers: int | None = None) -> None:
        self.address, self.crew = address, Crew(Teacher, workers, AHEAD, stated())
        self._stack = ExitStack()

    def __enter__(self) -> "RayExecutors":
        """Join the cluster and start the workers.

        Raises:
            InfeasibleError: there is no cluster, none of its CPUs is free, or a worker would compute other bits.
            ConnectionError: no worker begins.
        """
        with self._stack as stack:
            stack.enter_context(joined(self.address))
            stack.enter_context(self.crew)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def executor(self, blueprint: Blueprint, data: Mapping[int, Dataset], *, exact: bool) -> Executor:
        """See `phalanx.simulation.executor.ExecutorFactory`.  Afterwards the workers serve this run only."""
        held = ray.put({client: HeldExamples.of(examples) for client, examples in data.items()})
        self.crew.prepare(lambda worker: worker.prepare.remote(blueprint, held, exact))
        return _RayExecutor(self.crew, {client: len(examples) for client, examples in data.items()})


class _RayExecutor:
    """The clients of one run.

    Args:
        crew: trains them.
        sizes: number of examples of each client.
    """

    def __init__(self, crew: Crew, sizes: Mapping[int, int]) -> None:
        self.crew, self.sizes = crew, sizes

    def __call__(self, tasks: Iterable[LocalTask], /) -> list[tuple[LocalTask, float]]:
        """See `Executor`.

        Raises:
            ConnectionError: no worker is left, or several have died over one client.
        """
        given, models = list(tasks), dict[int, Any]()
        order = sorted(given, key=lambda task: -self.sizes[task.client])
        losses = dict[int, float]()
        for happening in self.crew.do([self._job(task, models) for task in order]):
            match happening:
                case Done(job, (row, loss, texts)):
                    np.copyto(order[job].row.numpy(), row)
                    losses[order[job].client] = loss
                    for text in texts:
                        warnings.warn(text, stacklevel=2)
                case Requeued(job, why):
                    log.warning("client %d is trained again by another worker: %s", order[job].client, why)
                case Failed(job, error):
                    error.add_note(f"While client {order[job].client} was trained on the Ray cluster.")
                    raise error
        return [(task, losses[task.client]) for task in given]

    @staticmethod
    def _job(task: LocalTask, models: dict[int, Any]) -> Job:
        """Return a job for a worker; each model goes once to the cluster, however many clients are sent it."""
        client, turn, version, start, *_ = task
        at = start.data_ptr()
        if at not in models:
            models[at] = ray.put(as_array(start))
        model = models[at]
        return lambda worker: worker.train.remote(client, turn, version, model)
