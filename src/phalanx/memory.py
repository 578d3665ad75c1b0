"""Room for large matrices."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

LARGE = 1 << 22  # bytes from which on NumPy asks for large pages
LINE = 64  # bytes: what the processor reads at a time


def room(shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialised tensor, as `torch.empty` makes it, in large pages of memory where Linux has them.

    The first write to each page of new memory costs some half a microsecond, however large the page is, and torch takes
    small ones: to fill 64 MiB takes half as long in room that NumPy asks for.

    Args:
        shape: of the tensor.
        dtype: of its entries.
        device: where it lies.
    """
    size = math.prod(shape) * dtype.itemsize
    if torch.device(device).type != "cpu" or size < LARGE:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    block = np.empty(size + LINE, np.uint8)
    first = -block.ctypes.data % LINE
    return torch.from_numpy(block[first : first + size]).view(dtype).view(tuple(shape))
