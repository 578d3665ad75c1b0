"""Table 11: fairness; its runs are those of Table 12."""

from phalanx.experiments.experiment import Context
from phalanx.experiments.results import Rendering
from phalanx.experiments.rffl.measured import Records
from phalanx.experiments.rffl.without_attackers import FIVE

TITLE = "Fairness with 5 participants on MNIST and CIFAR-10, three splits"
CLAIM = "With five participants, too, the fairness of RFFL is far above that of FedAvg and q-FFL."
MINUTES = {"quick": 2.5, "paper": 900.0}
runs = FIVE.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return FIVE.fairness("table11", records, context)
