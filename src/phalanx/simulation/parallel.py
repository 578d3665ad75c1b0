"""The clients of one run in several processes of this machine, with the same results to the bit as in one.

Examples lie once in memory that all processes share, and so does a desk for each process: what its clients start from,
and what they have learnt.  Starting a process takes seconds, so that a short run never does.

The clients of a round train at one time.  Those of an asynchronous run train ahead: what a client learns depends on its
download alone, so that the run goes on until the clock has come to the client's answer.
"""

import math
import os
import statistics
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import disk_usage
from typing import Any, NamedTuple, TypeVar

import torch
import torch.multiprocessing  # so that tensors sent to a process are shared, not copied
from torch import Tensor
from typing_extensions import override

from phalanx.core import InfeasibleError
from phalanx.data import Dataset
from phalanx.data.dataset import Inputs
from phalanx.pool import Died, Done, Failed, Message, Ready
from phalanx.processes import Processes
from phalanx.simulation.backlog import Backlog
from phalanx.simulation.executor import Blueprint, Executor, SerialExecutor, learnt
from phalanx.training.local import LocalTask, LocalTrainer

T = TypeVar("T")

AHEAD = 2  # jobs that a process is given at a time, so that it need not wait for the next one
SPAN = 16  # most groups of clients in a job of a round, as a message takes as long as a small client's training
FAR_AHEAD = 16  # the same of an asynchronous run, which gives jobs only between its steps and evaluations
DESK = 1 << 26  # bytes of a desk on which more than `AHEAD` jobs, or more than one group in a job, have place
PAUSE = 1.0  # seconds for which results are waited for at a time
SHARED_MEMORY = Path("/dev/shm")
AFTER = 5.0  # seconds of training after which processes are worth their start
TRIAL = 8  # rounds after which they must have been faster once


class Shared(NamedTuple):
    """The examples of all clients, one after the other in shared memory."""

    x: Inputs
    y: Tensor
    classes: int
    ends: Mapping[int, tuple[int, int]]  # of each client, in rows

    @classmethod
    def of(cls, data: Mapping[int, Dataset]) -> "Shared":
        """Copy the examples of clients to shared memory, without owners, which training does not use."""
        held, ends, at = [*data.values()], {}, 0
        for client, examples in data.items():
            ends[client] = (at, at := at + len(examples))
        return cls(_joined([one.x for one in held]), _shared([one.y for one in held]), held[0].classes, ends)

    def datasets(self) -> dict[int, Dataset]:
        """Return each client's examples, in the same memory."""
        return {i: Dataset(_part(self.x, a, b), self.y[a:b], self.classes) for i, (a, b) in self.ends.items()}


def _joined(inputs: Sequence[Inputs]) -> Inputs:
    first = inputs[0]
    if isinstance(first, Tensor):
        return _shared([x for x in inputs if isinstance(x, Tensor)])
    return {name: _shared([x[name] for x in inputs if not isinstance(x, Tensor)]) for name in first}


def _shared(tensors: Sequence[Tensor]) -> Tensor:
    joined = torch.cat([*tensors])
    joined.share_memory_()  # type: ignore[no-untyped-call]
    return joined


def _part(x: Inputs, start: int, stop: int) -> Inputs:
    return x[start:stop] if isinstance(x, Tensor) else {name: one[start:stop] for name, one in x.items()}


class Desk(NamedTuple):
    """Memory that a process shares with the parent: (jobs, clients of a job, d) each."""

    starts: Tensor
    rows: Tensor


class Job(NamedTuple):
    """Clients that a process trains, one after the other."""

    place: int  # on its desk
    clients: tuple[tuple[int, int, int], ...]  # client, turn and version of each
    alike: bool  # whether all start from the first start there


class Learner:
    """Trains clients in a process of its own.

    Args:
        blueprint: of the run.
        data: the examples of all clients.
        exact: see `ExecutorFactory.executor`.
        desk: of this process.
    """

    def __init__(self, blueprint: Blueprint, data: Shared, exact: bool, desk: Desk) -> None:
        self.blueprint, self.shared, self.exact, self.desk = blueprint, data, exact, desk
        self._trainer: LocalTrainer | None = None
        self._data = dict[int, Dataset]()

    def __call__(self, job: Job, say: object) -> tuple[list[float], list[str]]:
        """Train clients, write their changes to the desk, and return losses and warnings."""
        if self._trainer is None:
            self._trainer, self._data = self.blueprint.trainer(), self.shared.datasets()
        starts, rows = self.desk.starts[job.place], self.desk.rows[job.place]
        tasks = [LocalTask(*client, starts[0 if job.alike else k], rows[k]) for k, client in enumerate(job.clients)]
        with warnings.catch_warnings(record=True) as caught:
            losses = [learnt(self._trainer, task, self._data[task.client], exact=self.exact) for task in tasks]
        return losses, [str(warning.message) for warning in caught]


