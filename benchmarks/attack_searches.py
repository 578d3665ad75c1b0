"""Compare the searches of ALIE and of inner product manipulation with the strongest attack.

python benchmarks/attack_searches.py [--cases 2] [--points 10001] [--rules Krum]

Each case has 14 honest and 4 forged updates of 30 entries, drawn at random, with a spread that differs from case to
case.  The best strength of all is found by brute force: evenly spaced ones between -20 and 20.  Prints for each rule
the damage of each search as a share of that, in percent: the least of all cases, and the mean.  More than 100 is
possible, since a search may find a peak between two points, or one beyond 20.
"""

import argparse
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from phalanx.aggregators import (
    MDA,
    Aggregator,
    Bulyan,
    CenteredClipping,
    FLAMEFilter,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NearestNeighborMixing,
    TrimmedMean,
)
from phalanx.attacks import ALIE, Colluding, InnerProduct, Knowledge, Update
from phalanx.attacks.search import damage

HONEST, BYZANTINE, D, LARGEST = 14, 4, 30, 20.0
RULES: Mapping[str, Aggregator] = {
    "Krum": Krum(4),
    "MultiKrum": MultiKrum(4),
    "Bulyan": Bulyan(3),
    "Median": Median(),
    "TrimmedMean": TrimmedMean(0.25),
    "GeometricMedian": GeometricMedian(),
    "CenteredClipping": CenteredClipping(1.0),
    "MDA": MDA(4),
    "NNM >> Median": NearestNeighborMixing(4) >> Median(),
    "FLAMEFilter": FLAMEFilter(),
}


def known(seed: int, rule: Aggregator) -> Knowledge:
    """Return what attackers see in one case."""
    rng = torch.Generator().manual_seed(seed)
    mu = torch.randn(D, generator=rng)
    spread = 0.5 * (1 + seed % 4) * torch.rand(D, generator=rng)
    rows = mu + spread * torch.randn(HONEST + BYZANTINE, D, generator=rng)
    ids = range(HONEST, HONEST + BYZANTINE)
    colluders = tuple(Update(i, 0, torch.zeros(D), rows[i]) for i in ids)
    return Knowledge(rows[:HONEST], frozenset(ids), tuple(range(HONEST)), colluders, rule, last=torch.zeros(D))


def shares(knowledge: Knowledge, searches: Sequence[Colluding], points: int) -> list[float]:
    """Return the damage of each search as a share of that of the strongest attack of its kind."""
    mu = knowledge.honest.mean(0)
    direction = knowledge.honest.std(0, correction=0) if isinstance(searches[0], ALIE) else -mu
    origin = mu if isinstance(searches[0], ALIE) else torch.zeros_like(mu)
    tried = torch.linspace(-LARGEST, LARGEST, points).tolist()
    best = max(damage(knowledge, origin + x * direction) for x in tried)
    return [damage(knowledge, search.collude(knowledge)) / best for search in searches]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2)
    parser.add_argument("--points", type=int, default=10_001)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    options = parser.parse_args()
    print("| rule | ALIE search | ALIE grid | inner product search | inner product grid |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.rules:
        cells = list[str]()
        for searches in ((ALIE("search"), ALIE("grid")), (InnerProduct("search"), InnerProduct("grid"))):
            found = [shares(known(seed, RULES[name]), searches, options.points) for seed in range(options.cases)]
            cells += [f"{100 * min(column):.1f}, {100 * fmean(column):.1f}" for column in zip(*found, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
