"""Attacks on the training data."""

import math
from dataclasses import dataclass, replace

import torch

from phalanx.attacks.attack import Attack
from phalanx.data import Dataset


@dataclass(frozen=True)
class AllLabelsTo(Attack):
    """Trains with every label set to one class.

    The label-flip scenario of Sattler et al., "On the Byzantine Robustness of Clustered Federated Learning", 2020.

    Args:
        target: the class.
    """

    target: int = 0

    def __post_init__(self) -> None:
        if self.target < 0:
            raise ValueError(f"target must be a class, 0 or above, got {self.target}.")

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """See `Attack`."""
        return self._relabelled(data)

    def goal(self, test: Dataset) -> Dataset | None:
        """Every example of another class, taken for the target."""
        return self._relabelled(test.of(test.y != self.target))

    def _relabelled(self, data: Dataset) -> Dataset:
        if self.target >= data.classes:
            raise ValueError(
                f"target must be one of the {data.classes} classes, 0 to {data.classes - 1}, got {self.target}."
            )
        return replace(data, y=torch.full_like(data.y, self.target))


@dataclass(frozen=True)
class NoiseInputs(Attack):
    """Trains on inputs that are uniform noise, drawn once, with their labels kept.

    The noisy scenario of Sattler et al., "On the Byzantine Robustness of Clustered Federated Learning", 2020.

    Args:
        low: smallest value.
        high: largest value.
    """

    low: float = -10.0
    high: float = 10.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"low must be below high, both finite, got {self.low} and {self.high}.")

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """See `Attack`."""
        noise = torch.rand(data.x.shape, generator=rng, dtype=data.x.dtype)
        return replace(data, x=(self.low + (self.high - self.low) * noise).to(data.x.device))
