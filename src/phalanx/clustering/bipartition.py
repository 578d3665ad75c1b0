"""The optimal bi-partition of Clustered Federated Learning.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Equation 25 and Algorithm 1:

    c1, c2  <-  arg min over c1 u c2 = c  of  max over i in c1, j in c2  of  alpha_ij

The paper joins the most similar groups until two are left, which is Kruskal's algorithm for a maximum spanning tree,
stopped before its last edge.  Here the tree is grown by Prim's algorithm, in O(m^2) time and O(m) memory beside the
similarities, and its weakest edge is cut: the same optimum.
"""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

Groups = tuple[tuple[int, ...], tuple[int, ...]]


def bipartition(similarity: Float[Tensor, "m m"]) -> Groups:
    """Splits m items in two groups such that the largest similarity between the groups is as small as can be.

    Ties are broken by index: the same similarities give the same groups.

    Args:
        similarity: symmetric, finite; the diagonal is not looked at.

    Returns:
        Two groups of increasing indices, neither empty.  The first one holds index 0.

    Raises:
        ValueError: fewer than two items, or not a square, finite matrix.
    """
    alpha = similarity.detach().cpu().double().numpy()
    m = len(alpha)
    if alpha.shape != (m, m) or m < 2:
        raise ValueError(
            f"A bi-partition needs a square similarity matrix of two items or more, got shape {alpha.shape}."
        )
    if not np.isfinite(alpha).all():
        raise ValueError("Similarities must be finite: refuse updates with NaN or infinite values first.")
    order, parent, strength = _maximum_spanning_tree(alpha)
    weakest = int(strength.argmin())
    cut_off = _descendants(order, parent, weakest)
    return tuple(np.flatnonzero(~cut_off).tolist()), tuple(np.flatnonzero(cut_off).tolist())


def cross_similarity(similarity: Float[Tensor, "m m"], groups: Groups) -> float:
    """alpha_cross: the largest similarity between an item of one group and an item of the other."""
    c1, c2 = (torch.tensor(c, device=similarity.device) for c in groups)
    return float(similarity[c1][:, c2].max())


def _maximum_spanning_tree(
    alpha: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Prim's algorithm from item 0.

    Returns:
        For each of the m - 1 edges, in the order in which they join: the item that joins, the item of the tree that
        it is joined to, and their similarity.
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
    return order, parent, strength


def _descendants(order: NDArray[np.int64], parent: NDArray[np.int64], edge: int) -> NDArray[np.bool_]:
    """The items that hang on the tree by `edge`, as a mask."""
    below = np.zeros(len(order) + 1, dtype=bool)
    below[order[edge]] = True
    for child, above in zip(order[edge + 1 :], parent[edge + 1 :], strict=True):
        below[child] = below[above]
    return below
