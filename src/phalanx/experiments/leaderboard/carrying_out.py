"""Runs of the leaderboard in processes of this machine: each score is in the file as soon as its run ends."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from phalanx.experiments.carrying_out import load
from phalanx.experiments.leaderboard.scores import Score, Scores
from phalanx.experiments.results import honest_excluded
from phalanx.experiments.workers import Means, carried_out
from phalanx.pool import Done, Failed
from phalanx.processes import Processes
from phalanx.report.words import duration
from phalanx.runs.plan import Run
from phalanx.runs.provenance import provenance
from phalanx.wording import shown

LONGEST = 200  # characters of an error in a record


class Carrier:
    """Carries out runs that have no score, in processes that live as long as this context.

    Args:
        scores: takes the scores.
        jobs: number of runs at a time.
        data_dir: where data sets lie; they are downloaded if None.
        console: shows the time left.
        runs: number of runs that are expected, at most.
    """

    def __init__(self, scores: Scores, jobs: int, data_dir: Path | None, console: Console, runs: int) -> None:
        self.scores, self.data_dir, self.console = scores, data_dir, console
        self._pool = Processes(jobs, partial(scored, Means(data_dir)))
        self._made = replace(provenance("cpu"), threads=1)
        self._done, self._expected, self._begun, self._said = 0, runs, time.monotonic(), time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._bar = self._bars.add_task("runs", total=runs, note="")

    def __enter__(self) -> "Carrier":
        self._bars.start()
        self._pool.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.__exit__(kind, error, at)
        self._bars.stop()

    def __call__(self, plans: Mapping[str, Run]) -> dict[str, Score]:
        """Return the scores of runs, by key; see `phalanx.experiments.leaderboard.ranking.Carried`."""
        todo = [(key, plan) for key, plan in plans.items() if self.scores.find(key) is None]
        load([plan for _, plan in todo], self.data_dir)
        for event in self._pool.do([plan for _, plan in todo]):
            if isinstance(event, Done | Failed):
                key, plan = todo[event.job]
                if isinstance(event, Done):
                    self.scores.keep(key, plan.seed, event.result, self._made)
                else:  # it may end otherwise the next time
                    self.console.print(escape(f"{plan.title}, seed {plan.seed}: {event.error}"), soft_wrap=True)
                self._done += 1
                self._bars.update(self._bar, completed=self._done, note=self.left())
        return {key: score for key in plans if (score := self.scores.find(key)) is not None}

    def passed(self, runs: int) -> None:
        """Note that a defence is complete, and how many runs are expected of the others."""
        self._expected = self._done + runs
        self._bars.update(self._bar, total=self._expected)

    def left(self) -> str:
        """Return the time left, at most, such as `about 3 min left`."""
        if not self._done or self._done >= self._expected:
            return ""
        seconds = (time.monotonic() - self._begun) * (self._expected / self._done - 1)
        return f"about {duration(seconds)} left"


def scored(means: Means, plan: Run, say: Callable[[Any], object]) -> Score:
    """Return the score of a run that is carried out in this process."""
    begun = time.process_time()
    trace = carried_out(plan, None, means, lambda _: None).trace
    seconds = round(time.process_time() - begun, 3)  # as it is stored, so that a page is the same again
    if trace.failed:
        error = shown((trace.error or "failed").partition("\n")[0], LONGEST)
        return Score(None, honest_excluded(trace), seconds, error)
    return Score(trace.final("accuracy"), honest_excluded(trace), seconds)


def stored(scores: Scores) -> Callable[[Mapping[str, Run]], dict[str, Score]]:
    """Return what finds scores and carries out nothing; see `phalanx.experiments.leaderboard.ranking.Carried`."""
    return lambda plans: {key: score for key in plans if (score := scores.find(key)) is not None}


def timed(plans: list[Run], data_dir: Path | None) -> float:
    """Return the mean seconds of some runs, each carried out here after a first one that compiles."""
    seconds = list[float]()
    for plan in plans:
        scored(Means(data_dir), plan, lambda _: None)
        seconds.append(scored(Means(data_dir), replace(plan, seed=plan.seed + 1), lambda _: None).seconds)
    return sum(seconds) / len(seconds)
