"""Krum and Multi-Krum: the rows whose nearest neighbours are nearest.

Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent",
2017, Section 4.  The score of row i is

    s(i) = sum over i -> j of |u_i - u_j|^2

where i -> j says that j is one of the n - f - 2 rows nearest to i, itself not counted.

Conventions:

* Some implementations count n - f - 1 neighbours; `neighbours` offers both, the paper's by default.
* Ties go to the lower index.
* The paper's Multi-Krum leaves m open.  Here it is n - f by default, as in most implementations.
* With weights, a neighbourhood is a share of the weight: row i with its own weight at distance zero, then the nearest
  other rows, up to the weight of n - f - 1 average rows.  The last row counts in part.  So integer weights give the
  same result as copies of the rows, for the f that leaves the same share of the weight.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection, require, tolerates_f
from phalanx.aggregators.influence import UNBOUNDED, UNKNOWN, Chosen, Influence, about_mean, largest, spectral
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance, Vector, Weights
from phalanx.fields import NonNegativeInt, PositiveInt
from phalanx.numerics import influence_kernels as kernels
from phalanx.numerics.linalg import Square

ROUNDING = 1e-12  # sums of weights with a smaller relative difference are equal up to rounding
Neighbours = Literal["n-f-2", "n-f-1"]


@dataclass(frozen=True)
class Krum(Selection):
    """The row with the smallest sum of squared distances to its n - f - 2 nearest others.

    Tolerates f of n >= 2f + 3 clients, or of n >= 2f + 1 with `neighbours="n-f-1"`.  The result is the update of one
    client, so a round learns from one client only, and if honest updates differ more from each other than from the
    attackers', an attacker's update is chosen.

    Cost: one product of the matrix with itself, O(m^2 d).

    Args:
        f: number of attackers to tolerate.
        neighbours: number of neighbours in a score: "n-f-2" as in the paper, or "n-f-1".

    Examples:
        >>> Krum(f=1)(torch.tensor([[0.0], [1.0], [1.1], [1.3], [9.0]]))
        tensor([1.1000])
    """

    f: NonNegativeInt = 1
    neighbours: Neighbours = "n-f-2"

    @override
    def tolerates(self, q: int) -> Tolerance:
        least = 2 * self.f + (3 if self.neighbours == "n-f-2" else 1)
        return tolerates_f(self, self.f, q, least, "distance")

    @override
    def choose(self, points: Points) -> Choice:
        _require_majority(self, len(points))
        scores = krum_scores(points.squared_distances, points.weights, self.f, self.neighbours)
        winner = int(scores.argmin())
        shares = torch.zeros(len(points), dtype=torch.float64)
        shares[winner] = 1.0
        why = f"Krum score {{:.3g}}, the smallest is {float(scores[winner]):.3g}"
        reasons = ["" if k == winner else why.format(score) for k, score in enumerate(scores.tolist())]
        return Choice(shares, scores.tolist(), reasons)

    @override
    def influence_of(self, points: Points, vector: Vector, choice: Choice | None, f: int) -> Influence:
        """See `Aggregator`.  The new result is near a row whose neighbourhood can get a smallest score."""
        assert choice is not None
        products = about_mean(points, choice.shares)
        reach = _reach(self, points, products, attackers=f, chosen=float(points.weights.min()))
        if isinstance(reach, Influence):
            return reach
        return Influence.bound(
            points.unit * max(reach.attacker, float(products.diagonal()[reach.possible].max()) ** 0.5)
        )


@dataclass(frozen=True)
class MultiKrum(Selection):
    """The mean of the m rows with the smallest Krum scores.

    Tolerates f of n >= 2f + 3 clients, or of n >= 2f + 1 with `neighbours="n-f-1"`.  More rows mean less noise, and
    more room for attackers who stay close.

    Cost: one product of the matrix with itself, O(m^2 d), and one pass for the mean.

    Args:
        f: number of attackers to tolerate.
        m: number of rows to average; n - f if not given.
        neighbours: number of neighbours in a score: "n-f-2" as in the paper, or "n-f-1".

    Examples:
        >>> MultiKrum(f=1, m=2)(torch.tensor([[0.0], [1.0], [1.1], [1.3], [9.0]]))
        tensor([1.0500])
    """

    f: NonNegativeInt = 1
    m: PositiveInt | None = None
    neighbours: Neighbours = "n-f-2"

    @override
    def influence_of(self, points: Points, vector: Vector, choice: Choice | None, f: int) -> Influence:
        """See `Aggregator`.  Attackers who are chosen are near a row; honest rows take the places of others."""
        assert choice is not None
        products = about_mean(points, choice.shares)
        kept = (len(points) - self.f if self.m is None else self.m) / len(points)
        reach = _reach(self, points, products, attackers=f, chosen=points.mass * kept)
        if isinstance(reach, Influence):
            return reach
        chosen = Chosen(points.share, choice.shares, products, kept)
        return chosen.influence(f, reach.attacker, reach.possible).times(points.unit)

    @override
    def tolerates(self, q: int) -> Tolerance:
        least = 2 * self.f + (3 if self.neighbours == "n-f-2" else 1)
        return tolerates_f(self, self.f, q, least, "distance")

    @override
    def choose(self, points: Points) -> Choice:
        n = len(points)
        _require_majority(self, n)
        m = n - self.f if self.m is None else self.m
        require(self, n, m, "m")
        scores = krum_scores(points.squared_distances, points.weights, self.f, self.neighbours)
        taken = nearest(scores[None], points.weights, m * points.mass / n)[0]
        figures, parts = scores.tolist(), taken.tolist()
        reasons = [
            "" if part else f"Krum score {figure:.3g}, not among the {m} smallest"
            for figure, part in zip(figures, parts, strict=True)
        ]
        return Choice(taken / taken.sum(), figures, reasons)


def _require_majority(rule: Krum | MultiKrum, n: int) -> None:
    """Raise `TooFewRowsError` if, with n rows, a neighbourhood can consist of attackers only.

    An attacker has f - 1 fellow attackers, so at least f neighbours must count.  The paper's n - f - 2 neighbours need
    two rows more than n - f - 1, where one would be enough, because its Lemma requires 2f + 2 < n.
    """
    extra = 3 if rule.neighbours == "n-f-2" else 1
    require(rule, n, 2 * rule.f + extra, f"2f + {extra}")


@dataclass(frozen=True, eq=False)
class _Reach:
    """Bounds on the place of chosen rows.

    Args:
        attacker: largest distance of an attacker that is chosen from the result.
        possible: (m,), whether a row that stays may be chosen, or may be the nearest one to an attacker that is.
    """

    attacker: float
    possible: NDArray[np.bool_]


def _reach(
    rule: "Krum | MultiKrum", points: Points, products: NDArray[np.float64], *, attackers: int, chosen: float
) -> _Reach | Influence:
    """Return where chosen rows can be; or the influence, if that is unbounded or unknown.

    The score of a chosen row is at most `most`, the largest that rows of the weight `chosen` among those that stay can
    be given.  Attackers at one point are neighbours of each other; the rest of the neighbourhood, of weight q, are rows
    that stay.  So an attacker at distance D from the result has q D^2 - 2 D |sum p_j v_j| + sum p_j |v_j|^2 <= most for
    parts p_j of rows v_j, as seen from the result.  And the nearest of them is no farther than sqrt(most / q), and of
    two rows, one is at least half of their distance away.

    Args:
        rule: whose scores decide.
        points: the rows.
        products: (m, m), inner products of the rows minus the result.
        attackers: their number.
        chosen: weight that is chosen; of a single row, the smallest one of a row.
    """
    m, weights, squares = len(points), points.weights.numpy(), points.squared_distances.numpy()
    total = float(weights.sum())
    held, mass = largest(points.weights, attackers), _neighbourhood(m, rule.f, rule.neighbours) * total / m
    if held >= mass * (1 - ROUNDING) or held + chosen > total * (1 + ROUNDING):
        return UNBOUNDED
    if held + mass > total * (1 + ROUNDING):
        return UNKNOWN
    q, sums = mass - held, _Sums(squares, weights)
    # The row itself comes first, at distance zero: without it, `held` and `held + mass - own` of the others are left.
    scores = sums.up_to(held + mass) - sums.up_to(held + weights)
    order = scores.argsort()
    last = int((weights[order].cumsum() < (held + chosen) * (1 - ROUNDING)).sum())
    most = float(scores[order[min(last, m - 1)]])
    possible = sums.up_to(q) <= 4 * most * (1 + ROUNDING)
    away = products.diagonal().clip(0)
    far = np.sqrt(away)
    of_part = _Sums(np.stack([away, -far]), weights).up_to(q)
    least, farthest = float(of_part[0]), -float(of_part[1])
    pull = min((spectral(products) * float(weights.max()) * q) ** 0.5, farthest)
    about = (pull + max(pull * pull + q * (most - least), 0.0) ** 0.5) / q
    attacker = min(about, float(far[possible].max()) + (most / q) ** 0.5)
    return _Reach(attacker, possible)


class _Sums:
    """Weighted sums of values over the smallest of them.

    Args:
        values: (k, m), a row for each sum.
        weights: (m,), of the columns.
    """

    def __init__(self, values: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        if bool((weights == weights[0]).all()):
            self.values, self.own = np.sort(values, axis=1), np.full(values.shape, weights[0])
        else:
            order = values.argsort(axis=1)
            self.values, self.own = np.take_along_axis(values, order, axis=1), weights[order]

    def up_to(self, mass: float | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each row, the sum over its smallest values of a total weight, of the last one in part.

        Args:
            mass: at least the smallest weight; one for all rows, or one for each.
        """
        masses = np.full(len(self.values), mass) if isinstance(mass, float) else mass
        sums: NDArray[np.float64] = kernels.sums_up_to(self.values, self.own, masses)
        return sums


