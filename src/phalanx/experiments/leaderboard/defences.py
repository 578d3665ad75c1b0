"""The defences of the leaderboard: rules, chains and algorithms, each made for a number of attackers.

Each gets four settings to be tuned among: four learning rates, or two of them with two values of an option of its own.
A rule or an algorithm that needs no more than the number of attackers is there without a line here.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isabstract
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from phalanx import aggregators, algorithms
from phalanx.aggregators import (
    CTMA,
    SMEA,
    AdaptiveClip,
    Aggregator,
    Bucketing,
    CenteredClipping,
    Chain,
    Clip,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MoNNA,
    NearestNeighborMixing,
    SignMajority,
    Steps,
    TrimmedMean,
)
from phalanx.algorithms import (
    BASGD,
    FLAME,
    FLHC,
    IFCA,
    RFFL,
    SCAFFOLD,
    AFLGuard,
    AsyncFilter,
    AsyncMomentum,
    AsyncRFFL,
    BenignClusters,
    ByzantineCFL,
    Catalyst,
    CentrallyPrivate,
    ClusteredFL,
    DeMoA,
    FedAdam,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDyn,
    FedNova,
    FLTrust,
    FoolsGold,
    Kardam,
    LowRankProducts,
    PerCluster,
    QFedAvg,
    Quorum,
    ServerAlone,
    SignSGD,
    Standalone,
    StoCFL,
    WorkerMomentum,
    ZenoPlusPlus,
)
from phalanx.algorithms.wrapper import Wrapper
from phalanx.core import Algorithm
from phalanx.training.sgd import LocalSGD
from phalanx.weighting import Ignore, Truncate

RATES = (0.3, 1.0, 3.0, 10.0)  # learning rates of a defence without an option of its own
TWO_RATES = (0.3, 1.0)  # of one with two values of an option
BASELINE = "baseline"  # the kind of what does without clients, or without a server


class Setup(NamedTuple):
    """The federation that a defence is made for."""

    f: int  # number of attackers
    n: int  # number of clients
    honest: int  # a client that is no attacker
    training: LocalSGD  # of the clients

    @property
    def share(self) -> float:
        """The share of attackers among the clients."""
        return self.f / self.n


class DefenceSetting(NamedTuple):
    """A setting of a defence: the learning rate of the clients, and the value of its own option, if it has one."""

    rate: float
    value: Any = None


@dataclass(frozen=True)
class Defence:
    """A defence.

    Args:
        name: on the page.
        kind: "rule", "chain", "algorithm", or "baseline".
        make: returns its algorithm, for a federation and a value of its option.
        option: name of its option; "" for none.
        values: of the option, two if it has one.
        most: largest number of attackers for which it is quick enough; None for any.
        rounds: number of rounds that a round of the tier is for it, as where a client is sent several models one after
            the other before the server uses its update.
        trusts: whether it trusts examples of the server, or a client, which others do without.
    """

    name: str
    kind: str
    make: Callable[[Setup, Any], Algorithm]
    option: str = ""
    values: Sequence[Any] = (None,)
    most: int | None = None
    rounds: int = 1
    trusts: bool = False

    @property
    def settings(self) -> list[DefenceSetting]:
        """The settings among which it is tuned."""
        rates = RATES if len(self.values) == 1 else TWO_RATES
        return [DefenceSetting(rate, value) for value in self.values for rate in rates]

    def text(self, setting: DefenceSetting) -> str:
        """Return a setting in words, such as `lr 0.3, radius 1`."""
        return f"lr {setting.rate:g}" + (f", {self.option} {setting.value:g}" if self.option else "")


def rule(
    name: str, make: Callable[..., Aggregator], option: str = "", values: Sequence[Any] = (None,), **more: Any
) -> Defence:
    """Return a rule in rounds of FedAvg, where each client has the same weight; `make` is given the setup."""
    kind = more.pop("kind", "rule")
    return Defence(name, kind, partial(_averaged, make, bool(option)), option, values, **more)


def _averaged(make: Callable[..., Aggregator], with_value: bool, setup: Setup, value: Any) -> Algorithm:
    return FedAvg(aggregate=make(setup, value) if with_value else make(setup), preprocess=Ignore())


chain = partial(rule, kind="chain")


def algorithm(
    name: str, make: Callable[[Setup, Any], Algorithm], option: str = "", values: Sequence[Any] = (None,), **more: Any
) -> Defence:
    """Return an algorithm."""
    return Defence(name, "algorithm", make, option, values, **more)


def _median(**options: Any) -> FedAvg:
    return FedAvg(aggregate=Median(), preprocess=Ignore(), **options)


LISTED: tuple[Defence, ...] = (
    Defence("Standalone", BASELINE, lambda s, _: Standalone()),
    Defence("ServerAlone", BASELINE, lambda s, _: ServerAlone(), rounds=10, trusts=True),
    Defence(
        "SignMajority", "rule", lambda s, v: FedAvg(SignMajority(), Ignore(), server_lr=v), "server_lr", (0.03, 0.1)
    ),
    rule("MoNNA, trusting an honest client", lambda s: MoNNA(s.f, s.honest), trusts=True),
    rule("CenteredClipping", lambda s, v: CenteredClipping(v), "radius", (0.3, 1.0)),
    rule("CTMA(Median)", lambda s: CTMA(s.share)),
    rule("SMEA", lambda s: SMEA(s.f), most=2),
    chain("Clip >> Mean", lambda s, v: Clip(v) >> Mean(), "radius", (0.3, 1.0)),
    chain("AdaptiveClip >> TrimmedMean", lambda s: AdaptiveClip(s.f) >> TrimmedMean(s.share)),
    chain("Bucketing(2) >> Median", lambda s: Bucketing(2) >> Median()),
    chain("Bucketing(2) >> GeometricMedian", lambda s: Bucketing(2) >> GeometricMedian()),
    chain("NNM >> Median", lambda s: NearestNeighborMixing(s.f) >> Median()),
    chain("NNM >> TrimmedMean", lambda s: NearestNeighborMixing(s.f) >> TrimmedMean(s.share)),
    chain("NNM >> Krum", lambda s: NearestNeighborMixing(s.f) >> Krum(s.f)),
    chain("NNM >> GeometricMedian", lambda s: NearestNeighborMixing(s.f) >> GeometricMedian()),
    chain(
        "AdaptiveClip >> NNM >> TrimmedMean",
        lambda s: Steps((AdaptiveClip(s.f), NearestNeighborMixing(s.f))) >> TrimmedMean(s.share),
    ),
    algorithm("FedAvg, reported sizes", lambda s, _: FedAvg()),
    algorithm(
        "FedAvg(Median), truncated sizes",
        lambda s, _: FedAvg(aggregate=Median(), preprocess=Truncate.as_published(max(s.share, 0.05), 0.499)),
    ),
    algorithm("FLTrust", lambda s, _: FLTrust(), trusts=True),
    algorithm("FLAME", lambda s, _: FLAME(f=s.f)),
    algorithm("FoolsGold", lambda s, _: FoolsGold()),
    algorithm("RFFL", lambda s, v: RFFL(threshold=v, warmup=3, challenge=None), "threshold", (1 / 60, 1 / 3)),
    algorithm(
        "ByzantineCFL(Median)", lambda s, v: ByzantineCFL(threshold=v, aggregate=Median()), "threshold", (0.02, 0.3)
    ),
    algorithm(
        "ClusteredFL(Median)",
        lambda s, v: ClusteredFL(min_round=4, aggregate=Median(), gamma_max=v, preprocess=Ignore()),
        "gamma_max",
        (0.0, 0.8),
    ),
    algorithm("BenignClusters", lambda s, v: BenignClusters(f=s.f, threshold=v), "threshold", (0.02, 0.3)),
    algorithm("IFCA(4, Median)", lambda s, _: IFCA(4, aggregate=Median()), rounds=4),
    algorithm("FLHC(Median)", lambda s, v: FLHC(v, aggregate=Median(), preprocess=Ignore()), "rounds", (3, 6)),
    algorithm("StoCFL(Median)", lambda s, v: StoCFL(tau=v, aggregate=Median()), "tau", (0.3, 0.5)),
    algorithm("PerCluster(Median)", lambda s, _: PerCluster(_median())),
    algorithm("DeMoA", lambda s, v: DeMoA(momentum=v), "momentum", (0.5, 0.9)),
    algorithm("WorkerMomentum(Median)", lambda s, v: WorkerMomentum(_median(), v), "momentum", (0.5, 0.9)),
    algorithm("SCAFFOLD(Median)", lambda s, _: SCAFFOLD(aggregate=Median(), preprocess=Ignore())),
    algorithm("FedDyn(Median)", lambda s, v: FedDyn(v, Median(), Ignore()), "alpha", (0.01, 0.1)),
    algorithm("FedNova(Median)", lambda s, _: FedNova(s.training, Median(), Ignore())),
    algorithm("FedAdam(Median)", lambda s, v: FedAdam(_median(), server_lr=v), "server_lr", (0.03, 0.1)),
    algorithm(
        "CentrallyPrivate(FedAvg)",
        lambda s, v: CentrallyPrivate(FedAvg(preprocess=Ignore()), v, 0.1, quantile=None),
        "clip",
        (0.3, 1.0),
    ),
    algorithm("QFedAvg", lambda s, _: QFedAvg(lr=s.training.lr)),
    algorithm("SignSGD", lambda s, v: SignSGD(v), "server_lr", (0.03, 0.1)),
    algorithm("FedAsync", lambda s, v: FedAsync(v), "mixing", (0.1, 0.6)),
    algorithm("FedBuff", lambda s, _: FedBuff(10)),
    algorithm("FedBuff(Median)", lambda s, _: FedBuff(10, aggregate=Median())),
    algorithm("Quorum(FedAvg(Median))", lambda s, _: Quorum(_median(), s.n - s.f)),
    algorithm("Catalyst", lambda s, _: Catalyst(s.f)),
    algorithm("Catalyst(Median)", lambda s, _: Catalyst(s.f, aggregate=Median())),
    algorithm("Quorum(AsyncFilter)", lambda s, _: Quorum(AsyncFilter(), 10)),
    algorithm("Kardam", lambda s, v: Kardam(s.f, server_lr=v), "server_lr", (0.1, 0.4)),
    algorithm("BASGD", lambda s, _: BASGD(min(2 * s.f + 1, s.n))),
    algorithm("ZenoPlusPlus", lambda s, v: ZenoPlusPlus(v), "server_lr", (0.05, 0.2), trusts=True),
    algorithm("AFLGuard", lambda s, v: AFLGuard(v), "radius", (1.0, 2.0), trusts=True),
    algorithm("AsyncMomentum", lambda s, v: AsyncMomentum(server_lr=v, weight_by="clients"), "server_lr", (0.05, 0.2)),
    algorithm("AsyncRFFL", lambda s, v: AsyncRFFL(threshold=v, challenge=None), "threshold", (1 / 60, 1 / 3)),
)


GIVEN = {
    "f": "f",
    "beta": "share",
    "share": "share",
}  # the field of a rule or algorithm that takes a value of the setup
NONE = (Chain, LowRankProducts, Wrapper)  # no defence by themselves
Kind = TypeVar("Kind")


def _made(kind: type[Kind], setup: Setup, _: Any = None) -> Kind:
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
    weighted = {"preprocess": Ignore()} if "preprocess" in fields else {}
    return kind(**weighted, **{name: getattr(setup, given) for name, given in GIVEN.items() if name in fields})


def plain(listed: Sequence[Defence]) -> tuple[Defence, ...]:
    """Return the rules and algorithms that nothing listed names, with their defaults, made for that many attackers."""
    rules = {re.split(r"\W", one.name)[0] for one in listed if one.kind == "rule"}
    others = {word for one in listed if one.kind != "rule" for word in re.findall(r"\w+", one.name)}
    return (
        *(rule(kind.__name__, partial(_made, kind)) for kind in _unnamed(aggregators, Aggregator, rules)),
        *(algorithm(kind.__name__, partial(_made, kind)) for kind in _unnamed(algorithms, Algorithm, others)),
    )


def _unnamed(package: ModuleType, base: type, named: Collection[str]) -> list[Any]:
    kinds = [getattr(package, name) for name in package.__all__ if name not in named]
    return [
        k
        for k in kinds
        if isinstance(k, type) and issubclass(k, base) and not isabstract(k) and not issubclass(k, NONE)
    ]


DEFENCES = (*plain(LISTED), *LISTED)
