"""The compiled inner loops of the influence of attackers on rules that compare whole rows.

They work on matrices of rows by rows, which are so small that calls of array operations would take longer.
"""

from typing import no_type_check

import numpy as np

from phalanx.numerics.compilation import compiling

ROUNDING = 1e-12  # sums of weights with a smaller relative difference are equal up to rounding
FEW = 32  # values up to which the largest are kept one by one

compiled = compiling(nogil=True)


@compiled
@no_type_check
def exchanged(products, share, shares, possible, kept, f, farthest):
    """Return how far a mean of chosen rows can move by attackers, and by rows that leave and rows that come.

    No row leaves or comes by more than its share of what is chosen.  If the share h of the new mean is attackers, and
    rows of the share b come, rows of h + b leave.  From the mean, these sum to minus what stays, of 1 - h - b.  One
    more attacker adds `farthest`, and moves what leaves by no more than that, so h is all that attackers hold.  For
    each b the sum is over the rows that are farthest away.  It is concave in b: largest at one of its bends, or where
    as much leaves as stays.

    Args:
        products: (m, m), inner products of the rows minus the mean.
        share: (m,), of each row in the weight.
        shares: (m,), of each row in the mean.
        possible: (m,), whether a row may be chosen.
        kept: share of the weight that is chosen.
        f: number of attackers.
        farthest: largest distance from the mean of an attacker that is chosen.

    Returns:
        The distance; the share of the attackers; `farthest`, or the largest distance of a row in the mean.
    """
    far, spare = np.sqrt(np.maximum(np.diag(products), 0.0)), np.zeros(len(share))
    for i in range(len(far)):
        if possible[i]:
            spare[i] = max(share[i] / kept - shares[i], 0.0)
        if shares[i] > 0:
            farthest = max(farthest, far[i])
    held, left_out = min(largest(share, f), kept) / kept, 1 / kept - 1
    return held * farthest + _largest_exchange(far, shares, spare, held, left_out), held, farthest


@compiled
@no_type_check
def _largest_exchange(far, shares, spare, held, left_out):
    """Return the largest sum of distance times part over rows that leave a mean and rows that come.

    Args:
        far: (m,), distances from the mean.
        shares: (m,), that can leave.
        spare: (m,), that can come.
        held: share of the attackers.
        left_out: the largest b.
    """
    order = np.argsort(-far)
    far, shares, spare = far[order], shares[order], spare[order]
    best, gone, new = 0.0, 0.0, 0.0
    for k in range(len(far) + 1):
        for bend in (new, 1 - held - gone, 0.5 - held, left_out):
            b = min(max(bend, 0.0), left_out)
            best = max(best, _heaped(far, shares, min(held + b, 1 - held - b)) + _heaped(far, spare, b))
        if k < len(far):
            gone, new = gone + shares[k], new + spare[k]
    return best


@compiled
@no_type_check
def _heaped(values, most, total):
    """Return the sum of the first values times parts of at most `most`, up to a total of the parts."""
    reached = 0.0
    for k in range(len(values)):
        part = min(most[k], total)
        if part > 0:
            reached += part * values[k]
            total -= part
    return reached


@compiled
@no_type_check
def longest_sum(products, f):
    """Return a bound on the length of the sum of any f of some vectors.

    The square of the length is the sum over pairs of their inner products.  For each of the f, those with the others
    sum to at most the f - 1 largest; and f of these sums are at most the f largest.

    Args:
        products: (m, m), inner products of the vectors.
        f: number of vectors, at least 1.
    """
    sums = np.diag(products).copy()
    for i in range(len(products)):
        others = products[i].copy()
        others[i] = -np.inf
        sums[i] += largest(others, min(f, len(products)) - 1)
    return np.sqrt(max(largest(sums, f), 0.0))


