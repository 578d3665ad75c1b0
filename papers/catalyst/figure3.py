"""Figure 3: FLAME on the first answers, against Catalyst, when late clients matter.

The paper does not say what its FLAME for asynchronous clients does with an answer to an older model.  Two forms are
possible: it is thrown away, which is Catalyst without its late path; or it counts in full in the next quorum.
"""

from collections.abc import Mapping, Sequence

from papers.catalyst import rare
from phalanx.experiments.papers.claims import Claim, finals, lead
from phalanx.experiments.papers.comparison import Cell, Table, compared
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import ACCURACY, SECONDS, curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "Catalyst and FLAME for asynchronous clients: 40 clients, the slow ones alone hold two labels, by f"
CLAIM = "Where f is small against the number of clients, FLAME made asynchronous loses to Catalyst."
MINUTES = {"quick": 1.5, "paper": 50.0}
SHOWN = (2, 5)  # f
FORMS = {  # label -> method
    "Catalyst": rare.LATE_PATH,
    "FLAME, drops late": rare.NO_PATH,
    "FLAME, keeps late": "FLAME in a quorum",
}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: three methods for each f."""
    return {
        f"f = {f} / {label}": run
        for f in SHOWN
        for label, run in rare.runs(scale, seed, f, tuple(FORMS.values())).items()
    }


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return accuracies, and curves for each f."""
    panels = {
        ("", f"f = {f}, quorum of {2 * f + 1}"): {
            label: [rare.with_rare(trace) for trace in records.get(f"f = {f} / {method}", ())]
            for label, method in FORMS.items()
        }
        for f in SHOWN
    }
    rows: list[list[Cell]] = [
        [title, label, compared(traces, figure="all"), compared(traces, figure="rare")]
        for (_, title), panel in panels.items()
        for label, traces in panel.items()
    ]
    columns = ("f", "method", "all labels, %", "rare labels, %")
    notes = (
        '"Drops late": an answer to an older model is thrown away, which is Catalyst without its late path. "Keeps '
        'late": it counts in full in the next quorum. The paper does not say which of these its FLAME does.',
        rare.DESCRIBED,
        *((rare.SMALL,) if context.scale == "quick" else ()),
    )
    table = Table(f"Accuracy after {rare.SECONDS:,.0f} s", columns, rows, notes)
    figure = curves(panels, figure="all", over="seconds", x=SECONDS, y=ACCURACY)
    plots = (Plot(figure, caption="Accuracy on all test images over virtual seconds."),)
    claims = [
        Claim(f"{title}: Catalyst minus {label}, all labels", lead(*(finals(panel[of], "all") for of in (ours, label))))
        for (_, title), panel in panels.items()
        for ours, *others in [list(FORMS)]
        for label in others
    ]
    return Rendering((table,), plots, claims=claims)
