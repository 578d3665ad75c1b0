"""Personal layers and personal models on unlike clients, with and without attackers, against one model for all.

python benchmarks/personal_models.py [--jobs 2]

Each cell: the accuracy of honest clients, each on its own distribution of labels, in percent, mean over the seeds; and
in brackets the lowest accuracy of any client in any seed.
"""

from as_study import carry_out, crossed, mean

from phalanx import Run, Study, Until
from phalanx.aggregators import Mean, Median
from phalanx.algorithms import FedAvg
from phalanx.attacks import Rescale
from phalanx.data import Dirichlet
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.training import Ditto, Evaluation, FedPer, LocalSGD
from phalanx.weighting import Ignore

ROUNDS = 30
SGD = LocalSGD(batch_size=16, lr=0.1)
MEAN, MEDIAN = (FedAvg(rule, Ignore()) for rule in (Mean(), Median()))
STUDY = Study(
    Run(
        partition=Dirichlet(0.1),
        model=MLP((64,)),
        attack=Rescale(-10.0),
        byzantine=6,
        until=Until(ROUNDS),
        evaluation=Evaluation(every=ROUNDS),
    ),
    {
        "training": {"LocalSGD": SGD, "FedPer": FedPer(("1.*",), SGD), "Ditto": Ditto(SGD, strength=0.1)},
        "federation": {
            "the mean": {"algorithm": MEAN, "attack": None},
            "the mean, 6 attackers": {"algorithm": MEAN},
            "the median, 6 attackers": {"algorithm": MEDIAN},
        },
    },
    seeds=3,
    name="personal_models",
)


def cell(rows: list[Row]) -> str:
    """Return a cell of the table."""
    lowest = min(row.value("worst_client_accuracy") or 0.0 for row in rows)
    return f"{mean(rows, 'client_accuracy')} ({100 * lowest:.1f})"


def table(results: Results) -> str:
    """Return the table."""
    return crossed(results, "training", "federation", cell)


if __name__ == "__main__":
    carry_out(__doc__, {STUDY.name: STUDY}, table, "personal_models")
