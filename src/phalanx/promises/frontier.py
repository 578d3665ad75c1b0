"""The frontier of a consortium: caps on the weight of few sites, what each costs, and the worst that a site can do.

Ours.  Truncation (Portnoy, Tirosh and Hendler 2020) caps the share of the weight that f sites may hold.  A low cap
loses accuracy, since large sites count for less; near one half, a robust rule has little left that is surely honest.

Without training, both are computed on a model of updates by MediSwarm (KatherLab, docs/ADVERSARIAL_ROBUSTNESS.md): in
each of many random directions, site i sends a . p_i + N(0, 9 / n_i), where n_i is its size, p_i its class proportions
and a a Gaussian vector that all sites share.  The target is a . p for all examples together, without noise.

The worst that given liars can do is exact.  An entry of a trimmed mean does not fall as an update grows, so it is
farthest from the target if all liars send numbers beyond those of all others, either above or below.  A mean has no
worst: its error grows with the lie.

A small clean error is no sign that a cap helps: near one half it is smallest, and the worst error largest.  Both count,
in the unit that training has.  For an L-smooth loss with gradient g, a step h / L in place of g / L lowers the loss by
at least (|g|^2 - |h - g|^2) / 2L (descent lemma), so an error e leaves the part 1 - e^2 of what is sure without any.
A cap is useful if a lie leaves half of what the cap itself leaves: 1 - worst^2 >= (1 - clean^2) / 2.

Liars may report false sizes, too, and the largest are the worst: they leave every honest site its smallest share, and
what these lose goes to the liars, beyond all others.  The proof: let f liars keep L, the f heaviest sites T, and all
sites W = H(U) + L, where H(U) = sum of min(n, U) over the honest.  Truncation keeps T <= c W for the cap c, and T = c W
if it truncates any.  Without limit to what is reported, f U' = c (H(U') + f U') = c W'.  An honest site that is
truncated has a share of U / W >= c / f, which no share exceeds in the second case.  Another has n / W, and W <= W':
if not, V = c W / f > U' would have f V > c (H(V) + f V), so that H(U) + L > H(V) + f V, and the honest would keep more
above V than the liars lack of f V.  Then the f heaviest keep more than f V = c W, which truncation does not allow.
This is of U* before it is rounded down to a whole number, which changes a share by about one part in U*.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, islice
from math import ceil, comb, inf
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from phalanx.aggregators import Mean, TrimmedMean
from phalanx.core import InfeasibleError, Matrix, Rule, Vector
from phalanx.rng import generator
from phalanx.weighting import truncation_bound
from phalanx.weighting.truncation import Sorted, check_sizes, heaviest, total
from phalanx.wording import plural

DIRECTIONS = 512
NOISE = 3.0  # standard deviation of the update of one example; classes differ by one
MOST = 300  # sites; more take over ten seconds
TRIED = 10_000  # rows in all the sets of liars that are tried for a cap; more take over ten seconds
LARGEST = 10**15  # size; sums of 300 have less than 64 bits
FINE = 10**9  # parts of an example, to which a bound of false sizes is exact
STEP = Fraction(1, 100)  # between caps
HALF = 0.5  # of the descent that a step guarantees: what a useful cap leaves under a lie


class WeighingCost(NamedTuple):
    """What one choice of weights costs, and what the worst site can do.

    Errors are relative: the distance of the result from the target, over the length of the target.
    """

    rule: Rule
    share: Fraction  # the largest share of the weight that the liars can hold
    bound: int  # U*, the largest size that counts in full
    shares: tuple[float, ...]  # of the weight, of each site
    clean: float  # error while all are honest
    errors: dict[int, float]  # largest error by site, of the sets of liars that were tried with it; infinite by a mean
    errors_with_own_sizes: dict[int, float]  # and if these report the sizes that they have
    liars: tuple[int, ...]  # of the sets that were tried, the one with the largest error
    tried: int  # number of these sets
    exact: bool  # whether they are all: if not, other liars may do more

    @property
    def worst(self) -> float:
        """The largest error of the sets of liars that were tried, whatever sizes they report: of all, if `exact`."""
        return max(self.errors.values())

    @property
    def left(self) -> float:
        """The part of a clean step's guaranteed descent that the worst lie leaves; at most 0 if it leaves none."""
        return (1 - self.worst**2) / (1 - self.clean**2) if self.clean < 1 else -inf


