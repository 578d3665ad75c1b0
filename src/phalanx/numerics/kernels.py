"""The compiled inner loops of `phalanx.numerics.linalg`: products and squares of the rows of a matrix.

Rows are read in place, some columns at a time, so that repeated reads come from cache.  Products are accumulated in
vector registers, a square tile of pairs of rows at a time: each loaded entry is used `TILE` times.  Only pairs on and
above the diagonal are computed, half of the work of a general matrix product.

`parts` is the list of work items, and `taken` counts those that some thread has started; see
`phalanx.numerics.threads.in_threads`.  No sum depends on how the work is divided among threads: columns are summed in
blocks of `DEPTH`, in the precision of the rows, and the sums of the blocks are added in a fixed order, in float64.

Loops run over slices and start at 0, because only then does the compiler see that entries are contiguous and vectorise.
"""

from typing import no_type_check

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from phalanx.numerics.compilation import compiling
from phalanx.numerics.threads import claim

WIDE = bool(get_host_cpu_features().get("avx512f"))
BYTES = 64 if WIDE else 32  # of a vector register
TILE = 5 if WIDE else 3  # rows and columns of a tile: its sums and operands fill the vector registers
TALL, VECTORS = (6, 4) if WIDE else (4, 2)  # rows and vectors of a tile of `combine`
DEPTH = 1 << 10  # columns of a block
BAND = 96 // TILE * TILE  # rows whose block of `DEPTH` columns stays in cache
STRIP = 1 << 8  # columns that `combine` packs at a time
LENGTH = 1 << 12  # columns that `add_few` sums at a time
CANCELLED = 1 / 16  # a squared distance below this share of the squared norms has lost digits and is computed again
TINY, HUGE = 1e-24, 1e34  # squared norms outside of this range may have underflowed or overflowed in float32

compiled = compiling(nogil=True, boundscheck=False)
# Here a division by 0 gives what it gives in NumPy: a check of each would keep the compiler from using vectors.
unchecked = compiling(nogil=True, boundscheck=False, error_model="numpy")
# Here the compiler may reorder sums, to vectorise them; NaN and infinities keep their meaning, as `finite` needs.
reordered = compiling(nogil=True, boundscheck=False, fastmath={"reassoc", "contract"})


