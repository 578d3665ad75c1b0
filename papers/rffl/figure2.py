"""Figure 2: reputations by round, with free riders, and with label flippers."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from papers.rffl.measured import Records, attackers_removed, honest_removed, traces
from papers.rffl.setting import FEW, FLIP, RAMP, RIDE, SMALLER_MNIST, UNIFORM, Enemy, Federation, cells
from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, MUTED
from phalanx.experiments.trace import Trace
from phalanx.fairness import detection
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Reputations by round with two free riders, and with two label flippers, in addition to ten participants"
CLAIM = (
    "Free riders are quickly assigned reputations below the threshold, and are isolated within 5 rounds. (Label "
    "flippers are not in the figure.)"
)
MINUTES = {"quick": 0.3, "paper": 10.0}
WITHIN = 5  # rounds
FEDERATIONS = tuple(Federation("MNIST", 10, split) for split in (UNIFORM, RAMP))
SHOWN = {RIDE: "free riders", FLIP: "label flippers"}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return runs of RFFL under both attacks on both splits, which are among those of Tables 5, 13, 14 and 18."""
    return {
        cell: run
        for attack in SHOWN
        for cell, run in cells(FEDERATIONS, ("RFFL",), scale, seed, Enemy(attack, FEW)).items()
    }


def render(records: Records, context: Context) -> Rendering:
    """Return the curves of the first seed, and a table of all."""
    rows = []
    for attack, name in SHOWN.items():
        for f in FEDERATIONS:
            found = [t for t in traces(records, f, "RFFL", Enemy(attack, FEW)) if not t.failed]
            if found:
                held = sum(quick(t) for t in found)
                said = "yes" if held == len(found) else f"in {held} of {len(found)} seeds"
                rows.append([name, f.split, attackers_removed(found, "RFFL"), honest_removed(found, "RFFL"), said])
    columns = ("attackers", "split", "excluded", "honest excluded", f"all within {WITHIN} rounds, nobody honest")
    caption = (
        "Reputation by round, first seed. Blue: honest participants; orange: attackers, until they are excluded; "
        "dashed: the threshold, a third of the mean reputation."
    )
    notes = [SMALLER_MNIST] if context.scale == "quick" else []
    return Rendering((Table("Excluded clients", columns, rows),), (Plot(drawn(records), caption=caption),), notes)


def quick(trace: Trace) -> bool:
    """Return whether all attackers, and no other participant, were excluded in the first rounds."""
    seen = detection(trace)
    return seen.longest is not None and seen.longest <= WITHIN and not seen.honest


def drawn(records: Records) -> "Figure":
    """Draw a row of panels for each attack, a column for each split."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    canvas = Canvas(figsize=(7.2, 5.0), layout="constrained")
    grid = canvas.subplots(len(SHOWN), len(FEDERATIONS), sharex=True, sharey=True, squeeze=False)
    for row, (attack, name) in zip(grid, SHOWN.items(), strict=True):
        for axes, federation in zip(row, FEDERATIONS, strict=True):
            found = [t for t in traces(records, federation, "RFFL", Enemy(attack, FEW)) if not t.failed]
            if found:
                _draw(axes, found[0])
            axes.set_title(f"{name}, {federation.split}")
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        row[0].set_ylabel("reputation")
    for axes in grid[-1]:
        axes.set_xlabel("round")
    grid[0, 0].set_ylim(bottom=0)  # of all panels, which share it
    return canvas


def _draw(axes: "Axes", trace: Trace) -> None:
    """Draw a line for each participant, and the threshold."""
    steps: Sequence[int] = trace.state["step"]
    reputations: Sequence[Mapping[str, float]] = trace.state["reputation"]
    for client in range(trace.clients):
        bad = client in trace.byzantine
        known = [(0, 1 / trace.clients)]
        known += [(step, r[str(client)]) for step, r in zip(steps, reputations, strict=True) if str(client) in r]
        gone = [(excluded.step, below) for excluded in trace.excluded
                if excluded.client == client and (below := _below(excluded.reason)) is not None]  # fmt: skip
        x, y = zip(*known, *gone, strict=True)
        axes.plot(
            x, y, color=COLOURS[1 if bad else 0], linewidth=1.8 if bad else 0.9, alpha=1.0 if bad else 0.7,
            marker="x" if gone else "", markevery=[len(x) - 1], zorder=3 if bad else 2,
        )  # fmt: skip
    axes.plot(steps, trace.state["threshold"], color=MUTED, linestyle=(0, (4, 2)), linewidth=1)


def _below(reason: str) -> float | None:
    """Return the reputation of an excluded participant from a reason like `reputation 0.0126 < 0.0278, excluded`."""
    found = re.search(r"reputation ([0-9.]+) <", reason)
    return float(found[1]) if found else None
