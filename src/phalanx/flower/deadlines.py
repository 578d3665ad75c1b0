"""The time for a client's answer: as long as it and the others need, and `Timeouts.answer` at most.

With one deadline for all, each silent client costs a round all of it.  Here the deadline of a client is

    margin x the larger of: the longest time that it needed for its last answers; the median of that over all clients,

twice that after one miss, four times after two, never less than `Timeouts.shortest` and never more than
`Timeouts.answer`.  It is `Timeouts.answer` where nobody has answered yet, and where one more miss would suspend the
client.

**Nobody can shorten it to exclude an honest slow client**, neither a minority nor a majority of the others:

* A client's own answers count for it, and nobody can take them away.  Whoever has answered has `margin` times as long
  the next time, whatever others do.
* Before a client is suspended for misses, it had all of `Timeouts.answer` for one task at least.  A client that
  answers within that time is not suspended for being slow.
* Others can only move the median: a minority stays between the honest clients' times, a majority can make it as short
  as it likes.  Then a slow client that has never answered may miss its first tasks, until it is given all the time.

A client that answers validly but as late as it may cannot be distinguished from a slow one: `Timeouts.answer` bounds
its cost.
Times are not part of a checkpoint: after a resumption the first tasks have all of `Timeouts.answer`.
"""

import math
from collections import deque
from statistics import median

from phalanx.flower.timeouts import Timeouts

LATELY = 5  # answers of a client that count
SLOW, SECONDS = 3.0, 10.0  # times the median of the others, and seconds more than it, from which on a client is slow


class Deadlines:
    """The time that each client has for an answer, by the times that clients needed.

    Args:
        timeouts: the bounds and the margin.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self._times = dict[int, deque[float]]()  # by client, of its last valid answers
        self._median: float | None = None  # of the longest of each client; None: to be computed

    def answered(self, client: int, seconds: float) -> None:
        """Note how long a client needed for a valid answer."""
        self._times.setdefault(client, deque(maxlen=LATELY)).append(seconds)
        self._median = None

    def slow(self) -> dict[int, str]:
        """Return the clients whose answers lately took `SLOW` times as long as others', and `SECONDS` more."""
        usual = {client: median(times) for client, times in self._times.items()}
        found = dict[int, str]()
        for client, seconds in usual.items():
            others = [needed for other, needed in usual.items() if other != client]
            of_others = median(others) if others else seconds
            if seconds >= max(SLOW * of_others, of_others + SECONDS):
                times = seconds / max(of_others, 0.1)
                found[client] = f"its answers take {seconds:.0f} s, {times:.1f} times the {of_others:.0f} s of others"
        return found

    def of(self, client: int, misses: float, *, last_chance: bool) -> float:
        """Return the seconds that a client has for its next answer.

        Args:
            client: its id.
            misses: on its record.
            last_chance: whether one more miss suspends it.
        """
        longest, margin = self.timeouts.answer, self.timeouts.margin
        if margin is None or last_chance or not self._times:
            return longest
        if self._median is None:
            self._median = median(max(times) for times in self._times.values())
        needed: float = max(self._median, *self._times.get(client, (0.0,)))
        return min(longest, max(self.timeouts.shortest, margin * needed * math.pow(2.0, min(misses, 60.0))))
