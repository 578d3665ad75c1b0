"""Runs in several processes: each record is in the store as soon as its run ends.

Every process has a pipe of its own to the one that gives out the runs.  So a process that dies, however it dies, is
noticed at once, takes one run with it, and blocks nobody; and when the one that gives out runs is gone, the others end.
"""

import multiprocessing
import signal
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch

from phalanx.core import InfeasibleError, Observer, Progress, StalledError
from phalanx.numerics.memory import keep_freed_memory
from phalanx.reproduce.store import Store
from phalanx.reproduce.trace import Trace
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate

PAUSE = 0.2  # seconds between two reports of how far a run is
GRACE = 1.0  # seconds that a process has to end before it is killed


class Began(NamedTuple):
    """A run has begun."""

    worker: int
    plan: Run


class Advanced(NamedTuple):
    """A run is so far."""

    worker: int
    share: float  # from 0 to 1


class Warned(NamedTuple):
    """A run has given a warning."""

    worker: int
    text: str


class Ended(NamedTuple):
    """A run has ended; its trace is in the store if `kept`."""

    worker: int
    trace: Trace
    kept: bool


Event = Began | Advanced | Warned | Ended


@dataclass(frozen=True)
class Means:
    """How runs are carried out; no part of their identity.

    Args:
        data_dir: where data sets lie; they are downloaded if None.
        device: where they compute.
        resume: whether a run goes on that was killed on its way. If not, it starts anew.
    """

    data_dir: Path | None = None
    device: str = "cpu"
    resume: bool = True


# In the process that runs


def work(worker: int, connection: Connection, store: Store, means: Means) -> None:
    """Carries out the runs that come through the pipe, until it is closed.

    Args:
        worker: number of this process.
        connection: sends runs, and is sent events.
        store: takes the records.
        means: how runs are carried out.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the one that gives out runs decides
    torch.set_num_threads(1)
    keep_freed_memory()

    def show(message: Warning | str, *_: Any) -> None:
        connection.send(Warned(worker, str(message)))

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        while True:
            plan: Run = connection.recv()
            connection.send(_carried_out(worker, plan, connection, store, means))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody is there who could give out more


def _carried_out(worker: int, plan: Run, connection: Connection, store: Store, means: Means) -> Ended:
    def keep(trace: Trace) -> None:
        store.keep(trace)
        store.tidy(plan)

    report = Report(plan, lambda share: connection.send(Advanced(worker, share)))
    return Ended(worker, *traced(plan, store.underway(plan), means, report, keep))


def traced(
    plan: Run, folder: Path | None, means: Means, report: Observer, keep: Callable[[Trace], None]
) -> tuple[Trace, bool]:
    """Carries out a run in this process; whatever is wrong with it, the others go on.

    Args:
        plan: the run.
        folder: where it is saved on its way; None: nowhere.
        means: how it is carried out.
        report: is shown each step.
        keep: takes the trace.

    Returns:
        The trace, of a run that cannot be carried out as well; and whether it was kept.
    """
    begun = time.monotonic()
    try:
        record = simulate(
            plan,
            folder=folder,
            data_dir=means.data_dir,
            device=means.device,
            observers=[report],
            checkpoint=Checkpoint(resume=means.resume),
        )
        trace = Trace.of(plan, record)
        keep(trace)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # whatever is wrong with one run, the others go on
        if not isinstance(error, (InfeasibleError, StalledError, ValueError, OSError)):
            last = traceback.extract_tb(error.__traceback__)[-1]
            error.add_note(f"at line {last.lineno} of {last.filename}")
        return Trace.of_failure(plan, error, round(time.monotonic() - begun, 3)), False
    return trace, True


class Report:
    """An observer that says how far a run is, not more often than it takes a reader to see it.

    Args:
        plan: the run.
        say: is told which share of it is done, from 0 to 1.
    """

    def __init__(self, plan: Run, say: Callable[[float], object]) -> None:
        self.until, self.say = plan.until, say
        self.last = 0.0

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        now = time.monotonic()
        if now - self.last < PAUSE:
            return
        self.last = now
        steps = progress.step / self.until.limit if self.until.limit else 0.0
        seconds = progress.now / self.until.seconds if self.until.seconds else 0.0
        self.say(min(1.0, max(steps, seconds)))


# In the process that gives out runs


class Workers:
    """Processes that carry out runs. On leaving the context all of them end, whatever they do.

    Args:
        count: how many at most.
        store: takes the records.
        means: how runs are carried out.
    """

    def __init__(self, count: int, store: Store, means: Means) -> None:
        self.count, self.store, self.means = count, store, means
        self._known: dict[Connection, _Worker] = {}
        self._numbers = 0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        processes = [worker.process for worker in self._known.values()]
        for process in processes:
            process.terminate()
        until = time.monotonic() + GRACE
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._known.clear()

    def events(self, plans: Sequence[Run]) -> Iterator[Event]:
        """Carries out runs, and tells what happens; for each run there is one `Began` and one `Ended`."""
        waiting = deque(plans)
        while waiting and len(self._known) < self.count:
            yield self._begin(self._start(), waiting.popleft())
        busy = set(self._known)
        while busy:
            for connection in wait(busy):
                assert isinstance(connection, Connection)
                worker, event = self._known[connection], self._next(connection)
                yield event
                if isinstance(event, Ended):
                    busy.remove(connection)
                    if waiting:
                        same = worker if connection in self._known else self._start()
                        busy.add(same.connection)
                        yield self._begin(same, waiting.popleft())

    def _start(self) -> "_Worker":
        here, there = CONTEXT.Pipe()
        self._numbers += 1
        process = CONTEXT.Process(target=work, args=(self._numbers, there, self.store, self.means), daemon=True)
        with _deaf():
            process.start()
        there.close()
        self._known[here] = _Worker(self._numbers, process, here)
        return self._known[here]

    def _begin(self, worker: "_Worker", plan: Run) -> Began:
        worker.plan, worker.begun = plan, time.monotonic()
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died already: the next look at it tells
            worker.connection.send(plan)
        return Began(worker.number, plan)

    def _next(self, connection: Connection) -> Event:
        """What comes from a process; if it is dead, that."""
        worker = self._known[connection]
        try:
            event: Event = connection.recv()
        except (EOFError, ConnectionResetError):
            del self._known[connection]
            connection.close()
            worker.process.join()
            assert worker.plan is not None
            seconds = round(time.monotonic() - worker.begun, 3)
            return Ended(worker.number, Trace.of_failure(worker.plan, _death(worker.process.exitcode), seconds), False)
        return event


class _Worker:
    """A process, and what it does."""

    def __init__(self, number: int, process: Any, connection: Connection) -> None:
        self.number, self.process, self.connection = number, process, connection
        self.plan: Run | None = None
        self.begun = 0.0


CONTEXT = multiprocessing.get_context("spawn")  # a fork of a process that has used torch or numba can hang


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that start meanwhile do not hear Ctrl-C, not even before their first line."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _death(code: int | None) -> str:
    """How a process ended, in words."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        memory = ", as the operating system does when memory runs out: give fewer --jobs" * (name == "SIGKILL")
        return f"Its process was killed by the signal {name}{memory}."
    return f"Its process ended with the status {code}, in the middle of the run."
