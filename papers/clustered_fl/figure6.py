"""Figure 6: the separation gap over the rounds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from papers.clustered_fl import setting
from phalanx.experiments.papers.claims import Claim
from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import COLOURS, DASHES, MUTED
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Separation gap with swapped labels over the rounds, 100 (MNIST) and 1500 (CIFAR-10) examples per client"
CLAIM = (
    "The gap grows with the rounds; with weight updates clustering is correct from about round 10 on both data sets."
)
MINUTES = {"quick": 1.0, "paper": 60.0}
EACH: Mapping[Scale, Mapping[str, int]] = {"quick": {"MNIST": 100}, "paper": {"MNIST": 100, "CIFAR-10": 1500}}
FROM = 10  # the first round with correct bi-partitions in the paper


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return a run for each data set, which is also one of Figure 5."""
    return {data: setting.swapped(data, each, seed) for data, each in EACH[scale].items()}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return the rounds from which on bi-partitions are correct, and the curves."""
    rows = []
    for data, each in EACH[context.scale].items():
        for trace in records.get(data, ()):
            if not trace.failed:
                rows.append([data, f"{each}", f"{trace.seed}", *_row(setting.gaps(trace))])
    columns = ("data", "examples", "seed", "always correct from round", "correct from round 10 on", "gap in round 10",
               "gap in round 50")  # fmt: skip
    notes = ("Of weight updates. A correct bi-partition divides no group.", setting.SILENT)
    caption = "Separation gap by round, mean and range over seeds. Above 0 the bi-partition is certain to be correct."
    table = Table("Correct bi-partitions", columns, rows, notes)
    claims = [claim for data in EACH[context.scale] for claim in _claims(data, records.get(data, ()))]
    return Rendering((table,), (Plot(drawn(records, context), caption=caption),), claims=claims)


def _claims(data: str, traces: Sequence[Trace]) -> list[Claim]:
    found = [setting.gaps(trace) for trace in traces if not trace.failed]
    later = [seen.correct[FROM - 1 :] for seen in found]
    grown = [float(np.mean(seen.updates[-10:]) - np.mean(seen.updates[:10])) for seen in found]
    return [
        Claim(f"{data}: 95 % of the bi-partitions from round {FROM} on are correct",
              [sum(of) >= 0.95 * len(of) for of in later], None),
        Claim(f"{data}: gap of updates in the last ten rounds minus that in the first ten", grown, 0.0, "of the gap",
              decimals=2),
    ]  # fmt: skip


def _row(seen: setting.Gaps) -> list[str]:
    first = next((r + 1 for r in range(len(seen.correct)) if all(seen.correct[r:])), None)
    later = seen.correct[FROM - 1 :]
    share = f"{sum(later)} of {len(later)}"
    gaps = [f"{seen.updates[round_ - 1]:+.2f}" for round_ in (FROM, setting.ROUNDS)]
    return [f"{first or 'never'}", share, *gaps]


def drawn(records: Mapping[str, Sequence[Trace]], context: Context) -> "Figure":
    """Draw a panel for each data set, a curve for updates and one for gradients."""
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415  (slow to import)

    data = list(EACH[context.scale])
    canvas = Canvas(figsize=(0.4 + 4.2 * len(data), 3.2), layout="constrained")
    grid = canvas.subplots(1, len(data), squeeze=False, sharey=True)[0]
    for axes, what in zip(grid, data, strict=True):
        found = [setting.gaps(trace) for trace in records.get(what, ()) if not trace.failed]
        for k, of in enumerate(("updates", "gradients")):
            if found:
                values = np.array([getattr(f, of) for f in found])
                rounds = np.arange(values.shape[1]) + 1
                axes.plot(rounds, values.mean(axis=0), color=COLOURS[k], linestyle=DASHES[k], label=of)
                axes.fill_between(
                    rounds, values.min(axis=0), values.max(axis=0), color=COLOURS[k], alpha=0.2, linewidth=0
                )
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.axvline(FROM, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        axes.set(xlabel="round", title=f"{what}, {EACH[context.scale][what]} examples per client")
    grid[0].set_ylabel("separation gap")
    handles, labels = grid[0].get_legend_handles_labels()
    if handles:
        canvas.legend(handles, labels, loc="outside lower center", ncols=2)
    return canvas
