"""When clients can be reached, and which of their tasks come to nothing."""

import itertools
import math
from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from phalanx.rng import numpy_generator, stream
from phalanx.simulation.latency import SHORTEST, Workload, drawn_clients
from phalanx.simulation.traces import number, read_trace, whole
from phalanx.wording import plural

FOREVER = math.inf


class Period(NamedTuple):
    """A time in which a client can be reached, in virtual seconds."""

    begin: float
    end: float  # when it leaves; infinite if it does not


class Crash(NamedTuple):
    """What ends a task before its answer."""

    after: float  # seconds from the download
    back: float  # seconds from then until the client can be reached again


class Availability(ABC):  # noqa: B024  (each method has an answer, that of a client that is always there)
    """When clients are there, and whether they answer: always and always, but for what a subclass overrides.

    All methods are pure: they draw from the streams of the run.
    """

    @property
    def keeps(self) -> bool:
        """Whether a client that leaves in the middle of a task sends its answer when it is back.

        If not, the task is lost when it leaves.
        """
        return True

    def periods(self, client: int, seed: int) -> Iterator[Period]:
        """When `client` is there, in order and apart; it does not come back after the last one."""
        return iter((Period(0.0, FOREVER),))

    def crash(self, task: Workload, seconds: float, seed: int) -> Crash | None:
        """What ends a task that would take so many seconds; None if its answer does."""
        return None

    def silent(self, clients: int, seed: int) -> Mapping[int, float]:
        """Of clients 0 .. clients - 1, those that send nothing any more from some time on, with that time."""
        return {}

    def check(self, clients: int) -> None:
        """Raises ValueError if it does not say when each of clients 0 .. clients - 1 is there."""
        return

    @property
    def fingerprint(self) -> str | None:
        """What the files hold that it reads; None if it reads none."""
        return None


@dataclass(frozen=True)
class OnOff(Availability):
    """Clients leave and return: they are there and away in turn, for exponential times of their own.

    At the beginning each client is there with probability on / (on + off), as at any later time.

    Args:
        on: mean time for which a client is there, in virtual seconds.
        off: mean time for which it is away, in virtual seconds.
        answers: whether a client that leaves in the middle of a task sends its answer when it is back; if not, the task
            is lost when it leaves.
    """

    on: float = 100.0
    off: float = 20.0
    answers: bool = True

    def __post_init__(self) -> None:
        for name in ("on", "off"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)} seconds.")

    @property
    def keeps(self) -> bool:
        """See `Availability`."""
        return self.answers

    def periods(self, client: int, seed: int) -> Iterator[Period]:
        """See `Availability`."""
        rng = numpy_generator(seed, "availability", client)
        begin = 0.0 if rng.random() * (self.on + self.off) < self.on else self._drawn(rng.exponential(self.off))
        while True:
            end = begin + self._drawn(rng.exponential(self.on))
            yield Period(begin, end)
            begin = end + self._drawn(rng.exponential(self.off))

    @staticmethod
    def _drawn(seconds: float) -> float:
        return max(SHORTEST, float(seconds))


@dataclass(frozen=True)
class AvailabilityTrace(Availability):
    """Clients are there as a CSV file says: the columns `client`, `begin` and `end`, one row for each time that it is.

    Times are virtual seconds.  Rows of one client are in order and do not overlap; an empty `end`, in its last row,
    means that it stays.

    Args:
        file: where it is. Its content is no part of a run's identity, but a run that was begun with another one is not
            gone on with.
        answers: whether a client that leaves in the middle of a task sends its answer when it is back; if not, the task
            is lost when it leaves.
    """

    file: str
    answers: bool = True

    @property
    def keeps(self) -> bool:
        """See `Availability`."""
        return self.answers

    def periods(self, client: int, seed: int) -> Iterator[Period]:
        """See `Availability`."""
        return iter(self._periods[client])

    def check(self, clients: int) -> None:
        """See `Availability`."""
        if missing := sorted(set(range(clients)) - self._periods.keys()):
            raise ValueError(
                f"{self.file} does not say when client {missing[0]} is there, nor {plural(len(missing) - 1, 'other')} "
                f"of clients 0 to {clients - 1}. Add a row for each: {missing[0]},0, for one that always is."
            )

    @property
    def fingerprint(self) -> str | None:
        """See `Availability`."""
        return read_trace(self.file, ("client", "begin", "end")).digest

    @cached_property
    def _periods(self) -> dict[int, list[Period]]:
        periods = dict[int, list[Period]]()
        for row in read_trace(self.file, ("client", "begin", "end")).rows:
            own = periods.setdefault(whole(row, "client"), [])
            begin, end = number(row, "begin"), number(row, "end") if row.cells["end"] else FOREVER
            if not max(0.0, own[-1].end if own else 0.0) <= begin < end:
                before = f"after {own[-1].end:g}, the end of the row before" if own else "at least 0"
                raise ValueError(
                    f"{row.where}: begin must be {before}, and end after begin, got {begin:g} and {end:g}."
                )
            own.append(Period(begin, end))
        return periods


