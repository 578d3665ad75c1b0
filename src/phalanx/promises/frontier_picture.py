"""A picture of a frontier: what each cap costs, what the worst site can do, and the weights of each site."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.promises.frontier import HALF, Frontier
from phalanx.wording import plural, shown

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#8a8a8a"  # three of them by Okabe and Ito
BAND, INK = "#dcefe8", "#333333"
SITES = 20  # largest sites with bars


def plot_frontier(found: Frontier, names: Sequence[str]) -> "matplotlib.figure.Figure":
    """Return a picture of 1,280 x 512 pixels, at 100 dots per inch.

    Left: errors by cap, the useful band shaded, the best cap marked.  Right: the share of the weight of each site, as
    reported, capped, and all alike; of the 20 largest ones.

    Args:
        found: by `frontier`.
        names: of the sites.

    Raises:
        ValueError: there are not as many names as sites.
    """
    from phalanx.notebook import NotebookFigure  # noqa: PLC0415  (slow to import, and needed here only)

    if len(names) != len(found.reported.shares):
        raise ValueError(f"names must be of {len(found.reported.shares)} sites, got {len(names)}.")
    figure = NotebookFigure(figsize=(12.8, 5.12), layout="constrained")
    curve, bars = figure.subplots(1, 2, width_ratios=[1.25, 1])
    _draw_curve(curve, found)
    _draw_bars(bars, found, names)
    for axes in (curve, bars):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    return figure


def _draw_curve(axes: "matplotlib.axes.Axes", found: Frontier) -> None:
    caps = [float(point.cap) for point in found.points]
    clean = [point.weighing.clean for point in found.points]
    worst = [point.weighing.worst for point in found.points]
    who = "the worst site lies" if found.liars == 1 else f"the worst {found.liars} sites lie"
    least = "" if found.uniform.exact else ", at least"
    every = max(1, len(caps) // 12)
    axes.plot(caps, worst, "s--", color=ORANGE, linewidth=2, markevery=every, label=f"error if {who}{least}")
    axes.plot(caps, clean, "o-", color=BLUE, linewidth=2, markevery=every, label="clean error")
    most = [(1 - HALF * max(0.0, 1 - error**2)) ** 0.5 for error in clean]
    axes.plot(caps, most, color=ORANGE, linewidth=1, linestyle=":", label="largest useful error under a lie")
    axes.axhline(found.cost, color=GREY, linewidth=1, linestyle=":")
    top = 1.12 * max(*worst, found.cost)
    for first, last in _runs([point in found.useful for point in found.points]):
        axes.axvspan(caps[first] - 0.004, caps[last] + 0.004, color=BAND, zorder=0)
    if best := found.best:
        axes.axvline(float(best.cap), color=GREEN, linewidth=1.5)
        text = f"best useful cap: {100 * float(best.cap):.3g} % "
        axes.text(float(best.cap), top, text, color="#00694d", ha="right", va="top", fontweight="bold")
    axes.text(
        caps[0], found.cost, f"clean error: useful up to {found.cost:g}", color=INK, va="bottom", fontsize="small"
    )
    axes.set_ylim(0, top)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.set_xlabel(f"cap: share of the weight that {plural(found.liars, 'site')} may hold")
    axes.set_ylabel("relative error of modelled updates")
    axes.set_title("Cost and harm of each cap", loc="left", fontweight="bold")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(loc="best", frameon=False)


def _runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the first and the last index of each run of true values."""
    found = list[tuple[int, int]]()
    for index, flag in enumerate(flags):
        if flag and found and found[-1][1] == index - 1:
            found[-1] = found[-1][0], index
        elif flag:
            found.append((index, index))
    return found


def _draw_bars(axes: "matplotlib.axes.Axes", found: Frontier, names: Sequence[str]) -> None:
    sites = sorted(range(len(names)), key=lambda site: -found.reported.shares[site])[:SITES]
    chosen = found.nearest
    kinds = {
        "as reported": (found.reported.shares, BLUE, ""),
        f"capped at {100 * float(chosen.cap):.3g} %": (chosen.weighing.shares, GREEN, "///"),
        "all alike": (found.uniform.shares, "#c8c8c8", ""),
    }
    for offset, (label, (shares, colour, hatch)) in zip((-0.27, 0, 0.27), kinds.items(), strict=True):
        axes.barh(
            [row + offset for row in range(len(sites))], [shares[site] for site in sites], 0.26, color=colour,
            label=label, hatch=hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
    axes.set_yticks(range(len(sites)), [shown(names[site], 16) for site in sites], parse_math=False)
    axes.invert_yaxis()
    axes.axvline(0.5, color=ORANGE, linewidth=1.2, linestyle="--")
    axes.set_xlim(0, max(0.55, 1.05 * max(found.reported.shares)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.set_xlabel("share of the weight; no rule tolerates one half")
    more = f", of the {SITES} largest sites" if len(names) > SITES else ""
    axes.set_title(f"Weights{more}", loc="left", fontweight="bold")
    axes.grid(color="#dddddd", linewidth=0.6, axis="x")
    axes.legend(loc="best", framealpha=1, edgecolor="white")