class Modelled(NamedTuple):
    """The updates that a consortium would send."""

    sizes: NDArray[np.int64]
    rows: Matrix  # (sites, directions)
    target: Vector  # (directions,)
    liars: int


class Point(NamedTuple):
    """A cap, and what it does."""

    cap: Fraction
    weighing: WeighingCost


class Frontier(NamedTuple):
    """All caps of a consortium."""

    liars: int
    cost: float  # largest clean error that is useful
    points: tuple[Point, ...]  # by increasing cap: the first weighs all alike
    reported: WeighingCost  # by the mean, which is what truncation replaces
    uniform: WeighingCost

    @property
    def useful(self) -> tuple[Point, ...]:
        """The points that cost no more than `cost` and leave half of the descent if the worst site lies; maybe none."""
        return tuple(point for point in self.affordable if point.weighing.left >= HALF)

    @property
    def best(self) -> Point | None:
        """The useful point with the smallest clean error; None if no cap is useful."""
        return min(self.useful, key=lambda point: point.weighing.clean, default=None)

    @property
    def affordable(self) -> tuple[Point, ...]:
        """The points that cost no more than `cost`."""
        return tuple(point for point in self.points if point.weighing.clean <= self.cost)

    @property
    def nearest(self) -> Point:
        """The best point; if there is none, of what is affordable the one that leaves most, or else the cheapest."""
        return self.best or max(self.affordable, key=lambda point: point.weighing.left, default=self.cheapest)

    @property
    def cheapest(self) -> Point:
        """The point with the smallest clean error."""
        return min(self.points, key=lambda point: point.weighing.clean)


def frontier(
    sizes: Sequence[int], counts: Sequence[Sequence[int]] | None = None, *, liars: int = 1, cost: float = 0.5
) -> Frontier:
    """Return what each cap on the weight of few sites costs, and what the worst sites can do.

    The rule is `TrimmedMean(beta)` with the cap for beta, the least that tolerates it.  Every set of liars is tried if
    these are few; otherwise the heaviest sites, each with the heaviest others.

    Args:
        sizes: the size of each site, from 1 to 10^15. A liar may report another.
        counts: the number of examples of each class, by site; each row sums to the site's size. None: all sites are
            taken to hold the same mix, and only noise costs anything.
        liars: number of sites that may lie at once.
        cost: largest clean error that is useful, above 0. The default leaves three quarters of the descent.

    Raises:
        ValueError: an argument is not as described, or there are more than 300 sites.
        InfeasibleError: so many sites hold half of the weight even if all weigh alike.

    Example:
        >>> found = frontier([900, 300, 200, 100, 100], [[800, 100], [100, 200], [150, 50], [90, 10], [50, 50]])
        >>> float(found.points[0].cap), len(found.points)
        (0.2, 30)
    """
    check_sizes(dict(enumerate(sizes)))
    if max(sizes) > LARGEST:
        raise ValueError(f"sizes must be at most {LARGEST:,}, got {max(sizes):,}.")
    N, K = np.asarray(sizes, np.int64), len(sizes)
    if K > MOST:
        raise ValueError(f"A frontier is of at most {MOST} sites, got {K:,}. For more, see the curve of U* over alpha.")
    if K < 2:
        raise ValueError(f"A frontier is of at least two sites, got {K}: nobody outvotes a single one.")
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
    points = [Point(cap, _weighed(sent, _bound(N, liars, cap), TrimmedMean(float(cap)), cap)) for cap in caps]
    reported = _weighed(sent, int(N.max()), Mean())
    return Frontier(liars, cost, tuple(points), reported, points[0].weighing)


