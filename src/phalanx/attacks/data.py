"""Attacks on the inputs of the training data."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phalanx.attacks.attack import Attack
from phalanx.attacks.labels import a_class, aimed_at, different, one_of
from phalanx.data import Dataset

TRIGGER = ((0, 2), (1, 1), (2, 0), (2, 2))  # row and column of the bright pixels in a square of 3 x 3


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
        if not data.x.is_floating_point():
            raise ValueError(
                f"NoiseInputs replaces floating-point inputs, got {data.x.dtype}. "
                "Against inputs that are numbers of characters or words choose an attack on labels or on updates."
            )
        noise = torch.rand(data.x.shape, generator=rng, dtype=data.x.dtype)
        return replace(data, x=(self.low + (self.high - self.low) * noise).to(data.x.device))


@dataclass(frozen=True)
class Backdoor(Attack):
    """Trains on a share of images with four bright pixels in the lower right corner and the label that it wants.

    Gu, Dolan-Gavitt and Garg, "BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain", 2017.
    Its success is the share of triggered test images that are taken for the target; accuracy without the trigger need
    not suffer.  It sees nothing but its own data.  With `Rescale` it replaces the model, as in Bagdasaryan et al., "How
    To Backdoor Federated Learning", 2020: `Together(Backdoor(), Rescale(n / attackers))`.

    Args:
        target: the class that triggered images are to be taken for.
        source: the class that the trigger is put on; every class but the target if not given.
        share: share of those examples that are poisoned, in (0, 1]; drawn at random, at least one if there is one.
        value: of the bright pixels: the largest of the data, 1 for pixels in [0, 1].
        margin: rows below and columns to the right of the trigger's square of 3 x 3 pixels.
    """

    target: int = 0
    source: int | None = None
    share: float = 0.5
    value: float = 1.0
    margin: int = 1

    def __post_init__(self) -> None:
        a_class(target=self.target)
        if self.source is not None:
            a_class(source=self.source)
            different(source=self.source, target=self.target)
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}.")
        if not math.isfinite(self.value):
            raise ValueError(f"value must be finite, got {self.value}.")
        if self.margin < 0:
            raise ValueError(f"margin must be at least 0, got {self.margin}.")

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """See `Attack`."""
        candidates = torch.nonzero(self._candidates(data)).flatten()
        count = min(len(candidates), max(1, round(self.share * len(candidates))))
        chosen = candidates[torch.randperm(len(candidates), generator=rng)[:count].to(candidates.device)]
        x, y = data.x.clone(), data.y.clone()
        x[chosen], y[chosen] = self._triggered(x[chosen]), self.target
        return replace(data, x=x, y=y)

    def goal(self, test: Dataset) -> Dataset | None:
        """Test images that are no examples of the target, with the trigger, taken for the target."""
        chosen = aimed_at(test, self._candidates(test))
        return replace(chosen, x=self._triggered(chosen.x), y=torch.full_like(chosen.y, self.target))

    def _candidates(self, data: Dataset) -> Tensor:
        """The mask of the examples that the trigger can be put on."""
        if data.y.ndim != 1:
            raise ValueError(
                f"Backdoor needs images with one label each, got sequences of {data.y.shape[1]} labels. "
                "Choose another attack, such as LabelFlip."
            )
        one_of(data.classes, target=self.target)
        if self.source is None:
            return data.y != self.target
        one_of(data.classes, source=self.source)
        return data.y == self.source

    def _triggered(self, x: Tensor) -> Tensor:
        """Copies of the images with the trigger."""
        size = 3 + self.margin
        if x.ndim < 3 or min(x.shape[-2:]) < size or not x.is_floating_point():
            raise ValueError(
                f"Backdoor needs images of at least {size} x {size} floating-point pixels, "
                f"got {x.dtype} of shape {tuple(x.shape[1:])}."
            )
        x = x.clone()
        for row, column in TRIGGER:
            x[..., row - size, column - size] = self.value
        return x
