"""The virtual clock: a heap of events, first in, first out where times are equal."""

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Clock(Generic[T]):
    """Events in the order of their time.  Time never goes back, and each event takes some."""

    now: float = 0.0  # seconds since the run began
    events: list[tuple[float, int, T]] = field(default_factory=list)  # a heap: time, ticket, event
    tickets: int = 0  # given out so far

    def __len__(self) -> int:
        return len(self.events)

    def schedule(self, delay: float, event: T) -> None:
        """Lets `event` happen after `delay` seconds.

        Raises:
            ValueError: the delay is not positive and finite. A client that needs no time would stop it for all others.
        """
        if not 0 < delay < float("inf"):
            raise ValueError(f"A delay must be positive and finite, got {delay} seconds.")
        heapq.heappush(self.events, (self.now + delay, self.tickets, event))
        self.tickets += 1

    def next(self) -> T:
        """Goes to the next event.

        Raises:
            IndexError: nothing is scheduled.
        """
        self.now, _, event = heapq.heappop(self.events)
        return event
