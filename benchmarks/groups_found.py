"""In how many seeds are the groups of clients found: by how many, how large and how unlike they are, and by attack.

python benchmarks/groups_found.py [--jobs 2]

Digits, dealt among the clients, a perceptron of 64 hidden units, three local epochs, 60 rounds.  Each cell: in how many
of the seeds the honest clients of each cluster are those of one of the groups in the end, and the accuracy of what
honest clients are served, in percent: the mean, and in brackets the least of a seed.
"""

from collections.abc import Mapping
from typing import Any

from as_study import carry_out, count, crossed, mean_and_least

from phalanx import Run, Study, Until
from phalanx.aggregators import Median
from phalanx.algorithms import ClusteredFL, FedAvg, PerCluster
from phalanx.attacks import ALIE, Attack, Gaussian, Mimic, MinMax, SignFlip
from phalanx.data import PermutedLabels, RotatedImages, SwappedLabels
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.training import Evaluation, LocalSGD

ROUNDS = 60
PAIRS = ((1, 7), (3, 5), (0, 8))
SIZES = ((2, 6), (3, 3), (3, 4), (3, 10), (4, 4), (4, 15), (6, 4))  # number of groups, clients of each
ATTACKS: Mapping[str, Attack] = {
    "signs turned": SignFlip(),
    "noise": Gaussian(),
    "ALIE": ALIE(),
    "MinMax": MinMax(),
    "copies": Mimic(0),
}


def federations() -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of the runs by the name of the row."""
    permuted = {f"all labels permuted, {g} groups of {n}": (PermutedLabels(g), g * n) for g, n in SIZES}
    others = {"images upside down": RotatedImages(), "two labels swapped": SwappedLabels(PAIRS)}
    unlike = permuted | {
        f"{name}, {groups.number} groups of {n}": (groups, groups.number * n)
        for name, groups in others.items()
        for n in (4, 10)
    }
    honest = {name: {"groups": groups, "clients": clients} for name, (groups, clients) in unlike.items()}
    return {name: {**fields, "attack": None} for name, fields in honest.items()} | {
        f"all labels permuted, 3 groups of 5, two send: {name}": {
            "groups": PermutedLabels(3), "clients": 15, "byzantine": 2, "attack": attack,
        }
        for name, attack in ATTACKS.items()
    }  # fmt: skip


STUDY = Study(
    Run(
        model=MLP((64,)), training=LocalSGD(epochs=3), until=Until(ROUNDS), evaluation=Evaluation(every=ROUNDS),
        attack=SignFlip(), byzantine=2, clients=15,
    ),
    {
        "federation": federations(),
        "server": {
            "`PerCluster(FedAvg(Median()))`": {"algorithm": PerCluster(FedAvg(Median()))},
            "`ClusteredFL()`": {"algorithm": ClusteredFL()},
        },
    },
    seeds=range(100, 120),
    name="groups_found",
)  # fmt: skip


def cell(rows: list[Row]) -> str:
    """Return a cell of the table."""
    return f"{count(rows, 'groups_found')}, {mean_and_least(rows, 'accuracy')}"


def table(results: Results) -> str:
    """Return the table."""
    return crossed(results, "federation", "server", cell)


if __name__ == "__main__":
    carry_out(__doc__, {STUDY.name: STUDY}, table, "groups_found")
