"""Pre-aggregators: clip the rows, average nearest neighbours, average random buckets."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators.aggregator import Aggregator, PreAggregator, require, tolerates_f
from phalanx.aggregators.influence import Spread
from phalanx.aggregators.krum import ROUNDING, nearest
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance
from phalanx.fields import INFINITE, NonNegativeInt, PositiveInt
from phalanx.rng import numpy_generator


@dataclass(frozen=True)
class Clip(PreAggregator):
    """Clips the norm of each row.

    An attacker keeps its direction but not its length.  Not equivariant to translation or scaling.

    Cost: one pass for the norms, and one for the rows if the rule reads entries.

    Args:
        radius: largest norm that is not clipped, in the units of the rows.

    Examples:
        >>> Clip(radius=1.0).rows(torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.5000]])
    """

    radius: Annotated[float, Meta(gt=0), INFINITE] = 1.0

    @property
    @override
    def spread(self) -> Spread:
        return "clipped"

    @override
    def keeps(self, q: int, then: Aggregator) -> Tolerance:
        """See `PreAggregator`: a result near the shortened honest rows can be far from the rows that were sent."""
        kept = then.tolerates(q)
        if kept.means not in ("range", "distance"):
            return kept
        return Tolerance.none(f"{self.title} shortens honest rows too: the result of {then.title} can be far from all.")

    @override
    def mix(self, points: Points) -> Points:
        return points.shortened(self.radius)


@dataclass(frozen=True)
class AdaptiveClip(PreAggregator):
    """Clips the longest rows to the norm of the longest remaining row (ARC).

    Allouah, Guerraoui, Gupta, Jellouli, Rizk and Stephan, "Adaptive Gradient Clipping for Robust Federated Learning",
    2025: the k = floor(2 (f / m) (m - f)) longest rows are clipped to the norm of the next one.  Keeps the guarantee of
    the rule that follows, which a fixed norm does not.  With weights, k rows of average weight are clipped.  Not
    equivariant to translation.

    Args:
        f: number of attackers to tolerate.

    Examples:
        >>> AdaptiveClip(f=1).rows(torch.tensor([[1.0], [2.0], [3.0], [90.0]])).round()
        tensor([[1.],
                [2.],
                [3.],
                [3.]])
    """

    f: NonNegativeInt = 1

    @override
    def keeps(self, q: int, then: Aggregator) -> Tolerance:
        """See `PreAggregator`: honest rows are shortened as well, so that the distance is bounded, and no range."""
        kept = then.tolerates(q)
        means = "distance" if kept.means == "range" else kept.means
        return replace(kept, means=means, least=max(kept.least, 2 * self.f + 1))

    @override
    def mix(self, points: Points) -> Points:
        m = len(points)
        require(self, m, 2 * self.f + 1, "2f + 1")
        # ROUNDING, so that a whole number is not rounded down to the next one.
        k = math.floor(2 * (self.f / m) * (m - self.f) + ROUNDING)
        order = points.norms.argsort(descending=True)
        longer = points.weights[order].cumsum(0) <= k * points.mass / m * (1 + ROUNDING)
        return points.shortened(float(points.norms[order[int(longer.sum())]]))


@dataclass(frozen=True)
class NearestNeighborMixing(PreAggregator):
    """Replaces each row by the mean of the m - f rows nearest to it, itself included (NNM).

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by Mixing: A Recipe for Optimal Byzantine ML
    under Heterogeneity", 2023, Algorithm 2.  Makes Krum, the median, the trimmed mean and others optimal for non-IID
    clients.  With weights, averages the nearest share 1 - f / m of the weight, the last row in part.

    Cost: one product of the matrix with itself, O(m^2 d), and another one if the rule reads entries.

    Args:
        f: number of attackers to tolerate.

    Examples:
        >>> NearestNeighborMixing(f=1).rows(torch.tensor([[0.0], [2.0], [90.0]]))
        tensor([[ 1.],
                [ 1.],
                [46.]])
    """

    f: NonNegativeInt = 1

    @override
    def keeps(self, q: int, then: Aggregator) -> Tolerance:
        """See `PreAggregator`: every row is mixed, so that the distance is bounded, and no range (Theorem 1)."""
        kept, own = then.tolerates(q), tolerates_f(self, self.f, q, 2 * self.f + 1, "distance")
        if kept.means not in ("range", "distance"):
            return Tolerance.none(f"Nothing is proven for {then.title} on mixed rows. {kept.source}")
        strict = kept.strict and kept.share <= own.share
        return replace(own, share=min(own.share, kept.share), strict=strict, least=max(own.least, kept.least))

    @override
    def mix(self, points: Points) -> Points:
        m = len(points)
        require(self, m, 2 * self.f + 1, "2f + 1")
        near = points.squared_distances.numpy().copy()
        np.fill_diagonal(near, -1.0)  # the row itself comes first, also among copies of it
        taken = nearest(torch.from_numpy(near), points.weights, points.mass * (1 - self.f / m)).numpy()
        return points.mixed(torch.from_numpy(taken / taken.sum(1, keepdims=True)), points.weights)


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Puts the rows into random buckets of s, and replaces them by the means of the buckets.

    Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing", 2022, Algorithm 1:
    ceil(m / s) buckets, the last one smaller if m is no multiple of s.  Non-IID clients become more alike, but an
    attacker may be in up to s times as large a share of the buckets.  A bucket has the weight of its rows.  The draw
    depends on the order of clients, and a weight does not act like copies.

    Args:
        s: number of rows in a bucket.
        seed: seed of the draw, which also depends on the round (`turn`).

    Examples:
        >>> Bucketing(s=2).rows(torch.tensor([[1.0], [1.0], [1.0]]))
        tensor([[1.],
                [1.]])
    """

    s: PositiveInt = 2
    seed: int = 0

    @property
    @override
    def spread(self) -> Spread:
        return "one"

    @override
    def keeps(self, q: int, then: Aggregator) -> Tolerance:
        """See `PreAggregator`: with equal weights an attacker spoils a bucket of s rows at most."""
        kept = then.tolerates(-(-q // self.s))
        least = self.s * (kept.least - 1) + 1
        why = f"An attacker spoils a bucket of {self.s}. {kept.source}"
        return replace(kept, share=kept.share / self.s, least=least, equal=self.s > 1 or kept.equal, source=why)

    @override
    def mix(self, points: Points) -> Points:
        m = len(points)
        order = torch.from_numpy(numpy_generator(self.seed, "bucketing", points.turn).permutation(m))
        inside = torch.zeros(-(-m // self.s), m, dtype=torch.float64)
        inside[torch.arange(m) // self.s, order] = points.weights[order]
        weights = inside.sum(1)
        return points.mixed(inside / weights[:, None], weights)
