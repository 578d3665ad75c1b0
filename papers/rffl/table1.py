"""Table 1: fairness; its runs are those of Table 3."""

from papers.rffl.measured import Records
from papers.rffl.without_attackers import MNIST
from phalanx.reproduce.experiment import Context
from phalanx.reproduce.results import Rendering

TITLE = "Fairness of RFFL, FedAvg and q-FFL on MNIST, 10 and 20 participants, three splits"
CLAIM = "RFFL rewards participants by what they contribute: its fairness is high, some of it near the limit of 100 %."
MINUTES = {"quick": 2.5, "paper": 450.0}
runs = MNIST.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return MNIST.fairness("table1", records, context)
