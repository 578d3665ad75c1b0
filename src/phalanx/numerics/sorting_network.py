"""Sorting networks: fixed sequences of comparisons that sort any m entries, so whole rows can be sorted at once."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from phalanx.numerics.column_kernels import SHAPES, A, B, C, D

Pair = tuple[int, int]  # compare entries [0] and [1], and put the smaller one in [0]
Network = NDArray[np.int64]  # (n, 5): index into `SHAPES`, and the entries that are its a, b, c and d


@lru_cache(maxsize=64)
def sorting_network(m: int, exact: frozenset[int] | None = None, *together: frozenset[int]) -> Network:
    """Return Batcher's odd-even merge sort for m entries, without the comparisons that are not needed.

    Batcher, "Sorting Networks and their Applications", 1968.  Consecutive comparisons among four
    entries form one step, so that each entry is loaded and stored once for all of them.

    Args:
        m: number of entries.
        exact: ranks that must end in their place; all if not given.
        together: sets of ranks that may end in each other's places, because the rule only sums over each set.
    """
    return np.array(_steps(m, comparisons(m, exact, *together)), dtype=np.int64).reshape(-1, 5)


def comparisons(m: int, exact: frozenset[int] | None = None, *together: frozenset[int]) -> list[Pair]:
    """Return the network as single comparisons; see `sorting_network`."""
    if exact is None:
        return _odd_even_merge_sort(m)
    # Go back from the result: a comparison is needed unless both of its entries end in the same set of those that are
    # only summed, or both are dropped.  If it is needed, both of its inputs must be exact.
    role = [next((k for k, ranks in enumerate((exact, *together)) if r in ranks), -1) for r in range(m)]
    needed = []
    for i, j in reversed(_odd_even_merge_sort(m)):
        if role[i] == role[j] != 0:
            continue
        needed.append((i, j))
        role[i] = role[j] = 0
    return needed[::-1]


def _odd_even_merge_sort(m: int) -> list[Pair]:
    pairs, length = [], 1  # length of the sorted runs
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
    """Group the comparisons greedily into the largest possible `SHAPES`, in the same order for each entry."""
    # Comparisons may change places as long as each entry meets the others in the same order.
    due: list[list[int]] = [[] for _ in range(m)]  # open comparisons of each entry, the next one last
    for n in reversed(range(len(pairs))):
        for entry in pairs[n]:
            due[entry].append(n)
    steps = []
    for n, (i, j) in enumerate(pairs):
        if n not in due[i][-1:]:  # already in a step
            continue
        shape, entries = 0, [i, j]
        for pair in _partners(pairs, due, n):
            for four in ([i, j, *pair], [*pair, i, j]):
                if (found := _shape(pairs, due, four)) > shape:
                    shape, entries = found, four
        for entry in (entries[e] for pair in SHAPES[shape] for e in pair):
            due[entry].pop()
        steps.append((shape, *entries, *(0,) * (4 - len(entries))))
    return steps


def _partners(pairs: Sequence[Pair], due: Sequence[Sequence[int]], n: int) -> list[Pair]:
    """Return comparisons that are possible now, with an entry that meets one of the n-th comparison right after it."""
    found = []
    for entry in pairs[n]:
        for follows in due[entry][-2:-1]:
            other = sum(pairs[follows]) - entry
            first = due[other][-1]
            if first not in (n, follows) and all(due[e][-1] == first for e in pairs[first]):
                found.append(pairs[first])
    return found


def _shape(pairs: Sequence[Pair], due: Sequence[Sequence[int]], four: Sequence[int]) -> int:
    """Return the largest of `SHAPES` that these entries go through next, where the first two and the last two meet."""
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
