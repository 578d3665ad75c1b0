"""The figures of a study: heat maps, and curves in panels of at most seven each."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phalanx.experiments.results import Results
from phalanx.experiments.shown.plotting import COLOURS, INK, curves
from phalanx.experiments.shown.study_tables import axes_of, heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 4  # panels in one figure
CELL = (1.15, 0.42)  # inches of a cell of a heat map
WIDEST = 60  # values of an axis that a heat map shows, at most
EVERY = "all runs"


class Drawn(NamedTuple):
    """A figure with its file's name and its caption."""

    name: str
    caption: str
    figure: "Figure"


def heat_map(results: Results, metric: str = "accuracy", at: Mapping[str, str] | None = None) -> "Figure":
    """Return a heat map of the means of a figure by the first two axes, with the numbers in the cells.

    Args:
        results: of a study with at least two axes.
        metric: of METRICS.
        at: values of other axes.
    """
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)

    rows, columns = axes_of(results)
    table, scale = results.table(rows, columns, metric, at), results.metrics[metric].scale
    shown = np.array(
        [[np.nan if e.mean is None else scale * e.mean for e in inner.values()] for inner in table.values()]
    )
    names = [metric] if columns is None else list(results.axes[columns])
    canvas = Canvas(figsize=(CELL[0] * len(names) + 2.4, CELL[1] * len(table) + 1.3), layout="constrained")
    axes = canvas.subplots()
    low, high = np.nanmin(shown), np.nanmax(shown)
    axes.imshow(shown, cmap="Blues", aspect="auto", vmin=low - 0.1 * (high - low), vmax=high)
    for (i, j), value in np.ndenumerate(shown):
        dark = high > low and (value - low) / (high - low) > 0.6
        text = "–" if np.isnan(value) else f"{value:.1f}"
        axes.text(j, i, text, ha="center", va="center", color="white" if dark else INK, fontsize=9)
    axes.set_xticks(range(len(names)), names, rotation=30 if max(map(len, names)) > 12 else 0, ha="center")
    axes.set_yticks(range(len(table)), list(table))
    axes.set_xlabel(columns or "")
    axes.set_ylabel(rows)
    axes.set_title(heading(results, metric, at or {}), parse_math=False)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return canvas


def curve_figures(results: Results) -> Iterator[Drawn]:
    """Yield the curves of accuracy over steps, at most `ACROSS` panels in a figure and seven curves in a panel.

    The values of one axis have a curve each, those of another a panel each: curves for the first axis if it has seven
    values or fewer, or else for the second; if both have more, each panel has one curve, the mean of all its runs.
    """
    if not any(row.trace.curves.get("accuracy") for row in results.rows):
        return
    rows, columns = axes_of(results)
    lines, panel = (rows, columns) if len(results.axes[rows]) <= len(COLOURS) else (columns, rows)
    if lines is not None and len(results.axes[lines]) > len(COLOURS):
        lines = None
    there = {name: {panel: name} for name in results.axes[panel]} if panel is not None else {"": {}}
    names = [name for name, at in there.items() if results.where(at)]
    others = [axis for axis in results.axes if axis not in (lines, panel)]
    over = " and ".join(["seeds", *(f"the values of {axis}" for axis in others)])
    for start in range(0, len(names), ACROSS):
        panels = {
            ("", name): {
                label: traces
                for label in ([EVERY] if lines is None else results.axes[lines])
                if (traces := [r.trace for r in results.where({**there[name], **({lines: label} if lines else {})})])
            }
            for name in names[start : start + ACROSS]
        }
        caption = f"Accuracy over steps: the mean, and the band from the lowest to the highest, over {over}."
        if panel is not None:
            caption += f" A panel for each value of {panel}."
        yield Drawn(f"curves-{start // ACROSS + 1}", caption, curves(panels))
