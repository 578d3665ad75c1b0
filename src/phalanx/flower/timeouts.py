"""Timeouts of the server."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from phalanx.fields import CheckedFields, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class Timeouts(CheckedFields):
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

    answer: PositiveFloat = 600.0
    absent: PositiveFloat = 30.0
    enrolment: PositiveFloat = 120.0
    least: PositiveInt | None = None
    poll: PositiveFloat = 0.5
    roll_call: PositiveFloat = 3.0
    introduction: PositiveFloat = 30.0
    margin: Annotated[float, Meta(ge=1)] | None = 4.0
    shortest: PositiveFloat = 60.0
