"""Compiled loops in several threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")
SMALL = 1 << 17  # entries, or products of them, below which a second thread costs more than it brings


def in_threads(kernel: Callable[..., T], work: list[tuple[Any, ...]], size: int) -> list[T]:
    """Calls `kernel` with each of some arguments, in as many threads as torch has, this one among them.

    Whoever is free takes the next.  So the work has to be divided without regard to the number of threads, and no two
    calls may write to the same place; then the result depends neither on that number nor on who is faster.

    Args:
        kernel: lets others run beside it (`nogil`).
        work: the arguments of each call, the longest calls first.
        size: of all of it, in entries that are read or products that are taken; for little one thread will do.

    Returns:
        What the calls returned, in the order of the work.
    """
    threads = min(torch.get_num_threads(), len(work)) if size > SMALL else 1
    results: list[Any] = [None] * len(work)
    left = iter(list(enumerate(work)))

    def take() -> None:
        for n, arguments in left:
            results[n] = kernel(*arguments)

    if threads > 1:
        with ThreadPoolExecutor(threads - 1) as pool:
            others = [pool.submit(take) for _ in range(threads - 1)]
            take()
            for other in others:
                other.result()
    else:
        take()
    return results
