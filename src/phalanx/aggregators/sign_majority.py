"""The majority vote of signs.

Bernstein, Zhao, Azizzadenesheli and Anandkumar, "signSGD with Majority Vote is Communication Efficient and Fault
Tolerant", 2019:

    sign( sum_i w_i sign(x_i) ),  coordinate by coordinate
"""

import math
from dataclasses import dataclass

import torch
from typing_extensions import override

from phalanx.aggregators.aggregator import Aggregator, Choice
from phalanx.aggregators.columns import BLOCK, ROUNDING, entrywise, equal
from phalanx.aggregators.influence import Influence, largest
from phalanx.aggregators.points import Points
from phalanx.core import Vector


@dataclass(frozen=True)
class SignMajority(Aggregator):
    """The sign that holds the larger weight, for each coordinate: -1, 0 or 1.

    A zero is no vote, and a tie gives 0.  An attacker has one vote, whatever the size of its entries: where all honest
    clients agree, the result is right while the attackers hold less than one half of the weight.

    Not equivariant to translation or scaling: only signs count, so the result does not change if a row is multiplied by
    a positive number.  The caller chooses the step size.  A weight acts like a number of copies.

    Cost: O(m d) time and O(d) memory.

    Examples:
        >>> SignMajority()(torch.tensor([[3.0, -1.0, 0.0], [100.0, -0.1, 2.0], [-5.0, 7.0, -2.0]]))
        tensor([ 1., -1.,  0.])
    """

    @override
    def aggregate(self, points: Points) -> Vector:
        return self._vote(points, 0)[0]

    @override
    def audit(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """See `Aggregator`.  An attacker who changes sides moves the count by twice its weight."""
        vector, squares = self._vote(points, f)
        return vector, None, entrywise(points, math.sqrt(squares))

    def _vote(self, points: Points, f: int) -> tuple[Vector, int]:
        """Return the result, and the squared length of the largest change by f attackers."""
        rows, weights = points.matrix, points.weights
        # Votes of equal weight are counted, which is exact in float32; sums of other weights need float64.
        kind = torch.float32 if equal(weights) else torch.float64
        votes = torch.ones_like(weights) if equal(weights) else weights
        slack, swing, squares = ROUNDING * float(votes.sum()), 2 * largest(votes, f), 0
        votes = votes.to(rows.device, kind)
        result = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
        width = max(1, BLOCK // len(rows))
        for start in range(0, rows.shape[1], width):
            columns = slice(start, start + width)
            total = votes @ rows[:, columns].sign().to(kind)
            lead = total.abs()
            tied = lead <= slack
            result[columns] = torch.where(tied, 0.0, total.sign()).to(rows.dtype)
            if f:  # a column in reach changes by 1; by 2 if its lead is smaller than the swing, and it is not tied
                ties = int(tied.sum())
                turned = max(int((lead < swing - slack).sum()), ties) - ties
                squares += int((lead <= swing + slack).sum()) + 3 * turned
        return result, squares
