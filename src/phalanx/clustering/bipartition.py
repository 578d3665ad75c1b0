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
from torch import Tensor

from phalanx.clustering.spanning_tree import maximum_spanning_tree

Groups = tuple[tuple[int, ...], tuple[int, ...]]


def bipartition(similarity: Float[Tensor, "m m"]) -> Groups:
    """Splits m items in two groups such that the largest similarity between the groups is as small as can be.

    Ties are broken by index: the same similarities give the same groups.

    Args:
        similarity: symmetric (not checked: half of it is never looked at), finite; the diagonal is not looked at.

    Returns:
        Two groups of increasing indices, neither empty.  The first one holds index 0.

    Raises:
        ValueError: fewer than two items, or not a square, finite matrix.
    """
    alpha = similarity.detach().cpu().double().numpy()
    if alpha.ndim != 2 or alpha.shape[0] != alpha.shape[1] or len(alpha) < 2:
        raise ValueError(
            f"A bi-partition needs a square similarity matrix of two items or more, got shape {alpha.shape}."
        )
    if not np.isfinite(alpha).all():
        raise ValueError("Similarities must be finite: refuse updates with NaN or infinite values first.")
    tree = maximum_spanning_tree(alpha)
    cut_off = tree.descendants(int(tree.strength.argmin()))
    return tuple(np.flatnonzero(~cut_off).tolist()), tuple(np.flatnonzero(cut_off).tolist())


def cross_similarity(similarity: Float[Tensor, "m m"], groups: Groups) -> float:
    """alpha_cross: the largest similarity between an item of one group and an item of the other."""
    c1, c2 = (torch.tensor(c, device=similarity.device) for c in groups)
    return float(similarity[c1][:, c2].max())
