"""A division into two groups that a minority of attackers cannot prevent, move or forge.

The bi-partition of Sattler et al. (2019) minimises the *largest* similarity across, so one client decides it: one whose
update points away from all others is a group of its own, and one whose update lies between two groups joins them.  Here

* groups are joined by average linkage, in which each item of a group has one voice, and then each item goes to the
  group to which it is more similar, by the median, until nobody goes any more: linkage takes no step back;
* a part that is too small to be a group is set aside, and the rest is divided again: attackers that point elsewhere do
  not hide how the others are divided;
* the gap is a median of medians: how much more similar an item is to its own group than to the other.  Fewer than half
  of a group cannot move it beyond what the others of that group have.

Items that were set aside go to the group to which they are more similar, by the median: nobody is left without a group
by this, and a rule within the group has to do with them.  A set of attackers as large as a group may be founds one, of
its own; that harms nobody else.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.clustering.bipartition import Groups, bipartition

Indices = tuple[int, ...]
ROUNDS = 20  # in which items may change their group; a few are enough


class Division(NamedTuple):
    """Two groups of items, and how far they are apart."""

    groups: Groups  # increasing indices, each item in one of the two; the first group holds the lowest index
    aside: Indices  # the items that by themselves would be neither of the groups, nor one of their own
    across: float  # median similarity of the items of one group to those of the other, those aside left out
    gap: float  # by how much an item is more similar to its own group; the smaller median of the two groups


def divide(similarity: Float[Tensor, "m m"], least: int = 2) -> Division | None:
    """Return the division of m items into two groups of at least `least` items each; None if there is none.

    O(m^2) time, and for each part that is set aside as much again.

    Args:
        similarity: (m, m), symmetric, finite.
        least: items without those that were set aside, at least 2.

    Examples:
        >>> alpha = torch.block_diag(torch.full((2, 2), 0.9), torch.full((2, 2), 0.8))
        >>> divide(alpha).groups
        ((0, 1), (2, 3))
    """
    alpha = similarity.double().cpu()
    items, aside = tuple(range(len(alpha))), list[int]()
    while len(items) >= 2 * least:
        parts = bipartition(alpha[list(items)][:, list(items)], "average")
        one, other = (tuple(items[k] for k in part) for part in parts)
        smaller, items = sorted((one, other), key=len)
        if len(smaller) >= least:
            return _completed(alpha, _refined(alpha, one, other, least), tuple(sorted(aside)))
        aside += smaller
    return None


def _refined(alpha: Float[Tensor, "m m"], one: Indices, other: Indices, least: int) -> Groups:
    """Return the groups after items have gone to the group to which they are more similar; at a tie they stay."""
    for _ in range(ROUNDS):
        items = tuple(sorted(one + other))
        nearer = {i: _nearer(alpha, i, one, other) for i in items}
        new = tuple(i for i in items if nearer[i]), tuple(i for i in items if not nearer[i])
        if new == (one, other) or min(map(len, new)) < least:
            break
        one, other = new
    return one, other


def _nearer(alpha: Float[Tensor, "m m"], i: int, one: Indices, other: Indices) -> bool:
    """Return whether an item is more similar to the first group, itself left out; at a tie, whether it is in it."""
    here = float(alpha[i, [j for j in one if j != i]].median()) - float(alpha[i, [j for j in other if j != i]].median())
    return here > 0 or (here == 0 and i in one)


def _completed(alpha: Float[Tensor, "m m"], groups: Groups, aside: Indices) -> Division:
    """Return the division, with those that were set aside in the groups to which they are more similar."""
    one, other = map(list, groups)
    within = [_medians(alpha, group, group) for group in (one, other)]
    across = [_medians(alpha, one, other), _medians(alpha, other, one)]
    gap = min(float((own - far).median()) for own, far in zip(within, across, strict=True))
    nearer = {i: _nearer(alpha, i, groups[0], groups[1]) for i in aside}
    full = (
        tuple(sorted([*one, *(i for i in aside if nearer[i])])),
        tuple(sorted([*other, *(i for i in aside if not nearer[i])])),
    )
    return Division((min(full), max(full)), aside, float(torch.cat(across).median()), gap)


def _medians(alpha: Float[Tensor, "m m"], items: list[int], group: list[int]) -> Float[Tensor, "n"]:
    """Return the median similarity of each item to the members of a group, itself left out."""
    rows = alpha[items][:, group].clone()
    if items is group or items == group:
        rows.fill_diagonal_(torch.nan)
    return rows.nanmedian(1).values
