"""Compiled loops in several threads of one process."""

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, no_type_check

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

T = TypeVar("T")
Part = tuple[int, ...]  # an item of work, as a few numbers
SMALL = 1 << 17  # entries or products below which a second thread costs more than it saves


@intrinsic
@no_type_check
def claim(_, taken):
    """Claim the next part for this thread, and return its number; for kernels, which stop when no part has that number.

    Args:
        taken: (1,), int64: number of parts that all threads have claimed so far.
    """

    def codegen(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(taken), codegen


def in_threads(kernel: Callable[..., T], arguments: tuple[Any, ...], parts: Sequence[Part], size: int) -> list[T]:
    """Call `kernel(*arguments, parts, taken)` in as many threads as torch uses, this one included.

    Each thread calls the kernel once, which claims one part after the other with `claim(taken)`.  So no thread waits
    for the interpreter between two parts, or for another thread that started late or is slow.  The parts must not
    depend on the number of threads, and no two parts may write to the same place; then the result depends neither on
    that number nor on which thread does which part.

    Args:
        kernel: compiled with `nogil`, so that threads run in parallel.
        arguments: the same for all threads.
        parts: the work, the longest part first; the kernel receives a matrix with a row for each part.
        size: of all the work, in entries read or products computed; up to `SMALL` it is done in this thread alone.

    Returns:
        The results of the calls, in those threads that started before all parts were claimed.
    """
    threads = min(torch.get_num_threads(), len(parts)) if size > SMALL else 1
    work, taken = np.array(parts, dtype=np.int64), np.zeros(1, np.int64)
    pool = _pool(os.getpid())
    if threads > 1:
        pool.keep_off()
    # This thread works too, and the others may start late: parts are claimed, not assigned.
    others = [pool.executor.submit(kernel, *arguments, work, taken) for _ in range(1, threads)]
    results = [kernel(*arguments, work, taken)]
    # A thread that has not started yet finds no part left: cancel it instead of waiting.
    return results + [other.result() for other in others if not other.cancel()]


@contextmanager
def alone() -> Iterator[None]:
    """Restrict torch to this thread, for work so small that more threads slow it down.

    Torch keeps its number of threads per calling thread.  Other threads keep theirs, but a thread that first uses torch
    in the meantime starts with one: it is slower, and sums that torch divides by the number of threads, such as
    gradients, differ in the last digits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class WorkerThreads(NamedTuple):
    """The worker threads of a process."""

    executor: ThreadPoolExecutor
    members: list[int]  # native ids of its threads

    def keep_off(self) -> None:
        """Keep the worker threads off the processor that the calling thread runs on.

        In virtual machines Linux takes an idle processor for one that the host has taken away, and wakes a thread on
        the processor of the thread that wakes it, where it waits until that one has finished.
        """
        if sys.platform == "linux":
            elsewhere = os.sched_getaffinity(0) - {_here()}
            with suppress(OSError):  # a processor may have gone offline
                for member in self.members if elsewhere else ():
                    os.sched_setaffinity(member, elsewhere)


def _here() -> int:
    """Return the number of the processor that this thread runs on; -1 if the system does not say."""
    try:
        return int(_libc().sched_getcpu())
    except AttributeError:
        return -1


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@lru_cache(maxsize=1)
def _pool(process: int) -> WorkerThreads:
    """Return the threads of a process, kept because starting one is slow; a fork starts its own."""
    members = list[int]()
    executor = ThreadPoolExecutor(
        os.cpu_count() or 1, "phalanx", initializer=lambda: members.append(threading.get_native_id())
    )
    return WorkerThreads(executor, members)
