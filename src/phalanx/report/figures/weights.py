"""The weight of each client before any training, by reported sizes: as reported, truncated, and all equal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from phalanx.core import InfeasibleError
from phalanx.report.figures.drawing import COLOUR, DASH, FULL, Picture, canvas, spread, styled, svg
from phalanx.report.figures.heatmap import stride
from phalanx.report.weightings import REPORTED, TRUNCATED, UNIFORM, Weightings
from phalanx.report.words import ids, portion
from phalanx.wording import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, RIGHT, HEIGHT = 92, 150, 300  # pixels for the axis, for the names of the curves, and for all
SHORTEST = 8  # characters that a name needs
FEW = 40  # largest number of clients shown one by one; more are shown by rank on a logarithmic axis
COLOURS = {REPORTED: "s0", TRUNCATED: "s2", UNIFORM: "muted"}
MARKERS = {REPORTED: "o", TRUNCATED: "^"}


def picture(w: Weightings, key: str) -> Picture:
    """Return the picture.

    Args:
        w: of the run.
        key: unique in the page, prefixes every id.
    """
    order = sorted(w.sizes, key=lambda client: (-w.sizes[client], client))
    return Picture(
        _draw(w, order, key=key, label=_spoken(w, order)), "Weights by reported size", _caption(w), full=True
    )


def _spoken(w: Weightings, order: Sequence[int]) -> str:
    """Return the picture in words, for screen readers."""
    heaviest = ", ".join(f"{name} {portion(of[order[0]])}" for name, of in w.shares.items())
    bad = ids(sorted(w.byzantine), w.names) if len(w.byzantine) <= FEW else str(len(w.byzantine))
    first = visible(w.names.get(order[0], "")) or f"Client {order[0]}"
    return (
        f"Share of the weight of each of {w.count}, by reported size. {first}, the"
        f" largest: {heaviest}. In use: {w.used or 'none of these'}. Byzantine clients: {bad or 'none known'}."
    )


def _caption(w: Weightings) -> str:
    many = len(w.sizes) > FEW
    return (
        "Each client's share of the weight before any training, as if all took part: by the size that it reports"
        f" (circles), {_cut(w)}, and all equal (dashed). Clients are sorted by reported size, the largest first; the"
        f" shares {'and the ranks are' if many else 'are'} on a logarithmic axis."
        + (" The weighting in use is thick, its markers are filled." if w.used in w.shares else "")
        + (f" {'Ticks' if many else 'Wedges'} on top: Byzantine clients." if w.byzantine else "")
    )


def _cut(w: Weightings) -> str:
    """Return in words how sizes are truncated."""
    shares = f"alpha = {w.truncate.alpha:g} and alpha_star = {w.truncate.alpha_star:g}"
    shares += ", the run's own" if w.used == TRUNCATED else ", which are the defaults of Truncate"
    if isinstance(U := w.bound, InfeasibleError):
        return f"not by that size truncated (infeasible for {shares})"
    where = f"at U* = {U:,}" if max(w.sizes.values()) > U else "where it has to be, here nowhere"
    return f"by that size truncated {where} (triangles; for {shares})"


def _draw(w: Weightings, order: Sequence[int], *, key: str, label: str) -> str:
    x = range(1, len(order) + 1)
    with styled(key):
        figure, axes = canvas(FULL, HEIGHT, left=LEFT, right=RIGHT, top=30)
        axes.set_yscale("log")
        if len(order) > FEW:
            axes.set_xscale("log")
            axes.set_xlim(0.9, len(order) * 1.06)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.set_xlabel("rank of the client by reported size")
        else:
            axes.set_xlim(0.4, len(order) + 0.6)
            _name_clients(axes, w, order)
        for name, of in w.shares.items():
            _curve(axes, x, [of[c] for c in order], name, used=name == w.used)
        _percents(axes, min(min(of.values()) for of in w.shares.values()))
        _name_curves(axes, {name: of[order[-1]] for name, of in w.shares.items()}, w.used)
        _mark(axes, [rank for rank, c in zip(x, order, strict=True) if c in w.byzantine], many=len(order) > FEW)
        axes.minorticks_off()
        return svg(figure, key, label)


def _curve(axes: "Axes", x: Sequence[float], y: Sequence[float], name: str, *, used: bool) -> None:
    """Draw the shares under one weighting; the one in use is above other curves, but below their markers."""
    colour, width, dash = COLOUR[COLOURS[name]], 3.6 if used else 1.3, DASH if name == UNIFORM else "-"
    if name == UNIFORM:
        x, y = (x[0] - 0.4, *x, x[-1] + 0.4), (y[0], *y, y[-1])
    axes.plot(x, y, color=colour, linestyle=dash, linewidth=width, zorder=3.5 if used else 3)
    if name == UNIFORM:
        return
    evenly = np.unique(np.geomspace(1, len(x), 30).round().astype(int)) - 1
    at = range(len(x)) if len(x) <= FEW else evenly.tolist()
    axes.plot(
        [x[i] for i in at], [y[i] for i in at], MARKERS[name], markersize=8.5 if name == REPORTED else 5.5,
        color=colour, markerfacecolor=colour if used else "none" if name == REPORTED else COLOUR["page"],
        markeredgewidth=1.5, clip_on=False, zorder=4 if used else 5,
    )  # fmt: skip


def _percents(axes: "Axes", least: float) -> None:
    """Set ticks at whole powers of ten up to 100 %, with room below for markers."""
    low = min(int(np.floor(np.log10(least) + 1e-9)), -1)
    axes.set_ylim(10.0**low / 1.3, 1.3)
    powers = range(0, low - 1, -1 if low > -5 else -2)
    axes.set_yticks([10.0**p for p in powers], [f"{10.0 ** (p + 2):.{max(0, -p - 2)}f} %" for p in powers])


def _name_clients(axes: "Axes", w: Weightings, order: Sequence[int]) -> None:
    """Write names below the axis, or ids where these do not fit or not all have one; those of Byzantine ones bold."""
    width = (FULL - LEFT - RIGHT) / len(order)
    room = int(width / 7) - 1  # characters
    if room >= SHORTEST and all(w.names.get(client) for client in order):
        texts = [visible(w.names[client]) for client in order]
        texts = [text if len(text) <= room else f"{text[: room - 1]}…" for text in texts]
    else:
        texts = list(map(str, order))
    named = range(0, len(order), stride((7 * max(map(len, texts)) + 6) / width))
    axes.set_xticks([place + 1 for place in named], [texts[place] for place in named])
    for place, text in zip(named, axes.get_xticklabels(), strict=True):
        text.set_parse_math(False)
        if order[place] in w.byzantine:
            text.set(color=COLOUR["byzantine"], fontweight="bold")
    axes.set_xlabel("client, by reported size")


def _name_curves(axes: "Axes", ends: Mapping[str, float], used: str) -> None:
    """Write the name of each curve at its end."""
    low, high = np.log(axes.get_ylim())
    at = sorted(((np.log(end) - low) / (high - low), name) for name, end in ends.items())
    for height, (_, name) in zip(spread([height for height, _ in at], 0.08), at, strict=True):
        axes.text(
            1.015, height, f"{name}, in use" if name == used else name, color=COLOUR[COLOURS[name]], va="center",
            transform=axes.transAxes, fontweight="bold" if name == used else "normal",
        )  # fmt: skip


def _mark(axes: "Axes", ranks: Sequence[int], *, many: bool) -> None:
    """Mark the Byzantine clients above their columns."""
    if not ranks:
        return
    above = axes.get_xaxis_transform()
    colour = COLOUR["byzantine"]
    if many:
        axes.vlines(ranks, 1.02, 1.07, transform=above, color=colour, linewidth=1.2, clip_on=False)
    else:
        axes.vlines(ranks, 0, 1, transform=above, color=colour, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        axes.plot(ranks, [1.045] * len(ranks), "v", transform=above, color=colour, markersize=8, clip_on=False)
    axes.text(-0.012, 1.045, "Byzantine", transform=axes.transAxes, ha="right", va="center", color=colour,
              fontweight="bold")  # fmt: skip
