"""Suspension of clients that misbehave, and a limit on how often a client is given a task.

Both are kept by client id, which belongs to the client's key.  Two things are counted:

* A *strike* is a signed answer that is invalid: a wrong shape, a wrong record, NaN, an impossible size.  Nobody else
  can have sent it, so strikes are never cleared.
* A *miss* is a task without a signed answer: silence past the deadline, a failure, or a reply without a valid
  signature.  Networks and machines fail, so a valid answer makes up for a part of a miss.  It does not clear the count:
  a client that answers one task in three would hold up two rounds in three for ever.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from msgspec import Meta

from phalanx.fields import INFINITE, CheckedFields, NonNegativeFloat, PositiveInt
from phalanx.wording import plural


class Standing(NamedTuple):
    """Strikes, misses and suspension of a client."""

    strikes: int = 0
    misses: float = 0.0  # less what valid answers have made up for
    until: float = 0.0  # end of the suspension, in seconds of the run
    why: str = ""  # reason for the last suspension
    term: int = 1  # the client's term in the roster when this was counted


@dataclass(frozen=True)
class Suspension(CheckedFields):
    """Rules for suspending clients, and the shortest time between two tasks of a client.

    Args:
        strikes: invalid signed answers until a client is suspended.
        misses: tasks without a signed answer until a client is suspended, less what valid answers make up for.
        leak: how much of a miss each valid answer makes up for. With 0.25, a client that misses more than one task in
            five is suspended sooner or later, and one that misses fewer only after an unlucky series. Infinite: only
            consecutive misses count.
        sentence: length of a suspension in seconds. Afterwards the client takes part again, and the next strike or
            `misses` misses suspend it again. Infinite: until the client's term in the roster is raised.
        interval: shortest time between two tasks of a client, in seconds, in an asynchronous algorithm. An attacker
            that does not train answers at once, and could send ten updates for each honest one; choose about the time
            that honest clients need. 0 by default, since too large a value slows the honest clients down.
    """

    strikes: PositiveInt = 3
    misses: PositiveInt = 3
    sentence: Annotated[float, Meta(gt=0), INFINITE] = 3600.0
    interval: NonNegativeFloat = 0.0
    leak: Annotated[float, Meta(gt=0), INFINITE] = 0.25

    def struck(self, standing: Standing, now: float, why: str) -> Standing:
        """Return the standing after an invalid signed answer."""
        strikes = standing.strikes + 1
        if not self.last_strike(standing):
            return standing._replace(strikes=strikes)
        count = f"{plural(strikes, 'strike')}, the last: {why}"
        return standing._replace(strikes=strikes, misses=0.0, until=now + self.sentence, why=count)

    def missed(self, standing: Standing, now: float, why: str) -> Standing:
        """Return the standing after a task without a signed answer."""
        if not self.last_chance(standing):
            return standing._replace(misses=standing.misses + 1)
        return standing._replace(misses=0.0, until=now + self.sentence, why=f"too many misses, the last: {why}")

    def last_chance(self, standing: Standing) -> bool:
        """Return whether one more miss suspends a client."""
        return standing.misses + 1 >= self.misses

    def last_strike(self, standing: Standing) -> bool:
        """Return whether one more strike suspends a client."""
        return standing.strikes + 1 >= self.strikes

    def answered(self, standing: Standing) -> Standing:
        """Return the standing after a valid answer."""
        return standing._replace(misses=max(0.0, standing.misses - self.leak))
