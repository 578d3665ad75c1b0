"""The filter of FLAME: the densest majority by cosine, clipped to the median norm, and noise.

Nguyen et al., "FLAME: Taming Backdoors in Federated Learning", 2022, Algorithm 1:

    admitted <- the cluster of at least m // 2 + 1 members that HDBSCAN finds by cosine distance
    S <- median of the norms of all updates
    result <- mean over the admitted of  u_i min(1, S / |u_i|),  plus normal noise of standard deviation noise S

Where the paper leaves room:

* Its pseudo-code takes cosines between models.  These are always nearly one, since all models share their starting
  point; here the cosines are between updates.
* S is the median over all updates, admitted or not.
* Implementations disagree on the case that HDBSCAN calls everything noise.  With these settings it cannot happen: see
  `clustering.density`.
"""

from dataclasses import dataclass, field

import torch
from typing_extensions import override

from phalanx.aggregators.aggregator import Choice, Selection
from phalanx.aggregators.median import Median
from phalanx.aggregators.points import Points
from phalanx.clustering.density import densest_majority
from phalanx.core import Tolerance, Vector
from phalanx.fields import UNIDENTIFIED, NonNegativeFloat
from phalanx.numerics.linalg import Square, squared_distances
from phalanx.rng import numpy_generator

PARALLEL = 1e-3  # 1 minus a cosine below which rounding of float32 products takes more than 1e-4 of it


@dataclass(frozen=True)
class DensestMajority(Selection):
    """The mean of the densest majority by direction: FLAME's filter without its clipping and noise.

    A weight acts like a number of copies.  Not equivariant to translation.  Norms are not looked at: one long update in
    the direction of the honest ones decides the result.  Cost: one product of the rows with themselves, O(m^2 d), and
    O(m^2) for the clusters.

    Args:
        clipped: whether rows are clipped to their median norm already, as by `FLAME` and `Catalyst`, which say so. By
            itself the rule tolerates no attacker.

    Examples:
        >>> DensestMajority()(torch.tensor([[4.0, 0.0], [2.0, 0.0], [0.0, 9.0]]))
        tensor([3., 0.])
    """

    clipped: bool = field(default=False, repr=False, metadata={UNIDENTIFIED: True})

    @override
    def tolerates(self, q: int) -> Tolerance:
        if self.clipped:
            return Tolerance.below_half(
                "length", "The densest majority has an honest update in it, and rows are clipped."
            )
        return Tolerance.none("The densest majority by direction bounds no lengths: one long update can decide it.")

    @override
    def choose(self, points: Points) -> Choice:
        admitted = list(densest_majority(angular_distances(points), points.weights))
        shares = torch.zeros(len(points), dtype=torch.float64)
        shares[admitted] = points.weights[admitted] / points.weights[admitted].sum()
        reasons = [f"outside the cosine cluster of {len(admitted)}"] * len(points)
        for row in admitted:
            reasons[row] = ""
        among = points.cosines.clone().fill_diagonal_(-1)[:, admitted].amax(1)
        return Choice(shares, among.tolist(), reasons)


@dataclass(frozen=True)
class FLAMEFilter(Selection):
    """The mean of the updates of the densest majority by direction, each clipped to the median norm of all updates.

    While attackers hold less than one half of the weight, the result is no longer than the longest honest update, and
    at least one honest update is admitted.  There is no bound beyond that: attackers with the direction of the honest
    updates are admitted with them.  Up to one half of the honest updates are filtered too, those at the edges first:
    clients whose data differ from the majority's have no influence.

    A weight acts like a number of copies.  Not equivariant to translation: directions and norms are from the origin.

    With noise, draws at random by the number of the call: `rule(deltas, turn=3)`.

    Cost: one product of the rows with themselves, O(m^2 d), which other rules on the same points share, and O(m^2) for
    the clusters.

    Args:
        noise: standard deviation of the noise on each coordinate, as a multiple of the median norm. 0 is no noise;
            public implementations use 0.001.
        seed: seed of the noise.

    Examples:
        >>> FLAMEFilter()(torch.tensor([[4.0, 0.0], [2.0, 0.0], [0.0, 9.0]]))
        tensor([3., 0.])
    """

    noise: NonNegativeFloat = 0.0
    seed: int = 0

    @override
    def tolerates(self, q: int) -> Tolerance:
        if self.noise:
            return Tolerance.below_half("selection", "The densest majority has an honest update in it.")
        why = "The densest majority has an honest update in it, and updates are clipped to the median norm."
        return Tolerance.below_half("length", why)

    @override
    def aggregate(self, points: Points) -> Vector:
        return self.apply(points)[0]

    @override
    def apply(self, points: Points) -> tuple[Vector, Choice]:
        choice = self.choose(points)
        vector = points.combine(choice.shares)
        if self.noise > 0:
            vector = disturbed(vector, self.noise * self._limit(points), self.seed, points.turn)
        return vector, choice

    @override
    def choose(self, points: Points) -> Choice:
        """See `Selection`; the noise is not included."""
        shares, among, reasons = DensestMajority().choose(points)
        limit, explained = self._limit(points), list(reasons or ())
        for row in shares.nonzero().flatten().tolist():
            norm = float(points.norms[row])
            shares[row] *= min(1.0, limit / norm) if norm > 0 else 1.0
            explained[row] = f"norm {norm:.3g} clipped to {limit:.3g}" if norm > limit else ""
        return Choice(shares, among, explained)

    def _limit(self, points: Points) -> float:
        """Return S, the median norm."""
        return float(Median()(points.norms[:, None], points.weights))


def angular_distances(points: Points) -> Square:
    """Return 1 minus the cosines of pairs of rows, where that is small to 1e-4 of itself.

    A cosine of float32 rows is right to about 1e-7, which is all that is left of 1 minus the cosine of two models that
    differ by 10^-3 of themselves.  So it is |a/|a| - b/|b||^2 / 2 where two rows are nearly parallel, in float64.
    """
    distances = (1 - points.cosines).clamp_min(0)
    close = distances < PARALLEL
    rows = (close.sum(1) > 1).nonzero().flatten()  # each is close to itself
    if len(rows) > 1:
        directions = points.in_units(points.matrix[rows.to(points.matrix.device)]).double()
        directions /= torch.linalg.vector_norm(directions, dim=1, keepdim=True).clamp_min(
            torch.finfo(torch.float64).tiny
        )
        exact = squared_distances(directions).cpu() / 2
        pairs = rows[:, None], rows[None, :]
        distances[pairs] = torch.where(close[pairs], exact, distances[pairs])
    return distances


def disturbed(vector: Vector, sigma: float, seed: int, turn: int) -> Vector:
    """Return the vector plus normal noise of standard deviation `sigma`; the same turn gives the same noise."""
    drawn = torch.from_numpy(numpy_generator(seed, "flame", turn).standard_normal(len(vector)))
    return vector + (sigma * drawn).to(vector.device, vector.dtype)
