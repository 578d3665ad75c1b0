"""Useful caps by `phalanx weights --frontier` against trained models, for consortia of other sizes than hospitals'.

python benchmarks/consortium_sizes.py [--only ROW ...] [--seeds 0 1] [--jobs 2]

Digits are shared out by size, each site with its own mix of classes by a Dirichlet distribution of concentration 1, or
with the same mix; another seed shares them out otherwise.  A perceptron of 32 hidden units trains for 20 rounds with
the lowest cap, the best useful cap, the first one above the band, and the highest.  Each site in turn sends -1 or
-1,000 times its update and reports a billion examples.  Accuracy in percent: of the mean by reported
sizes, halfway between that and a constant answer (10), and of each cap without a liar and with the worst site and lie.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from as_study import carry_out, markdown
from consortium import FALSE, FALSE_LIES, placed, swapped
from typing_extensions import override

from phalanx import Run, Study, Until
from phalanx.aggregators import Mean, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.data import Dataset, Digits, Natural
from phalanx.experiments import Derived
from phalanx.experiments.results import Results
from phalanx.models import MLP
from phalanx.promises.frontier import Frontier, Point, frontier
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


@cache
def shared_out(name: str, seed: int) -> Dataset:
    """Return the training examples with the site of each; the smallest sites are served first."""
    train, (relative, alike) = Digits().load()[0], ROWS[name]
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


@dataclass(frozen=True)
class Sites(Digits):
    """Digits shared out to sites, two of which are exchanged if `places` names them."""

    row: str = "8 equal"
    seed: int = 0
    places: tuple[int, ...] = ()

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        return swapped(shared_out(self.row, self.seed), self.places), super().load(data_dir)[1]


@cache
def tried(name: str, seed: int) -> tuple[Frontier, list[Point]]:
    """Return all caps, and those that are tried, the lowest first."""
    held, K = shared_out(name, seed), len(ROWS[name][0])
    assert held.owners is not None
    counts = [torch.bincount(held.y[held.owners == site], minlength=10).tolist() for site in range(K)]
    found = frontier([sum(each) for each in counts], counts)
    points = [found.points[0], *(p for p in [found.best] if p), found.points[-1]]
    points += [p for p in found.points if found.useful and p.cap > found.useful[-1].cap][:1]
    return found, [point for _, point in sorted({point.cap: point for point in points}.items())]


def capped(number: int, run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the algorithm with one of the caps that are tried; with the last one if there are fewer."""
    point = tried(run["data"].row, run["seed"])[1][:number][-1]
    weigh = Ignore() if point.cap == Fraction(1, run["clients"]) else Truncate(1 / run["clients"], float(point.cap))
    return {"algorithm": FedAvg(TrimmedMean(float(point.cap)), weigh)}


CAPS = {str(number): Derived(partial(capped, number)) for number in range(1, 5)}
MEAN = "mean"


def study(name: str) -> Study:
    """Return the study of a consortium."""
    sites = {str(site): Derived(partial(placed, site)) for site in range(len(ROWS[name][0]))}
    base = Run(
        algorithm=FedAvg(Mean(), AsReported()), clients=len(sites), partition=Natural(), model=MLP((32,)),
        training=LocalSGD(lr=0.1, batch_size=16, engine="compiled"), until=Until(20), evaluation=Evaluation(every=20),
        byzantine=1, attack=FALSE,
    )  # fmt: skip
    shared = Derived(lambda run: {"data": Sites(row=name, seed=run["seed"])})
    return Study(
        base,
        {"sizes": {name: shared}, "cap": {MEAN: {}, **CAPS}, "attack": {"clean": None, **FALSE_LIES}, "liar": sites},
        seeds=2,
        exclude=[{"cap": MEAN, "attack": [*FALSE_LIES]}],
        name=name.replace("%", "percent"),
    )


def table(results: Results) -> str:
    """Return the rows of a consortium, one for each seed."""
    (name,), lines = results.axes["sizes"], list[list[str]]()
    for seed in dict.fromkeys(row.trace.seed for row in results.rows):

        def least(cap: str, *, clean: bool, seed: int = seed) -> float:
            rows = [row for row in results.where({"cap": cap}) if (row.labels["attack"] == "clean") is clean]
            return 100 * min(row.value("accuracy") or 0.0 for row in rows if row.trace.seed == seed)

        (found, points), cells = tried(name, seed), list[str]()
        for cap, point in zip(CAPS, points, strict=False):
            mark = "useful" if point in found.useful else "not useful"
            cells.append(
                f"{100 * float(point.cap):.3g} % ({mark}): {least(cap, clean=True):.1f}, {least(cap, clean=False):.1f}"
            )
        plain = least(MEAN, clean=True)
        lines.append([name, str(seed), f"{plain:.1f}", f"{(10 + plain) / 2:.1f}", "; ".join(cells)])
    return markdown(("sizes", "seed", "mean", "halfway", "cap: clean, worst site"), lines)


STUDIES = {name: partial(study, name) for name in ROWS}

if __name__ == "__main__":
    carry_out(__doc__, STUDIES, table, "consortium_sizes")
