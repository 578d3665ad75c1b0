"""MDA: minimum-diameter averaging.

El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in Byzantium", 2018; the estimator
is Rousseeuw's, "Multivariate Estimation with High Breakdown Point", 1985:

    S* = arg min over S with |S| = m - f  of  max over i, j in S  of  |x_i - x_j|

and the result is the mean of S*.  Subsets are not enumerated.  A diameter t is possible if dropping at most f rows
removes at least one end of every pair that is farther apart than t, that is if the graph of these pairs has a vertex
cover of weight f.  A search that branches at most f deep decides this, and a bisection over the distances of the rows
finds the smallest t, exactly.

Several sets may have that diameter.  The paper takes any of them.  Here:

* Every minimal cover is a candidate: a set of rows to drop, none of which could stay if the others are dropped.
* If a cover does not use up the budget f, the row with the largest sum of squared distances to the remaining rows is
  dropped next, and so on; rows with equal sums are dropped in equal parts.
* The candidate with the smallest sum of squared distances wins; several winners give the mean of their means.

So the result does not depend on the order of clients.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection, require, tolerates_f
from phalanx.aggregators.columns import ROUNDING
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError, Tolerance
from phalanx.fields import NonNegativeInt

STEPS = 200_000  # limit of the search; a step takes some 10 microseconds, 40 with 100 rows
SAME = 1e-9  # values with a smaller relative difference are equal up to rounding

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MDA(Selection):
    """The mean of the m - f rows of the smallest diameter.

    Tolerates 2f < m: the result is no farther from any honest row than twice the diameter of the honest rows.

    With weights, the share f / m of the weight is dropped; a row may be dropped in part unless the diameter requires to
    drop it as a whole.  So a weight acts like a number of copies.

    Cost: one product of the rows with themselves, O(m^2 d), and a search of at most 1.47^f steps for each of 2 log2(m)
    thresholds, and a few steps for each cover among which a tie is broken.  It takes milliseconds for 30 rows and
    f = 10; for 60 rows and f = 20 some 10 ms, and less than a second if all rows are noise of one norm.  Attackers who
    know the other updates can make the search long.  Then it stops with an error; it never approximates.

    Args:
        f: number of attackers of average weight to tolerate, 2f < m.

    Examples:
        >>> MDA(f=1)(torch.tensor([[0.0], [1.0], [2.0], [100.0]]))
        tensor([1.])
    """

    f: NonNegativeInt

    @override
    def tolerates(self, q: int) -> Tolerance:
        return tolerates_f(self, self.f, q, 2 * self.f + 1, "distance")

    @override
    def choose(self, points: Points) -> Choice:
        m = len(points)
        require(self, m, 2 * self.f + 1, "2f + 1")
        distances, share = points.squared_distances.numpy(), points.share.numpy()
        covers = _Covers(share.tolist())
        try:
            diameter = _smallest_diameter(distances, covers, self.f / m)
            dropped = np.array(list(covers.minimal(distances > diameter, self.f / m)))
        except _TooManyStepsError:
            raise InfeasibleError(
                f"{self} gave up after {STEPS} steps of its search among {m} rows: too many sets are nearly as good. "
                "Lower f, or use NearestNeighborMixing or MultiKrum, which need no search."
            ) from None
        kept, sums = _spent(distances, np.where(dropped, 0.0, share), 1 - self.f / m)
        shares = kept[sums <= (1 + SAME) * sums.min()].mean(0)
        return self._choice(from_numpy(shares / shares.sum()), points, points.unit * diameter**0.5)

    @staticmethod
    def _choice(shares: Tensor, points: Points, diameter: float) -> Choice:
        """Return the choice with a score and a reason for each row."""
        farthest = (points.squared_distances[:, shares > 0].amax(1).sqrt() * points.unit).tolist()
        reasons = [
            "" if share > 0 else f"up to {far:.3g} from rows of a set with diameter {diameter:.3g}"
            for share, far in zip(shares, farthest, strict=True)
        ]
        return Choice(shares, farthest, reasons)


def _smallest_diameter(distances: Array, covers: "_Covers", budget: float) -> float:
    """Return the smallest squared distance such that a cover within the budget breaks all pairs farther apart."""
    values = np.unique(distances)
    # Distances that are equal up to rounding are one threshold.
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
    """Drop rows of each candidate until `mass` is left; return the candidates and their sums of squared distances."""
    excess = kept.sum(1) - mass
    while (over := excess > ROUNDING).any():
        rows = kept[over]
        sums = np.where(rows > 0, rows @ distances, -1.0)
        worst = np.where(sums >= (1 - SAME) * sums.max(1, keepdims=True), rows, 0.0)
        part = np.minimum(1.0, excess[over] / worst.sum(1))[:, None]
        kept[over] = np.where(part * worst >= rows - ROUNDING, 0.0, rows - part * worst)
        excess = kept.sum(1) - mass
    return kept, ((kept @ distances) * kept).sum(1)


class _TooManyStepsError(Exception):
    """The search takes more than `STEPS` steps."""


class _Covers:
    """Vertex covers: sets of rows that contain at least one end of each edge of a graph.

    Sets of rows are integers, one bit for each row: set operations are then single instructions on small integers.

    Args:
        weights: weights of the rows.
    """

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.neighbours: list[int] = []  # of each row, as a set
        self.steps = 0  # taken so far, in all graphs

    def exist(self, edges: NDArray[np.bool_], budget: float) -> bool:
        """Return whether there is a cover of weight `budget` or less."""
        self._take(edges)
        return self._exists((1 << len(self.weights)) - 1, budget + ROUNDING)

    def minimal(self, edges: NDArray[np.bool_], budget: float) -> Iterator[list[bool]]:
        """Yield the minimal covers of weight `budget` or less, each once: no row of them can be left out."""
        self._take(edges)
        # The search also yields covers with a row that could stay; these are not minimal.
        for cover in self._all((1 << len(self.weights)) - 1, budget + ROUNDING, 0):
            if all(self.neighbours[row] & ~cover for row in _rows(cover)):
                yield [bool(cover >> row & 1) for row in range(len(self.weights))]

    def _take(self, edges: NDArray[np.bool_]) -> None:
        self.neighbours = [sum(1 << int(other) for other in np.flatnonzero(row)) for row in edges]

    def _exists(self, there: int, budget: float) -> bool:
        """Return whether the edges between the rows `there` have a cover within the budget."""
        there, budget, row = self._without_forced(there, budget)
        if row is None or budget < 0:
            return budget >= 0
        return any(self._exists(rest, left) for rest, left, _ in self._branches(there, budget, row))

    def _all(self, there: int, budget: float, dropped: int) -> Iterator[int]:
        """Yield the covers of the edges between the rows `there`, each united with the rows `dropped` already."""
        row = self._busiest(there, budget)
        if row is None:
            yield dropped
        elif row >= 0:
            for rest, left, more in self._branches(there, budget, row):
                yield from self._all(rest, left, dropped | more)

    def _branches(self, there: int, budget: float, row: int) -> Iterator[tuple[int, float, int]]:
        """Yield the two cases of the search: drop the row, or keep it and drop all of its neighbours."""
        neighbours = self.neighbours[row] & there
        there &= ~(1 << row)
        for gone in (1 << row, neighbours):
            left = budget - self._weight(gone)
            if left >= 0:
                yield there & ~gone, left, gone

    def _without_forced(self, there: int, budget: float) -> tuple[int, float, int | None]:
        """Drop rows that must be dropped, or may be without loss; return what is left and the row to branch on.

        A row must be dropped if its neighbours weigh more than the budget.  If a row has a single neighbour, which is
        not heavier than the row, the neighbour may be dropped without loss: it covers the same edge and maybe more.
        The row to branch on is None if no edge is left.  A negative budget means that there is no cover.
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
        """Return the row with the most edges per weight, None if there is no edge, -1 if the budget cannot cover all.

        The last case is a bound that cuts the search: even the best rows, the last one in part, have too few edges.
        """
        self.steps += 1
        if self.steps > STEPS:
            raise _TooManyStepsError
        degrees = [(degree, row) for row in _rows(there) if (degree := (self.neighbours[row] & there).bit_count())]
        if not degrees:
            return None
        # The busiest row first: both cases of the search then shrink the graph most.
        degrees.sort(key=lambda pair: pair[0] / self.weights[pair[1]], reverse=True)
        uncovered = sum(degree for degree, _ in degrees) / 2
        for degree, row in degrees:  # an upper bound of the edges that the budget can cover
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
    """Yield the members of a set, by its lowest bits."""
    while rows:
        last = rows & -rows
        yield last.bit_length() - 1
        rows ^= last
