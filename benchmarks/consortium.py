"""Eight hospitals of very unequal size, with trained models: the tables of docs/weighting.md and its measurements.

python benchmarks/consortium.py [--seeds 2] [--rows NAME ...] [--data DIR]

Sizes and class counts are those of examples/hospitals.csv (KatherLab/MediSwarm).  The images are MNIST: digits 0 to 3
are class 0, 4 to 6 class 1, 7 to 9 class 2; the tests have the mix of classes of all hospitals together.  A perceptron
of 32 hidden units trains for 10 rounds.  Accuracy in percent, the mean over the seeds: without an attack, and with each
hospital in turn as the only liar, which sends -1 or -1,000 times its update; the worse one of the two.  In rows with a
false size it also reports a billion examples.
"""

import argparse
import csv
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Mean, Median, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import Attack, ReportSize, Rescale, Together
from phalanx.data import MNIST, Dataset, InMemory, Natural
from phalanx.models import MLP
from phalanx.training import Evaluation, LocalSGD
from phalanx.weighting import AsReported, Ignore, Truncate

TABLE = Path(__file__).parents[1] / "examples" / "hospitals.csv"
CLASS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])  # of each digit
LIES = (-1.0, -1000.0)
FALSE = ReportSize(10**9)


def hospitals() -> dict[str, list[int]]:
    """Return the number of examples of each class by hospital."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["client"]: [int(row[f"class {k}"]) for k in range(3)] for row in csv.DictReader(file)}


@cache
def examples(folder: Path | None) -> tuple[Dataset, Dataset]:
    """Return the hospitals' examples of MNIST, with the hospital of each, and tests with the mix of all of them."""
    train, test = MNIST().load(folder)
    counts = torch.tensor([*hospitals().values()])
    rng = torch.Generator().manual_seed(0)
    taken, owners = list[torch.Tensor](), list[torch.Tensor]()
    for k in range(3):
        pool = (CLASS[train.y] == k).nonzero()[:, 0]
        taken.append(pool[torch.randperm(len(pool), generator=rng)][: int(counts[:, k].sum())])
        owners.append(torch.arange(len(counts)).repeat_interleave(counts[:, k]))
    of, mix = torch.cat(taken), counts.sum(0)
    tests = [(CLASS[test.y] == k).nonzero()[:, 0] for k in range(3)]
    many = min(len(found) / int(part) for found, part in zip(tests, mix, strict=True))
    kept = torch.cat([found[: int(many * int(part))] for found, part in zip(tests, mix, strict=True)])
    held = Dataset(train.x[of], CLASS[train.y[of]], 3, owners=torch.cat(owners))
    return held, Dataset(test.x[kept], CLASS[test.y[kept]], 3)


def attacked(run: Run, liar: int, lie: Attack, held: Dataset, test: Dataset) -> Run:
    """Return the run with one site as the liar: it takes the place of the client that the seed draws."""
    run = replace(run, attack=lie, byzantine=1)
    (drawn,) = run.attackers()
    assert held.owners is not None
    swapped = held.owners.clone()
    swapped[held.owners == liar], swapped[held.owners == drawn] = drawn, liar
    return replace(run, data=InMemory(replace(held, owners=swapped), test, f"site {liar} lies"))


ROWS = {
    "as reported, Mean": FedAvg(Mean(), AsReported()),
    "as reported, Median": FedAvg(Median(), AsReported()),
    "cap 0.44, Median": FedAvg(Median(), Truncate(1 / 8, 0.44)),
    "cap 0.44, TrimmedMean(0.44)": FedAvg(TrimmedMean(0.44), Truncate(1 / 8, 0.44)),
    "cap 0.36, TrimmedMean(0.36)": FedAvg(TrimmedMean(0.36), Truncate(1 / 8, 0.36)),
    "cap 0.3, TrimmedMean(0.3)": FedAvg(TrimmedMean(0.3), Truncate(1 / 8, 0.3)),
    "cap 0.2, TrimmedMean(0.2)": FedAvg(TrimmedMean(0.2), Truncate(1 / 8, 0.2)),
    "all alike, TrimmedMean(0.125)": FedAvg(TrimmedMean(1 / 8), Ignore()),
}
ROWS |= {f"{name}, false size": way for name, way in ROWS.items() if "TrimmedMean" in name and "cap" in name}


def accuracy(run: Run) -> float:
    """Return the final accuracy of a run in percent."""
    found = simulate(run).summary.final.accuracy
    assert found is not None, "there is a test set"
    return 100 * found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=[*ROWS])
    parser.add_argument("--data", type=Path, default=None)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of promises that are missing
    torch.set_num_threads(1)  # sums of several threads round otherwise
    names = [*hospitals()]
    base = Run(
        data=InMemory(*examples(options.data), "eight hospitals"), clients=8, partition=Natural(),
        model=MLP((32,)), until=Until(10), training=LocalSGD(lr=0.1, engine="compiled"),
        evaluation=Evaluation(every=10),
    )  # fmt: skip
    print(f"| weights, rule | clean | {' | '.join(names)} |\n|{' --- |' * (len(names) + 2)}", flush=True)
    for name in options.rows:
        runs = [replace(base, algorithm=ROWS[name], seed=seed) for seed in range(options.seeds)]
        cells = [fmean(accuracy(run) for run in runs)]
        lies = [Together(FALSE, Rescale(lie)) if "false" in name else Rescale(lie) for lie in LIES]
        for liar in range(len(names)):
            by_lie = (
                fmean(accuracy(attacked(run, liar, lie, *examples(options.data))) for run in runs) for lie in lies
            )
            cells.append(min(by_lie))
        print(f"| {name} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
