"""Sampling: which of the ready clients take part in a round."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from typing_extensions import override

from phalanx.fields import CheckedFields
from phalanx.rng import numpy_generator

Sampler = Callable[[Set[int], int], Set[int]]  # ready clients, attempt -> the sampled ones


def everyone(ready: Set[int], attempt: int) -> Set[int]:
    """Return all ready clients."""
    return ready


@dataclass(frozen=True)
class Participation(CheckedFields):
    """A sampler that draws a random share of the ready clients, at least one.

    Args:
        share: in (0, 1].
        seed: seed of the run.
        byzantine: clients of whom a fixed number is drawn.
        attackers: that number, included in the share; None draws Byzantine and honest clients alike.
    """

    share: Annotated[float, Meta(gt=0, le=1)]
    seed: int
    byzantine: frozenset[int] = frozenset()
    attackers: int | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attackers is not None and not 0 <= self.attackers <= len(self.byzantine):
            known = len(self.byzantine)
            raise ValueError(f"attackers must be among the {known} Byzantine clients, got {self.attackers}.")

    def count(self, ready: int) -> int:
        """Return the number of clients that are drawn of so many."""
        return max(1, round(self.share * ready))

    def __call__(self, ready: Set[int], attempt: int) -> Set[int]:
        """Return clients drawn without replacement, from the stream "participation" of the attempt."""
        if not ready:
            return ready
        count = self.count(len(ready))
        rng = numpy_generator(self.seed, "participation", attempt)
        if self.attackers is None:
            return set(rng.choice(sorted(ready), count, replace=False).tolist())
        bad, good = sorted(ready & self.byzantine), sorted(ready - self.byzantine)
        attackers = min(self.attackers, len(bad), count)  # fewer only if so many are not ready
        honest = rng.choice(good, min(count - attackers, len(good)), replace=False)
        return {*honest.tolist(), *rng.choice(bad, attackers, replace=False).tolist()}
