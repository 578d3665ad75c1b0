"""The compiled loops of `phalanx.training.compiled`.

Activations lie with the examples of a minibatch innermost, [channel][row][column][example], so that a row of an image
is one contiguous run of numbers for all examples together.  Then a convolution is a sum of shifted runs, one for each
entry of its filters ("tap"), and needs no copy of the image: `_products` keeps a tile of filters and positions in
vector registers over all taps, and reads where a tap's run begins from a table.  The gradient by the filters is a
product of runs (`_dots`), that by the inputs a sum of runs that is added where the tap lies (`_products` again).

Convolutions write a few rows of pixels to a scratch, from which pooling reads them, and only what pooling leaves is
kept: the scratch stays in cache.  Runs there are padded to whole vectors, so that no loop has a remainder; what the
last vector reads beyond a run is thrown away, or multiplied by 0.

A first linear layer, which has most of the arithmetic of a perceptron, reads the examples where they lie in the data,
by the same tiles, and without a copy; the other linear layers are products of torch's own BLAS.

Loops keep the order of the entries, so that the compiler uses vectors where the result does not change; only `_sum` and
`_squares` may be summed in another order.
"""

import math
from typing import no_type_check

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from phalanx.numerics.blas_kernels import A_TURNED, B_TURNED, PLAIN, multiply
from phalanx.numerics.kernels import BYTES, WIDE, _named, _vector, compiled, reordered

NO_ACTIVATION, RELU, TANH = 0, 1, 2
# Numba compiles a function again for each literal number that it is given; these are none.
ZERO, ONE, NO_START = np.int64(0), np.int64(1), np.int64(-1)

# Columns of the table of layers.  A convolution has filters of `TALL` x `BROAD` pixels, a linear layer of 0.
(INPUTS, OUTPUTS, TALL, BROAD, WEIGHT, BIAS, ACTIVATION, POOLED, ROWS, COLUMNS, LINES, LINE, TO_LINES, TO_LINE, TO_PAD,
 AT, WHICH, TAPS, NOISE, WHOLE, FILTERS, BACK) = range(22)  # fmt: skip

# Of the tiles of `_products`: filters, and vectors of positions.  Their sums and operands fill the vector registers.
SHAPES = {8: 3, 6: 4, 5: 5} if WIDE else {4: 3, 6: 2, 5: 2}
DOTS = (4, (6, 5)) if WIDE else (3, (4, 3))  # of those of `_dots`: filters, and taps
SCRATCH = 1 << 19  # bytes of the rows of pixels that a convolution computes at a time, unless two rows take more
BEYOND = BYTES * 6  # entries that may be read or written beyond an array, rounded up

# tanh(x) = x P(x^2) / Q(x^2) up to 2e-8 for |x| <= 9, from where it is 1 in float32: fitted by weighted least squares.
EDGE = 9.0
P = (0.9999999796870856, 0.13381056520367018, 0.0034956237005624746, 2.0609625082439774e-05, 1.335533558351597e-08)
Q = (1.0, 0.4671437217756508, 0.025877120359128016, 0.0003285691139719249, 7.776850586585776e-07)


