"""Asynchronous federated optimisation.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019.  `FedAsync` is Algorithm 1: whoever is done is mixed
in at once, the less the older the model is that it started from.

Where the paper leaves a choice:

* Its proximal term rho/2 |x - x_t|^2 is a matter of local training: `LocalSGD(proximal=rho)`.  It is off by default.
* Its experiments have alpha fall once, to a half.  Here it is constant.
* `Exponential` is in the authors' code, and in Kardam's paper, not in this one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from phalanx.core import Algorithm, Updates, Vector, Verdict
from phalanx.wording import plural


class Staleness(ABC):
    """s(tau) in [0, 1]: what an update counts for that is tau server updates old."""

    @abstractmethod
    def __call__(self, age: int) -> float:
        """The factor for an update of this age, 1 at age 0."""


@dataclass(frozen=True)
class Constant(Staleness):
    """s(tau) = 1."""

    def __call__(self, age: int) -> float:
        """See `Staleness`."""
        return 1.0


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s(tau) = (tau + 1)^-a.

    Args:
        a: how fast old updates lose influence; 0 is constant.
    """

    a: float = 0.5

    def __post_init__(self) -> None:
        if not self.a >= 0:
            raise ValueError(f"a must be at least 0, got {self.a}.")

    def __call__(self, age: int) -> float:
        """See `Staleness`."""
        return float((age + 1) ** -self.a)


@dataclass(frozen=True)
class Hinge(Staleness):
    """s(tau) = 1 up to age b, and 1 / (a (tau - b) + 1) beyond.

    Args:
        a: how fast older updates lose influence.
        b: age up to which an update counts in full, in server updates.
    """

    a: float = 10.0
    b: int = 4

    def __post_init__(self) -> None:
        if not (self.a >= 0 and self.b >= 0):
            raise ValueError(f"a and b must be at least 0, got a = {self.a} and b = {self.b}.")

    def __call__(self, age: int) -> float:
        """See `Staleness`."""
        return 1.0 if age <= self.b else 1 / (self.a * (age - self.b) + 1)


@dataclass(frozen=True)
class Exponential(Staleness):
    """s(tau) = exp(-a tau).

    Args:
        a: how fast old updates lose influence; 0 is constant.
    """

    a: float = 0.1

    def __post_init__(self) -> None:
        if not self.a >= 0:
            raise ValueError(f"a must be at least 0, got {self.a}.")

    def __call__(self, age: int) -> float:
        """See `Staleness`."""
        return math.exp(-self.a * age)


class Arrival(NamedTuple):
    """The update of one client."""

    client: int
    version: int  # of the model that it was sent
    base: Vector  # that model
    delta: Vector  # trained minus received parameters


def one_by_one(updates: Updates) -> Iterator[Arrival]:
    """The updates, as if they had arrived one after the other."""
    return map(Arrival, updates.clients, updates.versions, updates.bases, updates.deltas)


def told_of_age(tau: int) -> str:
    """The age of an update, as verdicts tell it; empty if it is fresh."""
    return f"{plural(tau, 'update')} old" if tau else ""


class FedAsyncState(NamedTuple):
    """What the server of `FedAsync` carries over."""

    version: int  # t, updates mixed in
    model: Vector  # x_t
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FedAsync(Algorithm[FedAsyncState]):
    """Mixes each arrival into the model: x <- (1 - alpha s(tau)) x + alpha s(tau) x_new.

    Every client counts alike: a fast client counts more often.  No defence.

    Args:
        mixing: alpha in (0, 1], the weight of a fresh model.
        staleness: s(tau), the factor on alpha for a model that started tau updates ago.
    """

    synchronous: ClassVar[bool] = False

    mixing: float = 0.6
    staleness: Staleness = Polynomial(0.5)

    def __post_init__(self) -> None:
        if not 0 < self.mixing <= 1:
            raise ValueError(f"mixing must lie in (0, 1], got {self.mixing}.")

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedAsyncState, Set[int]]:
        """See `Algorithm`."""
        return FedAsyncState(0, model, {}), sizes.keys()

    def join(self, state: FedAsyncState, client: int, size: int) -> FedAsyncState:
        """See `Algorithm`.  Nothing is kept of clients, so nothing changes."""
        return state

    def step(self, state: FedAsyncState, updates: Updates) -> tuple[FedAsyncState, Set[int]]:
        """See `Algorithm`."""
        x, t, verdicts = state.model, state.version, dict[int, Verdict]()
        for i, version, base, delta in one_by_one(updates):
            tau = t - version
            alpha = self.mixing * self.staleness(tau)
            x = (1 - alpha) * x + alpha * (base + delta)
            t += 1
            verdicts[i] = Verdict(True, alpha, float(tau), told_of_age(tau))
        return FedAsyncState(t, x, verdicts), set(updates.clients)
