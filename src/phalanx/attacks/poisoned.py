"""An attack whose updates agree from round to round, without knowledge of any other update.

Xie, Fang and Gong, "Model Poisoning Attacks to Federated Learning via Multi-Round Consistency", 2025 (PoisonedFL).
"""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.attacks.attack import Forged, Knowledge, Remembering, Update
from phalanx.core import Vector
from phalanx.fields import PositiveInt
from phalanx.rng import generator

SMALLEST = 0.5  # the factor is lowered no further, as in the authors' program
Z_99 = 2.326  # quantile of the normal distribution


class PoisonedMemory(NamedTuple):
    """The memory of an attacker of `PoisonedFL`."""

    factor: float  # c, of the length of the last change of the model
    sent: Vector | None  # the last update that it sent, if it was not zero
    since: Vector  # the model at the last test of its success
    turns: int  # since that test


@dataclass(frozen=True)
class PoisonedFL(Remembering):
    """Sends in every round an update with the same random signs, so that the model drifts away in that direction.

    Xie, Fang and Gong 2025.  With s the signs, g the last change of the model and k s the last update that was sent,
    entries are s times c |g| v, where v of length 1 is proportional to |g - (|g| / |k s|) k s|: entries in which the
    others oppose are larger.  After every `every` turns it tests whether the model has moved along s since the last
    test, by the number of entries with the sign of s, at a level of 1 %; if not, c is lowered, to 0.5 at least: updates
    were filtered.  At the first turn, without a change of the model, it sends zeros; at the second v is proportional to
    |g|, since nothing was sent before.

    Args:
        factor: c at the beginning, above 0.5; 8 in the paper.
        lower: factor by which c is lowered, in (0, 1).
        every: number of turns from one test to the next, at least 1.
        seed: seed of the signs, which all attackers share.
    """

    factor: Annotated[float, Meta(gt=SMALLEST)] = 8.0
    lower: Annotated[float, Meta(gt=0, lt=1)] = 0.7
    every: PositiveInt = 50
    seed: int = 0

    def signs(self, like: Vector) -> Vector:
        """Return s, entries of -1 and 1."""
        drawn = torch.rand(like.shape, generator=generator(self.seed, "signs"), dtype=like.dtype).to(like.device)
        return torch.where(drawn < 0.5, -1.0, 1.0).to(like.dtype)

    @override
    def respond(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Forged:
        if not isinstance(update.memory, PoisonedMemory) or update.previous is None:
            return Forged(torch.zeros_like(update.base), PoisonedMemory(self.factor, None, update.base, 0))
        memory, s, g = self._tested(update.memory, update.base), self.signs(update.base), update.base - update.previous
        length = torch.linalg.vector_norm(g)
        against = g
        if memory.sent is not None:
            against = g - length / torch.linalg.vector_norm(memory.sent) * memory.sent
        size = torch.linalg.vector_norm(against)
        forged = memory.factor * length / torch.where(size > 0, size, 1) * against.abs() * s
        sent = forged if bool((forged != 0).any()) else None
        return Forged(forged, memory._replace(sent=sent, turns=memory.turns + 1))

    def _tested(self, memory: PoisonedMemory, model: Vector) -> PoisonedMemory:
        """Return the memory with a lower factor if a test is due, and the model has not moved along s."""
        if memory.turns < self.every:
            return memory
        d = model.numel()
        along = int(((model - memory.since).sign() == self.signs(model)).sum())
        lowered = memory.factor * self.lower
        failed = along < d / 2 + Z_99 * math.sqrt(d) / 2 and lowered >= SMALLEST
        return memory._replace(factor=lowered if failed else memory.factor, since=model, turns=0)
