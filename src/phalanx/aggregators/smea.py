"""SMEA: smallest maximum eigenvalue averaging.

Allouah, Guerraoui, Gupta, Pinot and Stephan, "On the Privacy-Robustness-Utility Trilemma in Distributed Learning",
2023:

    S* = arg min over S with |S| = m - f  of  the largest eigenvalue of the covariance of the rows in S

and the result is the mean of S*.  Every subset is checked, those of small variance first.  An elimination, which is
much cheaper than eigenvalues, shows whether a subset can be below the smallest eigenvalue so far; eigenvalues are
computed only for those few.  So the minimum is exact.

Among subsets with the same eigenvalue, the one of the smallest variance wins; several of these, as with copies, give
the mean of their means.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import no_type_check

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection, TooManyRowsError, require, tolerates_f
from phalanx.aggregators.columns import ROUNDING, equal
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance
from phalanx.fields import NonNegativeInt
from phalanx.numerics.kernels import compiled
from phalanx.numerics.linalg import Square, root
from phalanx.numerics.threads import alone

SUBSETS = 200_000  # largest number of subsets
BATCH = 1 << 8  # subsets that are compared with the smallest eigenvalue so far before it is updated
SAME = 1e-9  # values with a smaller relative difference are equal up to rounding

Candidates = Float[Tensor, "n m"]  # one subset in each row: the part of each share that is kept
Values = Float[Tensor, "n"]  # one value for each subset


@dataclass(frozen=True)
class SMEA(Selection):
    """The mean of the m - f rows whose covariance has the smallest largest eigenvalue.

    Tolerates 2f < m, with an error of the order of the honest rows' largest standard deviation in any direction, times
    the root of f / m, for f well below m / 2.

    With weights, the share f / m of the weight is dropped in every possible way: whole rows, and a part of at most one.
    Copies could also be dropped in parts of several rows, so a weight does not quite act like copies.

    Cost: one product of the rows with themselves, O(m^2 d), and O(m^2) for each of the m! / (f! (m - f)!) subsets: some
    8 ms for 16 rows and f = 5, 0.4 s for the limit of 200,000 subsets.  Unequal weights have more subsets: some 0.1 s
    for 16 rows and f = 5.

    Args:
        f: number of attackers of average weight to tolerate, 2f < m.

    Examples:
        >>> SMEA(f=1)(torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0], [100.0, 0.0]]))
        tensor([1.0000, 0.3333])
    """

    f: NonNegativeInt

    @override
    def tolerates(self, q: int) -> Tolerance:
        return tolerates_f(self, self.f, q, 2 * self.f + 1, "distance")

    @override
    def choose(self, points: Points) -> Choice:
        m = len(points)
        require(self, m, 2 * self.f + 1, "2f + 1")
        kept = self._candidates(points)
        distances = points.squared_distances
        with alone():
            values = _largest_eigenvalues(distances, kept)
            best = kept[values <= (1 + SAME) * values.min()]
            spread = _spread(distances, best)
        shares = best[spread <= (1 + SAME) * spread.min()].mean(0)
        reasons = ["" if share > 0 else "outside the set of the smallest variance" for share in shares.tolist()]
        return Choice(shares / shares.sum(), None, reasons)

    def _candidates(self, points: Points) -> Candidates:
        """Return all subsets that keep the share 1 - f / m of the weight."""
        m, share = len(points), points.share
        if equal(points.weights):
            self._check(comb(m, self.f), m)
            dropped = np.array(list(combinations(range(m), self.f)), dtype=np.int64).reshape(comb(m, self.f), self.f)
            kept = np.full((len(dropped), m), 1 / m)
            np.put_along_axis(kept, dropped, 0.0, axis=1)
        else:
            found = []
            for subset in _drops(share.numpy().copy(), 0, self.f / m):
                found.append(subset)
                self._check(len(found), m)
            kept = np.array(found)
        return torch.from_numpy(kept)

    def _check(self, subsets: int, m: int) -> None:
        if subsets > SUBSETS:
            raise TooManyRowsError(
                f"{self} checks every way to drop f of {m} rows, and there are more than {SUBSETS}. "
                "Lower f, or use CAF, which filters by the same variance."
            )


def _drops(kept: NDArray[np.float64], first: int, budget: float) -> Iterator[NDArray[np.float64]]:
    """Yield the shares left after `budget` is dropped: whole rows, in order from `first`, and a part of one."""
    if budget <= ROUNDING:
        yield kept.copy()
        return
    for heavy in np.flatnonzero(kept > budget + ROUNDING):
        part = kept.copy()
        part[heavy] -= budget
        yield part
    for row in range(first, len(kept)):
        weight = float(kept[row])
        if weight <= budget + ROUNDING:
            kept[row] = 0
            yield from _drops(kept, row + 1, budget - weight)
            kept[row] = weight


def _largest_eigenvalues(distances: Square, kept: Candidates) -> Values:
    """Return the largest eigenvalue of each subset's covariance, or infinity if it cannot be the smallest of all."""
    order = _spread(distances, kept).argsort()  # small variance first, so that the limit is soon low
    values = torch.full_like(order, float("inf"), dtype=torch.float64)
    values[order[:1]] = limit = _eigenvalues(distances, kept[order[:1]])
    for batch in torch.split(order[1:], BATCH):
        near = torch.from_numpy(
            _can_be_below(distances.numpy(), kept.numpy()[batch.numpy()], (1 + SAME) * float(limit))
        )
        if bool(near.any()):
            values[batch[near]] = _eigenvalues(distances, kept[batch[near]])
            limit = values.min()
    return values


