"""Attackers who first behave: isolation, capture, split groups, reputation, joining late with false sizes.

python benchmarks/capture.py [--only groups unlike reputation late] [--jobs 2]

The tables of docs/measurements/attacks.md.  Digits, 16 clients, 3 of them attackers, 3 local epochs of a perceptron of
32 hidden units.  Accuracy in percent on what each honest client is tested with: the mean of all honest clients, mean
over the seeds; and the least of any honest client in any seed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from as_study import carry_out, crossed

from phalanx import Run, Study, Until
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, Catalyst, FedAvg, PerCluster, Quorum, Rewarded, Unsent
from phalanx.attacks import (
    ALIE,
    Attack,
    Divided,
    InGroup,
    InnerProduct,
    JoinLate,
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
from phalanx.experiments.grid import Derived
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.training import Evaluation, LocalSGD
from phalanx.weighting import AsReported, Ignore, Truncate

CLIENTS, ATTACKERS, VICTIMS = 16, 3, 2
MEDIAN = FedAvg(Median(), Ignore())
BASE = Run(
    clients=CLIENTS, model=MLP((32,)), training=LocalSGD(epochs=3), attack=SignFlip(), byzantine=ATTACKERS,
    until=Until(40), evaluation=Evaluation(every=10**6),
)  # fmt: skip
GROUPS = replace(BASE, groups=PermutedLabels(count=2))
UNLIKE = replace(BASE, partition=Dirichlet(0.5))
SUBSET = Truncate(ATTACKERS / CLIENTS, 0.49, "subset")

ROUNDS, ARRIVALS = Until(40), Until(40 * CLIENTS)
TURN = {ROUNDS: 20, ARRIVALS: 40}  # the version in which attackers turn
CLUSTERED: Mapping[str, Mapping[str, Any]] = {
    "`PerCluster(M)`": {"algorithm": PerCluster(MEDIAN), "until": ROUNDS},
    "`PerCluster(M, min_part_size=7)`": {"algorithm": PerCluster(MEDIAN, min_part_size=7), "until": ROUNDS},
    "`PerCluster(Quorum(M, 7))`": {"algorithm": PerCluster(Quorum(MEDIAN, 7)), "until": ARRIVALS},
    "`M`": {"algorithm": MEDIAN, "until": ROUNDS},
}
REPUTATIONS: Mapping[str, Algorithm] = {
    "`RFFL(challenge=None)`": RFFL(challenge=None),
    "`RFFL(challenge=None, unsent=Unsent())`": RFFL(challenge=None, unsent=Unsent()),
    "`RFFL(challenge=None, aggregate=Median())`": RFFL(challenge=None, aggregate=Median()),
    "`Rewarded(M, challenge=None, unsent=Unsent())`": Rewarded(MEDIAN, challenge=None, unsent=Unsent()),
}
TURNS: Mapping[str, Attack | None] = {
    "no attack": None,
    "times -5, always": Rescale(-5.0),
    "times -5, from round 20 on": Scheduled(Rescale(-5.0), start=20),
    "`OnCredit(Rescale(-5))`": OnCredit(Rescale(-5.0)),
    "`OnCredit(ALIE(z=1.5))`": OnCredit(ALIE(z=1.5)),
}
JOINED: Mapping[str, Algorithm] = {
    "`Quorum(FedAvg(Median(), AsReported()), 9)`": Quorum(FedAvg(Median(), AsReported(beyond_tolerance="remark")), 9),
    "`Quorum(M, 9)`": Quorum(MEDIAN, 9),
    "`Quorum(FedAvg(Median(), T), 9)`": Quorum(FedAvg(Median(), SUBSET), 9),
    "`Catalyst(3, quorum=9, preprocess=T)`": Catalyst(3, quorum=9, preprocess=SUBSET),
    "`PerCluster(Quorum(M, 7))`": PerCluster(Quorum(MEDIAN, 7)),
}


def attackers(seed: int) -> frozenset[int]:
    """Return who attacks, if somebody does."""
    return replace(BASE, seed=seed).attackers()


def captures(victim: int, other: int, turn: int) -> Mapping[str, Attack]:
    """Return the attacks on a victim and its group, of which `other` is a member too."""
    joined = InGroup(ALIE(z=0.0), victim, CLIENTS // 2)
    return {
        "isolation": Scheduled(Together(Mimic(victim), Rescale(-5.0)), turn, otherwise=Mimic(victim)),
        "capture": Scheduled(InGroup(InnerProduct(5.0), victim, CLIENTS // 2), turn, otherwise=joined),
        "split": Scheduled(SignFlip(), turn, otherwise=Divided(Mimic(victim), Mimic(other))),
    }


def against(attack: str, number: int) -> Derived:
    """Return an attack on one of the honest clients, the first or a later one."""

    def fields(run: Mapping[str, Any]) -> Mapping[str, Any]:
        honest = sorted({*range(CLIENTS)} - attackers(run["seed"]))
        victim = honest[number]
        other = next(i for i in honest if i > victim and i % 2 == victim % 2)
        return {"attack": captures(victim, other, TURN[run["until"]])[attack]}

    return Derived(fields)


CAPTURES = {"no attack": None} | {
    f"{attack} {number}": against(attack, number) for attack in captures(0, 0, 0) for number in range(VICTIMS)
}
LIES = Together(Rescale(-5.0), ReportSize(1_000_000))
WHEN = {"no attack": None, "from the start": LIES, "joining late": Together(LIES, JoinLate(10.0))}
STUDIES: Mapping[str, Study] = {
    "groups": Study(GROUPS, {"composition": CLUSTERED, "attack": CAPTURES}, seeds=4),
    "unlike": Study(UNLIKE, {"composition": CLUSTERED, "attack": CAPTURES}, seeds=4),
    "reputation": Study(BASE, {"algorithm": REPUTATIONS, "attack": TURNS}, seeds=4),
    "late": Study(replace(BASE, until=ARRIVALS), {"algorithm": JOINED, "attack": WHEN}, seeds=4),
}


def cell(rows: list[Row]) -> str:
    """Return the mean accuracy of honest clients, and the least of any client."""
    runs = [
        [100 * share for i, share in row.trace.client_accuracy.items() if i not in attackers(row.trace.seed)]
        for row in rows
    ]
    return f"{fmean(map(fmean, runs)):.1f}, {min(map(min, runs)):.1f}"


def table(results: Results) -> str:
    """Return the table; an attack on several victims is one column."""
    first, second = results.axes
    of: Callable[[str], str] = lambda name: name.rstrip("0123456789 ") if second == "attack" else name  # noqa: E731
    rows = [replace(row, labels={**row.labels, second: of(row.labels[second])}) for row in results.rows]
    columns = list(dict.fromkeys(map(of, results.axes[second])))
    return crossed(replace(results, rows=rows, axes={**results.axes, second: columns}), first, second, cell)


if __name__ == "__main__":
    carry_out(__doc__, STUDIES, table, "capture")
