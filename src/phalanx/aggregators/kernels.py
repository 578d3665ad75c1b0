"""The inner loops of the coordinate-wise rules, compiled.

A matrix is read once, `LANES` columns at a time, into a tile.  A tile holds a few vector registers for each row, and
stays in the nearest cache while its columns are sorted, all at once, by a network of comparisons between rows.  What a
rule wants of the sorted columns is taken from there, and meanwhile later columns are fetched from memory.

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
AHEAD = 8 * LANES  # columns that are fetched at a time
LINE = 64  # bytes that come from memory together
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
def _copy(_, matrix, r, column, tile, row):
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

    return types.boolean(matrix, types.int64, types.int64, tile, types.int64), codegen


@intrinsic
@no_type_check
def _prefetch(_, matrix, r, column):
    """Asks for the entries at a place of the matrix, without waiting for them; the place may lie outside of it."""

    def codegen(context, builder, signature, arguments):
        (source, r, column), (kind, *_) = arguments, signature.args
        array = context.make_array(kind)(context, builder, source)
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        at = builder.gep(array.data, [builder.add(builder.mul(r, columns), column)])
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), (cgutils.voidptr_t, flag, flag, flag))
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        to_read, second_cache, data = flag(0), flag(2), flag(1)
        builder.call(function, [builder.bitcast(at, cgutils.voidptr_t), to_read, second_cache, data])
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64), codegen


@compiled
@no_type_check
def _tile(m, like):
    """Memory for a tile of m rows, laid out so that no vector lies across two lines of the cache."""
    memory = np.empty(m * LANES + LINE // like.itemsize, like.dtype)
    first = -memory.ctypes.data % LINE // like.itemsize
    return memory[first : first + m * LANES].reshape(m, LANES)


@compiled
@no_type_check
def _read(matrix, start, first, stop, tile):
    """Copies the columns of the matrix from `first` on to a tile, and fetches later ones; whether all are finite.

    Columns are fetched `AHEAD` at a time, so that memory is read in long runs: with each tile some rows of those after
    the ones that the tile is among, counted from `start`.
    """
    m, finite = matrix.shape[0], True
    part, parts = (first - start) % AHEAD // LANES, AHEAD // LANES
    next_ = first - part * LANES + AHEAD
    for r in range(part * m // parts, (part + 1) * m // parts):
        for column in range(next_, min(next_ + AHEAD, stop), LINE // matrix.itemsize):
            _prefetch(matrix, r, column)
    for r in range(m):
        if first + LANES <= matrix.shape[1]:
            finite &= _copy(matrix, r, first, tile, r)
        else:
            for c in range(LANES):
                tile[r, c] = matrix[r, min(first + c, matrix.shape[1] - 1)]
                finite &= np.isfinite(tile[r, c])
    return finite


@intrinsic
@no_type_check
def _sum_ranks(_, tile, coefficients, first, last, made):
    """The sum of coefficient times entry of each column of a tile, over rows from `first` to `last`."""

    def codegen(context, builder, signature, arguments):
        (tile, factors, first, last, made), (kind, factor_kind, _, _, made_kind) = arguments, signature.args
        wide = ir.VectorType(ir.DoubleType(), LANES)
        total = cgutils.alloca_once(builder, wide)
        builder.store(ir.Constant(wide, None), total)
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(wide, (wide, wide, wide)), f"llvm.fma.v{LANES}f64"
        )
        factor_data = context.make_array(factor_kind)(context, builder, factors).data
        with cgutils.for_range_slice(builder, first, last, first.type(1)) as (row, _):
            at, _ = _tile_row(context, builder, kind, tile, row)
            factor = _everywhere(builder, builder.load(builder.gep(factor_data, [row])))
            entries = _in_double(builder, builder.load(at, align=4), wide)
            builder.store(builder.call(fma, [factor, entries, builder.load(total)]), total)
        _store(context, builder, made_kind, made, builder.load(total))
        return context.get_dummy_value()

    return types.void(tile, coefficients, types.int64, types.int64, made), codegen


@no_type_check
def _everywhere(builder, value):
    """A vector of one value."""
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))


@no_type_check
def _in_double(builder, entries, wide):
    """Entries or weights of a tile's row as float64."""
    if isinstance(entries.type.element, ir.IntType):
        return builder.sitofp(entries, wide)
    return entries if entries.type == wide else builder.fpext(entries, wide)


