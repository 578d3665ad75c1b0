"""The tiers of the leaderboard: the data, the federation, the kinds of heterogeneity, the attacks and the seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from phalanx.attacks import (
    ALIE,
    Attack,
    FangKrum,
    FangTrimmedMean,
    Gaussian,
    InnerProduct,
    LabelShift,
    Mimic,
    MinMax,
    SignFlip,
)
from phalanx.core import Until
from phalanx.data import Dirichlet, FashionMNIST, SwappedLabels, Uniform
from phalanx.experiments.grid import Derived
from phalanx.experiments.leaderboard.defences import Defence, DefenceSetting, Setup
from phalanx.experiments.study import Study
from phalanx.experiments.tuning import Tuning
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
SEARCH = WorstOf(NAMED, (1.0, 0.3, 0.7, 1.5, 10.0, -3.0), (2,), (10.0,), budget=6, seeds=(2000, 2001, 2002, 2003))
IID = "IID"
HETEROGENEITY: Mapping[str, Mapping[str, Any]] = {
    IID: {"partition": Uniform()},
    "Dirichlet 1": {"partition": Dirichlet(1.0)},
    "Dirichlet 0.1": {"partition": Dirichlet(0.1, allow_empty=True)},
    "groups": {"groups": SwappedLabels()},
}
SERVER = 100  # examples that the server holds, where an algorithm needs some


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
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    tuning_seed: int = 1000
    tuning_attacks: Sequence[Attack | None] = (None, SignFlip(), ALIE())
    rounds: int = 10
    seconds: float = 6.0

    def made_for(self, defence: Defence, f: int) -> int:
        """Return the number of attackers that a defence is made for where there are f."""
        most = self.tuned_for if defence.most is None else defence.most
        return f or min(self.tuned_for, most)

    def study(self, defence: Defence) -> Study:
        """Return the study of a defence: its tuning, the search for its worst attacks, and the runs of the results."""
        most = self.made_for(defence, 0)
        options = {defence.name: {"defence": [self.derived(defence, setting) for setting in defence.settings]}}
        return Study(
            self.base,
            {
                "heterogeneity": self.heterogeneity,
                "attackers": {str(f): {"byzantine": f} for f in (0, *self.attackers)},
                "defence": {defence.name: self.derived(defence, defence.settings[0])},
                "attack": self.search,
            },
            seeds=self.seeds,
            name=self.name,
            tuning=Tuning(
                axis="defence",
                options=options,
                settings=len(defence.settings),
                seeds=(self.tuning_seed,),
                grid={"attackers": {str(most): {"byzantine": most}}, "attack": self.tuning_attacks},
            ),
            leave_out=True,
        )

    def derived(self, defence: Defence, setting: DefenceSetting) -> Derived:
        """Return the value of the axis "defence": what a defence with a setting makes of a run."""
        return Derived(partial(self._fields, defence, setting), defence.text(setting))

    def _fields(self, defence: Defence, setting: DefenceSetting, run: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of a run that a defence sets; see `Derived`.

        Raises:
            ValueError: the defence cannot be carried out with so many attackers.
        """
        f, n, training = run["byzantine"], run["clients"], run["training"]
        if defence.most is not None and f > defence.most:
            raise ValueError(f"too slow for this tier with more than {defence.most} attackers")
        assert isinstance(training, LocalSGD)
        setup = Setup(self.made_for(defence, f), n, _honest(n, f, run["seed"]), _trained(training, setting.rate))
        return _defended(defence, setting.value, setup, self.rounds, self.seconds)


@cache
def _trained(training: LocalSGD, rate: float) -> LocalSGD:
    return replace(training, lr=rate)


@cache
def _defended(defence: Defence, value: Any, setup: Setup, rounds: int, seconds: float) -> Mapping[str, Any]:
    """Return the fields of a run that a defence sets, the same values for all runs that they fit."""
    made = defence.make(setup, value)
    clock: dict[str, Any] = (
        {"until": Until(steps=rounds * defence.rounds)}
        if made.traits.synchronous
        else {"until": Until(seconds=seconds), "latency": Lognormal(each_turn=True)}
    )
    return {
        "algorithm": made,
        "training": setup.training,
        "server_examples": SERVER if made.traits.needs_reference else 0,
        **clock,
    }


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
        training=LocalSGD(steps=2, batch_size=32, engine="compiled"),
        evaluation=Evaluation(every=1_000_000),
    ),
    seeds=range(10),
)
FASHION_MNIST = Tier(
    "fashion-mnist",
    "Fashion-MNIST: 20 clients, 10,000 examples, one hidden layer of 64, 30 rounds of five minibatches of 32 examples",
    replace(
        DIGITS.base,
        data=FashionMNIST(limit=10_000),
        model=MLP((64,)),
        training=LocalSGD(steps=5, batch_size=32, engine="compiled"),
    ),
    rounds=30,
    seconds=20.0,
)
TIERS = {tier.name: tier for tier in (DIGITS, FASHION_MNIST)}
