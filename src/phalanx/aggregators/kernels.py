"""The inner loops of the coordinate-wise rules, compiled.

A matrix is read once, row by row, `WIDTH` columns at a time, into a buffer of tiles of `LANES` columns.  A tile holds
one vector register or a few for each row, and stays in the nearest cache while its columns are sorted, all at once, by
a network of comparisons between rows.  What a rule wants of the sorted columns is taken from there.

Columns do not touch each other, so results do not depend on how columns are divided among threads.
"""

from typing import no_type_check

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64  # columns of a tile
WIDTH = 16 * LANES  # columns that are read at a time

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
def _compare_owned(_, values, owners, i, j):
    """Puts rows i and j of a tile in order, in each column, and has the owners of the entries go with them."""

    def codegen(context, builder, signature, arguments):
        (array, owner, *rows), (kind, owner_kind, *_) = arguments, signature.args
        (at_i, vector), (at_j, _) = (_tile_row(context, builder, kind, array, row) for row in rows)
        (own_i, _), (own_j, _) = (_tile_row(context, builder, owner_kind, owner, row) for row in rows)
        x, y, p, q = (builder.load(at, align=4) for at in (at_i, at_j, own_i, own_j))
        ordered = builder.fcmp_ordered("<=", x, y)
        builder.store(_extreme(builder, "min", vector, x, y), at_i, align=4)
        builder.store(_extreme(builder, "max", vector, x, y), at_j, align=4)
        builder.store(builder.select(ordered, p, q), own_i, align=4)
        builder.store(builder.select(ordered, q, p), own_j, align=4)
        return context.get_dummy_value()

    return types.void(values, owners, types.int64, types.int64), codegen


@compiled
@no_type_check
def _read(matrix, start, width, tiles):
    """Copies columns of the matrix into tiles; tile t holds row r in `tiles[t * m + r]`."""
    m = matrix.shape[0]
    for r in range(m):
        for t in range((width + LANES - 1) // LANES):
            first = start + t * LANES
            if first + LANES <= matrix.shape[1]:
                for c in range(LANES):
                    tiles[t * m + r, c] = matrix[r, first + c]
            else:
                for c in range(LANES):
                    tiles[t * m + r, c] = matrix[r, min(first + c, matrix.shape[1] - 1)]


@compiled
@no_type_check
def combine_ranks(matrix, network, coefficients, start, stop, result):
    """Each column's sum of coefficient times entry, over its entries in increasing order."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    total = np.empty(LANES, np.float64)
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        _read(matrix, begin, width, tiles)
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


@compiled
@no_type_check
def _sort_owned(tile, owners, network):
    """Sorts the columns of a tile, and notes which row each entry came from."""
    for r in range(len(tile)):
        owners[r, :] = r
    for k in range(len(network)):
        _compare_owned(tile, owners, network[k, 0], network[k, 1])


@compiled
@no_type_check
def trimmed_mean(matrix, network, weights, low, high, slack, start, stop, result):
    """Each column's mean of the weight between `low` and `high`; parts of a weight up to `slack` are rounding."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    owners = np.empty((m, LANES), np.int32)
    total, reached = np.empty(LANES, np.float64), np.empty(LANES, np.float64)
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        _read(matrix, begin, width, tiles)
        for t in range((width + LANES - 1) // LANES):
            tile = tiles[t * m : (t + 1) * m]
            _sort_owned(tile, owners, network)
            total[:], reached[:] = 0, 0
            for r in range(m):
                for c in range(LANES):
                    before = reached[c]
                    after = before + weights[owners[r, c]]
                    kept = min(after, high) - max(before, low)
                    total[c] += (kept if kept > slack else 0.0) * tile[r, c]
                    reached[c] = after
            for c in range(min(LANES, width - t * LANES)):
                result[begin + t * LANES + c] = total[c] / (high - low)


@compiled
@no_type_check
def median(matrix, network, weights, half, slack, start, stop, result):
    """Each column's mid-point of the entries at which the weight reaches, and exceeds, `half`, up to `slack`."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    owners = np.empty((m, LANES), np.int32)
    reached = np.empty(LANES, np.float64)
    lower, upper = np.empty(LANES, matrix.dtype), np.empty(LANES, matrix.dtype)
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        _read(matrix, begin, width, tiles)
        for t in range((width + LANES - 1) // LANES):
            tile = tiles[t * m : (t + 1) * m]
            _sort_owned(tile, owners, network)
            reached[:] = 0
            for r in range(m):
                for c in range(LANES):
                    lower[c] = tile[r, c] if reached[c] < half - slack else lower[c]
                    upper[c] = tile[r, c] if reached[c] <= half + slack else upper[c]
                    reached[c] += weights[owners[r, c]]
            for c in range(min(LANES, width - t * LANES)):
                result[begin + t * LANES + c] = np.float64(lower[c]) / 2 + np.float64(upper[c]) / 2


@compiled
@no_type_check
def mean_around_median(matrix, network, weights, mass, slack, start, stop, result):
    """Each column's mean of the entries of so much weight that are nearest to its median."""
    m = matrix.shape[0]
    tiles = np.empty((WIDTH // LANES * m, LANES), matrix.dtype)
    owners = np.empty((m, LANES), np.int32)
    half = weights.sum() / 2
    for begin in range(start, stop, WIDTH):
        width = min(WIDTH, stop - begin)
        _read(matrix, begin, width, tiles)
        for t in range((width + LANES - 1) // LANES):
            tile = tiles[t * m : (t + 1) * m]
            _sort_owned(tile, owners, network)
            for c in range(min(LANES, width - t * LANES)):
                result[begin + t * LANES + c] = _around(tile[:, c], owners[:, c], weights, half, mass, slack)


@compiled
@no_type_check
def _around(column, owner, weights, half, mass, slack):
    """The mean of the weight `mass` nearest to the median of a sorted column; a tie goes to the smaller entry."""
    m = len(column)
    reached, lower, upper = 0.0, 0, 0
    for r in range(m):
        if reached < half - slack:
            lower = r
        if reached <= half + slack:
            upper = r
        reached += weights[owner[r]]
    centre = np.float64(column[lower]) / 2 + np.float64(column[upper]) / 2
    first, last, spare = 0, m - 1, reached - mass
    total = 0.0
    while spare > slack:  # drops what is farthest, from both ends
        from_left = centre - column[first] > column[last] - centre
        at = first if from_left else last
        weight = weights[owner[at]]
        if weight > spare + slack:  # the part of it that stays
            total += (weight - spare) * column[at]
        spare -= weight
        if from_left:
            first += 1
        else:
            last -= 1
    for r in range(first, last + 1):
        total += weights[owner[r]] * column[r]
    return total / mass
