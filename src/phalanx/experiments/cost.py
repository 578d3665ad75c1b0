"""An estimate of what a study costs before it begins: from earlier records, and from steps that are timed."""

import statistics
import time
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.core import InfeasibleError, StalledError
from phalanx.engine.observer import Progress, StopRunError
from phalanx.experiments.carrying_out import load, stored
from phalanx.experiments.grid import Planned
from phalanx.experiments.store import Store
from phalanx.report.words import duration
from phalanx.runs.canonical import digest
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate
from phalanx.wording import plural

STEPS = 3  # that are timed of a kind of run; the first may compile code, and is left out
LONGEST = 3.0  # seconds for which one kind of run is timed
BUDGET = 10.0  # seconds after which no more kinds are timed


@dataclass(frozen=True)
class Cost:
    """The cost of a study.

    Args:
        runs: number of runs, each counted once.
        done: number of them that have a record.
        seconds: estimated for the others, in one process; None if there is nothing to go by.
        by_records: number of kinds of runs, those that differ by more than the seed, known from records.
        timed: number of kinds that were timed.
        guessed: number of kinds that are taken to cost as much as the others.
        searched: number of runs of a search, known only as it goes, of which records are not counted.
    """

    runs: int
    done: int
    seconds: float | None
    by_records: int
    timed: int
    guessed: int
    searched: int = 0

    def text(self, jobs: int = 1) -> str:
        """Return it as a sentence; with so many runs at a time."""
        left = self.runs - self.done
        head = f"{plural(self.runs, 'run')}, {self.done} done"
        if not left:
            return f"{head}."
        if self.seconds is None:
            return f"{head}; the cost of the others is not known."
        parts = {"by earlier records": self.by_records, "timed": self.timed, "as the mean of these": self.guessed}
        kinds = ", ".join(f"{number} {how}" for how, number in parts.items() if number)
        head += f"; a search of up to {plural(self.searched, 'run')} is not counted" if self.searched else ""
        return f"{head}; the others take about {duration(self.seconds / jobs)}, {jobs} at a time (kinds: {kinds})."


def cost(planned: Sequence[Planned], store: Store, data_dir: Path | None, measured: Collection[str] = ()) -> Cost:
    """Return the cost of the runs that have no record; see `Study.cost`."""
    plans = {one.plan.identity: one.plan for one in planned}
    known, todo, done = dict[str, list[float]](), dict[str, list[Run]](), stored(planned, store, measured)
    for identity, plan in plans.items():
        if (trace := done.get(identity)) is None:
            todo.setdefault(_kind(plan), []).append(plan)
        elif not trace.failed:
            known.setdefault(_kind(plan), []).append(trace.wall_seconds)
    seconds = {kind: statistics.fmean(known[kind]) for kind in todo if kind in known}
    by_records, begun = len(seconds), time.monotonic()
    load([runs[0] for runs in todo.values()], data_dir)
    for kind, runs in todo.items():
        if kind not in seconds and time.monotonic() - begun < BUDGET:
            seconds |= {kind: found} if (found := _timed(runs[0], data_dir)) is not None else {}
    mean = statistics.fmean(seconds.values()) if seconds else None
    total = None if mean is None else sum(len(runs) * seconds.get(kind, mean) for kind, runs in todo.items())
    return Cost(len(plans), len(done), total, by_records, len(seconds) - by_records, len(todo) - len(seconds))


def _kind(plan: Run) -> str:
    """Return a digest that runs have in common which differ by their seed only."""
    return digest({name: value for name, value in plan.settings.items() if name != "seed"})


def _timed(plan: Run, data_dir: Path | None) -> float | None:
    """Return the estimated duration of a run in seconds, from its first steps; None if it cannot take any."""
    marks, begun = list[tuple[float, float]](), time.monotonic()

    def observer(progress: Progress) -> None:
        steps = progress.step / plan.until.limit if plan.until.limit else 0.0
        virtual = progress.now / plan.until.seconds if plan.until.seconds else 0.0
        marks.append((max(steps, virtual), time.monotonic()))
        if progress.step >= STEPS or time.monotonic() - begun > LONGEST:
            raise StopRunError

    try:
        with warnings.catch_warnings(action="ignore"):
            simulate(plan, data_dir=data_dir, observers=[observer], models=None)
    except (InfeasibleError, StalledError, ValueError):  # the run itself will say so
        return None
    moved = [mark for mark in marks if mark[0] > 0]
    (share, first), (last_share, last) = (moved if len(moved) > 1 else marks)[0], marks[-1]
    return first - begun + (1 - share) * (last - first) / (last_share - share) if last_share > share else None
