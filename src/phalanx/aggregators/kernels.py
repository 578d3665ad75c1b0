"""The inner loops of the coordinate-wise rules, compiled.

A matrix is read once, row by row, `WIDTH` columns at a time, into a buffer of tiles of `LANES` columns.  A tile holds
one vector register or a few for each row, and stays in the nearest cache while its columns are sorted, all at once, by
a network of comparisons between rows.  What a rule wants of the sorted columns is taken from there.

Columns do not touch each other, so results do not depend on how columns are divided among threads.  A kernel gives up,
and returns False, as soon as it reads an entry that is not finite.
"""

from typing import no_type_check

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64  # columns of a tile
WIDTH = 16 * LANES  # columns that are read at a time
SAME = 1e-12  # difference of two shares of the weight that is rounding

compiled = njit(nogil=True, cache=True, boundscheck=False)


@no_type_check
def _tile_row(context, builder, kind, array, row):
    """A pointer to one row of a tile as a vector, and the vector's type."""
    element = context.get_value_type(kind.dtype)
    vector = ir.VectorType(element, LANES)
    data = context.make_array(kind)(context, builder, array).data
    first = builder.gep(data, [builder.mul(row, ir.Constant(row.type, LANES))])
    return builder.bitcast(first, vector.as_pointer()), vector


@no_type_check
def _extreme(builder, which, vector, x, y):
    """The smaller ("min") or larger ("max") of each pair of lanes; entries are finite."""
    bits = {ir.FloatType: "f32", ir.DoubleType: "f64"}[type(vector.element)]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, (vector, vector)), f"llvm.{which}num.v{LANES}{bits}"
    )
    return builder.call(function, [x, y], fastmath=("nnan", "nsz"))


@intrinsic
@no_type_check
def _compare(_, values, i, j):
    """Puts rows i and j of a tile in order, in each column."""

    def codegen(context, builder, signature, arguments):
        array, *rows = arguments
        (at_i, vector), (at_j, _) = (_tile_row(context, builder, signature.args[0], array, row) for row in rows)
        x, y = builder.load(at_i, align=4), builder.load(at_j, align=4)
        builder.store(_extreme(builder, "min", vector, x, y), at_i, align=4)
        builder.store(_extreme(builder, "max", vector, x, y), at_j, align=4)
        return context.get_dummy_value()

    return types.void(values, types.int64, types.int64), codegen


@intrinsic
@no_type_check
def _compare_weighted(_, values, weights, i, j):
    """Puts rows i and j of a tile in order, in each column, and has the weights of the entries go with them."""

    def codegen(context, builder, signature, arguments):
        (array, weight, *rows), (kind, weight_kind, *_) = arguments, signature.args
        (at_i, vector), (at_j, _) = (_tile_row(context, builder, kind, array, row) for row in rows)
        (own_i, _), (own_j, _) = (_tile_row(context, builder, weight_kind, weight, row) for row in rows)
        x, y, p, q = (builder.load(at, align=4) for at in (at_i, at_j, own_i, own_j))
        ordered = builder.fcmp_ordered("<=", x, y)
        builder.store(_extreme(builder, "min", vector, x, y), at_i, align=4)
        builder.store(_extreme(builder, "max", vector, x, y), at_j, align=4)
        builder.store(builder.select(ordered, p, q), own_i, align=4)
        builder.store(builder.select(ordered, q, p), own_j, align=4)
        return context.get_dummy_value()

    return types.void(values, weights, types.int64, types.int64), codegen


@intrinsic
@no_type_check
def _copy(_, matrix, r, column, tiles, row):
    """Copies `LANES` columns of row r of the matrix to a row of a tile; whether all of them are finite."""

    def codegen(context, builder, signature, arguments):
        (source, r, column, target, row), (kind, *_, tile_kind, _) = arguments, signature.args
        array = context.make_array(kind)(context, builder, source)
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        to, vector = _tile_row(context, builder, tile_kind, target, row)
        first = builder.gep(array.data, [builder.add(builder.mul(r, columns), column)])
        size = context.get_abi_sizeof(context.get_value_type(kind.dtype))
        entries = builder.load(builder.bitcast(first, vector.as_pointer()), align=size)
        builder.store(entries, to, align=size)
        zero_or_nan = builder.fsub(entries, entries)
        wrong = builder.bitcast(builder.fcmp_unordered("uno", zero_or_nan, zero_or_nan), ir.IntType(LANES))
        return builder.icmp_unsigned("==", wrong, ir.Constant(wrong.type, 0))

    return types.boolean(matrix, types.int64, types.int64, tiles, types.int64), codegen


