"""The compiled loops of `phalanx.training.compiled.trainer`.

Activations lie with the examples of a minibatch innermost, [channel][row][column][example], so that a row of an image
is one contiguous run of numbers for all examples together.  Then a convolution is a sum of shifted runs, one for each
entry of its filters ("tap"), and needs no copy of the image: `_products` keeps a tile of filters and positions in
vector registers over all taps, and reads where a tap's run begins from a table.  The gradient by the filters is a
product of runs (`_dots`), that by the inputs a sum of runs that is added where the tap lies (`_products` again).

Convolutions write a few rows of pixels to a scratch, from which pooling reads them, and only what pooling leaves is
kept: the scratch stays in cache.  Runs there are padded to whole vectors, so that no loop has a remainder; what the
last vector reads beyond a run is thrown away, or multiplied by 0.

In bfloat16 a convolution's inputs, filters and gradients are rounded to it, and a lane of a vector is a pair of
numbers, whose products are added to a sum in float32 by one instruction.  Pairs are of two neighbouring channels where
channels are summed over, and of two neighbouring numbers of a run where runs are.  All else remains in float32.

Before the first layer an embedding may look up rows of a table for the tokens of an example.  Its gradient is none but
of these rows: if the gradient alone is a step, only these are read and written.

A first linear layer, which has most of the arithmetic of a perceptron, reads the examples where they lie in the data,
by the same tiles, and without a copy; the other linear layers are products of torch's own BLAS.

Loops keep the order of the entries, so that the compiler uses vectors where the result does not change; only `_sum` and
`_squares` may be summed in another order.
"""

import math
from typing import no_type_check

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from typing_extensions import override

from phalanx.numerics.blas_kernels import A_TURNED, B_TURNED, PLAIN, multiply
from phalanx.numerics.kernels import BYTES, WIDE, _named, _vector, compiled, reordered, unchecked

NO_ACTIVATION, RELU, TANH = 0, 1, 2
IN_TURN, SUMMED, MEAN = 0, 1, 2  # how the rows of an example's tokens are put together
# Numba compiles a function again for each literal number that it is given; these are none.
ZERO, ONE, NO_START = np.int64(0), np.int64(1), np.int64(-1)

# Columns of the table of layers.  A convolution has filters of `TALL` x `BROAD` pixels, a linear layer of 0.
(INPUTS, OUTPUTS, TALL, BROAD, WEIGHT, BIAS, ACTIVATION, POOLED, ROWS, COLUMNS, LINES, LINE, TO_LINES, TO_LINE, TO_PAD,
 AT, WHICH, TAPS, NOISE, WHOLE, FILTERS, BACK, PAIRS) = range(23)  # fmt: skip

BFLOAT16 = WIDE and bool(get_host_cpu_features().get("avx512bf16"))  # whether the processor multiplies in bfloat16
# Of the tiles of `_products`: filters, and vectors of positions.  Their sums and operands fill the vector registers.
SHAPES = {8: 3, 6: 4, 5: 5} if WIDE else {4: 3, 6: 2, 5: 2}
DOTS = (4, (6, 5)) if WIDE else (3, (4, 3))  # of those of `_dots`: filters, and taps
SEGMENT = 1 << 12  # bytes of a run that `_add_dots` reads at a time: those of a tile fit the first cache
SCRATCH = 1 << 19  # bytes of the rows of pixels that a convolution computes at a time, unless two rows take more
BEYOND = BYTES * 6  # entries that may be read or written beyond an array, rounded up

# tanh(x) = x P(x^2) / Q(x^2) up to 2e-8 for |x| <= 9, from where it is 1 in float32: fitted by weighted least squares.
EDGE = 9.0
P = (0.9999999796870856, 0.13381056520367018, 0.0034956237005624746, 2.0609625082439774e-05, 1.335533558351597e-08)
Q = (1.0, 0.4671437217756508, 0.025877120359128016, 0.0003285691139719249, 7.776850586585776e-07)


class _BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's type of a number in bfloat16, which llvmlite does not have."""

    @override
    def __str__(self) -> str:
        return "bfloat"


BFLOAT = _BFloat()


