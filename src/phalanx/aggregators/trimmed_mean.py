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
from functools import lru_cache, partial
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float
from msgspec import Meta
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators.aggregator import Aggregator, Choice
from phalanx.aggregators.columns import (
    ROUNDING,
    by_column,
    counted,
    entrywise,
    equal,
    has_kernel,
    of_columns,
    shifted_by_column,
    shifted_columns,
    shifted_ranks,
    sort_with_weights,
)
from phalanx.aggregators.influence import UNBOUNDED, UNKNOWN, Influence, largest
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance, Vector, Weights
from phalanx.numerics import column_kernels as kernels
from phalanx.numerics.sorting_network import Network, sorting_network
from phalanx.weighting.truncation import exact


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The coordinate-wise mean after a share beta of the weight is removed at each end.

    Stays inside the range of the honest entries of each coordinate while the attackers hold at most the share beta of
    the weight.

    Args:
        beta: share of the weight to remove at each end, in [0, 0.5). 0 is the mean.
        form: "weight" removes weight, as described; "strict" keeps the entries strictly between two quantiles, as
            in the program of Portnoy et al.

    Examples:
        >>> TrimmedMean(beta=0.25)(torch.tensor([[-100.0], [1.0], [3.0], [100.0]]))
        tensor([2.])
    """

    beta: Annotated[float, Meta(ge=0, lt=0.5, description="beyond that, nothing is left between the two ends")] = 0.1
    form: Literal["weight", "strict"] = "weight"

    @override
    def tolerates(self, q: int) -> Tolerance:
        if self.form == "strict":
            return Tolerance.none('Nothing is proven for the form "strict".')
        why = f"A trimmed mean drops {self.beta:g} of the weight at each end."
        return Tolerance(exact(self.beta), "range", why) if self.beta else Tolerance.none(f"{why} It is the mean.")

    @override
    def aggregate(self, points: Points) -> Vector:
        weights, m = points.weights, len(points)
        if not has_kernel(points.base):
            return by_column(points.matrix, lambda block: self._by_torch(block, weights))
        if self.form == "strict":
            ends = self.beta, 1 - self.beta
            return of_columns(points, kernels.mean_between, sorting_network(m), counted(weights), equal(weights), *ends)
        if equal(weights):
            shares = _shares_of_ranks(self.beta, m)
            return of_columns(points, kernels.combine_ranks, _network(shares), shares)
        total = points.mass
        low, high = self.beta * total, (1 - self.beta) * total
        return of_columns(
            points, kernels.trimmed_mean, sorting_network(m), counted(weights), low, high, ROUNDING * total
        )

    @override
    def audit(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """See `Aggregator`.  Attackers move both ends by their weight, up or down."""
        held = largest(points.weights, f)
        if self.form == "strict" or held > points.mass * (self.beta + ROUNDING):
            return self.aggregate(points), None, UNKNOWN if self.form == "strict" else UNBOUNDED
        vector, reach = self._shifted(points, f, held)
        return vector, None, entrywise(points, reach)

    def _shifted(self, points: Points, f: int, held: float) -> tuple[Vector, float]:
        """Return the result, and how far it moves in all columns if attackers of weight `held` shift both ends."""
        weights, m, total = points.weights, len(points), points.mass
        if not has_kernel(points.base):
            return shifted_by_column(points.matrix, partial(self._trimmed, weights=weights), held)
        if equal(weights):
            return shifted_columns(points, kernels.combine_shifted_ranks, *_shifted(self.beta, m, f))
        ends = np.array([self.beta * total, (1 - self.beta) * total])
        bounds = np.stack([ends, ends + held, ends - held])
        kernel, network = kernels.shifted_trimmed_means, sorting_network(m)
        return shifted_columns(points, kernel, network, counted(weights), bounds, ROUNDING * total)

    def _by_torch(self, rows: Float[Tensor, "b m"], weights: Weights) -> Float[Tensor, "b"]:
        return self._strict(rows, weights) if self.form == "strict" else self._trimmed(rows, weights)

    def _trimmed(self, rows: Float[Tensor, "b m"], weights: Weights, shift: float = 0.0) -> Float[Tensor, "b"]:
        values, reached = sort_with_weights(rows, weights)
        low, high = self.beta * weights.sum() + shift, (1 - self.beta) * weights.sum() + shift
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


def _shares_of_ranks(beta: float, m: int) -> NDArray[np.float64]:
    """Return the share of each rank in the mean, for m equal weights."""
    reached = np.arange(m + 1).clip(beta * m, (1 - beta) * m)
    kept = np.diff(reached)
    kept[kept <= ROUNDING * m] = 0
    kept[kept >= 1 - ROUNDING * m] = 1
    return kept / ((1 - 2 * beta) * m)


def _whole(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the ranks with the full share: they are only summed, so they need not be sorted among each other."""
    return np.flatnonzero(shares == shares.max())


def _network(shares: NDArray[np.float64]) -> Network:
    """Return a network that puts the ranks with a share into their places."""
    inner, whole = frozenset(np.flatnonzero(shares).tolist()), frozenset(_whole(shares).tolist())
    return sorting_network(len(shares), inner - whole, whole)


@lru_cache(maxsize=64)
def _shifted(beta: float, m: int, f: int) -> tuple[Network, Network, NDArray[np.float64], NDArray[np.int64]]:
    """Return what `kernels.combine_shifted_ranks` takes for m equal weights and f attackers."""
    shares = _shares_of_ranks(beta, m)
    coefficients, runs = shifted_ranks(shares, f)
    return _network(shares), _rest_of_network(coefficients), coefficients, runs


def _rest_of_network(coefficients: NDArray[np.float64]) -> Network:
    """Return what separates, after `_network`, the ranks that make a difference: they are only summed."""
    parts = []
    for ranks in (np.flatnonzero(coefficients[0] == 0), _whole(coefficients[0])):
        alike = dict[tuple[float, ...], list[int]]()
        for k, rank in enumerate(ranks):
            alike.setdefault(tuple(coefficients[1:, rank]), []).append(k)
        steps = sorting_network(len(ranks), frozenset(), *map(frozenset, alike.values()))
        parts.append(np.column_stack([steps[:, 0], ranks[steps[:, 1:]]]) if len(steps) else steps)
    return np.concatenate(parts)


def _interpolated(values: Float[Tensor, "b m"], place: Float[Tensor, "b m"], q: float) -> Float[Tensor, "b"]:
    """Return the q-quantile of each row by linear interpolation; beyond the ends, the first or last entry."""
    right = (place < q - kernels.SAME).sum(1, keepdim=True).clamp(max=values.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    (x0, x1), (y0, y1) = ((table.gather(1, left), table.gather(1, right)) for table in (place, values))
    part = ((q - x0) / (x1 - x0).where(x1 > x0, 1.0)).clamp(0, 1)
    return y1.where(x1 <= q + kernels.SAME, y0 + (y1 - y0) * part)[:, 0]
