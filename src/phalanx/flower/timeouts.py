"""How long the server waits for whom."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """How long the server waits; all in seconds of wall time.

    Args:
        answer: from a task being sent to its answer. After that the client is lost to the round, and asked again in
            the next. Flower alone takes about five seconds.
        absent: for anybody to be connected, or let in again, where nobody is at all.
        enrolment: for clients to enrol before the run begins.
        least: clients without which nothing is asked of anybody. None: all of the roster for the run to begin, and one
            to go on.
        poll: between two looks whether an answer has come; more, by and by, where one takes long.
        roll_call: between two looks at who is connected, and at the roster.
    """

    answer: float = 600.0
    absent: float = 30.0
    enrolment: float = 120.0
    least: int | None = None
    poll: float = 0.5
    roll_call: float = 3.0

    def __post_init__(self) -> None:
        for name in ("answer", "absent", "enrolment", "poll", "roll_call"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}.")
        if self.least is not None and self.least < 1:
            raise ValueError(f"least must be at least 1, got {self.least}.")
