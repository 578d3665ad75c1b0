"""Attackers who first behave: isolation, capture, split groups, reputation, joining late with false sizes.

python benchmarks/capture.py [--seeds 4] [--tables groups unlike reputation late] [--rows COMPOSITION ...]

The tables of docs/measurements/attacks.md.  Digits, 16 clients, 3 of them attackers, 3 local epochs of a perceptron of
32 hidden units.  Accuracy in percent on what each honest client is tested with: the mean of all honest clients, mean
over the seeds; and the least of any honest client in any seed.
"""

import argparse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from typing_extensions import override

from phalanx import Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, Catalyst, FedAvg, PerCluster, Quorum, Rewarded, Unsent
from phalanx.attacks import (
    ALIE,
    Attack,
    Divided,
    InGroup,
    InnerProduct,
    Mimic,
    OnCredit,
    ReportSize,
    Rescale,
    Scheduled,
    SignFlip,
    Together,
)
from phalanx.core import Algorithm
from phalanx.data import Dirichlet, PermutedLabels
from phalanx.models import MLP
from phalanx.simulation import Late
from phalanx.training import LocalSGD
from phalanx.weighting import AsReported, Ignore, Truncate

CLIENTS, ATTACKERS, VICTIMS = 16, 3, 2
MEDIAN = FedAvg(Median(), Ignore())
BASE = Run(clients=CLIENTS, model=MLP((32,)), training=LocalSGD(epochs=3))
GROUPS = replace(BASE, groups=PermutedLabels(count=2))
UNLIKE = replace(BASE, partition=Dirichlet(0.5))
SUBSET = Truncate(ATTACKERS / CLIENTS, 0.49, "subset")

CLUSTERED: Mapping[str, tuple[Algorithm, int, int]] = {  # with the number of steps, and the version in which they turn
    "`PerCluster(M)`": (PerCluster(MEDIAN), 40, 20),
    "`PerCluster(M, min_part_size=7)`": (PerCluster(MEDIAN, min_part_size=7), 40, 20),
    "`PerCluster(Quorum(M, 7))`": (PerCluster(Quorum(MEDIAN, 7)), 40 * CLIENTS, 40),
    "`M`": (MEDIAN, 40, 20),
}
REPUTATIONS: Mapping[str, Algorithm] = {
    "`RFFL()`": RFFL(),
    "`RFFL(unsent=Unsent())`": RFFL(unsent=Unsent()),
    "`RFFL(aggregate=Median())`": RFFL(aggregate=Median()),
    "`Rewarded(M, unsent=Unsent())`": Rewarded(MEDIAN, unsent=Unsent()),
}
TURNS: Mapping[str, Attack] = {
    "times -5, always": Rescale(-5.0),
    "times -5, from round 20 on": Scheduled(Rescale(-5.0), start=20),
    "`OnCredit(Rescale(-5))`": OnCredit(Rescale(-5.0)),
    "`OnCredit(ALIE(z=1.5))`": OnCredit(ALIE(z=1.5)),
}
JOINED: Mapping[str, Algorithm] = {
    "`Quorum(FedAvg(Median(), AsReported()), 9)`": Quorum(FedAvg(Median(), AsReported()), 9),
    "`Quorum(M, 9)`": Quorum(MEDIAN, 9),
    "`Quorum(FedAvg(Median(), T), 9)`": Quorum(FedAvg(Median(), SUBSET), 9),
    "`Catalyst(3, quorum=9, preprocess=T)`": Catalyst(3, quorum=9, preprocess=SUBSET),
    "`PerCluster(Quorum(M, 7))`": PerCluster(Quorum(MEDIAN, 7)),
}


@dataclass(frozen=True)
class AttackersLate(Late):
    """Some clients join late."""

    ids: tuple[int, ...] = ()

    @override
    def times(self, clients: int, seed: int) -> dict[int, float]:
        return dict.fromkeys(self.ids, self.after)


def attackers(run: Run) -> frozenset[int]:
    """Return who attacks, if somebody does."""
    return replace(run, attack=SignFlip(), byzantine=ATTACKERS).attackers()