@no_type_check
def _pointer(context, builder, kind, array, *offsets):
    """Return a pointer to an entry of an array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, list(offsets))


@no_type_check
def _const(number):
    return ir.Constant(ir.IntType(64), number)


@no_type_check
def _within(builder, number, count):
    """Return a number below a count: itself, or the last.

    So a tile that reaches past the last filter repeats it, which costs less than a special case: the repetition reads
    and writes the same numbers.
    """
    last = builder.sub(count, _const(1))
    return builder.select(builder.icmp_signed("<", _const(number), last), _const(number), last)


@no_type_check
def _load(builder, place, vector, size):
    return builder.load(builder.bitcast(place, vector.as_pointer()), align=size)


@no_type_check
def _spread(builder, value, vector):
    """Return a vector whose lanes are all the same number."""
    nothing, number = ir.Constant(vector, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(nothing, value, ir.Constant(number, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(number, vector.count), [0] * vector.count))


@no_type_check
def _products(filters, most):
    """Return an intrinsic for tiles of so many filters, and at most so many vectors of positions.

    It computes C[i, p] = start[i] + sum_k A[i, k] B[offset of k + p], or adds to C if there is no start.
    """

    @intrinsic
    @no_type_check
    def tile(_, a, at, by_tap, by_filter, count, b, shift, offsets, first, taps, c, to, step, vectors, start, begin):
        def codegen(context, builder, signature, arguments):
            a, at, by_tap, by_filter, count, b, shift, offsets, first, taps, c, to, step, vectors, start, begin = (
                arguments
            )
            kinds = signature.args
            _, vector, size = _vector(context, kinds[0])
            run = _pointer(context, builder, kinds[5], b, shift)
            offset = _pointer(context, builder, kinds[7], offsets, first)
            numbers = [_within(builder, n, count) for n in range(filters)]
            lines = [
                _pointer(context, builder, kinds[0], a, builder.add(at, builder.mul(n, by_filter))) for n in numbers
            ]
            targets = [_pointer(context, builder, kinds[10], c, builder.add(to, builder.mul(n, step))) for n in numbers]
            fma = _named(builder, "fma", vector, vector, vector, vector, vector)
            fresh = builder.icmp_signed(">=", begin, _const(0))
            done = builder.append_basic_block("done")
            choice = builder.switch(vectors, done)
            for width in range(1, most + 1):
                case = builder.append_basic_block(f"vectors{width}")
                choice.add_case(_const(width), case)
                builder.position_at_end(case)
                places = [_const(q * vector.count) for q in range(width)]
                # Stack variables in LLVM's code, which it keeps in registers.
                total = [[cgutils.alloca_once(builder, vector) for _ in places] for _ in numbers]
                with builder.if_else(fresh) as (then, otherwise):
                    with then:
                        for number, line in zip(numbers, total, strict=True):
                            entry = builder.load(
                                _pointer(context, builder, kinds[14], start, builder.add(begin, number))
                            )
                            for held in line:
                                builder.store(_spread(builder, entry, vector), held)
                    with otherwise:
                        for target, line in zip(targets, total, strict=True):
                            for place, held in zip(places, line, strict=True):
                                builder.store(_load(builder, builder.gep(target, [place]), vector, size), held)
                with cgutils.for_range(builder, taps) as loop:
                    here = builder.gep(run, [builder.load(builder.gep(offset, [loop.index]))])
                    entries = [_load(builder, builder.gep(here, [place]), vector, size) for place in places]
                    along = builder.mul(loop.index, by_tap)
                    for own, line in zip(lines, total, strict=True):
                        factor = _spread(builder, builder.load(builder.gep(own, [along])), vector)
                        for entry, held in zip(entries, line, strict=True):
                            builder.store(builder.call(fma, [factor, entry, builder.load(held)]), held)
                for target, line in zip(targets, total, strict=True):
                    for place, held in zip(places, line, strict=True):
                        where = builder.bitcast(builder.gep(target, [place]), vector.as_pointer())
                        builder.store(builder.load(held), where, align=size)
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        i = types.int64
        return types.void(a, i, i, i, i, b, i, offsets, i, i, c, i, i, i, start, i), codegen

    return tile


@no_type_check
def _dots(filters, taps):
    """Return an intrinsic for tiles of so many filters and taps.

    It adds sum_{row, p} Z[i, row, p] X[offset of k, row, p] to D[i, k].
    """

    @intrinsic
    @no_type_check
    def tile(_, z, at, by_filter, z_row, count, x, shift, x_row, offsets, first, some, rows, length, d, to, step):
        def codegen(context, builder, signature, arguments):
            z, at, by_filter, z_row, count, x, shift, x_row, offsets, first, some, rows, length, d, to, step = arguments
            kinds = signature.args
            element, vector, size = _vector(context, kinds[0])
            fma = _named(builder, "fma", vector, vector, vector, vector, vector)
            add = _named(builder, "vector.reduce.fadd", vector, element, element, vector)
            numbers, chosen = ([_within(builder, n, c) for n in range(m)] for m, c in ((filters, count), (taps, some)))
            left = [
                _pointer(context, builder, kinds[0], z, builder.add(at, builder.mul(n, by_filter))) for n in numbers
            ]
            table = _pointer(context, builder, kinds[8], offsets, first)
            starts = [builder.add(shift, builder.load(builder.gep(table, [k]))) for k in chosen]
            right = [_pointer(context, builder, kinds[5], x, start) for start in starts]
            total = [[cgutils.alloca_once(builder, vector) for _ in right] for _ in left]
            for held in (held for line in total for held in line):
                builder.store(ir.Constant(vector, None), held)
            with cgutils.for_range(builder, rows) as loop:
                down, over = builder.mul(loop.index, z_row), builder.mul(loop.index, x_row)
                ours, theirs = [builder.gep(p, [down]) for p in left], [builder.gep(p, [over]) for p in right]
                with cgutils.for_range_slice(builder, _const(0), length, _const(vector.count)) as (p, _):
                    entries = [_load(builder, builder.gep(row, [p]), vector, size) for row in ours]
                    for k, row in enumerate(theirs):
                        entry = _load(builder, builder.gep(row, [p]), vector, size)
                        for own, line in zip(entries, total, strict=True):
                            builder.store(builder.call(fma, [own, entry, builder.load(line[k])]), line[k])
            # All are read before one is written: repeated filters and taps write the same sums.
            places = [
                _pointer(context, builder, kinds[13], d, builder.add(to, builder.add(builder.mul(n, step), k)))
                for n in numbers
                for k in chosen
            ]
            before = [builder.load(place) for place in places]
            sums = [
                builder.call(add, [ir.Constant(element, 0.0), builder.load(held)], fastmath=("reassoc",))
                for line in total
                for held in line
            ]
            for place, held, found in zip(places, before, sums, strict=True):
                builder.store(builder.fadd(held, found), place)
            return context.get_dummy_value()

        i = types.int64
        return types.void(z, i, i, i, i, x, i, i, offsets, i, i, i, i, d, i, i), codegen

    return tile


_first, _second, _third = (_products(*shape) for shape in SHAPES.items())
(FIRST, SECOND, THIRD), MOST = SHAPES, tuple(SHAPES.values())
_many, _fewer = (_dots(DOTS[0], taps) for taps in DOTS[1])
CROWD, (MANY, FEWER) = DOTS


@no_type_check
@compiled
def _add_products(
    shape, a, at, by_tap, by_filter, count, b, shift, offsets, first, taps, c, to, step, vectors, start, begin
):  # fmt: skip
    """Compute the products of all filters with a run of so many vectors, in tiles of a shape; see `_products`."""
    done = 0
    most = MOST[0] if shape == FIRST else MOST[1] if shape == SECOND else MOST[2]
    lanes = BYTES // c.itemsize
    while done < vectors:
        some, p = min(most, vectors - done), done * lanes
        for i in range(0, count, shape):
            left, own = min(shape, count - i), begin + i if begin >= 0 else -1
            fro, put, over = at + i * by_filter, to + i * step + p, shift + p
            if shape == FIRST:
                _first(a, fro, by_tap, by_filter, left, b, over, offsets, first, taps, c, put, step, some, start, own)
            elif shape == SECOND:
                _second(a, fro, by_tap, by_filter, left, b, over, offsets, first, taps, c, put, step, some, start, own)
            else:
                _third(a, fro, by_tap, by_filter, left, b, over, offsets, first, taps, c, put, step, some, start, own)
        done += some


@no_type_check
@compiled
def _add_dots(z, at, by_filter, z_row, count, x, shift, x_row, offsets, first, taps, rows, length, d, to, step):
    """Add the products of the runs of all filters and taps, in tiles; see `_dots`."""
    few = -(-taps // FEWER) * FEWER < -(-taps // MANY) * MANY  # tiles with which fewer are computed twice
    for i in range(0, count, CROWD):
        left, fro, put = min(CROWD, count - i), at + i * by_filter, to + i * step
        for k in range(0, taps, FEWER if few else MANY):
            no, some = first + k, taps - k
            if few:
                _fewer(
                    z, fro, by_filter, z_row, left, x, shift, x_row, offsets, no, some, rows, length, d, put + k, step
                )
            else:
                _many(
                    z, fro, by_filter, z_row, left, x, shift, x_row, offsets, no, some, rows, length, d, put + k, step
                )


@no_type_check
@compiled
def train(  # noqa: PLR0912  (its loops are not functions of their own, since LLVM optimises all that one calls again)
    address, table, taps, values, gradient, x, y, order, size, count, lr, clip, decay, proximal, received, added, pull,
    momentum, velocity, shape, pad, noise, outputs, backward, which, scratch, offsets, begun,
):  # fmt: skip
    """Train in place, and return the sum of the losses of the first epoch, and whether all labels are known.

    Args:
        address: of BLAS's matrix product.
        table: (L, 22), a row for each layer.
        taps: where the run of each tap begins in the inputs of its layer, for minibatches of one example.
        values: (d,), all parameters.
        gradient: (d,), room for their gradient.
        x: (n * channels * height * width,), examples, one after the other.
        y: (n,), int64, their labels.
        order: (epochs * n,), examples in the order of training.
        size: examples of a minibatch; the last one of an epoch may have fewer.
        count: number of minibatches.
        lr: learning rate.
        clip: largest norm of a gradient.
        decay: weight decay.
        proximal: rho of the proximal term.
        received: (d,), the parameters at the beginning; empty without proximal term.
        added: (d,), the correction; empty without one.
        pull: its factor of the parameters.
        momentum: momentum.
        velocity: (d,), zeros; empty without momentum.
        shape: channels, height and width of an example.
        pad: pixels of zeros around it.
        noise: factors of dropout, for each minibatch and layer that has any (examples, features or channels).
        outputs: room for a minibatch's inputs of each layer and the outputs of the last one.
        backward: the same for the gradients by them.
        which: int8, room for the numbers of the pixels that pooling chose.
        scratch: room for some rows of pixels.
        offsets: as taps, room for where their runs begin in a minibatch.
        begun: room for as many numbers as a minibatch has examples, and a layer outputs.
    """
    last, total, drawn, m = len(table) - 1, 0.0, ZERO, ZERO
    classes, held = table[last, OUTPUTS], len(y)
    for i in range(held):
        if not 0 <= y[i] < classes:
            return total, False
    # If the gradient alone is a step, layers take it as soon as they have it.
    direct = clip == math.inf and decay == 0 and proximal == 0 and momentum == 0 and len(added) == 0
    step = lr if direct else 0.0
    in_rows = read_in_rows(table[0], values.itemsize)
    end = 0
    for _ in range(count):
        begin, end = end, min(end + size, (end // held + 1) * held)
        chosen = order[begin:end]
        if len(chosen) != m:  # the borders of images lie elsewhere
            m = len(chosen)
            used = (table[last, AT] + table[last, INPUTS] + classes) * m + (last + 2) * BEYOND
            outputs[:used] = 0
            backward[:used] = 0
            for k in range(len(taps)):
                offsets[k] = taps[k] * m
        if not in_rows:
            _gather(x, chosen, shape, pad, outputs[_begin(table[0], 0, m) :])
        now = drawn
        for number in range(last + 1):
            row = table[number]
            at, to = _begin(row, number, m), _end(table, number, m)
            if row[TALL]:
                _convolve(row, values, offsets, outputs, at, to, m, noise, now, which, scratch)
            elif number or not in_rows:
                _apply(address, row, values, outputs, at, to, m, noise, now)
            else:
                _apply_to_rows(row, values, x, chosen, begun, outputs, to, noise, now)
            now += m * row[NOISE]
        drawn = now
        at = _end(table, last, m)
        z, g = outputs[at : at + m * classes], backward[at : at + m * classes]
        loss = _cross_entropies(z, y, chosen, classes, g)
        if end <= held:
            total += loss
        for number in range(last, -1, -1):
            row = table[number]
            at, to = _begin(row, number, m), _end(table, number, m)
            now -= m * row[NOISE]
            if row[TALL]:
                _convolve_back(
                    row, number > 0, values, gradient, offsets, begun, outputs, backward, at, to, m, noise, now, which,
                    scratch, step,
                )  # fmt: skip
            else:
                _undo_apply(row, outputs, backward, to, m, noise, now)
                if number or not in_rows:
                    _apply_back(address, row, number > 0, values, gradient, outputs, backward, at, to, m, step)
                else:
                    _apply_to_rows_back(row, values if direct else gradient, x, chosen, begun, backward, to, step)
        if not direct:
            _descend(
                values[: len(gradient)], gradient, lr, clip, decay, proximal, received, added, pull, momentum, velocity
            )
    return total, True


@no_type_check
@compiled
def read_in_rows(row, itemsize):
    """Return whether a first layer reads the examples where they lie: they must be whole vectors."""
    return row[TALL] == 0 and row[INPUTS] * itemsize % BYTES == 0


@no_type_check
@compiled
def _begin(row, number, m):
    """Return where the inputs of a layer begin."""
    return row[AT] * m + number * BEYOND


@no_type_check
@compiled
def _end(table, number, m):
    """Return where the outputs of a layer begin: the inputs of the next one, with their border."""
    row = table[number]
    if number + 1 < len(table):
        return _begin(table[number + 1], number + 1, m)
    return (row[AT] + row[INPUTS]) * m + (number + 1) * BEYOND  # the last layer is linear


@no_type_check
@compiled
def _gather(x, chosen, shape, pad, target):
    """Write the chosen examples, one next to the other for each pixel."""
    channels, height, width = shape
    m, line, count, e = len(chosen), width + 2 * pad, channels * height * width, 0
    for c in range(channels):
        for r in range(height):
            to = ((c * (height + 2 * pad) + r + pad) * line + pad) * m
            for _ in range(width):
                for n in range(m):
                    target[to + n] = x[chosen[n] * count + e]
                to += m
                e += 1


@no_type_check
@compiled
def _group(row, pitch, itemsize):
    """Return the number of rows of pixels that lie in the scratch at one time: an even one if they are pooled."""
    fit = SCRATCH // (row[OUTPUTS] * pitch * itemsize)
    return min(row[ROWS], max(2, fit - fit % 2)) if row[POOLED] else min(row[ROWS], max(1, fit))


@no_type_check
@compiled
def _pitch(row, m, itemsize):
    """Return the length of a run of a convolution's outputs, whole vectors."""
    lanes = BYTES // itemsize
    return (row[COLUMNS] * m + lanes - 1) // lanes * lanes


