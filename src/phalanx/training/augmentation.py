"""Random transformations of the inputs of a minibatch, drawn for each task of a client."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.data.dataset import Inputs
from phalanx.fields import CheckedFields, PositiveInt


class Transform(CheckedFields, ABC):
    """A transformation of the inputs of a minibatch.  A subclass is a frozen dataclass."""

    @abstractmethod
    def __call__(self, x: Inputs, rng: torch.Generator) -> Inputs:
        """Return the transformed inputs, on the same device; `x` itself must not change.

        Args:
            x: the inputs of B examples: a tensor, or several by name.
            rng: random numbers of the client's task, on the CPU: the stream "augment".
        """


def _images(x: Inputs, transform: Transform) -> Tensor:
    if not isinstance(x, Tensor) or x.ndim != 4:
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"several inputs ({', '.join(x)})"
        raise ValueError(f"{type(transform).__name__} needs images (B, channels, height, width), got {got}.")
    return x


@dataclass(frozen=True)
class Flip(Transform):
    """Mirrors images, left to right.

    Args:
        share: probability for each image, in [0, 1].
    """

    share: Annotated[float, Meta(ge=0, le=1)] = 0.5

    @override
    def __call__(self, x: Inputs, rng: torch.Generator) -> Inputs:
        images = _images(x, self)
        mirrored = (torch.rand(len(images), generator=rng) < self.share).to(images.device)
        return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True)
class PadAndCrop(Transform):
    """Pads images with zeros on all sides, and crops each at a random place to its size.

    Args:
        padding: number of pixels on each side, at least 1.
    """

    padding: PositiveInt = 4

    @override
    def __call__(self, x: Inputs, rng: torch.Generator) -> Inputs:
        images, p = _images(x, self), self.padding
        B, _, height, width = images.shape
        top, left = torch.randint(2 * p + 1, (2, B, 1), generator=rng).to(images.device)
        rows = (top - p + torch.arange(height, device=images.device))[:, None, :, None]
        columns = (left - p + torch.arange(width, device=images.device))[:, None, None, :]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        examples = torch.arange(B, device=images.device)[:, None, None, None]
        channels = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
        found = images[examples, channels, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
        return torch.where(inside, found, 0.0)


@dataclass(frozen=True)
class Compose(Transform):
    """Several transformations, one after the other.

    Args:
        transforms: the transformations.
    """

    transforms: tuple[Transform, ...] = ()

    @override
    def __call__(self, x: Inputs, rng: torch.Generator) -> Inputs:
        for transform in self.transforms:
            x = transform(x, rng)
        return x
