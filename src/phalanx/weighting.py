"""What the sizes that clients declare count for.

A preprocessor turns declared sizes into weights once, when a run begins.  No later message can change them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass


class Preprocess(ABC):
    """Turns declared sizes into weights."""

    @abstractmethod
    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """A finite non-negative weight for each client, at least one positive.  Only ratios matter."""


@dataclass(frozen=True)
class AsDeclared(Preprocess):
    """Weighs each client by the size that it declares, as FedAvg does.  One lie breaks it."""

    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """See `Preprocess`."""
        return {client: float(size) for client, size in sizes.items()}


@dataclass(frozen=True)
class Ignore(Preprocess):
    """Weighs all clients alike, whatever they declare."""

    def __call__(self, sizes: Mapping[int, int]) -> dict[int, float]:
        """See `Preprocess`."""
        return dict.fromkeys(sizes, 1.0)
