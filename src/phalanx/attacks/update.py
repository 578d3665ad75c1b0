"""Attacks on the update."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from phalanx.attacks.attack import Attack, Knowledge, Update
from phalanx.core import Vector


@dataclass(frozen=True)
class Gaussian(Attack):
    """Sends noise: entries from N(0, std^2), independent.

    The Byzantine scenario of Sattler et al., "On the Byzantine Robustness of Clustered Federated Learning", 2020, with
    std 1, whatever the scale of honest updates: the norm is about std * sqrt(d).

    Args:
        std: standard deviation of each entry.
        add: add the noise to the honest update, instead of replacing it.
    """

    std: float = 1.0
    add: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.std < math.inf:
            raise ValueError(f"std must be positive and finite, got {self.std}.")

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        delta = update.delta
        noise = self.std * torch.randn(delta.shape, generator=rng, dtype=delta.dtype).to(delta.device)
        return delta + noise if self.add else noise


@dataclass(frozen=True)
class Rescale(Attack):
    """Sends its honest update times a factor.

    Args:
        factor: large to dominate an average, negative to undo progress. -10 is the gradient inversion of Cox et al.,
            "Asynchronous Byzantine Federated Learning", 2024.
    """

    factor: float = -10.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor):
            raise ValueError(f"factor must be finite, got {self.factor}.")

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        return self.factor * update.delta


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends its honest update with the opposite sign: as long as an honest one, in the wrong direction."""

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        return -update.delta


@dataclass(frozen=True)
class NonFinite(Attack):
    """Sends values that are no numbers: what a crash or a cheap sabotage looks like.

    Args:
        value: what every entry is.
    """

    value: Literal["nan", "inf", "-inf"] = "nan"

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """See `Attack`."""
        return torch.full_like(update.delta, float(self.value))