@compiled
@no_type_check
def _read(matrix, start, width, tiles):
    """Copies columns of the matrix into tiles; tile t holds row r in `tiles[t * m + r]`.  Whether all are finite."""
    m, finite = matrix.shape[0], True
    for r in range(m):
        for t in range((width + LANES - 1) // LANES):
            first = start + t * LANES
            if first + LANES <= matrix.shape[1]:
                finite &= _copy(matrix, r, first, tiles, t * m + r)
            else:
                for c in range(LANES):
                    tiles[t * m + r, c] = matrix[r, min(first + c, matrix.shape[1] - 1)]
                    finite &= np.isfinite(tiles[t * m + r, c])
    return finite


@compiled
@no_type_check
def combine_ranks(matrix, network, coefficients, start, stop, result):
    """Each column's sum of coefficient times entry, over its entries in increasing order."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    total = np.empty(LANES, np.float64)
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        if not _read(matrix, begin, width, tiles):
            return False
        for t in range((width + LANES - 1) // LANES):
            tile = tiles[t * m : (t + 1) * m]
            for k in range(len(network)):
                _compare(tile, network[k, 0], network[k, 1])
            total[:] = 0
            for r in range(m):
                if coefficients[r] != 0:
                    for c in range(LANES):
                        total[c] += coefficients[r] * tile[r, c]
            for c in range(min(LANES, width - t * LANES)):
                result[begin + t * LANES + c] = total[c]
    return True


@compiled
@no_type_check
def _sort_weighted(tile, own, weights, network):
    """Sorts the columns of a tile, and has `own` hold the weight of each entry."""
    for r in range(len(tile)):
        own[r, :] = weights[r]
    for k in range(len(network)):
        _compare_weighted(tile, own, network[k, 0], network[k, 1])


@compiled
@no_type_check
def trimmed_mean(matrix, network, weights, low, high, slack, start, stop, result):
    """Each column's mean of the weight between `low` and `high`; parts of a weight up to `slack` are rounding."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    own = np.empty((m, LANES), weights.dtype)
    total, reached = np.empty(LANES, np.float64), np.empty(LANES, np.float64)
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        if not _read(matrix, begin, width, tiles):
            return False
        for t in range((width + LANES - 1) // LANES):
            tile = tiles[t * m : (t + 1) * m]
            _sort_weighted(tile, own, weights, network)
            total[:], reached[:] = 0, 0
            for r in range(m):
                for c in range(LANES):
                    before = reached[c]
                    after = before + own[r, c]
                    kept = min(after, high) - max(before, low)
                    total[c] += (kept if kept > slack else 0.0) * tile[r, c]
                    reached[c] = after
            for c in range(min(LANES, width - t * LANES)):
                result[begin + t * LANES + c] = total[c] / (high - low)
    return True


@compiled
@no_type_check
def median(matrix, network, weights, lower, upper, start, stop, result):
    """Each column's mid-point of two entries: those that the weights before leave below `lower`, and below `upper`."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    own = np.empty((m, LANES), weights.dtype)
    reached = np.empty(LANES, weights.dtype)
    low, high = np.empty(LANES, np.int32), np.empty(LANES, np.int32)
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        if not _read(matrix, begin, width, tiles):
            return False
        for t in range((width + LANES - 1) // LANES):
            tile = tiles[t * m : (t + 1) * m]
            _sort_weighted(tile, own, weights, network)
            reached[:], low[:], high[:] = 0, -1, -1
            for r in range(m):
                _step(reached, low, high, own[r], lower, upper)
            for c in range(min(LANES, width - t * LANES)):
                middle = np.float64(tile[low[c], c]) / 2 + np.float64(tile[high[c], c]) / 2
                result[begin + t * LANES + c] = middle
    return True


@compiled
@no_type_check
def _step(reached, low, high, own, lower, upper):
    """Goes on by one rank in each column."""
    for c in range(LANES):
        low[c] += reached[c] < lower
        high[c] += reached[c] < upper
        reached[c] += own[c]


@compiled
@no_type_check
def mean_around_median(matrix, network, weights, mass, slack, start, stop, result):
    """Each column's mean of the entries of so much weight that are nearest to its median."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    own = np.empty((m, LANES), weights.dtype)
    half = weights.sum() / 2
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        if not _read(matrix, begin, width, tiles):
            return False
        for t in range((width + LANES - 1) // LANES):
            tile = tiles[t * m : (t + 1) * m]
            _sort_weighted(tile, own, weights, network)
            for c in range(min(LANES, width - t * LANES)):
                result[begin + t * LANES + c] = _around(tile[:, c], own[:, c], half, mass, slack)
    return True


@compiled
@no_type_check
def _around(column, own, half, mass, slack):
    """The mean of the weight `mass` nearest to the median of a sorted column; a tie goes to the smaller entry."""
    m = len(column)
    reached, lower, upper = 0.0, 0, 0
    for r in range(m):
        if reached < half - slack:
            lower = r
        if reached <= half + slack:
            upper = r
        reached += own[r]
    centre = np.float64(column[lower]) / 2 + np.float64(column[upper]) / 2
    first, last, spare = 0, m - 1, reached - mass
    total = 0.0
    while spare > slack:  # drops what is farthest, from both ends
        from_left = centre - column[first] > column[last] - centre
        at = first if from_left else last
        weight = own[at]
        if weight > spare + slack:  # the part of it that stays
            total += (weight - spare) * column[at]
        spare -= weight
        if from_left:
            first += 1
        else:
            last -= 1
    for r in range(first, last + 1):
        total += own[r] * column[r]
    return total / mass


@compiled
@no_type_check
def mean_between(matrix, network, weights, alike, low, high, start, stop, result):
    """Each column's mean of the entries strictly between its quantiles `low` and `high`; `alike`: of equal weights."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    own = np.empty((m, LANES), weights.dtype)
    total = np.float64(weights.sum())
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        if not _read(matrix, begin, width, tiles):
            return False
        for t in range((width + LANES - 1) // LANES):
            tile = tiles[t * m : (t + 1) * m]
            _sort_weighted(tile, own, weights, network)
            for c in range(min(LANES, width - t * LANES)):
                lower = _quantile(tile[:, c], own[:, c], alike, total, low)
                upper = _quantile(tile[:, c], own[:, c], alike, total, high)
                result[begin + t * LANES + c] = _between(tile[:, c], own[:, c], lower, upper)
    return True


@compiled
@no_type_check
def _quantile(column, own, alike, total, q):
    """The value at the place q of a sorted column, between its neighbours in proportion; at the ends the outermost.

    The r-th of m equal weights has the place r / (m - 1); else the place is the share of the weight before an entry,
    and half of its own.  Equal entries come in increasing order of weight.
    """
    m = len(column)
    reached, before, r = 0.0, 0.0, 0
    while True:
        last, run, lightest, heaviest = r, 0.0, np.float64(own[r]), np.float64(own[r])
        while last < m and column[last] == column[r]:
            run, lightest, heaviest = run + own[last], min(lightest, own[last]), max(heaviest, own[last])
            last += 1
        first = r / max(m - 1, 1) if alike else (reached + lightest / 2) / total
        final = (last - 1) / max(m - 1, 1) if alike else (reached + run - heaviest / 2) / total
        if q < first - SAME and r > 0:
            left, right = np.float64(column[r - 1]), np.float64(column[r])
            return left + (right - left) * ((q - before) / (first - before))
        if q <= final + SAME or last == m:
            return np.float64(column[r])
        reached, before, r = reached + run, final, last


@compiled
@no_type_check
def _between(column, own, lower, upper):
    """The mean of the entries between two values, both excluded; their mid-point where there are none."""
    total, mass = 0.0, 0.0
    for r in range(len(column)):
        if lower < column[r] < upper:
            total += own[r] * column[r]
            mass += own[r]
    return total / mass if mass > 0 else lower / 2 + upper / 2
