"""Compiled loops in several threads."""

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
Part = tuple[int, ...]  # of some work, told by a few numbers
SMALL = 1 << 17  # entries, or products of them, below which a second thread costs more than it brings


@intrinsic
@no_type_check
def claim(_, taken):
    """The number of the next part that nobody has taken; for kernels, which go on while it is one of a part.

    Args:
        taken: (1,), int64: how many are taken, by all threads.
    """

    def codegen(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(taken), codegen


def in_threads(kernel: Callable[..., T], arguments: tuple[Any, ...], parts: Sequence[Part], size: int) -> list[T]:
    """Calls `kernel(*arguments, parts, taken)` in as many threads as torch has, this one among them.

    Each thread calls once, and takes one part after the other with `claim(taken)`, so that nobody waits for the
    interpreter between two parts, or for a thread that began late or whose processor is slow.  The work has to be
    divided into parts without regard to the number of threads, and no two parts may write to the same place; then the
    result does not depend on that number, nor on who takes what.

    Args:
        kernel: lets others run beside it (`nogil`).
        arguments: the same for all.
        parts: of the work, the longest first; the kernel is handed a matrix with a row for each.
        size: of all the work, in entries that are read or products that are taken; for little one thread will do.

    Returns:
        What the calls returned, of those threads that began before all was done.
    """
    threads = min(torch.get_num_threads(), len(parts)) if size > SMALL else 1
    work, taken = np.array(parts, dtype=np.int64), np.zeros(1, np.int64)
    pool = _pool(os.getpid())
    if threads > 1:
        pool.keep_off()
    others = [pool.executor.submit(kernel, *arguments, work, taken) for _ in range(1, threads)]
    results = [kernel(*arguments, work, taken)]
    return results + [other.result() for other in others if not other.cancel()]


@contextmanager
def alone() -> Iterator[None]:
    """Has torch work in this thread alone, on what is so small that the others only get in the way of ours.

    Torch's number of threads is kept for each thread that asks. Others keep theirs, but one that turns to torch for the
    first time meanwhile starts with one: it is slower then, and what torch adds up in as many parts as it has threads,
    such as gradients, has other last digits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
