"""Clients that join after a run has begun."""

from dataclasses import dataclass

from phalanx.fields import CheckedFields, PositiveFloat, PositiveInt
from phalanx.rng import numpy_generator


@dataclass(frozen=True)
class Late(CheckedFields):
    """Some random clients join late.  Only some algorithms support this, such as ClusteredFL.

    Args:
        count: number of late clients, at least 1.
        after: time at which they join, in virtual seconds; with the default latency of one second, in rounds. They are
            enrolled at the end of the current round.
    """

    count: PositiveInt = 1
    after: PositiveFloat = 10.0

    def times(self, clients: int, seed: int) -> dict[int, float]:
        """Return the late clients, drawn by the stream "late", each with its time.

        Raises:
            ValueError: if no client would take part from the start.
        """
        if self.count >= clients:
            raise ValueError(f"late.count must be below the number of clients, {clients}, got {self.count}.")
        drawn = numpy_generator(seed, "late").choice(clients, self.count, replace=False)
        return dict.fromkeys(sorted(drawn.tolist()), self.after)
