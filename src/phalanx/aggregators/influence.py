"""The influence of liars on one aggregation: how far any f of the rows could have moved the result.

The question is always the same: f of the received rows are replaced by anything, the rest of them and all weights stay.
Which f, and by what, is up to the liars.  Influence is the largest Euclidean norm of the change of the result.

Attackers who took part are among the rows that stay.  So influence is what f further liars could do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from phalanx.aggregators.points import Points
from phalanx.core import Weights
from phalanx.numerics.linalg import Square

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


def spectral(products: Square) -> float:
    """Return the largest eigenvalue of a matrix of inner products, at least 0."""
    return max(float(torch.linalg.eigvalsh(products)[-1]), 0.0)


def about_mean(points: Points, shares: Weights) -> Square:
    """Return the inner products of the rows minus their mean by `shares`, which sum to one."""
    squares = points.squared_distances
    far = squares @ shares
    return (far[:, None] + far - squares - shares @ far) / 2


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
    products: Square
    kept: float

    def influence(self, f: int, farthest: float, possible: Bool[Tensor, "m"]) -> Influence:
        """Return how far the mean can move if other rows are chosen, liars among them.

        Args:
            f: number of liars.
            farthest: largest distance from the mean of a liar that is chosen.
            possible: (m,), whether a row may be chosen.
        """
        held, left_out = min(largest(self.share, f), self.kept) / self.kept, 1 / self.kept - 1
        far, most = self.products.diagonal().clamp(min=0).sqrt(), self.share / self.kept
        # Rows that leave the mean, and rows that come: none by more than its share of what is chosen.
        gone = largest_sum(far, torch.minimum(self.shares, most), held + left_out)
        new = largest_sum(far, torch.where(possible, most - self.shares, 0.0), left_out)
        parts = min(held + left_out, 1.0) + left_out
        together = (parts * float(most.max()) * spectral(self.products)) ** 0.5
        return Influence.bound(held * farthest + min(gone + new, together))


def largest_sum(far: Weights, most: Weights, mass: float) -> float:
    """Return the largest sum of parts times distances, where no part is above its `most`, and all sum to `mass`."""
    order = far.argsort(descending=True)
    own = most[order].clamp(min=0)
    taken = (own - (own.cumsum(0) - mass).clamp(min=0)).clamp(min=0)
    return float(taken @ far[order])
