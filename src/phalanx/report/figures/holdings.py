"""The clients' data: examples as a bar, the reported size if that differs, and the classes below."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phalanx.report.client_ledger import ClientLedger
from phalanx.report.figures.drawing import COLOUR, FULL, Picture, canvas, place, styled, svg
from phalanx.report.figures.heatmap import (
    BLUE,
    NOTHING,
    SHADES,
    VERMILLION,
    assemble,
    levels,
    places,
    stride,
    tile,
    tone,
)
from phalanx.wording import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT = 92  # pixels for the axes' labels


def picture(ledger: ClientLedger, key: str) -> Picture | None:
    """Return the picture; None if no client's classes are known."""
    counts = _counts(ledger)
    if not counts.size:
        return None
    label = f"Classes and examples held by each of {plural(len(ledger.clients), 'client')}."
    return Picture(
        _draw(ledger, counts, key=key, label=label),
        "Clients and their data",
        "Above: how many examples each client truly holds; a tick marks a reported number that differs, an arrow"
        " one far beyond, with the factor where there is room. Below: how many of them are of which class; darker"
        " is more.",
        full=True,
    )


def _counts(ledger: ClientLedger) -> NDArray[np.int64]:
    """Return the number of examples, (clients, classes); clients in the order of `places`."""
    rows = [list(ledger.clients[c].classes) for group in ledger.groups for c in group.clients]
    length = max(map(len, rows), default=0)
    return np.array([row + [0] * (length - len(row)) for row in rows], dtype=np.int64)


def _draw(ledger: ClientLedger, counts: NDArray[np.int64], *, key: str, label: str) -> str:
    columns, classes = len(counts) + len(ledger.groups) - 1, counts.shape[1]
    width, height = min((FULL - LEFT - 16) / columns, 48.0), float(np.clip(260 / classes, 3, 15))
    below = round(height * classes)
    with styled(key):
        figure, bars = canvas(FULL, 96 + below + 74, left=LEFT, bottom=below + 66, top=12)
        total = figure.get_size_inches()[1] * 72
        cells = figure.add_axes((0, 58 / total, 1, below / total), sharex=bars)
        place(bars, LEFT, columns * width)
        place(cells, LEFT, columns * width)
        _draw_sizes(bars, ledger)
        _draw_classes(cells, ledger, counts, height, width)
        bars.set_xlim(0, columns)
        return svg(figure, key, label)


def _draw_sizes(axes: "Axes", ledger: ClientLedger) -> None:
    """Draw the bars."""
    at = places(ledger.groups)
    size = {c: ledger.clients[c].size or 0 for c in at}
    top = 1.3 * (max(size.values()) or 1.0)
    for group in ledger.groups:
        x = [at[c][1] + 0.5 for c in group.clients]
        axes.bar(x, [size[c] for c in group.clients], width=0.72, color=COLOUR[tone(group)], linewidth=0)
        for client, middle in zip(group.clients, x, strict=True):
            _draw_reported(axes, ledger, client, middle, top)
    axes.set_ylim(0, top)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.set_ylabel("examples")
    axes.locator_params(axis="y", nbins=3)


def _draw_reported(axes: "Axes", ledger: ClientLedger, client: int, x: float, top: float) -> None:
    """Mark a reported size that differs from the true one: a tick in place, or an arrow and the factor on top."""
    reported, size = ledger.clients[client].reported, ledger.clients[client].size
    if reported is None or reported == size:
        return
    if reported <= top:
        axes.plot([x - 0.45, x + 0.45], [reported, reported], color=COLOUR["ink"], linewidth=2.2)
        return
    wide = len(ledger.clients) <= 45
    axes.plot(x, 0.9 * top, "^", color=COLOUR["ink"], markersize=7 if wide else 3, markeredgewidth=0)
    if size and wide:
        factor = f"×{reported / size:.3g}"
        axes.annotate(factor, (x, 0.9 * top), (0, 5), textcoords="offset points", ha="center", fontsize=10)


def _draw_classes(axes: "Axes", ledger: ClientLedger, counts: NDArray[np.int64], height: float, width: float) -> None:
    """Draw the heat map, whose cells are `width` by `height` pixels."""
    at, level, classes = places(ledger.groups), levels(counts.astype(float)), counts.shape[1]
    size = 32 if counts.size < 1500 else 8  # of a cell's image
    for group in ledger.groups:
        (first, start), n = at[group.clients[0]], len(group.clients)
        colour = VERMILLION if tone(group) == "byzantine" else BLUE
        tiles = np.stack([tile(shade, NOTHING, size, min(width, height) > 5, colour) for shade in range(SHADES + 1)])
        image = assemble(tiles[level[first : first + n].T])
        axes.imshow(image, extent=(start, start + n, classes, 0), aspect="auto", interpolation="none", zorder=2)
        room = n * width > 8 * len(group.name)
        middle, side = (start + n / 2, "center") if room else (start + n, "right")
        axes.text(middle, -46 / round(height * classes), group.name, transform=axes.get_xaxis_transform(),
                  ha=side, va="center", color=COLOUR[tone(group)], fontweight="bold")  # fmt: skip
    axes.set_ylim(classes, 0)
    labels = range(0, classes, stride(11 / height))
    axes.set_yticks([label + 0.5 for label in labels], [str(label) for label in labels])
    axes.set_ylabel("class")
    every = stride((7 * len(str(max(at))) + 8) / width)
    named = [client for group in ledger.groups for client in group.clients[::every]]
    axes.set_xticks([at[client][1] + 0.5 for client in named], [str(client) for client in named])
    for spine in axes.spines.values():
        spine.set_visible(False)
