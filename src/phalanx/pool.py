"""Jobs done by workers that can die: one loop for processes of this machine and for workers on a Ray cluster."""

import os
import signal
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

STOPPED, AWAKE = 10, 1.0  # looks at a process, so many seconds apart at least, of which each finds it stopped


class Given(NamedTuple):
    """A job was given to a worker."""

    job: int
    worker: Any


class WorkerReport(NamedTuple):
    """What a worker reports on the job that it does."""

    job: int
    what: Any


class Done(NamedTuple):
    """A job is done."""

    job: int
    result: Any


class Requeued(NamedTuple):
    """The worker that had a job is dead; the job goes to another one."""

    job: int
    why: str


class Failed(NamedTuple):
    """A job cannot be done."""

    job: int
    error: BaseException


class Ready(NamedTuple):
    """A worker has begun."""

    worker: Any


class Died(NamedTuple):
    """A worker is dead, with the jobs that it had."""

    worker: Any
    why: str
    halted: bool = False  # from outside, so that its job has no part in it


Happening = Given | WorkerReport | Done | Requeued | Failed
Message = Ready | WorkerReport | Done | Failed | Died


class WorkerPool(ABC):
    """The workers, as a context; one that dies is replaced when there is work for another.

    Subclasses define what a worker is.
    """

    ahead = 1  # number of jobs that a worker has at one time, the one that it does included

    def __init__(self) -> None:
        self.workers = dict[Any, list[int]]()  # the jobs of each worker that has begun
        self._stopped = dict[Any, int]()  # looks in a row that found a worker stopped

    @abstractmethod
    def start(self, wanted: int) -> None:
        """Start workers until there are as many as requested, or as many as fit.

        Raises:
            ConnectionError: no worker is left, and none begins.
        """

    @abstractmethod
    def give(self, worker: Any, number: int, job: Any) -> None:
        """Give a worker one more job."""

    @abstractmethod
    def wait(self, seconds: float) -> Sequence[Message]:
        """Return the next messages of workers, none if there are none within some seconds."""

    @abstractmethod
    def stop(self, worker: Any) -> object:
        """End a worker, even in the middle of a job."""

    @abstractmethod
    def surrender(self, deaths: int, died: Died) -> Exception | None:
        """Return the error of a job over which so many workers have died; None if another one is given it."""

    def do(self, jobs: Sequence[Any], pause: float = 1.0) -> Iterator[Happening]:
        """Yield the events of the jobs as the workers do them; for each job there is one `Done` or one `Failed`.

        Args:
            jobs: begun in their order.
            pause: seconds for which it waits for messages at a time.

        Raises:
            ConnectionError: no worker is left, and none begins.
        """
        todo, deaths = deque(range(len(jobs))), Counter[int]()
        try:
            while todo or self._busy():
                self.start(len(todo) + len(self._busy()))
                while todo and (worker := self._free()) is not None:
                    number = todo.popleft()
                    self.workers[worker].append(number)
                    self.give(worker, number, jobs[number])
                    yield Given(number, worker)
                for message in self.wait(pause):
                    yield from self._taken(message, todo, deaths)
        finally:
            for worker in self._busy():  # nobody waits for their jobs any more
                del self.workers[worker]
                self.stop(worker)

    def halted(self, worker: Any, where: str, *, stopped: bool) -> Iterator[Died]:
        """End a worker whose process was stopped (SIGSTOP) and does not go on: nobody would ever hear of its jobs.

        Args:
            worker: which was looked at once more.
            where: names its process.
            stopped: whether it is stopped now.
        """
        self._stopped[worker] = self._stopped.get(worker, 0) + 1 if stopped else 0
        if self._stopped[worker] >= STOPPED:
            del self._stopped[worker]
            self.stop(worker)
            self.workers.setdefault(worker, [])
            why = f"The process {where} was stopped by a signal and did not go on, so that it was ended."
            yield Died(worker, why, halted=True)

    def _busy(self) -> list[Any]:
        return [worker for worker, jobs in self.workers.items() if jobs]

    def _free(self) -> Any:
        """Return the worker with the fewest jobs if it may have one more, else None."""
        found = min(self.workers, key=lambda worker: len(self.workers[worker]), default=None)
        return found if found is not None and len(self.workers[found]) < self.ahead else None

    def _taken(self, message: Message, todo: deque[int], deaths: Counter[int]) -> Iterator[Happening]:
        match message:
            case Ready(worker):
                self.workers[worker] = []
            case Died(worker, why) as died:
                lost = self.workers.pop(worker)
                deaths.update(lost)
                for job in lost:
                    if (error := self.surrender(deaths[job], died)) is None:
                        todo.appendleft(job)
                        yield Requeued(job, why)
                    else:
                        yield Failed(job, error)
            case WorkerReport():
                yield message
            case Done(job) | Failed(job):
                self.close_job(job)
                yield message

    def close_job(self, job: int) -> None:
        """Note that a worker does not have a job any more."""
        next(jobs for jobs in self.workers.values() if job in jobs).remove(job)


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal; False where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def looked_at(pids: Sequence[int], dead: Sequence[int] = ()) -> list[int]:
    """Return which processes of this machine are stopped by a signal; kill others, which were stopped for too long."""
    for pid in filter(is_stopped, dead):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [*filter(is_stopped, pids)]
