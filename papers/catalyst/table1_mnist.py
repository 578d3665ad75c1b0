"""Table 1, MNIST: accuracy after 750 virtual seconds."""

from papers.catalyst import grid, setting
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Plot, Rendering
from phalanx.runs.plan import Run

TITLE = "MNIST after 750 seconds: no attack, random perturbation, gradient inversion; four methods in two forms"
CLAIM = "Catalyst is level with Kardam without an attack, and 5 to 10 points ahead of BASGD under attack."
MINUTES = {"quick": 2.0, "paper": 35.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Attacks by methods by forms, and defences against nobody."""
    task = setting.mnist(scale, seed)
    return setting.cells(task, seed) | setting.costs(task, seed)


def render(records: grid.Records, context: Context) -> Rendering:
    """The block beside the published one, and the curves."""
    quick = context.scale == "quick"
    title = f"MNIST{', small' if quick else ''}, 40 clients, 10 of them Byzantine under attack: accuracy after 750 s"
    shown = grid.Shown("MNIST", tolerance=None if quick else grid.TOLERANCE)
    table = grid.block(shown, records, context, title, (setting.SMALL,) if quick else ())
    caption = "Accuracy on the test images over virtual seconds; above the authors' form, below ours."
    return Rendering((table,), (Plot(grid.drawn(records, tuple(setting.ATTACKS)), caption=caption),))
