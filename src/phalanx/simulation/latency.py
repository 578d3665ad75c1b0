"""The time of a client from its download to its reply, in virtual seconds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta
from typing_extensions import override

from phalanx.fields import CheckedFields, NonNegativeFloat, PositiveFloat
from phalanx.reading import file_digest
from phalanx.rng import numpy_generator
from phalanx.simulation.traces import number, read_trace, whole

SHORTEST = 1e-3  # seconds; no task is faster
SLOWEST = 1e-6  # Mbit/s; no connection is slower
KEPT = 1 << 16  # number of cached draws, of those that are constant for a run


class Workload(NamedTuple):
    """A task of a client, as far as its latency depends on it."""

    client: int
    turn: int = 0  # number of its earlier tasks
    examples: int = 1  # number of examples that it holds
    download: int = 0  # bytes
    upload: int = 0  # bytes
    clients: int = 1  # number of clients in the federation


class Latency(CheckedFields, ABC):
    """A positive delay for each task, drawn from the random streams of a run."""

    @abstractmethod
    def seconds(self, task: Workload, seed: int) -> float:
        """Return the time from the download to the reply.  A pure function."""

    def check(self, clients: int) -> None:
        """Raise `ValueError` unless the latency of each of clients 0 .. clients - 1 is defined."""
        return

    @property
    def fingerprint(self) -> str | None:
        """The hash of the files that it reads; None if it reads none."""
        return None


@dataclass(frozen=True)
class Constant(Latency):
    """Every client takes the same time for every task.

    Args:
        delay: time of a task, in seconds.
    """

    delay: PositiveFloat = 1.0

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        return self.delay


@dataclass(frozen=True)
class Normal(Latency):
    """Normal times, folded at zero: |N(mean, std)|.

    Args:
        mean: mean of the normal distribution, in seconds.
        std: its standard deviation, in seconds.
        each_turn: whether to draw a time for each task, instead of once for each client.
    """

    mean: PositiveFloat = 100.0
    std: NonNegativeFloat = 20.0
    each_turn: bool = False

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        return self._drawn(task.client, task.turn, seed) if self.each_turn else _once(self, task.client, seed)

    def _drawn(self, client: int, turn: int, seed: int) -> float:
        rng = numpy_generator(seed, "latency", client, turn)
        return max(SHORTEST, abs(float(rng.normal(self.mean, self.std))))


@dataclass(frozen=True)
class Lognormal(Latency):
    """Lognormal times: few clients are much slower than most.

    Args:
        median: median time, in seconds.
        sigma: standard deviation of the logarithm of the time.
        each_turn: whether to draw a time for each task, instead of once for each client.
    """

    median: PositiveFloat = 1.0
    sigma: NonNegativeFloat = 0.5
    each_turn: bool = False

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        return self._drawn(task.client, task.turn, seed) if self.each_turn else _once(self, task.client, seed)

    def _drawn(self, client: int, turn: int, seed: int) -> float:
        rng = numpy_generator(seed, "latency", client, turn)
        return max(SHORTEST, self.median * float(rng.lognormal(0.0, self.sigma)))


@dataclass(frozen=True)
class Zipf(Latency):
    """Heavy-tailed times: k times the shortest with probability proportional to k^-exponent, k = 1 .. levels.

    Args:
        shortest: shortest time, in seconds.
        exponent: exponent, above 0; a smaller one makes more clients slow.
        levels: longest time divided by the shortest.
        each_turn: whether to draw a time for each task, instead of once for each client.
    """

    shortest: PositiveFloat = 1.0
    exponent: PositiveFloat = 1.7
    levels: Annotated[int, Meta(ge=1, le=1000000)] = 100
    each_turn: bool = False

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        return self._drawn(task.client, task.turn, seed) if self.each_turn else _once(self, task.client, seed)

    def _drawn(self, client: int, turn: int, seed: int) -> float:
        below = numpy_generator(seed, "latency", client, turn).random()
        return self.shortest * (1 + int(np.searchsorted(_zipf(self.exponent, self.levels), below, side="right")))


@dataclass(frozen=True)
class LatencyTrace(Latency):
    """Measured times, from a CSV file with the columns `client` and `seconds`, and optionally `turn`.

    The rows of one client are its tasks, in the order of `turn` if there is such a column (0, 1, 2, ... without a gap),
    otherwise in the order of the file.  After the last row, the first one is used again.

    Args:
        file: path of the file. A run is identified by its content.
    """

    file: str

    @property
    def file_digests(self) -> Mapping[str, str]:
        """By field, the SHA-256 of the file that it names."""
        digest = file_digest(Path(self.file))
        return {"file": digest} if digest else {}

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        times = self._times[task.client]
        return times[task.turn % len(times)]

    @override
    def check(self, clients: int) -> None:
        if missing := sorted(set(range(clients)) - self._times.keys()):
            some = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise ValueError(
                f"{self.file} has no times for {some} of clients 0 to {clients - 1}. "
                "Add a row for each, or use fewer clients."
            )

    @property
    @override
    def fingerprint(self) -> str | None:
        return read_trace(self.file, ("client", "seconds"), ("turn",)).digest

    @cached_property
    def _times(self) -> dict[int, list[float]]:
        trace = read_trace(self.file, ("client", "seconds"), ("turn",))
        times = dict[int, dict[int, float]]()
        for row in trace.rows:
            own = times.setdefault(whole(row, "client"), {})
            turn = whole(row, "turn") if "turn" in row.cells else len(own)
            seconds = number(row, "seconds")
            if seconds <= 0:
                raise ValueError(f"{row.where}: seconds must be positive, got {row.cells['seconds']}.")
            if turn != len(own):
                raise ValueError(f"{row.where}: expected turn {len(own)} of the client, got turn {turn}.")
            own[turn] = seconds
        return {client: [own[k] for k in range(len(own))] for client, own in times.items()}


@dataclass(frozen=True)
class Bandwidth(Latency):
    """The time of a model on the network: download, upload, and round trip.

    Args:
        download: download bandwidth of the median client, in Mbit/s.
        upload: upload bandwidth of the median client, in Mbit/s.
        round_trip: seconds in addition to the times for download and upload.
        sigma: standard deviation of the logarithm of a client's bandwidth, which is drawn once; 0 gives all clients the
            same bandwidth.
    """

    download: Annotated[float, Meta(ge=SLOWEST)] = 50.0
    upload: Annotated[float, Meta(ge=SLOWEST)] = 10.0
    round_trip: NonNegativeFloat = 0.05
    sigma: NonNegativeFloat = 0.0

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        megabits = 8e-6 * task.download / self.download + 8e-6 * task.upload / self.upload
        pace = _once(self, task.client, seed) if self.sigma else 1.0
        return max(SHORTEST, self.round_trip + megabits / pace)

    def _drawn(self, client: int, turn: int, seed: int) -> float:
        return float(numpy_generator(seed, "bandwidth", client).lognormal(0.0, self.sigma))


@dataclass(frozen=True)
class PerExample(Latency):
    """Times proportional to the number of examples that a client holds.

    Args:
        each: time for one example.
    """

    each: Latency = Constant(0.01)

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        return max(SHORTEST, self.each.seconds(task, seed) * task.examples)

    @override
    def check(self, clients: int) -> None:
        self.each.check(clients)

    @property
    @override
    def fingerprint(self) -> str | None:
        return self.each.fingerprint


@dataclass(frozen=True)
class Parts(Latency):
    """The sum of the times for computation and network.

    Args:
        compute: time for training.
        network: time for download and upload.
    """

    compute: Latency = Lognormal()
    network: Latency = Bandwidth()

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        return self.compute.seconds(task, seed) + self.network.seconds(task, seed)

    @override
    def check(self, clients: int) -> None:
        self.compute.check(clients)
        self.network.check(clients)

    @property
    @override
    def fingerprint(self) -> str | None:
        found = [print_ for part in (self.compute, self.network) if (print_ := part.fingerprint)]
        return "-".join(found) or None


@dataclass(frozen=True)
class Stragglers(Latency):
    """Some random clients are slower than the others.

    Args:
        latency: time of the other clients.
        share: share of the clients, in [0, 1], rounded to the nearest number of clients.
        factor: factor on the time of the slow clients, at least 1.
    """

    latency: Latency = Constant()
    share: Annotated[float, Meta(ge=0, le=1)] = 0.1
    factor: Annotated[float, Meta(ge=1)] = 10.0

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        slow = task.client in drawn_clients(self.share, task.clients, seed, "stragglers")
        return self.latency.seconds(task, seed) * (self.factor if slow else 1.0)

    @override
    def check(self, clients: int) -> None:
        self.latency.check(clients)

    @property
    @override
    def fingerprint(self) -> str | None:
        return self.latency.fingerprint


@lru_cache(maxsize=64)
def drawn_clients(share: float, clients: int, seed: int, stream: str) -> frozenset[int]:
    """Return a random share of the clients 0 .. clients - 1, rounded to the nearest number, drawn by a named stream."""
    count = int(np.floor(share * clients + 0.5))
    return frozenset(numpy_generator(seed, stream).choice(clients, count, replace=False).tolist())


@lru_cache(maxsize=KEPT)
def _once(latency: Normal | Lognormal | Zipf | Bandwidth, client: int, seed: int) -> float:
    """Return the draw for the first task of a client, which holds for all of its tasks."""
    return latency._drawn(client, 0, seed)


@lru_cache(maxsize=8)
def _zipf(exponent: float, levels: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the probability of at most k times the shortest time, for k = 1 .. levels - 1."""
    # Cumulative probabilities, by which a uniform number finds its level with a binary search.
    weights = np.arange(1, levels + 1, dtype=np.float64) ** -exponent
    below: np.ndarray[tuple[int], np.dtype[np.float64]] = np.cumsum(weights)[:-1] / weights.sum()
    return below
