"""Table 1: accuracies with 100 clients."""

from collections.abc import Mapping, Sequence

from papers.byzantine_cfl import setting
from papers.byzantine_cfl.figure2 import CLIENTS
from phalanx.reproduce.experiment import Context, Scale
from phalanx.reproduce.results import Plot, Rendering
from phalanx.reproduce.trace import Trace
from phalanx.runs.plan import Run

TITLE = "Accuracy of federated learning and of CFL in four scenarios, taken for 100 clients"
CLAIM = (
    "CFL always achieves a higher accuracy than federated learning, most so with Byzantine and label-flipping clients."
)
MINUTES = {"quick": 12.0, "paper": 2700.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Both methods in each scenario; the runs of CFL are those of Figure 2."""
    return setting.cells(CLIENTS, scale, seed, tuple(setting.METHODS))


def render(records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Accuracies beside the published ones, who was removed, and the curves."""
    title = f"Accuracy after the last round, {CLIENTS} clients"
    tables = [
        setting.accuracies("table1", CLIENTS, records, context, title),
        setting.claims(records, context),
        setting.removals(CLIENTS, records, context),
    ]
    notes = [setting.SMALLER.format(each=setting.EACH[CLIENTS], full=600)] if context.scale == "quick" else []
    caption = "Accuracy of honest clients on the test images, by round."
    return Rendering(tables, (Plot(setting.curves_of(records, context), caption=caption),), notes)
