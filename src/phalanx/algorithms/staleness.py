"""Weights for the age of an update, as functions s(tau) of Xie, Koyejo and Gupta, 2019."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from typing_extensions import override


class Staleness(ABC):
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

    a: float = 0.5

    def __post_init__(self) -> None:
        if not self.a >= 0:
            raise ValueError(f"a must be at least 0, got {self.a}.")

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

    a: float = 10.0
    b: int = 4

    def __post_init__(self) -> None:
        if not (self.a >= 0 and self.b >= 0):
            raise ValueError(f"a and b must be at least 0, got a = {self.a} and b = {self.b}.")

    @override
    def __call__(self, age: int) -> float:
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

    @override
    def __call__(self, age: int) -> float:
        return math.exp(-self.a * age)
