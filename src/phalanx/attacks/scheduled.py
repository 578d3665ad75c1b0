"""Attacks in some of the versions of the model only, and others before them.

With `otherwise`, attackers first get where they want to be, and then attack there: they copy a client until it is alone
with them, or are half of an honest group until it is split.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from typing_extensions import override

from phalanx.attacks.attack import (
    HONEST,
    Attack,
    AttackTraits,
    Combining,
    Forged,
    K,
    Knowledge,
    Role,
    Update,
    Varying,
    each,
    part,
    remembers,
    respond,
)
from phalanx.attacks.data import Poisoning
from phalanx.attacks.size import Misreporting
from phalanx.attacks.timing import Joining
from phalanx.fields import NonNegativeInt, PositiveInt


class OneOf(Combining, Varying):
    """Performs one of two attacks: a subclass says which, by `part`."""

    of_first: ClassVar[tuple[type[Attack], ...]]  # what the first attack alone does to the whole run

    @property
    @abstractmethod
    @override
    def inside(self) -> tuple[Attack, Attack]: ...

    @property
    @override
    def traits(self) -> AttackTraits:
        first, second = self.inside
        return first.traits | second.traits

    @override
    def each(self, kind: type[K]) -> tuple[K, ...]:
        return each(self.inside[0], kind) if issubclass(kind, self.of_first) else super().each(kind)

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        """See `Remembering`: as the only attacker."""
        return respond(self.part(Role(update.client, update.version, (update.client,))), update, knowledge, rng)


@dataclass(frozen=True)
class Scheduled(OneOf):
    """Performs an attack in some versions of the model; in all others another one, or none, on the honest data.

    The version is that of the attacker's download: of a synchronous algorithm, the number of rounds before.  The
    reported size and the time of joining are those of the attack, and what the attackers remember stays.  The success
    of the attack is measured in every version, so that it shows how long a backdoor persists after `stop`.

    Args:
        attack: the attack.
        start: first version in which they attack.
        stop: first version in which they attack no more; null: they never stop.
        every: number of versions from one attack to the next: 1 attacks in every version from `start` to `stop`.
        otherwise: the attack of all other versions, one without a memory; null: the attackers are honest in them.
    """

    of_first: ClassVar[tuple[type[Attack], ...]] = (Poisoning, Misreporting, Joining)

    attack: Attack
    start: NonNegativeInt = 0
    stop: int | None = None
    every: PositiveInt = 1
    otherwise: Attack | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop must be above start, which is {self.start}, got {self.stop}.")
        if remembers(self.otherwise):
            raise ValueError(
                f"otherwise must be an attack without a memory, got {self.otherwise}: the memory is that of `attack`."
            )

    def attacks_in(self, version: int) -> bool:
        """Return whether the attackers attack in a version."""
        ended = self.stop is not None and version >= self.stop
        return version >= self.start and not ended and (version - self.start) % self.every == 0

    @property
    @override
    def inside(self) -> tuple[Attack, Attack]:
        return self.attack, self.otherwise or HONEST

    @override
    def part(self, role: Role) -> Attack:
        return part(self.attack if self.attacks_in(role.version) else self.otherwise or HONEST, role)
