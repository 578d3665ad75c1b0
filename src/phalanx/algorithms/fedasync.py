"""Asynchronous federated optimisation.

Xie, Koyejo and Gupta, "Asynchronous Federated Optimization", 2019.  `FedAsync` is Algorithm 1: whoever is done is mixed
in at once, the less the older the model is that it started from.

Where the paper leaves a choice: clients minimise their plain loss; the proximal term of the paper (rho > 0) is a matter
of local training.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from phalanx.core import Algorithm, Updates, Vector, Verdict


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

    def step(self, state: FedAsyncState, updates: Updates) -> tuple[FedAsyncState, Set[int]]:
        """See `Algorithm`."""
        x, t, verdicts = state.model, state.version, dict[int, Verdict]()
        for i, version, base, delta in zip(
            updates.clients, updates.versions, updates.bases, updates.deltas, strict=True
        ):
            tau = t - version
            alpha = self.mixing * self.staleness(tau)
            x = (1 - alpha) * x + alpha * (base + delta)
            t += 1
            verdicts[i] = Verdict(True, alpha, float(tau), f"{tau} updates old" if tau else "")
        return FedAsyncState(t, x, verdicts), set(updates.clients)
