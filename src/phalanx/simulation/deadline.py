"""How long the server waits for an answer."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """Seconds after which the server does not wait any longer.

    A round ends when all answers are there, or at its deadline.  Who has not answered by then is late: it is lost, and
    asked again; or, with `grace`, its answer still counts in one of the next rounds, and it is not asked anything
    before.  A round in which nobody answers in time ends with the first late answer, if `grace` lets one count.

    An asynchronous algorithm has no rounds: each client has so many seconds from its own download, and is lost and
    asked again after that.

    Args:
        seconds: on the run's clock, from the download.
        grace: for how many rounds after its own an answer still counts; 0 drops it. Synchronous algorithms only.
    """

    seconds: float = 10.0
    grace: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {self.seconds}.")
        if self.grace < 0:
            raise ValueError(f"grace must be at least 0, got {self.grace}.")
