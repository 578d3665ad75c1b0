"""The compiled loops of `phalanx.training.gradient`: pooling of images."""

from typing import no_type_check

import numpy as np

from phalanx.numerics.kernels import compiled


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
