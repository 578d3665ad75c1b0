"""The virtual clock: a heap of events; events at the same time happen in the order of scheduling."""

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Clock(Generic[T]):
    """Events in the order of their time.  Time never goes back, and every event lies after the present."""

    now: float = 0.0  # seconds since the run began
    events: list[tuple[float, int, T]] = field(default_factory=list)  # a heap: time, ticket, event
    tickets: int = 0  # number of events scheduled so far; orders events at the same time

    def __len__(self) -> int:
        return len(self.events)

    @property
    def upcoming(self) -> float:
        """The time of the next event; infinite if nothing is scheduled."""
        return self.events[0][0] if self.events else float("inf")

    def schedule(self, delay: float, event: T) -> None:
        """Schedule `event` after `delay` seconds.

        Raises:
            ValueError: if the delay is not positive and finite; a client without delays would stop the clock for all.
        """
        if not 0 < delay < float("inf"):
            raise ValueError(f"A delay must be positive and finite, got {delay} seconds.")
        self.at(self.now + delay, event)

    def at(self, time: float, event: T) -> None:
        """Schedule `event` at a time.

        Raises:
            ValueError: if the time is not finite and after now, also if a delay is too short to change a float.
        """
        if not self.now < time < float("inf"):
            raise ValueError(f"An event must have a finite time after now, {self.now} seconds, got {time} seconds.")
        heapq.heappush(self.events, (time, self.tickets, event))
        self.tickets += 1

    def next(self) -> T:
        """Advance to the next event, and return it.

        Raises:
            IndexError: if nothing is scheduled.
        """
        self.now, _, event = heapq.heappop(self.events)
        return event

    def advance(self, time: float) -> None:
        """Advance to a time before which nothing is scheduled.

        Raises:
            ValueError: if the time is in the past, or after the next event.
        """
        if not self.now <= time <= self.upcoming:
            raise ValueError(f"The time must be from {self.now} to {self.upcoming} seconds, got {time}.")
        self.now = time
