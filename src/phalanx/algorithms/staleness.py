"""Weights for the age of an update, as functions s(tau) of Xie, Koyejo and Gupta, 2019."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta
from typing_extensions import override

from phalanx.fields import INFINITE, CheckedFields, NonNegativeInt


class Staleness(CheckedFields, ABC):
    """s(tau) in [0, 1]: the weight of an update that is tau server updates old."""

    @abstractmethod
    def __call__(self, age: int) -> float:
        """Return the factor for an update of this age, 1 at age 0."""


@dataclass(frozen=True)
class Undiscounted(Staleness):
    """s(tau) = 1."""

    @override
    def __call__(self, age: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s(tau) = (tau + 1)^-a.

    Args:
        a: how fast old updates lose influence; 0 is constant.
    """

    a: Annotated[float, Meta(ge=0), INFINITE] = 0.5

    @override
    def __call__(self, age: int) -> float:
        return float((age + 1) ** -self.a)


@dataclass(frozen=True)
class Hinge(Staleness):
    """s(tau) = 1 up to age b, and 1 / (a (tau - b) + 1) beyond.

    Args:
        a: how fast older updates lose influence.
        b: age up to which an update counts in full, in server updates.
    """

    a: Annotated[float, Meta(ge=0), INFINITE] = 10.0
    b: NonNegativeInt = 4

    @override
    def __call__(self, age: int) -> float:
        return 1.0 if age <= self.b else 1 / (self.a * (age - self.b) + 1)


@dataclass(frozen=True)
class Exponential(Staleness):
    """s(tau) = exp(-a tau).

    Args:
        a: how fast old updates lose influence; 0 is constant.
    """

    a: Annotated[float, Meta(ge=0), INFINITE] = 0.1

    @override
    def __call__(self, age: int) -> float:
        return math.exp(-self.a * age)
