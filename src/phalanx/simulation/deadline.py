"""The time for which the server waits for answers."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """The time after which the server no longer waits for an answer.

    A round ends when all answers have arrived, or at its deadline.  The task of a client that has not answered by then
    is lost, and the client gets a new one.  With `grace`, its answer still counts in one of the next rounds, and it
    gets no new task before.  If no client answers in time, the round ends with the first late answer that `grace`
    allows.

    An asynchronous algorithm has no rounds: the time of each client starts with its download; after the deadline the
    task is lost, and the client gets a new one.

    Args:
        seconds: seconds from the download, on the clock of the run.
        grace: number of rounds after its own in which a late answer still counts; 0 drops it. Synchronous algorithms
            only.
    """

    seconds: float = 10.0
    grace: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {self.seconds}.")
        if self.grace < 0:
            raise ValueError(f"grace must be at least 0, got {self.grace}.")
