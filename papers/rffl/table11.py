"""Table 11: fairness; its runs are those of Table 12."""

from papers.rffl.measured import Records
from papers.rffl.without_attackers import FIVE
from phalanx.reproduce.experiment import Context
from phalanx.reproduce.results import Rendering

TITLE = "Fairness with 5 participants on MNIST and CIFAR-10, three splits"
CLAIM = "With five participants, too, the fairness of RFFL is far above that of FedAvg and q-FFL."
MINUTES = {"quick": 2.5, "paper": 900.0}
runs = FIVE.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return FIVE.fairness("table11", records, context)
