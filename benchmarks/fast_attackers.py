"""Fast attackers who report false sizes, with truncation over all clients or for each set: the table of weighting.md.

python benchmarks/fast_attackers.py [--seeds 5] [--rows NAME ...]

20 equal clients on digits; 5 flip the signs of their updates, report a million examples, and answer at once.  Accuracy
in percent after 330 arrivals, 450 with quorums of 15, and with `FedBuff` after 30 seconds, where attackers answer after
0.2 and the others after 1 second; each seed, then the mean and its 95 % interval.
"""

import argparse
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, stdev

import torch
from scipy.stats import t as student

from phalanx import InfeasibleError, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import Catalyst, FedAvg, FedBuff, Quorum
from phalanx.attacks import Attack, Flood, ReportSize, SignFlip, Together
from phalanx.core import Algorithm
from phalanx.simulation import Lognormal
from phalanx.weighting import Ignore, Preprocess, Truncate

SIZES: Mapping[str, Preprocess] = {
    "population": Truncate.as_published(0.25, 0.35),
    "subset": Truncate(0.25, 0.35, scope="subset"),
    "subset, alpha_star=0.49": Truncate(0.25, 0.49, scope="subset"),
    "Ignore": Ignore(),
}


def attack(seconds: float) -> Attack:
    """Return the attack of those who answer after some seconds."""
    return Together(ReportSize(1_000_000), Together(SignFlip(), Flood(seconds)))


def rows(sizes: Preprocess) -> dict[str, Run]:
    """Return the runs with some use of reported sizes by name."""
    run = Run(clients=20, byzantine=5, attack=attack(0.01), latency=Lognormal())

    def arrivals(algorithm: Algorithm, count: int) -> Run:
        return replace(run, algorithm=algorithm, until=Until(count))

    def seconds(algorithm: Algorithm) -> Run:
        return Run(algorithm=algorithm, clients=20, byzantine=5, attack=attack(0.2), until=Until(seconds=30.0))

    rounds, median = FedAvg(aggregate=Median(), preprocess=sizes), Median()
    return {
        "Catalyst(5)": arrivals(Catalyst(5, preprocess=sizes), 330),
        "Catalyst(5, quorum=15)": arrivals(Catalyst(5, quorum=15, preprocess=sizes), 450),
        "Quorum(FedAvg(Median()), 11)": arrivals(Quorum(rounds, k=11), 330),
        "Quorum(FedAvg(Median()), 15)": arrivals(Quorum(rounds, k=15), 450),
        "FedBuff(11, Median())": seconds(FedBuff(11, aggregate=median, preprocess=sizes)),
        "FedBuff(15, Median(), distinct)": seconds(FedBuff(15, aggregate=median, preprocess=sizes, distinct=True)),
    }


def cell(run: Run, seeds: int) -> str:
    """Return the accuracies of some seeds, their mean and interval; the word "refused" where the run cannot begin."""
    try:
        found = [100 * _final(simulate(replace(run, seed=seed)).summary.final.accuracy) for seed in range(seeds)]
    except InfeasibleError:
        return "refused"
    each = ", ".join(f"{accuracy:.1f}" for accuracy in found)
    half = float(student.ppf(0.975, seeds - 1)) * stdev(found) / seeds**0.5 if seeds > 1 else 0.0
    return f"{each}: {fmean(found):.1f} ± {half:.1f}"


def _final(accuracy: float | None) -> float:
    assert accuracy is not None, "these runs have a test set"
    return accuracy


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", nargs="*", choices=rows(Ignore()), default=[*rows(Ignore())])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of missing guarantees
    torch.set_num_threads(1)  # sums of several threads round otherwise
    print(f"| | {' | '.join(SIZES)} |\n|{' --- |' * (len(SIZES) + 1)}", flush=True)
    for name in options.rows:
        print(
            f"| {name} | {' | '.join(cell(rows(sizes)[name], options.seeds) for sizes in SIZES.values())} |", flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
