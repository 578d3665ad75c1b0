"""What Numba compiles, and does not only load: a wait that users are to know of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event
from typing_extensions import override


class _First(event.Listener):
    """Calls a function at the first event."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify, self._done = notify, False

    @override
    def on_start(self, _: event.Event) -> None:
        if not self._done:
            self._done = True
            self._notify()

    @override
    def on_end(self, _: event.Event) -> None:
        return None


@contextmanager
def compilation(notify: Callable[[], None]) -> Iterator[None]:
    """Call a function before Numba compiles for the first time within; not before it loads what it has stored."""
    with event.install_listener("numba:compile", _First(notify)):
        yield