class Learners(Processes):
    """The processes of one run.

    Args:
        count: largest number of them.
        blueprint: of the run.
        data: the examples of each client.
        exact: see `ExecutorFactory.executor`.
        trainer: as theirs.
        ahead: number of jobs that a process has at one time.
        span: most clients in a job.
    """

    def __init__(
        self,
        count: int,
        blueprint: Blueprint,
        data: Mapping[int, Dataset],
        exact: bool,
        trainer: LocalTrainer,
        *,
        ahead: int,
        span: int,
    ) -> None:
        super().__init__(count, None, torch.get_num_threads())
        self.ahead = ahead
        self._make = (blueprint, Shared.of(data), exact)
        self._size = (ahead, span, trainer.model.size)
        self._like = trainer.model.values
        self._desks, self._places = dict[Connection, Desk](), dict[int, tuple[Connection, int]]()

    @override
    def start(self, wanted: int) -> None:
        while len(self.processes) < min(wanted, self.count) and self.can_begin():
            desk = Desk(*(_shared([self._like.new_zeros(self._size)]) for _ in range(2)))
            self._desks[self.begin(Learner(*self._make, desk))] = desk

    @override
    def surrender(self, deaths: int, died: Died) -> Exception:
        """See `WorkerPool`: the run goes on in one process."""
        return ConnectionError(died.why)

    def ready(self) -> bool:
        """Return whether all processes that were started are ready for jobs."""
        for message in self.wait(0):
            match message:
                case Ready(worker):
                    self.workers[worker] = []
                case Died(_, why):
                    raise ConnectionError(why)
        return 0 < len(self.workers) == len(self.processes)

    @override
    def give(self, worker: Connection, number: int, job: Sequence[LocalTask]) -> None:
        used = {place for owner, place in self._places.values() if owner == worker}
        place = next(free for free in range(self.ahead) if free not in used)
        self._places[number] = worker, place
        alike = len({task.start.data_ptr() for task in job}) == 1
        for start, task in zip(self._desks[worker].starts[place], job[:1] if alike else job, strict=False):
            start.copy_(task.start)
        clients = tuple((task.client, task.turn, task.version) for task in job)
        super().give(worker, number, Job(place, clients, alike))

    def feed(self, backlog: Backlog) -> None:
        """Give processes jobs that were begun, as many as they may have."""
        while (worker := self._free()) is not None and (number := backlog.pop()) is not None:
            self.workers[worker].append(number)
            self.give(worker, number, (backlog.jobs[number].task,))

    def exchange(self, backlog: Backlog, seconds: float) -> Iterator[Message]:
        """Give out jobs that were begun, wait for messages for at most so many seconds, and yield these."""
        self.feed(backlog)
        for message in self.wait(seconds):
            match message:
                case Ready(worker):
                    self.workers[worker] = []
                case Done(job) | Failed(job):
                    self.close_job(job)
            yield message
        self.feed(backlog)

    def collect(self, number: int, job: Sequence[LocalTask]) -> None:
        """Write the changes that a job has made to the rows of its tasks, which may be none any more."""
        worker, place = self._places.pop(number)
        for row, task in zip(self._desks[worker].rows[place], job, strict=False):
            task.row.copy_(row)