@no_type_check
def _product(builder, kind, vector):
    """Return a function that adds the products of two vectors to a third one, of pairs if the entries are integers."""
    if isinstance(kind.dtype, types.Float):
        fma = _named(builder, "fma", vector, vector, vector, vector, vector)
        return lambda one, other, total: builder.call(fma, [one, other, total])
    halves = ir.VectorType(BFLOAT, 2 * vector.count)
    shape = ir.FunctionType(vector, [vector, halves, halves])
    dot = cgutils.get_or_insert_function(builder.module, shape, "llvm.x86.avx512bf16.dpbf16ps.512")
    return lambda one, other, total: builder.call(dot, [total, *(builder.bitcast(v, halves) for v in (one, other))])


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

    It computes C[i, p] = start[i] + sum_k A[i, k] B[offset of k + p], or adds to C if there is no start.  A table says
    where the numbers of a tap are, in A and in B.
    """

    @intrinsic
    @no_type_check
    def tile(_, a, at, by_filter, count, b, shift, table, first, taps, c, to, step, vectors, start, begin):
        def codegen(context, builder, signature, arguments):
            a, at, by_filter, count, b, shift, table, first, taps, c, to, step, vectors, start, begin = arguments
            kinds = signature.args
            _, vector, size = _vector(context, kinds[9])
            _, read, _ = _vector(context, kinds[0])
            run = _pointer(context, builder, kinds[4], b, shift)
            table = _pointer(context, builder, kinds[6], table, builder.mul(first, _const(2)))
            numbers = [_within(builder, n, count) for n in range(filters)]
            own = [_pointer(context, builder, kinds[0], a, builder.add(at, builder.mul(n, by_filter))) for n in numbers]
            targets = [_pointer(context, builder, kinds[9], c, builder.add(to, builder.mul(n, step))) for n in numbers]
            starts = [_pointer(context, builder, kinds[13], start, builder.add(begin, n)) for n in numbers]
            product = _product(builder, kinds[0], vector)
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
                        for where, line in zip(starts, total, strict=True):
                            for held in line:
                                builder.store(_spread(builder, builder.load(where), vector), held)
                    with otherwise:
                        for target, line in zip(targets, total, strict=True):
                            for place, held in zip(places, line, strict=True):
                                builder.store(_load(builder, builder.gep(target, [place]), vector, size), held)
                with cgutils.for_range(builder, taps) as loop:
                    tap = builder.mul(loop.index, _const(2))
                    along, offset = (builder.load(builder.gep(table, [builder.add(tap, _const(n))])) for n in (0, 1))
                    here = builder.gep(run, [offset])
                    entries = [_load(builder, builder.gep(here, [place]), read, size) for place in places]
                    for numbers_of, line in zip(own, total, strict=True):
                        factor = _spread(builder, builder.load(builder.gep(numbers_of, [along])), read)
                        for entry, held in zip(entries, line, strict=True):
                            builder.store(product(factor, entry, builder.load(held)), held)
                for target, line in zip(targets, total, strict=True):
                    for place, held in zip(places, line, strict=True):
                        where = builder.bitcast(builder.gep(target, [place]), vector.as_pointer())
                        builder.store(builder.load(held), where, align=size)
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        i = types.int64
        return types.void(a, i, i, i, b, i, table, i, i, c, i, i, i, start, i), codegen

    return tile


@no_type_check
def _dots(filters, taps):
    """Return an intrinsic for tiles of so many filters and taps.

    It adds sum_{row, p} Z[i, row, p] X[offset of k, row, p] to D[i, k].  The table is that of `_products`.
    """

    @intrinsic
    @no_type_check
    def tile(_, z, at, by_filter, z_row, count, x, shift, x_row, table, first, some, rows, length, d, to, step):
        def codegen(context, builder, signature, arguments):
            z, at, by_filter, z_row, count, x, shift, x_row, table, first, some, rows, length, d, to, step = arguments
            kinds = signature.args
            element, vector, _ = _vector(context, kinds[13])
            _, read, size = _vector(context, kinds[0])
            product = _product(builder, kinds[0], vector)
            add = _named(builder, "vector.reduce.fadd", vector, element, element, vector)
            numbers, chosen = ([_within(builder, n, c) for n in range(m)] for m, c in ((filters, count), (taps, some)))
            left = [
                _pointer(context, builder, kinds[0], z, builder.add(at, builder.mul(n, by_filter))) for n in numbers
            ]
            table = _pointer(context, builder, kinds[8], table, builder.add(builder.mul(first, _const(2)), _const(1)))
            places = [builder.gep(table, [builder.mul(k, _const(2))]) for k in chosen]
            starts = [builder.add(shift, builder.load(place)) for place in places]
            right = [_pointer(context, builder, kinds[5], x, start) for start in starts]
            total = [[cgutils.alloca_once(builder, vector) for _ in right] for _ in left]
            for held in (held for line in total for held in line):
                builder.store(ir.Constant(vector, None), held)
            with cgutils.for_range(builder, rows) as loop:
                down, over = builder.mul(loop.index, z_row), builder.mul(loop.index, x_row)
                ours, theirs = [builder.gep(p, [down]) for p in left], [builder.gep(p, [over]) for p in right]
                with cgutils.for_range_slice(builder, _const(0), length, _const(read.count)) as (p, _):
                    entries = [_load(builder, builder.gep(row, [p]), read, size) for row in ours]
                    for k, row in enumerate(theirs):
                        entry = _load(builder, builder.gep(row, [p]), read, size)
                        for own, line in zip(entries, total, strict=True):
                            builder.store(product(own, entry, builder.load(line[k])), line[k])
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
        return types.void(z, i, i, i, i, x, i, i, table, i, i, i, i, d, i, i), codegen

    return tile


_first, _second, _third = (_products(*shape) for shape in SHAPES.items())
(FIRST, SECOND, THIRD), MOST = SHAPES, tuple(SHAPES.values())
_many, _fewer = (_dots(DOTS[0], taps) for taps in DOTS[1])
CROWD, (MANY, FEWER) = DOTS


@no_type_check
@compiled
def _add_products(shape, a, at, by_filter, count, b, shift, table, first, taps, c, to, step, vectors, start, begin):
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
                _first(a, fro, by_filter, left, b, over, table, first, taps, c, put, step, some, start, own)
            elif shape == SECOND:
                _second(a, fro, by_filter, left, b, over, table, first, taps, c, put, step, some, start, own)
            else:
                _third(a, fro, by_filter, left, b, over, table, first, taps, c, put, step, some, start, own)
        done += some


@no_type_check
@compiled
def _add_dots(z, at, by_filter, z_row, count, x, shift, x_row, table, first, taps, rows, length, d, to, step):
    """Add the products of the runs of all filters and taps, in tiles; see `_dots`."""
    few = -(-taps // FEWER) * FEWER < -(-taps // MANY) * MANY  # tiles with which fewer are computed twice
    lanes, pieces = BYTES // z.itemsize, -(-length * z.itemsize // SEGMENT)
    piece, together = -(-length // (pieces * lanes)) * lanes, max(1, SEGMENT // (length * z.itemsize))
    for r in range(0, rows, together):
        for p in range(0, length, piece):
            down, wide, over = min(together, rows - r), min(piece, length - p), shift + r * x_row + p
            for k in range(0, taps, FEWER if few else MANY):  # their runs overlap, and serve all filters
                no, some = first + k, taps - k
                for i in range(0, count, CROWD):
                    left, fro, put = min(CROWD, count - i), at + i * by_filter + r * z_row + p, to + i * step + k
                    if few:
                        _fewer(
                            z, fro, by_filter, z_row, left, x, over, x_row, table, no, some, down, wide, d, put, step,
                        )  # fmt: skip
                    else:
                        _many(
                            z, fro, by_filter, z_row, left, x, over, x_row, table, no, some, down, wide, d, put, step,
                        )  # fmt: skip


@no_type_check
@compiled
def train(
    address, table, taps, values, gradient, x, tokens, lookup, y, order, size, count, lr, clip, decay, proximal,
    received, added, pull, momentum, velocity, shape, pad, noise, outputs, backward, which, scratch, offsets, begun,
    halves,
):  # fmt: skip
    """Train in place, and return the sum of the losses of the first epoch, and whether all labels are known.

    Args:
        address: of BLAS's matrix product.
        table: (L, 23), a row for each layer.
        taps: of each tap of each layer, in pairs: where its numbers are in a filter, and where its run begins in the
            inputs of the layer, for minibatches of one example. In bfloat16 those of each pair of channels follow.
        values: (d,), all parameters.
        gradient: (d,), room for their gradient.
        x: (n * channels * height * width,), examples, one after the other; empty if they are tokens.
        tokens: None, or (n * tokens of an example,), int64, which the table of an embedding has.
        lookup: of the embedding where its table begins in the values, its rows, their width, the number of tokens of an
            example, how their rows are put together, and the token that is left out of gradients, sums and means, or
            -1; any array if there is none.
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
        begun: room for another table of this kind, of the examples, or of the outputs of a layer.
        halves: None; for convolutions in bfloat16 room, of one layer at a time, for its inputs, its filters and the
            scratch, each in pairs of channels (uint32), and for its inputs and the scratch as they lie (uint16).
    """
    last, total, drawn, m = len(table) - 1, 0.0, ZERO, ZERO
    classes, held = table[last, OUTPUTS], len(y)
    for i in range(held):
        if not 0 <= y[i] < classes:
            return total, False
    # If the gradient alone is a step, layers take it as soon as they have it.
    direct = clip == math.inf and decay == 0 and proximal == 0 and momentum == 0 and len(added) == 0
    step = lr if direct else 0.0
    in_rows = tokens is None and read_in_rows(table[0], values.itemsize)
    end = 0
    for _ in range(count):
        begin, end = end, min(end + size, (end // held + 1) * held)
        chosen = order[begin:end]
        if len(chosen) != m:  # the borders of images lie elsewhere
            m = len(chosen)
            backward[: _clear(table, taps, classes, m, outputs, offsets)] = 0
        now = drawn = _forward(
            address, table, values, x, tokens, lookup, chosen, shape, pad, noise, drawn, outputs, which, scratch,
            offsets, begun, halves,
        )  # fmt: skip
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
                    scratch, step, halves,
                )  # fmt: skip
            else:
                _undo_apply(row, outputs, backward, to, m, noise, now)
                if number or not in_rows:
                    further = number > 0 or tokens is not None
                    _apply_back(address, row, further, values, gradient, outputs, backward, at, to, m, step)
                else:
                    _apply_to_rows_back(row, values if direct else gradient, x, chosen, begun, backward, to, step)
        if tokens is not None:
            at = _begin(table[0], 0, m)
            _look_up_back(tokens, lookup, chosen, backward[at:], values if direct else gradient, step)
        if not direct:
            _descend(
                values[: len(gradient)], gradient, lr, clip, decay, proximal, received, added, pull, momentum, velocity
            )
    return total, True


@no_type_check
@compiled
def predict(
    address, table, taps, values, x, tokens, lookup, order, size, shape, pad, noise, outputs, which, scratch, offsets,
    begun, scores,
):  # fmt: skip
    """Write the scores of examples, of one after the other; the arguments are those of `train`, without dropout."""
    m, last = ZERO, len(table) - 1
    classes = table[last, OUTPUTS]
    for begin in range(0, len(order), size):
        chosen = order[begin : begin + size]
        if len(chosen) != m:
            m = len(chosen)
            _clear(table, taps, classes, m, outputs, offsets)
        _forward(
            address, table, values, x, tokens, lookup, chosen, shape, pad, noise, ZERO, outputs, which, scratch,
            offsets, begun, None,
        )  # fmt: skip
        at = _end(table, last, m)
        for n in range(m):
            for c in range(classes):
                scores[begin + n, c] = outputs[at + c * m + n]


@no_type_check
@compiled
def _clear(table, taps, classes, m, outputs, offsets):
    """Prepare for minibatches of m examples, whose borders are zeros, and return how much room they take."""
    last = len(table) - 1
    used = (table[last, AT] + table[last, INPUTS] + classes) * m + (last + 2) * BEYOND
    outputs[:used] = 0
    for k in range(0, len(taps), 2):
        offsets[k], offsets[k + 1] = taps[k], taps[k + 1] * m
    return used


@no_type_check
@compiled
def _forward(
    address, table, values, x, tokens, lookup, chosen, shape, pad, noise, now, outputs, which, scratch, offsets, begun,
    halves,
):  # fmt: skip
    """Write the outputs of all layers for a minibatch, and return where the factors of dropout for the next one are."""
    in_rows, m = tokens is None and read_in_rows(table[0], values.itemsize), len(chosen)
    if tokens is not None:
        _look_up(tokens, lookup, chosen, values, outputs[_begin(table[0], 0, m) :])
    elif not in_rows:
        _gather(x, chosen, shape, pad, outputs[_begin(table[0], 0, m) :])
    for number in range(len(table)):
        row = table[number]
        at, to = _begin(row, number, m), _end(table, number, m)
        if row[TALL]:
            _convolve(row, values, offsets, outputs, at, to, m, noise, now, which, scratch, halves)
        elif number or not in_rows:
            _apply(address, row, values, outputs, at, to, m, noise, now)
        else:
            _apply_to_rows(row, values, x, chosen, begun, outputs, to, noise, now)
        now += m * row[NOISE]
    return now


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
def _look_up(tokens, lookup, chosen, values, target):
    """Write the rows of the tokens of the chosen examples, one next to the other for each number."""
    at, _, width, length, way, left_out = lookup
    m = len(chosen)
    if way != IN_TURN:
        target[: width * m] = 0
    for n in range(m):
        begin, share = chosen[n] * length, _share(tokens, lookup, chosen[n], values)
        for k in range(length):
            token, to = tokens[begin + k], k * width * m + n if way == IN_TURN else n
            fro = at + token * width
            if way == IN_TURN:
                for e in range(width):
                    target[to + e * m] = values[fro + e]
            elif token != left_out:
                for e in range(width):
                    target[to + e * m] += share * values[fro + e]


@no_type_check
@compiled
def _look_up_back(tokens, lookup, chosen, g, target, lr):
    """Write the gradient by the rows of an embedding, or take a step by it with a learning rate."""
    at, rows, width, length, way, left_out = lookup
    m = len(chosen)
    if not lr:
        target[at : at + rows * width] = 0
    for n in range(m):
        begin, share = chosen[n] * length, _share(tokens, lookup, chosen[n], target)
        factor = share * target.dtype.type(-lr if lr else 1.0)
        for k in range(length):
            token, fro = tokens[begin + k], k * width * m + n if way == IN_TURN else n
            to = at + token * width
            if token != left_out:
                for e in range(width):
                    target[to + e] += factor * g[fro + e * m]


@no_type_check
@compiled
def _share(tokens, lookup, example, values):
    """Return the factor of the rows of an example: 1, or in a mean 1 / the number of tokens that are not left out."""
    length, one, counted = lookup[3], values.dtype.type(1), ZERO
    if lookup[4] != MEAN:
        return one
    for k in range(example * length, (example + 1) * length):
        counted += tokens[k] != lookup[5]
    return one / values.dtype.type(max(counted, ONE))


@no_type_check
@compiled
def _group(row, pitch, itemsize):
    """Return the number of rows of pixels that lie in the scratch at one time: an even one if they are pooled."""
    fit = SCRATCH // (row[OUTPUTS] * pitch * itemsize)
    return min(row[ROWS], max(2, fit - fit % 2)) if row[POOLED] else min(row[ROWS], max(1, fit))


@no_type_check
@compiled
def _pitch(row, m, itemsize, halves):
    """Return the length of a run of a convolution's outputs, whole vectors, of single numbers in bfloat16 too."""
    lanes = BYTES // itemsize if halves is None else BYTES // 2
    return (row[COLUMNS] * m + lanes - 1) // lanes * lanes


