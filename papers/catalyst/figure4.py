"""Figure 4: accuracy on MNIST over time, without an attack and under gradient inversion."""

from dataclasses import replace

from papers.catalyst import grid, setting
from phalanx.core import Until
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Rendering
from phalanx.runs.plan import Run

TITLE = "MNIST over virtual seconds, without an attack and under gradient inversion"
CLAIM = "Under attack Catalyst keeps its speed, BASGD follows, Kardam fails after a while, FedAsync learns nothing."
MINUTES = {"quick": 1.2, "paper": 80.0}
LONG = 3000.0  # seconds that the paper's figure shows


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Quick: the runs of Table 1, 750 s; paper: the same for 3,000 s."""
    task = setting.mnist(scale, seed)
    if scale == "paper":
        task = replace(task, run=replace(task.run, until=Until(seconds=LONG)))
    return setting.cells(task, seed, grid.SHOWN_ATTACKS)


def render(records: grid.Records, context: Context) -> Rendering:
    """The curves, and who is how far."""
    if context.scale == "paper":
        return grid.over_time(grid.Shown("MNIST"), records, context, LONG)
    return grid.over_time(grid.Shown("MNIST"), records, context, 750.0, (setting.SMALL,))
