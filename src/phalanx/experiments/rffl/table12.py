"""Table 12: maximum accuracy; its runs are those of Table 11."""

from phalanx.experiments.experiment import Context
from phalanx.experiments.results import Rendering
from phalanx.experiments.rffl.measured import Records
from phalanx.experiments.rffl.without_attackers import FIVE

TITLE = "Maximum accuracy with 5 participants on MNIST and CIFAR-10, three splits"
CLAIM = "With five participants, too, RFFL is comparable to FedAvg in many cases."
MINUTES = {"quick": 2.5, "paper": 900.0}
runs = FIVE.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return FIVE.accuracy("table12", records, context)
