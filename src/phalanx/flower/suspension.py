"""Suspension of clients that misbehave, and a limit on how often a client is given a task.

Both are kept by client id, which belongs to the client's key.  Two things are counted:

* A *strike* is a signed answer that is invalid: a wrong shape, a wrong record, NaN, an impossible size.  Nobody else
  can have sent it, so strikes are never cleared.
* A *miss* is a task without a signed answer: silence past the deadline, a failure, or a reply without a valid
  signature.  Networks and machines fail, so only consecutive misses count, and a valid answer resets the count.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.wording import plural


class Standing(NamedTuple):
    """Strikes, misses and suspension of a client."""

    strikes: int = 0
    misses: int = 0  # consecutive
    until: float = 0.0  # end of the suspension, in seconds of the run
    why: str = ""  # reason for the last suspension
    term: int = 1  # the client's term in the roster when this was counted


@dataclass(frozen=True)
class Suspension:
    """Rules for suspending clients, and the shortest time between two tasks of a client.

    Args:
        strikes: invalid signed answers until a client is suspended.
        misses: consecutive tasks without a signed answer until a client is suspended.
        sentence: length of a suspension in seconds. Afterwards the client takes part again, and the next strike or
            series of misses suspends it again. Infinite: until the client's term in the roster is raised.
        interval: shortest time between two tasks of a client, in seconds, in an asynchronous algorithm. An attacker
            that does not train answers at once, and could send ten updates for each honest one; choose about the time
            that honest clients need. 0 by default, since too large a value slows the honest clients down.
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
        """Return the standing after an invalid signed answer."""
        strikes = standing.strikes + 1
        if strikes < self.strikes:
            return standing._replace(strikes=strikes, misses=0)
        count = f"{plural(strikes, 'strike')}, the last: {why}"
        return standing._replace(strikes=strikes, misses=0, until=now + self.sentence, why=count)

    def missed(self, standing: Standing, now: float, why: str) -> Standing:
        """Return the standing after a task without a signed answer."""
        misses = standing.misses + 1
        if misses < self.misses:
            return standing._replace(misses=misses)
        return standing._replace(misses=0, until=now + self.sentence, why=f"{misses} misses in a row, the last: {why}")

    def answered(self, standing: Standing) -> Standing:
        """Return the standing after a valid answer."""
        return standing._replace(misses=0)
