"""Table 10: the hyper-parameters, with those of the quick scale."""

from papers.rffl.measured import Records
from papers.rffl.setting import SIZES
from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import SCALES, Context, Scale
from phalanx.experiments.papers.rendering import Rendering
from phalanx.runs.plan import Run

TITLE = "Hyper-parameters of all experiments"
CLAIM = (
    "MNIST: batches of 16, learning rate 0.15 (0.25 with more than 5 participants), 60 rounds; CIFAR-10: 64, 0.015 "
    "(0.025), 200; MR and SST: 128, 0.0001, 100. All: decay 0.977, one local epoch."
)
MINUTES = {"quick": 0.0, "paper": 0.0}


def runs(scale: Scale, seed: int) -> dict[str, Run]:
    """Return no runs: nothing is trained."""
    return {}


def render(records: Records, context: Context) -> Rendering:
    """Return the hyper-parameters of the runs on both scales."""
    rows = []
    for scale in SCALES:
        for (data, of), size in SIZES.items():
            if of == scale:
                rates = [size.learning_rate(clients).start for clients in (5, 10)]
                numbers = (size.batch_size, *(f"{rate:g}" for rate in rates), f"{size.decay:g}", size.rounds, size.each)
                rows.append([scale, data, type(size.model).__name__, *map(str, numbers), f"{size.gamma:g}"])
    columns = (
        "scale", "data", "model", "batch", "lr, 5 participants", "lr, more", "decay", "rounds", "examples each", "Gamma"
    )  # fmt: skip
    notes = (
        "Gamma, the largest norm of an update where it is fixed, is that of the authors' program; the paper has none.",
        "Models, and examples of CIFAR-10, are the program's, too. Texts: ours, for SGD without momentum; the paper's "
        "0.0001 belongs to Adam.",
    )
    return Rendering((Table("What the runs take", columns, rows, notes),))
