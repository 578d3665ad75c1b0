"""ClusteredFL where clients are absent or attack: accuracy, and whether the groups are found.

python benchmarks/clustered_absence.py absent|hostile|fifth|digits [--seeds 5] [--rows NAME ...]

* `absent`: 12 clients in 4 groups with permuted labels, 30 rounds, all in a round or not.
* `hostile`: 16 clients in 2 groups, 2 of them attack, 30 rounds; accuracy of honest clients.
* `fifth`: 60 clients in 4 groups with permuted labels, 24 examples each, 300 rounds of 12 clients.
* `digits`: 60 clients in 4 groups that hold different digits of MNIST, 100 examples each, 100 rounds of 12 clients.

Each row: mean and 95 % interval over the seeds, in how many of them each cluster of honest clients is a group, and
how many clients had not come to a cluster, or how many attackers were in clusters of their own.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phalanx.aggregators import Mean, Median
from phalanx.algorithms import ClusteredFL, FedAvg, Quorum, Relative
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
from phalanx.cli.options import DATA_DIR
from phalanx.clustering import Memory, Peel
from phalanx.core import Until
from phalanx.data import MNIST, Dataset, Groups, InMemory, PermutedLabels
from phalanx.experiments import Estimate
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate
from phalanx.simulation import Deadline, Lognormal, Silent
from phalanx.training.evaluation import evaluate
from phalanx.training.sgd import LocalSGD

Row = tuple[str, Run]


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


SMALL = Run(model=MLP((32,)), training=LocalSGD(epochs=3), until=Until(steps=30), groups=PermutedLabels(), clients=12)


def absent() -> Iterator[Row]:
    """Everybody, nine in ten, all but one, the ten fastest of twelve."""
    waits: dict[str, dict[str, Any]] = {
        "all": {},
        "participation .9": {"participation": 0.9},
        "one silent": {"availability": Silent(share=1 / 12), "deadline": Deadline(seconds=10.0)},
    }
    slow: dict[str, dict[str, Any]] = {
        "": {},
        ", others slow": {"latency": Lognormal(each_turn=True)},
        ", same slow": {"latency": Lognormal()},
    }
    options = {
        "paper": ClusteredFL(memory=None),
        "min_reported": ClusteredFL(min_reported=0.75, memory=None),
        "memory": ClusteredFL(min_reported=0.75),
    }
    for name, algorithm in options.items():
        for who, how in waits.items():
            yield f"{name}: {who}", replace(SMALL, algorithm=algorithm, **how)
        for who, how in slow.items():
            plan = replace(SMALL, algorithm=Quorum(algorithm, k=10), until=Until(steps=300), **how)
            yield f"{name}: quorum 10 of 12{who}", plan
    longer = replace(SMALL, until=Until(steps=40))
    yield "paper: all, 40 rounds", replace(longer, algorithm=options["paper"])
    for name, how in slow.items():
        plan = replace(SMALL, algorithm=Quorum(options["memory"], k=10), until=Until(steps=400), **how)
        yield f"memory: quorum 10 of 12{name}, 40 rounds", plan


def hostile() -> Iterator[Row]:
    """No attack, and two attackers of each kind."""
    lies = Together(SignFlip(), ReportSize(10**6))
    attacks: dict[str, Attack | None] = {
        "none": None,
        "Gaussian": Gaussian(),
        "sign flips, sizes": lies,
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
    for name, algorithm in options.items():
        for kind, attack in attacks.items():
            plan = replace(SMALL, clients=16, groups=PermutedLabels(2), algorithm=algorithm)
            plan = replace(plan, attack=attack, byzantine=2) if attack else plan
            yield f"{name}: {kind}", plan
            if name == "Median, peel" and kind in {"none", "LabelShift"}:
                yield f"{name}: {kind}, 40 rounds", replace(plan, until=Until(steps=40))


FIFTH = replace(SMALL, clients=60, participation=0.2)


def fifth() -> Iterator[Row]:
    """Rounds of a fifth of the clients, with few examples each."""
    plan = replace(FIFTH, until=Until(steps=300))
    yield "given the groups", replace(plan, algorithm=Known(min_round=10**6))
    yield "FedAvg", replace(plan, algorithm=FedAvg())
    yield "paper", replace(plan, algorithm=ClusteredFL(memory=None))
    memory = Memory(rate=0.5, reuse=0)
    profiles = ClusteredFL(memory=memory, compare="profiles", min_gap=0.1, min_part_size=10)
    yield "memory, profiles", replace(plan, algorithm=profiles)


def digits() -> Iterator[Row]:
    """Rounds of a fifth of the clients, whose groups hold different digits."""
    train, test = MNIST().load(Path(os.environ[DATA_DIR]) if DATA_DIR in os.environ else None)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    few = InMemory(train.of(order[:6000]), test.of(torch.arange(2000)), name="6,000 of MNIST")
    plan = replace(FIFTH, data=few, groups=HeldDigits(), until=Until(steps=100))
    yield "given the groups", replace(plan, algorithm=Known(min_round=10**6))
    yield "FedAvg", replace(plan, algorithm=FedAvg())
    yield "paper", replace(plan, algorithm=ClusteredFL(memory=None))
    memory = Memory(rate=0.5, reuse=0)
    yield "memory", replace(plan, algorithm=ClusteredFL(memory=memory, min_reported=0.9, min_part_size=10))


def outcome(plan: Run) -> tuple[float, bool, int]:
    """The accuracy of honest clients that came to a cluster, in per cent; whether groups are exact; who is apart."""
    states: list[Any] = []
    simulate(plan, observers=(lambda progress: states.append(progress.state),), checkpoint=None)
    state, bad, algorithm = states[-1], plan.attackers(), plan.algorithm
    federation = Federation(plan, None, "cpu")
    number = plan.groups.of(plan.clients) if plan.groups else (0,) * plan.clients
    astray = set(getattr(state, "newcomers", {})) if not isinstance(algorithm, FedAvg) else set()
    honest = [i for i in range(plan.clients) if i not in bad and i not in astray]
    tests = [plan.groups.seen_by(g, federation.test) for g in range(max(number) + 1)] if plan.groups else []
    right = [evaluate(federation.model, algorithm.download(state, i), tests[number[i]]).accuracy for i in honest]
    found = {frozenset(c) - bad for c in state.clusters.values()} if not isinstance(algorithm, FedAvg) else set()
    groups = {frozenset(i for i in honest if number[i] == g) for g in set(number)}
    alone = sum(len(c) for c in state.clusters.values() if bad.issuperset(c)) if found else 0
    return 100 * float(np.mean(right)), {c for c in found if c} == groups, alone if bad else len(astray)


TABLES: dict[str, Callable[[], Iterator[Row]]] = {
    "absent": absent,
    "hostile": hostile,
    "fifth": fifth,
    "digits": digits,
}


def main() -> None:
    """Print a table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", nargs="*", help="only rows whose name holds one of these words")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, plan in TABLES[options.table]():
        if options.rows and not any(word in name for word in options.rows):
            continue
        found = [outcome(replace(plan, seed=seed)) for seed in range(options.seeds)]
        accuracy = Estimate.of(accuracy for accuracy, _, _ in found).text()
        exact, apart = sum(ok for _, ok, _ in found), [n for _, _, n in found]
        print(f"{name:52} {accuracy:18}  exact {exact}/{len(found)}  apart {apart}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
