"""The geometric median: the point with the smallest sum of distances.

Weiszfeld's algorithm, with the correction for iterates that meet a row: Vardi and Zhang, "The multivariate L1-median
and associated data depth", 2000.  As a rule for federated learning: Chen, Su and Xu, "Distributed Statistical Machine
Learning in Adversarial Settings", 2017; Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning",
2022 (RFA).

    z = arg min over z of  sum over i of  w_i |z - u_i|

Every iterate is a weighted mean of the rows, so an iteration needs only inner products: the matrix is read twice,
whatever the number of iterations.

* Whether a row is the median is decided first, exactly (Vardi and Zhang's condition).  Otherwise the iteration runs
  until the remaining distance is below `tolerance` times the distance within which half of the weight lies.  (Not the
  mean distance, which attackers can make large.)  Steps shrink by a factor r, so the remaining distance is r / (1 - r)
  times the last step.
* An even split of rows on a line has many medians, from one row to the next: the result is the mid-point.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from phalanx.aggregators.aggregator import BELOW_HALF, Choice, Selection
from phalanx.aggregators.krum import nearest
from phalanx.aggregators.points import Points
from phalanx.core import Weights

Numbers = NDArray[np.float64]
LEAST = 1e-3  # relative error that sums of distances may have
SAME = 1e-9  # rows nearer than this, in units of the distance that holds half of the weight, are copies


@dataclass(frozen=True)
class GeometricMedian(Selection):
    """The point with the smallest weighted sum of distances to the rows.

    Stays near the honest rows while the attackers hold less than half of the weight: for a share a of attackers, its
    distance from any point is at most 2 (1 - a) / (1 - 2a) times the largest distance of an honest row from that point.
    Equivariant to rotations, unlike the coordinate-wise median.

    Cost: one product of the matrix with itself, O(m^2 d), O(m^2) per iteration, and one pass for the result.

    Args:
        tolerance: allowed distance from the minimum, relative to the distance within which half of the weight lies.
        iterations: largest number of iterations; reaching it is an error.

    Example:
        >>> GeometricMedian()(torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0], [1.0, -1.0], [1.0, 0.5]]))
        tensor([1.0000, 0.5000])
    """

    tolerance: float = 1e-6
    iterations: int = 100_000

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must lie in (0, 1), got {self.tolerance}.")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}.")

    def breakdown_point(self) -> float:
        """See `Aggregator`."""
        return BELOW_HALF

    def choose(self, points: Points) -> Choice:
        """See `Selection`."""
        products, w = points.centred_products, points.share
        shares = _median_rows(products.numpy(), np.sqrt(points.squared_distances.numpy()), w.numpy())
        if shares is None:
            shares = torch.from_numpy(self._iterate(products.numpy(), w.numpy(), _start(points).numpy()))
        return Choice(shares, _distances_from(shares.numpy(), products.numpy()).tolist())

    def _iterate(self, products: Numbers, w: Numbers, shares: Numbers) -> Numbers:
        """Return the shares of the rows in the median, by Weiszfeld's algorithm."""
        far, previous = _distances_from(shares, products), math.inf
        for _ in range(self.iterations):
            pull = w / far
            new = pull / pull.sum()
            change = new - shares
            step = math.sqrt(max(change @ products @ change, 0.0))
            shares, far = new, _distances_from(new, products)
            left = step * step / (previous - step) if step < previous < math.inf else math.inf
            if left <= self.tolerance * _radius(far, w) or step == 0:
                return shares
            previous = step
        raise RuntimeError(f"{self} did not converge. Raise iterations, or tolerance.")


def _start(points: Points) -> Weights:
    """Return the shares of the first iterate: the mean of the half of the weight that is nearest to the medoid."""
    near = nearest(points.squared_distances[points.medoid][None], points.weights, points.mass / 2)[0]
    return near / near.sum() if int((near > 0).sum()) > 1 else points.share


def _radius(far: Numbers, w: Numbers) -> float:
    """Return the distance within which half of the weight lies."""
    order = far.argsort()
    half = int(np.searchsorted(w[order].cumsum(), 0.5))
    return float(far[order[min(half, len(w) - 1)]])


def _distances_from(shares: Numbers, products: Numbers) -> Numbers:
    """Return the distances of the rows from their weighted mean; never zero, since they are divisors."""
    reach = products @ shares
    squares = products.diagonal() - 2 * reach + shares @ reach
    far: Numbers = np.sqrt(squares.clip(np.abs(squares).max() * 1e-24 + 1e-300))
    return far


def _median_rows(products: Numbers, distances: Numbers, w: Numbers) -> Weights | None:
    """Return the shares of the rows that are medians, or None if no row is one.

    Row i is a median if the pull of the other rows, R_i = sum over j of w_j (u_j - u_i) / |u_j - u_i|, is no longer
    than the weight of row i and its copies, which do not pull.  Rows that are equal up to rounding are copies.  Only
    rows with the smallest sum of distances can be medians, so only these are checked.
    """
    sums = distances @ w
    rows = np.flatnonzero(sums <= sums.min() * (1 + LEAST))
    far, own = distances[rows], np.arange(len(rows))
    here = far <= SAME * min(_radius(row, w) for row in distances)
    held = (here * w).sum(1)
    pull = np.where(here, 0.0, w / np.where(here, 1.0, far))
    pull[own, rows] -= pull.sum(1)
    lengths = np.sqrt(((pull @ products) * pull).sum(1).clip(min=0))
    medians = np.zeros(len(w))
    medians[rows] = (lengths <= held * (1 + 1e-9)) * w[rows]
    return torch.from_numpy(medians / medians.sum()) if medians.any() else None
