"""Bulyan: the rows that Krum selects, then in each coordinate the mean of their entries near the median.

El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", 2018, Section 4:

1. theta = n - 2f times, Krum chooses a row among the remaining ones.
2. In each coordinate, the beta = theta - 2f of the chosen entries that are nearest to their median are averaged.

Where the paper leaves a choice:

* Krum among k remaining rows counts k - f - 2 neighbours, and at least one.  Two rows that are each other's only
  neighbour tie; the row that is nearer to all remaining rows is chosen first.
* With weights, rows are chosen until they hold the share theta / n of the weight (the last row counts in part), and the
  share beta / n is averaged.  A weight does not act like copies: copies of a row are near each other, and are chosen
  one by one.
"""

from dataclasses import dataclass

import torch
from typing_extensions import override

from phalanx.aggregators.aggregator import Aggregator, require, tolerates_f
from phalanx.aggregators.krum import ROUNDING, Neighbours, krum_scores
from phalanx.aggregators.mean_around_median import mean_around_median
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance, Vector, Weights
from phalanx.fields import NonNegativeInt


@dataclass(frozen=True)
class Bulyan(Aggregator):
    """The mean around the median of the n - 2f rows that Krum chooses one after the other.

    Tolerates f of n >= 4f + 3 clients, and leaves an attacker less room in a single coordinate than Krum alone.

    Cost: one product of the matrix with itself, O(m^2 d), and one pass over the chosen rows.

    Args:
        f: number of attackers to tolerate.
        neighbours: number of neighbours in a Krum score: "n-f-2" as in the paper, or "n-f-1".

    Examples:
        >>> Bulyan(f=1)(torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [90.0]]))
        tensor([3.])
    """

    f: NonNegativeInt = 1
    neighbours: Neighbours = "n-f-2"

    @override
    def tolerates(self, q: int) -> Tolerance:
        return tolerates_f(self, self.f, q, 4 * self.f + 3, "distance")

    @override
    def aggregate(self, points: Points) -> Vector:
        n, f = len(points), self.f
        require(self, n, 4 * f + 3, "4f + 3")
        taken = self._chosen(points)
        rows = torch.nonzero(taken).flatten()
        chosen = Points(points.matrix[rows.to(points.matrix.device)], taken[rows])
        return mean_around_median(chosen, points.mass * (n - 4 * f) / n)

    def _chosen(self, points: Points) -> Weights:
        """Return the part of each row's weight that is chosen, theta / n of the weight in all."""
        n, distances, weights = len(points), points.squared_distances, points.weights
        spare = points.mass * (n - 2 * self.f) / n
        taken, left = torch.zeros_like(weights), list(range(n))
        while spare > ROUNDING * points.mass:
            among = distances[left][:, left]
            scores = krum_scores(among, weights[left], self.f, self.neighbours)
            # At a tie of scores, the row with the smallest sum of distances to the remaining rows.
            best = scores <= scores.min() * (1 + ROUNDING)
            winner = left.pop(int((among @ weights[left]).where(best, torch.inf).argmin()))
            taken[winner] = min(float(weights[winner]), spare)
            spare -= float(weights[winner])
        return taken
