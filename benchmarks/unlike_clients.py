"""Server optimisers and corrected training against FedAvg, where clients are unlike.

python benchmarks/unlike_clients.py [--jobs 2]

Digits, 20 clients by Dirichlet(0.1), half of them in each round, two epochs of minibatches of 16, 40 rounds.  Each
algorithm has nine settings: local learning rates alone, or three of them with three values of its own parameter.  The
one that is best on examples held out of training, with another seed, is run.
"""

from dataclasses import replace
from typing import Any

from as_study import carry_out, markdown

from phalanx import Run, Study, Until
from phalanx.algorithms import SCAFFOLD, FedAdam, FedAvg, FedAvgM, FedDyn, FedNova, FedYogi
from phalanx.data import Dirichlet
from phalanx.experiments.grid import Derived
from phalanx.experiments.results import Results
from phalanx.experiments.tuning import Tuning
from phalanx.training import Evaluation, LocalSGD

PLAIN, ROUNDS = "FedAvg", 40
RATES = {"training.lr": (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)}


def with_own(field: str, *values: float) -> dict[str, Any]:
    """Return the values of an algorithm's own parameter, and of local rates."""
    return {"training.lr": (0.03, 0.1, 0.3), f"algorithm.{field}": values}


STUDY = Study(
    Run(
        clients=20,
        partition=Dirichlet(0.1),
        participation=0.5,
        training=LocalSGD(epochs=2, batch_size=16),
        until=Until(ROUNDS),
        evaluation=Evaluation(every=10),
    ),
    {
        "method": {
            PLAIN: {"algorithm": FedAvg()},
            "FedAvgM": {"algorithm": FedAvgM(FedAvg())},
            "FedAdam": {"algorithm": FedAdam(FedAvg())},
            "FedYogi": {"algorithm": FedYogi(FedAvg())},
            "SCAFFOLD": {"algorithm": SCAFFOLD()},
            "FedDyn": {"algorithm": FedDyn()},
            "FedNova": Derived(lambda run: {"algorithm": FedNova(run["training"])}),
        }
    },
    seeds=5,
    name="unlike_clients",
    tuning=Tuning(
        "method",
        {
            "FedAvgM": with_own("server_lr", 0.1, 0.3, 1.0),
            "FedAdam": with_own("server_lr", 0.01, 0.03, 0.1),
            "FedYogi": with_own("server_lr", 0.01, 0.03, 0.1),
            "FedDyn": with_own("alpha", 0.01, 0.1, 1.0),
            "all": RATES,
        },
        settings=9,
        held_out=0.2,
    ),
)


def tables(results: Results) -> str:
    """Return the table, with what was chosen below it."""
    minus = {
        t.second if t.first == PLAIN else t.first: t for t in results.tests("method") if PLAIN in (t.first, t.second)
    }
    rows = []
    for (method,), runs in results.cells():
        against = ("-", "-")
        if test := minus.get(method):
            d = test.difference
            gain = replace(d, mean=-d.mean, low=-d.high, high=-d.low) if test.first == PLAIN else d
            against = (gain.text(100.0), f"{test.adjusted:.2g}")
        rows.append([method, results.estimate(runs).text(100.0), *against])
    head = ("algorithm", f"{ROUNDS} rounds, %", f"minus {PLAIN}, points", "p, by Holm for all pairs")
    return "\n".join([markdown(head, rows), "", *results.notes])


if __name__ == "__main__":
    carry_out(__doc__, {STUDY.name: STUDY}, tables, "unlike_clients")
