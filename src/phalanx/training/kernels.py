"""The compiled loops of `phalanx.training`: pooling of images, and all of the training of linear layers.

In the latter, matrices lie row after row in one-dimensional arrays.  Loops keep the order of the entries, so that the
compiler uses vectors where the result does not change; only `squares` may be summed in another order.
"""

import math
from typing import no_type_check

import numpy as np

from phalanx.numerics.blas_kernels import A_TURNED, B_TURNED, PLAIN, multiply
from phalanx.numerics.kernels import compiled, reordered

NO_ACTIVATION, RELU, TANH = 0, 1, 2
INPUTS, OUTPUTS, WEIGHT, BIAS, ACTIVATION = range(5)  # columns of the table of layers


@no_type_check
@compiled
def train(
    address, table, values, gradient, x, y, order, size, count, lr, clip, decay, proximal, received, added, pull,
    momentum, velocity, outputs, backward,
):  # fmt: skip
    """Train in place, and return the sum of the losses of the first epoch, and whether all labels are known.

    Args:
        address: of the matrix product.
        table: (L, 5), a row for each layer.
        values: (d,), all parameters.
        gradient: (d,), room for their gradient.
        x: (n, inputs), examples.
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
        outputs: room for the examples of a minibatch and the outputs of each layer.
        backward: the same for the gradients by them.
    """
    last, total = len(table) - 1, 0.0
    classes, inputs = table[last, OUTPUTS], table[0, INPUTS]
    held = len(y)
    for i in range(held):
        if not 0 <= y[i] < classes:
            return total, False
    direct = clip == math.inf and decay == 0 and proximal == 0 and momentum == 0 and len(added) == 0
    end = 0
    for _ in range(count):
        begin, end = end, min(end + size, (end // held + 1) * held)
        chosen, m = order[begin:end], end - begin
        for r in range(m):
            _copy(x[chosen[r]], outputs[r * inputs : (r + 1) * inputs])
        at = 0  # where the inputs of a layer begin
        for number in range(last + 1):
            i, o, weight, bias, activation = table[number]
            z = outputs[at + m * i : at + m * i + m * o]
            for r in range(m):
                _copy(values[bias : bias + o], z[r * o : (r + 1) * o])
            multiply(address, B_TURNED, m, o, i, 1, outputs[at:], values[weight:], 1, z)
            _activate(activation, z)
            at += m * i
        z, g = outputs[at : at + m * classes], backward[at : at + m * classes]
        loss = _cross_entropy(z, y, chosen, classes, g)
        if end <= held:
            total += loss
        for number in range(last, -1, -1):
            i, o, weight, bias, activation = table[number]
            z, g = outputs[at : at + m * o], backward[at : at + m * o]
            _by_input(activation, z, g)
            at -= m * i
            if number > 0:
                multiply(address, PLAIN, m, i, o, 1, g, values[weight:], 0, backward[at:])
            # A step of gradient descent subtracts the gradient where it would be written.
            target, alpha, beta = (values, -lr / m, 1) if direct else (gradient, 1 / m, 0)
            multiply(address, A_TURNED, o, i, m, alpha, g, outputs[at:], beta, target[weight:])
            _add_rows(g, m, o, alpha, beta, target[bias : bias + o])
        if not direct:
            _descend(
                values[: len(gradient)], gradient, lr, clip, decay, proximal, received, added, pull, momentum, velocity
            )
    return total, True


@no_type_check
@compiled
def _copy(source, target):
    """Copy entries, one by one: assigning a slice takes three times as long."""
    for e in range(len(target)):
        target[e] = source[e]


@no_type_check
@compiled
def _activate(activation, z):
    """Apply the function after a layer in place; NaN stays NaN."""
    if activation == RELU:
        for e in range(len(z)):
            z[e] = z.dtype.type(0) if z[e] <= 0 else z[e]
    elif activation == TANH:
        for e in range(len(z)):
            z[e] = math.tanh(z[e])


@no_type_check
@compiled
def _by_input(activation, z, g):
    """Turn the gradient by the outputs z of an activation into that by its inputs, in place."""
    if activation == RELU:
        for e in range(len(z)):
            g[e] = z.dtype.type(0) if z[e] <= 0 else g[e]
    elif activation == TANH:
        for e in range(len(z)):
            g[e] *= 1 - z[e] * z[e]


@no_type_check
@compiled
def _cross_entropy(z, y, chosen, classes, g):
    """Return the sum of the cross-entropies of a minibatch, and write its gradient by the scores to g."""
    total = 0.0
    for r in range(len(chosen)):
        scores, by = z[r * classes : (r + 1) * classes], g[r * classes : (r + 1) * classes]
        label, top, mass = y[chosen[r]], scores[0], z.dtype.type(0)
        for c in range(1, classes):
            top = scores[c] if scores[c] > top else top
        for c in range(classes):
            by[c] = math.exp(scores[c] - top)
            mass += by[c]
        total += math.log(mass) - (scores[label] - top)
        for c in range(classes):
            by[c] /= mass
        by[label] -= 1
    return total


@no_type_check
@compiled
def _add_rows(g, m, o, alpha, beta, target):
    """Write alpha times the sum of m rows, plus beta times the target, to the target."""
    factor = g.dtype.type(alpha)
    if beta == 0:
        target[:] = 0
    for r in range(m):
        for c in range(o):
            target[c] += factor * g[r * o + c]


@no_type_check
@reordered
def squares(gradient):
    """Return the sum of the squares, in float64."""
    total = 0.0
    for e in range(len(gradient)):
        total += np.float64(gradient[e]) * gradient[e]
    return total


@no_type_check
@compiled
def _descend(values, gradient, lr, clip, decay, proximal, received, added, pull, momentum, velocity):
    """Take one step of gradient descent, in place; see `phalanx.training.sgd.Trainer.descend`."""
    kind = values.dtype.type
    if clip != math.inf:
        norm = math.sqrt(squares(gradient))
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


@no_type_check
@compiled
def pool(images, positive, y, chosen):
    """Write the maximum over each 2x2 pixels, as torch finds it: the first one of equal ones, and NaN if there is one.

    Args:
        images: (B, height, width, channels).
        positive: whether what is negative becomes 0.
        y: (B, height // 2, width // 2, channels), receives the maxima.
        chosen: as y, int32, receives the number of the pixel, row by row; -1 where `positive` lets no gradient pass.
    """
    examples, rows, columns, channels = y.shape
    zero = y.dtype.type(0)
    for b in range(examples):
        for r in range(rows):
            for c in range(columns):
                top, low = images[b, 2 * r, 2 * c : 2 * c + 2], images[b, 2 * r + 1, 2 * c : 2 * c + 2]
                first, second, third, fourth = top[0], top[1], low[0], low[1]
                best, which = y[b, r, c], chosen[b, r, c]
                for e in range(channels):
                    found, at = first[e], np.int32(0)
                    for_second = second[e] > found or second[e] != second[e]
                    found, at = (second[e], np.int32(1)) if for_second else (found, at)
                    for_third = third[e] > found or third[e] != third[e]
                    found, at = (third[e], np.int32(2)) if for_third else (found, at)
                    for_fourth = fourth[e] > found or fourth[e] != fourth[e]
                    found, at = (fourth[e], np.int32(3)) if for_fourth else (found, at)
                    if positive:
                        at = np.int32(-1) if found <= zero else at
                        found = zero if found < zero else found
                    best[e], which[e] = found, at


@no_type_check
@compiled
def unpool(g, chosen, images):
    """Write the gradient by the pixels: that by the maximum for the one that is it, and 0 for the others.

    Args:
        g: (B, rows, columns, channels), the gradient by the maxima.
        chosen: of `pool`.
        images: (B, height, width, channels), receives it.
    """
    examples, rows, columns, channels = g.shape
    zero = g.dtype.type(0)
    for b in range(examples):
        for r in range(rows):
            for c in range(columns):
                top, low = images[b, 2 * r, 2 * c : 2 * c + 2], images[b, 2 * r + 1, 2 * c : 2 * c + 2]
                first, second, third, fourth = top[0], top[1], low[0], low[1]
                by, which = g[b, r, c], chosen[b, r, c]
                for e in range(channels):
                    value = zero + by[e]  # torch adds it to 0, which is 0 for -0
                    first[e] = value if which[e] == 0 else zero
                    second[e] = value if which[e] == 1 else zero
                    third[e] = value if which[e] == 2 else zero
                    fourth[e] = value if which[e] == 3 else zero
            if images.shape[2] > 2 * columns:
                images[b, 2 * r : 2 * r + 2, 2 * columns :] = zero
        if images.shape[1] > 2 * rows:
            images[b, 2 * rows :] = zero
