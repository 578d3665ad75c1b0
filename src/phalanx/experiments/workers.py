"""Runs in a pool of workers: each record is in the store as soon as its run ends."""

import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.core import InfeasibleError, Progress, StalledError
from phalanx.experiments.store import Store
from phalanx.experiments.trace import Trace
from phalanx.pool import Again, Done, Failed, Given, Pool, Said
from phalanx.processes import Processes
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate

PAUSE = 0.2  # seconds between two reports of a run's progress


class Began(NamedTuple):
    """A run has begun."""

    run: int  # its number among those that are carried out
    plan: Run


class Advanced(NamedTuple):
    """A run has made progress."""

    run: int
    share: float  # from 0 to 1


class Warned(NamedTuple):
    """A run has given a warning."""

    run: int
    text: str


class Ended(NamedTuple):
    """A run has ended; its trace is in the store if `kept`."""

    run: int
    trace: Trace
    kept: bool


Event = Began | Advanced | Warned | Ended


@dataclass(frozen=True)
class Means:
    """The means by which runs are carried out; no part of their identity.

    Args:
        data_dir: folder of the data sets; they are downloaded if None.
        device: the torch device.
        resume: whether a run that was killed goes on. If not, it starts from the beginning.
    """

    data_dir: Path | None = None
    device: str = "cpu"
    resume: bool = True


# In a worker


class SoFar(NamedTuple):
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

    def __init__(self, plan: Run, say: Callable[[SoFar], object]) -> None:
        self.until, self.say = plan.until, say
        self.so_far, self.last = SoFar(0.0, ()), 0.0

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        now = time.monotonic()
        if now - self.last < PAUSE:
            return
        self.last = now
        steps = progress.step / self.until.limit if self.until.limit else 0.0
        seconds = progress.now / self.until.seconds if self.until.seconds else 0.0
        self._report(SoFar(min(1.0, max(steps, seconds)), self.so_far.warnings))

    def show(self, message: Warning | str, *_: Any) -> None:
        """Replace `warnings.showwarning`."""
        self._report(SoFar(self.so_far.share, (*self.so_far.warnings, str(message))))

    def _report(self, so_far: SoFar) -> None:
        self.so_far = so_far
        self.say(so_far)


class Outcome(NamedTuple):
    """The outcome of a run.

    Args:
        trace: of the run, also if it could not be carried out.
        kept: whether the trace is stored: the run would have the same outcome again.
        warnings: all warnings of the run.
    """

    trace: Trace
    kept: bool
    warnings: tuple[str, ...]


def carried_out(plan: Run, folder: Path | None, means: Means, say: Callable[[SoFar], object]) -> Outcome:
    """Carry out a run in this process; if it fails, the others go on.

    Args:
        plan: the run.
        folder: of its checkpoints; None: no checkpoints.
        means: of carrying it out.
        say: takes reports of the progress.
    """
    begun, report = time.monotonic(), Report(plan, say)
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
        return Outcome(Trace.of(plan, record), True, report.so_far.warnings)
    except (BrokenPipeError, ConnectionResetError):  # nobody waits for the run any more
        raise
    except Exception as error:  # if one run fails, the others go on
        if not isinstance(error, (InfeasibleError, StalledError, ValueError, OSError)):
            last = traceback.extract_tb(error.__traceback__)[-1]
            error.add_note(f"at line {last.lineno} of {last.filename}")
        trace = Trace.of_failure(plan, error, round(time.monotonic() - begun, 3))
        return Outcome(trace, False, report.so_far.warnings)


# In the parent


@dataclass(frozen=True)
class Workers:
    """Workers that carry out runs.

    Args:
        pool: the workers, begun.
        job: what the pool does for a run; its result is an `Outcome`, its reports are `SoFar`.
        store: takes the records.
    """

    pool: Pool
    job: Callable[[Run], Any]
    store: Store

    def events(self, plans: Sequence[Run]) -> Iterator[Event]:
        """Carry out runs, and report what happens; for each run there is one `Began` and one `Ended`.

        Raises:
            ConnectionError: no worker is left.
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
                case Said(run, SoFar(share, texts)):
                    yield Advanced(run, share)
                    yield from warned(run, texts)
                case Done(run, Outcome(trace, fit, texts)):
                    yield from warned(run, texts)
                    if fit:
                        self.store.keep(trace)
                        self.store.tidy(plans[run])
                    yield Ended(run, trace, fit)
                case Again(run, why):
                    yield Warned(run, f"A run is carried out again by another worker: {why}")
                case Failed(run, error):
                    what = str(error) if isinstance(error, ConnectionError) else error
                    seconds = round(time.monotonic() - began[run], 3)
                    yield Ended(run, Trace.of_failure(plans[run], what, seconds), kept=False)


@contextmanager
def local_workers(count: int, store: Store, means: Means) -> Iterator[Workers]:
    """Start up to this number of processes on this machine, which all end with the context."""
    with Processes(count, partial(_task, means)) as pool:
        yield Workers(pool, lambda plan: (plan, store.underway(plan)), store)


def _task(means: Means, job: tuple[Run, Path], say: Callable[[SoFar], object]) -> Outcome:
    return carried_out(*job, means, say)
