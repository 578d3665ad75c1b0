"""Sorting networks: which pairs of entries to put in order, one after the other, whatever the entries are."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Network = NDArray[np.int64]  # (n, 2): compare entry [0] with entry [1], and leave the smaller one in [0]


@lru_cache(maxsize=64)
def sorting_network(m: int, exact: frozenset[int] | None = None, together: frozenset[int] = frozenset()) -> Network:
    """Batcher's odd-even merge sort for m entries, without the comparisons that nobody needs.

    Batcher, "Sorting Networks and their Applications", 1968.

    Args:
        m: number of entries.
        exact: ranks that have to be in their place; all if not given.
        together: ranks that may be exchanged among each other, for a sum over all of them.
    """
    if exact is None:
        return np.array(_odd_even_merge_sort(m), dtype=np.int64).reshape(-1, 2)
    role = [("exact" if r in exact else "together" if r in together else "dropped") for r in range(m)]
    needed = []
    for i, j in reversed(_odd_even_merge_sort(m)):
        if role[i] == role[j] != "exact":
            continue  # it exchanges two that are summed up, or two that are dropped
        needed.append((i, j))
        role[i] = role[j] = "exact"
    return np.array(needed[::-1], dtype=np.int64).reshape(-1, 2)


def _odd_even_merge_sort(m: int) -> list[tuple[int, int]]:
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
