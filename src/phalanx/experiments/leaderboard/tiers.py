"""The tiers of the leaderboard: the data, the federation, the kinds of heterogeneity, the attacks and the seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from phalanx.attacks import (
    ALIE,
    Attack,
    FangKrum,
    FangTrimmedMean,
    Flood,
    Gaussian,
    HoldBack,
    InnerProduct,
    LabelShift,
    Linger,
    Mimic,
    MinMax,
    SignFlip,
    Together,
)
from phalanx.core import Until
from phalanx.data import Dirichlet, FashionMNIST, HeldOut, SwappedLabels, Uniform
from phalanx.experiments.leaderboard.defences import Defence, Setting, Setup
from phalanx.experiments.worst import WorstOf
from phalanx.models import MLP
from phalanx.runs.plan import Run
from phalanx.simulation import Lognormal
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import LocalSGD

NAMED: Mapping[str, Attack] = {  # at the strengths that their papers give
    "SignFlip": SignFlip(),
    "Gaussian": Gaussian(),
    "LabelShift": LabelShift(),
    "ALIE": ALIE(),
    "InnerProduct": InnerProduct(),
    "Mimic": Mimic(),
    "MinMax": MinMax(),
    "FangKrum": FangKrum(),
    "FangTrimmedMean": FangTrimmedMean(),
}
TIMING: Sequence[Attack] = (Flood(0.25), Linger(3.0), HoldBack())  # added to an attack where clients need not wait
SEARCH = WorstOf(NAMED, (1.0, 0.3, 0.7, 1.5, 10.0, -3.0), (2,), (10.0,), budget=6, seeds=(2000, 2001, 2002, 2003))
IID = "IID"
HETEROGENEITY: Mapping[str, Mapping[str, Any]] = {
    IID: {"partition": Uniform()},
    "Dirichlet 1": {"partition": Dirichlet(1.0)},
    "Dirichlet 0.1": {"partition": Dirichlet(0.1, allow_empty=True)},
    "groups": {"groups": SwappedLabels()},
}
SERVER = 100  # examples that the server holds, where an algorithm needs some


class Conditions(NamedTuple):
    """What a defence meets in a run.

    Args:
        where: name of a kind of heterogeneity.
        f: number of attackers; 0 for none, where the defence is made for `Tier.tuned_for`.
        attack: of them; None for none.
        seed: of the run.
        held_out: whether it is a tuning run, which is tested on training examples that are held out.
    """

    where: str
    f: int
    attack: Attack | None
    seed: int
    held_out: bool = False


@dataclass(frozen=True)
class Tier:
    """A leaderboard's size: equal tiers have equal runs.

    Args:
        name: on the command line, and of its file of records.
        title: on the page.
        base: the federation, without defence and attack; each client trains once in a round.
        attackers: their numbers, without 0.
        tuned_for: the number of attackers with which defences are tuned, and without attackers are set up.
        heterogeneity: by name the fields of a run.
        search: the named attacks, and how they are strengthened.
        refined: number of named attacks, the worst of a cell, that are strengthened.
        seeds: of the results.
        tuning_seed: of the tuning runs.
        tuning_attacks: of the tuning runs; None for none.
        rounds: of synchronous defences.
        seconds: virtual ones of asynchronous defences; a client's training takes about one.
    """

    name: str
    title: str
    base: Run
    attackers: Sequence[int] = (2, 4, 6, 8)
    tuned_for: int = 4
    heterogeneity: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: HETEROGENEITY)
    search: WorstOf = SEARCH
    refined: int = 2
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    tuning_seed: int = 1000
    tuning_attacks: Sequence[Attack | None] = (None, SignFlip(), ALIE())
    rounds: int = 10
    seconds: float = 6.0

    def made_for(self, defence: Defence, f: int) -> int:
        """Return the number of attackers that a defence is made for where there are f."""
        most = self.tuned_for if defence.most is None else defence.most
        return f or min(self.tuned_for, most)

    def plan(self, defence: Defence, setting: Setting, at: Conditions) -> Run:
        """Return a run.

        Raises:
            ValueError: the defence cannot be carried out with so many attackers.
        """
        f, attack = at.f, at.attack
        if defence.most is not None and f > defence.most:
            raise ValueError(f"too slow for this tier with more than {defence.most} attackers")
        n = self.base.clients
        enemy: dict[str, Any] = {"byzantine": f, "attack": attack} if attack is not None and f else {}
        assert isinstance(self.base.training, LocalSGD)
        training = replace(self.base.training, lr=setting.rate)
        setup = Setup(self.made_for(defence, f), n, _honest(n, f if enemy else 0, at.seed), training)
        made = defence.make(setup, setting.value)
        training = replace(training, stacked=training.stacked and not made.corrects)
        clock: dict[str, Any] = (
            {"until": Until(steps=self.rounds * defence.models)}
            if made.synchronous
            else {"until": Until(seconds=self.seconds), "latency": Lognormal(each_turn=True)}
        )
        return replace(
            self.base,
            algorithm=made,
            training=training,
            data=HeldOut(self.base.data) if at.held_out else self.base.data,
            server_examples=SERVER if made.needs_reference else 0,
            seed=at.seed,
            **self.heterogeneity[at.where],
            **clock,
            **enemy,
        )

    def timing(self, attack: Attack, plan: Run) -> list[Attack]:
        """Return an attack with each kind of bad timing; none where all clients wait for the end of the round."""
        return [] if plan.algorithm.synchronous else [Together(attack, timing) for timing in TIMING]


@cache
def _honest(clients: int, f: int, seed: int) -> int:
    """Return the first client that is no attacker in the runs of a seed."""
    plan = Run(clients=clients, byzantine=f, attack=SignFlip() if f else None, seed=seed)
    return min(set(range(clients)) - plan.attackers())


DIGITS = Tier(
    "digits",
    "Handwritten digits: 20 clients, softmax regression, 10 rounds of two minibatches of 32 examples",
    Run(
        clients=20,
        model=MLP(()),
        training=LocalSGD(steps=2, batch_size=32, stacked=True),
        evaluation=Evaluation(every=1_000_000),
    ),
)
FASHION_MNIST = Tier(
    "fashion-mnist",
    "Fashion-MNIST: 20 clients, 10,000 examples, one hidden layer of 64, 30 rounds of five minibatches of 32 examples",
    replace(
        DIGITS.base,
        data=FashionMNIST(limit=10_000),
        model=MLP((64,)),
        training=LocalSGD(steps=5, batch_size=32, compiled=True),
    ),
    rounds=30,
    seconds=20.0,
)
TIERS = {tier.name: tier for tier in (DIGITS, FASHION_MNIST)}
