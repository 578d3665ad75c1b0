"""The progress of runs: bars in a terminal; in other outputs a line for each run that has ended."""

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

from phalanx.experiments.trace import Trace
from phalanx.experiments.workers import Advanced, Began, Ended, Event, Warned
from phalanx.report.words import duration, percent


class Display:
    """A display of the progress of some runs, as a context.

    Args:
        console: the output.
        names: of all runs that will be carried out, by identity.
    """

    def __init__(self, console: Console, names: Mapping[str, str]) -> None:
        self.console, self.names = console, names
        self.shares: dict[int, float] = {}  # of the runs under way, by their numbers
        self.ended = 0
        self._said = set[str]()
        self._begun = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._all = self._bars.add_task("All runs", total=len(names), note="")
        self._tasks: dict[int, TaskID] = {}

    def __enter__(self) -> "Display":
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Began):
            self.shares[event.run] = 0.0
            name = self.names[event.plan.identity]
            self._tasks[event.run] = self._bars.add_task(escape(name), total=1.0, note="")
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
        self._bars.remove_task(self._tasks.pop(event.run))
        if event.trace.failed or not self.console.is_terminal:
            line = f"{self.ended} of {len(self.names)}: {self.names[event.trace.identity]}: {outcome(event.trace)}"
            self.console.print(escape(line + (f" ({left})" if (left := self.left()) else "")), soft_wrap=True)

    def note(self) -> str:
        """Return the number of runs that have ended, and the remaining time."""
        return f"{self.ended} of {len(self.names)} runs" + (f", {left}" if (left := self.left()) else "")

    def left(self) -> str:
        """Return the estimated remaining time, if all runs take equally long; "" before the start and at the end."""
        done = self.ended + sum(self.shares.values())
        if not 0 < done < len(self.names):
            return ""
        return f"about {duration((time.monotonic() - self._begun) * (len(self.names) / done - 1))} left"


def outcome(trace: Trace) -> str:
    """Return the outcome of a run in few words."""
    if trace.failed:
        return f"failed: {first_line(trace.error)}"
    return f"accuracy {percent(trace.final())} in {duration(trace.wall_seconds)}"


def first_line(error: str | None) -> str:
    """Return the first line of an error, without the details."""
    return (error or "").partition("\n")[0]
