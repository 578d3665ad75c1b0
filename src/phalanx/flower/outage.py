"""Silence of more clients than a plan tolerates, for which the coordinator or its network is the suspect.

A plan that tolerates f attackers expects at most f clients to be silent: attackers and failures together.  If more are
silent at once, no client is charged for it: misses since a client's last answer are taken back, and so is a suspension
for them.  A plan that tolerates nobody has no such number, and half of the clients is taken.

**f attackers cannot cause an outage by silence**, as long as no honest client fails.  A client that was suspended for
silence before stops counting after `Outage.window`.
"""

from collections.abc import Callable, Set
from typing import NamedTuple

from phalanx.flower.suspension import Standing


def tolerated(clients: int, f: int) -> int:
    """Return how many clients may be silent at once without an outage.

    Args:
        clients: number of clients that take part, at least 1.
        f: number of attackers that the plan tolerates.

    Example:
        >>> [tolerated(4, f) for f in range(5)]
        [2, 1, 2, 3, 3]
    """
    return min(f, clients - 1) if f else clients // 2


class Missed(NamedTuple):
    """The tasks that a client has missed since its last answer."""

    at: float  # time of the last one
    why: str
    before: Standing  # the client's standing before the first one


class Outage:
    """The clients that are silent, and whether they are too many.

    Args:
        window: seconds for which a missed task counts.
        clock: gives the time.
    """

    def __init__(self, window: float, clock: Callable[[], float]) -> None:
        self.window, self._clock = window, clock
        self.since: float | None = None  # by the clock; None: there is no outage
        self.again = dict[int, int]()  # how often a client was sent its task again, until it answers
        self._missed = dict[int, Missed]()

    def missed(self, client: int, standing: Standing, why: str) -> None:
        """Note a task without an answer, and the client's standing before."""
        first = self._missed.get(client)
        self._missed[client] = Missed(self._clock(), why, standing if first is None else first.before)

    def answered(self, client: int) -> None:
        """Note an answer."""
        self._missed.pop(client, None)
        self.again.pop(client, None)

    @property
    def lately(self) -> Set[int]:
        """The clients whose last task was missed, within the window."""
        begin = self._clock() - self.window
        self._missed = {i: m for i, m in self._missed.items() if m.at >= begin or i in self.again}
        return self._missed.keys()

    def judge(self, clients: Set[int], gone: Set[int], f: int) -> Set[int]:
        """Return the silent clients of those that take part, and note whether there is an outage.

        Args:
            clients: those that take part.
            gone: those of them that are not connected, or whose task is to be sent again.
            f: number of attackers that the plan tolerates.
        """
        silent = gone | (self.lately & clients)
        if not clients or len(silent) <= tolerated(len(clients), f):
            self.since = None
        elif self.since is None:
            self.since = self._clock()
        return silent

    def before(self, client: int) -> Standing | None:
        """Return the standing of a client before it fell silent; None if it has missed nothing."""
        missed = self._missed.get(client)
        return None if missed is None else missed.before

    def why(self, client: int) -> str:
        """Return why a client counts as silent; empty if it has missed nothing."""
        missed = self._missed.get(client)
        return "" if missed is None else missed.why
