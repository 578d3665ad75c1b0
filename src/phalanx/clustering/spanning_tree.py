"""Prim's algorithm: what all groupings by single linkage share."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tree(NamedTuple):
    """The m - 1 edges of a spanning tree, in the order in which they join."""

    order: NDArray[np.int64]  # the item that joins
    parent: NDArray[np.int64]  # the item of the tree that it is joined to
    strength: NDArray[np.float64]  # their similarity

    def descendants(self, edge: int) -> NDArray[np.bool_]:
        """The items that hang on the tree by `edge`, as a mask."""
        below = np.zeros(len(self.order) + 1, dtype=bool)
        below[self.order[edge]] = True
        for child, above in zip(self.order[edge + 1 :], self.parent[edge + 1 :], strict=True):
            below[child] = below[above]
        return below


def maximum_spanning_tree(alpha: NDArray[np.float64]) -> Tree:
    """The tree of the most similar pairs, from item 0; O(m^2) time, and O(m) memory beside the similarities.

    Args:
        alpha: (m, m), symmetric, finite; the diagonal is not looked at.
    """
    m = len(alpha)
    best, nearest = alpha[0].copy(), np.zeros(m, dtype=np.int64)  # to the tree, for each item outside
    best[0] = -np.inf
    order, parent, strength = np.empty(m - 1, np.int64), np.empty(m - 1, np.int64), np.empty(m - 1)
    outside = np.ones(m, dtype=bool)
    outside[0] = False
    for edge in range(m - 1):
        j = int(best.argmax())
        order[edge], parent[edge], strength[edge] = j, nearest[j], best[j]
        outside[j], best[j] = False, -np.inf
        closer = outside & (alpha[j] > best)
        best[closer], nearest[closer] = alpha[j][closer], j
    return Tree(order, parent, strength)
