"""DnC: divide and conquer, a spectral filter.

Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses for Federated
Learning", 2021, Algorithm 2:

    for each iteration:
        r <- b random coordinates
        X <- the rows at these coordinates, minus their mean;  v <- top right singular vector of X
        s_i <- <X_i, v>^2
        I <- the m - c f rows of the lowest s
    return the mean of the rows that are in every I

Where the paper leaves room: if the largest singular value is a multiple one, s_i is the squared length of the
projection on all of its singular vectors.  Rows with the same s_i on the boundary are dropped in equal parts.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection, require
from phalanx.aggregators.caf import principal
from phalanx.aggregators.columns import ROUNDING
from phalanx.aggregators.monna import lowest
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError, Tolerance, Weights
from phalanx.fields import NonNegativeInt, PositiveFloat, PositiveInt
from phalanx.rng import numpy_generator


@dataclass(frozen=True)
class DnC(Selection):
    """The mean of the rows that are not far out along the direction of the largest variance of random coordinates.

    Made for f attackers, 2f < m, who all push in one direction: if they are far out, they are filtered.  Attackers who
    push in several directions are not all found, and there is no bound on their effect.

    A weight acts like a number of copies: each iteration drops the share c f / m of the weight, the row on the boundary
    in part, and the smallest part of a row that any iteration keeps is its share in the mean.

    Draws at random by the number of the call, `rule(deltas, turn=3)`: the same turn gives the same coordinates,
    whatever the order of clients.

    Cost: O(m b) to gather and O(m^2 b) for products in each iteration, and O(m d) for the mean.

    Args:
        f: number of attackers of average weight to tolerate, 2f < m.
        c: number of rows to drop for each attacker, positive, c f < m.
        iterations: number of draws of coordinates. With many, every row may be dropped by one of them, which is an
            error.
        coordinates: b, number of coordinates in a draw; all coordinates if there are fewer.
        seed: seed of the draws.

    Examples:
        >>> DnC(f=1)(torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 1.0], [100.0, 1.0]]))
        tensor([1., 1.])
    """

    f: NonNegativeInt
    c: PositiveFloat = 1.0
    iterations: PositiveInt = 1
    coordinates: PositiveInt = 10_000
    seed: int = 0

    @override
    def tolerates(self, q: int) -> Tolerance:
        return Tolerance.none("DnC has no bound on attackers who push in several directions.")

    @override
    def choose(self, points: Points) -> Choice:
        m, share = len(points), points.share
        require(self, m, 2 * self.f + 1, "2f + 1")
        if self.c * self.f >= m:
            raise InfeasibleError(f"{self} drops c f = {self.c * self.f:g} of {m} rows. Lower c or f.")
        kept, scores = share, torch.zeros(m, dtype=torch.float64)
        for iteration in range(self.iterations):
            s = self._outlyingness(points, iteration)
            kept = torch.minimum(kept, lowest(s, share, 1 - self.c * self.f / m))
            scores = torch.maximum(scores, s)
        if float(kept.sum()) <= ROUNDING:
            raise InfeasibleError(f"{self} dropped every one of {m} rows in some iteration. Lower c or iterations.")
        reasons = ["" if part > 0 else "far out in the direction of the largest variance" for part in kept]
        return Choice(kept / kept.sum(), scores.tolist(), reasons)

    def _outlyingness(self, points: Points, iteration: int) -> Weights:
        """Return the scores s of Algorithm 2 for the coordinates of one iteration."""
        rows = points.matrix
        d = rows.shape[1]
        if self.coordinates >= d:
            return principal(points.squared_distances, points.weights)[1]
        rng = numpy_generator(self.seed, "dnc", points.turn, iteration)
        # Sorted, because gathering columns in memory order is faster.
        r = torch.from_numpy(rng.choice(d, self.coordinates, replace=False, shuffle=False)).sort().values
        drawn = Points(rows[:, r.to(rows.device)], points.weights)
        return principal(drawn.squared_distances, points.weights)[1]
