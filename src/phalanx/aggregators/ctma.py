"""The mean of the rows nearest to what another rule makes of all.

Dahan and Levy, "Weight for Robustness: A Comprehensive Approach towards Optimal Fault-Tolerant Asynchronous ML", 2024:
the weighted centred trimmed meta-aggregator, w-CTMA.  x_0 is the rule's result; by distance from it, rows are kept
until they hold the share 1 - lambda of the weight, the last one in part, and averaged.

* Rows at the same distance are kept alike, whatever their order.
* Of the text only the abstract was read, and of the authors' program an excerpt of the unweighted form: the weighted
  form is what follows from it if a weight acts like a number of copies.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators.aggregator import Aggregator, Choice, Selection
from phalanx.aggregators.influence import UNBOUNDED, UNKNOWN, Chosen, Influence, about_mean, largest
from phalanx.aggregators.median import Median
from phalanx.aggregators.points import Points
from phalanx.core import Tolerance, Vector
from phalanx.numerics.linalg import length
from phalanx.weighting.truncation import exact

ROUNDING = 1e-12  # a share of the weight below this is what rounding has left


@dataclass(frozen=True)
class CTMA(Selection):
    """The weighted mean of the rows nearest to another rule's result, without the farthest `share` of the weight.

    While attackers hold no more than `share` of the weight, and the rule tolerates them, the result is about as good as
    a rule can be: attackers that are kept are no farther from the rule's result than some honest row.

    A weight acts like a number of copies.  Equivariant to translation if the rule is.  Cost: that of the rule, and one
    pass over the matrix.

    Args:
        share: lambda, the share of the weight that is left out, in [0, 0.5).
        rule: what the rows are compared with.

    Examples:
        >>> CTMA(share=0.25)(torch.tensor([[1.0], [2.0], [3.0], [90.0]]))
        tensor([2.])
    """

    share: Annotated[float, Meta(ge=0, lt=0.5, description="attackers must be fewer than the honest")] = 0.25
    rule: Aggregator = Median()

    @override
    def tolerates(self, q: int) -> Tolerance:
        rule = self.rule.tolerates(q)
        if rule.means == "nothing":
            return rule
        share, why = min(exact(self.share), rule.share), f"CTMA drops {self.share:g} of the weight. {rule.source}"
        return replace(rule, share=share, strict=rule.strict and share == rule.share, means="distance", source=why)

    @override
    def choose(self, points: Points) -> Choice:
        return self._nearest(points, self.rule.aggregate(points))

    @override
    def audit(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """See `Aggregator`.  Attackers who are kept are no farther from the new centre than rows that stay."""
        centre, _, influence = self.rule.audit(points, f)
        choice = self._nearest(points, centre)
        vector, share = points.combine(choice.shares), points.share
        held = largest(share, f)
        if held > self.share + ROUNDING or influence.value is None or not influence.value < math.inf:
            return vector, choice, UNBOUNDED if held > self.share + ROUNDING else UNKNOWN
        far = np.array(choice.scores)
        order = far.argsort()
        last = int((share.numpy()[order].cumsum() < (1 - self.share + held) * (1 - ROUNDING)).sum())
        unit = points.unit
        kept = float(far[order[min(last, len(points) - 1)]]) + 2 * influence.value
        # Within `kept` of the centre: all rows that are kept, those of attackers included.
        away = length(points.in_units(centre) - points.in_units(vector))
        chosen = Chosen(share, choice.shares, about_mean(points, choice.shares), 1 - self.share)
        return vector, choice, chosen.influence(f, kept / unit + away, far <= kept).times(unit)

    def _nearest(self, points: Points, centre: Vector) -> Choice:
        """Return the choice of the rows nearest to the centre."""
        squares = points.squared_distances_to(centre)
        kept = torch.zeros(len(points), dtype=torch.float64)
        left = (1 - self.share) * points.mass
        for square in sorted(set(squares.tolist())):
            ring = torch.where(squares == square, points.weights, 0.0)
            kept += ring * min(1.0, left / float(ring.sum()))
            left -= float(ring.sum())
            if left <= ROUNDING * points.mass:
                break
        scores = (squares.sqrt() * points.unit).tolist()
        why = [
            "" if part == whole else f"distance {d:.3g} from the centre, {'in part' if part else 'among the farthest'}"
            for part, whole, d in zip(kept.tolist(), points.weights.tolist(), scores, strict=True)
        ]
        return Choice(kept / kept.sum(), scores, why)
