"""The figures: curves over seeds in a grid of panels, readable in black and white and by the colour-blind.

An experiment draws with `curves`, or with matplotlib itself: all figures that it draws while it renders are in the
style of `styled`, and equal records give equal bytes.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.experiments.trace import Trace
from phalanx.runs.files import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panels = Mapping[tuple[str, str], Mapping[str, Sequence[Trace]]]
Band = Literal["range", "deviation"]

INK, MUTED, LINE = "#1a1a1a", "#555555", "#dddddd"
# Colours by Okabe and Ito (2008); each goes with a dash and a marker of its own, so that no two differ in colour alone.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = (
    "-", (0, (5, 2)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)), (0, (9, 2.5)), (0, (3, 1, 1, 1)), "-"
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PANEL = (2.9, 2.2)  # inches
DPI = 160  # of PNG files


@dataclass(frozen=True)
class Axis:
    """An axis of a figure.

    Args:
        label: with its unit.
        low: its lower end; the smallest value if None.
        high: its upper end; the largest value if None.
        shares: whether values are shares, shown in percent.
        whole: whether values are whole numbers.
    """

    label: str
    low: float | None = None
    high: float | None = None
    shares: bool = False
    whole: bool = False


ROUND, SECONDS = Axis("round", whole=True), Axis("virtual seconds")
ACCURACY = Axis("test accuracy", 0.0, 1.0, shares=True)


def styled() -> AbstractContextManager[None]:
    """Set matplotlib's parameters for all figures, while they are drawn and saved."""
    import matplotlib  # noqa: PLC0415  (slow to import)
    from matplotlib.rcsetup import cycler  # noqa: PLC0415

    settings: dict[Any, Any] = {
        "svg.fonttype": "path", "svg.hashsalt": "phalanx", "savefig.facecolor": "white", "figure.facecolor": "white",
        "font.size": 9, "axes.titlesize": 9.5, "axes.labelsize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
        "legend.fontsize": 9, "legend.frameon": False, "font.family": ["DejaVu Sans"], "text.usetex": False,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "axes.linewidth": 0.8,
        "axes.titlelocation": "left", "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
        "ytick.labelcolor": INK, "axes.grid": True, "axes.grid.axis": "y", "grid.color": LINE, "grid.linewidth": 0.8,
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "lines.linewidth": 1.6,
        "lines.markersize": 4, "figure.constrained_layout.use": True,
        "axes.prop_cycle": cycler(color=COLOURS),
    }  # fmt: skip
    return matplotlib.rc_context(settings)


def curves(
    panels: Panels,
    *,
    figure: str = "accuracy",
    over: str = "step",
    x: Axis | None = None,
    y: Axis = ACCURACY,
    band: Band = "range",
) -> "Figure":
    """Draw a grid of panels with a curve for each label: the mean over seeds, and a band for their spread.

    A run that failed is no part of the mean: it is drawn alone, thin, up to a cross where it ended.

    Args:
        panels: for each panel, by its row and its column, the traces of each label. "" as a row or column has no title.
        figure: the measured curve.
        over: "step" or "seconds".
        x: the horizontal axis; rounds, or virtual seconds, if not given.
        y: the vertical axis.
        band: "range" reaches from the lowest to the highest seed, "deviation" one standard deviation (n - 1) up and
            down.
    """
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415

    x = x or (ROUND if over == "step" else SECONDS)
    rows = list(dict.fromkeys(row for row, _ in panels))
    columns = list(dict.fromkeys(column for _, column in panels))
    labels = list(dict.fromkeys(label for panel in panels.values() for label in panel))
    if len(labels) > len(COLOURS):
        raise ValueError(f"A figure tells {len(COLOURS)} curves apart, got {len(labels)}: {', '.join(labels)}.")
    size = (max(PANEL[0] * len(columns), 4.2) + 0.4, PANEL[1] * len(rows) + 0.8)
    canvas = Canvas(figsize=size, layout="constrained")
    grid = canvas.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    for (row, column), panel in panels.items():
        axes = grid[rows.index(row), columns.index(column)]
        for label, traces in panel.items():
            _draw(axes, labels.index(label), label, traces, (figure, over, band))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            if (row, column) not in panels:
                grid[i, j].set_visible(False)
            above, left = column if i == 0 else "", row if j == 0 else ""
            _frame(grid[i, j], (x, y), above, left, edges=(j == 0, i == len(rows) - 1))
    _legend(canvas, grid.ravel().tolist(), labels, panels, band)
    return canvas


