"""Table 2: fairness; its runs are those of Table 4."""

from phalanx.experiments.experiment import Context
from phalanx.experiments.results import Rendering
from phalanx.experiments.rffl.measured import Records
from phalanx.experiments.rffl.without_attackers import OTHERS

TITLE = "Fairness on CIFAR-10, MR and SST"
CLAIM = "As on MNIST, the fairness of RFFL is far above that of FedAvg and q-FFL."
MINUTES = {"quick": 3.0, "paper": 1500.0}
runs = OTHERS.runs


def render(records: Records, context: Context) -> Rendering:
    """The table, with gains over standalone."""
    return OTHERS.fairness("table2", records, context)
