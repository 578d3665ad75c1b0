"""Figure 4: accuracy by round on Shakespeare under model negation."""

from collections.abc import Mapping, Sequence

from papers.client_weighting import mnist, shakespeare
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import Axis, curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "Shakespeare under model negation, by 1 attacker and by 10 % of those who take part in each round"
CLAIM = "Declared sizes are devastating under every rule; truncation with the median or the trimmed mean stays stable."
MINUTES = {"quick": 18.0, "paper": 1200.0}
STABLE = 30.0  # percent, ours: the paper gives no limit; who always names the commonest character has 18


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: attacks by rules by weightings."""
    return {cell: run for attack in shakespeare.ATTACKS for cell, run in shakespeare.cells(scale, seed, attack).items()}


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return a table of the accuracies at the end, and the curves."""
    rounds = shakespeare.BASES[context.scale].until.steps
    rules, weightings = shakespeare.RULES, shakespeare.WEIGHTS
    body = [
        row
        for attack in shakespeare.ATTACKS
        for row in mnist.rows(records, context, "figure4", attack, rules=rules, weightings=weightings)
    ]
    notes = [
        "The single attacker declares 10 million examples, and takes part in a round as often as others do. Of the "
        "10 %, who declare 1 million each, exactly one takes part in each round.",
    ]
    notes += [shakespeare.COUNTED, shakespeare.PROPER, *([shakespeare.SMALLER] if context.scale == "quick" else [])]
    table = mnist.table(f"Accuracy after round {rounds}, model negation", body, notes, weightings)
    caption = "Share of the next characters predicted on held-out speeches, by round, under model negation."
    accuracy = Axis("test accuracy", 0.0, 0.6, shares=True)
    drawn = curves(mnist.panels(records, list(shakespeare.ATTACKS), rules, weightings), y=accuracy)
    claims = mnist.attacked("Shakespeare", records, shakespeare.ATTACKS, rules, STABLE)
    return Rendering((table,), (Plot(drawn, caption=caption),), claims=claims)
