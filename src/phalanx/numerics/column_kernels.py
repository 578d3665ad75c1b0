"""The inner loops of the coordinate-wise rules, compiled.

A matrix is read once, `LANES` columns at a time, into a tile.  A tile holds a few vector registers for each row, and
stays in the nearest cache while its columns are sorted, all at once, by a network of comparisons between rows.  What a
rule wants of the sorted columns is taken from there.  Between the steps of the network the next tile is read row by
row, and later columns are asked for, so that sorting and memory do not wait for each other.

Columns do not touch each other, so results do not depend on how columns are divided among threads: `parts` are ranges
of columns, of which each thread claims the next one before it is done with the last.  A kernel gives up, and returns
False, when it has read an entry that is not finite.

All that is compiled into a kernel, but for `claim`, stands in this file: what Numba keeps of it on the disk is made
anew when this file changes, and not when another one does.
"""

from typing import no_type_check

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from phalanx.numerics.threads import claim

LANES = 64  # columns of a tile
TILES = 8  # that are asked for together, at most: memory is read in runs of so many
ASKED = 1 << 19  # bytes that are asked for together, at most: the second cache has to hold them
LINE = 64  # bytes that come from memory together
SAME = 1e-12  # difference of two shares of the weight that is rounding
A, B, C, D = range(4)
SHAPES: tuple[tuple[tuple[int, int], ...], ...] = (  # comparisons between up to four entries that are taken together
    ((A, B),),
    ((A, B), (C, D), (C, B)),
    ((A, B), (C, D), (B, C)),
    ((A, B), (C, D), (A, C)),
    ((A, B), (C, D), (B, D)),
    ((A, B), (C, D), (A, C), (B, D)),
    ((A, B), (C, D), (A, C), (B, D), (B, C)),
)

# What a thread's place in its work tells: the part that it is at, the one that it has claimed for later, its tile's
# first column, where the part's columns end, which of two tiles it is, and whether all that has been read is finite.
PART, THEN, FIRST, STOP, TILE, SOUND = range(6)

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
        builder.module, ir.FunctionType(vector, (vector, vector)), f"llvm.{which}num.v{vector.count}{bits}"
    )
    return builder.call(function, [x, y], fastmath=("nnan", "nsz"))


@no_type_check
def _in_order(builder, values, weights, i, j):
    """Puts entries i and j of some loaded rows in order, lane by lane, and has their weights, if any, go with them."""
    x, y = values[i], values[j]
    values[i], values[j] = (_extreme(builder, which, x.type, x, y) for which in ("min", "max"))
    if weights:
        ordered, p, q = builder.fcmp_ordered("<=", x, y), weights[i], weights[j]
        weights[i], weights[j] = builder.select(ordered, p, q), builder.select(ordered, q, p)


@intrinsic
@no_type_check
def _step(_, tiles, shape, a, b, c, d):
    """Takes the comparisons of one of `SHAPES` between rows a, b, c and d of a tile, in each column.

    `tiles` holds the entries and, for a weighted rule, their weights.  Rows are loaded and stored once for all of the
    comparisons, some columns at a time, as many as have room in registers.
    """

    def codegen(context, builder, signature, arguments):
        tiles, shape, *rows = arguments
        arrays = list(zip(signature.args[0], cgutils.unpack_tuple(builder, tiles), strict=True))
        lanes = LANES // len(arrays) ** 2
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
    """A pointer to some columns of a tile's row, as a vector."""
    start, whole = _tile_row(context, builder, kind, array, row)
    vector = ir.VectorType(whole.element, lanes)
    first = builder.bitcast(start, whole.element.as_pointer())
    return builder.bitcast(builder.gep(first, [ir.Constant(row.type, column)]), vector.as_pointer())


