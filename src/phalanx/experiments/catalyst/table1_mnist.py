"""Table 1, MNIST: accuracy after 750 virtual seconds."""

from phalanx.experiments.catalyst import grid, setting
from phalanx.experiments.experiment import Context, Scale
from phalanx.experiments.results import Plot, Rendering
from phalanx.runs import Run

TITLE = "MNIST after 750 seconds: no attack, random perturbation, gradient inversion; four methods in two forms"
CLAIM = "Catalyst is level with Kardam without an attack, and 5 to 10 points ahead of BASGD under attack."
MINUTES = {"quick": 30.0, "paper": 30.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Attacks by methods by forms.  The paper's own size takes an hour or two, so both scales are the same."""
    return setting.cells(setting.MNIST_FULL, seed) | setting.costs(setting.MNIST_FULL, seed)


def render(records: grid.Records, context: Context) -> Rendering:
    """The block beside the published one, and the curves."""
    title = "MNIST, 40 clients, 10 of them Byzantine under attack: accuracy after 750 s"
    table = grid.block(grid.Shown("MNIST"), records, context, title)
    caption = "Accuracy on the 10,000 test images over virtual seconds; above the authors' form, below ours."
    return Rendering((table,), (Plot(grid.drawn(records, tuple(setting.ATTACKS)), caption=caption),))