@no_type_check
@compiled
def _convolve(row, values, offsets, outputs, at, to, m, noise, now, which, scratch):
    """Write the outputs of a convolution, after pooling, activation and dropout."""
    count, taps, line = row[OUTPUTS], row[INPUTS] * row[TALL] * row[BROAD], row[LINE] * m
    pitch = _pitch(row, m, values.itemsize)
    group, vectors = _group(row, pitch, values.itemsize), pitch * values.itemsize // BYTES
    for top in range(0, row[ROWS], group):
        some = min(group, row[ROWS] - top)
        for r in range(some):
            _add_products(
                row[FILTERS], values, row[WEIGHT], ONE, taps, count, outputs, at + (top + r) * line, offsets, row[TAPS],
                taps, scratch, r * pitch, group * pitch, vectors, values, row[BIAS],
            )  # fmt: skip
        step = 2 if row[POOLED] else 1
        length = row[COLUMNS] // step * m
        for c in range(count):
            for r in range(0, some, step):
                left = scratch[(c * group + r) * pitch : (c * group + r) * pitch + row[COLUMNS] * m]
                put = to + _place(row, c, (top + r) // step, m)
                target = outputs[put : put + length]
                if step == 2:
                    right = scratch[(c * group + r + 1) * pitch : (c * group + r + 1) * pitch + row[COLUMNS] * m]
                    mark = row[WHICH] * m + (c * (row[ROWS] // 2) + (top + r) // 2) * length
                    _pool(left, right, m, row[ACTIVATION] == RELU, target, which[mark : mark + length])
                else:
                    for e in range(length):
                        target[e] = left[e]
                _activate(row[ACTIVATION], target)
                if row[NOISE]:
                    _drop(row, noise, now, c, (top + r) // step, m, target)


@no_type_check
@compiled
def _place(row, c, r, m):
    """Return where a row of an image begins among the outputs of a convolution."""
    return ((c * row[TO_LINES] + r + row[TO_PAD]) * row[TO_LINE] + row[TO_PAD]) * m


@no_type_check
@compiled
def _drop(row, noise, now, c, r, m, target):
    """Multiply a row of an image with the factors of dropout."""
    columns = len(target) // m
    rows = row[ROWS] // 2 if row[POOLED] else row[ROWS]
    for p in range(columns):
        feature = c if not row[WHOLE] else (c * rows + r) * columns + p
        for n in range(m):
            target[p * m + n] *= noise[now + n * row[NOISE] + feature]


@no_type_check
@compiled
def _pool(left, right, m, positive, target, which):
    """Write the maximum over each 2x2 pixels, and which it is; -1 where `positive` lets no gradient pass.

    As torch finds it: the first one of equal ones, and NaN if there is one.
    """
    zero = left.dtype.type(0)
    for p in range(len(target) // m):
        first, second = left[2 * p * m : (2 * p + 1) * m], left[(2 * p + 1) * m : (2 * p + 2) * m]
        third, fourth = right[2 * p * m : (2 * p + 1) * m], right[(2 * p + 1) * m : (2 * p + 2) * m]
        best, chosen = target[p * m : (p + 1) * m], which[p * m : (p + 1) * m]
        for n in range(m):
            found, at = first[n], np.int8(0)
            after = second[n] > found or second[n] != second[n]
            found, at = (second[n], np.int8(1)) if after else (found, at)
            after = third[n] > found or third[n] != third[n]
            found, at = (third[n], np.int8(2)) if after else (found, at)
            after = fourth[n] > found or fourth[n] != fourth[n]
            found, at = (fourth[n], np.int8(3)) if after else (found, at)
            at = np.int8(-1) if positive and found <= zero else at
            best[n], chosen[n] = found, at


@no_type_check
@compiled
def _activate(activation, z):
    """Apply the function after a layer in place; NaN stays NaN."""
    kind = z.dtype.type
    if activation == RELU:
        for e in range(len(z)):
            z[e] = kind(0) if z[e] <= 0 else z[e]
    elif activation == TANH:
        if z.itemsize == 8:
            for e in range(len(z)):
                z[e] = np.tanh(z[e])
        else:
            for e in range(len(z)):
                v = z[e]
                v = kind(EDGE) if v > kind(EDGE) else v
                v = kind(-EDGE) if v < kind(-EDGE) else v
                u = v * v
                top = v * (kind(P[0]) + u * (kind(P[1]) + u * (kind(P[2]) + u * (kind(P[3]) + u * kind(P[4])))))
                low = kind(Q[0]) + u * (kind(Q[1]) + u * (kind(Q[2]) + u * (kind(Q[3]) + u * kind(Q[4]))))
                v = top / low
                v = kind(1) if v > kind(1) else v
                z[e] = kind(-1) if v < kind(-1) else v


@no_type_check
@compiled
def _convolve_back(
    row, further, values, gradient, offsets, steps, outputs, backward, at, to, m, noise, now, which, scratch, lr
):  # fmt: skip
    """Write the gradient by the filters, and that by the inputs of a convolution if it is needed further on.

    With a learning rate it takes a step by the gradient, when that by the inputs is there, which needs the filters.
    """
    inputs, count, line = row[INPUTS], row[OUTPUTS], row[LINE] * m
    taps, plane = inputs * row[TALL] * row[BROAD], row[LINES] * line
    pitch = _pitch(row, m, values.itemsize)
    group, vectors = _group(row, pitch, values.itemsize), pitch * values.itemsize // BYTES
    if further:
        backward[at : at + inputs * plane] = 0
    gradient[row[WEIGHT] : row[WEIGHT] + count * taps] = 0
    gradient[row[BIAS] : row[BIAS] + count] = 0
    for c in range(count):
        steps[c] = c * group * pitch
    for top in range(0, row[ROWS], group):
        some = min(group, row[ROWS] - top)
        for c in range(count):
            _by_pixels(row, outputs, backward, to, c, top, some, m, noise, now, which, scratch, group, pitch)
            begun = c * group * pitch
            gradient[row[BIAS] + c] += _sum(scratch[begun : begun + some * pitch])
        _add_dots(
            scratch, ZERO, group * pitch, pitch, count, outputs, at + top * line, line, offsets, row[TAPS], taps, some,
            pitch, gradient, row[WEIGHT], taps,
        )  # fmt: skip
        if further:
            for r in range(some):
                for tap in range(row[TALL] * row[BROAD]):
                    _add_products(
                        row[BACK], values, row[WEIGHT] + tap * inputs, taps, ONE, inputs, scratch, r * pitch, steps,
                        ZERO, count, backward, at + (top + r) * line + offsets[row[TAPS] + tap * inputs], plane,
                        vectors, values, NO_START,
                    )  # fmt: skip
    if lr:
        _step(values, gradient, row[WEIGHT], count * taps, lr)
        _step(values, gradient, row[BIAS], count, lr)


@no_type_check
@compiled
def _by_pixels(row, outputs, backward, to, c, top, some, m, noise, now, which, scratch, group, pitch):
    """Write the gradient by some rows of pixels of a channel, before activation and pooling, to the scratch."""
    step, width = 2 if row[POOLED] else 1, row[COLUMNS] * m
    length = row[COLUMNS] // step * m
    for r in range(0, some, step):
        begun = (c * group + r) * pitch
        put = to + _place(row, c, (top + r) // step, m)
        g, y = backward[put : put + length], outputs[put : put + length]
        _undo(row, c, (top + r) // step, m, noise, now, y, g)
        left = scratch[begun : begun + pitch]
        left[width:] = 0
        if step == 2:
            right = scratch[begun + pitch : begun + 2 * pitch]
            right[width:] = 0
            mark = row[WHICH] * m + (c * (row[ROWS] // 2) + (top + r) // 2) * length
            _unpool(g, which[mark : mark + length], m, left, right)
        else:
            for e in range(length):
                left[e] = g[e]


@no_type_check
@compiled
def _undo(row, c, r, m, noise, now, y, g):
    """Turn the gradient by a row of outputs into that before dropout and activation, in place."""
    if row[NOISE]:
        _drop(row, noise, now, c, r, m, g)
        if row[ACTIVATION] == TANH:
            _kept(row, noise, now, c, r, m, y)
    if row[ACTIVATION] != RELU or not row[POOLED]:  # else pooling has noted where the gradient does not pass
        _by_input(row[ACTIVATION], y, g)


@no_type_check
@compiled
def _kept(row, noise, now, c, r, m, y):
    """Turn outputs after dropout into those before, in place, where they are not 0."""
    columns = len(y) // m
    rows = row[ROWS] // 2 if row[POOLED] else row[ROWS]
    for p in range(columns):
        feature = c if not row[WHOLE] else (c * rows + r) * columns + p
        for n in range(m):
            factor = noise[now + n * row[NOISE] + feature]
            y[p * m + n] = y[p * m + n] / factor if factor > 0 else y[p * m + n]


@no_type_check
@compiled
def _unpool(g, which, m, left, right):
    """Write the gradient by the pixels: that by the maximum for the one that is it, and 0 for the others."""
    zero = g.dtype.type(0)
    for p in range(len(g) // m):
        first, second = left[2 * p * m : (2 * p + 1) * m], left[(2 * p + 1) * m : (2 * p + 2) * m]
        third, fourth = right[2 * p * m : (2 * p + 1) * m], right[(2 * p + 1) * m : (2 * p + 2) * m]
        value, chosen = g[p * m : (p + 1) * m], which[p * m : (p + 1) * m]
        for n in range(m):
            first[n] = value[n] if chosen[n] == 0 else zero
            second[n] = value[n] if chosen[n] == 1 else zero
            third[n] = value[n] if chosen[n] == 2 else zero
            fourth[n] = value[n] if chosen[n] == 3 else zero


@no_type_check
@compiled
def _apply(address, row, values, outputs, at, to, m, noise, now):
    """Write the outputs of a linear layer, after activation and dropout."""
    i, o = row[INPUTS], row[OUTPUTS]
    _fill(values[row[BIAS] : row[BIAS] + o], m, outputs[to:])
    multiply(address, PLAIN, o, m, i, 1, values[row[WEIGHT] :], outputs[at:], 1, outputs[to:])
    _finish(row, outputs[to : to + o * m], m, noise, now)


@no_type_check
@compiled
def _apply_to_rows(row, values, x, chosen, begun, outputs, to, noise, now):
    """Do the same for a first layer that reads the examples where they lie."""
    i, o, m = row[INPUTS], row[OUTPUTS], len(chosen)
    _fill(values[row[BIAS] : row[BIAS] + o], m, outputs[to:])
    for n in range(m):
        begun[n] = chosen[n] * i
    _add_dots(values, row[WEIGHT], i, ZERO, o, x, ZERO, ZERO, begun, ZERO, m, ONE, i, outputs, to, m)
    _finish(row, outputs[to : to + o * m], m, noise, now)


@no_type_check
@compiled
def _fill(bias, m, z):
    """Write each bias m times."""
    for c in range(len(bias)):
        z[c * m : (c + 1) * m] = bias[c]


@no_type_check
@compiled
def _finish(row, z, m, noise, now):
    """Apply activation and dropout to the outputs of a linear layer, in place."""
    _activate(row[ACTIVATION], z)
    if row[NOISE]:
        for c in range(row[OUTPUTS]):
            for n in range(m):
                z[c * m + n] *= noise[now + n * row[NOISE] + c]


@no_type_check
@compiled
def _undo_apply(row, outputs, backward, to, m, noise, now):
    """Turn the gradient by the outputs of a linear layer into that before dropout and activation, in place."""
    o = row[OUTPUTS]
    z, g = outputs[to : to + o * m], backward[to : to + o * m]
    if row[NOISE]:
        for c in range(o):
            for n in range(m):
                factor = noise[now + n * o + c]
                g[c * m + n] *= factor
                z[c * m + n] = z[c * m + n] / factor if factor > 0 else z[c * m + n]
    _by_input(row[ACTIVATION], z, g)


@no_type_check
@compiled
def _apply_back(address, row, further, values, gradient, outputs, backward, at, to, m, lr):
    """Write the gradient by the parameters of a linear layer, and that by its inputs if it is needed further on.

    With a learning rate it takes a step by the gradient instead of writing it.
    """
    i, o = row[INPUTS], row[OUTPUTS]
    g = backward[to : to + o * m]
    if further:
        multiply(address, A_TURNED, i, m, o, 1, values[row[WEIGHT] :], g, 0, backward[at:])
    target, factor, kept = (values, -lr, 1.0) if lr else (gradient, 1.0, 0.0)
    multiply(address, B_TURNED, o, i, m, factor, g, outputs[at:], kept, target[row[WEIGHT] :])
    _add_sums(g, m, factor, kept, target[row[BIAS] : row[BIAS] + o])


@no_type_check
@compiled
def _apply_to_rows_back(row, target, x, chosen, begun, backward, to, lr):
    """Do the same for a first layer that reads the examples where they lie; `target` is what changes."""
    i, o, m = row[INPUTS], row[OUTPUTS], len(chosen)
    g = backward[to : to + o * m]
    for n in range(m):
        begun[n] = chosen[n] * i
    if lr:
        for e in range(len(g)):
            g[e] *= -lr
    else:
        target[row[WEIGHT] : row[WEIGHT] + o * i] = 0
    _add_products(
        row[FILTERS],
        g,
        ZERO,
        ONE,
        m,
        o,
        x,
        ZERO,
        begun,
        ZERO,
        m,
        target,
        row[WEIGHT],
        i,
        i * x.itemsize // BYTES,
        g,
        NO_START,
    )
    _add_sums(g, m, 1.0, 1.0 if lr else 0.0, target[row[BIAS] : row[BIAS] + o])


@no_type_check
@compiled
def _add_sums(g, m, factor, kept, target):
    """Write the sum of each m entries, times a factor, plus a multiple of what is there."""
    kind = target.dtype.type
    for c in range(len(target)):
        found = kind(factor) * _sum(g[c * m : (c + 1) * m])
        target[c] = target[c] + found if kept else found


@no_type_check
@compiled
def _step(values, gradient, begin, count, lr):
    """Take a step of gradient descent with some parameters."""
    for e in range(begin, begin + count):
        values[e] -= values.dtype.type(lr) * gradient[e]


@no_type_check
@compiled
def _by_input(activation, z, g):
    """Turn the gradient by the outputs z of an activation into that by its inputs, in place."""
    if activation == RELU:
        for e in range(len(z)):
            g[e] = z.dtype.type(0) if z[e] <= 0 else g[e]
    elif activation == TANH:
        for e in range(len(z)):
            g[e] *= z.dtype.type(1) - z[e] * z[e]


@no_type_check
@reordered
def _squares(gradient):
    """Return the sum of the squares, in float64."""
    total = 0.0
    for e in range(len(gradient)):
        total += np.float64(gradient[e]) * gradient[e]
    return total


@no_type_check
@reordered
def _sum(run):
    """Return the sum of a run."""
    total = run.dtype.type(0)
    for e in range(len(run)):
        total += run[e]
    return total


@no_type_check
@compiled
def _cross_entropies(z, y, chosen, classes, g):
    """Return the sum of the cross-entropies of a minibatch, and write the gradient of their mean by the scores to g."""
    m, total = len(chosen), 0.0
    for n in range(m):
        label, top, mass = y[chosen[n]], z[n], z.dtype.type(0)
        for c in range(1, classes):
            top = z[c * m + n] if z[c * m + n] > top else top
        for c in range(classes):
            g[c * m + n] = np.exp(z[c * m + n] - top)
            mass += g[c * m + n]
        total += np.log(mass) - (z[label * m + n] - top)
        for c in range(classes):
            g[c * m + n] /= mass
        g[label * m + n] -= 1
        for c in range(classes):
            g[c * m + n] /= m
    return total


@no_type_check
@compiled
def _descend(values, gradient, lr, clip, decay, proximal, received, added, pull, momentum, velocity):
    """Take one step of gradient descent, in place; see `phalanx.training.sgd.Trainer.descend`."""
    kind = values.dtype.type
    if clip != math.inf:
        norm = math.sqrt(_squares(gradient))
        if not norm <= clip:  # also if it is NaN
            for e in range(len(gradient)):
                gradient[e] *= kind(clip / norm)
    if decay != 0:
        for e in range(len(gradient)):
            gradient[e] += kind(decay) * values[e]
    if proximal != 0:
        for e in range(len(gradient)):
            gradient[e] += kind(proximal) * (values[e] - received[e])
    for e in range(len(added)):
        gradient[e] += added[e] + kind(pull) * values[e]
    if momentum != 0:
        for e in range(len(gradient)):
            velocity[e] = kind(momentum) * velocity[e] + gradient[e]
            gradient[e] = velocity[e]
    for e in range(len(gradient)):
        values[e] -= kind(lr) * gradient[e]
