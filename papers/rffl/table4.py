"""Table 4: maximum accuracy; its runs are those of Table 2."""

from papers.rffl.measured import Records
from papers.rffl.without_attackers import OTHERS
from phalanx.reproduce.experiment import Context
from phalanx.reproduce.results import Rendering

TITLE = "Maximum accuracy on CIFAR-10, MR and SST"
CLAIM = "RFFL is comparable to FedAvg in many cases, and mostly outperforms standalone training."
MINUTES = {"quick": 3.0, "paper": 1500.0}
runs = OTHERS.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return OTHERS.accuracy("table4", records, context)
