"""The separation of the best two parts of each cluster: alpha_cross with the splits, and gaps.

Figures 2 of Sattler et al. (2020) and 8 of Sattler et al. (2019), the latter for groups as the server finds them.
"""

from typing import TYPE_CHECKING

import numpy as np

from phalanx.report.clusters import Clusters, Split, colour
from phalanx.report.figures.drawing import COLOUR, DASH, HALF, Picture, canvas, end_label, styled, svg
from phalanx.report.figures.series import Series
from phalanx.report.weightings import Part
from phalanx.report.words import finite
from phalanx.wording import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def alpha(clusters: Clusters, key: str) -> Picture | None:
    """Return the picture of the largest cosine across the parts of each cluster; None if there is none."""
    curves = _curves(clusters, "alpha_cross")
    if not curves:
        return None
    listed = "; ".join(f"step {s.step}, cluster {s.cluster}{_judged(s)}" for s in clusters.splits) or "none"
    return Picture(
        _draw(
            curves,
            clusters,
            None,
            badges=True,
            key=key,
            label=f"Similarity across the parts of each cluster. Splits: {listed}.",
        ),
        "Similarity across the two best parts",
        "The largest cosine between an update of one part and one of the other (alpha_cross), for each cluster and its"
        f" best bi-partition. {_counted(clusters)}",
        keys="splits" if clusters.splits else "",
    )


def gap(clusters: Clusters, key: str) -> Picture | None:
    """Return the picture of the separation gaps; None if nothing was measured."""
    curves = _curves(clusters, "gap")
    if not curves:
        return None
    least = finite(Part.of(clusters.ledger.record.config.get("algorithm")).arguments.get("min_gap"))
    ends = ", ".join(f"cluster {v} {s.finite[-1]:.2f}" for v, s in curves.items() if v in clusters.leaves)
    return Picture(
        _draw(curves, clusters, least, badges=False, key=key, label=f"Separation gaps. At the end: {ends or 'none'}."),
        "Separation gaps",
        "The smallest cosine of a client to its nearest peer in its own part, minus alpha_cross: above zero, the parts"
        " are groups; near zero, noise."
        + (" A cluster is split only where it is min_gap or more." if least else " Dotted verticals: splits."),
    )


def _curves(clusters: Clusters, field: str) -> dict[int, Series]:
    curves = {v: clusters.curve(v, "separation", field) for v in clusters.nodes}
    return {v: s for v, s in curves.items() if s.finite}


def _counted(clusters: Clusters) -> str:
    """Return the number of splits in words, for the caption."""
    if not clusters.splits:
        return "No cluster was split in this run."
    return f"{plural(len(clusters.splits), 'split')}: numbers count the clients of the smallest part."


def _judged(split: Split) -> str:
    return "" if split.torn is None else ", tears a group apart" if split.torn else ", along the groups"


def _draw(
    curves: dict[int, Series], clusters: Clusters, least: float | None, *, badges: bool, key: str, label: str
) -> str:
    values = [y for s in curves.values() for y in s.finite] + ([least] if least else []) + [0.0]
    low, high = min(values), max(values)
    margin = 0.12 * max(high - low, 0.05)
    with styled(key):
        figure, axes = canvas(HALF, 300, right=104 if least else 24)
        axes.axhline(0, color=COLOUR["muted"], linewidth=0.8, zorder=1)
        for v, s in curves.items():
            axes.plot(s.x, s.y, color=COLOUR[colour(v)], marker="." if len(s.finite) == 1 else None, zorder=3)
        if least:
            axes.axhline(least, color=COLOUR["muted"], linestyle=DASH, linewidth=1.4, zorder=4)
            end_label(axes, least, f"min_gap {least:g}", "muted")
        axes.set_xlim(0, float(clusters.steps[-1].step))
        axes.set_ylim(low - margin, high + margin)
        if badges:
            _badges(axes, clusters)
        else:
            for split in clusters.splits:
                axes.axvline(split.step, color=COLOUR["muted"], linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        axes.set_xlabel("step")
        return svg(figure, key, label)


def _badges(axes: "Axes", clusters: Clusters) -> None:
    """Draw the splits on the curves of their clusters; one above the other if they would overlap."""
    taken = list[tuple[float, float]]()
    for split in clusters.splits:
        y = split.alpha if np.isfinite(split.alpha) else 0.0
        x_pixel, y_pixel = axes.transData.transform((split.step, y)).tolist()
        up = 0
        while any(abs(x_pixel - x) < 20 and abs(y_pixel + up - at) < 20 for x, at in taken):
            up += 4
        taken.append((x_pixel, y_pixel + up))
        name, shape = {True: ("bad", "square,pad=0.36"), False: ("good", "circle,pad=0.28"),
                       None: ("muted", "circle,pad=0.28")}[split.torn]  # fmt: skip
        axes.annotate(
            f"{split.smaller}", (split.step, y), (0, up), textcoords="offset points", ha="center", va="center",
            color=COLOUR["page"], fontsize=10, fontweight="bold", annotation_clip=False, zorder=6,
            bbox={"boxstyle": shape, "facecolor": COLOUR[name], "edgecolor": COLOUR["page"]},
        )  # fmt: skip
