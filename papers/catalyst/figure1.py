"""Figure 1: the duration of rounds over the spread of clients' speeds, from the schedule alone.

A synchronous round lasts as long as its slowest client.  So nothing need be trained: a client's time is |N(mu, k s)|,
drawn once, and a federation's round the largest of 100.  The published factors fit s = 4 % of mu, not the 20 % of the
other experiments, which the figure's text does not tell.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phalanx.experiments.papers.comparison import Sample, Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, DASHES, INK, MARKERS
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run
from phalanx.simulation import Normal
from phalanx.simulation.latency import Workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "How many times longer a synchronous round takes when clients' speeds spread 1 to 12 times as much"
CLAIM = "Rounds take the longer, the more the speeds of clients differ: 1.00, 1.08, 1.15, 1.26, 1.70, 2.00 times."
MINUTES = {"quick": 0.0, "paper": 0.0}
SPREADS = (1, 2, 3, 4, 8, 12)
CLIENTS, MEAN = 100, 100.0
SHARES = (0.04, 0.20)  # of the mean: the spread at 1 that fits, and that of the other experiments
FEDERATIONS: Mapping[Scale, int] = {"quick": 100, "paper": 1000}  # for each seed


def _spread(of: Sample) -> str:
    """Return the mean with the standard deviation over federations."""
    return f"{of.mean or 0.0:.2f} ± {of.deviation or 0.0:.2f}"


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return no runs: nothing is trained."""
    return {}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return the factors with the published ones, for both spreads, and a picture of them."""
    count = FEDERATIONS[context.scale]
    found = {share: np.concatenate([factors(share, count, seed) for seed in context.seeds]) for share in SHARES}
    values = [context.published.of("figure1", str(spread)).value for spread in SPREADS]
    points = [math.nan if value is None else value for value in values]
    rows = []
    for column, (spread, point) in enumerate(zip(SPREADS, points, strict=True)):
        ours, other = (Sample.of(found[share][:, column].tolist()) for share in SHARES)
        difference = (ours.mean or 0.0) - point
        rows.append([f"{spread}", _spread(ours), f"{point:.2f}", f"{difference:+.2f}", _spread(other)])
    columns = ("spread", f"{SHARES[0]:.0%} of the mean at 1", "published", "difference", f"{SHARES[1]:.0%} at 1")
    notes = (
        f"Mean and deviation over {count * len(context.seeds):,} federations of {CLIENTS} clients, each relative to "
        "the mean time of a round at spread 1; nothing is trained.",
        "The published factors are those of one draw. They fit a spread of 4 % of the mean; with the 20 % that the "
        "paper tells for its other experiments they would lie between 1.3 and 4.7.",
    )
    table = Table("Time of a synchronous round, relative to spread 1", columns, rows, notes)
    caption = "Time of a synchronous round of 100 clients over the spread of their speeds; bars: one deviation."
    return Rendering((table,), (Plot(_picture(found, points), caption=caption),))


def factors(share: float, federations: int, seed: int) -> NDArray[np.float64]:
    """Return the duration of a round, relative to the mean at spread 1: (federation, spread).

    A client draws once, whatever the spread: its time is |mean + k (t - mean)|, where t is its time at spread 1.
    """
    once = times(share, federations, seed)
    longest = np.stack([np.abs(MEAN + spread * (once - MEAN)).max(axis=1) for spread in SPREADS], axis=1)
    relative: NDArray[np.float64] = longest / longest[:, 0].mean()
    return relative


def times(share: float, federations: int, seed: int) -> NDArray[np.float64]:
    """Return the clients' times at spread 1, (federation, client), by the library's latency; all clients differ."""
    clock = Normal(MEAN, share * MEAN)
    drawn: NDArray[np.float64] = np.array([clock.seconds(Workload(i), seed) for i in range(federations * CLIENTS)])
    return drawn.reshape(federations, CLIENTS)


def _picture(found: Mapping[float, NDArray[np.float64]], published: Sequence[float]) -> "Figure":
    """Draw factors over spreads, a line for each share, and the published points."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)

    canvas = Canvas(figsize=(5.2, 3.4), layout="constrained")
    axes = canvas.subplots()
    for k, (share, relative) in enumerate(found.items()):
        axes.errorbar(
            SPREADS, relative.mean(axis=0), relative.std(axis=0, ddof=1), color=COLOURS[k], linestyle=DASHES[k],
            marker=MARKERS[k], markerfacecolor="white", capsize=2, label=f"spread of {share:.0%} of the mean at 1",
        )  # fmt: skip
    axes.plot(SPREADS, published, color=INK, marker="x", linestyle="", markersize=7, label="published", zorder=5)
    axes.set(
        xlabel="spread of client speeds, times the first", ylabel="time of a round, times the first", ylim=(0, None)
    )
    axes.set_xticks(SPREADS)
    canvas.legend(loc="outside lower center", ncols=2)
    return canvas
