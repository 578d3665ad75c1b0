"""Which composition to use.

One that is offered promises to tolerate the attackers, by `phalanx.promises`, and keeps at least half of its accuracy
under the worst attack that a search found.  Among these at most three are chosen by what was measured in the federation
of the nearest size: the highest accuracy under attack, the highest without attack, and the largest number of attackers
that are tolerated.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta
from typing_extensions import override

from phalanx.core import Algorithm, InfeasibleError, Setting
from phalanx.engine.participation import Participation
from phalanx.experiments.choosing.compositions import ALONE, COMPOSITIONS, MEAN, Composition
from phalanx.experiments.choosing.federations import TIERS
from phalanx.experiments.choosing.measured import MeasuredComposition, evidence
from phalanx.experiments.leaderboard.defences import Setup
from phalanx.experiments.leaderboard.tiers import Tier
from phalanx.fields import CheckedFields
from phalanx.promises import Promise, promise
from phalanx.training.sgd import LocalSGD
from phalanx.wording import percent, plural

KEPT = 0.5  # share of its accuracy that a composition keeps under attack, or it is not offered


@dataclass(frozen=True)
class Wanted(CheckedFields):
    """The federation for which a composition is wanted.

    Args:
        clients: number of clients, at least 2.
        byzantine: number of them that may be attackers, at least 1.
        participation: share of the clients that are drawn for each round, above 0 to 1.
        sizes: reported numbers of examples; None: whatever they report.
        groups: "unknown": there may be groups of clients that learn different things, and nobody knows them. None:
            there are none.
        asynchronous: whether clients are served as they come, without rounds.
        alike: whether clients hold like data; if not, their shares of the classes differ.

    Raises:
        ValueError: a value is out of its range.
    """

    clients: Annotated[int, Meta(ge=2)]
    byzantine: int = 1
    participation: Annotated[float, Meta(gt=0, le=1)] = 1.0
    sizes: Mapping[int, int] | None = None
    groups: Literal["unknown"] | None = None
    asynchronous: bool = False
    alike: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.byzantine < self.clients:
            raise InfeasibleError(
                f"byzantine must be at least 1 and below {self.clients}, got {self.byzantine}. If nobody can lie, the "
                "mean by reported sizes loses nothing: FedAvg()."
            )
        if self.asynchronous and self.participation < 1:
            raise InfeasibleError("Without rounds nobody is drawn. Leave participation at 1, or asynchronous out.")
        if self.alike and self.groups:
            raise InfeasibleError("Groups that learn different things hold no like data. Leave out alike, or groups.")
        if self.sizes is not None and len(self.sizes) != self.clients:
            raise InfeasibleError(f"sizes must hold one for each of {self.clients} clients, got {len(self.sizes)}.")

    @property
    def where(self) -> str:
        """The kind of heterogeneity, by its name in the measurements."""
        return "groups" if self.groups else "alike" if self.alike else "unlike"

    @property
    def setting(self) -> Setting:
        """The setting that a promise depends on."""
        drawn = Participation(self.participation, 0).count(self.clients) if self.participation < 1 else None
        return Setting(self.clients, self.sizes, drawn=drawn)


@dataclass(frozen=True)
class Offer:
    """A composition that can be chosen.

    Args:
        composition: its name, and what it is.
        algorithm: made for the federation.
        promise: that of a run.
        measured: in the nearest federation.
        why: for what it is chosen.
    """

    composition: Composition
    algorithm: Algorithm[Any]
    promise: Promise
    measured: MeasuredComposition
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A composition that cannot be chosen.

    Args:
        composition: its name, and what it is.
        because: why, a sentence.
        promises: whether it promises as much as is wanted, and was not measured, or fell under attack.
    """

    composition: Composition
    because: str
    promises: bool = False


@dataclass(frozen=True)
class ChosenCompositions:
    """What there is to choose.

    Args:
        wanted: the federation.
        offers: at most three, the highest accuracy under attack first; none if nothing promises as much and keeps it.
        others: the compositions that could be chosen and are the best in none of the three.
        refused: the rest.
        mean: what was measured of the mean by reported sizes, which promises nothing; None if it was not.
        alone: what was measured where each client trains alone; None if it was not.
        tier: the federation that was measured.
        f: number of attackers in it.
    """

    wanted: Wanted
    offers: tuple[Offer, ...]
    others: tuple[Offer, ...]
    refused: tuple[Refusal, ...]
    mean: MeasuredComposition | None
    alone: MeasuredComposition | None
    tier: Tier
    f: int

    @property
    def most(self) -> int:
        """The largest number of attackers that any composition promises to tolerate, with the same setting."""
        return max((_most(one, self.wanted) for one in _suitable(self.wanted)), default=0)


