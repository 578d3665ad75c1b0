"""CAF: the covariance-bound agnostic filter.

Allouah, Guerraoui and Stephan, "Towards Trustworthy Federated Learning with Untrusted Participants", 2025.

    c_i <- 1
    while  sum_i c_i > m - 2f:
        mu_c, Sigma_c <- mean and covariance of the rows, weighted by c;  v <- top eigenvector of Sigma_c
        tau_i <- <v, x_i - mu_c>^2
        c_i <- c_i (1 - tau_i / max_j tau_j)
    return the mu_c whose Sigma_c had the smallest largest eigenvalue

Where the paper leaves room:

* max_j runs over rows with c_j > 0.  So each iteration removes at least one row, and there are at most m.
* The eigenvector is exact.  If the largest eigenvalue is a multiple one, tau_i is the squared length of the projection
  on all of its eigenvectors, so the result does not depend on which of them a solver finds.
* If several iterations have the smallest eigenvalue, the first one counts.
* With f = 0 the loop does not run, and the result is the mean.
"""

from dataclasses import dataclass
from math import frexp, inf, ldexp

import torch
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection, require
from phalanx.aggregators.columns import ROUNDING
from phalanx.aggregators.points import Points
from phalanx.core import Weights
from phalanx.fields import NonNegativeInt
from phalanx.numerics.linalg import Square, root
from phalanx.numerics.threads import alone

SMALL, LARGE = 1e-100, 1e100  # squared distances whose squares are numbers of float64
SAME = 1e-9  # values with a smaller relative difference are equal up to rounding


def principal(distances: Square, weights: Weights) -> tuple[float, Weights]:
    """Return the largest eigenvalue of the weighted covariance, and the rows' squared projections on its eigenvectors.

    With P = I - 1 w^T / sum(w) and squared distances D, the inner products of the centred rows are -1/2 P D P^T.  So
    distances suffice, and the eigenvalue problem has size m instead of d: the covariance and the products of the
    centred rows, scaled by the roots of the weights, have the same nonzero eigenvalues.

    Args:
        distances: (m, m), squared distances of the rows.
        weights: (m,), non-negative.  Rows of weight 0 do not change the result.
    """
    share, unit = weights / weights.sum(), _unit(distances)
    if unit != 1:
        distances = distances / unit
    to_mean = distances @ share
    products = -(distances - to_mean[:, None] - to_mean + share @ to_mean) / 2
    half = root(share)
    with alone():
        values, vectors = torch.linalg.eigh(half[:, None] * products * half)
    top = values[-1].clamp_min(0)
    main = vectors[:, values >= (1 - SAME) * values[-1]]
    along = products @ (half[:, None] * main)
    return float(top) * unit, along.square().sum(1) / top * unit if top > 0 else torch.zeros_like(share)


def _unit(distances: Square) -> float:
    """Return a power of two near the largest distance where its square would leave the range of float64, else 1."""
    largest = float(distances.max())
    return 1.0 if SMALL < largest < LARGE or not 0 < largest < inf else ldexp(1.0, frexp(largest)[1])


@dataclass(frozen=True)
class CAF(Selection):
    """The mean under weights that are lowered, again and again, for rows far out along the largest variance.

    Needs no bound on the variance of the honest updates.  Tolerates 2f < m: the error is of the order of the honest
    rows' largest standard deviation in any direction, times the root of f / m, for f well below m / 2.  A row may count
    in part.

    A weight acts like a number of copies, and f of m rows have the share f / m of the weight.

    Cost: one product of the rows with themselves, O(m^2 d), and at most m eigenvalue problems of size m.

    Args:
        f: number of attackers of average weight to tolerate, 2f < m.

    Examples:
        >>> CAF(f=1)(torch.tensor([[0.0], [2.0], [1.0], [100.0]]))
        tensor([1.0067])
    """

    f: NonNegativeInt

    @override
    def choose(self, points: Points) -> Choice:
        m = len(points)
        require(self, m, 2 * self.f + 1, "2f + 1")
        start = points.share
        best, least = start, float("inf")
        c = start
        while float(c.sum()) > 1 - 2 * self.f / m + ROUNDING:
            value, tau = principal(points.squared_distances, c)
            if value < (1 - SAME) * least:
                best, least = c / c.sum(), value
            if value == 0:  # all remaining rows are equal
                break
            largest = tau[c > 0].max()
            c = c * torch.where(tau < (1 - SAME) * largest, 1 - tau / largest, 0.0)
        scores = (best / start / (best / start).max()).tolist()
        reasons = ["" if part > 0 else "filtered: far out in the direction of the largest variance" for part in scores]
        return Choice(best, scores, reasons)
