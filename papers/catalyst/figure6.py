"""Figure 6: perplexity on WikiText-2 over time, without an attack and under gradient inversion."""

from papers.catalyst import grid, setting, table1_wikitext2
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Rendering
from phalanx.runs.plan import Run

TITLE = "WikiText-2 over virtual seconds, without an attack and under gradient inversion"
CLAIM = "All do well without an attack; under attack BASGD and Catalyst remain, in this order from behind."
MINUTES = {"quick": 4.0, "paper": 600.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Those of Table 1."""
    return setting.cells(table1_wikitext2.task(scale, seed), seed, grid.SHOWN_ATTACKS)


def render(records: grid.Records, context: Context) -> Rendering:
    """The curves, and who is how far."""
    quick = context.scale == "quick"
    shown, notes = grid.Shown("WikiText-2", "loss"), (table1_wikitext2.QUICK if quick else table1_wikitext2.PAPER,)
    return grid.over_time(shown, records, context, 750.0 if quick else 600.0, notes)
