"""Combinations of attacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from typing_extensions import override

from phalanx.attacks.attack import (
    Answer,
    Attack,
    AttackTask,
    AttackTraits,
    Forged,
    Knowledge,
    Meanwhile,
    Role,
    Update,
    needed,
    seen_by,
)
from phalanx.core import Vector
from phalanx.data import Dataset
from phalanx.rng import generator
from phalanx.training.local import LocalTrainer


@dataclass(frozen=True)
class Together(Attack):
    """Applies two attacks, one after the other: the second works on the result of the first.

    The second poisons the data that the first poisoned, changes the size that the first reported, and forges the update
    that the first forged.  Local training is that of the second, if it has its own, otherwise that of the first.  More
    than two are nested: `Together(Backdoor(), Together(Rescale(7.0), ReportTimes(10.0)))`.  The second delays what the
    first delayed, and sends its answers for each answer of the first.
    An omniscient attack sees what it would see alone.

    Args:
        first: the attack to apply first; its goal, if it has one, measures the success, otherwise the goal of `second`.
        second: the attack to apply second.
    """

    first: Attack
    second: Attack

    @property
    @override
    def traits(self) -> AttackTraits:
        return self.first.traits | self.second.traits

    @override
    def part(self, role: Role) -> Attack:
        return Together(self.first.part(role), self.second.part(role)) if self.traits.has_parts else self

    @override
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        return self.second.poison(self.first.poison(data, rng), rng)

    @override
    def reported_size(self, size: int) -> int:
        return self.second.reported_size(self.first.reported_size(size))

    @override
    def check_trainer(self, honest: LocalTrainer) -> None:
        self.first.check_trainer(honest)
        self.second.check_trainer(honest)

    @override
    def train(self, job: AttackTask, honest: LocalTrainer) -> float:
        return (self.second if self.second.traits.trains else self.first).train(job, honest)

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return self.respond(update, knowledge, rng).delta

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        """See `Attack`: the memory is a pair."""
        one, two = update.memory if isinstance(update.memory, tuple) else (None, None)
        delta, one = self.first.respond(update._replace(memory=one), seen_by(self.first, knowledge), rng)
        then = update._replace(delta=delta, memory=two)
        delta, two = self.second.respond(then, seen_by(self.second, knowledge), rng)
        return Forged(delta, (one, two))

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        goal = self.first.goal(test)
        return self.second.goal(test) if goal is None else goal

    @override
    def delay(self, seconds: float, rng: torch.Generator) -> float:
        return self.second.delay(self.first.delay(seconds, rng), rng)

    @override
    def sends_now(self, meanwhile: Meanwhile) -> bool:
        """See `Attack`: when both do."""
        return self.first.sends_now(meanwhile) and self.second.sends_now(meanwhile)

    @override
    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        """See `Attack`: the second sends its answers for each answer of the first."""
        return [a for one in self.first.answers(answer, earlier) for a in self.second.answers(one, earlier)]


@dataclass(frozen=True)
class Sybils(Attack):
    """One attacker behind many clients: all of them send the same forged update.

    The Sybils of Fung, Yoon and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", 2020.  They
    see each other's updates, and honest ones only if the attack does.  All draw from one random stream.

    Args:
        attack: the attack on data, training, size and update; without a memory, and the same for all attackers.
        send: "first": the forged update of the attacker with the lowest id in the round, or in flight; "mean": the mean
            of the forged updates of all attackers.
        seed: seed of the shared random stream.
    """

    attack: Attack
    send: Literal["first", "mean"] = "first"
    seed: int = 0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attack.traits.remembers or self.attack.traits.has_parts:
            raise ValueError(
                f"Sybils needs an attack that is the same for all attackers in all rounds, got {self.attack}. "
                "Choose another attack; a schedule goes around: Scheduled(Sybils(...))."
            )

    @property
    @override
    def traits(self) -> AttackTraits:
        return self.attack.traits._replace(omniscient=True)

    @override
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        return self.attack.poison(data, rng)

    @override
    def check_trainer(self, honest: LocalTrainer) -> None:
        self.attack.check_trainer(honest)

    @override
    def train(self, job: AttackTask, honest: LocalTrainer) -> float:
        return self.attack.train(job, honest)

    @override
    def reported_size(self, size: int) -> int:
        return self.attack.reported_size(size)

    @override
    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        return needed(self, knowledge).agreed(self, self._forged)

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        return self.attack.goal(test)

    @override
    def delay(self, seconds: float, rng: torch.Generator) -> float:
        return self.attack.delay(seconds, rng)

    @override
    def sends_now(self, meanwhile: Meanwhile) -> bool:
        return self.attack.sends_now(meanwhile)

    @override
    def answers(self, answer: Answer, earlier: Sequence[Answer]) -> Sequence[Answer]:
        return self.attack.answers(answer, earlier)

    def _forged(self, knowledge: Knowledge) -> Vector:
        # Draws are named by version and client, so the result does not depend on which attacker computes it.
        models = knowledge.colluders[:1] if self.send == "first" else knowledge.colluders
        rows = [
            self.attack.forge(u, seen_by(self.attack, knowledge), generator(self.seed, "sybils", u.version, u.client))
            for u in models
        ]
        return torch.stack(rows).mean(0) if len(rows) > 1 else rows[0]
