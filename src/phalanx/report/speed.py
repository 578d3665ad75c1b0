"""Time to accuracy: when each run first reached a share of the best accuracy of all runs, on its own clock."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from phalanx.report.figures.series import series
from phalanx.report.flights import asynchronous
from phalanx.report.page_tables import Cell
from phalanx.report.words import duration, percent

if TYPE_CHECKING:
    from phalanx.runs.record import Record

SHARES = (0.5, 0.8, 0.9)
NEVER = float("inf")


class Speed(NamedTuple):
    """The template's values.

    Args:
        best: the best accuracy of all runs, in words.
        columns: the accuracies to be reached.
        rows: the cells of each run, one for each column.
    """

    best: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def speed(records: "Sequence[Record]") -> Speed | None:
    """Return the table; None if no run is asynchronous, or no accuracy was measured."""
    curves = [series(record, "accuracy", "seconds") for record in records]
    best = max((y for curve in curves for y in curve.finite), default=0.0)
    if not best > 0 or not any(map(asynchronous, records)):
        return None
    goals = [share * best for share in SHARES]
    reached = zip(SHARES, goals, strict=True)
    columns = tuple(f"{100 * share:g} % of the best ({percent(goal)})" for share, goal in reached)
    rows = []
    for curve in curves:
        firsts = [next((x for x, y in zip(*curve, strict=True) if y >= goal), NEVER) for goal in goals]
        rows.append(tuple(Cell("never", NEVER) if x == NEVER else Cell(duration(x), x) for x in firsts))
    return Speed(percent(best), columns, tuple(rows))
