"""SMEA: smallest maximum eigenvalue averaging.

Allouah, Guerraoui, Gupta, Pinot and Stephan, "On the Privacy-Robustness-Utility Trilemma in Distributed Learning",
2023:

    S* = arg min over S with |S| = m - f  of  the largest eigenvalue of the covariance of the rows in S

and the result is the mean of S*.  Every subset is looked at, those of small variance first.  Whether one can be below
the smallest eigenvalue so far is seen by an elimination, a small part of the work of its eigenvalues; these are
computed for the few that can.  So the minimum is exact.

Among subsets with the same eigenvalue that of the smallest variance counts, and if there are several of these, as with
copies, the mean of their means.
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

from phalanx.aggregators.aggregator import Choice, Selection, require
from phalanx.aggregators.columns import ROUNDING, equal
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError
from phalanx.numerics.kernels import compiled
from phalanx.numerics.linalg import Square, root
from phalanx.numerics.threads import alone

SUBSETS = 200_000  # as many are looked at
BATCH = 1 << 8  # subsets that are looked at before the smallest eigenvalue so far is taken anew
SAME = 1e-9  # values that differ by less than this share are the same

Candidates = Float[Tensor, "n m"]  # what is kept of each row's share, one subset per row
Values = Float[Tensor, "n"]  # one for each subset


@dataclass(frozen=True)
class SMEA(Selection):
    """The mean of the m - f rows whose covariance has the smallest largest eigenvalue.

    Tolerates 2f < m, with an error of the order of the honest rows' largest standard deviation in any direction, times
    the root of f / m, for f well below m / 2.

    With weights the share f / m of the weight is left out: whole rows, and a part of at most one, in every possible
    way.  That is less than copies allow, which leave out parts of several rows, so weights are not quite like copies.

    Costs one product of the rows with themselves, O(m^2 d), and O(m^2) for each of the m! / (f! (m - f)!) subsets: some
    8 ms for 16 rows and f = 5, 0.4 s for the 200,000 subsets that are the limit.  Different weights make more of them:
    for 16 rows and f = 5 some 0.1 s.

    Args:
        f: number of attackers of average weight that are tolerated, 2f < m.

    Example:
        >>> SMEA(f=1)(torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0], [100.0, 0.0]]))
        tensor([1.0000, 0.3333])
    """

    f: int

    def __post_init__(self) -> None:
        if self.f < 0:
            raise ValueError(f"f must be at least 0, got {self.f}.")

    def choose(self, points: Points) -> Choice:
        """See `Selection`."""
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
        """The subsets."""
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
            raise InfeasibleError(
                f"{self} looks at every way to leave out f of {m} rows, and there are more than {SUBSETS} of them. "
                "Lower f, or use CAF, which filters by the same variance."
            )


def _drops(kept: NDArray[np.float64], first: int, budget: float) -> Iterator[NDArray[np.float64]]:
    """What is left when `budget` is taken from rows: whole ones, in order from `first`, and a part of one."""
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
    """That of each subset's covariance where it can be the smallest of all, infinity elsewhere."""
    order = _spread(distances, kept).argsort()  # the smallest is among the first
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
    """Whether the largest eigenvalue of each subset's covariance A is below `limit`, or so near that it may be.

    It is where limit * I - A has no negative pivot in Gauss's elimination: a small part of the work of the eigenvalue.
    """
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
        slack = SAME * (limit + trace)  # rounding must not rule out the smallest
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
    """The largest eigenvalue of the covariance of each subset, from the products of its centred rows."""
    size = int((kept > 0).sum(1).max())
    rows = (kept > 0).int().argsort(dim=1, descending=True, stable=True)[:, :size]
    share = kept.gather(1, rows)
    share = share / share.sum(1, keepdim=True)
    between = distances[rows[:, :, None], rows[:, None]]
    # A subset with fewer rows is filled up with rows of no weight.
    between = torch.where((share > 0)[:, :, None] & (share > 0)[:, None], between, 0.0)
    to_mean = (between @ share[:, :, None]).squeeze(2)
    to_all = (share * to_mean).sum(1)
    products = -(between - to_mean[:, :, None] - to_mean[:, None] + to_all[:, None, None]) / 2
    half = root(share)
    values: Tensor = torch.linalg.eigvalsh(half[:, :, None] * products * half[:, None])
    return values[:, -1].clamp_min(0)


def _spread(distances: Square, kept: Candidates) -> Values:
    """The sum of the squared distances between the rows of each subset, by weight."""
    total: Values = ((kept @ distances) * kept).sum(1)
    return total
