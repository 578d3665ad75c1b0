"""The progress of runs: bars in a terminal; in other outputs a line for each run that has ended."""

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from phalanx.experiments.run_events import Advanced, Began, Ended, Event, Warned
from phalanx.experiments.trace import Trace
from phalanx.report.words import duration, percent


class Display:
    """A display of the progress of some runs, as a context.

    Args:
        console: the output; standard error if None.
        at_most: number of runs that are expected. If it is given, only runs without a record have a line of their own;
            None: those of `expect` are all.
    """

    def __init__(self, console: Console | None, at_most: int | None = None) -> None:
        self.console, self.at_most = console or Console(stderr=True, emoji=False), at_most
        self.names: dict[str, str] = {}  # of all runs that are known, by identity
        self.shares: dict[int, float] = {}  # of the runs under way, by their numbers
        self.ended = 0
        self._said = set[str]()
        self._begun = time.monotonic()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        terminal = self.console.is_terminal
        self._bars = Progress(*columns, console=self.console, disable=not terminal, transient=True)
        self._all = self._bars.add_task("All runs", total=self.total, note="")
        self._tasks, self._begun_as = dict[int, TaskID](), dict[int, str]()

    @property
    def total(self) -> int:
        """The number of runs that are expected."""
        return len(self.names) if self.at_most is None else self.at_most

    def expect(self, names: Mapping[str, str]) -> None:
        """Take further runs, each with its name, by identity."""
        self.names |= names
        self._bars.update(self._all, total=self.total)

    def left_over(self, runs: int) -> None:
        """Take the number of runs that are still expected, at most."""
        self.at_most = self.ended + runs
        self._bars.update(self._all, total=self.total)

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Began):
            self.shares[event.run] = 0.0
            self._begun_as[event.run] = name = self.names[event.plan.identity]
            self._tasks[event.run] = self._bars.add_task(name, total=1.0, note="")
        elif isinstance(event, Advanced):
            self.shares[event.run] = event.share
            self._bars.update(self._tasks[event.run], completed=event.share)
        elif isinstance(event, Ended):
            self._end(event)
        elif isinstance(event, Warned) and event.text not in self._said:
            self._said.add(event.text)
            self.console.print(escape(f"Warning: {event.text}"), soft_wrap=True)
        self._bars.update(self._all, completed=self.ended + sum(self.shares.values()), note=self.note())

    def _end(self, event: Ended) -> None:
        self.ended += 1
        self.shares.pop(event.run)
        name = self._begun_as.pop(event.run)
        self._bars.remove_task(self._tasks.pop(event.run))
        printed = event.trace.failed or not self.console.is_terminal
        if printed if self.at_most is None else not event.kept:
            line = f"{self.ended} of {self.total}: {name}: {outcome(event.trace)}"
            self.console.print(escape(line + (f" ({left})" if (left := self.left()) else "")), soft_wrap=True)

    def note(self) -> str:
        """Return the number of runs that have ended, and the remaining time."""
        return f"{self.ended} of {self.total} runs" + (f", {left}" if (left := self.left()) else "")

    def left(self) -> str:
        """Return the estimated remaining time, if all runs take equally long; "" before the start and at the end."""
        done = self.ended + sum(self.shares.values())
        if not 0 < done < self.total:
            return ""
        return f"about {duration((time.monotonic() - self._begun) * (self.total / done - 1))} left"


def outcome(trace: Trace) -> str:
    """Return the outcome of a run in few words."""
    if trace.failed:
        return f"failed: {first_line(trace.error)}"
    return f"accuracy {percent(trace.final())} in {duration(trace.wall_seconds)}"


def first_line(error: str | None) -> str:
    """Return the first line of an error, without the details."""
    return (error or "").partition("\n")[0]
