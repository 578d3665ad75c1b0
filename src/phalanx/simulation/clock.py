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

    @property
    def upcoming(self) -> float:
        """When the next event happens; infinite if nothing is scheduled."""
        return self.events[0][0] if self.events else float("inf")

    def schedule(self, delay: float, event: T) -> None:
        """Lets `event` happen after `delay` seconds.

        Raises:
            ValueError: the delay is not positive and finite. A client that needs no time would stop it for all others.
        """
        if not 0 < delay < float("inf"):
            raise ValueError(f"A delay must be positive and finite, got {delay} seconds.")
        self.at(self.now + delay, event)

    def at(self, time: float, event: T) -> None:
        """Lets `event` happen at a time.

        Raises:
            ValueError: the time is not after now, or not finite; or a delay was too short to be told from none.
        """
        if not self.now < time < float("inf"):
            raise ValueError(f"An event must come after now, {self.now} seconds, and some day, got {time} seconds.")
        heapq.heappush(self.events, (time, self.tickets, event))
        self.tickets += 1

    def next(self) -> T:
        """Goes to the next event.

        Raises:
            IndexError: nothing is scheduled.
        """
        self.now, _, event = heapq.heappop(self.events)
        return event

    def advance(self, time: float) -> None:
        """Goes to a time before which nothing is scheduled.

        Raises:
            ValueError: it is over, or something comes before it.
        """
        if not self.now <= time <= self.upcoming:
            raise ValueError(f"Time goes from {self.now} to at most {self.upcoming} seconds, not to {time}.")
        self.now = time
