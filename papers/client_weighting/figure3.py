"""Figure 3: accuracy by round on Shakespeare without attackers."""

from collections.abc import Mapping, Sequence

from papers.client_weighting import mnist, shakespeare
from phalanx.experiments.papers.experiment import Context, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.shown.plotting import Axis, curves
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

TITLE = "Shakespeare without attack: three rules with declared, truncated and ignored sizes"
CLAIM = "Ignoring sizes costs accuracy, most of all with the median; truncation is on par with the true weights."
MINUTES = {"quick": 9.0, "paper": 630.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: rules by weightings."""
    return shakespeare.cells(scale, seed)


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return a table of the accuracies at the end, and the curves."""
    rounds = shakespeare.BASES[context.scale].until.steps
    notes = (shakespeare.COUNTED, shakespeare.PROPER, *((shakespeare.SMALLER,) if context.scale == "quick" else ()))
    body = mnist.rows(records, context, "figure3", rules=shakespeare.RULES, weightings=shakespeare.WEIGHTS)
    table = mnist.table(f"Accuracy after round {rounds}, no attack", body, notes, shakespeare.WEIGHTS)
    caption = "Share of the next characters predicted on held-out speeches, by round, without attack."
    accuracy = Axis("test accuracy", 0.0, 0.6, shares=True)
    drawn = curves(mnist.panels(records, [None], shakespeare.RULES, shakespeare.WEIGHTS), y=accuracy)
    claims = mnist.unattacked("Shakespeare", records, list(shakespeare.RULES))
    return Rendering((table,), (Plot(drawn, caption=caption),), claims=claims)
