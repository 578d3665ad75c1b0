"""The compiled inner loops of the coordinate-wise rules.

A matrix is read once, `LANES` columns at a time, into a tile.  A tile holds a few vector registers for each row and
stays in the L1 cache while a sorting network compares and exchanges its rows, which sorts all of its columns at once.
A rule then reads its result from the sorted columns.  Between the steps of the network the next tile is read row by
row, and later columns are prefetched, so that sorting and memory access overlap.

Columns are independent, so results do not depend on how they are divided among threads: `parts` are ranges of columns,
and each thread claims its next range before it has finished the current one.  A kernel stops and returns False when it
has read an entry that is not finite.

Everything that is compiled into a kernel, except `claim`, is in this file, because Numba recompiles its cached kernels
when this file changes, but not when an imported file does.
"""

from typing import no_type_check

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from phalanx.numerics.compilation import compiling
from phalanx.numerics.threads import claim

LANES = 64  # columns of a tile
TILES = 8  # tiles prefetched together, at most: memory is fastest in long consecutive reads
PREFETCHED = 1 << 19  # bytes prefetched together, at most: they have to fit into the L2 cache
LINE = 64  # bytes of a cache line
SAME = 1e-12  # shares of the weight that differ by less are equal up to rounding
A, B, C, D = range(4)
SHAPES: tuple[tuple[tuple[int, int], ...], ...] = (  # up to four entries, compared in one step
    ((A, B),),
    ((A, B), (C, D), (C, B)),
    ((A, B), (C, D), (B, C)),
    ((A, B), (C, D), (A, C)),
    ((A, B), (C, D), (B, D)),
    ((A, B), (C, D), (A, C), (B, D)),
    ((A, B), (C, D), (A, C), (B, D), (B, C)),
)

# Where a thread is in its work, as indices into an array: the current part, the part claimed next, the first column of
# the current tile, where the current part ends, which of the two tiles is current, whether all entries were finite.
PART, THEN, FIRST, STOP, TILE, SOUND = range(6)

compiled = compiling(nogil=True, boundscheck=False)


@no_type_check
def _tile_row(context, builder, kind, array, row):
    """Return a pointer to one row of a tile as a vector, and the type of that vector."""
    element = context.get_value_type(kind.dtype)
    vector = ir.VectorType(element, LANES)
    data = context.make_array(kind)(context, builder, array).data
    first = builder.gep(data, [builder.mul(row, ir.Constant(row.type, LANES))])
    return builder.bitcast(first, vector.as_pointer()), vector


@no_type_check
def _extreme(builder, which, vector, x, y):
    """Return the smaller ("min") or larger ("max") of each pair of lanes; entries are finite."""
    # minnum and maxnum become one instruction only if the compiler may ignore NaN and the sign of zero.
    bits = {ir.FloatType: "f32", ir.DoubleType: "f64"}[type(vector.element)]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, (vector, vector)), f"llvm.{which}num.v{vector.count}{bits}"
    )
    return builder.call(function, [x, y], fastmath=("nnan", "nsz"))


@no_type_check
def _in_order(builder, values, weights, i, j):
    """Put entries i and j of the loaded rows in order, lane by lane, together with their weights, if any."""
    x, y = values[i], values[j]
    values[i], values[j] = (_extreme(builder, which, x.type, x, y) for which in ("min", "max"))
    if weights:
        ordered, p, q = builder.fcmp_ordered("<=", x, y), weights[i], weights[j]
        weights[i], weights[j] = builder.select(ordered, p, q), builder.select(ordered, q, p)


@intrinsic
@no_type_check
def _step(_, tiles, shape, a, b, c, d):
    """Do the comparisons of one of `SHAPES` between rows a, b, c and d of a tile, in each column.

    `tiles` holds the entries and, for a weighted rule, their weights.  Rows are loaded and stored once for all of the
    comparisons, with as many columns at a time as fit into registers.
    """

    def codegen(context, builder, signature, arguments):
        tiles, shape, *rows = arguments
        arrays = list(zip(signature.args[0], cgutils.unpack_tuple(builder, tiles), strict=True))
        lanes = LANES // len(arrays) ** 2  # weights need registers too, and masks to select them by
        done = builder.append_basic_block("done")
        choice = builder.switch(shape, done)
        for number, comparisons in enumerate(SHAPES):
            case = builder.append_basic_block(f"shape{number}")
            choice.add_case(ir.Constant(shape.type, number), case)
            builder.position_at_end(case)
            used = sorted({row for pair in comparisons for row in pair})
            for column in range(0, LANES, lanes):
                places = [[_part(context, builder, *array, rows[r], column, lanes) for r in used] for array in arrays]
                loaded = [[builder.load(place, align=4) for place in of] for of in places]
                values, weights = loaded[0], loaded[1] if len(loaded) > 1 else None
                for i, j in comparisons:
                    _in_order(builder, values, weights, i, j)
                for of, entries in zip(places, loaded, strict=True):
                    for place, entry in zip(of, entries, strict=True):
                        builder.store(entry, place, align=4)
            builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(tiles, *(types.int64,) * 5), codegen


