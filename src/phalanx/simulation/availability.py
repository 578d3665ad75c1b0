"""The availability of clients, and failures of their tasks."""

import itertools
import math
from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta
from typing_extensions import override

from phalanx.fields import CheckedFields, NonNegativeFloat, PositiveFloat
from phalanx.reading import file_digest
from phalanx.rng import numpy_generator, stream
from phalanx.simulation.latency import SHORTEST, Workload, drawn_clients
from phalanx.simulation.traces import number, read_trace, whole
from phalanx.wording import plural

FOREVER = math.inf


class Period(NamedTuple):
    """A period in which a client is available, in virtual seconds."""

    begin: float
    end: float  # infinite if it does not leave


class Crash(NamedTuple):
    """A crash that ends a task before its answer."""

    after: float  # seconds from the download
    back: float  # seconds from the crash until the client is available again


class Availability(CheckedFields, ABC):
    """The times at which clients are available, and the failures of their tasks; by default always, and none.

    All methods are pure: they draw from the random streams of the run.
    """

    @property
    def keeps(self) -> bool:
        """Whether a client that leaves during a task sends its answer when it is back.

        If not, the task is lost when it leaves.
        """
        return True

    def periods(self, client: int, seed: int) -> Iterator[Period]:
        """Yield the periods in which `client` is available, in order and disjoint; after the last one it stays away."""
        return iter((Period(0.0, FOREVER),))

    def crash(self, task: Workload, seconds: float, seed: int) -> Crash | None:
        """Return the crash of a task that would take `seconds`; None if there is none."""
        return None

    def silent(self, clients: int, seed: int) -> Mapping[int, float]:
        """Return the clients, of 0 .. clients - 1, that stop sending at some time, each with that time."""
        return {}

    def check(self, clients: int) -> None:
        """Raise `ValueError` unless the availability of each of clients 0 .. clients - 1 is defined."""
        return

    @property
    def fingerprint(self) -> str | None:
        """The hash of the files that it reads; None if it reads none."""
        return None


@dataclass(frozen=True)
class OnOff(Availability):
    """Clients leave and return: each is alternately available and away, for exponential times.

    At the beginning, as at any later time, each client is available with probability on / (on + off).

    Args:
        on: mean time for which a client is available, in virtual seconds.
        off: mean time for which a client is away, in virtual seconds.
        answers: whether a client that leaves during a task sends its answer when it is back; if not, the task is lost.
    """

    on: PositiveFloat = 100.0
    off: PositiveFloat = 20.0
    answers: bool = True

    @property
    @override
    def keeps(self) -> bool:
        return self.answers

    @override
    def periods(self, client: int, seed: int) -> Iterator[Period]:
        rng = numpy_generator(seed, "availability", client)
        # Exponential times have no memory, so the first period has the same distribution as any other.
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
    """Clients are available at the times in a CSV file with the columns `client`, `begin` and `end`, a row per period.

    Times are virtual seconds.  The rows of one client are in order and do not overlap; an empty `end` in its last row
    means that it does not leave.

    Args:
        file: path of the file. A run is identified by its content.
        answers: whether a client that leaves during a task sends its answer when it is back; if not, the task is lost.
    """

    file: str
    answers: bool = True

    @property
    def file_digests(self) -> Mapping[str, str]:
        """By field, the SHA-256 of the file that it names."""
        digest = file_digest(Path(self.file))
        return {"file": digest} if digest else {}

    @property
    @override
    def keeps(self) -> bool:
        return self.answers

    @override
    def periods(self, client: int, seed: int) -> Iterator[Period]:
        return iter(self._periods[client])

    @override
    def check(self, clients: int) -> None:
        if missing := sorted(set(range(clients)) - self._periods.keys()):
            raise ValueError(
                f"{self.file} has no row for client {missing[0]} and {plural(len(missing) - 1, 'other')} "
                f"of clients 0 to {clients - 1}. Add a row for each: {missing[0]},0, for one that is always available."
            )

    @property
    @override
    def fingerprint(self) -> str | None:
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
    """Some clients stop sending answers at some time, although they are available.

    The server can notice this only by a deadline.

    Args:
        share: share of the clients, in [0, 1], rounded to the nearest number of clients; drawn at random.
        after: time at which they stop, in virtual seconds.
    """

    share: Annotated[float, Meta(ge=0, le=1)] = 0.1
    after: NonNegativeFloat = 0.0

    @override
    def silent(self, clients: int, seed: int) -> Mapping[int, float]:
        return dict.fromkeys(sorted(drawn_clients(self.share, clients, seed, "silent")), self.after)


