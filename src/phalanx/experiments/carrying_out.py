"""Runs carried out by a pool of workers, with a display: the one way of studies and of papers."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.experiments.trace import Trace
from phalanx.experiments.workers import Ended, Means, Workers
from phalanx.runs.canonical import digest
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from rich.console import Console


def carry_out(
    plans: Mapping[str, Run], means: Means, console: "Console | None", workers: AbstractContextManager[Workers]
) -> dict[str, Trace]:
    """Carry out runs, each of which is in the store of the workers as soon as it ends; return their traces.

    Args:
        plans: the runs, by name.
        means: of carrying them out.
        console: shows the progress and the time left; standard error if not given.
        workers: started for this.

    Returns:
        The traces, by identity, those of failed runs included.
    """
    if not plans:
        return {}
    from rich.console import Console  # noqa: PLC0415  (`import phalanx` does without rich)

    from phalanx.experiments.shown.progress_display import Display  # noqa: PLC0415

    load(list(plans.values()), means.data_dir)
    names, out = {plan.identity: name for name, plan in plans.items()}, dict[str, Trace]()
    with Display(console or Console(stderr=True), names) as display, workers as ready:
        for event in ready.events(list(plans.values())):
            display.show(event)
            if isinstance(event, Ended):
                out[event.trace.identity] = event.trace
    return out


def load(plans: Sequence[Run], data_dir: Path | None) -> None:
    """Load each data set once, so that errors show before any work, and only one process downloads it."""
    for data in {digest(plan.settings.get("data")): plan.data for plan in plans}.values():
        data.load(data_dir)
