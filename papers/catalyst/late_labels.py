"""Ours: the effect of the late path if only late clients hold some labels."""

from collections.abc import Mapping, Sequence

from papers.catalyst import rare
from papers.catalyst.populations import COMMON
from phalanx.experiments.papers.claims import Claim, finals, lead
from phalanx.experiments.papers.comparison import Cell, Table, compared
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import ACCURACY, SECONDS, curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "Late clients that hold rare labels: Catalyst with and without its late path, on those labels and overall"
CLAIM = "Late updates bring in what only slow clients know (Section 6.3; no numbers)."
MINUTES = {"quick": 1.5, "paper": 50.0}
F = 5


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: every method for f = 5."""
    return rare.runs(scale, seed, F, tuple(rare.methods(F)))


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return accuracies on rare labels and on all, and the curves of both."""
    found = {label: [rare.with_rare(trace) for trace in records.get(label, ())] for label in rare.methods(F)}
    rows: list[list[Cell]] = [
        [label, *(compared(traces, figure=figure) for figure in ("rare", "all", f"group_accuracy {COMMON}"))]
        for label, traces in found.items()
    ]
    columns = ("method", "rare labels, %", "all labels, %", "common labels, %")
    notes = (
        rare.DESCRIBED,
        f"f = {F}: a quorum of {2 * F + 1}, which the {rare.CLIENTS - rare.LATE} fast clients fill.",
        'Late updates count for 1 / ((a - i) N) each, where one of a quorum counts for 1 / (2f + 1); "x 5": 5 / N.',
        "FLAME in a quorum takes late updates in full, whatever version they answer; FedAvg in a quorum is no defence.",
        *((rare.SMALL,) if context.scale == "quick" else ()),
    )
    table = Table(f"Accuracy after {rare.SECONDS:,.0f} s", columns, rows, notes)
    late, without = found[rare.LATE_PATH], found[rare.NO_PATH]
    claims = [
        Claim(f"Catalyst with its late path minus without, {what}", lead(finals(late, figure), finals(without, figure)))
        for figure, what in SHOWN.items()
    ]
    return Rendering((table,), tuple(_plot(found, figure, what) for figure, what in SHOWN.items()), claims=claims)


SHOWN = {"rare": "the rare labels", "all": "all labels"}
COLUMNS = {  # of panels, with the methods that are drawn in them
    "the late path": (rare.LATE_PATH, rare.NO_PATH, "late not judged"),
    "late updates count for more": ("not judged, x 5", "FLAME in a quorum", "FedAvg in a quorum"),
}


def _plot(found: Mapping[str, Sequence[Trace]], figure: str, what: str) -> Plot:
    panels = {("", column): {label: found[label] for label in labels} for column, labels in COLUMNS.items()}
    drawn = curves(panels, figure=figure, over="seconds", x=SECONDS, y=ACCURACY)
    return Plot(drawn, figure, f"Accuracy on test images of {what}, over virtual seconds.")
