"""The progress bar of the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from phalanx.core import ClientReport
from phalanx.engine.observer import Observer
from phalanx.engine.observer import Progress as Step
from phalanx.runs.plan import Run
from phalanx.runs.reports import spread


@contextmanager
def progress_bar(console: Console) -> Iterator[Progress]:
    """Return a display with a bar for each run; only the results if the output is no terminal."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, expand=True) as progress:
        yield progress


def follow(progress: Progress, plan: Run, name: str) -> Observer:
    """Return an observer that moves a new bar: by steps, or by virtual seconds if only these are limited."""
    until = plan.until
    task = progress.add_task(name, total=until.limit or round(until.seconds or 0), note="")

    last = dict[int, ClientReport]()

    def observer(step: Step) -> None:
        done = step.step if until.limit else round(step.now)
        if step.updates is not None:
            last.update(step.updates.reports)
            for client in [i for i, verdict in step.state.verdicts.items() if verdict.final]:
                last.pop(client, None)  # excluded
        found = spread(last)
        notes = [f"reported {found.metric} {found.median}"] if found.values else []
        notes += [f"{len(step.invalid)} invalid"] if step.invalid else []
        progress.update(task, completed=done, note=", ".join(notes))

    return observer
