"""The norms of updates, cluster by cluster, with both thresholds: Figure 7 of Sattler et al. (2019)."""

from collections.abc import Mapping
from typing import NamedTuple

from phalanx.report.clusters import Clusters, colour
from phalanx.report.figures.drawing import COLOUR, DASH, FULL, HALF, Picture, canvas, spread, styled, svg
from phalanx.report.figures.series import Series

RIGHT = 104  # pixels for the names of the thresholds
EPSILONS = {"epsilon1": "eps1", "epsilon2": "eps2"}


class _Curves(NamedTuple):
    mean: Mapping[int, Series]  # of each cluster
    longest: Mapping[int, Series]
    limits: Mapping[str, Series]  # both thresholds, by name


def picture(clusters: Clusters, key: str, *, full: bool) -> Picture | None:
    """Return the picture; None if no norms are known."""
    mean = {v: clusters.curve(v, "norms", "mean") for v in clusters.nodes}
    longest = {v: clusters.curve(v, "norms", "max") for v in clusters.nodes}
    if not any(s.finite for s in (*mean.values(), *longest.values())):
        return None
    limits = {name: _joined(clusters, field) for field, name in EPSILONS.items()}
    ends = ", ".join(f"{name} {s.finite[-1]:.3g}" for name, s in limits.items() if s.finite)
    label = f"Norms of updates of each cluster over steps. At the end {ends}."
    size = (FULL, 300) if full else (HALF, 430)
    return Picture(
        _draw(clusters, _Curves(mean, longest, limits), key=key, label=label, size=size),
        "Norms of updates by cluster",
        "Solid: the length of a cluster's averaged update. Thin: that of the longest update in it. A cluster is split"
        " when the first is below eps1 and the second above eps2, and groups are found; dotted verticals: splits."
        + (" Colours as in the tree." if len(clusters.leaves) > 1 else ""),
        full=full,
    )  # fmt: skip


def _joined(clusters: Clusters, field: str) -> Series:
    """Return a threshold over the steps, from the first cluster that records it."""
    known = dict[float, float]()
    for v in clusters.nodes:
        for x, y in zip(*clusters.curve(v, "norms", field), strict=True):
            known.setdefault(x, y)
    return Series(sorted(known), [known[x] for x in sorted(known)])


def _draw(clusters: Clusters, curves: _Curves, *, key: str, label: str, size: tuple[int, int]) -> str:
    everything = (*curves.mean.values(), *curves.longest.values(), *curves.limits.values())
    top = 1.06 * max(y for s in everything for y in s.finite) or 1.0
    with styled(key):
        figure, axes = canvas(*size, right=RIGHT)
        for split in clusters.splits:
            axes.axvline(split.step, color=COLOUR["muted"], linewidth=1, linestyle=(0, (1, 2)), zorder=1)
        for of, thickness in ((curves.mean, 2.2), (curves.longest, 1.0)):
            for v, s in of.items():
                axes.plot(s.x, s.y, color=COLOUR[colour(v)], linewidth=thickness, marker="." if len(s.x) == 1 else None,
                          zorder=3)  # fmt: skip
        for s in curves.limits.values():
            axes.plot(s.x, s.y, color=COLOUR["muted"], linestyle=DASH, linewidth=1.4, zorder=4)
        axes.set_ylim(0, top)
        limits = [(name, s.finite[-1]) for name, s in curves.limits.items() if s.finite]
        ends = sorted((limit / top, f"{name} {limit:.3g}") for name, limit in limits)
        for y, (_, text) in zip(spread([end for end, _ in ends], 0.08), ends, strict=True):
            axes.text(1.02, y, text, color=COLOUR["muted"], transform=axes.transAxes, va="center")
        axes.set_xlim(0, float(clusters.steps[-1].step))
        axes.set_xlabel("step")
        axes.set_ylabel("norm")
        return svg(figure, key, label)