@no_type_check
def _store(context, builder, kind, array, values):
    """Writes a vector to an array of float64."""
    data = context.make_array(kind)(context, builder, array).data
    builder.store(values, builder.bitcast(data, values.type.as_pointer()), align=8)


@compiled
@no_type_check
def combine_ranks(matrix, network, coefficients, result, parts):
    """Each column's sum of coefficient times entry, over its entries in increasing order."""
    m, ranks = matrix.shape[0], np.flatnonzero(coefficients)
    tile = _tile(m, matrix)
    made = np.empty(LANES, np.float64)
    for n in range(len(parts)):
        start, stop = parts[n, 0], parts[n, 1]
        for first in range(start, stop, LANES):
            if not _read(matrix, start, first, stop, tile):
                return False
            for k in range(len(network)):
                _compare(tile, network[k, 0], network[k, 1])
            _sum_ranks(tile, coefficients, ranks[0], ranks[-1] + 1, made)
            _write(made, first, stop, result)
    return True


@compiled
@no_type_check
def _write(made, start, stop, result):
    """Writes what a tile gave to its columns of the result."""
    columns = result[start : min(start + LANES, stop)]
    for c in range(len(columns)):
        columns[c] = made[c]


@compiled
@no_type_check
def _sort_weighted(tile, own, weights, network):
    """Sorts the columns of a tile, and has `own` hold the weight of each entry."""
    for r in range(len(tile)):
        own[r, :] = weights[r]
    for k in range(len(network)):
        _compare_weighted(tile, own, network[k, 0], network[k, 1])


@intrinsic
@no_type_check
def _sum_between(_, tile, own, low, high, slack, made):
    """The sum of each column's entries times the part of their weight between `low` and `high`; the tile is sorted."""

    def codegen(context, builder, signature, arguments):
        (tile, own, low, high, slack, made), (kind, own_kind, _, _, _, made_kind) = arguments, signature.args
        wide = ir.VectorType(ir.DoubleType(), LANES)
        nothing = ir.Constant(wide, None)
        total, reached = (cgutils.alloca_once(builder, wide) for _ in range(2))
        for held in (total, reached):
            builder.store(nothing, held)
        low, high, slack = (_everywhere(builder, bound) for bound in (low, high, slack))
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(wide, (wide, wide, wide)), f"llvm.fma.v{LANES}f64"
        )
        rows = cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, tile).shape)[0]
        with cgutils.for_range(builder, rows) as loop:
            entries = builder.load(_tile_row(context, builder, kind, tile, loop.index)[0], align=4)
            weights = builder.load(_tile_row(context, builder, own_kind, own, loop.index)[0], align=4)
            before = builder.load(reached)
            after = builder.fadd(before, _in_double(builder, weights, wide))
            end = _extreme(builder, "min", wide, after, high)
            kept = builder.fsub(end, _extreme(builder, "max", wide, before, low))
            kept = builder.select(builder.fcmp_ordered(">", kept, slack), kept, nothing)
            product = [kept, _in_double(builder, entries, wide), builder.load(total)]
            builder.store(builder.call(fma, product), total)
            builder.store(after, reached)
        _store(context, builder, made_kind, made, builder.load(total))
        return context.get_dummy_value()

    return types.void(tile, own, types.float64, types.float64, types.float64, made), codegen


@compiled
@no_type_check
def trimmed_mean(matrix, network, weights, low, high, slack, result, parts):
    """Each column's mean of the weight between `low` and `high`; parts of a weight up to `slack` are rounding."""
    m = matrix.shape[0]
    tile = _tile(m, matrix)
    own = _tile(m, weights)
    made = np.empty(LANES, np.float64)
    for n in range(len(parts)):
        start, stop = parts[n, 0], parts[n, 1]
        for first in range(start, stop, LANES):
            if not _read(matrix, start, first, stop, tile):
                return False
            _sort_weighted(tile, own, weights, network)
            _sum_between(tile, own, low, high, slack, made)
            made /= high - low
            _write(made, first, stop, result)
    return True


