"""Contributions: a heat map of clients by steps, and each client's share of all weight next to it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phalanx.report.client_ledger import ClientLedger, Group
from phalanx.report.figures.drawing import COLOUR, FULL, Picture, canvas, place, styled, svg
from phalanx.report.figures.heatmap import (
    FILTERED,
    GONE,
    INVALID,
    LOST,
    NOTHING,
    SHADES,
    assemble,
    levels,
    places,
    stride,
    tile,
    tone,
)
from phalanx.report.figures.progress import in_words
from phalanx.wording import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from phalanx.runs.schema import StepRecord

BINS = 140  # largest number of columns of the heat map
LEFT, RIGHT = 92, 140  # pixels for the names, and for the bars


@dataclass(frozen=True)
class Mosaic:
    """The picture's data.

    Args:
        size: number of steps in one column.
        edges: the first step of each column, and the last step plus one.
        weight: (clients, columns), mean weight per step, NaN where no update was accepted.
        event: (clients, columns), NOTHING ... GONE.
        share: (clients), share of all weight of the run, 0 .. 1.
        groups: the clients, by rows; `weight`, `event` and `share` follow this order.
    """

    size: int
    edges: tuple[int, ...]
    weight: NDArray[np.float64]
    event: NDArray[np.int8]
    share: NDArray[np.float64]
    groups: tuple[Group, ...]


def picture(ledger: ClientLedger, key: str) -> Picture | None:
    """Return the picture; None if there are no clients or no steps."""
    if not (ledger.clients and ledger.record.history):
        return None
    mosaic = _mosaic(ledger)
    waited = any(verdict.waits for step in ledger.record.history for verdict in step.verdicts.values())
    label = f"Contributions over time: {plural(len(ledger.clients), 'client')} by steps."
    binned = f" One column stands for {mosaic.size} steps; a cell split in two holds both accepted updates and others."
    return Picture(
        _draw(mosaic, key=key, label=f"{label} Exclusions: {in_words(ledger.exclusions)}."),
        "Contributions over time",
        "Each row is a client, each column a step; the darker the blue, the more its update weighed."
        + (binned if mosaic.size > 1 else "")
        + (" An update that waited shows in the step that decided on it." if waited else "")
        + " The bars on the right sum up each client's share of all weight.",
        keys="mosaic",
        full=True,
    )


def _mosaic(ledger: ClientLedger) -> Mosaic:
    steps = [step for step in ledger.record.history if step.step > 0] or ledger.record.history
    first, end = steps[0].step, steps[-1].step + 1
    size = max(1, -(-(end - first) // BINS))
    edges = (*range(first, end, size), end)
    row = {client: index for client, (index, _) in places(ledger.groups).items()}
    weight = np.full((len(row), len(edges) - 1), np.nan)
    event = np.full(weight.shape, NOTHING, np.int8)
    for step in steps:
        column = (step.step - first) // size
        for client, verdict in step.decided.items():
            if verdict.accepted:
                before = weight[row[client], column]
                weight[row[client], column] = verdict.weight / size + (0.0 if np.isnan(before) else before)
        for client, what in _not_accepted(step).items():
            event[row[client], column] = max(event[row[client], column], what)
    for client, exclusion in ledger.excluded.items():
        later = np.arange(len(edges) - 1) > (exclusion.step - first) // size
        idle = later & (event[row[client]] == NOTHING) & np.isnan(weight[row[client]])
        event[row[client], idle] = GONE
    total = ledger.total or 1.0
    return Mosaic(size, edges, weight, event, np.array([ledger.weight[c] / total for c in row]), ledger.groups)


def _not_accepted(step: "StepRecord") -> dict[int, int]:
    """Return the worst event for each client whose update was not accepted."""
    filtered = [client for client, verdict in step.decided.items() if not verdict.accepted]
    cases = ((step.lost, LOST), (step.invalid, INVALID), (filtered, FILTERED))
    return {client: what for clients, what in cases for client in clients}


def _draw(mosaic: Mosaic, *, key: str, label: str) -> str:
    clients, columns = mosaic.weight.shape
    rows = clients + len(mosaic.groups) - 1
    height, width = float(np.clip(600 / rows, 3, 16)), min((FULL - LEFT - RIGHT - 50) / columns, 30.0)
    with styled(key):
        figure, axes = canvas(FULL, round(rows * height) + 62, left=LEFT, bottom=40, top=22, grid=False)
        bars = figure.add_axes(axes.get_position().bounds, sharey=axes)
        place(axes, LEFT, columns * width)
        place(bars, LEFT + columns * width + 36, RIGHT)
        _draw_cells(axes, mosaic, rows, height, width)
        _draw_shares(bars, mosaic)
        for spine in (*axes.spines.values(), *bars.spines.values()):
            spine.set_visible(False)
        bars.spines["left"].set_visible(True)
        return svg(figure, key, label)


def _draw_cells(axes: "Axes", mosaic: Mosaic, rows: int, height: float, width: float) -> None:
    """Draw the heat map, whose cells are `width` by `height` pixels."""
    columns, at = mosaic.weight.shape[1], places(mosaic.groups)
    size = 32 if columns * rows < 1200 else 16 if columns * rows < 4000 else 8  # of a cell's image
    image = _image(mosaic, size, gaps=min(width, height) > 5)
    for group in mosaic.groups:
        (first, top), n = at[group.clients[0]], len(group.clients)
        part = image[first * size : (first + n) * size]
        axes.imshow(part, extent=(0, columns, top + n, top), aspect="auto", interpolation="none", zorder=2)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    named = [client for group in mosaic.groups for client in group.clients[:: stride(11 / height)]]
    axes.set_yticks([at[client][1] + 0.5 for client in named], [str(client) for client in named])
    for group in mosaic.groups:
        middle = at[group.clients[0]][1] + len(group.clients) / 2
        axes.text(-44 / (columns * width), middle, group.name, transform=axes.get_yaxis_transform(), rotation=90,
                  ha="center", va="center", color=COLOUR[tone(group)], fontweight="bold")  # fmt: skip
    _step_ticks(axes, mosaic, columns * width)
    axes.set_xlabel("step")


def _image(mosaic: Mosaic, size: int, *, gaps: bool) -> NDArray[np.uint8]:
    """Return the pixels of the heat map, `size` by `size` for each cell."""
    level = np.maximum(levels(mosaic.weight), np.isfinite(mosaic.weight))  # accepted updates of weight 0 are visible
    tiles = np.stack([tile(shade, event, size, gaps) for event in range(GONE + 1) for shade in range(SHADES + 1)])
    return assemble(tiles[mosaic.event.astype(np.int64) * (SHADES + 1) + level])


def _step_ticks(axes: "Axes", mosaic: Mosaic, pixels: float) -> None:
    """Write steps, not columns, below the heat map: round numbers at the beginning of their columns."""
    first, last = mosaic.edges[0], mosaic.edges[-1] - 1
    wanted = max(2, int(pixels / 80))
    every = stride((last - first) / wanted)
    steps = sorted({first, *range(-(-first // every) * every, last + 1, every)})
    steps = [s for s in steps if s == first or s - first >= every / 2]
    half = 0.5 if mosaic.size == 1 else 0.0
    at = [float(np.interp(s, mosaic.edges, range(len(mosaic.edges)))) + half for s in steps]
    axes.set_xticks(at, [str(s) for s in steps])


def _draw_shares(axes: "Axes", mosaic: Mosaic) -> None:
    """Draw the bars next to the heat map."""
    order = [at + 0.5 for _, at in places(mosaic.groups).values()]
    colours = [COLOUR[tone(group)] for group in mosaic.groups for _ in group.clients]
    axes.barh(order, mosaic.share, height=0.72, color=colours, linewidth=0)
    axes.set_xlim(0, (float(mosaic.share.max(initial=0.0)) or 1.0) * 1.05)
    axes.tick_params(axis="y", labelleft=False)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    axes.locator_params(axis="x", nbins=3)
    axes.set_xlabel("share of all weight")