@no_type_check
def _part(context, builder, kind, array, row, column, lanes):
    """Return a pointer to some columns of a tile's row, as a vector."""
    start, whole = _tile_row(context, builder, kind, array, row)
    vector = ir.VectorType(whole.element, lanes)
    first = builder.bitcast(start, whole.element.as_pointer())
    return builder.bitcast(builder.gep(first, [ir.Constant(row.type, column)]), vector.as_pointer())


@intrinsic
@no_type_check
def _copy(_, matrix, r, column, tile):
    """Copy `LANES` columns of row r of the matrix to a tile, and return whether all of them are finite."""

    def codegen(context, builder, signature, arguments):
        (source, r, column, target), (kind, _, _, tile_kind) = arguments, signature.args
        element = context.get_value_type(kind.dtype)
        size = context.get_abi_sizeof(element)
        array = context.make_array(kind)(context, builder, source)
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        start = builder.gep(array.data, [builder.add(builder.mul(r, columns), column)])
        vector = ir.VectorType(element, LINE // size)
        zero_or_nan = ir.Constant(vector, None)
        for lane in range(0, LANES, vector.count):
            place = builder.gep(start, [ir.Constant(r.type, lane)])
            entries = builder.load(builder.bitcast(place, vector.as_pointer()), align=size)
            builder.store(entries, _part(context, builder, tile_kind, target, r, lane, vector.count), align=size)
            # x - x is 0 if x is finite, else NaN, which stays NaN in a sum: one test at the end is enough.
            zero_or_nan = builder.fadd(zero_or_nan, builder.fsub(entries, entries))
        wrong = builder.bitcast(builder.fcmp_unordered("uno", zero_or_nan, zero_or_nan), ir.IntType(vector.count))
        return builder.icmp_unsigned("==", wrong, ir.Constant(wrong.type, 0))

    return types.boolean(matrix, types.int64, types.int64, tile), codegen


@intrinsic
@no_type_check
def _prefetch(_, matrix, r, column):
    """Prefetch `LANES` columns of row r of the matrix into the L2 cache; they may lie outside of the matrix."""

    def codegen(context, builder, signature, arguments):
        (source, r, column), (kind, *_) = arguments, signature.args
        array = context.make_array(kind)(context, builder, source)
        columns = cgutils.unpack_tuple(builder, array.shape)[1]
        at = builder.gep(array.data, [builder.add(builder.mul(r, columns), column)])
        flag = ir.IntType(32)
        size = context.get_abi_sizeof(context.get_value_type(kind.dtype))
        function = ir.FunctionType(ir.VoidType(), (cgutils.voidptr_t, flag, flag, flag))
        prefetch = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0i8")
        to_read, second_cache, data = flag(0), flag(2), flag(1)
        for line in range(0, LANES, LINE // size):
            place = builder.gep(at, [ir.Constant(r.type, line)])
            builder.call(prefetch, [builder.bitcast(place, cgutils.voidptr_t), to_read, second_cache, data])
        return context.get_dummy_value()

    return types.void(matrix, types.int64, types.int64), codegen


@compiled
@no_type_check
def _tile(m, like):
    """Return a tile of m rows, aligned so that no vector crosses a cache line."""
    memory = np.empty(m * LANES + LINE // like.itemsize, like.dtype)
    first = -memory.ctypes.data % LINE // like.itemsize
    return memory[first : first + m * LANES].reshape(m, LANES)


@compiled
@no_type_check
def _begin(matrix, parts, taken):
    """Return two tiles and a thread's place in its work.

    The first tile holds the first columns of the thread's first part.  The place is one step before them.
    """
    # The first tile is read here, so that `_sort` always has a tile to sort and one to read.
    m, place = matrix.shape[0], np.zeros(SOUND + 1, np.int64)
    tiles = _tile(2 * m, matrix).reshape(2, m, LANES)
    place[THEN], place[TILE] = claim(taken), 1
    place[SOUND] = place[THEN] >= len(parts) or _read(matrix, parts[place[THEN], 0], tiles[0])
    return tiles, place


@compiled
@no_type_check
def _read(matrix, first, tile):
    """Copy columns from `first` on to a tile, and return whether all of them are finite."""
    columns, finite = matrix.shape[1], True
    for row in range(matrix.shape[0]):
        if first + LANES <= columns:
            finite &= _copy(matrix, row, first, tile)
        else:
            for c in range(LANES):  # repeat the last column to fill the tile
                tile[row, c] = matrix[row, min(first + c, columns - 1)]
                finite &= np.isfinite(tile[row, c])
    return finite


@compiled
@no_type_check
def _sort(tiles, network, matrix, parts, place, next_):
    """Apply the network to the columns of a tile, and meanwhile read the next tile of the matrix.

    Args:
        tiles: the tile with the entries and, for a weighted rule, the tile with their weights.
        network: from `sorting_network`.
        matrix: (m, d), the matrix that is read.
        parts: ranges of columns.
        place: the thread's place in its work.
        next_: the other tile, which receives the next columns.

    Returns:
        Whether all entries that were read are finite.
    """
    m, first, stop, then, steps = matrix.shape[0], place[FIRST], place[STOP], place[THEN], max(1, len(network))
    column, rows, finite = first + LANES, m, True
    if column >= stop:
        column, rows = (parts[then, 0], m) if then < len(parts) else (0, 0)
    if rows and column + LANES > matrix.shape[1]:
        finite, rows = _read(matrix, column, next_), 0
    # Tiles are prefetched in runs: each row of `run` tiles is one long read.  Each tile of the current run prefetches
    # its share of the rows of the next run.
    run = max(1, min(TILES, PREFETCHED // (m * LANES * matrix.itemsize)))
    turn = (first - parts[place[PART], 0]) // LANES % run  # index of the tile within its run
    fetched, later, end = turn * m // run, turn * m % run, first + (run - turn) * LANES
    row, gap = 0, max(1, steps // m)  # steps of the network between two reads
    some, wait = -(-m // (steps // gap)), 0
    for k in range(steps):
        if k < len(network):
            _step(tiles, network[k, 0], network[k, 1], network[k, 2], network[k, 3], network[k, 4])
        if wait > 0:
            wait -= 1
            continue
        wait = gap - 1
        for _ in range(min(some, m - row)):
            if row < rows:
                finite &= _copy(matrix, row, column, next_)
            if end + later * LANES < stop:
                _prefetch(matrix, fetched, end + later * LANES)
            row, later = row + 1, later + 1
            if later == run:
                fetched, later = fetched + 1, 0
    return finite


@compiled
@no_type_check
def _sorted(tiles, place, matrix, network, parts, taken):
    """Go on to the next tile and apply the network to it; return False if no tile is left."""
    if not _advance(place, parts, taken):
        return False
    tile, next_ = tiles[place[TILE]], tiles[1 - place[TILE]]
    place[SOUND] = _sort((tile,), network, matrix, parts, place, next_)
    return True


@compiled
@no_type_check
def _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
    """Do what `_sorted` does for a weighted rule; `own` receives the weights, moved together with the entries."""
    if not _advance(place, parts, taken):
        return False
    for r in range(len(weights)):
        own[r, :] = weights[r]
    tile, next_ = tiles[place[TILE]], tiles[1 - place[TILE]]
    place[SOUND] = _sort((tile, own), network, matrix, parts, place, next_)
    return True


@compiled
@no_type_check
def _advance(place, parts, taken):
    """Move a thread's place to the next tile; return False if there is none or it has an entry that is not finite."""
    place[FIRST] += LANES
    if place[FIRST] >= place[STOP] and place[THEN] < len(parts):
        place[PART], place[THEN] = place[THEN], claim(taken)
        place[FIRST], place[STOP] = parts[place[PART]]
    place[TILE] = 1 - place[TILE]
    return place[SOUND] and place[FIRST] < place[STOP]


@intrinsic
@no_type_check
def _sum_ranks(_, tile, coefficients, first, last, made):
    """Write the sum of coefficient times entry of each column of a tile, over rows `first` to `last` - 1, to `made`."""

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
    """Return a vector with the same value in every lane."""
    undefined = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))


@no_type_check
def _in_double(builder, entries, wide):
    """Return entries or weights of a row of a tile as float64."""
    if isinstance(entries.type.element, ir.IntType):
        return builder.sitofp(entries, wide)
    return entries if entries.type == wide else builder.fpext(entries, wide)


@no_type_check
def _store(context, builder, kind, array, values):
    """Write a vector to an array of float64."""
    data = context.make_array(kind)(context, builder, array).data
    builder.store(values, builder.bitcast(data, values.type.as_pointer()), align=8)


@compiled
@no_type_check
def combine_ranks(matrix, network, coefficients, result, parts, taken):
    """Write, for each column, the sum of coefficient times entry over its entries in increasing order."""
    ranks, made = np.flatnonzero(coefficients), np.empty(LANES, np.float64)
    tiles, place = _begin(matrix, parts, taken)
    while _sorted(tiles, place, matrix, network, parts, taken):
        _sum_ranks(tiles[place[TILE]], coefficients, ranks[0], ranks[-1] + 1, made)
        _write(made, place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def _write(made, place, result):
    """Write the values of a tile to its columns of the result."""
    columns = result[place[FIRST] : min(place[FIRST] + LANES, place[STOP])]
    for c in range(len(columns)):
        columns[c] = made[c]


@compiled
@no_type_check
def _reach(made, place, squares):
    """Add the squared distance of each column of a tile to the farther of two other values to its lane of `squares`.

    Args:
        made: (3, LANES): the values, what they are at most, what they are at least.
        place: the thread's place in its work.
        squares: (n, LANES), for each part of the columns.
    """
    lanes = squares[place[PART]]
    if place[STOP] - place[FIRST] >= LANES:  # a number of columns that the compiler knows: it takes all lanes at once
        for c in range(LANES):
            reach = max(made[1, c] - made[0, c], made[0, c] - made[2, c])
            lanes[c] += reach * reach
    else:
        for c in range(place[STOP] - place[FIRST]):
            reach = max(made[1, c] - made[0, c], made[0, c] - made[2, c])
            lanes[c] += reach * reach


@compiled
@no_type_check
def combine_shifted_ranks(matrix, network, rest, coefficients, runs, squares, result, parts, taken):
    """Do what `combine_ranks` does, and add the `_reach` of the columns to `squares`.

    Sums depend on the order of their terms, so the result is taken where `combine_ranks` takes it: after `network`.

    Args:
        matrix: (m, d).
        network: from `sorting_network`; puts the ranks of the result into their places.
        rest: the same for the ranks that make the difference to the other two values, after `network`.
        coefficients: (3, m), those of the result, and of its change to the largest and to the smallest possible value.
        runs: (n, 3), the ranks with a coefficient: the row of `coefficients`, the first of them, and the one after
            the last; in order of rows.
        squares: (n, LANES), float64, zero; a row for each part.
        result: (d,).
        parts: ranges of columns.
        taken: number of claimed parts.
    """
    made, moved = np.empty((2, LANES), np.float64), np.zeros((3, LANES), np.float64)
    tiles, place = _begin(matrix, parts, taken)
    while _sorted(tiles, place, matrix, network, parts, taken):
        tile = tiles[place[TILE]]
        _sum_ranks(tile, coefficients[0], runs[0, 1], runs[0, 2], made[0])
        _write(made[0], place, result)
        for s in range(len(rest)):
            _step((tile,), rest[s, 0], rest[s, 1], rest[s, 2], rest[s, 3], rest[s, 4])
        for run in range(1, len(runs)):
            k = runs[run, 0]
            if k != runs[run - 1, 0]:
                _sum_ranks(tile, coefficients[k], runs[run, 1], runs[run, 2], moved[k])
            else:
                _sum_ranks(tile, coefficients[k], runs[run, 1], runs[run, 2], made[1])
                for c in range(LANES):
                    moved[k, c] += made[1, c]
        _reach(moved, place, squares)
    return place[SOUND] == 1


@intrinsic
@no_type_check
def _sum_between(_, tile, own, low, high, slack, made):
    """Write, for each column of a sorted tile, the sum of entry times its weight between `low` and `high`.

    Each entry covers an interval of the cumulative weight.  It counts with the part of that interval between `low` and
    `high`; a part of at most `slack` is a rounding error and does not count.
    """

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
            # A rounding error must not count, since it would multiply an entry of any size.
            kept = builder.select(builder.fcmp_ordered(">", kept, slack), kept, nothing)
            product = [kept, _in_double(builder, entries, wide), builder.load(total)]
            builder.store(builder.call(fma, product), total)
            builder.store(after, reached)
        _store(context, builder, made_kind, made, builder.load(total))
        return context.get_dummy_value()

    return types.void(tile, own, types.float64, types.float64, types.float64, made), codegen


@compiled
@no_type_check
def trimmed_mean(matrix, network, weights, low, high, slack, result, parts, taken):
    """Write the mean of each column over the weight between `low` and `high`; a part up to `slack` is rounding."""
    made = np.empty(LANES, np.float64)
    (tiles, place), own = _begin(matrix, parts, taken), _tile(len(weights), weights)
    while _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
        _sum_between(tiles[place[TILE]], own, low, high, slack, made)
        made /= high - low
        _write(made, place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def shifted_trimmed_means(matrix, network, weights, bounds, slack, squares, result, parts, taken):
    """Do what `trimmed_mean` does for the first of three pairs of bounds; see `combine_shifted_ranks`."""
    made = np.empty((3, LANES), np.float64)
    (tiles, place), own = _begin(matrix, parts, taken), _tile(len(weights), weights)
    while _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
        for k in range(3):
            _sum_between(tiles[place[TILE]], own, bounds[k, 0], bounds[k, 1], slack, made[k])
        made /= bounds[0, 1] - bounds[0, 0]
        _reach(made, place, squares)
        _write(made[0], place, result)
    return place[SOUND] == 1


@intrinsic
@no_type_check
def _middle(_, tile, own, lower, upper, made):
    """Write the mid-point of two entries of each column of a sorted tile.

    They are the last entries with a cumulative weight before them below `lower`, and below `upper`.
    """

    def codegen(context, builder, signature, arguments):
        (tile, own, lower, upper, made), (kind, own_kind, _, _, made_kind) = arguments, signature.args
        start, vector = _tile_row(context, builder, kind, tile, ir.IntType(64)(0))
        _, weight_vector = _tile_row(context, builder, own_kind, own, ir.IntType(64)(0))
        # Counts are summed as 32-bit integers: exact, and in half of the registers of float64.
        counts = isinstance(weight_vector.element, ir.IntType)
        weight_vector = ir.VectorType(ir.IntType(32), LANES) if counts else weight_vector
        reached = cgutils.alloca_once(builder, weight_vector)
        builder.store(ir.Constant(weight_vector, None), reached)
        ends = [cgutils.alloca_once(builder, vector) for _ in range(2)]
        for end in ends:
            builder.store(builder.load(start, align=4), end)
        bounds = [_everywhere(builder, bound) for bound in (lower, upper)]
        below = builder.icmp_signed if counts else builder.fcmp_ordered
        add = builder.add if counts else builder.fadd
        rows = cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, tile).shape)[0]
        with cgutils.for_range(builder, rows) as loop:
            entries = builder.load(_tile_row(context, builder, kind, tile, loop.index)[0], align=4)
            weights = builder.load(_tile_row(context, builder, own_kind, own, loop.index)[0], align=4)
            weights = builder.sext(weights, weight_vector) if counts else weights
            before = builder.load(reached)
            for bound, end in zip(bounds, ends, strict=True):
                builder.store(builder.select(below("<", before, bound), entries, builder.load(end)), end)
            builder.store(add(before, weights), reached)
        wide = ir.VectorType(ir.DoubleType(), LANES)
        half = _everywhere(builder, ir.DoubleType()(0.5))
        # Half of each, then the sum: the sum of two large entries could overflow.
        halves = [builder.fmul(half, _in_double(builder, builder.load(end), wide)) for end in ends]
        _store(context, builder, made_kind, made, builder.fadd(*halves))
        return context.get_dummy_value()

    bound = types.float64 if own.dtype == types.float64 else types.int32
    return types.void(tile, own, bound, bound, made), codegen


@compiled
@no_type_check
def median(matrix, network, weights, lower, upper, result, parts, taken):
    """Write the weighted median of each column: the mid-point of the two entries that `_middle` finds."""
    made = np.empty(LANES, np.float64)
    (tiles, place), own = _begin(matrix, parts, taken), _tile(len(weights), weights)
    while _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
        _middle(tiles[place[TILE]], own, lower, upper, made)
        _write(made, place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def shifted_medians(matrix, network, weights, bounds, squares, result, parts, taken):
    """Do what `median` does for the first of three pairs of bounds; see `combine_shifted_ranks`."""
    made = np.empty((3, LANES), np.float64)
    (tiles, place), own = _begin(matrix, parts, taken), _tile(len(weights), weights)
    while _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
        for k in range(3):
            _middle(tiles[place[TILE]], own, bounds[k, 0], bounds[k, 1], made[k])
        _reach(made, place, squares)
        _write(made[0], place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def nearest_to_median(matrix, network, count, result, parts, taken):
    """Write the mean of the `count` entries nearest to the median of each column; a tie goes to the smaller entry."""
    made, centre, starts = np.empty(LANES), np.empty(LANES), np.empty(LANES, np.int64)
    tiles, place = _begin(matrix, parts, taken)
    while _sorted(tiles, place, matrix, network, parts, taken):
        _window(tiles[place[TILE]], count, centre, starts, made)
        made /= count
        _write(made, place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def _window(tile, count, centre, starts, made):
    """Write the sum of the `count` entries nearest to the median of each column of a sorted tile to `made`.

    In sorted order they are consecutive.  An entry lies before this window if and only if the entry `count` places
    after it is nearer to the median, so the start of the window is the number of entries for which this holds.
    """
    m = len(tile)
    lower, upper = tile[(m - 1) // 2], tile[m // 2]
    for c in range(LANES):
        centre[c] = np.float64(lower[c]) / 2 + np.float64(upper[c]) / 2
        starts[c], made[c] = 0, 0.0
    for r in range(m - count):
        left, right = tile[r], tile[r + count]
        for c in range(LANES):
            starts[c] += centre[c] - left[c] > right[c] - centre[c]
    for r in range(m):
        row = tile[r]
        for c in range(LANES):
            # Both cases are computed and one is selected: without a branch, the loop vectorises.
            made[c] += np.float64(row[c]) if (starts[c] <= r) & (r < starts[c] + count) else 0.0


@compiled
@no_type_check
def mean_around_median(matrix, network, weights, mass, slack, result, parts, taken):
    """Write the mean of the entries nearest to the median of each column, up to a total weight of `mass`."""
    half, made = weights.sum() / 2, np.empty(LANES, np.float64)
    (tiles, place), own = _begin(matrix, parts, taken), _tile(len(weights), weights)
    while _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
        tile = tiles[place[TILE]]
        for c in range(LANES):
            made[c] = _around(tile[:, c], own[:, c], half, mass, slack)
        _write(made, place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def _around(column, own, half, mass, slack):
    """Return the mean of the weight `mass` nearest to the median of a sorted column; a tie goes to the smaller entry.

    `slack` is the difference of two sums of weights that counts as rounding.
    """
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
    while spare > slack:  # drop the farthest entry, which is at one of the ends
        from_left = centre - column[first] > column[last] - centre
        at = first if from_left else last
        weight = own[at]
        if weight > spare + slack:  # part of it stays
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
def mean_between(matrix, network, weights, alike, low, high, result, parts, taken):
    """Write the mean of the entries strictly between the quantiles `low` and `high` of each column.

    `alike` says that all weights are equal.
    """
    total, made = np.float64(weights.sum()), np.empty(LANES, np.float64)
    (tiles, place), own = _begin(matrix, parts, taken), _tile(len(weights), weights)
    while _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
        tile = tiles[place[TILE]]
        for c in range(LANES):
            lower = _quantile(tile[:, c], own[:, c], alike, total, low)
            upper = _quantile(tile[:, c], own[:, c], alike, total, high)
            made[c] = _between(tile[:, c], own[:, c], lower, upper)
        _write(made, place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def _quantile(column, own, alike, total, q):
    """Return the q-quantile of a sorted column by linear interpolation; beyond the ends, the first or last entry.

    With m equal weights the r-th entry is the quantile r / (m - 1).  Otherwise it is the quantile given by the share of
    the weight before it plus half of its own.  Equal entries are taken in increasing order of weight, so that the
    result does not depend on the order of the rows.
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
    """Return the mean of the entries strictly between two values, or their mid-point if there is no such entry."""
    total, mass = 0.0, 0.0
    for r in range(len(column)):
        if lower < column[r] < upper:
            total += own[r] * column[r]
            mass += own[r]
    return total / mass if mass > 0 else lower / 2 + upper / 2