@intrinsic
@no_type_check
def _middle(_, tile, own, lower, upper, made):
    """Each column's mid-point of two entries of a sorted tile: the last ones with less weight than a bound before."""

    def codegen(context, builder, signature, arguments):
        (tile, own, lower, upper, made), (kind, own_kind, _, _, made_kind) = arguments, signature.args
        start, vector = _tile_row(context, builder, kind, tile, ir.IntType(64)(0))
        _, weight_vector = _tile_row(context, builder, own_kind, own, ir.IntType(64)(0))
        reached = cgutils.alloca_once(builder, weight_vector)
        builder.store(ir.Constant(weight_vector, None), reached)
        ends = [cgutils.alloca_once(builder, vector) for _ in range(2)]
        for end in ends:
            builder.store(builder.load(start, align=4), end)
        bounds = [_everywhere(builder, bound) for bound in (lower, upper)]
        below = builder.icmp_signed if isinstance(weight_vector.element, ir.IntType) else builder.fcmp_ordered
        add = builder.add if isinstance(weight_vector.element, ir.IntType) else builder.fadd
        rows = cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, tile).shape)[0]
        with cgutils.for_range(builder, rows) as loop:
            entries = builder.load(_tile_row(context, builder, kind, tile, loop.index)[0], align=4)
            weights = builder.load(_tile_row(context, builder, own_kind, own, loop.index)[0], align=4)
            before = builder.load(reached)
            for bound, end in zip(bounds, ends, strict=True):
                builder.store(builder.select(below("<", before, bound), entries, builder.load(end)), end)
            builder.store(add(before, weights), reached)
        wide = ir.VectorType(ir.DoubleType(), LANES)
        half = _everywhere(builder, ir.DoubleType()(0.5))
        halves = [builder.fmul(half, _in_double(builder, builder.load(end), wide)) for end in ends]
        _store(context, builder, made_kind, made, builder.fadd(*halves))
        return context.get_dummy_value()

    bound = types.int32 if own.dtype == types.int32 else types.float64
    return types.void(tile, own, bound, bound, made), codegen


@compiled
@no_type_check
def median(matrix, network, weights, lower, upper, result, parts):
    """Each column's mid-point of two entries: those that the weights before leave below `lower`, and below `upper`."""
    m = matrix.shape[0]
    tile = _tile(m, matrix)
    own = _tile(m, weights)
    made = np.empty(LANES, np.float64)
    for n in range(len(parts)):
        start, stop = parts[n, 0], parts[n, 1]
        for first in range(start, stop, LANES):
            if not _read(matrix, start, first, stop, tile):
                return False
            _sort_weighted(tile, own, weights, network)
            _middle(tile, own, lower, upper, made)
            _write(made, first, stop, result)
    return True


@compiled
@no_type_check
def mean_around_median(matrix, network, weights, mass, slack, result, parts):
    """Each column's mean of the entries of so much weight that are nearest to its median."""
    m = matrix.shape[0]
    tile = _tile(m, matrix)
    own = _tile(m, weights)
    half = weights.sum() / 2
    for n in range(len(parts)):
        start, stop = parts[n, 0], parts[n, 1]
        for first in range(start, stop, LANES):
            if not _read(matrix, start, first, stop, tile):
                return False
            _sort_weighted(tile, own, weights, network)
            for c in range(min(LANES, stop - first)):
                result[first + c] = _around(tile[:, c], own[:, c], half, mass, slack)
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
def mean_between(matrix, network, weights, alike, low, high, result, parts):
    """Each column's mean of the entries strictly between its quantiles `low` and `high`; `alike`: of equal weights."""
    m = matrix.shape[0]
    tile = _tile(m, matrix)
    own = _tile(m, weights)
    total = np.float64(weights.sum())
    for n in range(len(parts)):
        start, stop = parts[n, 0], parts[n, 1]
        for first in range(start, stop, LANES):
            if not _read(matrix, start, first, stop, tile):
                return False
            _sort_weighted(tile, own, weights, network)
            for c in range(min(LANES, stop - first)):
                lower = _quantile(tile[:, c], own[:, c], alike, total, low)
                upper = _quantile(tile[:, c], own[:, c], alike, total, high)
                result[first + c] = _between(tile[:, c], own[:, c], lower, upper)
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
