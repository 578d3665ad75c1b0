"""Measure the persistence of backdoors after the attackers have stopped, under several rules.

python benchmarks/backdoors.py [--seeds 0 1 2] [--attacks DBA] [--rules Median]

Digits, 20 clients, a perceptron of 64 hidden units.  Four clients attack in rounds 20 to 49, with five local epochs
in place of one, and are honest before and after.  Prints the mean success of the attack, and the accuracy, in percent,
after the last round of the attack and 10, 20 and 40 rounds later.
"""

import argparse
from collections.abc import Mapping
from statistics import fmean

from phalanx import Run, Until, simulate
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


def outcome(attack: Attack, rule: Aggregator, seed: int) -> list[tuple[float, float]]:
    """Return success and accuracy at each of the measured rounds."""
    run = Run(
        algorithm=FedAvg(rule),
        clients=CLIENTS,
        model=MLP((64,)),
        attack=Scheduled(attack, START, STOP),
        byzantine=ATTACKERS,
        until=Until(STOP + AFTER[-1]),
        evaluation=Evaluation(every=10),
        seed=seed,
    )
    found = {line.step: line.metrics for line in simulate(run).history if line.metrics is not None}
    measured = [found[STOP + rounds] for rounds in AFTER]
    return [(m.attack_success or 0.0, m.accuracy) for m in measured]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    options = parser.parse_args()
    print(f"| attack | rule | {' | '.join(f'success, {n} later' for n in AFTER)} | accuracy |")
    print("| --- | --- |" + " --- |" * (len(AFTER) + 1))
    for attack in options.attacks:
        for rule in options.rules:
            runs = [outcome(ATTACKS[attack], RULES[rule], seed) for seed in options.seeds]
            means = [[100 * fmean(column) for column in zip(*at, strict=True)] for at in zip(*runs, strict=True)]
            success = " | ".join(f"{s:.0f}" for s, _ in means)
            print(f"| {attack} | {rule} | {success} | {means[0][1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
