"""Attacks in some of the versions of the model only."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from typing_extensions import override

from phalanx.attacks.attack import HONEST, Attack, Forged, Knowledge, Role, Update
from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.fields import NonNegativeInt, PositiveInt
from phalanx.training.local import LocalTrainer


@dataclass(frozen=True)
class Scheduled(Attack):
    """Performs an attack in some versions of the model; in all others the attackers are honest, on their honest data.

    The version is that of the attacker's download: of a synchronous algorithm, the number of rounds before.  The
    reported size is that of the attack from the start, and what the attackers remember stays.  The success of the
    attack is measured in every version, so that it shows how long a backdoor persists after `stop`.

    Args:
        attack: the attack.
        start: first version in which they attack.
        stop: first version in which they attack no more; null: they never stop.
        every: number of versions from one attack to the next: 1 attacks in every version from `start` to `stop`.
    """

    has_parts: ClassVar[bool] = True

    attack: Attack
    start: NonNegativeInt = 0
    stop: int | None = None
    every: PositiveInt = 1

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop must be above start, which is {self.start}, got {self.stop}.")

    def attacks_in(self, version: int) -> bool:
        """Return whether the attackers attack in a version."""
        ended = self.stop is not None and version >= self.stop
        return version >= self.start and not ended and (version - self.start) % self.every == 0

    @override
    def part(self, role: Role) -> Attack:
        return self.attack.part(role) if self.attacks_in(role.version) else HONEST

    @property
    @override
    def omniscient(self) -> bool:
        return self.attack.omniscient

    @property
    @override
    def needs_rule(self) -> bool:
        return self.attack.needs_rule

    @property
    @override
    def remembers(self) -> bool:
        return self.attack.remembers

    @property
    @override
    def trains(self) -> bool:
        return self.attack.trains

    @property
    @override
    def recalls(self) -> int:
        return self.attack.recalls

    @override
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """See `Attack`: the data on which it trains while it attacks."""
        return self.attack.poison(data, rng)

    @override
    def check_trainer(self, honest: LocalTrainer) -> None:
        self.attack.check_trainer(honest)

    @override
    def reported_size(self, size: int) -> int:
        return self.attack.reported_size(size)

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.respond(update, knowledge, rng).delta

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        attack = self.attack if self.attacks_in(update.version) else HONEST
        return attack.respond(update, knowledge, rng)

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        return self.attack.goal(test)
