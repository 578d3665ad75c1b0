"""Settings of the memory allocator on Linux, for fast training or a small server, and memory for large matrices."""

import ctypes
import math
import os
import platform
import sys
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from phalanx.core import InfeasibleError

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # glibc, malloc.h
LARGE = 1 << 22  # bytes from which NumPy asks Linux for huge pages
SEPARATE = 1 << 20  # bytes from which `return_freed_memory` has blocks mapped separately
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


def return_freed_memory() -> bool:
    """Make this process return each large block that it frees to the kernel at once.

    By default, glibc raises the size from which it does so with each block that is freed, up to 32 MiB, and keeps what
    lies between blocks in use: a server that receives 100 updates of 4 MB in as many threads holds 130 to 150 MB
    beyond them, and 70 MB with this setting (`benchmarks/flower.py memory`).  It holds for the whole process.

    Returns:
        Whether it was done: False on systems without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, SEPARATE))


def check_fits(size: int, what: str) -> None:
    """Raise `InfeasibleError` if so many bytes are more than the memory of this machine, as far as it is known."""
    try:
        held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return
    if size > held > 0:
        raise InfeasibleError(
            f"{what} takes {size / 1e9:,.0f} GB of memory, and this machine has {held / 1e9:,.0f} GB. Make it smaller."
        )


def room(shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
    """Return an uninitialised tensor like `torch.empty`, in huge pages where Linux has them.

    Linux maps new memory page by page, at the first write to each page, and torch asks for small pages: filling 64 MiB
    takes half as long in memory that NumPy has allocated.

    Args:
        shape: of the tensor.
        dtype: of its entries.
        device: of the tensor.
    """
    return ReusedRoom()(shape, dtype, device)


class ReusedRoom:
    """Memory for one large matrix after the other: it is used again when nothing refers to the last one any more.

    New memory costs a page fault for each page, which takes a third of the time of a round with small models.
    """

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)
        self._unshared = sys.getrefcount(self._block)  # this attribute's reference, and those of the call

    def __call__(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Tensor:
        """Return an uninitialised tensor; see `room`."""
        size = math.prod(shape) * dtype.itemsize
        if torch.device(device).type != "cpu" or size < LARGE:
            return torch.empty(tuple(shape), dtype=dtype, device=device)
        if self._block.nbytes < size + LINE or sys.getrefcount(self._block) > self._unshared:
            self._block = np.empty(0, np.uint8)  # gives the old memory back first
            self._block = np.empty(size + LINE, np.uint8)
        first = -self._block.ctypes.data % LINE
        return torch.from_numpy(self._block[first : first + size]).view(dtype).view(tuple(shape))
