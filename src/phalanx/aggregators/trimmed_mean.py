"""The coordinate-wise weighted trimmed mean.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018, Definition 2, for equal
weights; Portnoy et al., "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020, with weights.

Convention: a share beta of the total *weight* is removed at each end of each coordinate.  An entry on the boundary
keeps the part of its weight that lies inside.  So integer weights give the same result as copies of the rows, and for
equal weights and an integer beta m this is the textbook rule that drops beta m entries at each end.  For other beta m
the textbook rounds, and this rule does not.

`form="strict"` is the rule in the program of Portnoy et al., for comparison with their figures: the mean of the entries
strictly between the interpolated quantiles beta and 1 - beta.  Equal entries are put in increasing order of weight, so
that the order of clients does not matter, which it can in the program.  The form has no proof.  Entries that equal a
quantile are dropped, whatever their weight, so attackers who all send one number remove themselves; with a little noise
on that number they stay.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from phalanx.aggregators.aggregator import Aggregator
from phalanx.aggregators.columns import ROUNDING, by_column, counted, equal, has_kernel, of_columns, sort_with_weights
from phalanx.aggregators.points import Points
from phalanx.core import Vector, Weights
from phalanx.numerics import column_kernels as kernels
from phalanx.numerics.network import sorting_network


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The coordinate-wise mean after a share beta of the weight is removed at each end.

    Stays inside the range of the honest entries of each coordinate while the attackers hold at most the share beta of
    the weight.

    Args:
        beta: share of the weight to remove at each end, in [0, 0.5). 0 is the mean.
        form: "weight" removes weight, as described; "strict" keeps the entries strictly between two quantiles, as
            in the program of Portnoy et al.

    Example:
        >>> TrimmedMean(beta=0.25)(torch.tensor([[-100.0], [1.0], [3.0], [100.0]]))
        tensor([2.])
    """

    beta: float = 0.1
    form: Literal["weight", "strict"] = "weight"

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 0.5:
            raise ValueError(
                f"beta must lie in [0, 0.5), got {self.beta}: beyond that, nothing is left between the two ends."
            )

    def breakdown_point(self) -> float:
        """See `Aggregator`; nothing is proven for the form "strict"."""
        return self.beta if self.form == "weight" else 0.0

    def aggregate(self, points: Points) -> Vector:
        """See `Aggregator`."""
        weights, m = points.weights, len(points)
        if not has_kernel(points.base):
            return by_column(points.matrix, lambda block: self._by_torch(block, weights))
        if self.form == "strict":
            ends = self.beta, 1 - self.beta
            return of_columns(points, kernels.mean_between, sorting_network(m), counted(weights), equal(weights), *ends)
        if equal(weights):
            shares = self._shares_of_ranks(m)
            # Ranks with the full share are only summed, so the network need not sort them among each other.
            inner = np.flatnonzero(shares)
            whole = frozenset(np.flatnonzero(shares == shares.max()).tolist())
            network = sorting_network(m, frozenset(inner.tolist()) - whole, whole)
            return of_columns(points, kernels.combine_ranks, network, shares)
        total = points.mass
        low, high = self.beta * total, (1 - self.beta) * total
        return of_columns(
            points, kernels.trimmed_mean, sorting_network(m), counted(weights), low, high, ROUNDING * total
        )

    def _shares_of_ranks(self, m: int) -> NDArray[np.float64]:
        """Return the share of each rank in the mean, for m equal weights."""
        reached = np.arange(m + 1).clip(self.beta * m, (1 - self.beta) * m)
        kept = np.diff(reached)
        kept[kept <= ROUNDING * m] = 0
        kept[kept >= 1 - ROUNDING * m] = 1
        return kept / ((1 - 2 * self.beta) * m)

    def _by_torch(self, rows: Float[Tensor, "b m"], weights: Weights) -> Float[Tensor, "b"]:
        return self._strict(rows, weights) if self.form == "strict" else self._trimmed(rows, weights)

    def _trimmed(self, rows: Float[Tensor, "b m"], weights: Weights) -> Float[Tensor, "b"]:
        values, reached = sort_with_weights(rows, weights)
        low, high = self.beta * weights.sum(), (1 - self.beta) * weights.sum()
        inside = reached.clamp(low, high)
        kept = inside.diff(dim=1, prepend=torch.full_like(inside[:, :1], float(low)))
        # A weight that is only a rounding error must be 0, since it may multiply a huge entry.
        shares = (kept / (high - low)).where(kept > ROUNDING * weights.sum(), 0.0)
        return (values.double() * shares).sum(1)

    def _strict(self, rows: Float[Tensor, "b m"], weights: Weights) -> Float[Tensor, "b"]:
        """Return the mean strictly between two quantiles of each row, or their mid-point if no entry lies between."""
        light_first = weights.argsort(stable=True)
        values, reached = sort_with_weights(rows.double()[:, light_first.to(rows.device)], weights[light_first])
        own = reached.diff(dim=1, prepend=torch.zeros_like(reached[:, :1]))
        m, total = values.shape[1], weights.sum()
        if equal(weights):  # the quantile in [0, 1] that each entry is
            place = (torch.arange(m, dtype=torch.float64) / max(m - 1, 1)).expand_as(reached).to(reached.device)
        else:
            place = (reached - own / 2) / total
        low, high = (_interpolated(values, place, q) for q in (self.beta, 1 - self.beta))
        kept = own.where((values > low[:, None]) & (values < high[:, None]), 0.0)
        mass = kept.sum(1)
        return ((kept * values).sum(1) / mass).where(mass > 0, (low + high) / 2)


def _interpolated(values: Float[Tensor, "b m"], place: Float[Tensor, "b m"], q: float) -> Float[Tensor, "b"]:
    """Return the q-quantile of each row by linear interpolation; beyond the ends, the first or last entry."""
    right = (place < q - kernels.SAME).sum(1, keepdim=True).clamp(max=values.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    (x0, x1), (y0, y1) = ((table.gather(1, left), table.gather(1, right)) for table in (place, values))
    part = ((q - x0) / (x1 - x0).where(x1 > x0, 1.0)).clamp(0, 1)
    return y1.where(x1 <= q + kernels.SAME, y0 + (y1 - y0) * part)[:, 0]
