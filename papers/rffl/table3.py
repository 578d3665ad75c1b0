"""Table 3: maximum accuracy; its runs are those of Table 1."""

from papers.rffl.measured import Records
from papers.rffl.without_attackers import MNIST
from phalanx.reproduce.experiment import Context
from phalanx.reproduce.results import Rendering

TITLE = "Maximum accuracy on MNIST, 10 and 20 participants, three splits"
CLAIM = "RFFL is comparable to FedAvg in many cases, and mostly outperforms standalone training."
MINUTES = {"quick": 2.5, "paper": 450.0}
runs = MNIST.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return MNIST.accuracy("table3", records, context)
