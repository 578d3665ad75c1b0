"""The influence of attackers on one aggregation: how far any f of the rows could have moved the result.

The question is always the same: f of the received rows are replaced by anything, the rest of them and all weights stay.
Which f, and by what, is up to the attackers.  Influence is the largest Euclidean norm of the change of the result.

Attackers who took part are among the rows that stay.  So influence is what f further attackers could do.
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
from phalanx.numerics import influence_kernels as kernels

Numbers = NDArray[np.float64]
SQUARINGS = 4  # of a matrix, for its 16th power
Kind = Literal["exact", "bound", "unbounded", "unknown"]
Spread = Literal[  # what an attacker's row does to the rows that a pre-aggregator makes
    "one",  # it changes one of them, to anything
    "clipped",  # it changes one of them, to anything that is not too long
    "all",  # it may change all
]


@dataclass(frozen=True, slots=True)
class Influence:
    """The largest change of a rule's result that f attackers could have caused.

    `value` is in the units of the rows, and None if nothing is known.  `kind` says what it is: "exact"; a "bound",
    which no attackers exceed; "unbounded", infinite; or "unknown".
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
class InfluenceLog:
    """The findings of `audited`: the influence of each aggregation.

    Args:
        f: number of attackers.
        found: receives the influences, in the order of the calls.
    """

    f: int
    found: list[Influence] = field(default_factory=list)


_AUDIT: ContextVar[InfluenceLog | None] = ContextVar("phalanx_influence", default=None)


@contextmanager
def audited(f: int | None) -> Iterator[list[Influence]]:
    """Measure the influence of f attackers on each aggregation in this context; None measures nothing.

    The aggregation itself stays the same to the bit.  Rules that a rule calls are not measured.

    Examples:
        >>> from phalanx.aggregators import Median
        >>> with audited(1) as found:
        ...     Median()(torch.tensor([[0.0], [1.0], [3.0]]))
        tensor([1.])
        >>> found
        [Influence(value=2.0, kind='exact', length=1.0)]
    """
    audit = None if f is None else InfluenceLog(f)
    token = _AUDIT.set(audit)
    try:
        yield audit.found if audit else []
    finally:
        _AUDIT.reset(token)


def current_audit() -> InfluenceLog | None:
    """Return the audit of this context, None if nothing is measured."""
    return _AUDIT.get()


def largest(values: Weights, f: int) -> float:
    """Return the sum of the f largest values."""
    return float(kernels.largest(values.numpy(), f))


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
        kept: share of the weight that is chosen.
    """

    share: Weights
    shares: Weights
    products: Numbers
    kept: float

    def influence(self, f: int, farthest: float, possible: NDArray[np.bool_]) -> Influence:
        """Return how far the mean can move if other rows are chosen, attackers among them.

        Args:
            f: number of attackers.
            farthest: largest distance from the mean of an attacker that is chosen.
            possible: (m,), whether a row may be chosen.
        """
        share, shares = self.share.numpy(), self.shares.numpy()
        apart, held, farthest = kernels.exchanged(self.products, share, shares, possible, self.kept, f, farthest)
        # Rows that leave and come are rows times coefficients that sum to at most h + 2 b, and to at most 1 - h, none
        # of them above the largest share; see `exchanged`.  Where h and b are largest, or where the second is.
        free = possible | (shares > 0)
        power = float(share.max()) / self.kept * spectral(self.products if free.all() else self.products[free][:, free])
        few = held * farthest + math.sqrt(power * (held + 2 * (1 / self.kept - 1)))
        h = min(max(1 - power / (4 * farthest**2), 0.0), held) if farthest > 0 else held
        return Influence.bound(min(apart, few, h * farthest + math.sqrt(power * (1 - h))))