@dataclass(frozen=True)
class Silent(Availability):
    """Some clients fall silent: from some time on they send nothing any more, though they can be reached.

    The server can only learn this by a deadline.

    Args:
        share: of the clients, in [0, 1], rounded to the next number of clients; drawn at random.
        after: when, in virtual seconds.
    """

    share: float = 0.1
    after: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie in [0, 1], got {self.share}.")
        if not 0 <= self.after < math.inf:
            raise ValueError(f"after must be at least 0 and finite, got {self.after} seconds.")

    def silent(self, clients: int, seed: int) -> Mapping[int, float]:
        """See `Availability`."""
        return dict.fromkeys(sorted(drawn_clients(self.share, clients, seed, "silent")), self.after)


@dataclass(frozen=True)
class Crashes(Availability):
    """Tasks crash: at a random moment of the task its client is gone, and it comes back after an exponential time.

    What it had done of the task is lost; what it remembers of earlier ones is not.

    Args:
        probability: of each task, in [0, 1].
        recovery: mean time until the client is back, in virtual seconds.
    """

    probability: float = 0.1
    recovery: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], got {self.probability}.")
        if not 0 < self.recovery < math.inf:
            raise ValueError(f"recovery must be positive and finite, got {self.recovery} seconds.")

    def crash(self, task: Workload, seconds: float, seed: int) -> Crash | None:
        """See `Availability`."""
        if (stream(seed, "crash", task.client, task.turn) >> 11) * 2.0**-53 >= self.probability:
            return None  # most tasks need no generator
        rng = numpy_generator(seed, "crash time", task.client, task.turn)
        return Crash(seconds * (1 - float(rng.random())), max(SHORTEST, float(rng.exponential(self.recovery))))


@dataclass(frozen=True)
class Both(Availability):
    """Two reasons to be away or not to answer at once: clients are there when both say so.

    Args:
        first: one.
        second: the other.
    """

    first: Availability
    second: Availability

    @property
    def keeps(self) -> bool:
        """See `Availability`: only if both say so."""
        return self.first.keeps and self.second.keeps

    def periods(self, client: int, seed: int) -> Iterator[Period]:
        """See `Availability`."""
        one, other = self.first.periods(client, seed), self.second.periods(client, seed)
        a, b = next(one, None), next(other, None)
        while a is not None and b is not None:
            begin, end = max(a.begin, b.begin), min(a.end, b.end)
            if begin < end:
                yield Period(begin, end)
            if a.end <= b.end:
                a = next(one, None)
            else:
                b = next(other, None)

    def crash(self, task: Workload, seconds: float, seed: int) -> Crash | None:
        """See `Availability`: the earlier one."""
        found = [crash for part in (self.first, self.second) if (crash := part.crash(task, seconds, seed))]
        return min(found, default=None)

    def silent(self, clients: int, seed: int) -> Mapping[int, float]:
        """See `Availability`: the earlier time."""
        one, other = self.first.silent(clients, seed), self.second.silent(clients, seed)
        return {i: min(one.get(i, FOREVER), other.get(i, FOREVER)) for i in sorted({*one, *other})}

    def check(self, clients: int) -> None:
        """See `Availability`."""
        self.first.check(clients)
        self.second.check(clients)

    @property
    def fingerprint(self) -> str | None:
        """See `Availability`."""
        found = [print_ for part in (self.first, self.second) if (print_ := part.fingerprint)]
        return "-".join(found) or None


class Attendance:
    """Who is there when, asked in the order of time.

    Args:
        availability: says so.
        seed: the run's.
    """

    def __init__(self, availability: Availability, seed: int) -> None:
        self.availability, self.seed = availability, seed
        self._ahead = dict[int, Iterator[Period]]()
        self._current = dict[int, Period]()

    def period(self, client: int, at: float) -> Period | None:
        """The period of `client` that holds the time `at`, or else its next one; None if it does not come back.

        Args:
            client: of whom.
            at: no earlier than in the call before, for this client.
        """
        if client not in self._ahead:
            self._ahead[client] = self.availability.periods(client, self.seed)
        now = self._current.get(client)
        if now is None or now.end <= at:
            later = itertools.dropwhile(lambda period: period.end <= at, self._ahead[client])
            now = next(later, None) or Period(FOREVER, FOREVER)
            self._current[client] = now
        return now if now.begin < FOREVER else None
