"""Clients that come after a run has begun."""

import math
from dataclasses import dataclass

from phalanx.rng import numpy_generator


@dataclass(frozen=True)
class Late:
    """Some clients, drawn at random, come late.  Only some algorithms can take them in, such as ClusteredFL.

    Args:
        count: how many clients, at least 1.
        after: when they come, in virtual seconds; rounds, where a client takes a second as it does by default. They
            are let in when the round is over in which they come.
    """

    count: int = 1
    after: float = 10.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}.")
        if not 0 < self.after < math.inf:
            raise ValueError(f"after must be positive, got {self.after}.")

    def times(self, clients: int, seed: int) -> dict[int, float]:
        """When each of those comes that come late, drawn by the stream "late".

        Raises:
            ValueError: nobody would be there from the start.
        """
        if self.count >= clients:
            raise ValueError(f"late.count must be below the number of clients, {clients}, got {self.count}.")
        drawn = numpy_generator(seed, "late").choice(clients, self.count, replace=False)
        return dict.fromkeys(sorted(drawn.tolist()), self.after)
