"""A bound on the memory that one reply takes in the server's app.

Flower 1.41 fetches all of a reply and builds its arrays before anybody can look at it.  An array names the pieces of
which it consists, and may name one of them any number of times: a message of 5 MB can become one of terabytes.  Two
functions of Flower are therefore wrapped.  Both do as before in threads that have not set a bound.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_children_ids_from_object_content
from flwr.supercore.inflatable.inflatable_utils import pull_objects

from phalanx.flower.codec import MalformedError

GRID = "flwr.superlink.grid.http_grid"  # the module that fetches replies over HTTP
SPACE = 1 << 20  # bytes of a reply beyond twice those of its update


class Budget:
    """The number of bytes that a reply may still take; counted from several threads.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self.most, self._left, self._lock = most, most, threading.Lock()

    def spend(self, count: int) -> None:
        """Count some bytes; raise `MalformedError` if there are more than the reply may have."""
        with self._lock:
            self._left -= count
            if self._left < 0:
                raise MalformedError(f"it takes more than {self.most:,} bytes, and no valid reply to this task does")


class _Bound(threading.local):
    """The bound of the present thread."""

    most: int | None = None  # bytes
    arrays: Budget | None = None


_bound = _Bound()


def most_bytes(entries: int) -> int:
    """Return the largest number of bytes of a reply whose update has so many entries."""
    return SPACE + 8 * entries


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """Bound what this thread pulls from Flower: the bytes that it fetches, and those of the arrays that it builds.

    Beyond the bound, Flower's `pull_messages` raises `MalformedError`.

    Args:
        most: bytes.
    """
    if (grid := sys.modules.get(GRID)) is not None:  # not imported here: clients do not need its 600 modules
        vars(grid)["pull_objects"] = _pull_bounded
    _bound.most, _bound.arrays = most, Budget(most)
    try:
        yield
    finally:
        _bound.most, _bound.arrays = None, None


_inflate = Array.inflate


def _pull_bounded(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> dict[str, bytes]:
    """Do as Flower's `pull_objects` within the bound of this thread; pieces are fetched in others."""
    if _bound.most is None:
        return pull_objects(object_ids, pull_object_fn, **options)
    budget = Budget(_bound.most)

    def pull(number: str) -> bytes:
        content = pull_object_fn(number)
        budget.spend(len(content))
        return content

    return pull_objects(object_ids, pull, **options)


def _inflate_bounded(cls: type[Array], content: bytes, children: Mapping[str, Any] | None = None) -> Array:
    """Do as Flower's `Array.inflate` within the bound of this thread."""
    if _bound.arrays is not None:
        numbers = get_object_children_ids_from_object_content(content)
        pieces = json.loads(get_object_body(content, cls))["arraychunk_ids"]
        sizes = [len((children or {})[number].data) for number in numbers]
        _bound.arrays.spend(sum(sizes[k] for k in pieces))
    return _inflate.__func__(cls, content, children)  # type: ignore[attr-defined,no-any-return]


Array.inflate = classmethod(_inflate_bounded)  # type: ignore[assignment,method-assign]
