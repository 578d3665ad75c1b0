"""Common parts of algorithms with reputations: limits on the norm, and quotas of the aggregate.

Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020; see `phalanx.algorithms.rffl`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.core import Algorithm, InfeasibleError, Local, Matrix, State, Traits, Vector, Weights
from phalanx.fields import CheckedFields, PositiveFloat, PositiveInt
from phalanx.models import Model
from phalanx.numerics.linalg import cosine_similarity, shortened

Own = Literal["subtracted", "kept", "replaced"]
ROUNDING = 1e-9  # tolerance for quotas that are a whole number of entries but for rounding


@dataclass(frozen=True)
class MedianNorm(CheckedFields):
    """A largest norm computed in each round: the median norm of its updates, times a factor.

    Half of the participants would have to send long updates to raise it.  Only the server knows it, so that
    participants go on from their own updates in full length.

    Args:
        factor: positive.
    """

    factor: PositiveFloat = 1.0


class Allocation(CheckedFields, ABC):
    """The parts of a vector of which a quota takes the largest entries."""

    @abstractmethod
    def parts(self, d: int) -> tuple[int, ...]:
        """Return the number of entries of each part, in order.

        Args:
            d: entries of the vector.

        Raises:
            InfeasibleError: a vector of d entries has no such parts.
        """


@dataclass(frozen=True)
class Whole(Allocation):
    """The largest entries of the whole vector, wherever they are."""

    @override
    def parts(self, d: int) -> tuple[int, ...]:
        return (d,)


@dataclass(frozen=True)
class PerLayer(Allocation):
    """The largest entries of each layer, the same share of each.

    Servers see flat vectors, so the layers are a hyper-parameter, and part of a run's identity.
    `PerLayer.of` finds them.

    Args:
        sizes: entries of each parameter tensor, in the order of the model's vector: weight, bias, weight, bias.
    """

    sizes: Annotated[tuple[PositiveInt, ...], Meta(min_length=1)]

    @classmethod
    def of(cls, model: Model, shape: tuple[int, ...], classes: int) -> "PerLayer":
        """Return the allocation by the layers of a model.

        Args:
            model: the model that is trained.
            shape: of one example.
            classes: number of classes.

        Raises:
            ValueError: the model is not made for such examples.
        """
        with torch.device("meta"):  # shapes only: nothing is drawn
            module = model.build(shape, classes)
        return cls(tuple(p.numel() for p in module.parameters() if p.requires_grad))

    @override
    def parts(self, d: int) -> tuple[int, ...]:
        if sum(self.sizes) != d:
            raise InfeasibleError(
                f"The layers have {sum(self.sizes):,} entries together, and the model has {d:,}. "
                "Take PerLayer.of(model, shape, classes) of the model that is trained, or Whole()."
            )
        return self.sizes


class CumulativeClient(Algorithm[State]):
    """The client role of Algorithm 1: each client has a model, to which its own updates and its allocations are added.

    The line w_i + dw_i + dw_*i is summed up over the rounds: a download is w^(0) plus all allocations of its receiver
    so far, and the client adds all updates that it has sent.  So a lost download or reply has no lasting effect on a
    model.
    """

    fade: float
    threshold: float
    clip: float | MedianNorm | None
    own: Own
    allocation: Allocation

    @property
    @override
    def traits(self) -> Traits:
        """See `Algorithm`: quotas of parts of a model need its layout."""
        return super().traits._replace(keeps="memory", knows_layout=not isinstance(self.allocation, Whole))

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`: the local state is the sum of all updates sent."""
        if isinstance(self.clip, (int, float)):
            delta = shortened(delta[None], self.clip)[0]
        return delta, delta.clone() if memory is None else memory + delta

    @override
    def integrate(self, local: Local | None, download: Vector) -> Vector:
        """See `Algorithm`: w_i + dw_i + dw_*i, summed up over all rounds."""
        return download if local is None or local.memory is None else download + local.memory


def cos_sim(direction: Vector, rows: Matrix) -> Weights:
    """Return the cosine of each row with a direction, (m,), float64; zero where one of the two is zero."""
    if not bool(direction.any()):
        return torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    return cosine_similarity(torch.cat([direction[None].to(rows.dtype), rows]))[0, 1:]


def places(vector: Vector, parts: Iterable[int]) -> Float[Tensor, "d"]:
    """Return for each entry the share of its part that is larger, by absolute value; the first of equal ones is larger.

    The largest entries that a quota takes are those with a place below the quota.

    Args:
        vector: (d,).
        parts: number of entries of each part; their sum is d.

    Returns:
        (d,), in [0, 1), float64.
    """
    place = torch.empty(len(vector), dtype=torch.float64, device=vector.device)
    for start, stop in pairwise(accumulate(parts, initial=0)):
        order = vector[start:stop].abs().argsort(descending=True, stable=True)
        ranks = torch.arange(stop - start, dtype=torch.float64, device=vector.device)
        place[start:stop][order] = ranks / (stop - start)
    return place


def largest(vector: Vector, place: Float[Tensor, "d"], quota: float) -> Vector:
    """Return the entries of a vector that a quota takes; zero elsewhere.

    Args:
        vector: (d,).
        place: (d,), of each entry, by `places`.
        quota: share of each part, in [0, 1]; a part of n entries gives ceil(quota n) of them.
    """
    return torch.where(place < quota - ROUNDING, vector, torch.zeros((), dtype=vector.dtype, device=vector.device))
