"""Attackers among clients of two groups: what BenignClusters and ClusteredFL make of them.

python benchmarks/benign_clusters.py [--jobs 2]

Digits, 16 clients in two groups with permuted labels, a perceptron of 64 hidden units, three local epochs.  Two of the
clients attack, whichever groups they are in.  Prints the mean accuracy of honest clients after 30 rounds and after the
last one, in how many seeds the clusters of honest clients at the end are the groups, and how many attackers and honest
clients are excluded or in no cluster with honest clients.
"""

from collections.abc import Iterator
from statistics import fmean

from as_study import carry_out, count, markdown, mean

from phalanx import Run, Study, Until
from phalanx.aggregators import Median
from phalanx.algorithms import BenignClusters, ClusteredFL
from phalanx.attacks import ALIE, Gaussian, LabelFlip, MinMax, ReportSize, SignFlip, Together
from phalanx.data import PermutedLabels
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.training import Evaluation, LocalSGD
from phalanx.weighting import AsReported

CLIENTS, ATTACKERS, FIRST, ROUNDS = 16, 2, 30, 50
HEAD = ("Attack", "Algorithm", "Round 30, %", "Last round, %", "Groups exact", "Attackers isolated", "Honest lost")
STUDY = Study(
    Run(
        clients=CLIENTS,
        groups=PermutedLabels(2),
        model=MLP((64,)),
        training=LocalSGD(epochs=3),
        attack=SignFlip(),
        byzantine=ATTACKERS,
        until=Until(ROUNDS),
        evaluation=Evaluation(every=10),
    ),
    {
        "attack": {
            "none": None,
            "Gaussian(std=1)": Gaussian(std=1.0),
            "SignFlip, reports 10^6": Together(SignFlip(), ReportSize()),
            "LabelFlip": LabelFlip(),
            "ALIE": ALIE(),
            "MinMax": MinMax(),
        },
        "algorithm": {
            "ClusteredFL": ClusteredFL(),
            "ClusteredFL(Median)": ClusteredFL(aggregate=Median()),
            "BenignClusters": BenignClusters(),
            "BenignClusters(AsReported)": BenignClusters(regular=ClusteredFL(preprocess=AsReported())),
        },
    },
    seeds=5,
    name="benign_clusters",
)


def together(row: Row) -> tuple[set[int], set[int]]:
    """Return the honest clients that are in some cluster, and the attackers in clusters with honest clients."""
    bad = {*row.trace.byzantine}
    shared = {i for members in row.trace.clusters if {*members} - bad for i in members}
    return shared - bad, shared & bad


def lines(results: Results) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for (attack, algorithm), rows in results.cells():
        early = fmean(row.trace.curves["accuracy"][row.trace.curves["step"].index(FIRST)] or 0.0 for row in rows)
        apart = sum(len(row.trace.byzantine) - len(together(row)[1]) for row in rows)
        attackers = sum(len(row.trace.byzantine) for row in rows)
        lost = sum(CLIENTS - len(row.trace.byzantine) - len(together(row)[0]) for row in rows)
        isolated = f"{apart} of {attackers}" if attackers else "-"
        accuracy = f"{100 * early:.1f}", mean(rows, "accuracy")
        yield [attack, algorithm, *accuracy, count(rows, "groups_found"), isolated, str(lost)]


if __name__ == "__main__":
    carry_out(__doc__, {STUDY.name: STUDY}, lambda found: markdown(HEAD, lines(found)), "benign_clusters")
