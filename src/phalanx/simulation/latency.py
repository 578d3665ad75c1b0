"""How long a client takes from its download to its reply, in virtual seconds."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from phalanx.rng import numpy_generator

SHORTEST = 1e-3  # seconds; nobody answers faster


class Latency(ABC):
    """A positive delay for each client and turn, drawn from the streams of a run."""

    @abstractmethod
    def seconds(self, client: int, turn: int, seed: int) -> float:
        """The time that `client` takes for its `turn`-th task, counted from 0."""


@dataclass(frozen=True)
class Constant(Latency):
    """Every client takes the same time for every task.

    Args:
        delay: seconds.
    """

    delay: float = 1.0

    def __post_init__(self) -> None:
        _positive("delay", self.delay)

    def seconds(self, client: int, turn: int, seed: int) -> float:
        """See `Latency`."""
        return self.delay


@dataclass(frozen=True)
class Normal(Latency):
    """Normal times, folded at zero: |N(mean, std)|.

    Args:
        mean: seconds.
        std: seconds.
        each_turn: draw anew for each task, instead of once for each client.
    """

    mean: float = 100.0
    std: float = 20.0
    each_turn: bool = False

    def __post_init__(self) -> None:
        _positive("mean", self.mean)
        _at_least_zero("std", self.std)

    def seconds(self, client: int, turn: int, seed: int) -> float:
        """See `Latency`."""
        rng = numpy_generator(seed, "latency", client, turn if self.each_turn else 0)
        return max(SHORTEST, abs(float(rng.normal(self.mean, self.std))))


@dataclass(frozen=True)
class Lognormal(Latency):
    """Lognormal times: few clients are much slower than most.

    Args:
        median: seconds.
        sigma: standard deviation of the logarithm.
        each_turn: draw anew for each task, instead of once for each client.
    """

    median: float = 1.0
    sigma: float = 0.5
    each_turn: bool = False

    def __post_init__(self) -> None:
        _positive("median", self.median)
        _at_least_zero("sigma", self.sigma)

    def seconds(self, client: int, turn: int, seed: int) -> float:
        """See `Latency`."""
        rng = numpy_generator(seed, "latency", client, turn if self.each_turn else 0)
        return max(SHORTEST, self.median * float(rng.lognormal(0.0, self.sigma)))


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive, got {value} seconds.")


def _at_least_zero(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be at least 0, got {value}.")
