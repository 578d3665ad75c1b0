"""Figure 6: accuracy by round on MNIST under attack."""

from collections.abc import Mapping, Sequence

from papers.client_weighting import mnist
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "MNIST under label shift and model negation, by 1 attacker and by 10 % of the clients"
CLAIM = "Declared sizes are devastating under every rule; truncation with the median or the trimmed mean stays stable."
MINUTES = {"quick": 12.0, "paper": 12.0}
STABLE = 70.0  # percent, ours: the paper gives no limit


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: attacks by rules by weightings.  The paper's size takes minutes, so both scales are equal."""
    return {cell: run for attack in mnist.ATTACKS for cell, run in mnist.cells(mnist.PROGRAM, seed, attack).items()}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return a table of the accuracies after round 100, and the curves."""
    body = [row for attack in mnist.ATTACKS for row in mnist.rows(records, context, "figure6", attack)]
    notes = (
        "The single attacker declares 10 million examples, each of the 10 % (7 of 75 clients) 1 million. As declared, "
        "they hold more than 99 % of the weight; truncated, 6 % and 44 %; ignored, 1 % and 9 %.",
        "A mean tolerates no share of the weight, a trimmed mean with beta = 10 % a tenth, a median less than half. So "
        "the mean can do worse with truncated sizes than without any, as in two of these four attacks, and nothing is "
        "proven about the trimmed mean with alpha* = 50 %.",
        "The published trimmed mean is the program's form. It tolerates model negation by 10 % because its attackers "
        "all send the same numbers: see the experiment `ties`.",
    )
    table = mnist.table("Accuracy after round 100, under attack", body, notes)
    caption = "Accuracy on the 10,000 test images by round, under attack."
    claims = mnist.attacked("MNIST", records, mnist.ATTACKS, ("mean", "median", mnist.STRICT), STABLE)
    plot = Plot(curves(mnist.panels(records, list(mnist.ATTACKS))), caption=caption)
    return Rendering((table,), (plot,), claims=claims)
