"""Eight hospitals of very unequal size, with trained models: the tables of docs/weighting.md and its measurements.

python benchmarks/consortium.py [--seeds 0 1] [--jobs 2] [--data_dir DIR]

Sizes and class counts are those of examples/hospitals.csv (KatherLab/MediSwarm).  The images are MNIST: digits 0 to 3
are class 0, 4 to 6 class 1, 7 to 9 class 2; the tests have the mix of classes of all hospitals together.  A perceptron
of 32 hidden units trains for 10 rounds.  Accuracy in percent, the mean over the seeds: without an attack, and with each
hospital in turn as the only liar, which sends -1 or -1,000 times its update; the worse one of the two.  In rows with a
false size it also reports a billion examples.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from as_study import carry_out, markdown, mean
from typing_extensions import override

from phalanx import Run, Study, Until
from phalanx.aggregators import Mean, Median, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import ReportSize, Rescale, Together
from phalanx.data import MNIST, Dataset, Natural
from phalanx.experiments import Derived
from phalanx.experiments.results import Results
from phalanx.models import MLP
from phalanx.training import Evaluation, LocalSGD
from phalanx.weighting import AsReported, Ignore, Truncate

TABLE = Path(__file__).parents[1] / "examples" / "hospitals.csv"
CLASS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])  # of each digit
FALSE = ReportSize(10**9)
LIES: Mapping[str, Any] = {f"{factor:g}": Rescale(factor) for factor in (-1.0, -1000.0)}
FALSE_LIES: Mapping[str, Any] = {f"{name}, false size": Together(FALSE, lie) for name, lie in LIES.items()}


@cache
def hospitals() -> dict[str, list[int]]:
    """Return the number of examples of each class by hospital."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row["client"]: [int(row[f"class {k}"]) for k in range(3)] for row in csv.DictReader(file)}


def swapped(held: Dataset, places: tuple[int, ...]) -> Dataset:
    """Return the examples with those of two sites exchanged; as they are without two."""
    assert held.owners is not None
    owners = held.owners.clone()
    if places:
        liar, drawn = places
        owners[held.owners == liar], owners[held.owners == drawn] = drawn, liar
    return replace(held, owners=owners)


@dataclass(frozen=True)
class Hospitals(MNIST):
    """The hospitals' examples of MNIST, with the hospital of each, and tests with the mix of all of them.

    Args:
        places: two hospitals that are exchanged.
    """

    places: tuple[int, ...] = ()

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        train, test = super().load(data_dir)
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
        return swapped(held, self.places), Dataset(test.x[kept], CLASS[test.y[kept]], 3)


def placed(site: int, run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data with a site in the place of the client that the seed draws as the attacker."""
    drawn = Run(**run).attackers()
    return {"data": replace(run["data"], places=(site, *drawn))} if drawn else {}


ROWS = {
    "as reported, Mean": FedAvg(Mean(), AsReported()),
    "as reported, Median": FedAvg(Median(), AsReported(beyond_tolerance="remark")),
    "cap 0.44, Median": FedAvg(Median(), Truncate(1 / 8, 0.44)),
    "cap 0.44, TrimmedMean(0.44)": FedAvg(TrimmedMean(0.44), Truncate(1 / 8, 0.44)),
    "cap 0.36, TrimmedMean(0.36)": FedAvg(TrimmedMean(0.36), Truncate(1 / 8, 0.36)),
    "cap 0.3, TrimmedMean(0.3)": FedAvg(TrimmedMean(0.3), Truncate(1 / 8, 0.3)),
    "cap 0.2, TrimmedMean(0.2)": FedAvg(TrimmedMean(0.2), Truncate(1 / 8, 0.2)),
    "all alike, TrimmedMean(0.125)": FedAvg(TrimmedMean(1 / 8), Ignore()),
}
CAPPED = [name for name, way in ROWS.items() if "TrimmedMean" in name and "cap" in name]
SITES = {name: Derived(partial(placed, site)) for site, name in enumerate(hospitals())}
BASE = Run(
    data=Hospitals(), clients=8, partition=Natural(), model=MLP((32,)), until=Until(10), byzantine=1, attack=FALSE,
    training=LocalSGD(lr=0.1, engine="compiled"), evaluation=Evaluation(every=10),
)  # fmt: skip
STUDIES = {
    "consortium": Study(
        BASE,
        {"algorithm": ROWS, "attack": {"clean": None, **LIES, **FALSE_LIES}, "liar": SITES},
        seeds=2,
        exclude=[{"algorithm": [*ROWS.keys() - {*CAPPED}], "attack": [*FALSE_LIES]}],
        name="consortium",
    )
}


def table(results: Results) -> str:
    """Return the table."""
    lines = list[list[str]]()
    rules = results.axes["algorithm"]
    for rule, lies in [*((rule, LIES) for rule in rules), *((rule, FALSE_LIES) for rule in rules if rule in CAPPED)]:

        def cell(at: Mapping[str, str], rule: str = rule) -> str:
            return mean(results.where({"algorithm": rule, **at}), "accuracy")

        worst = (min((cell({"attack": lie, "liar": site}) for lie in lies), key=float) for site in results.axes["liar"])
        name = rule if lies is LIES else f"{rule}, false size"
        lines.append([name, cell({"attack": "clean"}), *worst])
    return markdown(("weights, rule", "clean", *results.axes["liar"]), lines)


if __name__ == "__main__":
    carry_out(__doc__, STUDIES, table, "consortium")
