"""Figure 1: the accuracy of the best participant by round, with ten participants on MNIST."""

from papers.rffl.fairness import grid
from papers.rffl.measured import Records, compared_by, traces
from papers.rffl.setting import FAIR, SMALLER_MNIST, SPLITS, cells
from phalanx.experiments.papers.comparison import Cell, Table
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import Axis, curves
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
    return Rendering((Table("The best participant at the end", columns, rows),), plots, notes)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
