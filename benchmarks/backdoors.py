"""Measure the persistence of backdoors after the attackers have stopped, under several rules.

python benchmarks/backdoors.py [--jobs 2]

Digits, 20 clients, a perceptron of 64 hidden units.  Four clients attack in rounds 20 to 49, with five local epochs
in place of one, and are honest before and after.  Prints the mean success of the attack, and the accuracy, in percent,
after the last round of the attack and 10, 20 and 40 rounds later.
"""

from collections.abc import Mapping
from statistics import fmean

from as_study import carry_out, crossed

from phalanx import Run, Study, Until
from phalanx.aggregators import Aggregator, Clip, FLAMEFilter, Mean, Median
from phalanx.algorithms import FedAvg
from phalanx.attacks import (
    Attack,
    Backdoor,
    Chameleon,
    ConstrainAndScale,
    DistributedBackdoor,
    Neurotoxin,
    ProjectedTraining,
    Rescale,
    Scheduled,
    Together,
)
from phalanx.experiments.results import Results, Row
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation

CLIENTS, ATTACKERS, START, STOP = 20, 4, 20, 50
AFTER = (0, 10, 20, 40)  # rounds after the attack
LONGER = 5  # local epochs of an attacker
RADIUS = 0.2  # of most honest updates, the norm is below
ATTACKS: Mapping[str, Attack] = {
    "data": Backdoor(),
    "data, longer training": Together(Backdoor(), ConstrainAndScale(LONGER, alpha=1.0)),
    "model replacement": Together(Backdoor(), ConstrainAndScale(LONGER, factor=CLIENTS / ATTACKERS)),
    "DBA": Together(DistributedBackdoor(), ConstrainAndScale(LONGER, alpha=1.0)),
    "PGD": Together(Backdoor(), ProjectedTraining(LONGER, radius=RADIUS)),
    "PGD with replacement": Together(
        Backdoor(), Together(ProjectedTraining(LONGER, radius=RADIUS), Rescale(CLIENTS / ATTACKERS))
    ),
    "Neurotoxin": Together(Backdoor(), Neurotoxin(LONGER)),
    "Chameleon": Together(Backdoor(), Chameleon(LONGER)),
}
RULES: Mapping[str, Aggregator] = {
    "Mean": Mean(),
    "Clip >> Mean": Clip(RADIUS) >> Mean(),
    "Median": Median(),
    "FLAMEFilter": FLAMEFilter(),
}


STUDY = Study(
    Run(
        clients=CLIENTS,
        model=MLP((64,)),
        attack=Backdoor(),
        byzantine=ATTACKERS,
        until=Until(STOP + AFTER[-1]),
        evaluation=Evaluation(every=10),
    ),
    {
        "attack": {name: Scheduled(attack, START, STOP) for name, attack in ATTACKS.items()},
        "rule": {name: {"algorithm": FedAvg(rule)} for name, rule in RULES.items()},
    },
    seeds=3,
    name="backdoors",
)


def cell(rows: list[Row]) -> str:
    """Return the mean success at each of the measured rounds, and the accuracy after the attack."""

    def mean(curve: str, after: int) -> float:
        at = [row.trace.curves["step"].index(STOP + after) for row in rows]
        return 100 * fmean(row.trace.curves[curve][k] or 0.0 for row, k in zip(rows, at, strict=True))

    return ", ".join(f"{mean('attack_success', n):.0f}" for n in AFTER) + f"; {mean('accuracy', 0):.1f}"


def tables(results: Results) -> str:
    """Return the table."""
    return crossed(results, "attack", "rule", cell)


if __name__ == "__main__":
    carry_out(__doc__, {STUDY.name: STUDY}, tables, "backdoors")
