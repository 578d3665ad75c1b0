"""False alarms and power of `phalanx.engine.suspicion`, in 100 rounds of `FedAvg` on digits.

python benchmarks/suspicion.py alarms [--seeds 12]   honest clients that are named suspicious
python benchmarks/suspicion.py power [--seeds 2]     attackers that are named, by attack
python benchmarks/suspicion.py rounds [--seeds 4]    rounds until an attacker that multiplies by -10 is named

Each prints a table in Markdown.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from phalanx import Run, simulate
from phalanx.aggregators import Aggregator, GeometricMedian, Mean, Median, TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.attacks import (
    ALIE,
    Attack,
    FangTrimmedMean,
    Gaussian,
    InnerProduct,
    LabelFlip,
    LazyFreeRider,
    Mimic,
    MinMax,
    RandomFreeRider,
    RandomSigns,
    ReportSize,
    Rescale,
    SignFlip,
)
from phalanx.core import Until
from phalanx.data import Dirichlet, Partition, Uniform
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD

ROUNDS = 100
PARTITIONS: dict[str, Partition] = {"IID": Uniform(), "Dirichlet 0.1": Dirichlet(0.1)}
RULES: dict[str, Aggregator] = {"Median": Median(), "TrimmedMean(0.25)": TrimmedMean(0.25), "Mean": Mean()}
COUNTS = (4, 10, 20)
TEAMS = ((4, 1), (20, 4))  # clients, attackers
ATTACKS: dict[str, Attack] = {
    "Rescale(-10)": Rescale(-10.0),
    "SignFlip": SignFlip(),
    "Gaussian": Gaussian(),
    "RandomFreeRider": RandomFreeRider(),
    "RandomSigns": RandomSigns(),
    "FangTrimmedMean": FangTrimmedMean(),
    "InnerProduct": InnerProduct(),
    "MinMax": MinMax(),
    "ALIE": ALIE(),
    "Mimic": Mimic(),
    "ReportSize(1,000,000)": ReportSize(1_000_000),
    "LazyFreeRider": LazyFreeRider(),
    "LabelFlip": LabelFlip(),
}


def fresh(seeds: int) -> range:
    """Return seeds of which none was used to choose a limit."""
    return range(100, 100 + seeds)


class Named(NamedTuple):
    """Who was named in a run, by client the step; who of them for sending what another sent; and who attacks."""

    steps: dict[int, int]
    pairs: frozenset[int]
    attackers: frozenset[int]
    clients: int


def named(
    partition: Partition, rule: Aggregator, clients: int, seed: int, *, attack: Attack | None = None, byzantine: int = 0
) -> Named:
    """Carry out a run; return who was named."""
    plan = Run(
        algorithm=FedAvg(rule),
        clients=clients,
        partition=partition,
        model=MLP((32,)),
        training=LocalSGD(epochs=1, batch_size=16, lr=0.1, engine="compiled"),
        attack=attack,
        byzantine=byzantine,
        until=Until(steps=ROUNDS),
        evaluation=Evaluation(every=ROUNDS),
        suspicion=True,
        seed=seed,
    )
    summary = simulate(plan, models=None).summary
    found = {i: about.suspicious for i, about in summary.clients.items() if about.suspicious is not None}
    pairs = frozenset(i for i, one in found.items() if "sent the same update" in one.reason)
    return Named(
        {i: one.step for i, one in found.items()},
        pairs,
        frozenset(i for i, about in summary.clients.items() if about.byzantine),
        clients,
    )


def alarms(seeds: int) -> Iterator[str]:
    """Yield the table of false alarms."""
    yield "| data | rule | honest clients | named | share |"
    yield "| --- | --- | --- | --- | --- |"
    for data, partition in PARTITIONS.items():
        for name, rule in RULES.items():
            found = [named(partition, rule, clients, seed) for clients in COUNTS for seed in fresh(seeds)]
            everyone, wrong = sum(one.clients for one in found), sum(len(one.steps) for one in found)
            yield f"| {data} | {name} | {everyone} | {wrong} | {wrong / everyone:.1%} |".replace("%", " %")


def power(seeds: int) -> Iterator[str]:
    """Yield the table of attackers and honest clients that were named, and the median round."""
    teams = [(data, *team) for data in PARTITIONS for team in TEAMS]
    yield "| attack | " + " | ".join(f"{data}, {byzantine} of {clients}" for data, clients, byzantine in teams) + " |"
    yield "| --- |" + " --- |" * len(teams)
    for name, attack in ATTACKS.items():
        cells = []
        for data, clients, byzantine in teams:
            found = [
                named(PARTITIONS[data], Median(), clients, seed, attack=attack, byzantine=byzantine)
                for seed in fresh(seeds)
            ]
            caught = [one.steps[i] for one in found for i in one.attackers if i in one.steps]
            wrong = [(i in one.pairs) for one in found for i in one.steps if i not in one.attackers]
            count = sum(len(one.attackers) for one in found)
            when = f", round {median(caught):g}" if caught else ""
            alone, copied = wrong.count(False), wrong.count(True)
            others = f"; {alone} honest" if alone else ""
            others += f"; {copied} honest as copied" if copied else ""
            cells.append(f"{len(caught)} of {count}{when}{others}")
        yield f"| `{name}` | {' | '.join(cells)} |"


def rounds(seeds: int) -> Iterator[str]:
    """Yield the table of the rounds until `Rescale(-10)` is named: of each attacker, by seed."""
    yield "| data | rule | 1 of 4 | 1 of 8 | 4 of 20 |"
    yield "| --- | --- | --- | --- | --- |"
    for data, partition in PARTITIONS.items():
        for name, rule in {"Median": Median(), "GeometricMedian": GeometricMedian()}.items():
            cells = []
            for clients, byzantine in ((4, 1), (8, 1), (20, 4)):
                found = list[float]()
                for seed in fresh(seeds):
                    one = named(partition, rule, clients, seed, attack=Rescale(-10.0), byzantine=byzantine)
                    found += (one.steps.get(i, math.inf) for i in one.attackers)
                never = sum(map(math.isinf, found))
                said = f"median {median(found):g}, {min(found):g} to {max(found):g}"
                cells.append(said.replace("inf", f"never ({never} of {len(found)})"))
            yield f"| {data} | {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("alarms", "power", "rounds"))
    parser.add_argument("--seeds", type=int)
    given = parser.parse_args()
    tables = {"alarms": (alarms, 12), "power": (power, 2), "rounds": (rounds, 4)}
    made, seeds = tables[given.what]
    table = made(given.seeds or seeds)
    for line in table:
        print(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
