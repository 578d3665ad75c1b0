"""A custom rule: the mean of the updates, after those that are longer than most were shortened.

phalanx run --algorithm.aggregate own_rule.ShortenedMean --attack Rescale --byzantine 6    (from the folder examples)
"""

from dataclasses import dataclass

import torch

from phalanx.aggregators import Choice, Selection


@dataclass(frozen=True)
class ShortenedMean(Selection):
    """Shortens each update to a multiple of the median norm, and averages them by weight.

    It is not equivariant to translation: norms are distances from the origin.

    Args:
        factor: the longest norm, in median norms.
    """

    factor: float = 1.0

    def choose(self, points):
        norms = points.matrix.norm(dim=1).double()
        longest = self.factor * norms.median()
        return Choice(points.share * torch.where(norms > longest, longest / norms, 1.0))
