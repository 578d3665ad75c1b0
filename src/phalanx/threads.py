"""Compiled loops in several threads."""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

T = TypeVar("T")
Part = tuple[int, ...]  # of some work, told by a few numbers
SMALL = 1 << 17  # entries, or products of them, below which a second thread costs more than it brings


def in_threads(kernel: Callable[..., T], arguments: tuple[Any, ...], parts: Sequence[Part], size: int) -> list[T]:
    """Calls `kernel(*arguments, some of the parts)` in as many threads as torch has, this one among them.

    Parts are dealt out one by one, and each thread calls once, so that nobody has to wait for the interpreter between
    two parts.  The work has to be divided into parts without regard to the number of threads, and no two parts may
    write to the same place; then the result does not depend on that number.  What a thread was dealt that the machine
    has not let begin is done here.

    Args:
        kernel: lets others run beside it (`nogil`).
        arguments: the same for all.
        parts: of the work, the longest first; the kernel is handed some of them as the rows of a matrix.
        size: of all the work, in entries that are read or products that are taken; for little one thread will do.

    Returns:
        What the calls returned.
    """
    threads = min(torch.get_num_threads(), len(parts)) if size > SMALL else 1
    dealt = [np.array(parts[k::threads], dtype=np.int64) for k in range(threads)]
    pool = _pool(os.getpid())
    if threads > 1:
        pool.keep_off()
    others = [pool.executor.submit(kernel, *arguments, some) for some in dealt[1:]]
    results = [kernel(*arguments, dealt[0])]
    for other, some in zip(others, dealt[1:], strict=True):
        results.append(kernel(*arguments, some) if other.cancel() else other.result())
    return results


class Pool(NamedTuple):
    """Threads that work for others."""

    executor: ThreadPoolExecutor
    members: list[int]  # Linux's numbers of its threads

    def keep_off(self) -> None:
        """Has the threads run on any processor but this one, which the thread that asks them needs for itself.

        In virtual machines Linux takes a processor that sleeps for one that its host has taken away, and wakes a thread
        on the processor of the one that wakes it, where it waits until that one is done.
        """
        if sys.platform == "linux":
            elsewhere = os.sched_getaffinity(0) - {_here()}
            with suppress(OSError):  # processors come and go
                for member in self.members if elsewhere else ():
                    os.sched_setaffinity(member, elsewhere)


def _here() -> int:
    """The processor that this thread runs on; -1 where the system does not tell."""
    try:
        return int(_libc().sched_getcpu())
    except AttributeError:
        return -1


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@lru_cache(maxsize=1)
def _pool(process: int) -> Pool:
    """The threads of a process, kept since starting one takes as long as a small piece of work; a fork has none."""
    members = list[int]()
    executor = ThreadPoolExecutor(
        os.cpu_count() or 1, "phalanx", initializer=lambda: members.append(threading.get_native_id())
    )
    return Pool(executor, members)
