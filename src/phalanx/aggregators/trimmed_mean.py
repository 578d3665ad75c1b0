"""The coordinate-wise weighted trimmed mean.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018, Definition 2, for equal
weights; Portnoy et al., "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020, with weights.

Convention: a share beta of the total *weight* is removed at each end of each coordinate.  An entry on the boundary
keeps the part of its weight that lies inside.  So integer weights give what duplicated rows give, and for equal weights
and an integer beta m this is the textbook rule that drops beta m entries at each end.  For other beta m the textbook
rounds, and this rule does not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.aggregators.columns import ROUNDING, by_column, sort_with_weights
from phalanx.core import Aggregator, Matrix, Vector, Weights


@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """The coordinate-wise mean of what is left when a share beta of the weight is removed at each end.

    Stays inside the range of the honest entries of each coordinate while the attackers hold at most the share beta of
    the weight.

    Args:
        beta: share of the weight that is removed at each end, in [0, 0.5). 0 is the mean.

    Example:
        >>> TrimmedMean(beta=0.25)(torch.tensor([[-100.0], [1.0], [3.0], [100.0]]))
        tensor([2.])
    """

    beta: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 0.5:
            raise ValueError(
                f"beta must lie in [0, 0.5), got {self.beta}: what is removed at both ends leaves something."
            )

    def aggregate(self, deltas: Matrix, weights: Weights) -> Vector:
        """See `Aggregator`."""
        return by_column(deltas, lambda rows: self._trimmed(rows, weights))

    def _trimmed(self, rows: Float[Tensor, "b m"], weights: Weights) -> Float[Tensor, "b"]:
        values, reached = sort_with_weights(rows, weights)
        low, high = self.beta * weights.sum(), (1 - self.beta) * weights.sum()
        inside = reached.clamp(low, high)
        kept = inside.diff(dim=1, prepend=torch.full_like(inside[:, :1], float(low)))
        # A rounding error of a weight is no weight, however large the entry is that it would multiply.
        shares = (kept / (high - low)).where(kept > ROUNDING * weights.sum(), 0.0)
        return (values.double() * shares).sum(1)
