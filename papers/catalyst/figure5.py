"""Figure 5: accuracy on CIFAR-10 over time, without an attack and under gradient inversion."""

from papers.catalyst import grid, setting, table1_cifar10
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Rendering
from phalanx.runs.plan import Run

TITLE = "CIFAR-10 over virtual seconds, without an attack and under gradient inversion"
CLAIM = "Without an attack Kardam and Catalyst lead; under attack only BASGD and Catalyst hold, Catalyst far ahead."
MINUTES = {"quick": 5.0, "paper": 4000.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Those of Table 1."""
    return setting.cells(table1_cifar10.task(scale, seed), seed, grid.SHOWN_ATTACKS)


def render(records: grid.Records, context: Context) -> Rendering:
    """The curves, and who is how far."""
    quick = context.scale == "quick"
    notes = (table1_cifar10.QUICK if quick else table1_cifar10.PAPER,)
    return grid.over_time(grid.Shown("CIFAR-10"), records, context, 750.0 if quick else 7000.0, notes)