@compiled
@no_type_check
def largest(values, f):
    """Return the sum of the f largest values."""
    m = len(values)
    if f >= m:
        return values.sum()
    if f > FEW:
        return np.partition(values, m - f)[m - f :].sum()
    most, least, at = np.full(f, -np.inf), -np.inf, 0  # the largest so far, the smallest of them, and where it is
    for value in values:
        if value > least and f > 0:
            most[at], at = value, 0
            for k in range(1, f):
                if most[k] < most[at]:
                    at = k
            least = most[at]
    return most.sum()


@compiled
@no_type_check
def replaced(products, inner, square, w, far, radius, f):
    """Return how far attackers move an iteration of centered clipping by other rows; see `CenteredClipping`.

    Each adds its weight times the radius at most, and takes away what it sent: by their lengths, or by the longest sum.

    Args:
        products: (m, m), inner products of the rows.
        inner: (m,), of the rows and the centre.
        square: of the length of the centre.
        w: (m,), shares of the weight.
        far: (m,), distances of the rows from the centre.
        radius: of the clipping.
        f: number of attackers, at least 1.
    """
    held, alone = largest(w, f), largest(w * (radius + np.minimum(far, radius)), f)
    sent = weighted_products(products, inner, square, w * (radius / np.maximum(far, radius)))
    return min(alone, held * radius + longest_sum(sent, f))


@compiled
@no_type_check
def pulled(products, inner, square, w, far, radius, reach):
    """Return the inner products of the directions of rows, each times the root of its pull; see `CenteredClipping`.

    Rows that are not clipped from any centre within `reach` have none.  Other arguments are those of `replaced`.
    """
    scale = np.zeros_like(w)
    for i in range(len(w)):
        if far[i] > 0 and far[i] + reach > radius:
            scale[i] = np.sqrt(w[i] * min(1.0, radius / far[i])) / far[i]
    return weighted_products(products, inner, square, scale)


@compiled
@no_type_check
def weighted_products(products, inner, square, factors):
    """Return the inner products of rows minus a centre, each times the factor of its row."""
    made = np.empty_like(products)
    for i in range(len(inner)):
        for j in range(len(inner)):
            made[i, j] = (products[i, j] - inner[i] - inner[j] + square) * factors[i] * factors[j]
    return made


@compiled
@no_type_check
def carried(far, w, radius, f, reach, strongest, parts):
    """Return how far apart steps of centered clipping leave two centres; see `CenteredClipping`.

    Args:
        far: (m,), distances of the rows from the first centre.
        w: (m,), shares of the weight.
        radius: of the clipping.
        f: number of attackers.
        reach: distance of the second centre from the first, at most.
        strongest: largest eigenvalue of the inner products of the directions of rows that can be clipped, each times
            the root of its pull.
        parts: number of parts of the distance, over which the bound is integrated.
    """
    total, pull = 0.0, np.empty(len(w))
    heaviest = largest(w, f)
    for part in range(parts):
        t = reach * (part + 1) / parts  # the end of the part, where the bound is largest
        lost, turned = heaviest, 0.0
        for i in range(len(w)):
            pull[i] = w[i] * min(1.0, radius / (far[i] + t))
            if far[i] + t > radius:
                lost += w[i]
                # the squared chord of the angle by which a direction turns
                chord = 2 - 2 * np.sqrt(1 - (t / far[i]) ** 2) if t < far[i] else 4.0
                turned += w[i] * min(1.0, radius / max(far[i], radius)) * chord
        along = (np.sqrt(strongest) + np.sqrt(turned)) ** 2
        total += min(lost, 1.0, 1 - pull.sum() + largest(pull, f) + along)
    return total * reach / parts


@compiled
@no_type_check
def sums_up_to(values, own, masses):
    """Return, for each row, the sum of values times their weights up to a total weight, of the last one in part.

    Args:
        values: (k, m).
        own: (k, m), their weights.
        masses: (k,), the totals.
    """
    sums = np.zeros(len(values))
    for i in range(len(values)):
        left, rounding = masses[i], masses[i] * ROUNDING
        for j in range(values.shape[1]):
            part = min(own[i, j], left)
            sums[i] += part * values[i, j]
            left -= part
            if left <= rounding:
                break
    return sums