def _draw(axes: "Axes", k: int, label: str, traces: Sequence[Trace], how: tuple[str, str, Band]) -> None:
    """Draw the curve of one label."""
    figure, over, band = how
    done = [trace for trace in traces if not trace.failed]
    where, values = together(done, figure, over)
    if values.size:
        middle, low, high = spread(values, band)
        if len(done) > 1:
            axes.fill_between(where, low, high, color=COLOURS[k], alpha=0.22, linewidth=0)
        stride = max(1, len(where) // 8)
        axes.plot(
            where, middle, color=COLOURS[k], linestyle=DASHES[k], marker=MARKERS[k], label=label,
            markevery=(stride * k // len(COLOURS), stride), markerfacecolor="white", markeredgewidth=1.2,
        )  # fmt: skip
    for trace in traces:
        if trace.failed and trace.curves.get(figure):
            at, value = together([trace], figure, over)
            axes.plot(at, value[0], color=COLOURS[k], linestyle=DASHES[k], linewidth=0.8)
            last = [j for j in range(len(at)) if math.isfinite(value[0, j])][-1:]
            axes.plot(at[last], value[0, last], color=INK, marker="x", linestyle="", markersize=7, zorder=5)


def together(traces: Sequence[Trace], figure: str, over: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return curves on one grid: the places at which any was measured, (p,), and a row of values per trace, (n, p).

    Between two measurements values are interpolated; before the first and after the last they are NaN.
    """
    known = [_points(trace, figure, over) for trace in traces]
    places = np.unique(np.concatenate([x for x, _ in known])) if known else np.empty(0)
    rows = [np.interp(places, x, y, left=np.nan, right=np.nan) if len(x) else np.full(len(places), np.nan)
            for x, y in known]  # fmt: skip
    return places, np.array(rows).reshape(len(rows), len(places))


def _points(trace: Trace, figure: str, over: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the places at which a curve was measured, and its values, NaN where they were not finite."""
    y = [math.nan if value is None else value for value in trace.curves.get(figure, ())]
    return np.array(trace.curves[over] if y else (), dtype=float), np.array(y, dtype=float)


def spread(
    values: NDArray[np.float64], band: Band
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return mean, lower and upper end of the band, over the rows of (n, p); NaN where any row is."""
    middle = values.mean(axis=0)
    if band == "range":
        return middle, values.min(axis=0), values.max(axis=0)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(middle)
    return middle, middle - deviation, middle + deviation


def _frame(axes: "Axes", shown: tuple[Axis, Axis], above: str, left: str, edges: tuple[bool, bool]) -> None:
    """Set titles, labels and limits of a panel; `edges`: whether it is in the first column, and in the last row."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    x, y = shown
    axes.set_title(above, parse_math=False)
    if edges[0]:
        axes.set_ylabel(f"{left}\n{y.label}" if left else y.label, parse_math=False)
    if edges[1]:
        axes.set_xlabel(x.label, parse_math=False)
    axes.set_xlim(x.low, x.high)
    axes.set_ylim(y.low, y.high)
    if x.whole:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if y.shares:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if x.shares:
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


def _legend(canvas: "Figure", grid: Sequence["Axes"], labels: Sequence[str], panels: Panels, band: Band) -> None:
    """Draw the legend below all panels: each label once, the band, and the cross."""
    from matplotlib.lines import Line2D  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    entries = [
        Line2D([], [], color=COLOURS[k], linestyle=DASHES[k], marker=MARKERS[k], markerfacecolor="white",
               markeredgewidth=1.2, label=label)
        for k, label in enumerate(labels)
    ]  # fmt: skip
    drawn = [traces for panel in panels.values() for traces in panel.values()]
    counts = sorted({n for traces in drawn if (n := sum(not trace.failed for trace in traces)) > 1})
    if counts:
        of = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
        of += " runs" if any(len({trace.seed for trace in traces}) < len(traces) for traces in drawn) else " seeds"
        what = f"lowest to highest of {of}" if band == "range" else f"± 1 standard deviation of {of}"
        entries.append(Patch(facecolor=MUTED, alpha=0.3, label=what))  # type: ignore[arg-type]
    if any(trace.failed for traces in drawn for trace in traces):
        entries.append(Line2D([], [], color=INK, marker="x", linestyle="", markersize=7, label="a run failed here"))
    width = canvas.get_size_inches()[0]
    canvas.legend(handles=entries, loc="outside lower center", ncols=max(1, min(len(entries), int(width // 1.9))))


def save(figure: "Figure", stem: Path) -> list[Path]:
    """Write `stem`.svg and `stem`.png; the same figure gives the same bytes.

    Returns:
        The files.
    """
    paths = [stem.with_name(stem.name + ending) for ending in (".svg", ".png")]
    write_figure(figure, paths[0], metadata={"Date": None, "Creator": None})
    write_figure(figure, paths[1], metadata={"Software": None}, dpi=DPI)
    return paths
