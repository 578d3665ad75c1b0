"""MeaMed: the coordinate-wise mean of the entries nearest to the median.

Xie, Koyejo and Gupta, "Generalized Byzantine-tolerant SGD", 2018, Definition 9 (the mean around median): in each
coordinate, the mean of the m - f entries that are nearest to the coordinate's median.

With weights it is the mean over the share 1 - f / m of the weight that is nearest to the weighted median; the last
entry counts in part.  Of two entries at the same distance, the larger one is dropped first.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators.aggregator import Aggregator, require, tolerates_f
from phalanx.aggregators.columns import ROUNDING, by_column, counted, equal, has_kernel, of_columns, sort_with_weights
from phalanx.aggregators.median import weighted_middle
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance, Vector, Weights
from phalanx.fields import NonNegativeInt
from phalanx.numerics import column_kernels as kernels
from phalanx.numerics.sorting_network import sorting_network


@dataclass(frozen=True)
class MeaMed(Aggregator):
    """The coordinate-wise mean of the m - f entries nearest to the median.

    Tolerates f of m >= 2f + 1 clients.  Unlike the trimmed mean it drops entries on the side of the outliers only.

    Cost: one pass over the matrix, O(d m log^2 m) comparisons.

    Args:
        f: number of attackers to tolerate.

    Examples:
        >>> MeaMed(f=1)(torch.tensor([[0.0], [1.0], [2.0], [90.0]]))
        tensor([1.])
    """

    f: NonNegativeInt = 1

    @override
    def tolerates(self, q: int) -> Tolerance:
        return tolerates_f(self, self.f, q, 2 * self.f + 1, "distance")

    @override
    def aggregate(self, points: Points) -> Vector:
        m = len(points)
        require(self, m, 2 * self.f + 1, "2f + 1")
        return mean_around_median(points, points.mass * (1 - self.f / m))


def mean_around_median(points: Points, mass: float) -> Vector:
    """Return, for each column, the mean over the weight `mass` that is nearest to the median."""
    weights, slack = points.weights, points.mass * ROUNDING
    if has_kernel(points.base):
        network, count = sorting_network(len(points)), mass / float(weights[0])
        if equal(weights) and abs(count - round(count)) * float(weights[0]) <= slack:
            return of_columns(points, kernels.nearest_to_median, network, round(count))
        return of_columns(points, kernels.mean_around_median, network, counted(weights), mass, slack)
    return by_column(points.matrix, lambda block: _around(block, weights, mass, slack))


def _around(rows: Float[Tensor, "b m"], weights: Weights, mass: float, slack: float) -> Float[Tensor, "b"]:
    """Return the mean around the median of each row, without the compiled kernel."""
    rows = rows.double()  # float64, so that differences are exact and ties are found
    values, _ = sort_with_weights(rows, weights)
    distance = (values - weighted_middle(rows, weights)[:, None]).abs()
    order = distance.argsort(dim=1, stable=True)  # at the same distance, the smaller entry first
    own = weights.to(rows.device)[rows.argsort(dim=1, stable=True).gather(1, order)]
    taken = own - (own.cumsum(1) - mass).clamp(min=0)
    taken = taken.where(taken > slack, 0.0)
    return (values.gather(1, order) * taken).sum(1) / mass
