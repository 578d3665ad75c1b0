"""The cosines between the clients' updates, sorted by cluster."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.report.client_ledger import BYZANTINE
from phalanx.report.clusters import Clusters, colour
from phalanx.report.figures.drawing import COLOUR, HALF, Picture, canvas, styled, svg
from phalanx.report.figures.heatmap import BLUE, GREY, VERMILLION, stride
from phalanx.report.figures.series import number
from phalanx.runs.observed import observed

LEFT, RIGHT, TOP, BOTTOM = 58, 16, 26, 40  # pixels
BARE = 26  # pixels of a cluster's side below which it is not named


class Cosines(NamedTuple):
    """The picture's data.

    Args:
        step: of the cosines.
        clients: that sent the updates, by cluster at the end.
        alpha: (m, m), in the order of `clients`; NaN if there is no number.
        blocks: cluster and number of its clients, in that order.
        full: the cosine with full colour: the largest between two clients except for outliers.
    """

    step: int
    clients: tuple[int, ...]
    alpha: NDArray[np.float64]
    blocks: tuple[tuple[int, int], ...]
    full: float


def picture(clusters: Clusters, key: str) -> Picture | None:
    """Return the picture; None if no cosines of three clients or more are known."""
    data = cosines(clusters)
    if data is None:
        return None
    spoken = f"Cosines between the updates of {len(data.clients)} clients in step {data.step}, sorted by cluster."
    return Picture(
        _draw(data, clusters, key=key, label=spoken),
        "Cosines between updates",
        f"The cosine between the updates of any two clients in step {data.step}, the last in which most of them were in"
        f" one cluster; sorted by the clusters of the end. Full colour: {data.full:.2f} and beyond.",
        keys="cosines",
    )


def cosines(clusters: Clusters) -> Cosines | None:
    """Return the last matrix of the largest cluster with recorded similarities."""
    recorded = [
        (len(about["clients"]), step.step, about)
        for step in clusters.steps
        for about in (observed(step, "similarity") or {}).values()
    ]
    if not recorded or max(recorded, key=lambda item: item[:2])[0] < 3:
        return None
    _, step, about = max(recorded, key=lambda item: item[:2])
    row = {client: place for place, client in enumerate(about["clients"])}
    inside = [(v, [c for c in clusters.nodes[v].clients if c in row]) for v in clusters.leaves]
    order = [c for _, who in inside for c in who]
    rest = [c for c in row if c not in order]  # clients in no cluster at the end
    blocks = [(v, len(who)) for v, who in inside if who] + ([(-1, len(rest))] if rest else [])
    at = [row[c] for c in (*order, *rest)]
    alpha = np.array([[number(value) for value in line] for line in about["alpha"]])[np.ix_(at, at)]
    others = np.abs(alpha[~np.eye(len(at), dtype=bool)])
    others = others[np.isfinite(others)]
    full = float(np.percentile(others, 99)) if others.size else 1.0
    return Cosines(step, (*order, *rest), alpha, tuple(blocks), full or 1.0)


def _draw(data: Cosines, clusters: Clusters, *, key: str, label: str) -> str:
    m, side = len(data.clients), HALF - LEFT - RIGHT
    with styled(key):
        figure, axes = canvas(HALF, side + TOP + BOTTOM, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM, grid=False)
        size = 16 if m <= 40 else 6
        image = np.repeat(np.repeat(_pixels(data), size, axis=0), size, axis=1)
        if side / m > 5:
            image[size - 1 :: size] = 0
            image[:, size - 1 :: size] = 0
        axes.imshow(image, extent=(0, m, m, 0), aspect="auto", interpolation="none")
        ends = list(accumulate(n for _, n in data.blocks))
        for (v, n), end in zip(data.blocks, ends, strict=True):
            shade = COLOUR["muted" if v < 0 else colour(v)]
            axes.plot([end - n, end, end, end - n, end - n], [end - n, end - n, end, end, end - n], color=shade,
                      linewidth=2, clip_on=False, zorder=4)  # fmt: skip
            if n * side / m > BARE and v >= 0:
                axes.annotate(str(v), (end - n / 2, 0), (0, 6), textcoords="offset points", ha="center", va="bottom",
                              color=shade, fontweight="bold", annotation_clip=False)  # fmt: skip
        axes.annotate("cluster", (0, 0), (-8, 6), textcoords="offset points", ha="right", va="bottom",
                      color=COLOUR["muted"], annotation_clip=False)  # fmt: skip
        _name(axes.xaxis, data.clients, clusters, stride((7 * len(str(max(data.clients))) + 8) / (side / m)))
        _name(axes.yaxis, data.clients, clusters, stride(13 / (side / m)))
        axes.set_xlabel("client")
        for spine in axes.spines.values():
            spine.set_visible(False)
        return svg(figure, key, label)


def _pixels(data: Cosines) -> NDArray[np.uint8]:
    """Return (m, m, 4): blue if updates agree, vermillion if they contradict each other, grey on the diagonal."""
    out = np.zeros((*data.alpha.shape, 4), np.uint8)
    shade = np.clip(np.nan_to_num(data.alpha) / data.full, -1, 1)  # no colour if there is no number
    out[shade > 0, :3], out[shade <= 0, :3] = BLUE, VERMILLION
    out[..., 3] = np.rint(255 * np.abs(shade))
    out[np.eye(len(shade), dtype=bool)] = (*GREY, 70)
    return out


def _name(axis: object, clients: Sequence[int], clusters: Clusters, every: int) -> None:
    """Write ids at the axis, those of Byzantine clients bold."""
    named = range(0, len(clients), every)
    axis.set_ticks([place + 0.5 for place in named], [str(clients[place]) for place in named])  # type: ignore[attr-defined]
    axis.set_tick_params(length=0)  # type: ignore[attr-defined]
    for place, text in zip(named, axis.get_ticklabels(), strict=True):  # type: ignore[attr-defined]
        if clusters.ledger.truth.get(clients[place]) == BYZANTINE:
            text.set(color=COLOUR["byzantine"], fontweight="bold")
