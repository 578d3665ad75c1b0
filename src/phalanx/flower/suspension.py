"""Strikes, suspension and pace: what becomes of clients that misbehave, by the id that their key stands for.

Two things are counted.  A *strike* is an answer that a client has signed and that is not fit: a wrong shape, a wrong
record, NaN, an impossible size.  Nobody else can have sent it, and it is never forgiven.  A *miss* is a task that
brought nothing that the client has signed: silence past the deadline, a failure, a reply without a valid signature.
Networks and machines fail, so only misses in a row count, and a good answer ends the row.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.wording import plural


class Standing(NamedTuple):
    """What is on record about a client."""

    strikes: int = 0
    misses: int = 0  # in a row
    until: float = 0.0  # suspended until then, in seconds of the run
    why: str = ""  # it was suspended the last time
    term: int = 1  # of the roster, in which this was counted


@dataclass(frozen=True)
class Suspension:
    """When a client is suspended, for how long, and how often it is asked at most.

    Args:
        strikes: signed answers that were refused, until a client is suspended.
        misses: tasks in a row that brought nothing signed, until a client is suspended.
        sentence: seconds of a suspension. Then a client is asked again, and the next strike or row of misses suspends
            it anew. Infinite: until the roster gives it another term.
        interval: seconds at least between two tasks of a client, in an asynchronous algorithm. An attacker that does
            not train answers at once, and would have ten votes for one of the honest; choose about the time that the
            honest need. 0 by default, since a figure that is too large holds up the honest.
    """

    strikes: int = 3
    misses: int = 3
    sentence: float = 3600.0
    interval: float = 0.0

    def __post_init__(self) -> None:
        checks = (
            (self.strikes >= 1, f"strikes must be at least 1, got {self.strikes}"),
            (self.misses >= 1, f"misses must be at least 1, got {self.misses}"),
            (self.sentence > 0, f"sentence must be positive, got {self.sentence}"),
            (0 <= self.interval < math.inf, f"interval must be at least 0 and finite, got {self.interval}"),
        )
        if problems := [message for fine, message in checks if not fine]:
            raise ValueError("; ".join(problems) + ".")

    def struck(self, standing: Standing, now: float, why: str) -> Standing:
        """After a signed answer that was refused."""
        strikes = standing.strikes + 1
        if strikes < self.strikes:
            return standing._replace(strikes=strikes, misses=0)
        count = f"{plural(strikes, 'strike')}, the last: {why}"
        return standing._replace(strikes=strikes, misses=0, until=now + self.sentence, why=count)

    def missed(self, standing: Standing, now: float, why: str) -> Standing:
        """After a task that brought nothing signed."""
        misses = standing.misses + 1
        if misses < self.misses:
            return standing._replace(misses=misses)
        return standing._replace(misses=0, until=now + self.sentence, why=f"{misses} misses in a row, the last: {why}")

    def answered(self, standing: Standing) -> Standing:
        """After an answer that was good."""
        return standing._replace(misses=0)
