"""In how many seeds are the groups of clients found: by how many, how large and how unlike they are, and by attack.

python benchmarks/groups_found.py [--seeds 20] [--first 100] [--rounds 60]

Digits, dealt among the clients, a perceptron of 64 hidden units, three local epochs.  Each cell: in how many of the
seeds the honest clients of each cluster are those of one of the groups in the end, and the accuracy of what honest
clients are served, in percent: the mean, and in brackets the least of a seed.
"""

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import ClusteredFL, FedAvg, PerCluster
from phalanx.attacks import ALIE, Attack, Gaussian, Mimic, MinMax, SignFlip
from phalanx.core import Algorithm
from phalanx.data import PermutedLabels, RotatedImages, SwappedLabels
from phalanx.models import MLP
from phalanx.training import Evaluation, LocalSGD

ALGORITHMS: Mapping[str, Algorithm] = {
    "`PerCluster(FedAvg(Median()))`": PerCluster(FedAvg(Median())),
    "`ClusteredFL()`": ClusteredFL(),
}
PAIRS = ((1, 7), (3, 5), (0, 8))
SIZES = ((2, 6), (3, 3), (3, 4), (3, 10), (4, 4), (4, 15), (6, 4))  # number of groups, clients of each
ATTACKS: Mapping[str, Attack] = {
    "signs turned": SignFlip(),
    "noise": Gaussian(),
    "ALIE": ALIE(),
    "MinMax": MinMax(),
    "copies": Mimic(0),
}


def rows() -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of the runs by the name of the row."""
    permuted = {f"all labels permuted, {g} groups of {n}": (PermutedLabels(g), g * n) for g, n in SIZES}
    others = {"images upside down": RotatedImages(), "two labels swapped": SwappedLabels(PAIRS)}
    unlike = permuted | {
        f"{name}, {groups.number} groups of {n}": (groups, groups.number * n)
        for name, groups in others.items()
        for n in (4, 10)
    }
    attacked = {"groups": PermutedLabels(3), "clients": 15, "byzantine": 2}
    return {name: {"groups": groups, "clients": clients} for name, (groups, clients) in unlike.items()} | {
        f"all labels permuted, 3 groups of 5, two send: {name}": {**attacked, "attack": attack}
        for name, attack in ATTACKS.items()
    }


def outcome(run: Run) -> tuple[bool, float]:
    """Return whether each cluster is a group in the end, and the accuracy of what clients are served, in percent."""
    assert run.groups is not None
    last = simulate(run).history[-1]
    assert last.metrics is not None
    of, bad = run.groups.of(run.clients), run.attackers()
    groups = {frozenset(i for i in range(run.clients) if of[i] == g) - bad for g in range(run.groups.number)}
    found = {frozenset(members) - bad for members in last.state["clusters"].values()} - {frozenset()}
    return found == groups, 100 * last.metrics.accuracy


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # of promises that are missing
    torch.set_num_threads(1)
    print(f"| groups | {' | '.join(ALGORITHMS)} |\n| --- |{' --- |' * len(ALGORITHMS)}", flush=True)
    for name, fields in rows().items():
        cells = list[str]()
        for algorithm in ALGORITHMS.values():
            run = Run(
                algorithm=algorithm, model=MLP((64,)), training=LocalSGD(epochs=3), **fields,
                until=Until(given.rounds), evaluation=Evaluation(every=given.rounds),
            )  # fmt: skip
            found = [outcome(replace(run, seed=seed)) for seed in range(given.first, given.first + given.seeds)]
            right, accuracy = zip(*found, strict=True)
            cells.append(f"{sum(right)} of {len(right)}, {fmean(accuracy):.1f} ({min(accuracy):.1f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
