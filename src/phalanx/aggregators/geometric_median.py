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
* One attacker close to the median can make Weiszfeld's steps arbitrarily short.  After `iterations` steps Newton's
  method takes over, on distances sqrt(r^2 + delta^2) with delta falling to a hundredth of the tolerance, as in
  interior-point methods: the work is bounded, and there is always a result.
* The floor that keeps distances from zero is relative to the distance within which half of the weight lies, not to the
  largest distance: attackers choose that one, and a floor of 1e-12 of it can exceed all honest distances.
* An even split of rows on a line has many medians, from one row to the next: the result is the mid-point.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection
from phalanx.aggregators.influence import UNBOUNDED, UNKNOWN, Influence, largest
from phalanx.aggregators.krum import nearest
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance, Vector, Weights
from phalanx.fields import PositiveInt

Numbers = NDArray[np.float64]
LEAST = 1e-3  # relative error that sums of distances may have
SAME = 1e-9  # rows nearer than this, in units of the distance that holds half of the weight, are copies
SETTLED = 5  # consecutive steps that must seem to be the last: a slow direction shows only after the fast ones
SHARPER = 10.0  # factor by which the smoothing of distances decreases
NEWTON = 8  # largest number of steps for each smoothing
TINY = 1e-12  # a divisor that is not zero
COARSE, STEP = 1.3, 1.03  # ratios of two distances that the influence of attackers is looked for at, first and then
ELSEWHERE = "the geometric median lies on updates of others and is made of those, which says nothing of this one"
SHORTEST = 1e-6  # fraction of a Newton step below which it is not tried


@dataclass(frozen=True)
class GeometricMedian(Selection):
    """The point with the smallest weighted sum of distances to the rows.

    Stays near the honest rows while the attackers hold less than half of the weight: for a share a of attackers, its
    distance from any point is at most 2 (1 - a) / (1 - 2a) times the largest distance of an honest row from that point.
    Equivariant to rotations, unlike the coordinate-wise median.

    Cost: one product of the matrix with itself, O(m^2 d), O(m^2) per iteration, and one pass for the result.  Rows that
    slow down the iteration cost some 30 steps of O(m^3) in addition.

    Args:
        tolerance: allowed distance from the minimum, relative to the distance within which half of the weight lies.
        iterations: largest number of steps of Weiszfeld's algorithm, after which Newton's method takes over.

    Examples:
        >>> GeometricMedian()(torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0], [1.0, -1.0], [1.0, 0.5]]))
        tensor([1.0000, 0.5000])
    """

    tolerance: Annotated[float, Meta(gt=0, lt=1)] = 1e-6
    iterations: PositiveInt = 200

    @override
    def tolerates(self, q: int) -> Tolerance:
        return Tolerance.below_half("distance", "A geometric median stays near the majority.")

    @override
    def choose(self, points: Points) -> Choice:
        products, w = points.centred_products, points.share
        shares = _median_rows(products.numpy(), np.sqrt(points.squared_distances.numpy()), w.numpy())
        if shares is None:
            shares = torch.from_numpy(self._iterate(products.numpy(), w.numpy(), _start(points).numpy()))
        far = _distances_from(shares.numpy(), products.numpy(), w.numpy()) * points.unit
        return Choice(shares, far.tolist(), ["" if share > 0 else ELSEWHERE for share in shares.tolist()])

    @override
    def influence_of(self, points: Points, vector: Vector, choice: Choice | None, f: int) -> Influence:
        held = largest(points.share, f)
        if choice is None or held >= 0.5:
            return UNBOUNDED if held >= 0.5 else UNKNOWN
        products, w = points.centred_products.numpy(), points.share.numpy()
        reach = products @ choice.shares.numpy()
        about = products - reach - reach[:, None] + choice.shares.numpy() @ reach
        farthest = _farthest(about, w, f)
        return UNKNOWN if farthest is None else Influence.bound(points.unit * farthest * (1 + self.tolerance))

    def _iterate(self, products: Numbers, w: Numbers, shares: Numbers) -> Numbers:
        """Return the shares of the rows in the median, by Weiszfeld's algorithm, then by Newton's if it is too slow."""
        far, previous, settled = _distances_from(shares, products, w), math.inf, 0
        for _ in range(self.iterations):
            pull = w / far
            new = pull / pull.sum()
            change = new - shares
            step = math.sqrt(max(change @ products @ change, 0.0))
            shares, far = new, _distances_from(new, products, w)
            # The rest of a geometric series with ratio r = step / previous: step r / (1 - r).
            left = step * step / (previous - step) if step < previous < math.inf else math.inf
            settled = settled + 1 if left <= self.tolerance * _radius(far, w) else 0
            if settled == SETTLED or step == 0:
                return shares
            previous = step
        return _by_newton(shares, products, w, self.tolerance)


