"""Common parts of the experiments on Shakespeare: one federation, three rules, three weightings, model negation."""

from collections.abc import Mapping
from dataclasses import replace

from papers.client_weighting import mnist
from phalanx.aggregators import Aggregator
from phalanx.algorithms import FedAvg
from phalanx.attacks import Attack, ModelNegation, Together
from phalanx.core import Until
from phalanx.data import Natural, Shakespeare
from phalanx.experiments.papers.experiment import Scale
from phalanx.models import CharLSTM
from phalanx.runs.plan import Run
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD
from phalanx.weighting import AsReported, Ignore, Preprocess, Truncate

RULES: Mapping[str, Aggregator] = {rule: mnist.RULES[rule] for rule in ("mean", "median", "trimmed mean")}
AS_STATED = "truncated as stated"
WEIGHTS: Mapping[str, Preprocess] = {  # truncated in each round, for its ten clients
    "declared": AsReported(beyond_tolerance="remark"),
    "truncated": Truncate(alpha=0.2, alpha_star=0.5, scope="cohort"),  # the program limits 2 of 10 to one half
    AS_STATED: Truncate(alpha=0.1, alpha_star=0.5, scope="cohort"),
    "ignored": Ignore(),
}
COUNTED = (
    "The paper states alpha = 10 %; its program counts floor(10 % of 10) + 1 = 2 clients, which is alpha = 20 % here: "
    '"truncated". With one client, "truncated as stated", an attacker gets one half of the weight exactly, and that is '
    "where a weighted median breaks."
)
ATTACKS: Mapping[str, tuple[Attack, int | float, int | None]] = {  # number of clients, and number of them in a round
    "1 attacker": (Together(ModelNegation(), mnist.ONE), 1, None),
    "10 %": (Together(ModelNegation(), mnist.TENTH), 0.1, 1),
}
BASES: Mapping[Scale, Run] = {
    "quick": Run(
        data=Shakespeare(roles=715, tests=400),
        clients=100,
        partition=Natural(),
        participation=0.1,
        model=CharLSTM(hidden=128, layers=1),
        training=LocalSGD(epochs=1, batch_size=4, lr=1.0),
        until=Until(steps=100),
        evaluation=Evaluation(every=5),
    ),
    "paper": Run(
        data=Shakespeare(roles=715, tests=2000),
        clients=715,
        partition=Natural(),
        participation=10 / 715,
        model=CharLSTM(),
        training=LocalSGD(epochs=1, batch_size=4, lr=1.0),
        until=Until(steps=1200),
        evaluation=Evaluation(every=20),
    ),
}
SMALLER = (
    "At quick scale: 100 of the 715 roles, drawn at random, 100 rounds instead of 1,200, one LSTM layer of 128 units "
    "instead of two of 256, every fifth round tested on 400 pieces of text. So accuracies lie below the published "
    "ones, and are to be compared with each other."
)


PROPER = "The published trimmed mean is the program's form, ours is the proper one, which removes weight: see `ties`."


def cells(scale: Scale, seed: int, attack: str | None = None) -> dict[str, Run]:
    """Return a run for each rule and weighting, by name; without an attack if none is named."""
    base = BASES[scale]
    if attack is not None:
        forged, byzantine, per_round = ATTACKS[attack]
        base = replace(base, attack=forged, byzantine=byzantine, byzantine_per_round=per_round)
    return {
        mnist.name(rule, weights, attack): replace(
            base, algorithm=FedAvg(aggregate=RULES[rule], preprocess=WEIGHTS[weights]), seed=seed
        )
        for rule in RULES
        for weights in WEIGHTS
    }
