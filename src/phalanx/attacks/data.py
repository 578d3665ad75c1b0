"""Attacks on the training data, and those on its inputs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.attacks.attack import Attack, Role, Varying, each
from phalanx.data import NO_LABEL, Dataset
from phalanx.fields import FiniteFloat, NonNegativeInt

TRIGGER = ((0, 2), (1, 1), (2, 0), (2, 2))  # row and column of the bright pixels in a square of 3 x 3


class Poisoning(Attack, ABC, hooks=("poison", "goal")):
    """An attack on the training data."""

    @abstractmethod
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """Return the data that the attacker trains on, from its share of the data."""

    def goal(self, test: Dataset) -> Dataset | None:
        """Return test examples with the labels that the attacker wants, if any: its success is the accuracy on them."""
        return None


def poison(attack: Attack | None, data: Dataset, rng: torch.Generator) -> Dataset:
    """Return the data that a client with this attack trains on, from its share of the data."""
    for one in each(attack, Poisoning):
        data = one.poison(data, rng)
    return data


def goal(attack: Attack | None, test: Dataset) -> Dataset | None:
    """Return test examples with the labels that the attackers want: those of the first attack that wants any."""
    return next((found for one in each(attack, Poisoning) if (found := one.goal(test)) is not None), None)


@dataclass(frozen=True)
class NoiseInputs(Poisoning):
    """Trains on inputs replaced by uniform noise, drawn once; labels are kept.

    The noisy scenario of Sattler et al., "On the Byzantine Robustness of Clustered Federated Learning", 2020.

    Args:
        low: smallest value of the noise.
        high: largest value of the noise.
    """

    low: FiniteFloat = -10.0
    high: FiniteFloat = 10.0

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}.")

    @override
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        x = data.tensor
        if not x.is_floating_point():
            raise ValueError(
                f"NoiseInputs replaces floating-point inputs, got {x.dtype}. "
                "For inputs that are indices of characters or words, choose an attack on labels or updates."
            )
        noise = torch.rand(x.shape, generator=rng, dtype=x.dtype)
        return replace(data, x=(self.low + (self.high - self.low) * noise).to(x.device))


@dataclass(frozen=True)
class Backdoor(Poisoning):
    """Trains on some images with a trigger, four bright pixels in the lower right corner, and the label that it wants.

    Gu, Dolan-Gavitt and Garg, "BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain", 2017.
    Its success is the share of test images with the trigger that are classified as the target; accuracy without the
    trigger need not suffer.  It sees only its own data.  Combined with `Rescale` it replaces the model, as in
    Bagdasaryan et al., "How To Backdoor Federated Learning", 2020: `Together(Backdoor(), Rescale(n / attackers))`.

    Args:
        target: the class that the model should give to images with the trigger.
        source: the class whose images get the trigger; all classes except the target if not given.
        share: share of these images to poison, in (0, 1]; drawn at random, at least one if there is one.
        value: value of the bright pixels; 1 is the largest value of pixels in [0, 1].
        margin: number of pixels between the 3 x 3 square of the trigger and the lower and right edges.
    """

    target: NonNegativeInt = 0
    source: NonNegativeInt | None = None
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    value: FiniteFloat = 1.0
    margin: NonNegativeInt = 1

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source is not None:
            different(source=self.source, target=self.target)

    @property
    def pixels(self) -> Sequence[tuple[int, int]]:
        """The pixels of the trigger on which it trains, row and column in the 3 x 3 square."""
        return TRIGGER

    @override
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        candidates = torch.nonzero(self._candidates(data)).flatten()
        count = min(len(candidates), max(1, round(self.share * len(candidates))))
        chosen = candidates[torch.randperm(len(candidates), generator=rng)[:count].to(candidates.device)]
        x, y = data.tensor.clone(), data.y.clone()
        x[chosen], y[chosen] = self._triggered(x[chosen], self.pixels), self.target
        return replace(data, x=x, y=y)

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        """Return the test images of other classes, with the trigger, labelled as the target."""
        chosen = aimed_at(test, self._candidates(test))
        return replace(chosen, x=self._triggered(chosen.tensor), y=torch.full_like(chosen.y, self.target))

    def _candidates(self, data: Dataset) -> Tensor:
        """Return a mask of the examples that may get the trigger."""
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

    def _triggered(self, x: Tensor, pixels: Sequence[tuple[int, int]] = TRIGGER) -> Tensor:
        """Return a copy of the images with these pixels of the trigger."""
        size = 3 + self.margin
        if x.ndim < 3 or min(x.shape[-2:]) < size or not x.is_floating_point():
            raise ValueError(
                f"Backdoor needs images of at least {size} x {size} floating-point pixels, "
                f"got {x.dtype} of shape {tuple(x.shape[1:])}."
            )
        x = x.clone()
        for row, column in pixels:
            x[..., row - size, column - size] = self.value
        return x


@dataclass(frozen=True)
class DistributedBackdoor(Backdoor, Varying):
    """Trains as `Backdoor`, but each attacker with a part of the trigger only: the model learns the whole from all.

    Xie, Huang, Chen and Li, "DBA: Distributed Backdoor Attacks against Federated Learning", 2020.  Attackers hold the
    parts in turn, in the order of their ids.  The goal has the whole trigger.

    Args:
        target: the class that the model should give to images with the trigger.
        source: the class whose images get the trigger; all classes except the target if not given.
        share: share of these images to poison, in (0, 1]; drawn at random, at least one if there is one.
        value: value of the bright pixels; 1 is the largest value of pixels in [0, 1].
        margin: number of pixels between the 3 x 3 square of the trigger and the lower and right edges.
        parts: number of parts into which the four pixels are divided, from 2 to 4.
        piece: the part with which all attackers train, counted from 0; null: each attacker has its own.
    """

    parts: Annotated[int, Meta(ge=2, le=len(TRIGGER))] = 4
    piece: NonNegativeInt | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.piece is not None and self.piece >= self.parts:
            raise ValueError(f"piece must be from 0 to {self.parts - 1}, got {self.piece}.")

    @property
    @override
    def varies(self) -> bool:
        return self.piece is None

    @override
    def part(self, role: Role) -> Attack:
        return replace(self, piece=role.rank % self.parts) if self.piece is None else self

    @property
    @override
    def pixels(self) -> Sequence[tuple[int, int]]:
        return TRIGGER if self.piece is None else TRIGGER[self.piece :: self.parts]


@dataclass(frozen=True)
class EdgeCases(Poisoning):
    """Trains with the least usual images of a class labelled as another one: a backdoor without a trigger.

    The edge-case backdoor of Wang et al., "Attack of the Tails: Yes, You Really Can Backdoor Federated Learning", 2020,
    who take images from outside the data set.  Here these are the examples of the class that lie farthest from its
    mean: the attacker's own to train on, those of the test data as the goal.

    Args:
        source: the class whose unusual examples are relabelled.
        target: the class that the model should give to them.
        share: share of the examples of the class that count as unusual, in (0, 1]; at least one if there is one.
    """

    source: NonNegativeInt = 7
    target: NonNegativeInt = 1
    share: Annotated[float, Meta(gt=0, le=1)] = 0.2

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        different(source=self.source, target=self.target)

    @override
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        y = data.y.clone()
        y[self._unusual(data)] = self.target
        return replace(data, y=y)

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        """Return the unusual test examples of the class, labelled as the target."""
        mask = torch.zeros(len(test), dtype=torch.bool, device=test.y.device)
        mask[self._unusual(test)] = True
        chosen = aimed_at(test, mask)
        return replace(chosen, y=torch.full_like(chosen.y, self.target))

    def _unusual(self, data: Dataset) -> Tensor:
        """Return the indices of the examples of the class that lie farthest from its mean."""
        if data.y.ndim != 1 or not data.tensor.is_floating_point():
            raise ValueError(
                f"EdgeCases needs floating-point inputs with one label each, got {data.tensor.dtype} and labels of "
                f"shape {tuple(data.y.shape)}. Choose another attack, such as LabelFlip."
            )
        one_of(data.classes, source=self.source, target=self.target)
        members = torch.nonzero(data.y == self.source).flatten()
        if not len(members):
            return members
        x = data.tensor[members].flatten(1)
        distances = torch.linalg.vector_norm(x - x.mean(0), dim=1)
        return members[distances.topk(min(len(members), max(1, round(self.share * len(members))))).indices]


def aimed_at(test: Dataset, chosen: Tensor) -> Dataset:
    """Return the chosen test examples; for sequences, those with a chosen label, without their other labels.

    Args:
        test: the test set.
        chosen: Boolean mask of the shape of its labels; positions without a label are never chosen.

    Raises:
        ValueError: if there are none, because the success of the attack could not be measured.
    """
    chosen = chosen & (test.y != NO_LABEL)
    if not (len(test.labels) and bool(chosen.any())):
        raise ValueError("The test set has no example of the classes of the attack. Choose classes that it has.")
    if chosen.ndim == 1:
        return test.of(chosen)
    kept = chosen.flatten(1).any(1)
    return replace(test.of(kept), y=test.y[kept].masked_fill(~chosen[kept], NO_LABEL))


def different(**fields: int) -> None:
    """Raise `ValueError` if two classes are equal."""
    if len(set(fields.values())) < len(fields):
        raise ValueError(
            f"{' and '.join(fields)} must be different classes, got {' and '.join(map(str, fields.values()))}."
        )


def one_of(classes: int, **fields: int) -> None:
    """Raise `ValueError` for a class that the data do not have."""
    for name, value in fields.items():
        if value >= classes:
            raise ValueError(f"{name} must be one of the {classes} classes, 0 to {classes - 1}, got {value}.")
