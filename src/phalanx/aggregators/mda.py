"""MDA: minimum-diameter averaging.

El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", 2018; the estimator
is Rousseeuw's, "Multivariate Estimation with High Breakdown Point", 1985:

    S* = arg min over S with |S| = m - f  of  max over i, j in S  of  |x_i - x_j|

and the result is the mean of S*.  No subset is looked at one by one.  A diameter t can be had if dropping at most f
rows takes one end at least of every pair farther apart than t: a vertex cover of weight f.  Whether there is one is a
search that branches at most f deep, and a bisection over the distances there are finds the smallest t, exactly.

Several sets may have that diameter.  Of these the paper takes any.  Here:

* Every minimal cover is a candidate: rows that all have to go, given that the others stay.
* What a cover leaves of the budget drops the row with the largest sum of squared distances to what is left, and so on;
  rows with the same sum go in the same part.
* The candidate with the smallest sum of squared distances counts, and if several have it, the mean of their means.

So the result does not depend on the order of clients.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from phalanx.aggregators.aggregator import Choice, Selection, require
from phalanx.aggregators.columns import ROUNDING
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError

STEPS = 200_000  # of the search, some 10 microseconds each, and 40 among 100 rows
SAME = 1e-9  # values that differ by less than this share are the same

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MDA(Selection):
    """The mean of the m - f rows of the smallest diameter.

    Tolerates 2f < m: the result is no farther from any honest row than twice the diameter of the honest rows.

    With weights the share f / m of the weight may be dropped, a row that the diameter does not force out in part.  So a
    weight is like a number of copies.

    Costs one product of the rows with themselves, O(m^2 d), and a search that takes 1.47^f steps at worst for each of
    2 log2(m) thresholds, and a step or a few for each cover among which a tie is broken.  Milliseconds for 30 rows and
    f = 10; for 60 rows and f = 20 some 10 ms, and less than a second where all rows are noise of one length.  Attackers
    who know the others can make the search long; it is given up then, with an error, and never approximated.

    Args:
        f: number of attackers of average weight that are tolerated, 2f < m.

    Example:
        >>> MDA(f=1)(torch.tensor([[0.0], [1.0], [2.0], [100.0]]))
        tensor([1.])
    """

    f: int

    def __post_init__(self) -> None:
        if self.f < 0:
            raise ValueError(f"f must be at least 0, got {self.f}.")

    def choose(self, points: Points) -> Choice:
        """See `Selection`."""
        m = len(points)
        require(self, m, 2 * self.f + 1, "2f + 1")
        distances, share = points.squared_distances.numpy(), points.share.numpy()
        covers = _Covers(share.tolist())
        try:
            diameter = _smallest_diameter(distances, covers, self.f / m)
            dropped = np.array(list(covers.minimal(distances > diameter, self.f / m)))
        except _TooLong:
            raise InfeasibleError(
                f"{self} gave up after {STEPS} steps of its search among {m} rows: too many sets are nearly as good. "
                "Lower f, or use NearestNeighborMixing or MultiKrum, which need no search."
            ) from None
        kept, sums = _spent(distances, np.where(dropped, 0.0, share), 1 - self.f / m)
        shares = kept[sums <= (1 + SAME) * sums.min()].mean(0)
        return self._choice(from_numpy(shares / shares.sum()), points.squared_distances, diameter)

    def _choice(self, shares: Tensor, squares: Tensor, diameter: float) -> Choice:
        """With what there is to say about each row."""
        farthest = squares[:, shares > 0].amax(1).sqrt().tolist()
        reasons = [
            "" if share > 0 else f"up to {far:.3g} from rows of a set with diameter {diameter**0.5:.3g}"
            for share, far in zip(shares, farthest, strict=True)
        ]
        return Choice(shares, farthest, reasons)


def _smallest_diameter(distances: Array, covers: "_Covers", budget: float) -> float:
    """The smallest of the squared distances beyond which all pairs can be broken within the budget."""
    values = np.unique(distances)
    last_of_equals = np.append(np.diff(values) > SAME * values[1:], True)
    levels = values[last_of_equals]
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if covers.exist(distances > levels[middle], budget):
            high = middle
        else:
            low = middle + 1
    return float(levels[low])


def _spent(distances: Array, kept: Array, mass: float) -> tuple[Array, Array]:
    """What is left of each candidate when all but `mass` is dropped, and the sum of its squared distances."""
    excess = kept.sum(1) - mass
    while (over := excess > ROUNDING).any():
        rows = kept[over]
        sums = np.where(rows > 0, rows @ distances, -1.0)
        worst = np.where(sums >= (1 - SAME) * sums.max(1, keepdims=True), rows, 0.0)
        part = np.minimum(1.0, excess[over] / worst.sum(1))[:, None]
        kept[over] = np.where(part * worst >= rows - ROUNDING, 0.0, rows - part * worst)
        excess = kept.sum(1) - mass
    return kept, ((kept @ distances) * kept).sum(1)


class _TooLong(Exception):
    """The search takes more steps than it may."""


class _Covers:
    """Sets of rows that hold an end at least of each edge of a graph.

    Sets of rows are the bits of integers.

    Args:
        weights: of the rows.
    """

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.neighbours: list[int] = []  # of each row
        self.steps = 0  # so far, in all graphs

    def exist(self, edges: NDArray[np.bool_], budget: float) -> bool:
        """Whether there is a cover of weight `budget` or less."""
        self._take(edges)
        return self._exists((1 << len(self.weights)) - 1, budget + ROUNDING)

    def minimal(self, edges: NDArray[np.bool_], budget: float) -> Iterator[list[bool]]:
        """All covers of weight `budget` or less of which no row can be spared, each once."""
        self._take(edges)
        for cover in self._all((1 << len(self.weights)) - 1, budget + ROUNDING, 0):
            if all(self.neighbours[row] & ~cover for row in _rows(cover)):
                yield [bool(cover >> row & 1) for row in range(len(self.weights))]

    def _take(self, edges: NDArray[np.bool_]) -> None:
        self.neighbours = [sum(1 << int(other) for other in np.flatnonzero(row)) for row in edges]

    def _exists(self, there: int, budget: float) -> bool:
        """Whether the edges between rows that are `there` have a cover."""
        there, budget, row = self._without_forced(there, budget)
        if row is None or budget < 0:
            return budget >= 0
        return any(self._exists(rest, left) for rest, left, _ in self._branches(there, budget, row))

    def _all(self, there: int, budget: float, dropped: int) -> Iterator[int]:
        """All covers of the edges between rows that are `there`, each with what is `dropped` already."""
        row = self._busiest(there, budget)
        if row is None:
            yield dropped
        elif row >= 0:
            for rest, left, more in self._branches(there, budget, row):
                yield from self._all(rest, left, dropped | more)

    def _branches(self, there: int, budget: float, row: int) -> Iterator[tuple[int, float, int]]:
        """Either the row goes, or it stays and all of its neighbours go."""
        neighbours = self.neighbours[row] & there
        there &= ~(1 << row)
        for gone in (1 << row, neighbours):
            left = budget - self._weight(gone)
            if left >= 0:
                yield there & ~gone, left, gone

    def _without_forced(self, there: int, budget: float) -> tuple[int, float, int | None]:
        """Drops rows as long as one has to go, or may as well; and the row to branch on, None where no edge is left.

        A row whose neighbours are heavier than the budget has to go.  The only neighbour of a row that is not lighter
        may as well.  A negative budget: there is no cover.
        """
        while (row := self._busiest(there, budget)) is not None:
            if row < 0:
                return there, -1.0, row
            forced = self._forced(there, budget)
            if forced is None:
                return there, budget, row
            there, budget = there & ~(1 << forced), budget - self.weights[forced]
            if budget < 0:
                break
        return there, budget, None

    def _forced(self, there: int, budget: float) -> int | None:
        for row in _rows(there):
            neighbours = self.neighbours[row] & there
            if self._weight(neighbours) > budget:
                return row
            if neighbours and not neighbours & (neighbours - 1):
                only = neighbours.bit_length() - 1
                if self.weights[only] <= self.weights[row]:
                    return only
        return None

    def _busiest(self, there: int, budget: float) -> int | None:
        """The row with the most edges for its weight; None where there is no edge, -1 where there are too many."""
        self.steps += 1
        if self.steps > STEPS:
            raise _TooLong
        degrees = [(degree, row) for row in _rows(there) if (degree := (self.neighbours[row] & there).bit_count())]
        if not degrees:
            return None
        degrees.sort(key=lambda pair: pair[0] / self.weights[pair[1]], reverse=True)
        uncovered = sum(degree for degree, _ in degrees) / 2
        for degree, row in degrees:  # the most edges that the budget can buy
            if self.weights[row] >= budget:
                uncovered -= degree * budget / self.weights[row]
                break
            budget -= self.weights[row]
            uncovered -= degree
            if uncovered <= 0:
                break
        return -1 if uncovered > SAME else degrees[0][1]

    def _weight(self, rows: int) -> float:
        return sum(self.weights[row] for row in _rows(rows))


def _rows(rows: int) -> Iterator[int]:
    """The members of a set."""
    while rows:
        last = rows & -rows
        yield last.bit_length() - 1
        rows ^= last