@no_type_check
def _vector(context, kind):
    """Return the type of an entry of an array, the type of a vector of entries, and the size of an entry in bytes."""
    element = context.get_value_type(kind.dtype)
    size = context.get_abi_sizeof(element)
    return element, ir.VectorType(element, BYTES // size), size


@no_type_check
def _named(builder, name, vector, result, *arguments):
    """Declare one of LLVM's intrinsics on vectors, and return it."""
    bits = {ir.FloatType: "f32", ir.DoubleType: "f64"}[type(vector.element)]
    kind = ir.FunctionType(result, arguments)
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{vector.count}{bits}")


@no_type_check
def _row(context, builder, kind, array, first, offset):
    """Return a pointer to row `first` + `offset`, or to the last row if there is no such row.

    So a tile that reaches past the last row repeats it, which costs less than a special case.
    """
    rows, columns = cgutils.unpack_tuple(builder, array.shape)
    last = builder.sub(rows, ir.Constant(rows.type, 1))
    wanted = builder.add(first, ir.Constant(first.type, offset))
    here = builder.select(builder.icmp_signed("<", wanted, last), wanted, last)
    return builder.gep(array.data, [builder.mul(here, columns)])


@intrinsic
@no_type_check
def _tile_of_products(_, rows, i, j, begin, end, sums):
    """Write the inner products of `TILE` rows from i on with `TILE` rows from j on to `sums`, over whole vectors."""

    def codegen(context, builder, signature, arguments):
        (source, i, j, begin, end, target), (kind, *_, target_kind) = arguments, signature.args
        array = context.make_array(kind)(context, builder, source)
        element, vector, size = _vector(context, kind)
        left = [_row(context, builder, kind, array, i, p) for p in range(TILE)]
        right = [_row(context, builder, kind, array, j, q) for q in range(TILE)]
        # Stack variables in LLVM's code, which it keeps in registers.
        total = [[cgutils.alloca_once(builder, vector) for _ in right] for _ in left]
        for held in (held for line in total for held in line):
            builder.store(ir.Constant(vector, None), held)
        fma = _named(builder, "fma", vector, vector, vector, vector, vector)

        def load(row, k):
            return builder.load(builder.bitcast(builder.gep(row, [k]), vector.as_pointer()), align=size)

        with cgutils.for_range_slice(builder, begin, end, ir.Constant(begin.type, vector.count)) as (k, _):
            entries = [load(row, k) for row in right]
            for row, line in zip(left, total, strict=True):
                entry = load(row, k)
                for other, held in zip(entries, line, strict=True):
                    builder.store(builder.call(fma, [entry, other, builder.load(held)]), held)

        add = _named(builder, "vector.reduce.fadd", vector, element, element, vector)
        out = context.make_array(target_kind)(context, builder, target).data
        for n, held in enumerate(held for line in total for held in line):
            total_of = builder.call(add, [ir.Constant(element, 0.0), builder.load(held)], fastmath=("reassoc",))
            wide = builder.fpext(total_of, ir.DoubleType()) if size < 8 else total_of
            builder.store(wide, builder.gep(out, [ir.Constant(begin.type, n)]))
        return context.get_dummy_value()

    return types.void(rows, types.int64, types.int64, types.int64, types.int64, sums), codegen


@compiled
@no_type_check
def inner_products(rows, totals, parts, taken):
    """Add to row i of a total the products of row i with itself and the rows after it, over a range of columns.

    Args:
        rows: (m, d), C-contiguous.
        totals: (n, m, m), float64; entries below the diagonal are undefined.
        parts: (k, 5): first column and end of the columns, a whole number of vectors; first row i, a multiple of
            `TILE`, and end of the rows; index of the total.
    """
    n = claim(taken)
    while n < len(parts):
        _inner_products(rows, parts[n, 0], parts[n, 1], parts[n, 2], parts[n, 3], totals[parts[n, 4]])
        n = claim(taken)


@compiled
@no_type_check
def _inner_products(rows, begin, stop, first, last, total):
    # Two bands of rows at a time, so that a block of columns of both stays in cache while all their tiles are computed.
    m = rows.shape[0]
    sums = np.empty(TILE * TILE)
    for k in range(begin, stop, DEPTH):
        end = min(k + DEPTH, stop)
        for band in range(first - first % BAND, m, BAND):
            for i in range(first, min(last, band + BAND), TILE):
                for j in range(max(band, i), min(m, band + BAND), TILE):
                    _tile_of_products(rows, i, j, k, end, sums)
                    for p in range(min(TILE, last - i)):
                        for q in range(min(TILE, m - j)):
                            total[i + p, j + q] += sums[p * TILE + q]


@compiled
@no_type_check
def mirror(products, parts, taken):
    """Copy the entries above the diagonal to below it.

    Args:
        products: (m, m).
        parts: (k, 2): first row and end of the rows.
    """
    n = claim(taken)
    while n < len(parts):
        for column in range(0, parts[n, 1], BAND):
            for i in range(parts[n, 0], parts[n, 1]):
                for j in range(column, min(column + BAND, i)):
                    products[i, j] = products[j, i]
        n = claim(taken)


@compiled
@no_type_check
def distances(products, squares, out, parts, taken):
    """Write squared distances to a range of rows of `out`.

    Args:
        products: (m, m), inner products.
        squares: (m,), squared norms.
        out: (m, m).
        parts: (k, 2): first row and end of the rows.

    Returns:
        Whether a distance is below `CANCELLED` times the sum of the two squared norms.
    """
    close = False
    n = claim(taken)
    while n < len(parts):
        for i in range(parts[n, 0], parts[n, 1]):
            row, made, own = products[i], out[i], squares[i]
            for j in range(len(made)):
                both = own + squares[j]
                far = both - 2 * row[j]
                far = 0.0 if far < 0 else far
                close |= (far < CANCELLED * both) & (i != j)
                made[j] = far
            made[i] = 0
        n = claim(taken)
    return close


@reordered
@no_type_check
def finite(rows, parts, taken):
    """Return whether all entries of a block of the rows are finite.

    Args:
        rows: (m, d).
        parts: (k, 5): first row and end of the rows; first column and end of the columns; index of the range
            of columns.
    """
    # x - x is 0 if x is finite, else NaN, and a sum with a NaN is NaN: no branch per entry, so the loop vectorises.
    zero_or_nan = rows.dtype.type(0)
    n = claim(taken)
    while n < len(parts):
        for i in range(parts[n, 0], parts[n, 1]):
            row = rows[i, parts[n, 2] : parts[n, 3]]
            for c in range(len(row)):
                zero_or_nan += row[c] - row[c]
        n = claim(taken)
    return zero_or_nan == 0


@compiled
@no_type_check
def scale(rows, out, in_place, factors, parts, taken):
    """Write a block of the rows to `out`, each row times its factor.

    Args:
        rows: (m, d).
        out: (m, d).
        in_place: whether `out` is `rows`; otherwise they must not share memory.
        factors: (m,), of the dtype of the rows.
        parts: (k, 5), as of `finite`.
    """
    n = claim(taken)
    while n < len(parts):
        start, stop = parts[n, 2], parts[n, 3]
        for i in range(parts[n, 0], parts[n, 1]):
            _scale(rows[i, start:stop], out[i, start:stop], in_place, factors[i])
        n = claim(taken)


@compiled
@no_type_check
def _scale(row, made, in_place, factor):
    if not in_place:
        for c in range(len(made)):
            made[c] = factor * row[c]
    elif factor != 1:
        for c in range(len(made)):
            made[c] *= factor


@reordered
@no_type_check
def _square(row):
    """Return the squared norm of a row, summed in blocks of `DEPTH` columns."""
    total = 0.0
    for k in range(0, len(row), DEPTH):
        part, held = row[k : k + DEPTH], row.dtype.type(0)
        for c in range(len(part)):
            held += part[c] * part[c]
        total += held
    return total


@compiled
@no_type_check
def squares(rows, totals, parts, taken):
    """Write the squared norms of the rows, over ranges of columns, to `totals`.

    Args:
        rows: (m, d).
        totals: (n, m), float64, a row for each range of columns.
        parts: (k, 5), as of `finite`.
    """
    n = claim(taken)
    while n < len(parts):
        for i in range(parts[n, 0], parts[n, 1]):
            totals[parts[n, 4], i] = _square(rows[i, parts[n, 2] : parts[n, 3]])
        n = claim(taken)


@compiled
@no_type_check
def shorten(rows, out, in_place, radius, totals, parts, taken):
    """Write the rows to `out`, and scale those with a norm above `radius` down to it while they are in cache.

    Rows whose squared norm is not between `TINY` and `HUGE` are copied unchanged; `linalg.shorten` corrects them.

    Args:
        rows: (m, d).
        out: (m, d).
        in_place: whether `out` is `rows`; otherwise they must not share memory.
        radius: float64.
        totals: (m,), float64; receives the squared norms before scaling.
        parts: (k, 2): first row and end of the rows.
    """
    n = claim(taken)
    while n < len(parts):
        for i in range(parts[n, 0], parts[n, 1]):
            row, made, factor = rows[i], out[i], rows.dtype.type(1)
            totals[i] = _square(row)
            if TINY < totals[i] < HUGE and np.sqrt(totals[i]) > radius:
                factor = rows.dtype.type(
                    1 / np.sqrt(totals[i]) * radius
                )  # in this order, for the same bits as the torch path
            _scale(row, made, in_place, factor)
        n = claim(taken)


@reordered
@no_type_check
def squares_from(rows, point, totals, parts, taken):
    """Add the squared distances of the rows from a point (d,), over ranges of columns, to `totals`; see `squares`."""
    n = claim(taken)
    while n < len(parts):
        stop, total = parts[n, 3], totals[parts[n, 4]]
        for i in range(parts[n, 0], parts[n, 1]):
            for k in range(parts[n, 2], stop, DEPTH):
                part, there = rows[i, k : min(k + DEPTH, stop)], point[k : min(k + DEPTH, stop)]
                held = rows.dtype.type(0)
                for c in range(len(part)):
                    step = part[c] - there[c]
                    held += step * step
                total[i] += held
        n = claim(taken)


@intrinsic
@no_type_check
def _tile_of_sums(_, left, packed, i, column, out):
    """Write `TALL` rows of `left` times the packed rows to `out`, for `VECTORS` vectors from `column` on."""

    def codegen(context, builder, signature, arguments):
        (left, packed, i, column, out), (kind, packed_kind, _, _, out_kind) = arguments, signature.args
        factors = context.make_array(kind)(context, builder, left)
        source = context.make_array(packed_kind)(context, builder, packed)
        target = context.make_array(out_kind)(context, builder, out)
        _, vector, size = _vector(context, kind)
        rows = [_row(context, builder, kind, factors, i, p) for p in range(TALL)]
        total = [[cgutils.alloca_once(builder, vector) for _ in range(VECTORS)] for _ in rows]
        for held in (held for line in total for held in line):
            builder.store(ir.Constant(vector, None), held)
        fma = _named(builder, "fma", vector, vector, vector, vector, vector)
        width = cgutils.unpack_tuple(builder, source.shape)[1]
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
        undefined = ir.Constant(vector, ir.Undefined)

        with cgutils.for_range(builder, cgutils.unpack_tuple(builder, factors.shape)[1]) as loop:
            start = builder.gep(source.data, [builder.add(builder.mul(loop.index, width), column)])
            entries = []
            for v in range(VECTORS):
                at = builder.gep(start, [ir.Constant(width.type, v * vector.count)])
                entries.append(builder.load(builder.bitcast(at, vector.as_pointer()), align=size))
            for row, line in zip(rows, total, strict=True):
                factor = builder.load(builder.gep(row, [loop.index]))
                first = builder.insert_element(undefined, factor, ir.Constant(ir.IntType(32), 0))
                everywhere = builder.shuffle_vector(first, undefined, lanes)
                for entry, held in zip(entries, line, strict=True):
                    builder.store(builder.call(fma, [everywhere, entry, builder.load(held)]), held)

        for p, line in enumerate(total):
            for v, held in enumerate(line):
                at = builder.gep(target.data, [ir.Constant(width.type, (p * VECTORS + v) * vector.count)])
                builder.store(builder.load(held), builder.bitcast(at, vector.as_pointer()), align=size)
        return context.get_dummy_value()

    return types.void(left, packed, types.int64, types.int64, out), codegen


@compiled
@no_type_check
def _copy(entries, to):
    for c in range(len(entries)):
        to[c] = entries[c]


@compiled
@no_type_check
def combine(left, rows, out, parts, taken):
    """Write ranges of columns of `left @ rows` to `out`.

    A strip of columns is first packed, that is copied into a contiguous block: its rows lie d entries apart, and
    reading them for each tile would miss the cache and the TLB.

    Args:
        left: (k, m), C-contiguous, of the dtype of the rows.
        rows: (m, d).
        out: (k, d).
        parts: (n, 2): first column and end of the columns.
    """
    k, m = left.shape
    across = VECTORS * (BYTES // rows.itemsize)
    # Zeros, since the last vector of a strip may reach beyond its columns.
    packed, sums = np.zeros((m, STRIP), rows.dtype), np.empty((TALL, across), rows.dtype)
    n = claim(taken)
    while n < len(parts):
        for start in range(parts[n, 0], parts[n, 1], STRIP):
            width = min(STRIP, parts[n, 1] - start)
            for r in range(m):
                _copy(rows[r, start : start + width], packed[r])
            for i in range(0, k, TALL):
                for column in range(0, width, across):
                    _tile_of_sums(left, packed, i, column, sums)
                    first = start + column
                    for p in range(min(TALL, k - i)):
                        _copy(sums[p, : min(across, width - column)], out[i + p, first:])
        n = claim(taken)


@compiled
@no_type_check
def _add_four(members, coefficients, rows, start, made):
    """Add four rows to `made`, each times its coefficient, from column `start` on, in one pass over `made`."""
    end = start + len(made)
    u, v = rows[members[0], start:end], rows[members[1], start:end]
    x, y = rows[members[2], start:end], rows[members[3], start:end]
    a, b, p, q = coefficients[0], coefficients[1], coefficients[2], coefficients[3]
    for c in range(len(made)):
        made[c] += (a * u[c] + b * v[c]) + (p * x[c] + q * y[c])


@compiled
@no_type_check
def add_few(first, members, coefficients, rows, out, parts, taken):
    """Write, for each row of `out`, the sum of its members times their coefficients, over ranges of columns.

    Args:
        first: (k + 1,), where the members of each row of `out` start in `members`.
        members: indices of rows, those of the first row of `out` first.
        coefficients: of the members, of the dtype of the rows.
        rows: (m, d).
        out: (k, d); must not share memory with the rows.
        parts: (n, 2): first column and end of the columns.
    """
    p = claim(taken)
    while p < len(parts):
        for start in range(parts[p, 0], parts[p, 1], LENGTH):
            end = min(start + LENGTH, parts[p, 1])
            for k in range(len(out)):
                of = slice(first[k], first[k + 1])
                _add(members[of], coefficients[of], rows, start, out[k, start:end])
        p = claim(taken)


@compiled
@no_type_check
def _add(members, coefficients, rows, start, made):
    """Write the sum of the members times their coefficients, from column `start` on, to `made`."""
    n, last, end = 0, len(members), start + len(made)
    if last == 0:
        for c in range(len(made)):
            made[c] = 0
    else:
        row, factor = rows[members[0], start:end], coefficients[0]
        for c in range(len(made)):
            made[c] = factor * row[c]
        n = 1
    while n + 4 <= last:
        _add_four(members[n : n + 4], coefficients[n : n + 4], rows, start, made)
        n += 4
    while n < last:
        row, factor = rows[members[n], start:end], coefficients[n]
        for c in range(len(made)):
            made[c] += factor * row[c]
        n += 1
