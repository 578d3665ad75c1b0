"""Useful caps by `phalanx weights --frontier` against trained models, for consortia of other sizes than hospitals'.

python benchmarks/consortium_sizes.py [--seeds 0 1] [--rows NAME ...]

Digits are shared out by size, each site with its own mix of classes by a Dirichlet distribution of concentration 1, or
with the same mix; another seed shares them out otherwise.  A perceptron of 32 hidden units trains for 20 rounds with
the lowest cap, the best useful cap, the first one above the band, and the highest.  Each site in turn sends -1 or
-1,000 times its update and reports a billion examples.  Accuracy in percent: of the mean by reported
sizes, halfway between that and a constant answer (10), and of each cap without a liar and with the worst site and lie.
"""

import argparse
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import torch
from consortium import FALSE, LIES, accuracy, attacked

from phalanx import Run, Until
from phalanx.aggregators import Mean, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import Rescale, Together
from phalanx.data import Dataset, Digits, InMemory, Natural
from phalanx.models import MLP
from phalanx.promises.frontier import frontier
from phalanx.training import Evaluation, LocalSGD
from phalanx.weighting import AsReported, Ignore, Truncate

LOGNORMAL = np.random.default_rng(0).lognormal(0, 1.2, 20).tolist()
ROWS = {  # relative sizes, and whether all have the same mix of classes
    "8 equal": ([1] * 8, False),
    "5 equal": ([1] * 5, False),
    "60 % and 7 equal": ([10.5] + [1] * 7, False),
    "60 % and 7 equal, same mix": ([10.5] + [1] * 7, True),
    "20 log-normal": (LOGNORMAL, False),
    "20 log-normal, same mix": (LOGNORMAL, True),
    "two of 30 % and 8 equal": ([6, 6] + [1] * 8, False),
    "two of 30 % and 8 equal, same mix": ([6, 6] + [1] * 8, True),
    "12 falling by 0.7, same mix": ([0.7**k for k in range(12)], True),
    "45 % and 11 equal, same mix": ([9] + [1] * 11, True),
}


def shared_out(train: Dataset, relative: list[float], seed: int, *, alike: bool) -> Dataset:
    """Return the training examples with the site of each; the smallest sites are served first."""
    rng = np.random.default_rng(seed)
    y, owners = train.y.numpy(), np.zeros(len(train.y), int)
    sizes = np.maximum(5, (len(y) * np.array(relative) / sum(relative)).astype(int))
    left = [rng.permutation(np.flatnonzero(y == k)).tolist() for k in range(10)]
    for site in np.argsort(sizes, kind="stable")[:-1]:
        mix = np.full(10, 0.1) if alike else rng.dirichlet([1] * 10)
        for _ in range(sizes[site]):
            chances = mix * [len(pool) > 0 for pool in left] + 1e-9 * np.array([len(pool) for pool in left])
            owners[left[rng.choice(10, p=chances / chances.sum())].pop()] = site
    for pool in left:
        owners[pool] = np.argsort(sizes, kind="stable")[-1]
    return replace(train, owners=torch.from_numpy(owners))


def row(name: str, seed: int) -> str:
    """Return a row of the table."""
    train, test = Digits().load(None)
    relative, alike = ROWS[name]
    held, K = shared_out(train, relative, seed, alike=alike), len(relative)
    assert held.owners is not None
    counts = [torch.bincount(held.y[held.owners == site], minlength=10).tolist() for site in range(K)]
    found = frontier([sum(each) for each in counts], counts)
    base = Run(
        data=InMemory(held, test, name), clients=K, partition=Natural(), model=MLP((32,)), until=Until(20), seed=seed,
        training=LocalSGD(lr=0.1, batch_size=16, engine="compiled"), evaluation=Evaluation(every=20),
        algorithm=FedAvg(Mean(), AsReported()),
    )  # fmt: skip
    mean = accuracy(base)
    tried = [found.points[0], *(p for p in [found.best] if p), found.points[-1]]
    tried += [p for p in found.points if found.useful and p.cap > found.useful[-1].cap][:1]
    cells = []
    for _, point in sorted({point.cap: point for point in tried}.items()):
        weigh = Ignore() if point.cap == Fraction(1, K) else Truncate(1 / K, float(point.cap))
        run = replace(base, algorithm=FedAvg(TrimmedMean(float(point.cap)), weigh))
        lies = [Together(FALSE, Rescale(lie)) for lie in LIES]
        worst = min(accuracy(attacked(run, site, lie, held, test)) for site in range(K) for lie in lies)
        mark = "useful" if point in found.useful else "not useful"
        cells.append(f"{100 * float(point.cap):.3g} % ({mark}): {accuracy(run):.1f}, {worst:.1f}")
    return f"| {name} | {seed} | {mean:.1f} | {(10 + mean) / 2:.1f} | {'; '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=[*ROWS])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of promises that are missing
    torch.set_num_threads(1)  # sums of several threads round otherwise
    print("| sizes | seed | mean | halfway | cap: clean, worst site |\n| --- | --- | --- | --- | --- |", flush=True)
    for name in options.rows:
        for seed in options.seeds:
            print(row(name, seed), flush=True)


if __name__ == "__main__":
    main()
