"""Attacks in some of the versions of the model only."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from phalanx.attacks.attack import HONEST, Attack, Forged, Knowledge, Role, Update
from phalanx.core import Vector
from phalanx.data import Dataset
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
    start: int = 0
    stop: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"start must be at least 0, got {self.start}.")
        if self.stop is not None and self.stop <= self.start:
            raise ValueError(f"stop must be above start, which is {self.start}, got {self.stop}.")
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}.")

    def attacks_in(self, version: int) -> bool:
        """Return whether the attackers attack in a version."""
        ended = self.stop is not None and version >= self.stop
        return version >= self.start and not ended and (version - self.start) % self.every == 0

    def part(self, role: Role) -> Attack:
        """See `Attack`."""
        return self.attack.part(role) if self.attacks_in(role.version) else HONEST

    @property
    def omniscient(self) -> bool:
        """See `Attack`."""
        return self.attack.omniscient

    @property
    def needs_rule(self) -> bool:
        """See `Attack`."""
        return self.attack.needs_rule

    @property
    def remembers(self) -> bool:
        """See `Attack`."""
        return self.attack.remembers

    @property
    def trains(self) -> bool:
        """See `Attack`."""
        return self.attack.trains

    @property
    def recalls(self) -> int:
        """See `Attack`."""
        return self.attack.recalls

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """See `Attack`: the data on which it trains while it attacks."""
        return self.attack.poison(data, rng)

    def check_trainer(self, honest: LocalTrainer) -> None:
        """See `Attack`."""
        self.attack.check_trainer(honest)

    def reported_size(self, size: int) -> int:
        """See `Attack`."""
        return self.attack.reported_size(size)

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        return self.respond(update, knowledge, rng).delta

    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        """See `Attack`."""
        attack = self.attack if self.attacks_in(update.version) else HONEST
        return attack.respond(update, knowledge, rng)

    def goal(self, test: Dataset) -> Dataset | None:
        """See `Attack`."""
        return self.attack.goal(test)
