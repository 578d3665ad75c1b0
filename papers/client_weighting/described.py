"""Figures 5 and 6 on the partition that the paper describes."""

from collections.abc import Mapping, Sequence

from papers.client_weighting import mnist
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "MNIST with the paper's partition instead of its program's: 100 clients, sizes in proportion to lognormal draws"
CLAIM = "None: the paper describes this partition, and its program takes another. Do the claims depend on it?"
MINUTES = {"quick": 13.0, "paper": 13.0}
ATTACKS = (None, *mnist.ATTACKS)


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: attacks, and none, by rules by weightings.  Each seed draws its own sizes."""
    return {cell: run for attack in ATTACKS for cell, run in mnist.cells(mnist.DESCRIBED, seed, attack).items()}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return tables of the accuracies after round 100, and the curves.  There are no published numbers."""
    clean = mnist.table("Accuracy after round 100, no attack", mnist.rows(records, context, ""))
    attacked = [row for attack in mnist.ATTACKS for row in mnist.rows(records, context, "", attack)]
    notes = ("Sizes are drawn again for each seed, so the deviation over seeds is mostly that of the partition.",)
    tables = (clean, mnist.table("Accuracy after round 100, under attack", attacked, notes))
    caption = "Accuracy on the 10,000 test images by round, on the partition that the paper describes."
    return Rendering(tables, (Plot(curves(mnist.panels(records, ATTACKS)), caption=caption),))
