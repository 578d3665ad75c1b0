"""Attacks on the groups that clients are divided into, and on the reputation that a server gives them.

`Scheduled` says when attackers turn: it first lets them copy a client, join a group or split it, and attack there then.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.attacks.attack import (
    Attack,
    AttackTraits,
    Combining,
    Forged,
    Knowledge,
    Remembering,
    Role,
    Update,
    each,
    needed,
    part,
    remembers,
    respond,
    varies,
)
from phalanx.attacks.data import Poisoning
from phalanx.attacks.scheduled import OneOf
from phalanx.attacks.size import Misreporting
from phalanx.attacks.timing import Joining, changes_timing
from phalanx.attacks.training import Training
from phalanx.fields import NonNegativeInt, PositiveInt
from phalanx.numerics.linalg import cosine_similarity


@dataclass(frozen=True)
class Divided(OneOf):
    """Performs one attack by every second attacker, another by the others: to split a group, or to act both parts.

    Attackers are counted by id.  The reported size and the time of joining of all are those of `first`.

    Args:
        first: the attack of the first attacker, the third, and so on.
        second: the attack of the second, the fourth, and so on.
    """

    of_first: ClassVar[tuple[type[Attack], ...]] = (Misreporting, Joining)

    first: Attack
    second: Attack

    @property
    @override
    def inside(self) -> tuple[Attack, Attack]:
        return self.first, self.second

    @override
    def part(self, role: Role) -> Attack:
        return part(self.inside[role.rank % 2], role)


@dataclass(frozen=True)
class InGroup(Combining):
    """Performs an attack among one client and those most like it, as if the federation were that group.

    The attackers see only the updates of `target` and of the `count` - 1 honest clients whose updates have the largest
    cosine with its own.  `InGroup(ALIE(z=0.0))` sends the mean of the group, and so joins its cluster.

    Args:
        attack: an attack on updates, the same for all attackers.
        target: id of the client; if it does not take part, the next honest client by id, cyclically.
        count: number of honest clients of its group, itself included.
    """

    attack: Attack
    target: NonNegativeInt = 0
    count: PositiveInt = 4

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _check_updates_only("InGroup", self.attack)

    @property
    @override
    def traits(self) -> AttackTraits:
        return self.attack.traits._replace(omniscient=True)

    @property
    @override
    def inside(self) -> tuple[Attack, ...]:
        return (self.attack,)

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        return respond(self.attack, update, self._group(needed(self, knowledge)), rng)

    def _group(self, seen: Knowledge) -> Knowledge:
        """Return what is seen of the group."""
        if len(seen.honest) <= self.count:
            return seen
        row = next((row for row, client in enumerate(seen.clients) if client >= self.target), 0)
        alike = cosine_similarity(seen.honest)[row].clone()
        alike[row] = torch.inf
        rows = sorted(alike.topk(self.count).indices.tolist())
        return replace(seen, honest=seen.honest[rows], clients=tuple(seen.clients[row] for row in rows))


class Credit(NamedTuple):
    """What an attacker of `OnCredit` remembers."""

    own: float = 0.0  # moving average of its cosines with the mean of the honest updates, from zero
    honest: float = 0.0  # the same of the honest clients, their mean


@dataclass(frozen=True)
class OnCredit(Remembering):
    """Attacks as often as its reputation allows, and is honest in between.

    Servers such as that of `RFFL` rate a client by a moving average of the cosines of its updates with the aggregate.
    The attackers estimate it, with the mean of the honest updates as the aggregate.  They attack where their average
    after the attack would still be at least `keep` of the mean of the honest ones.

    Args:
        attack: an attack on updates, the same for all attackers, without a memory.
        fade: weight of the past in the average, in [0, 1).
        keep: share of the mean average of honest clients that is kept, in [0, 1).
    """

    attack: Attack
    fade: Annotated[float, Meta(ge=0, lt=1)] = 0.8
    keep: Annotated[float, Meta(ge=0, lt=1)] = 0.5

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _check_updates_only("OnCredit", self.attack)
        if remembers(self.attack):
            raise ValueError(f"OnCredit needs an attack without a memory, got {self.attack}.")

    @property
    @override
    def traits(self) -> AttackTraits:
        return self.attack.traits._replace(omniscient=True)

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        seen = needed(self, knowledge)
        past = update.memory if isinstance(update.memory, Credit) else Credit()
        if not len(seen.honest):
            return Forged(update.delta, past)
        forged = respond(self.attack, update, seen, rng).delta
        mean = seen.honest.mean(0, keepdim=True)
        cosines = cosine_similarity(torch.cat((seen.honest, mean, forged[None], update.delta[None])))[len(seen.honest)]
        level = float(cosines[: len(seen.honest)].mean())
        attacking, behaving = (
            Credit(self._after(past.own, float(cosine)), self._after(past.honest, level)) for cosine in cosines[-2:]
        )
        turns = attacking.own >= self.keep * attacking.honest
        return Forged(forged, attacking) if turns else Forged(update.delta, behaving)

    def _after(self, average: float, cosine: float) -> float:
        return self.fade * average + (1 - self.fade) * cosine


def _check_updates_only(name: str, attack: Attack) -> None:
    """Raise ValueError if an attack is not one and the same attack on updates."""
    others = varies(attack) or changes_timing(attack)
    others = others or any(each(attack, Poisoning) + each(attack, Training) + each(attack, Misreporting))
    if others or type(attack).forge is Attack.forge:
        raise ValueError(
            f"{name} needs an attack on updates alone that is the same for all attackers in all rounds, got {attack}. "
            f"Choose another attack. What else they do goes around: Together(LabelFlip(), {name}(...)), "
            f"Scheduled({name}(...))."
        )
