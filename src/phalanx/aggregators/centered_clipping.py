"""Centered clipping: the mean of the rows, clipped to a radius around a centre.

Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", 2021, Algorithm 2:

    v  <-  v + sum over i of  w_i (u_i - v) min(1, tau / |u_i - v|)

starting from the previous aggregate, once or several times.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from numpy.typing import NDArray
from typing_extensions import override

from phalanx.aggregators.aggregator import Aggregator, Choice
from phalanx.aggregators.influence import Influence, spectral
from phalanx.aggregators.points import Points
from phalanx.core import Vector
from phalanx.fields import INFINITE, PositiveInt
from phalanx.numerics import influence_kernels as kernels
from phalanx.numerics.linalg import root

Numbers = NDArray[np.float64]
Rows = tuple[Numbers, Numbers, float, Numbers, Numbers, float]
PARTS = 16  # of a distance, over which a bound is integrated


@dataclass(frozen=True)
class CenteredClipping(Aggregator):
    """The mean of the rows, each clipped to a radius around the centre.

    In each iteration, an attacker with the share w of the weight moves the result by at most w times the radius,
    whatever it sends and however many attackers there are.  A radius below the spread of the honest rows slows
    learning.

    Starts from `previous`, the last aggregate, or from zero.  Equivariant to translations that also move the centre.
    Not equivariant to scaling, as the radius stays.

    Cost: one product of the matrix with itself, O(m^2 d), O(m^2) per iteration, and one pass for the result.

    Args:
        radius: tau, the largest distance from the centre that is not clipped, in the units of the rows.
        iterations: number of clipping steps; 1 in the paper, where the centre is the last round's result.

    Examples:
        >>> CenteredClipping(radius=1.0)(torch.tensor([[0.5], [0.5], [-9.0], [0.0]]))
        tensor([0.])
    """

    radius: Annotated[float, Meta(gt=0), INFINITE] = 10.0
    iterations: PositiveInt = 1

    @override
    def aggregate(self, points: Points) -> Vector:
        return self.apply(points)[0]

    @override
    def apply(self, points: Points) -> tuple[Vector, Choice]:
        return self._clipped(points, 0)[:2]

    @override
    def audit(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """See `Aggregator`.

        In each iteration a row adds its weight times a vector no longer than the radius.  Attackers replace theirs,
        whose sum is no longer than `influence_kernels.longest_sum`, by others no longer than the radius.  Steps to the
        rows that stay bring two centres together, see `_carried`.
        """
        vector, choice, reach = self._clipped(points, f)
        return vector, choice, Influence.bound(reach)

    def _clipped(self, points: Points, f: int) -> tuple[Vector, Choice, float]:
        """Return the result, the choice, and how far f attackers move the result at most."""
        centre, w = points.previous, points.share
        products, unit = (points.products, points.unit) if centre is None else points.products_about(centre)
        radius = self.radius / unit
        shares = torch.zeros_like(w)  # v = centre + sum of shares times (u - centre)
        far, factor, reach = w, w, 0.0
        for _ in range(self.iterations):
            inner = products @ shares
            far = root((products.diagonal() - 2 * inner + shares @ inner).clamp(min=0))
            factor = torch.where(far > radius, radius / far, 1.0)
            if f:
                rows = products.numpy(), inner.numpy(), float(shares @ inner), w.numpy(), far.numpy(), radius
                reach = _carried(rows, f, reach) + kernels.replaced(*rows, f)
            # v stays a combination of the rows and the centre, so an iteration needs only (m, m) products.
            shares = shares + w * factor - shares * (w * factor).sum()
        vector = points.combine(shares)
        if centre is not None:
            vector = vector + (1 - float(shares.sum())) * centre.to(vector)
        away = (far * unit).tolist()
        reasons = [f"distance {d:.3g} clipped to {self.radius:g}" if d > self.radius else "" for d in away]
        return vector, Choice(shares, away, reasons), reach * unit


def _carried(rows: Rows, f: int, reach: float) -> float:
    """Return how far apart steps to the rows that stay leave two centres, at most.

    The derivative of the step by the centre z is 1 - sum over i of w_i a_i (1 - e_i e_i^T), over the rows that stay.
    e_i is the direction from z to row i, r_i its distance, and a_i = radius / r_i if the row is clipped.  If it is not,
    a_i is 1 and the square is left out.

    At a distance t from the first centre, r_i is larger by t at most, and e_i differs by at most the chord of the angle
    arcsin(t / r_i).  So for every direction x the sum of w_i a_i (e_i x)^2 is at most the square of the sum of two
    roots: of the largest eigenvalue at the first centre, and of the sum of w_i a_i times squared chords.

    The bound on the derivative grows with t, and its integral over t up to `reach` is the result.

    Args:
        rows: what `influence_kernels.replaced` takes.
        f: number of attackers, who are any of the rows.
        reach: distance of the second centre from the first, at most.
    """
    if reach == 0.0:
        return 0.0
    *_, w, far, radius = rows
    strongest = spectral(kernels.pulled(*rows, reach))
    return float(kernels.carried(far, w, radius, f, reach, strongest, PARTS))
