"""Which of the clients that are ready take part in a round."""

from collections.abc import Callable, Set
from dataclasses import dataclass

from phalanx.rng import numpy_generator

Sampler = Callable[[Set[int], int], Set[int]]  # ready clients, attempt -> those that are asked


def everyone(ready: Set[int], attempt: int) -> Set[int]:
    """The sampler that asks all who are ready."""
    return ready


@dataclass(frozen=True)
class Participation:
    """The sampler that asks a random share of those that are ready, at least one.

    Args:
        share: in (0, 1].
        seed: the run's.
        byzantine: clients of whom a fixed number is drawn.
        attackers: that number, of those that are drawn in all; None draws without regard to who is Byzantine.
    """

    share: float
    seed: int
    byzantine: frozenset[int] = frozenset()
    attackers: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"participation must lie in (0, 1], got {self.share}.")
        if self.attackers is not None and not 0 <= self.attackers <= len(self.byzantine):
            known = len(self.byzantine)
            raise ValueError(f"attackers must be among the {known} Byzantine clients, got {self.attackers}.")

    def __call__(self, ready: Set[int], attempt: int) -> Set[int]:
        """Draws without replacement, from the stream "participation" of the attempt."""
        if not ready:
            return ready
        count = max(1, round(self.share * len(ready)))
        rng = numpy_generator(self.seed, "participation", attempt)
        if self.attackers is None:
            return set(rng.choice(sorted(ready), count, replace=False).tolist())
        bad, good = sorted(ready & self.byzantine), sorted(ready - self.byzantine)
        attackers = min(self.attackers, len(bad), count)  # fewer only where so many are not ready
        honest = rng.choice(good, min(count - attackers, len(good)), replace=False)
        return {*honest.tolist(), *rng.choice(bad, attackers, replace=False).tolist()}
