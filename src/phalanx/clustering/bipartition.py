"""The optimal bi-partition of Clustered Federated Learning.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Equation 25 and Algorithm 1:

    c1, c2  <-  arg min over c1 u c2 = c  of  max over i in c1, j in c2  of  alpha_ij

The paper joins the most similar groups until two are left, which is Kruskal's algorithm for a maximum spanning tree,
stopped before its last edge (single linkage).  Here Prim's algorithm grows the tree, in O(m^2) time and O(m) memory on
top of the similarities, and its weakest edge is cut.  The optimum is the same.

Where the paper is silent:

* Several bi-partitions can be optimal: if similarities above the optimum leave three components or more, any two unions
  of components are.  The tree decides.  It grows from item 0.  The item with the largest similarity to an item of the
  tree joins next, at a tie the one of the lowest index.  It is attached to the item to which it is most similar, at a
  tie the one that joined first.  Of equally weak edges the first one is cut.
* The loops of Algorithm 1 include the diagonal, and never end for one client.  Here the diagonal does not count, and
  fewer than two items are an error.
* An update of length zero has no direction, and no cosine.  `phalanx.numerics.linalg.cosine_similarity` calls it
  orthogonal to every other one, and equal to other zero updates.  So zero updates stay together.  They are split off
  if all others are connected by positive cosines; if the others are two groups at an obtuse angle, the optimum is 0,
  and zero updates may join either.
* The authors' notebook uses complete linkage instead, which does not minimise Equation 25.  It is an option here.
"""

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from phalanx.clustering.linkage_kernels import linkage_by_chains
from phalanx.clustering.spanning_tree import Similarities, maximum_spanning_tree

Groups = tuple[tuple[int, ...], tuple[int, ...]]
Linkage = Literal["single", "complete", "average"]

ENTRIES = 1 << 22  # similarities that are copied at a time


def bipartition(similarity: Float[Tensor, "m m"], linkage: Linkage = "single") -> Groups:
    """Split m items into the two groups with the smallest possible largest similarity between the groups.

    Exact with single linkage; ties are broken by index, as the module describes.  O(m^2) time; O(m) memory if the
    similarities are float32 or float64, contiguous and on the CPU, otherwise a copy.

    Complete linkage gives a different split: it joins the two groups whose least similar members are most similar,
    until two groups are left.  This greedy rule keeps similarities *within* groups high, but it does not minimise
    Equation 25, nor exactly optimise anything within groups.  Single linkage may split off one item where complete
    linkage splits off several.  O(m^2) time by chains of nearest neighbours, and one copy of the similarities.  Ties
    are broken by index, so the same similarities give the same groups.

    Average linkage joins the two groups whose members are most similar on average.  One item that is similar to both
    groups, such as an attacker's that lies between them, moves it little, where it decides single linkage.

    Args:
        similarity: (m, m), symmetric, finite; the diagonal does not count. Symmetry is not checked: by complete and
            average linkage the entries above the diagonal count.
        linkage: "single", as in the paper, or "complete", as in the authors' notebook; or "average".

    Returns:
        Two groups of increasing indices, neither empty.  The first one holds index 0.

    Raises:
        ValueError: if there are fewer than two items, the matrix is not square or not finite, or the linkage is
            unknown.

    Examples:
        >>> bipartition(torch.tensor([[1.0, -0.2, 0.9], [-0.2, 1.0, 0.1], [0.9, 0.1, 1.0]]))
        ((0, 2), (1,))
    """
    if linkage not in get_args(Linkage):
        raise ValueError(f'linkage must be "single", "complete" or "average", got {linkage!r}.')
    if similarity.ndim != 2 or similarity.shape[0] != similarity.shape[1] or len(similarity) < 2:
        shape = tuple(similarity.shape)
        raise ValueError(f"A bi-partition needs a square similarity matrix of two items or more, got shape {shape}.")
    alpha = _on_host(similarity)
    cut_off = _beyond_weakest_edge(alpha) if linkage == "single" else _second_group(alpha, linkage == "average")
    return tuple(np.flatnonzero(~cut_off).tolist()), tuple(np.flatnonzero(cut_off).tolist())


def _on_host(similarity: Float[Tensor, "m m"]) -> Similarities:
    alpha = similarity.detach().cpu()
    if alpha.dtype not in (torch.float32, torch.float64):
        alpha = alpha.double()
    host: Similarities = alpha.numpy()
    return host


def _beyond_weakest_edge(alpha: Similarities) -> NDArray[np.bool_]:
    tree = maximum_spanning_tree(alpha)
    return tree.descendants(int(tree.strength.argmin()))


def _second_group(alpha: Similarities, average: bool) -> NDArray[np.bool_]:
    """Return a mask of the second of the last two groups of complete or average linkage, the one without item 0."""
    joined = np.empty(len(alpha), np.int64)
    if not linkage_by_chains(np.array(alpha, order="C"), joined, average):
        raise ValueError("Similarities must be finite: remove updates with NaN or infinite values first.")
    for item, earlier in enumerate(joined):  # joined to a lower index, whose group is final by now
        joined[item] = joined[earlier]
    second: NDArray[np.bool_] = joined != 0
    return second


def cross_similarity(similarity: Float[Tensor, "m m"], groups: Groups) -> float:
    """Return alpha_cross: the largest similarity between an item of one group and an item of the other.

    With `bipartition` it is alpha_cross^max of the paper, the optimum of Equation 25.

    Args:
        similarity: (m, m), symmetric.
        groups: two groups of indices, neither empty.
    """
    c1, c2 = (torch.tensor(c, device=similarity.device) for c in groups)
    return max(float(similarity[rows[:, None], c2].max()) for rows in in_blocks(c1, len(c2)))


def in_blocks(rows: Int[Tensor, "n"], columns: int) -> Iterator[Int[Tensor, "b"]]:
    """Yield the rows in blocks that, with this number of columns, hold at most `ENTRIES` similarities."""
    height = max(1, ENTRIES // columns)
    for start in range(0, len(rows), height):
        yield rows[start : start + height]