class ParallelExecutor:
    """The clients of one run: in this process at first, then in several.

    Args:
        count: number of processes.
        after: seconds of training after which they are started.
        blueprint: of the run.
        data: the examples of each client.
        exact: see `ExecutorFactory.executor`.
    """

    def __init__(
        self, count: int, after: float, blueprint: Blueprint, data: Mapping[int, Dataset], exact: bool
    ) -> None:
        self.count, self.after, self.blueprint, self.data, self.exact = count, after, blueprint, data, exact
        self.serial = SerialExecutor(blueprint.trainer(), data, exact)
        self.learners: Learners | None = None
        self.backlog = Backlog()  # of an asynchronous run
        self._place = 2 * self.serial.trainer.model.values.nbytes
        self._ahead, self._span = AHEAD, min(SPAN, max(1, DESK // (AHEAD * self._place)))
        self._spent = 0.0  # seconds of training in this process so far
        self._alone = deque[float](maxlen=100)  # of these for each client, by round
        self._several = list[float]()  # the same of several processes

    def __call__(self, tasks: Iterable[LocalTask], /) -> Iterable[tuple[LocalTask, float]]:
        """See `Executor`.  Where processes cannot be had, or one dies, clients train in this one from then on."""
        try:
            there = self._ready()
        except Exception as error:  # no memory, one that died, a class that cannot be sent: the bits are the same here
            self._give_up(str(error))
            there = None
        return self._here(tasks) if there is None else self._spread(there, tasks)

    def _ready(self) -> Learners | None:
        """Return the processes if they can be given clients now; start them if it is time."""
        if self.learners is None and self._spent >= self.after:
            self._fit()
            settings = (self.blueprint, self.data, self.exact, self.serial.trainer)
            self.learners = Learners(self.count, *settings, ahead=self._ahead, span=self._span)
            self.learners.start(self.count)
        if self.learners is None or self.after == 0 or self.learners.workers:
            return self.learners
        return self.learners if self.learners.ready() else None

    def _fit(self) -> None:
        """Make jobs smaller if the shared memory is too small for them."""
        where = (self.data, self.count, self.serial.trainer)
        while (why := lacking_memory(*where, self._ahead * self._span)) and self._span > 1:
            self._span //= 2
        if why:
            raise OSError(why)

    def _here(self, tasks: Iterable[LocalTask]) -> Iterator[tuple[LocalTask, float]]:
        begun, count = time.monotonic(), 0
        for count, trained in enumerate(self.serial(tasks), 1):  # noqa: B007  (used after the loop)
            yield trained
        seconds = time.monotonic() - begun
        self._spent += seconds
        if count:
            self._alone.append(seconds / count)

    def _spread(self, learners: Learners, tasks: Iterable[LocalTask]) -> Iterator[tuple[LocalTask, float]]:
        begun, order = time.monotonic(), [*tasks]
        jobs = [*divided(order, self.count, self._span)]
        losses, passed, died = dict[int, float](), 0, ""
        for happening in learners.do(jobs, PAUSE):
            match happening:
                case Done(number, (found, texts)):
                    learners.collect(number, jobs[number])
                    losses |= {task.client: loss for task, loss in zip(jobs[number], found, strict=True)}
                    for text in texts:
                        warnings.warn(text, stacklevel=2)
                case Failed(_, ConnectionError() as error):
                    died = str(error)
                case Failed(_, error):
                    raise error
            while passed < len(order) and (task := order[passed]).client in losses:
                passed += 1
                yield task, losses[task.client]  # the others train while this one is taken in
        if died:
            self._give_up(died)
            losses |= {task.client: loss for task, loss in self.serial(t for t in order if t.client not in losses)}
        elif order:
            self._compare((time.monotonic() - begun) / len(order))
        yield from ((task, losses[task.client]) for task in order[passed:])

    def _compare(self, seconds: float) -> None:
        """Note the time for each client of a round, and go back to one process if several are slower."""
        self._several.append(seconds)
        if len(self._several) == TRIAL and self._alone and min(self._several) > statistics.median(self._alone):
            self._leave()

    # Ahead

    def begin(self, tasks: Iterable[tuple[LocalTask, float]], /) -> None:
        """See `AheadExecutor`."""
        self._ahead, self._span = min(FAR_AHEAD, max(AHEAD, DESK // self._place)), 1
        for task, due in tasks:
            self.backlog.add(task, due)
        self._advance(0.0)

    def result(self, task: LocalTask, /) -> float:
        """See `AheadExecutor`: where processes cannot be had, the client trains in this one."""
        job = self.backlog.job(task)
        while job.loss is None:
            if not self._advance(PAUSE):
                ((_, job.loss),) = self._here([job.task])
        self.backlog.forget(task)
        return job.loss

    def forget(self, task: LocalTask, /) -> None:
        """See `AheadExecutor`."""
        self.backlog.forget(task)

    def _advance(self, seconds: float) -> bool:
        """Exchange jobs and results with the processes, and return whether they go on."""
        try:
            there = self._ready()
        except Exception as error:  # as above
            self._give_up(str(error))
            there = None
        if there is None:
            return False
        for message in there.exchange(self.backlog, seconds):
            match message:
                case Done(number, (losses, texts)):
                    self._collect(there, number, losses, texts)
                case Died(_, why):
                    self._give_up(why)
                    return False
                case Failed(_, mistake):
                    raise mistake
        return True

    def _collect(self, there: Learners, number: int, losses: Sequence[float], texts: Sequence[str]) -> None:
        """Take in the results of a job that was begun, unless they are not needed any more."""
        job = self.backlog.jobs.get(number)
        there.collect(number, (job.task,) if job else ())
        if job is not None:
            (job.loss,) = losses
        for text in texts:
            warnings.warn(text, stacklevel=2)

    def _give_up(self, why: str) -> None:
        """Go on in this process alone."""
        warnings.warn(f"Clients train in one process from here on, to the same bits. {why}", stacklevel=2)
        self._leave()

    def _leave(self) -> None:
        self.close()
        self.learners, self.after = None, math.inf

    def close(self) -> None:
        """End the processes."""
        if self.learners is not None:
            self.learners.__exit__()


class ProcessExecutors:
    """The processors of this machine, on which the clients of a run train: `executors` of `phalanx.simulate`.

    A context.  A script of your own that uses it needs `if __name__ == "__main__":`, since processes import it.

    Args:
        jobs: number of processes; None: one for each processor that torch's threads leave free.
        after: seconds of training after which they are started; before, clients train in this process.

    Raises:
        InfeasibleError: jobs is below 1.
    """

    def __init__(self, jobs: int | None = None, after: float = AFTER) -> None:
        if jobs is not None and jobs < 1:
            raise InfeasibleError(f"jobs must be at least 1, got {jobs}.")
        self.jobs, self.after = jobs, after
        self._stack = ExitStack()

    def __enter__(self) -> "ProcessExecutors":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    @property
    def count(self) -> int:
        """The number of processes."""
        return self.jobs or max(1, processors() // torch.get_num_threads())

    def executor(self, blueprint: Blueprint, data: Mapping[int, Dataset], *, exact: bool) -> Executor:
        """See `phalanx.simulation.executor.ExecutorFactory`.

        Raises:
            InfeasibleError: the processes would have more threads than there are processors, which is very slow.
        """
        threads = torch.get_num_threads()
        if self.count > 1 < threads and self.count * threads > processors():
            raise InfeasibleError(
                f"{self.count} processes of {threads} threads each are more than the {processors()} processors here, "
                "and would be very slow. Call torch.set_num_threads(1) first, or lower --threads or --jobs."
            )
        if self.count == 1:
            return SerialExecutor(blueprint.trainer(), data, exact)
        self._stack.close()  # of an earlier run
        made = ParallelExecutor(self.count, self.after, blueprint, data, exact)
        self._stack.callback(made.close)
        return made


def divided(tasks: Sequence[T], count: int, most: int) -> Iterator[Sequence[T]]:
    """Yield the tasks in ever smaller jobs, so that processes end at about the same time.

    Args:
        tasks: of a round.
        count: number of processes.
        most: tasks in a job.
    """
    at = 0
    while at < len(tasks):
        yield tasks[at : (at := at + min(most, max(1, (len(tasks) - at) // (2 * count))))]


def lacking_memory(data: Mapping[int, Dataset], count: int, trainer: LocalTrainer, tasks: int) -> str:
    """Return why the memory that processes can share is too small, or ""; a container often has 64 MB only."""
    if not SHARED_MEMORY.is_dir():
        return ""
    examples = [tensor for held in data.values() for tensor in (*held.inputs.values(), held.y)]
    desks = 2 * count * tasks * trainer.model.values.nbytes
    needed, free = sum(tensor.nbytes for tensor in examples) + desks, disk_usage(SHARED_MEMORY).free
    if needed <= free:
        return ""
    return (
        f"Several processes need {needed / 1e6:,.0f} MB of shared memory, and {SHARED_MEMORY} has "
        f"{free / 1e6:,.0f} MB. Enlarge it (docker run --shm-size), or set --jobs to 1."
    )


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