@compiled
@no_type_check
def _can_be_below(distances, kept, limit):
    """Return, for each subset, whether the largest eigenvalue of its covariance A may be below `limit`.

    It is if and only if limit * I - A is positive definite, that is if Gaussian elimination meets no negative pivot.
    This costs much less than the eigenvalue, and stops at the first negative pivot.
    """
    # `matrix` is the lower triangle of -A; `limit` is added to its diagonal, pivot by pivot.
    below = np.ones(len(kept), np.bool_)
    matrix, rows, to_mean = np.empty(distances.shape), np.empty(len(distances), np.int64), np.empty(len(distances))
    for n in range(len(kept)):
        size, mass = 0, 0.0
        for i in range(len(distances)):
            if kept[n, i] > 0:
                rows[size], size, mass = i, size + 1, mass + kept[n, i]
        to_all = 0.0
        for i in range(size):
            to_mean[i] = 0.0
            for j in range(size):
                to_mean[i] += kept[n, rows[j]] / mass * distances[rows[i], rows[j]]
            to_all += kept[n, rows[i]] / mass * to_mean[i]
        trace = 0.0
        for i in range(size):
            for j in range(i + 1):
                share = np.sqrt(kept[n, rows[i]] * kept[n, rows[j]]) / mass
                matrix[i, j] = share * (distances[rows[i], rows[j]] - to_mean[i] - to_mean[j] + to_all) / 2
            trace -= matrix[i, i]
        slack = SAME * (limit + trace)  # rounding must not exclude the smallest one
        for k in range(size):
            pivot = matrix[k, k] + limit + slack
            if pivot < 0:
                below[n] = False
                break
            for i in range(k + 1, size):
                factor = matrix[i, k] / pivot if pivot > 0 else 0.0
                for j in range(k + 1, i + 1):
                    matrix[i, j] -= factor * matrix[j, k]
    return below


def _eigenvalues(distances: Square, kept: Candidates) -> Values:
    """Return the largest eigenvalue of the covariance of each subset, from the products of its centred rows."""
    size = int((kept > 0).sum(1).max())
    rows = (kept > 0).int().argsort(dim=1, descending=True, stable=True)[:, :size]
    share = kept.gather(1, rows)
    share = share / share.sum(1, keepdim=True)
    between = distances[rows[:, :, None], rows[:, None]]
    # Subsets with fewer rows are padded with rows of weight 0.
    between = torch.where((share > 0)[:, :, None] & (share > 0)[:, None], between, 0.0)
    to_mean = (between @ share[:, :, None]).squeeze(2)
    to_all = (share * to_mean).sum(1)
    products = -(between - to_mean[:, :, None] - to_mean[:, None] + to_all[:, None, None]) / 2
    half = root(share)
    values: Tensor = torch.linalg.eigvalsh(half[:, :, None] * products * half[:, None])
    return values[:, -1].clamp_min(0)


def _spread(distances: Square, kept: Candidates) -> Values:
    """Return the weighted sum of the squared distances between the rows of each subset."""
    total: Values = ((kept @ distances) * kept).sum(1)
    return total
