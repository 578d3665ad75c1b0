"""Settings of the memory allocator that make training faster on Linux, and memory for large matrices."""

import ctypes
import math
import platform
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # glibc, malloc.h
LARGE = 1 << 22  # bytes from which NumPy asks Linux for huge pages
LINE = 64  # bytes of a cache line


def keep_freed_memory() -> bool:
    """Make this process keep the memory that it frees, instead of returning every large block to the kernel.

    By default, glibc returns each activation of a convolutional model to the kernel, and gets it back page fault by
    page fault in the next step.  With this setting such models train 1.1 to 1.9 times as fast at the same peak memory
    (`benchmarks/training.py`).  It holds for the whole process and cannot be undone, so a library must not choose it
    for you: only the command line calls this function.

    Returns:
        Whether it was done: False on systems without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # No block below 1 GiB is mapped separately, the heap is never trimmed, and it grows in steps of 256 MiB.
    settings = ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1), (M_TOP_PAD, 256 << 20))
    return all(mallopt(name, value) for name, value in settings)


def room(shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
    """Return an uninitialised tensor like `torch.empty`, in huge pages where Linux has them.

    Linux maps new memory page by page, at the first write to each page, and torch asks for small pages: filling 64 MiB
    takes half as long in memory that NumPy has allocated.

    Args:
        shape: of the tensor.
        dtype: of its entries.
        device: of the tensor.
    """
    size = math.prod(shape) * dtype.itemsize
    if torch.device(device).type != "cpu" or size < LARGE:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    block = np.empty(size + LINE, np.uint8)
    first = -block.ctypes.data % LINE
    return torch.from_numpy(block[first : first + size]).view(dtype).view(tuple(shape))
