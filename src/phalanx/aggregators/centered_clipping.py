"""Centered clipping: the mean of the rows, clipped to a radius around a centre.

Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", 2021, Algorithm 2:

    v  <-  v + sum over i of  w_i (u_i - v) min(1, tau / |u_i - v|)

starting from the previous aggregate, once or several times.
"""

from dataclasses import dataclass

import torch

from phalanx.aggregators.aggregator import Aggregator, Choice
from phalanx.aggregators.influence import Influence, largest
from phalanx.aggregators.points import Points
from phalanx.core import Vector
from phalanx.numerics.linalg import root


@dataclass(frozen=True)
class CenteredClipping(Aggregator):
    """The mean of the rows, each clipped to a radius around the centre.

    In each iteration, an attacker with the share w of the weight moves the result by at most w times the radius,
    whatever it sends and however many attackers there are.  A radius below the spread of the honest rows slows
    learning.

    Starts from `previous`, the last aggregate, or from zero.  Equivariant to translations that also move the centre.

    Cost: one product of the matrix with itself, O(m^2 d), O(m^2) per iteration, and one pass for the result.

    Args:
        radius: tau, the largest distance from the centre that is not clipped, in the units of the rows.
        iterations: number of clipping steps; 1 in the paper, where the centre is the last round's result.

    Example:
        >>> CenteredClipping(radius=1.0)(torch.tensor([[0.5], [0.5], [-9.0], [0.0]]))
        tensor([0.])
    """

    radius: float = 10.0
    iterations: int = 1

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise ValueError(f"radius must be positive, got {self.radius}.")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}.")

    def aggregate(self, points: Points) -> Vector:
        """See `Aggregator`."""
        return self.apply(points)[0]

    def apply(self, points: Points) -> tuple[Vector, Choice]:
        """See `Aggregator`."""
        return self._clipped(points, 0)[:2]

    def audit(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """See `Aggregator`.

        In each iteration a row adds its weight times a vector no longer than the radius; a liar replaces it by another
        one.  The step to a row brings two centres no farther apart, and to the same place if it is not clipped.
        """
        vector, choice, reach = self._clipped(points, f)
        return vector, choice, Influence.bound(reach)

    def _clipped(self, points: Points, f: int) -> tuple[Vector, Choice, float]:
        """Return the result, the choice, and how far f liars move the result at most."""
        centre, w = points.previous, points.share
        products = points.products if centre is None else points.products_about(centre)
        shares = torch.zeros_like(w)  # v = centre + sum of shares times (u - centre)
        far, factor, reach, held = w, w, 0.0, largest(w, f)
        for _ in range(self.iterations):
            inner = products @ shares
            far = root((products.diagonal() - 2 * inner + shares @ inner).clamp(min=0))
            factor = torch.where(far > self.radius, self.radius / far, 1.0)
            carried = min(1.0, held + float(w[far + reach > self.radius].sum()))
            reach = carried * reach + largest(w * (self.radius + far.clamp(max=self.radius)), f)
            # v stays a combination of the rows and the centre, so an iteration needs only (m, m) products.
            shares = shares + w * factor - shares * (w * factor).sum()
        vector = points.combine(shares)
        if centre is not None:
            vector = vector + (1 - float(shares.sum())) * centre.to(vector)
        reasons = [f"distance {d:.3g} clipped to {self.radius:g}" if d > self.radius else "" for d in far.tolist()]
        return vector, Choice(shares, far.tolist(), reasons), reach
