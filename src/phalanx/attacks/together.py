"""Attacks made of attacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from phalanx.attacks.attack import Answer, Attack, Knowledge, Meanwhile, Update, needed, seen_by
from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.rng import generator


@dataclass(frozen=True)
class Together(Attack):
    """Carries out one attack after the other: each works on what the previous one left.

    The second poisons the data that the first poisoned, declares from the size that the first declared, and forges the
    update that the first forged.  More than two are nested: `Together(Backdoor(), Together(Rescale(7.0),
    ReportTimes(10.0)))`.  It delays what the first delayed, and sends its own answers for each of the first's.  An
    omniscient part sees what it would see alone.

    Args:
        first: the attack that begins; success is measured by its goal if it has one, else by the other's.
        second: the attack that follows.
    """

    first: Attack
    second: Attack

    @property
    def omniscient(self) -> bool:
        """See `Attack`."""
        return self.first.omniscient or self.second.omniscient

    @property
    def needs_rule(self) -> bool:
        """See `Attack`."""
        return self.first.needs_rule or self.second.needs_rule

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """See `Attack`."""
        return self.second.poison(self.first.poison(data, rng), rng)

    def declare(self, size: int) -> int:
        """See `Attack`."""
        return self.second.declare(self.first.declare(size))

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        delta = self.first.forge(update, seen_by(self.first, knowledge), rng)
        return self.second.forge(update._replace(delta=delta), seen_by(self.second, knowledge), rng)

    def goal(self, test: Dataset) -> Dataset | None:
        """See `Attack`."""
        goal = self.first.goal(test)
        return self.second.goal(test) if goal is None else goal

    @property
    def recalls(self) -> int:
        """See `Attack`."""
        return max(self.first.recalls, self.second.recalls)

    @property
    def holds_back(self) -> bool:
        """See `Attack`."""
        return self.first.holds_back or self.second.holds_back

    def delay(self, seconds: float, rng: torch.Generator) -> float:
        """See `Attack`."""
        return self.second.delay(self.first.delay(seconds, rng), rng)

    def speaks(self, meanwhile: Meanwhile) -> bool:
        """See `Attack`: when both do."""
        return self.first.speaks(meanwhile) and self.second.speaks(meanwhile)

    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """See `Attack`: the second sends its own for each of the first's."""
        return [a for one in self.first.answers(answer, earlier) for a in self.second.answers(one, earlier)]


@dataclass(frozen=True)
class Sybils(Attack):
    """One attacker behind many clients: all of them send the same forged update.

    The Sybils of Fung, Yoon and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", 2020.  They
    see each other's updates, and no honest one unless the attack does.  Its random draws come from one stream for all.

    Args:
        attack: what is done to data, size and update.
        send: "first": what the attacker with the lowest id in the round, or in flight, would send; "mean": the mean of
            what they all would send.
        seed: of the stream that they share.
    """

    omniscient: ClassVar[bool] = True

    attack: Attack
    send: Literal["first", "mean"] = "first"
    seed: int = 0

    @property
    def needs_rule(self) -> bool:
        """See `Attack`."""
        return self.attack.needs_rule

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """See `Attack`."""
        return self.attack.poison(data, rng)

    def declare(self, size: int) -> int:
        """See `Attack`."""
        return self.attack.declare(size)

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        return needed(self, knowledge).agreed(self, self._forged)

    def goal(self, test: Dataset) -> Dataset | None:
        """See `Attack`."""
        return self.attack.goal(test)

    @property
    def recalls(self) -> int:
        """See `Attack`."""
        return self.attack.recalls

    @property
    def holds_back(self) -> bool:
        """See `Attack`."""
        return self.attack.holds_back

    def delay(self, seconds: float, rng: torch.Generator) -> float:
        """See `Attack`."""
        return self.attack.delay(seconds, rng)

    def speaks(self, meanwhile: Meanwhile) -> bool:
        """See `Attack`."""
        return self.attack.speaks(meanwhile)

    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """See `Attack`."""
        return self.attack.answers(answer, earlier)

    def _forged(self, knowledge: Knowledge) -> Vector:
        models = knowledge.colluders[:1] if self.send == "first" else knowledge.colluders
        rows = [
            self.attack.forge(u, seen_by(self.attack, knowledge), generator(self.seed, "sybils", u.version, u.client))
            for u in models
        ]
        return torch.stack(rows).mean(0) if len(rows) > 1 else rows[0]
