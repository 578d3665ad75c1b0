"""The separation gap: how clearly known groups of clients differ.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Definition 2:

    g(alpha)  =  alpha_intra^min  -  alpha_cross^max

alpha_intra^min is the smallest similarity of two clients that share a distribution (Equation 21), alpha_cross^max the
largest one across the optimal bi-partition (Equation 17).

Erratum: Remark 2, and Equations 30 and 49 after it, call the bi-partition correct *if and only if* the gap is positive.
It is correct if the gap is positive (Corollary 1), but single linkage may also connect a group by a chain: the two ends
are dissimilar, the gap is negative, and the bi-partition is correct.
"""

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.clustering.bipartition import bipartition, cross_similarity, in_blocks

Partition = Sequence[Collection[int]]  # groups that together hold each item once


def separation_gap(similarity: Float[Tensor, "m m"], groups: Partition) -> float:
    """Return g(alpha); if it is positive, `bipartition` divides none of the groups.

    Args:
        similarity: symmetric; the diagonal does not count.
        groups: the clients of each distribution, as indices: a partition of all items into any number of groups.

    Returns:
        In [-2, 2] for cosines.

    Raises:
        ValueError: if `groups` is no partition of the items, or `similarity` is invalid for `bipartition`.
    """
    check_partition(groups, len(similarity))
    return intra_similarity(similarity, groups) - cross_similarity(similarity, bipartition(similarity))


def intra_similarity(similarity: Float[Tensor, "m m"], groups: Partition) -> float:
    """Return alpha_intra^min: the smallest similarity of two items of the same group.

    Args:
        similarity: symmetric; the diagonal does not count.
        groups: groups of indices.

    Returns:
        The smallest similarity; 1 if no group has two members, since an item is equal to itself.
    """
    return min((_smallest_within(similarity, sorted(c)) for c in groups if len(c) > 1), default=1.0)


def _smallest_within(similarity: Float[Tensor, "m m"], members: Sequence[int]) -> float:
    c = torch.tensor(members, device=similarity.device)
    smallest = torch.inf
    for rows in in_blocks(c, len(c)):
        others = rows[:, None] != c
        smallest = min(smallest, float(similarity[rows[:, None], c][others].min()))
    return smallest


def correct(split: Partition, groups: Partition) -> bool:
    """Return whether no group is divided among the parts of a split (Definition 1).

    Args:
        split: a partition of the items, such as the result of `bipartition`.
        groups: the clients of each distribution, as indices.
    """
    part = {i: number for number, members in enumerate(split) for i in members}
    return all(len({part[i] for i in members}) <= 1 for members in groups)


def check_partition(groups: Partition, m: int) -> None:
    """Raise `ValueError` unless the groups hold each index below m once, and none is empty."""
    if any(not len(c) for c in groups):
        raise ValueError("Each group must have a member, got an empty one. Leave it out.")
    if sorted(i for c in groups for i in c) == list(range(m)):
        return
    members = [i for c in groups for i in c]
    repeated = sorted({i for i in members if members.count(i) > 1})
    strange = sorted(set(members) - set(range(m)))
    missing = sorted(set(range(m)) - set(members))
    wrong = {"twice": repeated, "unknown": strange, "missing": missing}
    details = "; ".join(f"{what}: {', '.join(map(str, indices[:5]))}" for what, indices in wrong.items() if indices)
    raise ValueError(f"The groups must hold each index from 0 to {m - 1} once. {details[0].upper()}{details[1:]}.")
