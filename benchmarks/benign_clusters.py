"""Attackers among clients of two groups: what BenignClusters and ClusteredFL make of them.

python benchmarks/benign_clusters.py [--seeds 0 1 2 3 4] [--rounds 50] [--algorithms BenignClusters]

Digits, 16 clients in two groups with permuted labels, a perceptron of 64 hidden units, three local epochs.  Two of the
clients attack, whichever groups they are in.  Prints the mean accuracy of honest clients after 30 rounds and after the
last one, in how many seeds no cluster at the end holds honest clients of both groups and no group is divided, and how
many attackers and honest clients are excluded or in no cluster with honest clients.
"""

import argparse
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import BenignClusters, ClusteredFL
from phalanx.attacks import ALIE, Attack, Gaussian, LabelFlip, MinMax, ReportSize, SignFlip, Together
from phalanx.core import Algorithm
from phalanx.data import PermutedLabels
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation
from phalanx.weighting import AsReported

ATTACKS: Mapping[str, Attack | None] = {
    "none": None,
    "Gaussian(std=1)": Gaussian(std=1.0),
    "SignFlip, reports 10^6": Together(SignFlip(), ReportSize()),
    "LabelFlip": LabelFlip(),
    "ALIE": ALIE(),
    "MinMax": MinMax(),
}
ALGORITHMS: Mapping[str, Algorithm] = {
    "ClusteredFL": ClusteredFL(),
    "ClusteredFL(Median)": ClusteredFL(aggregate=Median()),
    "BenignClusters": BenignClusters(),
    "BenignClusters(AsReported)": BenignClusters(regular=ClusteredFL(preprocess=AsReported())),
}
CLIENTS, ATTACKERS, FIRST = 16, 2, 30


class Outcome(NamedTuple):
    """The outcome of one run."""

    early: float  # accuracy after `FIRST` rounds
    late: float  # and after the last
    exact: bool  # the groups of honest clients are found
    isolated: int  # attackers that are in no cluster with honest clients
    lost: int  # honest clients that are in none


def outcome(algorithm: Algorithm, attack: Attack | None, seed: int, rounds: int) -> Outcome:
    """Carry out a run."""
    run = Run(
        algorithm=algorithm,
        clients=CLIENTS,
        groups=PermutedLabels(2),
        model=MLP((64,)),
        training=LocalSGD(epochs=3),
        attack=attack,
        byzantine=ATTACKERS if attack else 0,
        until=Until(steps=rounds),
        evaluation=Evaluation(every=10),
        seed=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = simulate(run).history
    scores = {record.step: record.metrics.accuracy for record in history if record.metrics}
    bad, groups = run.attackers(), PermutedLabels(2).of(CLIENTS)
    honest = [set(members) - bad for members in history[-1].state["clusters"].values() if set(members) - bad]
    known = set().union(*honest)
    whole = [{i for i in known if groups[i] == g} for g in range(2)]
    among = {i for members in history[-1].state["clusters"].values() if set(members) - bad for i in members}
    exact = sorted(map(sorted, honest)) == sorted(map(sorted, whole))
    return Outcome(scores[FIRST], scores[rounds], exact, len(bad - among), CLIENTS - len(bad) - len(known))


def row(attack: str, algorithm: str, found: Sequence[Outcome]) -> str:
    """Return a line of the table."""
    exact, n = sum(each.exact for each in found), len(found)
    isolated = f"{sum(each.isolated for each in found)} of {n * ATTACKERS}" if ATTACKS[attack] else "-"
    early, late = (f"{100 * fmean(values):.1f}" for values in zip(*[each[:2] for each in found], strict=True))
    lost = sum(each.lost for each in found)
    return f"| {attack} | {algorithm} | {early} | {late} | {exact} of {n} | {isolated} | {lost} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--algorithms", choices=ALGORITHMS, nargs="+", default=[*ALGORITHMS])
    arguments = parser.parse_args()
    print("| Attack | Algorithm | Round 30, % | Last round, % | Groups exact | Attackers isolated | Honest lost |")
    print("|---|---|---|---|---|---|---|")
    for attack in ATTACKS:
        for name in arguments.algorithms:
            found = [outcome(ALGORITHMS[name], ATTACKS[attack], seed, arguments.rounds) for seed in arguments.seeds]
            print(row(attack, name, found), flush=True)


if __name__ == "__main__":
    main()
