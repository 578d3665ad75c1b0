"""Figure 1: the accuracy of the best participant by round, with ten participants on MNIST."""

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean

from papers.rffl.fairness import grid
from papers.rffl.measured import Records, compared_by, traces
from papers.rffl.setting import FAIR, OURS, SMALLER_MNIST, SPLITS, cells
from phalanx.experiments.papers.claims import Claim, lead
from phalanx.experiments.papers.comparison import Cell, Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import Axis, curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "Test accuracy of the best participant by round, MNIST, 10 participants, three splits"
CLAIM = "RFFL fluctuates less than the others, and converges quickly."
MINUTES = {"quick": 1.0, "paper": 31.0}
FIGURE = "best_client_accuracy"
SHOWN = Axis("test accuracy", 0.6, 1.0, shares=True)
FEDERATIONS = grid({"MNIST": (10,)}, SPLITS)


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs of all methods, which are among those of Table 1."""
    return cells(FEDERATIONS, FAIR, scale, seed)


def render(records: Records, context: Context) -> Rendering:
    """Return a panel for each split, and the last points in a table."""
    panels = {("", f.split): {method: traces(records, f, method) for method in FAIR} for f in FEDERATIONS}
    rows = list[list[Cell]]()
    for method in FAIR:
        ends = [compared_by(traces(records, f, method), lambda t: _percent(t.final(FIGURE))) for f in FEDERATIONS]
        rows.append([method, *ends])
    columns = ("method", *(f"{f.split}, %" for f in FEDERATIONS))
    caption = (
        "Accuracy of the best participant's model on the test images, by round. FedAvg and q-FFL are tested after one "
        "more local epoch, so that even the first model is worth something."
    )
    plots = (Plot(curves(panels, figure=FIGURE, y=SHOWN), caption=caption),)
    notes = [SMALLER_MNIST] if context.scale == "quick" else []
    claims = [
        Claim(f"{f.split}: change between rounds, second half of the run: {method} minus RFFL", steadier, decimals=2)
        for f in FEDERATIONS
        for method in FAIR
        if method not in ("RFFL", OURS)
        and (steadier := lead(*(fluctuations(traces(records, f, name)) for name in (method, "RFFL"))))
    ]
    return Rendering((Table("The best participant at the end", columns, rows),), plots, notes, claims)


def fluctuations(found: Iterable[Trace]) -> list[tuple[int, float]]:
    """Return by seed the mean absolute change of the curve from point to point, in its second half, in points."""
    out = []
    for trace in found:
        curve = [] if trace.failed else [value for value in trace.curves.get(FIGURE, ()) if value is not None]
        late = curve[len(curve) // 2 :]
        if len(late) > 1:
            out.append((trace.seed, 100 * fmean(abs(b - a) for a, b in pairwise(late))))
    return out


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
