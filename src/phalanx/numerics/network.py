"""Sorting networks: which pairs of entries to put in order, one after the other, whatever the entries are."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from phalanx.numerics.column_kernels import SHAPES, A, B, C, D

Pair = tuple[int, int]  # compare entry [0] with entry [1], and leave the smaller one in [0]
Network = NDArray[np.int64]  # (n, 5): which of `SHAPES`, and the entries that are its a, b, c and d


@lru_cache(maxsize=64)
def sorting_network(m: int, exact: frozenset[int] | None = None, together: frozenset[int] = frozenset()) -> Network:
    """Batcher's odd-even merge sort for m entries, without the comparisons that nobody needs.

    Batcher, "Sorting Networks and their Applications", 1968.  Comparisons that follow each other within four entries
    are one step, so that these are loaded and stored once for all of them.

    Args:
        m: number of entries.
        exact: ranks that have to be in their place; all if not given.
        together: ranks that may be exchanged among each other, for a sum over all of them.
    """
    return np.array(_steps(m, comparisons(m, exact, together)), dtype=np.int64).reshape(-1, 5)


def comparisons(m: int, exact: frozenset[int] | None = None, together: frozenset[int] = frozenset()) -> list[Pair]:
    """The network one comparison at a time; see `sorting_network`."""
    if exact is None:
        return _odd_even_merge_sort(m)
    role = [("exact" if r in exact else "together" if r in together else "dropped") for r in range(m)]
    needed = []
    for i, j in reversed(_odd_even_merge_sort(m)):
        if role[i] == role[j] != "exact":
            continue  # it exchanges two that are summed up, or two that are dropped
        needed.append((i, j))
        role[i] = role[j] = "exact"
    return needed[::-1]


def _odd_even_merge_sort(m: int) -> list[Pair]:
    pairs, length = [], 1  # of the sorted runs
    while length < m:
        distance = length
        while distance >= 1:
            for start in range(distance % length, m - distance, 2 * distance):
                for i in range(start, min(start + distance, m - distance)):
                    if i // (2 * length) == (i + distance) // (2 * length):
                        pairs.append((i, i + distance))
            distance //= 2
        length *= 2
    return pairs


def _steps(m: int, pairs: Sequence[Pair]) -> list[tuple[int, ...]]:
    """The comparisons in steps of `SHAPES`, the largest that can be had; each entry's in their order."""
    due: list[list[int]] = [[] for _ in range(m)]  # the comparisons of each entry, the next one last
    for n in reversed(range(len(pairs))):
        for entry in pairs[n]:
            due[entry].append(n)
    steps = []
    for n, (i, j) in enumerate(pairs):
        if n not in due[i][-1:]:  # taken already
            continue
        shape, entries = 0, [i, j]
        for pair in _beside(pairs, due, n):
            for four in ([i, j, *pair], [*pair, i, j]):
                if (found := _shape(pairs, due, four)) > shape:
                    shape, entries = found, four
        for entry in (entries[e] for pair in SHAPES[shape] for e in pair):
            due[entry].pop()
        steps.append((shape, *entries, *(0,) * (4 - len(entries))))
    return steps


def _beside(pairs: Sequence[Pair], due: Sequence[Sequence[int]], n: int) -> list[Pair]:
    """Comparisons that can be taken as well as the n-th, with an entry that meets one of its entries right after."""
    found = []
    for entry in pairs[n]:
        for follows in due[entry][-2:-1]:
            other = sum(pairs[follows]) - entry
            first = due[other][-1]
            if first not in (n, follows) and all(due[e][-1] == first for e in pairs[first]):
                found.append(pairs[first])
    return found


def _shape(pairs: Sequence[Pair], due: Sequence[Sequence[int]], four: Sequence[int]) -> int:
    """The largest of `SHAPES` that four entries go through next, of which the first two and the last two meet."""
    taken, met = [1, 1, 1, 1], [*SHAPES[1][:2]]
    for x, y in ((A, C), (B, D), (B, C), (C, B)):
        of_x, of_y = due[four[x]], due[four[y]]
        left = len(of_x) - taken[x], len(of_y) - taken[y]
        if min(left) > 0 and of_x[left[0] - 1] == of_y[left[1] - 1] and pairs[of_x[left[0] - 1]] == (four[x], four[y]):
            met.append((x, y))
            taken[x], taken[y] = taken[x] + 1, taken[y] + 1
    while met and tuple(met) not in SHAPES:
        met.pop()
    return SHAPES.index(tuple(met)) if met else 0
