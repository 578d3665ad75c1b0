"""ClusteredFL where clients are absent or attack: accuracy, and whether the groups are found.

python benchmarks/clustered_absence.py [--only absent hostile fifth digits] [--jobs 2]

* `absent`: 12 clients in 4 groups with permuted labels, 30 rounds, all in a round or not.
* `hostile`: 16 clients in 2 groups, 2 of them attack, 30 rounds; accuracy of honest clients.
* `fifth`: 60 clients in 4 groups with permuted labels, 24 examples each, 300 rounds of 12 clients.
* `digits`: 60 clients in 4 groups that hold different digits of MNIST, 100 examples each, 100 rounds of 12 clients.

Each row: mean and 95 % interval over the seeds, of clients that have come to a cluster; in how many seeds each cluster
of honest clients is a group; how many honest clients had not come to a cluster; how many attackers were in clusters of
their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from as_study import carry_out, count, markdown
from typing_extensions import override

from phalanx import Run, Study, Until
from phalanx.aggregators import Mean, Median
from phalanx.algorithms import ClusteredFL, FedAvg, PerCluster, Quorum, Relative
from phalanx.attacks import (
    ALIE,
    AllLabelsTo,
    Attack,
    Gaussian,
    LabelFlip,
    LabelPermutation,
    LabelShift,
    MinMax,
    ReportSize,
    SignFlip,
    Together,
)
from phalanx.clustering import Memory, Peel
from phalanx.data import MNIST, Dataset, Groups, PermutedLabels
from phalanx.experiments import Estimate
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.simulation import Deadline, Lognormal, Silent
from phalanx.training import Evaluation, LocalSGD

Rows = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class HeldDigits(Groups):
    """Each group holds some of the classes only, and is tested on these."""

    held: tuple[tuple[int, ...], ...] = ((0, 1, 2), (3, 4), (5, 6, 7), (8, 9))

    @property
    def number(self) -> int:
        """See `Groups`."""
        return len(self.held)

    def seen_by(self, group: int, data: Dataset) -> Dataset:
        """See `Groups`."""
        return data.of(torch.isin(data.labels, torch.tensor(self.held[group])))


@dataclass(frozen=True)
class Known(ClusteredFL):
    """Clusters that are given the groups, of equal numbers of neighbouring clients, and are never split."""

    groups: int = 4

    def init(self, model: Any, sizes: Any) -> Any:
        """See `Algorithm`."""
        state, ready = super().init(model, sizes)
        tree, nothing = state.tree, ((), model[None, :][:0])
        members = [frozenset(i for i in sizes if i * self.groups // len(sizes) == g) for g in range(self.groups)]
        for g in range(self.groups - 1):
            rest = frozenset().union(*members[g + 1 :])
            tree = tree.split(len(tree.nodes) - 1, (members[g], rest), model, (nothing, nothing), 0)
        return state._replace(tree=tree), ready


@dataclass(frozen=True)
class SixThousand(MNIST):
    """6,000 training examples of MNIST, drawn once for all runs, and the first 2,000 test examples."""

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        train, test = super().load(data_dir)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
        return train.of(order[:6000]), test.of(torch.arange(2000))


SMALL = Run(
    model=MLP((32,)), training=LocalSGD(epochs=3), until=Until(30), groups=PermutedLabels(), clients=12,
    evaluation=Evaluation(every=10**6),
)  # fmt: skip
HOSTILE = replace(SMALL, clients=16, groups=PermutedLabels(2), attack=SignFlip(), byzantine=2)
FIFTH = replace(SMALL, clients=60, participation=0.2, until=Until(300))
DIGITS = replace(FIFTH, data=SixThousand(), groups=HeldDigits(), until=Until(100))


def absent() -> Rows:
    """Everybody, nine in ten, all but one, the ten fastest of twelve."""
    waits: Rows = {
        "all": {},
        "participation .9": {"participation": 0.9},
        "one silent": {"availability": Silent(share=1 / 12), "deadline": Deadline(seconds=10.0)},
    }
    slow: Rows = {
        "": {},
        ", others slow": {"latency": Lognormal(each_turn=True)},
        ", same slow": {"latency": Lognormal()},
    }
    options = {
        "paper": ClusteredFL(memory=None),
        "min_reported": ClusteredFL(min_reported=0.75, memory=None),
        "memory": ClusteredFL(min_reported=0.75),
    }

    def quorum(name: str, steps: int) -> Mapping[str, Any]:
        return {"algorithm": Quorum(options[name], k=10), "until": Until(steps)}

    rows = {f"{name}: {who}": {"algorithm": options[name], **how} for name in options for who, how in waits.items()}
    rows |= {
        f"{name}: quorum 10 of 12{who}": {**quorum(name, 300), **how} for name in options for who, how in slow.items()
    }
    rows["paper: all, 40 rounds"] = {"algorithm": options["paper"], "until": Until(40)}
    return rows | {
        f"memory: quorum 10 of 12{who}, 40 rounds": {**quorum("memory", 400), **how} for who, how in slow.items()
    }


def hostile() -> Rows:
    """No attack, and two attackers of each kind."""
    attacks: Mapping[str, Attack | None] = {
        "none": None,
        "Gaussian": Gaussian(),
        "sign flips, sizes": Together(SignFlip(), ReportSize(10**6)),
        "LabelFlip 1 to 7": LabelFlip(),
        "LabelShift": LabelShift(),
        "LabelPermutation": LabelPermutation(),
        "AllLabelsTo": AllLabelsTo(),
        "ALIE": ALIE(),
        "ALIE z 1.5": ALIE(z=1.5),
        "MinMax": MinMax(),
    }
    options = {
        "Median": ClusteredFL(aggregate=Median()),
        "Median, peel": ClusteredFL(aggregate=Median(), peel=Peel(2)),
        "Median, peel, eps1 0.5": ClusteredFL(eps1=Relative(0.5), aggregate=Median(), peel=Peel(2)),
        "Mean, peel": ClusteredFL(aggregate=Mean(), peel=Peel(2)),
    }
    return {
        f"{name}: {kind}": {"algorithm": algorithm, "attack": attack}
        for name, algorithm in options.items()
        for kind, attack in attacks.items()
    } | {
        f"Median, peel: {kind}, 40 rounds": {
            "algorithm": options["Median, peel"], "attack": attacks[kind], "until": Until(40),
        }
        for kind in ("none", "LabelShift")
    }  # fmt: skip


MEMORY = Memory(rate=0.5, reuse=0)
COMPARED: Rows = {
    "given the groups": {"algorithm": Known(min_round=10**6)},
    "FedAvg": {"algorithm": FedAvg()},
    "paper": {"algorithm": ClusteredFL(memory=None)},
}
PROFILES = ClusteredFL(memory=MEMORY, compare="profiles", min_gap=0.1, min_part_size=10)
STUDIES: Mapping[str, Study] = {
    name: Study(base, {"row": rows}, seeds=5, name=name)
    for name, base, rows in (
        ("absent", SMALL, absent()),
        ("hostile", HOSTILE, hostile()),
        ("fifth", FIFTH, {**COMPARED, "memory, profiles": {"algorithm": PROFILES}}),
        ("digits", DIGITS, {
            **COMPARED,
            "memory": {"algorithm": ClusteredFL(memory=MEMORY, min_reported=0.9, min_part_size=10)},
            "defaults": {"algorithm": ClusteredFL()},
            "defaults, PerCluster": {"algorithm": PerCluster(FedAvg(Median()))},
        }),
    )
}  # fmt: skip


def accuracy(row: Row) -> float:
    """Return the mean accuracy of honest clients that have come to a cluster; of all where there are no clusters."""
    came = {i for members in row.trace.clusters for i in members} or {*row.trace.received_accuracy}
    return fmean(right for i, right in row.trace.received_accuracy.items() if i in came)


def line(name: str, rows: list[Row]) -> list[str]:
    """Return a line of the table."""
    traces = [row.trace for row in rows]
    lost = [t.clients - len({*t.byzantine}.union(*t.clusters)) for t in traces]
    apart = [sum(len(c) for c in t.clusters if {*c} <= {*t.byzantine}) for t in traces]
    known = bool(traces[0].clusters)
    numbers = [", ".join(map(str, found)) if known else "-" for found in (lost, apart)]
    return [name, Estimate.of(map(accuracy, rows)).text(100.0), count(rows, "groups_found"), *numbers]


def table(results: Results) -> str:
    """Return the table of one study."""
    head = (results.name, "accuracy, %", "groups exact", "came to no cluster", "attackers apart")
    return markdown(head, (line(name, rows) for (name,), rows in results.cells()))


if __name__ == "__main__":
    carry_out(__doc__, STUDIES, table, "clustered_absence")
