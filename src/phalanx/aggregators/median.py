"""The coordinate-wise weighted median.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018, Definition 1, for equal
weights; Portnoy et al., "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020, with weights.

Conventions:

* An entry is the median if the weight before it is below one half and the weight up to and including it is above.
* If the weight up to and including an entry is exactly one half, the median is the mid-point between this entry and the
  next one of positive weight.  So an even number of equal weights gives the mean of the two middle entries, as in
  NumPy, and integer weights give the same result as copies of the rows.
* No other interpolation: it would let an attacker with less than one half of the weight move the result.
* The rule tolerates less than one half of the weight: with one half, an attacker sets one end of the mid-point.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators.aggregator import Aggregator, Choice
from phalanx.aggregators.columns import (
    ROUNDING,
    by_column,
    counted,
    entrywise,
    equal,
    has_kernel,
    of_columns,
    shifted_by_column,
    shifted_columns,
    shifted_ranks,
    sort_with_weights,
)
from phalanx.aggregators.influence import UNBOUNDED, Influence, largest
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance, Vector, Weights
from phalanx.numerics import column_kernels as kernels
from phalanx.numerics.sorting_network import Network, sorting_network


@dataclass(frozen=True)
class Median(Aggregator):
    """The coordinate-wise weighted median.

    Stays inside the range of the honest entries of each coordinate while the attackers hold less than half of the
    weight.

    Examples:
        >>> Median()(torch.tensor([[0.0], [1.0], [100.0]]))
        tensor([1.])
        >>> Median()(torch.tensor([[0.0], [1.0], [100.0]]), torch.tensor([2.0, 1.0, 1.0]))
        tensor([0.5000])
    """

    @override
    def tolerates(self, q: int) -> Tolerance:
        return Tolerance.below_half("range", "A median lies between the entries of the majority.")

    @override
    def aggregate(self, points: Points) -> Vector:
        return weighted_median(points)

    @override
    def audit(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """See `Aggregator`.  Attackers move the middle by their weight, up or down."""
        held = largest(points.weights, f)
        if 2 * held >= points.mass * (1 - ROUNDING):
            return self.aggregate(points), None, UNBOUNDED
        vector, reach = _shifted_median(points, f, held)
        return vector, None, entrywise(points, reach)


def weighted_median(points: Points) -> Vector:
    """Return the coordinate-wise weighted median."""
    m, weights = len(points), points.weights
    if not has_kernel(points.base):
        return by_column(points.matrix, lambda block: weighted_middle(block, weights))
    if equal(weights):  # only one or two middle ranks matter, so most of the network is left out
        coefficients = _middle_ranks(m)
        network = sorting_network(m, frozenset(coefficients.nonzero()[0].tolist()))
        return of_columns(points, kernels.combine_ranks, network, coefficients)
    own = counted(weights)
    return of_columns(points, kernels.median, sorting_network(m), own, *_around_half(own))


def _shifted_median(points: Points, f: int, held: float) -> tuple[Vector, float]:
    """Return the median, and how far it moves in all columns if attackers of weight `held` shift it."""
    m, weights = len(points), points.weights
    if not has_kernel(points.base):
        return shifted_by_column(points.matrix, partial(weighted_middle, weights=weights), held)
    if equal(weights):
        return shifted_columns(points, kernels.combine_shifted_ranks, *_shifted(m, f))
    own = counted(weights)
    bounds = np.array(_around_half(own)) + held * np.array([[0.0], [1.0], [-1.0]])
    bounds = bounds if own.dtype == np.float64 else bounds.astype(np.int32)
    return shifted_columns(points, kernels.shifted_medians, sorting_network(m), own, bounds)


@lru_cache(maxsize=64)
def _shifted(m: int, f: int) -> tuple[Network, Network, NDArray[np.float64], NDArray[np.int64]]:
    """Return what `kernels.combine_shifted_ranks` takes for m equal weights and f attackers."""
    coefficients, runs = shifted_ranks(_middle_ranks(m), f)
    network = sorting_network(m, frozenset(coefficients.nonzero()[1].tolist()))
    return network, network[:0], coefficients, runs


def _middle_ranks(m: int) -> NDArray[np.float64]:
    """Return the coefficient of each rank of m equal weights in their median."""
    middle = {(m - 1) // 2, m // 2}
    return np.array([1 / len(middle) if r in middle else 0.0 for r in range(m)])


def _around_half(own: NDArray[Any]) -> tuple[Any, Any]:
    """Return two bounds: a weight below the first is below one half, and below the second, at most one half."""
    total = own.sum()
    if own.dtype != np.float64:
        return np.int32((int(total) + 1) // 2), np.int32(int(total) // 2 + 1)
    return total * (0.5 - ROUNDING), np.nextafter(total * (0.5 + ROUNDING), np.inf)


def weighted_middle(rows: Float[Tensor, "b m"], weights: Weights, shift: float = 0.0) -> Float[Tensor, "b"]:
    """Return the median of each row, without the compiled kernel; `shift` is added to one half of the weight."""
    values, reached = sort_with_weights(rows, weights)
    half, slack = weights.sum() / 2 + shift, weights.sum() * ROUNDING
    lower = (reached < half - slack).sum(1, keepdim=True)  # first entry that reaches one half
    upper = (reached <= half + slack).sum(1, keepdim=True)  # first entry that exceeds it
    return _midpoint(values.gather(1, lower), values.gather(1, upper)).squeeze(1)


def _midpoint(low: Tensor, high: Tensor) -> Tensor:
    # halves first: the sum of two large entries could overflow
    return torch.where(low == high, low, low / 2 + high / 2)
