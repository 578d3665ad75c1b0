"""The maximum spanning tree, on which all clusterings by single linkage are based."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.clustering.linkage_kernels import spanning_tree

Similarities = NDArray[np.float32] | NDArray[np.float64]


class SpanningTree(NamedTuple):
    """The m - 1 edges of a spanning tree, in the order in which they join."""

    order: NDArray[np.int64]  # the item that joins
    parent: NDArray[np.int64]  # the item of the tree to which it is attached
    strength: Similarities  # their similarity

    def descendants(self, edge: int) -> NDArray[np.bool_]:
        """Return a mask of the items that `edge` connects to the root."""
        below = [False] * (len(self.order) + 1)
        below[self.order[edge]] = True
        for child, above in zip(self.order[edge + 1 :].tolist(), self.parent[edge + 1 :].tolist(), strict=True):
            below[child] = below[above]
        return np.array(below)


def maximum_spanning_tree(alpha: Similarities) -> SpanningTree:
    """Return the tree of the most similar pairs, by Prim's algorithm from item 0; O(m^2) time.

    The item with the largest similarity to an item of the tree joins next, at a tie the lowest index.  It is attached
    to the item to which it is most similar, at a tie the one that joined first.  O(m) memory if the rows are
    contiguous.

    Args:
        alpha: (m, m), symmetric (not checked); the diagonal does not count.

    Raises:
        ValueError: if a similarity is NaN or infinite.
    """
    m = len(alpha)
    order, parent, strength = np.empty(m - 1, np.int64), np.empty(m - 1, np.int64), np.empty(m - 1, alpha.dtype)
    if not spanning_tree(np.ascontiguousarray(alpha), order, parent, strength):
        raise ValueError("Similarities must be finite: remove updates with NaN or infinite values first.")
    return SpanningTree(order, parent, strength)
