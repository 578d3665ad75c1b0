"""Runs carried out by a pool of workers: each record is in the store as soon as its run ends."""

import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from phalanx.core import InfeasibleError, StalledError
from phalanx.engine.observer import Progress
from phalanx.experiments.grid import Planned
from phalanx.experiments.run_events import Advanced, Began, Ended, Event, Warned
from phalanx.experiments.store import Records
from phalanx.experiments.trace import Measures, Trace
from phalanx.pool import Done, Failed, Given, Requeued, WorkerPool, WorkerReport
from phalanx.processes import Processes
from phalanx.runs.canonical import digest
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.engine_choice import done_as, possible
from phalanx.runs.plan import Run
from phalanx.runs.session import DiskFullError, simulate

if TYPE_CHECKING:
    from rich.console import Console

PAUSE = 0.2  # seconds between two reports of a run's progress


@dataclass(frozen=True)
class Means:
    """The means by which runs are carried out; no part of their identity.

    Args:
        data_dir: folder of the data sets; they are downloaded if None.
        device: the torch device.
        resume: whether a run that was killed goes on. If not, it starts from the beginning.
        measures: figures of the user's own that traces keep, by name.
    """

    data_dir: Path | None = None
    device: str = "cpu"
    resume: bool = True
    measures: Measures = field(default_factory=dict)


# In a worker


class RunProgress(NamedTuple):
    """The progress of a run: the share that is done, from 0 to 1, and all its warnings."""

    share: float
    warnings: tuple[str, ...]


class Report:
    """Reports of the progress of a run, as an observer and a handler of warnings.

    Progress is reported no more often than a reader can see it.

    Args:
        plan: the run.
        say: takes the reports.
    """

    def __init__(self, plan: Run, say: Callable[[RunProgress], object]) -> None:
        self.until, self.say = plan.until, say
        self.so_far, self.last = RunProgress(0.0, ()), 0.0

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        now = time.monotonic()
        if now - self.last < PAUSE:
            return
        self.last = now
        steps = progress.step / self.until.limit if self.until.limit else 0.0
        seconds = progress.now / self.until.seconds if self.until.seconds else 0.0
        self._report(RunProgress(min(1.0, max(steps, seconds)), self.so_far.warnings))

    def show(self, message: Warning | str, *_: Any) -> None:
        """Replace `warnings.showwarning`."""
        self._report(RunProgress(self.so_far.share, (*self.so_far.warnings, str(message))))

    def _report(self, so_far: RunProgress) -> None:
        self.so_far = so_far
        self.say(so_far)


class Outcome(NamedTuple):
    """The outcome of a run.

    Args:
        trace: of the run, also if it could not be carried out.
        kept: whether the trace is stored: the run would have the same outcome again.
        warnings: all warnings of the run.
        cpu_seconds: seconds of the processor.
        full: what it said of a disk without room for it; empty if there was room.
    """

    trace: Trace
    kept: bool
    warnings: tuple[str, ...]
    cpu_seconds: float
    full: str = ""


def carried_out(plan: Run, folder: Path | None, means: Means, say: Callable[[RunProgress], object]) -> Outcome:
    """Carry out a run in this process; if it fails, the others go on.

    Args:
        plan: the run.
        folder: of its checkpoints; None: no checkpoints.
        means: of carrying it out.
        say: takes reports of the progress.
    """
    begun, computed, report = time.monotonic(), time.process_time(), Report(plan, say)

    def outcome(trace: Trace, *, kept: bool) -> Outcome:
        return Outcome(trace, kept, report.so_far.warnings, round(time.process_time() - computed, 3))

    warnings.showwarning = report.show  # type: ignore[assignment]
    try:
        record = simulate(
            plan,
            folder=folder,
            data_dir=means.data_dir,
            device=means.device,
            observers=[report],
            checkpoint=Checkpoint(resume=means.resume),
            models=None,
        )
        return outcome(Trace.of(done_as(plan, record.summary.identity), record, means.measures), kept=True)
    except (BrokenPipeError, ConnectionResetError):  # nobody waits for the run any more
        raise
    except Exception as error:  # if one run fails, the others go on
        if not isinstance(error, (InfeasibleError, StalledError, ValueError, OSError)):
            last = traceback.extract_tb(error.__traceback__)[-1]
            error.add_note(f"at line {last.lineno} of {last.filename}")
        trace = Trace.of_failure(plan, error, round(time.monotonic() - begun, 3))
        return outcome(trace, kept=False)._replace(full=str(error) if isinstance(error, DiskFullError) else "")


# In the parent