@no_type_check
@compiled
def _convolve(row, values, offsets, outputs, at, to, m, noise, now, which, scratch, halves):
    """Write the outputs of a convolution, after pooling, activation and dropout."""
    count, taps, line = row[OUTPUTS], row[INPUTS] * row[TALL] * row[BROAD], row[LINE] * m
    twos = (row[INPUTS] + 1) // 2 * row[TALL] * row[BROAD]
    if halves is not None:
        inputs, filters = halves[0], halves[1]
        _pair(outputs, at, row[INPUTS], row[LINES] * line, row[LINES] * line, inputs, ZERO)
        for tap in range(count * row[TALL] * row[BROAD]):
            fro, put = row[WEIGHT] + tap * row[INPUTS], tap * ((row[INPUTS] + 1) // 2)
            _pair(values, fro, row[INPUTS], ONE, ONE, filters, put)
    pitch = _pitch(row, m, values.itemsize, halves)
    group, vectors = _group(row, pitch, values.itemsize), pitch * values.itemsize // BYTES
    for top in range(0, row[ROWS], group):
        some = min(group, row[ROWS] - top)
        for r in range(some):
            if halves is None:
                _add_products(
                    row[FILTERS], values, row[WEIGHT], taps, count, outputs, at + (top + r) * line, offsets, row[TAPS],
                    taps, scratch, r * pitch, group * pitch, vectors, values, row[BIAS],
                )  # fmt: skip
            else:
                _add_products(
                    row[FILTERS], filters, ZERO, twos, count, inputs, (top + r) * line, offsets, row[PAIRS],
                    twos, scratch, r * pitch, group * pitch, vectors, values, row[BIAS],
                )  # fmt: skip
        step = 2 if row[POOLED] else 1
        length = row[COLUMNS] // step * m
        for c in range(count):
            for r in range(0, some, step):
                left, put = (c * group + r) * pitch, to + _place(row, c, (top + r) // step, m)
                target = outputs[put : put + length]
                if step == 2:
                    mark = row[WHICH] * m + (c * (row[ROWS] // 2) + (top + r) // 2) * length
                    positive = ONE if row[ACTIVATION] == RELU else ZERO
                    _pool(scratch, left, pitch, row[COLUMNS] // 2, m, positive, outputs, put, which, mark)
                else:
                    _copy(scratch[left : left + length], target)
                _activate(row[ACTIVATION], target)
                if row[NOISE]:
                    _drop(row, noise, now, c, (top + r) // step, m, target)


@no_type_check
@compiled
def _half(bits):
    """Return the number of bfloat16 that is next to a number of float32, the even one of two; both are their bits."""
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    near = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint32(0x7FC0) if nan else near


@no_type_check
@compiled
def _halve(source, begin, target, count):
    """Write numbers in bfloat16."""
    bits = source.view(np.uint32)[begin : begin + count]
    for e in range(count):
        target[e] = np.uint16(_half(bits[e]))


@no_type_check
@compiled
def _pair(source, begin, count, length, step, target, to):
    """Write the numbers of each two rows as pairs in bfloat16; a last one without another is paired with zeros.

    Row k begins at begin + k * step.
    """
    bits = source.view(np.uint32)
    for k in range(0, count, 2):
        ours, put = bits[begin + k * step :], target[to + k // 2 * length :]
        if k + 1 < count:
            theirs = bits[begin + (k + 1) * step :]
            for e in range(length):
                put[e] = _half(ours[e]) | (_half(theirs[e]) << np.uint32(16))
        else:
            for e in range(length):
                put[e] = _half(ours[e])


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


@intrinsic
@no_type_check
def _largest(_, rows, left, right, m, positive, target, to, which, mark):
    """Write the largest of 2x2 pixels of some examples, and which it is; see `_pool`."""

    def codegen(context, builder, signature, arguments):
        (rows, left, right, m, positive, target, to, which, mark), kinds = arguments, signature.args
        _, vector, size = _vector(context, kinds[0])
        numbers = ir.VectorType(ir.IntType(8), vector.count)
        places = [left, builder.add(left, m), right, builder.add(right, m)]
        pixels = [_load(builder, _pointer(context, builder, kinds[0], rows, p), vector, size) for p in places]
        best, chosen = pixels[0], ir.Constant(numbers, [0] * vector.count)
        for number, pixel in enumerate(pixels[1:], 1):
            larger = builder.or_(builder.fcmp_ordered(">", pixel, best), builder.fcmp_unordered("uno", pixel, pixel))
            best = builder.select(larger, pixel, best)
            chosen = builder.select(larger, ir.Constant(numbers, [number] * vector.count), chosen)
        bits = ir.VectorType(ir.IntType(1), vector.count)
        none = builder.fcmp_ordered("<=", best, ir.Constant(vector, None))
        none = builder.and_(none, _spread(builder, builder.trunc(positive, ir.IntType(1)), bits))
        chosen = builder.select(none, ir.Constant(numbers, [-1] * vector.count), chosen)
        for value, kind, array, place, align in ((best, 5, target, to, size), (chosen, 7, which, mark, 1)):
            where = _pointer(context, builder, kinds[kind], array, place)
            builder.store(value, builder.bitcast(where, value.type.as_pointer()), align=align)
        return context.get_dummy_value()

    i = types.int64
    return types.void(rows, i, i, i, i, target, i, which, i), codegen


@intrinsic
@no_type_check
def _to_largest(_, g, to, which, mark, number, rows, place):
    """Write the gradient by one of 2x2 pixels of some examples: 0 where it is not the largest; see `_unpool`."""

    def codegen(context, builder, signature, arguments):
        (g, to, which, mark, number, rows, place), kinds = arguments, signature.args
        _, vector, size = _vector(context, kinds[0])
        numbers = ir.VectorType(ir.IntType(8), vector.count)
        value = _load(builder, _pointer(context, builder, kinds[0], g, to), vector, size)
        chosen = _load(builder, _pointer(context, builder, kinds[2], which, mark), numbers, 1)
        own = builder.icmp_signed("==", chosen, _spread(builder, builder.trunc(number, ir.IntType(8)), numbers))
        where = builder.bitcast(_pointer(context, builder, kinds[5], rows, place), vector.as_pointer())
        builder.store(builder.select(own, value, ir.Constant(vector, None)), where, align=size)
        return context.get_dummy_value()

    i = types.int64
    return types.void(g, i, which, i, i, rows, i), codegen


@no_type_check
@compiled
def _pool(rows, left, pitch, count, m, positive, target, to, which, mark):
    """Write the largest of each 2x2 pixels of two rows, and which it is; -1 where `positive` lets no gradient pass.

    As torch finds it: the first one of equal ones, and NaN if there is one.  The last vector of a pixel reaches back
    over the one before, so that none reaches into the next row; if a pixel has fewer examples than that, it writes into
    the next pixels, which are written later, and the last ones of a row are put together from single numbers.
    """
    lanes = BYTES // rows.itemsize
    for p in range(count):
        if min(m, lanes) + (count - 1 - p) * m < lanes:
            _pool_alone(rows, left + 2 * p * m, pitch, m, positive, target, to + p * m, which, mark + p * m)
            continue
        for n in range(0, m, lanes):
            n = max(ZERO, min(n, m - lanes))  # noqa: PLW2901
            fro = left + 2 * p * m + n
            _largest(rows, fro, fro + pitch, m, positive, target, to + p * m + n, which, mark + p * m + n)


@no_type_check
@compiled
def _pool_alone(rows, left, pitch, m, positive, target, to, which, mark):
    """Do what `_largest` does, for m examples one by one."""
    for n in range(left, left + m):
        found, at = rows[n], 0
        for number, place in enumerate((n + m, n + pitch, n + pitch + m)):
            pixel = rows[place]
            if pixel > found or np.isnan(pixel):
                found, at = pixel, number + 1
        target[to + n - left], which[mark + n - left] = found, -1 if positive and found <= 0 else at


@no_type_check
@compiled
def _unpool(g, to, which, mark, count, m, rows, left, pitch):
    """Write the gradient by the pixels of two rows: that by the largest for the one that is it, and 0 for the others.

    What a vector writes beyond a pixel is overwritten by the next one; a row ends with zeros.
    """
    lanes = BYTES // rows.itemsize
    for lower in range(2):
        row = left + lower * pitch
        for p in range(count):
            for second in range(2):
                for n in range(0, m, lanes):
                    put = row + (2 * p + second) * m + n
                    _to_largest(g, to + p * m + n, which, mark + p * m + n, 2 * lower + second, rows, put)
        rows[row + 2 * count * m : row + pitch] = 0


@no_type_check
@compiled
def _copy(source, target):
    """Copy entries, one by one: assigning a slice takes three times as long."""
    for e in range(len(target)):
        target[e] = source[e]


@no_type_check
@unchecked
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
def _convolve_back(  # noqa: PLR0912  (its loops are no functions, since LLVM optimises all that one calls again)
    row, further, values, gradient, offsets, steps, outputs, backward, at, to, m, noise, now, which, scratch, lr, halves
):  # fmt: skip
    """Write the gradient by the filters, and that by the inputs of a convolution if it is needed further on.

    With a learning rate it takes a step by the gradient, when that by the inputs is there, which needs the filters.
    """
    inputs, count, line = row[INPUTS], row[OUTPUTS], row[LINE] * m
    taps, plane, twos = inputs * row[TALL] * row[BROAD], row[LINES] * line, (count + 1) // 2
    pitch = _pitch(row, m, values.itemsize, halves)
    group, vectors = _group(row, pitch, values.itemsize), pitch * values.itemsize // BYTES
    if further:
        backward[at : at + inputs * plane] = 0
    gradient[row[WEIGHT] : row[WEIGHT] + count * taps] = 0
    gradient[row[BIAS] : row[BIAS] + count] = 0
    _prepare_back(row, further, values, steps, outputs, at, m, group, pitch, halves)
    if halves is not None:
        _, filters, paired, images, single = halves
    for top in range(0, row[ROWS], group):
        some = min(group, row[ROWS] - top)
        for c in range(count):
            _by_pixels(row, outputs, backward, to, c, top, some, m, noise, now, which, scratch, group, pitch)
            begun = c * group * pitch
            gradient[row[BIAS] + c] += _sum(scratch[begun : begun + some * pitch])
        if halves is None:
            _add_dots(
                scratch, ZERO, group * pitch, pitch, count, outputs, at + top * line, line, offsets, row[TAPS], taps,
                some, pitch, gradient, row[WEIGHT], taps,
            )  # fmt: skip
        else:
            _halve(scratch, ZERO, single, count * group * pitch)
            _add_dots(
                single, ZERO, group * pitch, pitch, count, images, top * line, line, offsets, row[TAPS], taps, some,
                pitch, gradient, row[WEIGHT], taps,
            )  # fmt: skip
            if further:
                _pair(scratch, ZERO, count, group * pitch, group * pitch, paired, ZERO)
        if further:
            for r in range(some + row[TALL] - 1):  # rows of the inputs, and of the filters that reach them from here
                first, last = max(0, r - some + 1), min(row[TALL] - 1, r)
                for over in range(row[BROAD]):
                    put = at + (top + r) * line + over * m
                    if halves is None:
                        _add_products(
                            row[BACK], values, row[WEIGHT] + over * inputs, ONE, inputs, scratch, r * pitch, steps,
                            first * count, (last - first + 1) * count, backward, put, plane, vectors, values, NO_START,
                        )  # fmt: skip
                    else:
                        _add_products(
                            row[BACK], filters, over * row[TALL] * twos * inputs, ONE, inputs, paired, r * pitch,
                            steps, first * twos, (last - first + 1) * twos, backward, put, plane, vectors, values,
                            NO_START,
                        )  # fmt: skip
    if lr:
        _step(values, gradient, row[WEIGHT], count * taps, lr)
        _step(values, gradient, row[BIAS], count, lr)


@no_type_check
@compiled
def _prepare_back(row, further, values, steps, outputs, at, m, group, pitch, halves):
    """Write the table of the runs from which the gradient by the inputs is summed; in bfloat16 also what is read."""
    inputs, count, plane = row[INPUTS], row[OUTPUTS], row[LINES] * row[LINE] * m
    taps, twos = inputs * row[TALL] * row[BROAD], (count + 1) // 2
    if halves is None:
        for down in range(row[TALL]):
            for c in range(count):
                entry = 2 * (down * count + c)
                steps[entry], steps[entry + 1] = c * taps + down * row[BROAD] * inputs, (c * group - down) * pitch
    else:
        _, filters, _, images, _ = halves
        _halve(outputs, at, images, inputs * plane)
        images[inputs * plane : inputs * plane + BEYOND] = 0  # what is beyond a run is multiplied by 0
        if further:
            for tap in range(row[TALL] * row[BROAD]):
                put = (tap % row[BROAD] * row[TALL] + tap // row[BROAD]) * twos * inputs
                _pair(values, row[WEIGHT] + tap * inputs, count, inputs, taps, filters, put)
        for down in range(row[TALL]):
            for c in range(twos):
                entry = 2 * (down * twos + c)
                steps[entry], steps[entry + 1] = (down * twos + c) * inputs, (c * group - down) * pitch


@no_type_check
@compiled
def _by_pixels(row, outputs, backward, to, c, top, some, m, noise, now, which, scratch, group, pitch):
    """Write the gradient by some rows of pixels of a channel, before activation and pooling, to the scratch."""
    step = 2 if row[POOLED] else 1
    length = row[COLUMNS] // step * m
    for r in range(0, some, step):
        begun = (c * group + r) * pitch
        put = to + _place(row, c, (top + r) // step, m)
        g, y = backward[put : put + length], outputs[put : put + length]
        _undo(row, c, (top + r) // step, m, noise, now, y, g)
        if step == 2:
            mark = row[WHICH] * m + (c * (row[ROWS] // 2) + (top + r) // 2) * length
            _unpool(backward, put, which, mark, row[COLUMNS] // 2, m, scratch, begun, pitch)
        else:
            _copy(g, scratch[begun : begun + length])
            scratch[begun + length : begun + pitch] = 0


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
        begun[2 * n], begun[2 * n + 1] = n, chosen[n] * i
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
        begun[2 * n], begun[2 * n + 1] = n, chosen[n] * i
    if lr:
        for e in range(len(g)):
            g[e] *= -lr
    else:
        target[row[WEIGHT] : row[WEIGHT] + o * i] = 0
    vectors = i * x.itemsize // BYTES
    _add_products(
        row[FILTERS], g, ZERO, m, o, x, ZERO, begun, ZERO, m, target, row[WEIGHT], i, vectors, g, NO_START
    )  # fmt: skip
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
