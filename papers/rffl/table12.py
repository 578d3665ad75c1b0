"""Table 12: maximum accuracy; its runs are those of Table 11."""

from papers.rffl.measured import Records
from papers.rffl.without_attackers import FIVE
from phalanx.reproduce.experiment import Context
from phalanx.reproduce.results import Rendering

TITLE = "Maximum accuracy with 5 participants on MNIST and CIFAR-10, three splits"
CLAIM = "With five participants, too, RFFL is comparable to FedAvg in many cases."
MINUTES = {"quick": 2.5, "paper": 900.0}
runs = FIVE.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return FIVE.accuracy("table12", records, context)
