"""Figure 5: accuracy by round on MNIST without attackers."""

from collections.abc import Mapping, Sequence

from papers.client_weighting import mnist
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "MNIST without attack: three rules with declared, truncated and ignored sizes"
CLAIM = "Ignoring sizes costs accuracy, most of all with the median; truncation is on par with the true weights."
MINUTES = {"quick": 3.0, "paper": 3.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: rules by weightings.  The paper's own size takes minutes, so both scales are the same."""
    return mnist.cells(mnist.PROGRAM, seed)


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return a table of the accuracies after round 100, and the curves."""
    table = mnist.table("Accuracy after round 100, no attack", mnist.rows(records, context, "figure5"))
    caption = "Accuracy on the 10,000 test images by round, without attack."
    plots = (Plot(curves(mnist.panels(records, [None])), caption=caption),)
    return Rendering((table,), plots, claims=mnist.unattacked("MNIST", records, ("mean", "median", mnist.STRICT)))
