"""Tables 1 and 2: accuracies with 100 and with 10 clients."""

from collections.abc import Mapping, Sequence
from functools import partial

from papers.byzantine_cfl import setting
from phalanx.experiments.papers.experiment import Context, Exhibit, Scale
from phalanx.experiments.papers.rendering import Plot, Rendering
from phalanx.experiments.trace import Trace
from phalanx.runs.plan import Run

SHOWN = "Accuracy of federated learning and of CFL in four scenarios, taken for {} clients"


def runs(clients: int, scale: Scale, seed: int) -> dict[str, Run]:
    """Return the runs: both methods in each scenario; with 100 clients those of CFL are the runs of Figure 2."""
    return setting.cells(clients, scale, seed, tuple(setting.METHODS))


def render(entry: str, clients: int, full: int, records: Mapping[str, Sequence[Trace]], context: Context) -> Rendering:
    """Return accuracies with the published ones, the excluded clients, and the curves.

    Args:
        entry: of the published numbers.
        clients: their number.
        full: examples of a client at the paper's scale.
        records: by cell.
        context: of the experiment.
    """
    title = f"Accuracy after the last round, {clients} clients"
    tables = [
        setting.accuracies(entry, clients, records, context, title),
        setting.removals(clients, records, context),
    ]
    notes = [setting.SMALLER.format(each=setting.EACH[clients], full=full)] if context.scale == "quick" else []
    caption = "Accuracy of honest clients on the test images, by round."
    return Rendering(
        tables,
        (Plot(setting.curves_of(records, context), caption=caption),),
        notes,
        setting.claims(entry, records, context),
    )


EXPERIMENTS = {
    "table1": Exhibit(
        SHOWN.format(100),
        "CFL always achieves a higher accuracy than federated learning, most so with Byzantine and label-flipping "
        "clients.",
        {"quick": 12.0, "paper": 790.0}, partial(runs, 100), partial(render, "table1", 100, 600),
    ),
    "table2": Exhibit(
        SHOWN.format(10),
        "With 10 clients, too, CFL is about as accurate with adversaries as without.",
        {"quick": 6.0, "paper": 650.0}, partial(runs, 10), partial(render, "table2", 10, 6000),
    ),
}  # fmt: skip
