"""A progress bar for scripts and notebooks."""

import sys
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display
from typing_extensions import override

from phalanx.core import Until
from phalanx.engine.observer import Progress
from phalanx.wording import percent


class ProgressBar:
    """An observer that shows how far a run is, as a context manager.

        with ProgressBar(plan.until) as bar:
            simulate(plan, observers=[bar])

    In a notebook it is HTML, and needs no widgets; elsewhere a bar of rich, or nothing if the output is no terminal.

    Args:
        until: when the run ends; an integer counts steps.
    """

    def __init__(self, until: Until | int) -> None:
        until = Until.of(until)
        self._steps = until.limit is not None
        self._total = until.limit or round(until.seconds or 0) or 1
        self._cell: Any = None
        self._display: Display | None = None
        self._shown = ""

    def __enter__(self) -> "ProgressBar":
        self._cell = _notebook_cell()
        if self._cell is None:
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
            )
            self._display = Display(*columns)
            self._task = self._display.add_task("", total=self._total)
            self._display.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._display is not None:
            self._display.stop()

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        done = min(progress.step if self._steps else round(progress.now), self._total)
        if progress.metrics is not None and progress.metrics.accuracy is not None:
            self._shown = f"accuracy {percent(progress.metrics.accuracy)}"
        if self._display is not None:
            self._display.update(self._task, completed=done, description=self._shown)
        elif self._cell is not None:
            unit = "step" if self._steps else "second"
            said = f"{unit} {done} of {self._total}{', ' if self._shown else ''}{self._shown}"
            self._cell.update(_Bar(said, done / self._total))


class _Bar:
    """A bar as a notebook shows it.

    Args:
        text: what stands next to it.
        share: how much of it is full, from 0 to 1.
    """

    def __init__(self, text: str, share: float) -> None:
        self._text, self._share = text, share

    @override
    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return f'<progress max="1" value="{self._share:.4f}" style="width: 20em"></progress> {self._text}'


def _notebook_cell() -> Any:
    """Return the handle of an output in a notebook that can be updated; None elsewhere."""
    ipython = sys.modules.get("IPython")
    with suppress(AttributeError, ImportError):
        if ipython is not None and "IPKernelApp" in ipython.get_ipython().config:
            return import_module("IPython.display").display(_Bar("", 0.0), display_id=True)
    return None
