"""What the allocator is told, so that training is faster on Linux, and room for large matrices."""

import ctypes
import math
import platform
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # glibc, malloc.h
LARGE = 1 << 22  # bytes from which on NumPy asks for large pages
LINE = 64  # bytes: what the processor reads at a time


def keep_freed_memory() -> bool:
    """Lets this process keep memory that it has freed, instead of giving every large block back to the kernel.

    glibc returns each activation of a convolutional model to the kernel, and gets it back page fault by page fault in
    the next step.  With this setting such models train 1.1 to 1.9 times as fast at the same peak memory
    (`benchmarks/training.py`).  It holds for the whole process and for good, so a library must not choose it for you:
    the command line does, for itself.

    Returns:
        Whether it was done. It is not on systems without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1), (M_TOP_PAD, 256 << 20))
    return all(mallopt(name, value) for name, value in settings)


def room(shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
    """An uninitialised tensor, as `torch.empty` makes it, in large pages of memory where Linux has them.

    Linux hands out new memory page by page, at the first write to each, and torch asks for small pages: to fill 64 MiB
    takes half as long in room that NumPy has asked for.

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