def _by_newton(shares: Numbers, products: Numbers, w: Numbers, tolerance: float) -> Numbers:
    """Return the shares of the rows in the median, from a first guess, by Newton's method on smoothed distances.

    The sum of w_i q_i with q_i = sqrt(r_i^2 + delta^2) is smooth and strictly convex.  Its minimum is tracked while
    delta decreases from the distance within which half of the weight lies to a hundredth of `tolerance` times that.
    """
    radius = _radius(_distances_from(shares, products, w), w)
    delta, last = radius, radius * tolerance / 100
    while delta > last:
        delta = max(delta / SHARPER, last)
        for _ in range(NEWTON):
            moved = _newton_step(shares, products, w, delta)
            change = moved - shares
            shares = moved
            if change @ products @ change <= (tolerance * delta) ** 2:
                break
    return shares


def _newton_step(shares: Numbers, products: Numbers, w: Numbers, delta: float) -> Numbers:
    """Return the shares after one step, halved until the smoothed sum of distances falls.

    With the differences B = z - u_i as columns and D = diag(sqrt(w_i / q_i^3)), the Hessian is s I - B D (B D)^T, where
    s is the sum of w_i / q_i.  Its inverse follows from an (m, m) system (Woodbury), which needs inner products only.
    """
    q = _smoothed(shares, products, delta)
    differences = shares[:, None] - np.eye(len(w))
    scaled = differences * np.sqrt(w / q**3)
    descent = differences @ (-w / q)
    s = float((w / q).sum())
    reach = scaled.T @ products
    inner = s * np.eye(len(w)) - reach @ scaled
    step = (descent + scaled @ np.linalg.lstsq(inner, reach @ descent, rcond=None)[0]) / s
    now, part = w @ q, 1.0
    while part > SHORTEST:
        moved: Numbers = shares + part * step
        if w @ _smoothed(moved, products, delta) < now:
            return moved
        part /= 2
    return shares


def _smoothed(shares: Numbers, products: Numbers, delta: float) -> Numbers:
    """Return sqrt(r^2 + delta^2) for the distances r of the rows from their weighted mean."""
    smoothed: Numbers = np.sqrt(_squares_from(shares, products).clip(0.0) + delta * delta)
    return smoothed


def _start(points: Points) -> Weights:
    """Return the shares of the first iterate: the mean of the half of the weight that is nearest to the medoid."""
    near = nearest(points.squared_distances[points.medoid][None], points.weights, points.mass / 2)[0]
    return near / near.sum() if int((near > 0).sum()) > 1 else points.share


def _radius(far: Numbers, w: Numbers) -> float:
    """Return the distance within which half of the weight lies."""
    order = far.argsort()
    half = int(np.searchsorted(w[order].cumsum(), 0.5))
    return float(far[order[min(half, len(w) - 1)]])


def _distances_from(shares: Numbers, products: Numbers, w: Numbers) -> Numbers:
    """Return the distances of the rows from their weighted mean; never zero, since they are divisors."""
    squares = _squares_from(shares, products)
    far: Numbers = np.sqrt(squares.clip(_radius(squares, w) * 1e-24 + 1e-300))
    return far


def _squares_from(shares: Numbers, products: Numbers) -> Numbers:
    """Return the squared distances of the rows from their weighted mean, to rounding."""
    reach = products @ shares
    squares: Numbers = products.diagonal() - 2 * reach + shares @ reach
    return squares


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


