"""The frontier of a consortium: caps on the weight of few sites, what each costs, and the worst that a site can do.

Ours.  Truncation (Portnoy, Tirosh and Hendler 2020) caps the share of the weight that f sites may hold.  A low cap
loses accuracy, since large sites count for less; near one half, a robust rule has little left that is surely honest.

Without training, both are computed on a model of updates by MediSwarm (KatherLab, docs/ADVERSARIAL_ROBUSTNESS.md): in
each of many random directions, site i sends a . p_i + N(0, 9 / n_i), where n_i is its size, p_i its class proportions
and a a Gaussian vector that all sites share.  The target is a . p for all examples together, without noise.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from phalanx.aggregators import Mean, TrimmedMean
from phalanx.core import InfeasibleError, Matrix, Rule, Vector
from phalanx.rng import generator
from phalanx.weighting import truncation_bound
from phalanx.weighting.truncation import check_sizes, heaviest, total
from phalanx.wording import plural

DIRECTIONS = 512
NOISE = 3.0  # standard deviation of the update of one example; classes differ by one
LIES = (-1.0, -1000.0, 1000.0)  # times the target
MOST = 300  # sites; more take over ten seconds
TRIED = 20  # heaviest sites that are tried as liars
STEP = Fraction(1, 100)  # between caps


class Weighing(NamedTuple):
    """What one choice of weights costs, and what the worst site can do.

    Errors are relative: the distance of the result from the target, over the length of the target.
    """

    rule: Rule
    share: Fraction  # the largest share of the weight that the liars can hold
    bound: int  # U*, the largest size that counts in full
    shares: tuple[float, ...]  # of the weight, of each site
    clean: float  # error while all are honest
    errors: dict[int, float]  # largest error by site that was tried, lying with the heaviest others

    @property
    def liar(self) -> int:
        """The site that does most."""
        return max(self.errors, key=lambda site: self.errors[site])

    @property
    def worst(self) -> float:
        """The largest error."""
        return self.errors[self.liar]


class Modelled(NamedTuple):
    """The updates that a consortium would send."""

    sizes: NDArray[np.int64]
    rows: Matrix  # (sites, directions)
    target: Vector  # (directions,)
    liars: int


class Point(NamedTuple):
    """A cap, and what it does."""

    cap: Fraction
    weighing: Weighing


class Frontier(NamedTuple):
    """All caps of a consortium."""

    liars: int
    cost: float  # largest clean error that is useful
    points: tuple[Point, ...]  # by increasing cap: the first weighs all alike
    reported: Weighing  # by the mean, which is what truncation replaces
    uniform: Weighing

    @property
    def useful(self) -> tuple[Point, ...]:
        """The points that cost no more than `cost`; none if no cap is useful."""
        return tuple(point for point in self.points if point.weighing.clean <= self.cost)

    @property
    def best(self) -> Point | None:
        """The useful point with the smallest error of the worst site; None if no cap is useful."""
        return min(self.useful, key=lambda point: point.weighing.worst, default=None)

    @property
    def cheapest(self) -> Point:
        """The point with the smallest clean error."""
        return min(self.points, key=lambda point: point.weighing.clean)


def frontier(
    sizes: Sequence[int], counts: Sequence[Sequence[int]] | None = None, *, liars: int = 1, cost: float = 0.1
) -> Frontier:
    """Return what each cap on the weight of few sites costs, and what the worst site can do.

    The rule is `TrimmedMean(beta)` with the cap for beta, the least that tolerates it.

    Args:
        sizes: the size that each site reports, at least 1.
        counts: the number of examples of each class, by site; each row sums to the site's size. None: all sites are
            taken to hold the same mix, and only noise costs anything.
        liars: number of sites that may lie at once.
        cost: largest clean error that is useful, above 0.

    Raises:
        ValueError: an argument is not as described, or there are more than 300 sites.
        InfeasibleError: so many sites hold half of the weight even if all weigh alike.

    Example:
        >>> found = frontier([900, 300, 200, 100, 100], [[800, 100], [100, 200], [150, 50], [90, 10], [50, 50]])
        >>> float(found.points[0].cap), len(found.points)
        (0.2, 31)
    """
    N, K = np.asarray(sizes, np.int64), len(sizes)
    check_sizes(N)
    if K > MOST:
        raise ValueError(f"A frontier is of at most {MOST} sites, got {K:,}. For more, see the curve of U* over alpha.")
    if not 1 <= liars < K:
        raise ValueError(f"liars must be from 1 to {K - 1}, the sites but one, got {liars}.")
    if not cost > 0:
        raise ValueError(f"cost must be above 0, got {cost}: it is a relative error.")
    if 2 * liars >= K:
        raise InfeasibleError(
            f"{plural(liars, 'liar')} of {plural(K, 'site')} hold half of the weight even if all weigh alike: no cap "
            "is low enough for any rule."
        )
    sent = Modelled(N, *_updates(N, counts), liars)
    alike, most = Fraction(liars, K), Fraction(heaviest(N, liars), total(N))
    end = min(most, Fraction(1, 2))
    inner = [c * STEP for c in range(ceil(alike / STEP), ceil(end / STEP)) if c * STEP > alike]
    caps = [alike, *inner, *([most] if alike < most < Fraction(1, 2) else [])]
    points = [Point(cap, _weighed(sent, _bound(N, liars, cap), TrimmedMean(float(cap)))) for cap in caps]
    reported = _weighed(sent, int(N.max()), Mean())
    return Frontier(liars, cost, tuple(points), reported, points[0].weighing)


def _bound(N: NDArray[np.int64], liars: int, cap: Fraction) -> int:
    if cap == Fraction(liars, len(N)):
        return int(N.min())
    return truncation_bound(N, liars / len(N), float(cap))


def _updates(N: NDArray[np.int64], counts: Sequence[Sequence[int]] | None) -> tuple[Matrix, Vector]:
    """Return the modelled updates (K, directions), and the target (directions,)."""
    held = N[:, None] if counts is None else np.asarray(counts, np.int64)
    if held.ndim != 2 or len(held) != len(N) or (held < 0).any() or (held.sum(1) != N).any():
        raise ValueError("counts must have a row for each site, of numbers from 0 that sum to its size.")
    rng = generator(0, "frontier")
    a = torch.randn(held.shape[1], DIRECTIONS, generator=rng, dtype=torch.float64)
    noise = torch.randn(len(N), DIRECTIONS, generator=rng, dtype=torch.float64)
    sent = torch.from_numpy(held / N[:, None]) @ a + NOISE * noise / torch.from_numpy(N).sqrt()[:, None]
    return sent, torch.from_numpy(held.sum(0) / N.sum()) @ a


def _weighed(sent: Modelled, bound: int, rule: TrimmedMean | Mean) -> Weighing:
    """Return what weights min(n, bound) cost with a rule, and what the worst site does."""
    N, rows, target, liars = sent
    kept = np.minimum(N, bound)
    weights = torch.from_numpy(kept.astype(np.float64))
    order = np.argsort(-N, kind="stable").tolist()
    lies = torch.stack([lie * target for lie in LIES]).reshape(1, -1)

    def error(updates: Matrix) -> float:
        """Return the largest error of some matrices, which are next to each other."""
        found = rule(updates, weights).reshape(-1, DIRECTIONS)
        return float((found - target).norm(dim=1).max() / target.norm())

    errors = {}
    for site in order[:TRIED]:
        updates = rows.repeat(1, len(LIES))
        updates[[site, *[other for other in order if other != site][: liars - 1]]] = lies
        errors[site] = error(updates)
    held = Fraction(heaviest(kept, liars), total(kept))
    return Weighing(rule, held, bound, tuple((kept / kept.sum()).tolist()), error(rows), errors)