@dataclass(frozen=True)
class Crashes(Availability):
    """Tasks crash: at a random moment of a task its client fails, and returns after an exponential time.

    The task is lost; the local state of the client from earlier tasks is not.

    Args:
        probability: probability that a task crashes, in [0, 1].
        recovery: mean time until the client is back, in virtual seconds.
    """

    probability: Annotated[float, Meta(ge=0, le=1)] = 0.1
    recovery: PositiveFloat = 10.0

    @override
    def crash(self, task: Workload, seconds: float, seed: int) -> Crash | None:
        # The upper 53 bits of the stream's seed are a uniform number in [0, 1).
        if (stream(seed, "crash", task.client, task.turn) >> 11) * 2.0**-53 >= self.probability:
            return None  # without a generator, which most tasks then do not need
        rng = numpy_generator(seed, "crash time", task.client, task.turn)
        return Crash(seconds * (1 - float(rng.random())), max(SHORTEST, float(rng.exponential(self.recovery))))


@dataclass(frozen=True)
class Both(Availability):
    """Two availabilities combined: clients are available when both say so, and the failures of both occur.

    Args:
        first: the first availability.
        second: the second availability.
    """

    first: Availability
    second: Availability

    @property
    @override
    def keeps(self) -> bool:
        """See `Availability`: only if both say so."""
        return self.first.keeps and self.second.keeps

    @override
    def periods(self, client: int, seed: int) -> Iterator[Period]:
        one, other = self.first.periods(client, seed), self.second.periods(client, seed)
        a, b = next(one, None), next(other, None)
        # The intersection of two sorted lists of periods.
        while a is not None and b is not None:
            begin, end = max(a.begin, b.begin), min(a.end, b.end)
            if begin < end:
                yield Period(begin, end)
            if a.end <= b.end:
                a = next(one, None)
            else:
                b = next(other, None)

    @override
    def crash(self, task: Workload, seconds: float, seed: int) -> Crash | None:
        """See `Availability`: the earlier crash."""
        found = [crash for part in (self.first, self.second) if (crash := part.crash(task, seconds, seed))]
        return min(found, default=None)

    @override
    def silent(self, clients: int, seed: int) -> Mapping[int, float]:
        """See `Availability`: the earlier time."""
        one, other = self.first.silent(clients, seed), self.second.silent(clients, seed)
        return {i: min(one.get(i, FOREVER), other.get(i, FOREVER)) for i in sorted({*one, *other})}

    @override
    def check(self, clients: int) -> None:
        self.first.check(clients)
        self.second.check(clients)

    @property
    @override
    def fingerprint(self) -> str | None:
        found = [print_ for part in (self.first, self.second) if (print_ := part.fingerprint)]
        return "-".join(found) or None


class Attendance:
    """The current period of each client, for queries in the order of time.

    Args:
        availability: the availability of the clients.
        seed: seed of the run.
    """

    def __init__(self, availability: Availability, seed: int) -> None:
        self.availability, self.seed = availability, seed
        self._ahead = dict[int, Iterator[Period]]()
        self._current = dict[int, Period]()

    def period(self, client: int, at: float) -> Period | None:
        """Return the period of `client` that contains the time `at`, or else its next one; None if there is none.

        Args:
            client: id of the client.
            at: time, no earlier than in the previous call for this client.
        """
        if client not in self._ahead:
            self._ahead[client] = self.availability.periods(client, self.seed)
        now = self._current.get(client)
        if now is None or now.end <= at:
            later = itertools.dropwhile(lambda period: period.end <= at, self._ahead[client])
            now = next(later, None) or Period(FOREVER, FOREVER)
            self._current[client] = now
        return now if now.begin < FOREVER else None
