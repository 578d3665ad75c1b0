"""Table 2: fairness; its runs are those of Table 4."""

from papers.rffl.measured import Records
from papers.rffl.without_attackers import OTHERS
from phalanx.reproduce.experiment import Context
from phalanx.reproduce.results import Rendering

TITLE = "Fairness on CIFAR-10, MR and SST"
CLAIM = "As on MNIST, the fairness of RFFL is far above that of FedAvg and q-FFL."
MINUTES = {"quick": 3.0, "paper": 1500.0}
runs = OTHERS.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return OTHERS.fairness("table2", records, context)