def _bound(N: NDArray[np.int64], liars: int, cap: Fraction) -> int:
    if cap == Fraction(liars, len(N)):
        return int(N.min())
    return truncation_bound(N, liars / len(N), float(cap))


def _updates(N: NDArray[np.int64], counts: Sequence[Sequence[int]] | None) -> tuple[Matrix, Vector]:
    """Return the modelled updates (K, directions), and the target (directions,)."""
    rows: Sequence[Sequence[int]] = N[:, None].tolist() if counts is None else counts
    fit = len(rows) == len(N) and len({*map(len, rows)}) == 1
    whole = fit and all(0 <= n <= LARGEST and n == int(n) for row in rows for n in row)
    if not whole or any(sum(row) != size for row, size in zip(rows, N.tolist(), strict=True)):
        raise ValueError("counts must have a row for each site, of whole numbers from 0 that sum to its size.")
    held = np.asarray(rows, np.int64)
    rng = generator(0, "frontier")
    a = torch.randn(held.shape[1], DIRECTIONS, generator=rng, dtype=torch.float64)
    noise = torch.randn(len(N), DIRECTIONS, generator=rng, dtype=torch.float64)
    sent = torch.from_numpy(held / N[:, None]) @ a + NOISE * noise / torch.from_numpy(N).sqrt()[:, None]
    return sent, torch.from_numpy(held.sum(0) / N.sum()) @ a


def _weighed(sent: Modelled, bound: int, rule: TrimmedMean | Mean, cap: Fraction | None = None) -> WeighingCost:
    """Return what weights min(n, bound) cost with a rule, and what the worst sites do; all is tolerated up to a cap."""
    N, rows, target, liars = sent
    kept = np.minimum(N, bound)

    def error(updates: Matrix, weights: NDArray[Any]) -> float:
        """Return the largest error of some matrices, which are next to each other, if each entry may be of any."""
        found = rule(updates, torch.from_numpy(weights.astype(np.float64))).reshape(-1, DIRECTIONS)
        return float((found - target).abs().amax(0).norm() / target.norm())

    beyond = torch.cat([rows.amax(0) + 1, rows.amin(0) - 1])
    sets, exact = _sets(N, liars)
    errors, own = dict[int, float](), dict[int, float]()
    most, worst = -inf, sets[0]
    for each in sets:
        updates = rows.repeat(1, 2)
        updates[list(each)] = beyond
        does = inf if cap is None else error(updates, kept)
        own |= {site: max(does, own.get(site, 0.0)) for site in each}
        does = inf if cap is None else max(does, error(updates, _falsely_weighed(N, each, cap)))
        errors |= {site: max(does, errors.get(site, 0.0)) for site in each}
        if does > most:
            most, worst = does, each
    held = Fraction(heaviest(kept, liars), total(kept))
    shares = tuple((kept / kept.sum()).tolist())
    return WeighingCost(rule, held, bound, shares, error(rows, kept), errors, own, worst, len(sets), exact)


def _falsely_weighed(N: NDArray[np.int64], liars: tuple[int, ...], cap: Fraction) -> NDArray[np.float64]:
    """Return the weights at a cap if liars report the worst sizes, those that are without limit."""
    if cap == Fraction(len(liars), len(N)):
        return np.ones(len(N))
    reported = {site: FINE * n for site, n in enumerate(N.tolist())} | dict.fromkeys(liars, FINE * 2 * total(N))
    bound = Sorted(reported).bound(len(liars), cap)
    return np.array([min(size, bound) / FINE for size in reported.values()])


def _sets(N: NDArray[np.int64], liars: int) -> tuple[list[tuple[int, ...]], bool]:
    """Return the sets of liars to try, and whether they are all."""
    order = np.argsort(-N, kind="stable").tolist()
    if comb(len(N), liars) * len(N) <= TRIED:
        return [*combinations(order, liars)], True
    sets = ((site, *islice((other for other in order if other != site), liars - 1)) for site in order)
    return [*islice(sets, max(1, TRIED // len(N)))], False
