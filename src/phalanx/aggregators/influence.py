"""The influence of liars on one aggregation: how far any f of the rows could have moved the result.

The question is always the same: f of the received rows are replaced by anything, the rest of them and all weights stay.
Which f, and by what, is up to the liars.  Influence is the largest Euclidean norm of the change of the result.

Attackers who took part are among the rows that stay.  So influence is what f further liars could do.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.aggregators.points import Points
from phalanx.core import Weights

Numbers = NDArray[np.float64]
SQUARINGS = 4  # of a matrix, for its 16th power
Kind = Literal["exact", "bound", "unbounded", "unknown"]
Spread = Literal[  # what a liar's row does to the rows that a pre-aggregator makes
    "one",  # it changes one of them, to anything
    "clipped",  # it changes one of them, to anything that is not too long
    "all",  # it may change all
]


@dataclass(frozen=True, slots=True)
class Influence:
    """The largest change of a rule's result that f liars could have caused.

    `value` is in the units of the rows, and None if nothing is known.  `kind` says what it is: "exact"; a "bound",
    which no liars exceed; "unbounded", infinite; or "unknown".
    """

    value: float | None
    kind: Kind
    length: float | None = None  # Euclidean norm of the result that the rule returned

    @staticmethod
    def bound(value: float) -> "Influence":
        """Return an influence of at most `value`."""
        return Influence(value, "bound") if value < inf else UNBOUNDED

    def times(self, unit: float) -> "Influence":
        """Return the influence on rows that are measured in multiples of `unit`."""
        return self if self.value is None else replace(self, value=self.value * unit)


UNKNOWN = Influence(None, "unknown")
UNBOUNDED = Influence(inf, "unbounded")
NOTHING = Influence(0.0, "exact")


@dataclass(frozen=True)
class Audit:
    """The findings of `audited`: the influence of each aggregation.

    Args:
        f: number of liars.
        found: receives the influences, in the order of the calls.
    """

    f: int
    found: list[Influence] = field(default_factory=list)


_AUDIT: ContextVar[Audit | None] = ContextVar("phalanx_influence", default=None)


@contextmanager
def audited(f: int | None) -> Iterator[list[Influence]]:
    """Measure the influence of f liars on each aggregation in this context; None measures nothing.

    The aggregation itself stays the same to the bit.  Rules that a rule calls are not measured.

    Example:
        >>> from phalanx.aggregators import Median
        >>> with audited(1) as found:
        ...     Median()(torch.tensor([[0.0], [1.0], [3.0]]))
        tensor([1.])
        >>> found
        [Influence(value=2.0, kind='exact', length=1.0)]
    """
    audit = None if f is None else Audit(f)
    token = _AUDIT.set(audit)
    try:
        yield audit.found if audit else []
    finally:
        _AUDIT.reset(token)


def current_audit() -> Audit | None:
    """Return the audit of this context, None if nothing is measured."""
    return _AUDIT.get()


def largest(values: Weights, f: int) -> float:
    """Return the sum of the f largest values."""
    return float(values.topk(min(f, len(values))).values.sum())


def longest_sum(products: Numbers, f: int) -> float:
    """Return a bound on the length of the sum of any f of some vectors.

    The square of the length is the sum over pairs of their inner products.  For each of the f, those with the others
    sum to at most the f - 1 largest; and f of these sums are at most the f largest.

    Args:
        products: (m, m), inner products of the vectors.
        f: number of vectors, at least 1.
    """
    m, own = len(products), products.diagonal()
    others = np.array(products)
    np.fill_diagonal(others, -np.inf)
    rows = own + np.partition(others, m - f, axis=1)[:, m - f + 1 :].sum(1) if 1 < f < m else own
    if f >= m:
        return float(np.sqrt(max(products.sum(), 0.0)))
    return float(np.sqrt(max(np.partition(rows, m - f)[m - f :].sum(), 0.0)))


def spectral(products: Numbers) -> float:
    """Return a bound on the largest eigenvalue of an (m, m) matrix of inner products, at most m^(1/32) times of it.

    No eigenvalue is negative, so the largest is at most the 32nd root of the sum of their 32nd powers.  This takes half
    of the time of the eigenvalues.
    """
    trace = float(products.trace())
    if not trace > 0:
        return 0.0
    power = products / trace
    for _ in range(SQUARINGS):
        power = power @ power
    squares = float(np.vdot(power, power))
    return trace * math.pow(squares, 0.5 / 2**SQUARINGS)


def about_mean(points: Points, shares: Weights) -> Numbers:
    """Return the inner products of the rows minus their mean by `shares`, which sum to one, in units of the points."""
    squares, own = points.squared_distances.numpy(), shares.numpy()
    far: Numbers = squares @ own
    products: Numbers = (far[:, None] + (far - own @ far) - squares) / 2
    return products


@dataclass(frozen=True, eq=False)
class Chosen:
    """Rows whose mean is a result.

    Args:
        share: (m,), of each row in the weight.
        shares: (m,), of each row in the mean.
        products: (m, m), inner products of the rows minus the mean.
        strongest: bound on the largest eigenvalue of `products`.
        kept: share of the weight that is chosen.
    """

    share: Weights
    shares: Weights
    products: Numbers
    strongest: float
    kept: float

    def influence(self, f: int, farthest: float, possible: NDArray[np.bool_]) -> Influence:
        """Return how far the mean can move if other rows are chosen, liars among them.

        Args:
            f: number of liars.
            farthest: largest distance from the mean of a liar that is chosen.
            possible: (m,), whether a row may be chosen.
        """
        held, left_out = min(largest(self.share, f), self.kept) / self.kept, 1 / self.kept - 1
        far, most = np.sqrt(self.products.diagonal().clip(0)), self.share.numpy() / self.kept
        shares = self.shares.numpy()
        # Rows that leave the mean, and rows that come: none by more than its share of what is chosen.  Seen from the
        # mean, what leaves sums to minus what stays, so that one half is the worst case.
        order = (-far).argsort()
        gone = _largest_sum(far[order], np.minimum(shares, most)[order], min(held + left_out, 0.5))
        new = _largest_sum(far[order], np.where(possible, most - shares, 0.0)[order], left_out)
        parts = min(held + left_out, 0.5) + left_out
        together = (parts * float(most.max()) * self.strongest) ** 0.5
        return Influence.bound(held * farthest + min(gone + new, together))


def _largest_sum(far: Numbers, most: Numbers, mass: float) -> float:
    """Return the largest sum of parts times decreasing distances, with no part above its `most`, and all of `mass`."""
    own = most.clip(0)
    return float((own - (own.cumsum() - mass).clip(0)).clip(0) @ far)
