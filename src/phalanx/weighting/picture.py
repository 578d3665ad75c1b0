"""A picture of the trade-off between the tolerated attackers and the sizes that still count."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import mul
from typing import TYPE_CHECKING

from phalanx.weighting.truncation import TradeOff, check_sizes, top

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

RED, BLUE, LIGHT, INK = "#c0392b", "#2f6da8", "#e8e8e8", "#555555"


def plot_truncation_curve(
    curve: Sequence[TradeOff], sizes: Mapping[int, int], chosen: TradeOff | None = None
) -> "matplotlib.figure.Figure":
    """Return a picture of U* over alpha, like Figure 1 of Portnoy et al. (2020) but as a step function.

    The bound depends on the number of clients, ceil(alpha K), so it is constant from just above (t - 1) / K to t / K.
    The axis of U* is logarithmic if the largest size is more than a hundred times the smallest.  The alphas with which
    nothing is truncated are shaded, and so are those for which no bound is feasible.

    Args:
        curve: result of `truncation_curve`, at least one point.
        sizes: the sizes from which the curve was computed.
        chosen: a point to mark; its alpha need not be a multiple of 1 / K.

    Raises:
        ValueError: if the curve has no points, is for another number of clients, or `chosen` is not on it.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow to import, and needed here only)

    check_sizes(sizes)
    _check(curve, len(sizes), chosen)
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    _draw_limits(axes, curve, len(sizes), max(sizes.values()))
    axes.stairs(
        [point.bound for point in curve], [t / len(sizes) for t in range(len(curve) + 1)],
        baseline=None, color=BLUE, linewidth=1.8,
    )  # fmt: skip
    if chosen is not None:
        _draw_chosen(axes, chosen, len(sizes), curve)
    _dress(axes, curve, sizes)
    return figure


def _check(curve: Sequence[TradeOff], K: int, chosen: TradeOff | None) -> None:
    if not curve:
        raise ValueError("curve must have at least one point: with so few clients no alpha is feasible.")
    if [round(point.alpha * K, 6) for point in curve] != list(range(1, len(curve) + 1)):
        raise ValueError(
            f"curve must have a point for each of 1, 2, ... of {K} clients, as truncation_curve returns them."
        )
    if chosen is not None:
        t = top(chosen.alpha, K)
        if not 1 <= t <= len(curve) or curve[t - 1].bound != chosen.bound:
            there = (
                f"there the bound is {curve[t - 1].bound}" if 1 <= t <= len(curve) else "the curve has no such alpha"
            )
            raise ValueError(f"chosen must be a point of the curve, got {tuple(chosen)}: {there}.")


def _draw_limits(axes: "matplotlib.axes.Axes", curve: Sequence[TradeOff], K: int, largest: int) -> None:
    """Shade the alphas with which nothing is truncated, and mark the largest feasible one."""
    whole = max((point.alpha for point in curve if point.bound >= largest), default=0.0)
    if whole:
        axes.axvspan(0, whole, facecolor=LIGHT, edgecolor="#cccccc", hatch="///", linewidth=0)
        x = max(whole / 2, 0.02 * _right(curve))  # with room for the words
        axes.text(
            x, 0.04, "nothing is truncated", transform=axes.get_xaxis_transform(), rotation=90, ha="center",
            va="bottom", fontsize="small", color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )  # fmt: skip
    most = curve[-1].alpha
    axes.axvspan(most, _right(curve), facecolor=LIGHT, linewidth=0)
    axes.axvline(most, color=INK, linewidth=1, linestyle="--")
    label = f"largest feasible alpha: {len(curve):,} of {K:,} clients"
    axes.text(
        most, 0.97, label + " ", transform=axes.get_xaxis_transform(), ha="right", va="top",
        fontsize="small", color=INK,
    )  # fmt: skip


def _draw_chosen(axes: "matplotlib.axes.Axes", chosen: TradeOff, K: int, curve: Sequence[TradeOff]) -> None:
    label = f"alpha = {chosen.alpha:.3g} ({top(chosen.alpha, K):,} of {K:,}): U* = {chosen.bound:,}"
    axes.plot(
        [chosen.alpha], [chosen.bound], "o", color=RED, markersize=8, markeredgecolor="white", zorder=5, label=label
    )
    corner = (curve[-1].alpha / _right(curve), 0.93)  # above the falling curve
    axes.legend(loc="upper right", bbox_to_anchor=corner, borderaxespad=0, frameon=False, handletextpad=0.2)


def _dress(axes: "matplotlib.axes.Axes", curve: Sequence[TradeOff], sizes: Mapping[int, int]) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415  (slow to import, and needed here only)

    K, smallest, largest = len(sizes), min(sizes.values()), max(sizes.values())
    if largest > 100 * smallest:
        axes.set_yscale("log")
        axes.set_ylim(0.7 * curve[-1].bound, 5 * curve[0].bound)
    else:
        axes.set_ylim(0, 1.3 * curve[0].bound)
        axes.locator_params(axis="y", integer=True)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(0, _right(curve))
    axes.set_xlabel("alpha, the share of the clients that may be Byzantine")
    axes.set_ylabel("U*, the largest size that counts in full")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    clients = axes.secondary_xaxis("top", functions=(partial(mul, K), partial(mul, 1 / K)))
    clients.set_xlabel(f"number of clients, of {K:,}", fontsize="small")
    clients.xaxis.set_major_locator(MaxNLocator(nbins=9, steps=[1, 2, 5, 10], integer=True))
    clients.xaxis.set_major_formatter("{x:,.0f}")
    clients.tick_params(labelsize="small")
    axes.spines["right"].set_visible(False)


def _right(curve: Sequence[TradeOff]) -> float:
    return min(1.04 * curve[-1].alpha, 1.0)