@intrinsic
@no_type_check
def _copy(_, matrix, r, column, tile):
    """Copies `LANES` columns of row r of the matrix to a tile; whether all of them are finite."""

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
            zero_or_nan = builder.fadd(zero_or_nan, builder.fsub(entries, entries))
        wrong = builder.bitcast(builder.fcmp_unordered("uno", zero_or_nan, zero_or_nan), ir.IntType(vector.count))
        return builder.icmp_unsigned("==", wrong, ir.Constant(wrong.type, 0))

    return types.boolean(matrix, types.int64, types.int64, tile), codegen


@intrinsic
@no_type_check
def _prefetch(_, matrix, r, column):
    """Asks for `LANES` columns of row r of the matrix without waiting for them; they may lie outside of it."""

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
    """Memory for a tile of m rows, laid out so that no vector lies across two lines of the cache."""
    memory = np.empty(m * LANES + LINE // like.itemsize, like.dtype)
    first = -memory.ctypes.data % LINE // like.itemsize
    return memory[first : first + m * LANES].reshape(m, LANES)


@compiled
@no_type_check
def _begin(matrix, parts, taken):
    """Two tiles, of which the first holds the first columns of a part, and a thread's place, which is before them."""
    m, place = matrix.shape[0], np.zeros(SOUND + 1, np.int64)
    tiles = _tile(2 * m, matrix).reshape(2, m, LANES)
    place[THEN], place[TILE] = claim(taken), 1
    place[SOUND] = place[THEN] >= len(parts) or _read(matrix, parts[place[THEN], 0], tiles[0])
    return tiles, place


@compiled
@no_type_check
def _read(matrix, first, tile):
    """Copies the columns of the matrix from `first` on to a tile; whether all are finite."""
    columns, finite = matrix.shape[1], True
    for row in range(matrix.shape[0]):
        if first + LANES <= columns:
            finite &= _copy(matrix, row, first, tile)
        else:
            for c in range(LANES):  # the last column is repeated, to fill the tile
                tile[row, c] = matrix[row, min(first + c, columns - 1)]
                finite &= np.isfinite(tile[row, c])
    return finite


@compiled
@no_type_check
def _sort(tiles, network, matrix, parts, place, next_):
    """Sorts the columns of a tile as far as the network does, and meanwhile reads the next tile of the matrix.

    Args:
        tiles: of the entries, and for a weighted rule of their weights.
        network: of `sorting_network`.
        matrix: the entries come from.
        parts: ranges of columns.
        place: where the tile lies.
        next_: the other tile.

    Returns:
        Whether what was read is finite.
    """
    m, first, stop, then, steps = matrix.shape[0], place[FIRST], place[STOP], place[THEN], max(1, len(network))
    column, rows, finite = first + LANES, m, True
    if column >= stop:
        column, rows = (parts[then, 0], m) if then < len(parts) else (0, 0)
    if rows and column + LANES > matrix.shape[1]:
        finite, rows = _read(matrix, column, next_), 0
    run = max(1, min(TILES, ASKED // (m * LANES * matrix.itemsize)))
    turn = (first - parts[place[PART], 0]) // LANES % run  # among the tiles that were asked for with it
    asked, later, end = turn * m // run, turn * m % run, first + (run - turn) * LANES
    row, gap = 0, max(1, steps // m)  # steps from one reading to the next
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
                _prefetch(matrix, asked, end + later * LANES)
            row, later = row + 1, later + 1
            if later == run:
                asked, later = asked + 1, 0
    return finite


@compiled
@no_type_check
def _sorted(tiles, place, matrix, network, parts, taken):
    """Goes on to the next tile and sorts it as far as the network does; False if there is none."""
    if not _advance(place, parts, taken):
        return False
    tile, next_ = tiles[place[TILE]], tiles[1 - place[TILE]]
    place[SOUND] = _sort((tile,), network, matrix, parts, place, next_)
    return True


@compiled
@no_type_check
def _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
    """The same for a weighted rule; `own` gets the weights of the tile's entries, which go where these go."""
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
    """Moves a thread's place to the next tile; False if there is none, or it holds what is not finite."""
    place[FIRST] += LANES
    if place[FIRST] >= place[STOP] and place[THEN] < len(parts):
        place[PART], place[THEN] = place[THEN], claim(taken)
        place[FIRST], place[STOP] = parts[place[PART]]
    place[TILE] = 1 - place[TILE]
    return place[SOUND] and place[FIRST] < place[STOP]


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
def combine_ranks(matrix, network, coefficients, result, parts, taken):
    """Each column's sum of coefficient times entry, over its entries in increasing order."""
    ranks, made = np.flatnonzero(coefficients), np.empty(LANES, np.float64)
    tiles, place = _begin(matrix, parts, taken)
    while _sorted(tiles, place, matrix, network, parts, taken):
        _sum_ranks(tiles[place[TILE]], coefficients, ranks[0], ranks[-1] + 1, made)
        _write(made, place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def _write(made, place, result):
    """Writes what a tile gave to its columns of the result."""
    columns = result[place[FIRST] : min(place[FIRST] + LANES, place[STOP])]
    for c in range(len(columns)):
        columns[c] = made[c]


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
def trimmed_mean(matrix, network, weights, low, high, slack, result, parts, taken):
    """Each column's mean of the weight between `low` and `high`; parts of a weight up to `slack` are rounding."""
    made = np.empty(LANES, np.float64)
    (tiles, place), own = _begin(matrix, parts, taken), _tile(len(weights), weights)
    while _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
        _sum_between(tiles[place[TILE]], own, low, high, slack, made)
        made /= high - low
        _write(made, place, result)
    return place[SOUND] == 1


@intrinsic
@no_type_check
def _middle(_, tile, own, lower, upper, made):
    """Each column's mid-point of two entries of a sorted tile: the last ones with less weight than a bound before."""

    def codegen(context, builder, signature, arguments):
        (tile, own, lower, upper, made), (kind, own_kind, _, _, made_kind) = arguments, signature.args
        start, vector = _tile_row(context, builder, kind, tile, ir.IntType(64)(0))
        _, weight_vector = _tile_row(context, builder, own_kind, own, ir.IntType(64)(0))
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
        halves = [builder.fmul(half, _in_double(builder, builder.load(end), wide)) for end in ends]
        _store(context, builder, made_kind, made, builder.fadd(*halves))
        return context.get_dummy_value()

    bound = types.float64 if own.dtype == types.float64 else types.int32
    return types.void(tile, own, bound, bound, made), codegen


@compiled
@no_type_check
def median(matrix, network, weights, lower, upper, result, parts, taken):
    """Each column's mid-point of two entries: those that the weights before leave below `lower`, and below `upper`."""
    made = np.empty(LANES, np.float64)
    (tiles, place), own = _begin(matrix, parts, taken), _tile(len(weights), weights)
    while _sorted_with(own, weights, tiles, place, matrix, network, parts, taken):
        _middle(tiles[place[TILE]], own, lower, upper, made)
        _write(made, place, result)
    return place[SOUND] == 1


@compiled
@no_type_check
def nearest_to_median(matrix, network, count, result, parts, taken):
    """Each column's mean of the `count` entries that are nearest to its median; a tie goes to the smaller entry."""
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
    """The sum of the `count` entries of each column of a sorted tile that are nearest to its median.

    They are neighbours.  An entry lies before them where the one `count` places after it is nearer.
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
            made[c] += np.float64(row[c]) if (starts[c] <= r) & (r < starts[c] + count) else 0.0


@compiled
@no_type_check
def mean_around_median(matrix, network, weights, mass, slack, result, parts, taken):
    """Each column's mean of the entries of so much weight that are nearest to its median."""
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
def mean_between(matrix, network, weights, alike, low, high, result, parts, taken):
    """Each column's mean of the entries strictly between its quantiles `low` and `high`; `alike`: of equal weights."""
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
