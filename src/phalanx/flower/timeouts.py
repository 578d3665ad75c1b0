"""Timeouts of the server."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Timeouts and polling intervals of the server, in seconds of wall time.

    Args:
        answer: longest time for a client to answer a task. After that the round goes on without it, and it is given a
            task again in the next round. Flower alone takes about five seconds.
        margin: a client has this many times as long as itself and the others needed lately, and `answer` at most; see
            `phalanx.flower.deadlines`. None: always `answer`.
        shortest: the least time for an answer that `margin` may lead to.
        introduction: time for a node to say which client it is, before the next node is checked.
        absent: time to wait for a client when none is connected, or all are suspended.
        enrolment: time for clients to enrol before the run begins.
        least: clients that must be available before any is given a task. None: the whole roster to begin the run, and
            one client to continue it.
        poll: time between two checks for an answer; it grows for answers that take long.
        roll_call: time between two checks of the connected nodes and of the roster.
    """

    answer: float = 600.0
    absent: float = 30.0
    enrolment: float = 120.0
    least: int | None = None
    poll: float = 0.5
    roll_call: float = 3.0
    introduction: float = 30.0
    margin: float | None = 4.0
    shortest: float = 60.0

    def __post_init__(self) -> None:
        for name in ("answer", "absent", "enrolment", "poll", "roll_call", "introduction", "shortest"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}.")
        if self.margin is not None and not 1 <= self.margin < math.inf:
            raise ValueError(f"margin must be at least 1 and finite, or None, got {self.margin}.")
        if self.least is not None and self.least < 1:
            raise ValueError(f"least must be at least 1, got {self.least}.")