def choose(wanted: Wanted) -> ChosenCompositions:
    """Return at most three compositions for a federation.

    Args:
        wanted: the federation.

    Raises:
        InfeasibleError: nothing was measured for it.

    Example:
        >>> found = choose(Wanted(clients=4, byzantine=1, alike=True))
        >>> all(offer.promise.f >= 1 for offer in found.offers)
        True
        >>> [one.composition.name for one in found.refused if "Krum" in one.composition.name]
        ['FedAvg(Krum)', 'FedAvg(MultiKrum)']
    """
    tier = _nearest(wanted.clients)
    f = _attackers(tier, wanted.byzantine / wanted.clients)
    rows = {
        one.composition: one
        for one in evidence()
        if (one.clients, one.where, one.f) == (tier.base.clients, wanted.where, f)
    }
    possible, refused = list[Offer](), list[Refusal]()
    for one in _suitable(wanted):
        found = _tried(one, wanted, rows.get(one.name))
        possible += [found] if isinstance(found, Offer) else []
        refused += [found] if isinstance(found, Refusal) else []
    offers = _best(possible)
    chosen = {offer.composition.name for offer in offers}
    return ChosenCompositions(
        wanted,
        offers,
        tuple(one for one in possible if one.composition.name not in chosen),
        tuple(refused),
        rows.get(MEAN),
        rows.get(ALONE),
        tier,
        f,
    )


def _suitable(wanted: Wanted) -> list[Composition]:
    """Return the compositions that serve clients as it is wanted, and share something."""
    return [
        one
        for one in COMPOSITIONS
        if one.asynchronous == wanted.asynchronous
        and one.name not in (MEAN, ALONE)
        and (not one.groups or wanted.groups)
    ]


def _nearest(clients: int) -> Tier:
    """Return the measured federation whose number of clients is nearest, by its ratio."""
    known = {one.clients for one in evidence()}
    there = [tier for tier in TIERS if tier.base.clients in known]
    if not there:
        raise InfeasibleError("Nothing was measured. Carry out benchmarks/choices.py.")
    return min(there, key=lambda tier: abs(math.log(tier.base.clients / clients)))


def _attackers(tier: Tier, share: float) -> int:
    """Return the measured number of attackers: the smallest whose share is as large, or the largest."""
    return next((f for f in sorted(tier.attackers) if f / tier.base.clients >= share), max(tier.attackers))


def _tried(one: Composition, wanted: Wanted, row: MeasuredComposition | None) -> Offer | Refusal:
    """Return a composition as an offer, or why it is none."""
    try:
        algorithm = made(one, wanted)
        found = promise(algorithm, wanted.setting)
    except ValueError as error:
        return Refusal(one, str(error))
    if max(found.f, found.likely or 0) < wanted.byzantine:
        return Refusal(one, found.sentence)
    if row is None:
        because = f"It promises as much, but was not measured with {plural(wanted.clients, 'client')}."
        return Refusal(one, because, promises=True)
    if row.under_attack < KEPT * row.without_attack:
        fall = f"from {percent(row.without_attack)} to {percent(row.under_attack)}"
        return Refusal(one, f"It promises as much, but fell on digits {fall} under {row.attack}.", promises=True)
    return Offer(one, algorithm, found, row)


def made(one: Composition, wanted: Wanted) -> Algorithm[Any]:
    """Return the algorithm of a composition, for a federation.

    Raises:
        ValueError: it does not exist for so many clients and attackers.
    """
    setup = Setup(wanted.byzantine, wanted.clients, 0, LocalSGD())
    return one.defence.make(setup, one.defence.values[0])


def _most(one: Composition, wanted: Wanted) -> int:
    """Return the largest number of attackers for which a composition promises to tolerate as many."""
    most = 0
    for f in range(1, (wanted.clients + 1) // 2):
        try:
            found = promise(made(one, Wanted(**{**vars(wanted), "byzantine": f})), wanted.setting)
        except ValueError:
            continue
        most = max(most, f) if found.f >= f else most
    return most


def _best(possible: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return at most three offers, each with the reasons for which it is chosen."""
    if not possible:
        return ()
    reasons = {
        "the highest accuracy under attack": lambda one: (one.measured.under_attack,),
        "the highest accuracy without attack": lambda one: (one.measured.without_attack,),
        "the most attackers tolerated": lambda one: (one.promise.f, one.measured.under_attack),
    }
    chosen = dict[str, tuple[Offer, tuple[str, ...]]]()
    for reason, by in reasons.items():
        best = max(possible, key=by)
        chosen[best.composition.name] = best, (*chosen.get(best.composition.name, (best, ()))[1], reason)
    return tuple(Offer(one.composition, one.algorithm, one.promise, one.measured, why) for one, why in chosen.values())
