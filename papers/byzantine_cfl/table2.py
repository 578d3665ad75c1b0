"""Table 2: accuracies with 10 clients."""

from collections.abc import Mapping, Sequence

from papers.byzantine_cfl import setting
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Plot, Rendering
from phalanx.reproduce.trace import Trace
from phalanx.runs.plan import Run

TITLE = "Accuracy of federated learning and of CFL in four scenarios, taken for 10 clients"
CLAIM = "With 10 clients, too, CFL is about as accurate with adversaries as without."
MINUTES = {"quick": 6.0, "paper": 2000.0}
CLIENTS = 10


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Both methods in each scenario."""
    return setting.cells(CLIENTS, scale, seed, tuple(setting.METHODS))


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Accuracies beside the published ones, who was removed, and the curves."""
    title = f"Accuracy after the last round, {CLIENTS} clients"
    tables = [
        setting.accuracies("table2", CLIENTS, records, context, title),
        setting.claims(records, context),
        setting.removals(CLIENTS, records, context),
    ]
    notes = [setting.SMALLER.format(each=setting.EACH[CLIENTS], full=6000)] if context.scale == "quick" else []
    caption = "Accuracy of honest clients on the test images, by round."
    return Rendering(tables, (Plot(setting.curves_of(records, context), caption=caption),), notes)
