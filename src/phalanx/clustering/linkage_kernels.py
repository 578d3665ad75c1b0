"""The compiled inner loops of the clusterings.

Matrices are read row by row.  Prim's algorithm keeps the best item of each block of `BLOCK` items, and searches a block
again only if it has changed, so the search for the next item is much cheaper than O(m).  Ties are broken by index, so
the result does not depend on the blocks.
"""

from typing import no_type_check

import numpy as np

from phalanx.numerics.compilation import compiling

BLOCK = 256

compiled = compiling(nogil=True, boundscheck=False)


@compiled
@no_type_check
def _finite(row):
    """Return whether no entry is NaN or infinite."""
    finite = True
    for i in range(len(row)):
        finite &= row[i] - row[i] == 0
    return finite


@compiled
@no_type_check
def _highest(values):
    high = values[0]
    for i in range(1, len(values)):
        high = max(high, values[i])
    return high


# Single linkage


@compiled
@no_type_check
def spanning_tree(alpha, order, parent, strength):
    """Run Prim's algorithm from item 0 and write the edges; return False if an entry that is read is not finite."""
    m = len(alpha)
    best = np.full(m, -np.inf, alpha.dtype)  # largest similarity of each item outside to an item of the tree
    inside = np.zeros(m, alpha.dtype)  # inf for items of the tree: similarity - inf never wins, without a branch
    nearest = np.zeros(m, np.int64)
    tops = np.full((m + BLOCK - 1) // BLOCK, -np.inf, alpha.dtype)  # the highest of each block of `best`
    j = 0
    for edge in range(m - 1):
        best[j], inside[j] = -np.inf, np.inf
        for b in range(len(tops)):
            part = slice(b * BLOCK, min((b + 1) * BLOCK, m))
            row = alpha[j, part]
            if not _finite(row):
                return False
            if _raise(row, j, best[part], nearest[part], inside[part]) or j // BLOCK == b:
                tops[b] = _highest(best[part])
        b = tops.argmax()
        j = b * BLOCK
        while best[j] != tops[b]:
            j += 1
        order[edge], parent[edge], strength[edge] = j, nearest[j], best[j]
    return _finite(alpha[j])


@compiled
@no_type_check
def _raise(row, j, best, nearest, inside):
    """Update `best` and `nearest` after item j has joined; return whether any item came closer to the tree."""
    any_closer = False
    for i in range(len(row)):
        similarity, before, by = row[i] - inside[i], best[i], nearest[i]
        closer = similarity > before
        best[i] = similarity if closer else before
        nearest[i] = j if closer else by
        any_closer |= closer
    return any_closer


# Complete and average linkage


@compiled
@no_type_check
def linkage_by_chains(alpha, joined, average):
    """Join groups by complete or average linkage, along chains of nearest neighbours, until two groups are left.

    A chain goes from a group to its most similar group, and so on, until two groups are each other's most similar one.
    Joining these two gives the same groups as always joining the most similar pair, in O(m^2) instead of O(m^3) time.

    Args:
        alpha: (m, m), similarities; overwritten.  Of two mirrored entries the one above the diagonal counts: in a
            matrix that is not symmetric a chain might never end, and would be written beyond its end.
        joined: (m,), receives for each item the lower index to which its group was joined; two items keep their own.
        average: whether groups are as similar as their items are on average; as their least similar ones if not.

    Returns:
        False, with an undefined result, if an entry is not finite.
    """
    m = len(alpha)
    for i in range(m):
        if not _finite(alpha[i]):
            return False
        alpha[i, i] = -np.inf
        for j in range(i):
            alpha[i, j] = alpha[j, i]
        joined[i] = i
    alone = np.ones(m, np.bool_)  # the item of the lowest index represents its group
    items = np.ones(m, np.int64)
    chain, length, first = np.empty(m, np.int64), 0, 0
    for _ in range(m - 2):
        if length == 0:
            while not alone[first]:
                first += 1
            chain[0], length = first, 1
        while True:
            i = chain[length - 1]
            before = chain[length - 2] if length > 1 else i
            j = _nearest(alpha[i], alone, before)
            if length > 1 and j == before:
                break
            chain[length] = j
            length += 1
        length -= 2
        i, j = min(i, j), max(i, j)
        joined[j], alone[j] = i, False
        _join(alpha, alone, i, j, items[i] / (items[i] + items[j]) if average else -1.0)
        items[i] += items[j]
    return True


@compiled
@no_type_check
def _nearest(row, alone, before):
    """Return the most similar group; at a tie `before`, then the lowest index."""
    top, at = row[before], before
    for i in range(len(row)):
        if alone[i] and row[i] > top:
            top, at = row[i], i
    return at


@compiled
@no_type_check
def _join(alpha, alone, i, j, share):
    """Merge group j into i: the smaller similarity to another group, or the mean by shares unless negative."""
    for k in range(len(alpha)):
        if share < 0:
            alpha[i, k] = min(alpha[i, k], alpha[j, k])
        else:
            alpha[i, k] = share * alpha[i, k] + (1 - share) * alpha[j, k]
    for k in range(len(alpha)):
        if alone[k]:
            alpha[k, i] = alpha[i, k]