def _farthest(products: Numbers, w: Numbers, f: int) -> float | None:
    """Return a distance from a point beyond which f attackers cannot bring the median; None if none is found.

    At the new median the rows that stay pull no harder than the attackers push: by their weight at most.  At a distance
    D in the direction e from the point, row i pulls back with w_i psi(c_i, D / r_i), where r_i is its distance from the
    point, c_i the cosine of e and the way from the row to the point, and

        psi(c, q) = (q + c) / sqrt(1 + 2 q c + q^2)

    Two bounds from below, for all e: psi >= sqrt(1 - 1 / q^2) if q > 1, else -1; and psi >= psi(0, q) + alpha c - beta
    c^2 with alpha and beta of `_curvatures`, whose sums over rows follow from the inner products of their directions.

    Args:
        products: (m, m), inner products of the rows minus the point.
        w: (m,), shares of the weight.
        f: number of attackers.
    """
    r = np.sqrt(products.diagonal().clip(0))
    away = r > SAME * _radius(r, w)
    r, directions = np.where(away, r, 0.0), products / np.outer(*(np.where(away, r, 1.0),) * 2)
    directions[~away] = directions[:, ~away] = 0.0
    if not away.any():
        return 0.0
    spread = float(np.linalg.eigvalsh(directions * np.sqrt(np.outer(w, w)))[-1])

    def reached(distances: Numbers) -> float | None:
        with np.errstate(divide="ignore"):
            q = distances[:, None] / r  # (n, m); infinite for rows at the point, which pull with all of their weight
            alone = np.where(q > 1, np.sqrt(np.maximum(1 - q**-2.0, 0)), -1.0)
            level = 1 / np.sqrt(1 + q**-2.0)
        alpha, beta = (1 + q * q) ** -1.5, _curvature(q)
        slopes = alpha * w
        common = np.sqrt(np.maximum(((slopes @ directions) * slopes).sum(1), 0))
        theirs, bend = np.sqrt(_largest(w * alpha**2, f)), beta.max(1).clip(TINY)
        t = np.minimum(math.sqrt(spread), theirs / (2 * bend))
        together = (w * level).sum(1) - common - theirs * t - bend * (spread - t * t) - _largest(w * (level + 1), f)
        beyond = np.maximum(together, (w * alone).sum(1) - _largest(w * (alone + 1), f)) > 0
        return float(distances[beyond.argmax()]) if beyond.any() else None

    # The pull of the rows grows with the distance, so that large steps come first, and small ones where they end.
    first, last = r[away].min() / 1e3, r.max() * 1e3
    end = reached(first * COARSE ** np.arange(math.ceil(math.log(last / first) / math.log(COARSE))))
    return (
        None
        if end is None
        else reached(end * STEP ** -np.arange(math.ceil(math.log(COARSE) / math.log(STEP)), -1.0, -1.0))
    )


def _largest(values: Numbers, f: int) -> Numbers:
    """Return the sum of the f largest entries of each row."""
    sums: Numbers = np.sort(values, axis=1)[:, -f:].sum(1)
    return sums


@lru_cache(maxsize=1)
def _curvatures() -> tuple[Numbers, Numbers]:
    """Return distances q, and the smallest beta with psi(c, q) >= psi(0, q) + alpha c - beta c^2 for all cosines c."""
    q = np.geomspace(1e-4, 1e4, 400)[:, None]
    c = np.concatenate([np.tile(np.linspace(-1, 1, 2000), (len(q), 1)), -1 / q.clip(1)], axis=1)
    psi = (q + c) / np.sqrt(np.maximum(1 + 2 * q * c + q * q, 1e-300))
    missing = q / np.sqrt(1 + q * q) + (1 + q * q) ** -1.5 * c - psi
    return q[:, 0], 1.01 * (missing / (c * c)).max(1)


def _curvature(q: Numbers) -> Numbers:
    """Return beta for each q: the larger one of the two nearest in the table."""
    table, beta = _curvatures()
    after = np.searchsorted(table, q).clip(1, len(table) - 1)
    return np.where(np.isinf(q), 0.0, np.maximum(beta[after - 1], beta[after]))