@dataclass(frozen=True)
class Workers:
    """Workers that carry out runs.

    Args:
        pool: the workers, begun.
        job: what the pool does for a run; its result is an `Outcome`, its reports are `RunProgress`.
        store: takes the records.
    """

    pool: WorkerPool
    job: Callable[[Run], Any]
    store: Records

    def events(self, plans: Sequence[Run]) -> Iterator[Event]:
        """Carry out runs, and report what happens; for each run there is one `Began` and one `Ended`.

        Raises:
            ConnectionError: no worker is left.
            DiskFullError: there is no room for a run.
        """
        began, passed_on = dict[int, float](), Counter[int]()  # times, and numbers of warnings, by run

        def warned(run: int, texts: Sequence[str]) -> Iterator[Event]:
            yield from (Warned(run, text) for text in texts[passed_on[run] :])
            passed_on[run] = max(passed_on[run], len(texts))

        for happening in self.pool.do([self.job(plan) for plan in plans], PAUSE):
            match happening:
                case Given(run) if run not in began:  # the first worker that has a run begins it
                    began[run] = time.monotonic()
                    yield Began(run, plans[run])
                case WorkerReport(run, RunProgress(share, texts)):
                    yield Advanced(run, share)
                    yield from warned(run, texts)
                case Done(run, Outcome(trace, kept, texts, cpu_seconds, full)):
                    yield from warned(run, texts)
                    if full:  # no other run would have room
                        raise DiskFullError(full)
                    if kept := kept or self.store.keeps_failures:
                        self.store.keep(trace, cpu_seconds)
                        self.store.tidy(plans[run])
                    yield Ended(run, trace, kept)
                case Requeued(run, why):
                    yield Warned(run, f"A run is carried out again by another worker: {why}")
                case Failed(run, error):
                    what = str(error) if isinstance(error, ConnectionError) else error
                    seconds = round(time.monotonic() - began[run], 3)
                    yield Ended(run, Trace.of_failure(plans[run], what, seconds), kept=False)


@contextmanager
def local_workers(count: int, store: Records, means: Means) -> Iterator[Workers]:
    """Start up to this number of processes on this machine, which all end with the context."""
    with Processes(count, _task) as pool:
        yield Workers(pool, lambda plan: (plan, store.underway(plan), means), store)


def _task(job: tuple[Run, Path | None, Means], say: Callable[[RunProgress], object]) -> Outcome:
    return carried_out(*job, say)


class Carrier:
    """Carries out runs that have no record, with a display; its workers live as long as this context.

    Args:
        store: of the records.
        workers: starts the workers, which it does with the first run.
        data_dir: where data sets lie; they are downloaded if None.
        console: shows the progress and the time left; standard error if None.
        again: whether runs that have a record are repeated.
        at_most: number of runs that are expected. If it is given, the display is of all of them, and has no line for
            each; None: of those that are known.
        measured: names of figures of the user's own, without which a record does not count.
    """

    def __init__(
        self,
        store: Records,
        workers: Callable[[], AbstractContextManager[Workers]],
        data_dir: Path | None,
        console: "Console | None" = None,
        *,
        again: bool = False,
        at_most: int | None = None,
        measured: Collection[str] = (),
    ) -> None:
        from phalanx.experiments.shown.progress_display import Display  # noqa: PLC0415  (imports rich, which is slow)

        self.store, self.data_dir, self.again, self.measured = store, data_dir, again, measured
        self.display = Display(console, at_most)
        self._start, self._workers, self._stack = workers, cast("Workers | None", None), ExitStack()
        self._made = dict[str, Trace]()

    def __enter__(self) -> "Carrier":
        self._stack.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    def __call__(self, planned: Sequence[Planned]) -> dict[str, Trace]:
        """Return the traces of runs, by identity, those of failed runs included."""
        plans = {one.plan.identity: one for one in planned}
        known = {identity: self._made[identity] for identity in plans.keys() & self._made.keys()}
        if not self.again:
            lacking = [one for identity, one in plans.items() if identity not in known]
            known |= stored(lacking, self.store, self.measured)
        return known | self.carry_out({one.name: one.plan for identity, one in plans.items() if identity not in known})

    def carry_out(self, plans: Mapping[str, Run]) -> dict[str, Trace]:
        """Carry out runs, by name, whether they have a record or not; return their traces, by identity."""
        if not plans:
            return {}
        load(list(plans.values()), self.data_dir)
        if self._workers is None:
            self._stack.enter_context(self.display)
            self._workers = self._stack.enter_context(self._start())
        self.display.expect({plan.identity: name for name, plan in plans.items()})
        out = dict[str, Trace]()
        every = list(plans.values())
        for event in self._workers.events(every):
            self.display.show(event)
            if isinstance(event, Ended):
                out[every[event.run].identity] = event.trace
        self._made |= out
        return out


def stored(planned: Sequence[Planned], store: Records, measured: Collection[str] = ()) -> dict[str, Trace]:
    """Return the traces of runs, as far as there are any that can be used, with figures of these names.

    They are by the identities of the runs as they are planned, also where an engine has been chosen by rule.
    """
    found = dict[str, Trace]()
    for plan in {one.plan.identity: one.plan for one in planned}.values():
        for form in possible(plan):
            if (trace := store.find(form)[0]) is not None and {*measured} <= trace.measured.keys():
                found[plan.identity] = trace
                break
    return found


def load(plans: Sequence[Run], data_dir: Path | None) -> None:
    """Load each data set once, so that errors show before any work, and only one process downloads it."""
    for data in {digest(plan.settings.get("data")): plan.data for plan in plans}.values():
        data.load(data_dir)
