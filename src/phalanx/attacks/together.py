"""Combinations of attacks."""

from dataclasses import dataclass
from typing import Literal

import torch
from typing_extensions import override

from phalanx.attacks.attack import (
    Attack,
    AttackTraits,
    Combining,
    Forged,
    Knowledge,
    Role,
    Update,
    Varying,
    needed,
    part,
    remembers,
    respond,
    varies,
)
from phalanx.core import Vector
from phalanx.rng import generator


@dataclass(frozen=True)
class Together(Combining, Varying):
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

    @property
    @override
    def inside(self) -> tuple[Attack, ...]:
        return self.first, self.second

    @property
    @override
    def varies(self) -> bool:
        return any(map(varies, self.inside))

    @override
    def part(self, role: Role) -> Attack:
        return Together(part(self.first, role), part(self.second, role)) if self.varies else self

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        """See `Attack`: the memory is a pair."""
        one, two = update.memory if isinstance(update.memory, tuple) else (None, None)
        delta, one = respond(self.first, update._replace(memory=one), knowledge, rng)
        delta, two = respond(self.second, update._replace(delta=delta, memory=two), knowledge, rng)
        return Forged(delta, (one, two))


@dataclass(frozen=True)
class Sybils(Combining):
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
        if remembers(self.attack) or varies(self.attack):
            raise ValueError(
                f"Sybils needs an attack that is the same for all attackers in all rounds, got {self.attack}. "
                "Choose another attack; a schedule goes around: Scheduled(Sybils(...))."
            )

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
        return Forged(needed(self, knowledge).agreed(self, self._forged), update.memory)

    def _forged(self, knowledge: Knowledge) -> Vector:
        # Draws are named by version and client, so the result does not depend on which attacker computes it.
        models = knowledge.colluders[:1] if self.send == "first" else knowledge.colluders
        rows = [
            respond(self.attack, u, knowledge, generator(self.seed, "sybils", u.version, u.client)).delta
            for u in models
        ]
        return torch.stack(rows).mean(0) if len(rows) > 1 else rows[0]