def outcome(run: Run, attack: Attack | None) -> list[float]:
    """Return the accuracy of each honest client, in percent."""
    ids = attackers(run)
    record = simulate(replace(run, attack=attack, byzantine=ATTACKERS if attack else 0))
    accuracy = record.history[-1].metrics.client_accuracy
    assert accuracy is not None
    return [100 * share for i, share in accuracy.items() if i not in ids]


def shown(runs: list[list[float]]) -> str:
    """Return the mean, and the least of any client."""
    return f"{fmean(map(fmean, runs)):.1f}, {min(map(min, runs)):.1f}"


def captures(victim: int, other: int, turn: int) -> Mapping[str, Attack]:
    """Return the attacks on a victim and its group, of which `other` is a member too."""
    joined = InGroup(ALIE(z=0.0), victim, CLIENTS // 2)
    return {
        "isolation": Scheduled(Together(Mimic(victim), Rescale(-5.0)), turn, otherwise=Mimic(victim)),
        "capture": Scheduled(InGroup(InnerProduct(5.0), victim, CLIENTS // 2), turn, otherwise=joined),
        "split": Scheduled(SignFlip(), turn, otherwise=Divided(Mimic(victim), Mimic(other))),
    }


def clustered(base: Run, seeds: range, rows: Sequence[str] | None) -> Iterator[str]:
    """Yield the rows of attacks on clusters."""
    yield "| composition | no attack | isolation | capture | split |"
    yield "| --- | --- | --- | --- | --- |"
    for name, (algorithm, steps, turn) in CLUSTERED.items():
        if rows is not None and name.strip("`") not in rows:
            continue
        found: dict[str, list[list[float]]] = {}
        for seed in seeds:
            run = replace(base, algorithm=algorithm, until=Until(steps), seed=seed)
            found.setdefault("none", []).append(outcome(run, None))
            honest = sorted({*range(CLIENTS)} - attackers(run))
            for victim in honest[:VICTIMS]:
                other = next(i for i in honest if i > victim and i % 2 == victim % 2)
                for attack, made in captures(victim, other, turn).items():
                    found.setdefault(attack, []).append(outcome(run, made))
        yield f"| {name} | {' | '.join(map(shown, found.values()))} |"


def reputation(seeds: range) -> Iterator[str]:
    """Yield the rows of attacks on reputation."""
    yield f"| composition | no attack | {' | '.join(TURNS)} |"
    yield "| --- | --- |" + " --- |" * len(TURNS)
    for name, algorithm in REPUTATIONS.items():
        runs = [replace(BASE, algorithm=algorithm, until=Until(40), seed=seed) for seed in seeds]
        cells = [shown([outcome(run, attack) for run in runs]) for attack in (None, *TURNS.values())]
        yield f"| {name} | {' | '.join(cells)} |"


def late(seeds: range) -> Iterator[str]:
    """Yield the rows of attackers who join after ten seconds, report 10^6 examples and flip signs."""
    yield "| composition | no attack | from the start | joining late |"
    yield "| --- | --- | --- | --- |"
    attack = Together(Rescale(-5.0), ReportSize(1_000_000))
    for name, algorithm in JOINED.items():
        runs = [replace(BASE, algorithm=algorithm, until=Until(40 * CLIENTS), seed=seed) for seed in seeds]
        joining = [replace(run, late=AttackersLate(ATTACKERS, 10.0, tuple(sorted(attackers(run))))) for run in runs]
        cells = [
            shown([outcome(run, who) for run in of]) for of, who in ((runs, None), (runs, attack), (joining, attack))
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--tables", nargs="+", default=["groups", "unlike", "reputation", "late"])
    parser.add_argument("--rows", nargs="+", help="compositions of the tables groups and unlike")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # what the runs do not promise is what is measured
    seeds = range(given.seeds)
    tables = {
        "groups": lambda: clustered(GROUPS, seeds, given.rows),
        "unlike": lambda: clustered(UNLIKE, seeds, given.rows),
        "reputation": lambda: reputation(seeds),
        "late": lambda: late(seeds),
    }
    for name in given.tables:
        print(f"\n{name}\n")
        for row in tables[name]():
            print(row, flush=True)


if __name__ == "__main__":
    main()
