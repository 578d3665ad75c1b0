"""A division into two parts that one attacker, or a few, cannot prevent, move or forge.

The bi-partition of Sattler et al. (2019) minimises the *largest* similarity across, so one client decides it: one whose
update points away from all others is a group of its own, and one whose update lies between two groups joins them.  Here

* items are joined by average linkage, in which each item of a group has one voice, and then each item goes to the group
  to which it is more similar, by the median, until nobody goes any more: linkage takes no step back;
* what is too small to be a group is set aside, and the rest is divided again: attackers that point elsewhere do not
  hide how the others are divided;
* a part can hold several groups.  Of three equal groups one part holds two, in which most items are as unlike each
  other as they are unlike the other part.  So the gap is one of groups: linkage gives a number of them, two, three and
  so on, and the number counts with which items are on average the most similar to their own group, compared with the
  nearest other one.  No item counts for more than the median item: a few attackers who are alike would;
* the gap is a median of medians: how much more similar an item is to its own group than to the nearest other one.
  In a group of n, fewer than (n - 1) / 2 cannot move it beyond what the others of that group have: an item is compared
  with n - 1 others.  One of three can, and two of five.

Items that were set aside go to the group to which they are more similar, by the median: nobody is left without a group
by this, and a rule within the group has to do with them.  A set of attackers as large as a group may be founds one, of
its own; that harms nobody else.

Limits.  Fewer attackers than that can found a group with an honest item that is nearer to them than to its own group.
In two groups of three with cosines of 0.5 within and 0.1 across, two attackers take item 0 with them if they point
along it and away from all others.  Where a group is no larger than the least size, the rest of it is then too small.
More than `MOST` groups of one size are not found: their gap is next to 0.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.clustering.bipartition import Groups, bipartition

Indices = tuple[int, ...]
ROUNDS = 20  # in which items may change their group; a few are enough
MOST = 32  # groups that are looked for at once


class Division(NamedTuple):
    """Two parts of items, and how far the groups in them are apart."""

    groups: Groups  # the parts: increasing indices, each item in one of the two; the first one holds the lowest index
    aside: Indices  # the items that by themselves would be neither in a group, nor one of their own
    across: float  # median similarity of the items of one part to those of the other, those aside left out
    gap: float  # by how much an item is more similar to its own group than to another; the smallest median of a group


class Joined(NamedTuple):
    """A group of items that linkage has joined, and which part it belongs to."""

    items: Indices
    part: int


def divide(similarity: Float[Tensor, "m m"], least: int = 2) -> Division | None:
    """Return the division of m items into two parts of at least `least` items each; None if there is none.

    O(m^2) time for each number of groups, and for each part that is set aside as much again.

    Args:
        similarity: (m, m), symmetric, finite.
        least: items of a group without those that were set aside, at least 2.

    Examples:
        >>> alpha = torch.block_diag(torch.full((2, 2), 0.9), torch.full((2, 2), 0.8))
        >>> divide(alpha).groups
        ((0, 1), (2, 3))
    """
    alpha = similarity.double().cpu()
    found = [(_clearness(alpha, branches), branches) for branches in _branches(alpha, least)]
    return _division(alpha, max(found, key=lambda each: each[0])[1], least) if found else None


def _branches(alpha: Float[Tensor, "m m"], least: int) -> Iterator[list[Joined]]:
    """Yield two groups, three, and so on, by average linkage: the least similar halves of a group are parted first."""
    halves = _halves(alpha, tuple(range(len(alpha))), least)
    groups = [Joined(items, part) for part, items in enumerate(halves or ())]
    inner = dict[Indices, Groups | None]()
    while groups and len(groups) <= MOST:
        yield groups
        for group in groups:
            if group.items not in inner:
                inner[group.items] = _halves(alpha, group.items, least)
        rest = [group for group in groups if inner[group.items]]
        if not rest:
            return
        parted = min(rest, key=lambda group: _between(alpha, inner[group.items]))
        halves = inner[parted.items]
        groups = [group for group in groups if group is not parted]
        groups += [Joined(items, parted.part) for items in halves or ()]


def _halves(alpha: Float[Tensor, "m m"], items: Indices, least: int) -> Groups | None:
    """Return two groups of items, without those that were set aside; None if they are too few."""
    while len(items) >= 2 * least:
        parts = bipartition(alpha[list(items)][:, list(items)], "average")
        one, other = (tuple(items[k] for k in part) for part in parts)
        smaller, items = sorted((one, other), key=len)
        if len(smaller) >= least:
            return one, other
    return None


def _between(alpha: Float[Tensor, "m m"], halves: Groups | None) -> float:
    """Return the mean similarity of items of one group to those of the other."""
    one, other = map(list, halves or ((), ()))
    return float(alpha[one][:, other].mean())


def _clearness(alpha: Float[Tensor, "m m"], branches: list[Joined]) -> float:
    """Return how much more similar items are to their own group than to the nearest other one; 0 for those aside.

    It is a mean in which no item counts for more than the median item.
    """
    own, _, here, there = _compared(alpha, [list(branch.items) for branch in branches])
    clear = torch.where(own >= 0, here - there, 0.0)
    return float(clear.clamp(max=float(clear.median())).mean())


def _division(alpha: Float[Tensor, "m m"], branches: list[Joined], least: int) -> Division:
    """Return the division, after items have gone to the group to which they are more similar; at a tie they stay."""
    groups = [list(branch.items) for branch in branches]
    for _ in range(ROUNDS):
        own, nearest, _, _ = _compared(alpha, groups)
        new = [torch.nonzero((own >= 0) & (nearest == g)).flatten().tolist() for g in range(len(groups))]
        if new == groups or min(map(len, new)) < least:
            break
        groups = new
    own, nearest, here, there = _compared(alpha, groups)
    gap = min(float((here - there)[own == g].median()) for g in range(len(groups)))
    part = torch.tensor([branch.part for branch in branches])[torch.where(own >= 0, own, nearest)]
    parts = [torch.nonzero((part == p) & (own >= 0)).flatten() for p in (0, 1)]
    across = torch.cat([alpha[a][:, b].median(1).values for a, b in (parts, parts[::-1])]).median()
    one, other = sorted(tuple(torch.nonzero(part == p).flatten().tolist()) for p in (0, 1))
    return Division((one, other), tuple(torch.nonzero(own < 0).flatten().tolist()), float(across), gap)


def _compared(alpha: Float[Tensor, "m m"], groups: list[list[int]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return for each item its group, -1 if none; the most similar one; its median similarity to its own; to another.

    An item is left out of its own group.  Of equally similar groups its own is named, or else the first one.
    """
    own = torch.full((len(alpha),), -1)
    for g, group in enumerate(groups):
        own[group] = g
    medians = torch.stack([_medians(alpha, group) for group in groups], 1)
    inside = torch.nonzero(own >= 0).flatten()
    here = torch.full((len(alpha),), -torch.inf, dtype=alpha.dtype)
    here[inside] = medians[inside, own[inside]]
    nearest = torch.where(here >= medians.max(1).values, own, medians.argmax(1))
    medians[inside, own[inside]] = -torch.inf
    return own, nearest, here, medians.max(1).values


def _medians(alpha: Float[Tensor, "m m"], group: list[int]) -> Float[Tensor, "m"]:
    """Return the median similarity of each item to the members of a group, itself left out."""
    columns = alpha[:, group].clone()
    columns[group, range(len(group))] = torch.nan
    return columns.nanmedian(1).values
