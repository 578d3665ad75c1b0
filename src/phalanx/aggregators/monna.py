"""MoNNA: the mean of the rows nearest to a trusted row.

Farhadkhani et al., "Robust Collaborative Learning with Linear Gradient Overhead", 2023: the nearest-neighbour averaging
of a client that trusts only itself.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection, require
from phalanx.aggregators.columns import ROUNDING
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError, Tolerance, Weights
from phalanx.fields import NonNegativeInt
from phalanx.numerics.linalg import root

TIES = 1e-9  # scores with a smaller relative difference are equal up to rounding


def lowest(scores: Weights, weights: Weights, budget: float) -> Weights:
    """Return the part of each weight that is taken if a budget is filled with the rows of the lowest scores.

    The row on the boundary is taken in part; rows that tie there are taken in equal parts, whatever their order.

    Args:
        scores: (m,), float64.
        weights: (m,), positive, float64.
        budget: total weight to take.
    """
    ordered, order = scores.sort()
    # Rows with equal scores form a group, and each group is taken as a whole or in equal parts.
    gap = ordered.diff(prepend=ordered[:1]) > TIES * ordered.abs()
    group = torch.empty_like(order)
    group[order] = gap.long().cumsum(0)
    held = torch.zeros(len(scores), dtype=torch.float64).index_add_(0, group, weights)
    reached = held.cumsum(0)
    part = ((budget - (reached - held)) / held).clamp(0, 1)
    slack = ROUNDING * reached[-1]
    part = torch.where(reached <= budget + slack, 1.0, part)
    part = torch.where(reached - held >= budget - slack, 0.0, part)
    return weights * part[group]


@dataclass(frozen=True)
class MoNNA(Selection):
    """The mean of the m - f rows that are nearest to a trusted row, which is one of them.

    If the trusted row is honest and at most f others are not, the result is no farther from it than the farthest honest
    row.  If it is not honest, there is no guarantee.  Not equivariant to the order of clients, since one row is
    special.

    A weight acts like a number of copies: the nearest rows with the share 1 - f / m of the weight are averaged, the row
    on the boundary with a part of its weight.  Rows at the same distance on the boundary count in equal parts.

    Cost: one pass for the distances and one for the mean, O(m d).

    Args:
        f: number of attackers of average weight to tolerate, 2f < m.
        reference: index of the trusted row among the rows of the call, from 0.  It must have a positive weight.
            After a pre-aggregator, the index among the rows that it returns.

    Examples:
        >>> MoNNA(f=1, reference=1)(torch.tensor([[100.0], [0.0], [4.0]]))
        tensor([2.])
    """

    f: NonNegativeInt
    reference: NonNegativeInt = 0

    @override
    def tolerates(self, q: int) -> Tolerance:
        return Tolerance.none("MoNNA trusts one row, and tolerates attackers only if that one is honest.")

    @override
    def choose(self, points: Points) -> Choice:
        m, there = len(points), points.there
        require(self, m, 2 * self.f + 1, "2f + 1")
        if self.reference >= len(there):
            rows = len(there)
            raise InfeasibleError(
                f"{self} trusts row {self.reference}, but there are {rows} rows. Give an index below {rows}."
            )
        if not there[self.reference]:
            raise InfeasibleError(
                f"{self} trusts row {self.reference}, which has weight 0. Give it a positive weight, or trust "
                "another row."
            )
        squares = points.squared_distances_from(sum(there[: self.reference]))
        taken = lowest(squares, points.weights, (1 - self.f / m) * points.mass)
        distances, parts = (root(squares) * points.unit).tolist(), taken.tolist()
        reach = max(distance for distance, part in zip(distances, parts, strict=True) if part > 0)
        reasons = [
            "" if part > 0 else f"{distance:.3g} from the trusted row, beyond {reach:.3g}"
            for distance, part in zip(distances, parts, strict=True)
        ]
        return Choice(taken / taken.sum(), distances, reasons)
