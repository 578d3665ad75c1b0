"""Attacks in some of the versions of the model only, and others before them.

With `otherwise`, attackers first get where they want to be, and then attack there: they copy a client until it is alone
with them, or are half of an honest group until it is split.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from typing_extensions import override

from phalanx.attacks.attack import HONEST, Attack, AttackTraits, Forged, Knowledge, Role, Update, seen_by
from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.fields import NonNegativeInt, PositiveInt
from phalanx.training.local import LocalTrainer


class OneOf(Attack, ABC):
    """Performs one of two attacks: a subclass says which, by `part`."""

    @property
    @abstractmethod
    def either(self) -> tuple[Attack, Attack]:
        """The attacks."""

    @property
    @override
    def traits(self) -> AttackTraits:
        first, second = self.either
        return (first.traits | second.traits)._replace(has_parts=True)

    @override
    def check_trainer(self, honest: LocalTrainer) -> None:
        for attack in self.either:
            attack.check_trainer(honest)


@dataclass(frozen=True)
class Scheduled(OneOf):
    """Performs an attack in some versions of the model; in all others another one, or none, on the honest data.

    The version is that of the attacker's download: of a synchronous algorithm, the number of rounds before.  The
    reported size is that of the attack from the start, and what the attackers remember stays.  The success of the
    attack is measured in every version, so that it shows how long a backdoor persists after `stop`.

    Args:
        attack: the attack.
        start: first version in which they attack.
        stop: first version in which they attack no more; null: they never stop.
        every: number of versions from one attack to the next: 1 attacks in every version from `start` to `stop`.
        otherwise: the attack of all other versions, one without a memory; null: the attackers are honest in them.
    """

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
        if self.otherwise is not None and self.otherwise.traits.remembers:
            raise ValueError(
                f"otherwise must be an attack without a memory, got {self.otherwise}: the memory is that of `attack`."
            )

    def attacks_in(self, version: int) -> bool:
        """Return whether the attackers attack in a version."""
        ended = self.stop is not None and version >= self.stop
        return version >= self.start and not ended and (version - self.start) % self.every == 0

    def _in(self, version: int) -> Attack:
        return self.attack if self.attacks_in(version) else self.otherwise or HONEST

    @property
    @override
    def either(self) -> tuple[Attack, Attack]:
        return self.attack, self.otherwise or HONEST

    @override
    def part(self, role: Role) -> Attack:
        return self._in(role.version).part(role)

    @override
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """See `Attack`: the data on which it trains while it attacks."""
        return self.attack.poison(data, rng)

    @override
    def reported_size(self, size: int) -> int:
        return self.attack.reported_size(size)

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.respond(update, knowledge, rng).delta

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        attack = self._in(update.version)
        return attack.respond(update, seen_by(attack, knowledge), rng)

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        return self.attack.goal(test)
