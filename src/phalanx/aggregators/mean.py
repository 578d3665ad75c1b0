"""The weighted mean: not robust, the baseline for all rules."""

from dataclasses import dataclass

import torch
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection
from phalanx.aggregators.influence import UNBOUNDED, Influence, largest
from phalanx.aggregators.points import Points, Shortened
from phalanx.core import Tolerance, Vector


@dataclass(frozen=True)
class Mean(Selection):
    """The weighted mean of the rows.

    One row can move the result anywhere.  McMahan et al., "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", 2017.

    Examples:
        >>> Mean()(torch.tensor([[0.0, 1.0], [4.0, 5.0]]), torch.tensor([3.0, 1.0]))
        tensor([1., 2.])
    """

    @override
    def tolerates(self, q: int) -> Tolerance:
        return Tolerance.none("A mean tolerates no attacker: one update decides where it is.")

    @override
    def aggregate(self, points: Points) -> Vector:
        """See `Aggregator`.  In float64 the sum is divided at the end, so that the mean of integers is exact."""
        if points.base.dtype == torch.float64:
            mean = points.combine(points.weights) / points.mass
            if bool(torch.isfinite(mean).all()):  # else a sum of numbers near the largest has left the range
                return mean
        return super().aggregate(points)

    @override
    def apply(self, points: Points) -> tuple[Vector, Choice]:
        return self.aggregate(points), self.choose(points)

    @override
    def influence_of(self, points: Points, vector: Vector, choice: Choice | None, f: int) -> Influence:
        """See `Aggregator`.  Of clipped rows, each moves the mean by its share of the radius and its length."""
        if isinstance(points, Shortened):
            return Influence.bound(largest(points.share * (points.radius + points.norms), f))
        return UNBOUNDED

    @override
    def choose(self, points: Points) -> Choice:
        return Choice(points.share)
