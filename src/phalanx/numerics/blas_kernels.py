"""Products of small matrices within compiled loops, by the BLAS that torch computes with.

A call from Python takes longer than the product itself: here a compiled loop calls the library's `gemm` directly.
Torch exports it under its standard name where it is linked into `libtorch_cpu` or one of its libraries (x86-64 Linux,
macOS); it uses as many threads as torch does.
"""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import no_type_check

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from phalanx.numerics.kernels import compiled

NAMES = {np.dtype(np.float32): "sgemm_", np.dtype(np.float64): "dgemm_"}


@intrinsic
@no_type_check
def _gemm(_, address, turned, m, n, k, alpha, a, b, beta, c):
    """Call Fortran's gemm at an address: C = alpha op(A) op(B) + beta C for matrices that lie row after row.

    Fortran's matrices lie column after column, so it is given the transposed ones: C' = op(B)' op(A)'.
    """

    def codegen(context, builder, signature, arguments):
        address, turned, m, n, k, alpha, a, b, beta, c = arguments
        kinds = dict(zip(("alpha", "a", "b", "beta", "c"), signature.args[5:], strict=True))
        byte, integer = ir.IntType(8), ir.IntType(64)

        def pointer(kind, array):
            return context.make_array(kind)(context, builder, array).data

        def held(value):
            # Of 8 bytes, the lower half first: right for BLAS with integers of 4 bytes and of 8.
            slot = cgutils.alloca_once(builder, value.type)
            builder.store(value, slot)
            return slot

        def factor(kind, value):
            return held(context.cast(builder, value, kind, kinds["c"].dtype))

        def letter(bit):
            asked = builder.trunc(builder.lshr(turned, ir.Constant(integer, bit)), ir.IntType(1))
            return asked, held(builder.select(asked, ir.Constant(byte, ord("T")), ir.Constant(byte, ord("N"))))

        (a_turned, a_letter), (b_turned, b_letter) = letter(0), letter(1)
        a_width, b_width = builder.select(a_turned, m, k), builder.select(b_turned, k, n)
        given = [
            b_letter, a_letter, held(n), held(m), held(k),
            factor(kinds["alpha"], alpha), pointer(kinds["b"], b), held(b_width), pointer(kinds["a"], a), held(a_width),
            factor(kinds["beta"], beta), pointer(kinds["c"], c), held(n),
        ]  # fmt: skip
        function = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(builder.inttoptr(address, function.as_pointer()), given)
        return context.get_dummy_value()

    signature = types.void(types.int64, types.int64, types.int64, types.int64, types.int64, alpha, a, b, beta, c)
    return signature, codegen


PLAIN, A_TURNED, B_TURNED = 0, 1, 2  # which of the matrices is transposed


@no_type_check
@compiled
def multiply(address, turned, m, n, k, alpha, a, b, beta, c):
    """Write alpha op(A) op(B) + beta C to the m x n entries from c on, where op(A) is m x k and op(B) is k x n.

    Args:
        address: of `gemm` for this type of entries; see `gemm`.
        turned: `PLAIN`, or which of A and B lies transposed.
        m: number of rows of C.
        n: number of columns of C.
        k: number of products that are summed.
        alpha: factor of the product.
        a: contiguous array, whose first entries are A, row after row.
        b: B, like A.
        beta: factor of C; if it is 0, C is not read.
        c: C, like A.
    """
    _gemm(address, turned, m, n, k, alpha, a, b, beta, c)


@lru_cache(maxsize=2)
def gemm(kind: np.dtype) -> int | None:
    """Return the address of torch's `gemm` for entries of a type, float32 or float64; None if it exports none."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            address = ctypes.cast(getattr(ctypes.CDLL(str(library)), NAMES[kind]), ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
        if address is not None and _right(address, kind):
            return address
    return None


def _right(address: int, kind: np.dtype) -> bool:
    """Return whether it multiplies as the standard says, on small integers."""
    a, b, c = (np.arange(float(count)).astype(kind) for count in (6, 12, 8))
    expected: NDArray[np.floating] = 4 * c.reshape(2, 4) - a.reshape(2, 3) @ b.reshape(4, 3).T
    multiply(address, B_TURNED, 2, 4, 3, -1, a, b, 4, c)
    return np.array_equal(c, expected.ravel())
