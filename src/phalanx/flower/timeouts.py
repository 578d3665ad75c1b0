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
        introduction: time for a node to say which client it is; twice that after it has failed once, and so on.
        absent: time to wait for a client when all are suspended, or none is left.
        outage: time to wait for clients when more are silent than the plan tolerates, after which the run ends; see
            `phalanx.flower.outage`.
        enrolment: time for clients to enrol before the run begins.
        least: clients that must be available to begin, and for each further round. None: all but the number of
            attackers that the plan tolerates. If it tolerates none: all to begin, and half of them for further rounds.
            An asynchronous algorithm goes on with one.
        poll: time between two checks for an answer; it grows for answers that take long.
        roll_call: time between two checks of the connected nodes and of the roster.
    """

    answer: PositiveFloat = 600.0
    absent: PositiveFloat = 30.0
    outage: PositiveFloat = 86_400.0
    enrolment: PositiveFloat = 300.0
    least: PositiveInt | None = None
    poll: PositiveFloat = 0.5
    roll_call: PositiveFloat = 3.0
    introduction: PositiveFloat = 120.0
    margin: Annotated[float, Meta(ge=1)] | None = 4.0
    shortest: PositiveFloat = 60.0