def _neighbourhood(m: int, f: int, neighbours: Neighbours) -> int:
    """Return the number of rows in a neighbourhood, the row itself included."""
    return max(m - f - (1 if neighbours == "n-f-2" else 0), 2)


def krum_scores(distances: Square, weights: Weights, f: int, neighbours: Neighbours) -> Weights:
    """Return the Krum score of each row, a sum of squared distances, for f attackers of average weight."""
    m = len(weights)
    unit = float(weights.sum()) / m
    count = _neighbourhood(m, f, neighbours)
    near = distances.numpy().copy()
    np.fill_diagonal(near, -1.0)  # the row itself comes first, also among copies of it
    taken = nearest(torch.from_numpy(near), weights, count * unit)
    scores: Weights = (taken * distances).sum(1) / unit
    return scores


def nearest(distances: torch.Tensor, weights: Weights, mass: float) -> torch.Tensor:
    """Return the part of each weight that belongs to the nearest rows of total weight `mass`, for each of k points.

    The last row counts in part; ties go to the lower index.

    Args:
        distances: (k, m), distances of the rows from the k points.
        weights: (m,).
        mass: total weight to take.
    """
    unit = float(weights[0])
    if bool((weights == unit).all()) and abs(mass / unit - round(mass / unit)) <= ROUNDING * len(weights):
        return _smallest(distances, round(mass / unit), unit)
    order = distances.argsort(dim=1, stable=True)
    own = weights[order]
    reached = own.cumsum(1)
    taken = own - (reached - mass).clamp(min=0)
    taken = torch.where(taken > mass * ROUNDING, taken, 0.0)
    return torch.zeros_like(taken).scatter_(1, order, taken)


def _smallest(distances: torch.Tensor, count: int, unit: float) -> torch.Tensor:
    """Return `unit` for the `count` smallest entries of each row, 0 for the others; ties go to the lower index."""
    # A partition instead of a sort: equal weights are the usual case, and it is several times as fast.
    far, count = distances.numpy(), min(count, distances.shape[1])
    limit = np.partition(far, count - 1, axis=1)[:, count - 1 : count]
    below, at = far < limit, far == limit
    taken = below | (at & (at.cumsum(1) <= count - below.sum(1, keepdims=True)))
    return torch.from_numpy(unit * taken)
