"""Small groups of clients that are like nobody else, found by robust statistics.

A server that clusters cannot know whether a small group has data of its own or attacks.  Either way it does not belong
to the others, and it hides their groups: one update of random direction is about equally unlike all others, so that
its cosines, near zero, become the largest ones across any two groups that contradict each other.

`odd_groups` connects clients whose similarity is at least a level, and calls the small components odd:

    level  =  median over clients of their largest similarity to another client  -  gap

Fewer than half of the clients move the median only within what the others have, so no single update can set the level.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor

from phalanx.clustering.spanning_tree import maximum_spanning_tree
from phalanx.fields import CheckedFields, PositiveInt


@dataclass(frozen=True)
class Peel(CheckedFields):
    """Peels small odd groups off a cluster: their updates are filtered, and later they become clusters of their own.

    Args:
        at_most: f, the largest number of clients of an odd group. Larger groups are left to the splits of the
            algorithm.
        gap: how much less similar to all others than the median client is to its nearest peer an odd group is, as a
            difference of cosines in (0, 2).
        rounds: of the rounds in which a client reported, how many in a row it must be odd to be split off for good.
    """

    at_most: PositiveInt
    gap: Annotated[float, Meta(gt=0, lt=2, description="it is a difference of cosines")] = 0.5
    rounds: PositiveInt = 3


class Odd(NamedTuple):
    """The result of `odd_groups`."""

    groups: tuple[tuple[int, ...], ...]  # indices, the first of each group increasing
    level: float  # similarity below which they are to all others
    nearest: tuple[float, ...]  # for each item its largest similarity to one outside its component; 1 if all are inside


def odd_groups(similarity: Float[Tensor, "m m"], at_most: int, gap: float) -> Odd:
    """Return the components of at most `at_most` items at the level of the module's formula; none if they are half.

    An item that is in no group is connected to more than `at_most` others by similarities of at least the level.
    O(m^2) time.

    Args:
        similarity: (m, m), symmetric, finite; the diagonal does not count.
        at_most: largest number of items of an odd group.
        gap: how far the level is below the median of the items' largest similarities.
    """
    m = len(similarity)
    if m < 2:
        return Odd((), -1.0, (1.0,) * m)
    alpha = similarity.detach().cpu().double()
    others = alpha.clone().fill_diagonal_(-torch.inf)
    level = float(others.max(1).values.median()) - gap
    component = _components(alpha, level)
    across = torch.where(component[:, None] == component, -torch.inf, others).max(1).values
    groups = _small(component.tolist(), at_most)
    found = groups if 2 * sum(map(len, groups)) < m else ()
    return Odd(found, level, tuple(a if a > -torch.inf else 1.0 for a in across.tolist()))


def _components(alpha: Float[Tensor, "m m"], level: float) -> Tensor:
    """Return for each item a number of its component: the lowest index in the order of the spanning tree."""
    tree = maximum_spanning_tree(alpha.numpy())
    component = np.arange(len(alpha))
    for item, above, strength in zip(tree.order, tree.parent, tree.strength, strict=True):
        if strength >= level:
            component[item] = component[above]
    return torch.from_numpy(component)


def _small(component: Sequence[int], at_most: int) -> tuple[tuple[int, ...], ...]:
    members = dict[int, list[int]]()
    for item, number in enumerate(component):
        members.setdefault(number, []).append(item)
    return tuple(sorted(tuple(group) for group in members.values() if len(group) <= at_most))
