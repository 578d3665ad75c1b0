"""How Numba compiles inner loops, where it keeps them, and that it does, which is a wait that users are to know of."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event
from typing_extensions import override

log = logging.getLogger("phalanx")

NOT_KEPT = "Compiled loops cannot be kept on this disk, so each process compiles them again, for a minute or more."
REMEDY = "Set NUMBA_CACHE_DIR to a folder that can be written to."


def compiling(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function, with options of `numba.njit`.

    Where the code can be written to neither next to its source, nor below the user's home, nor in NUMBA_CACHE_DIR, as
    in a container whose disk is read-only or full, it is compiled in each process, and a warning says so once.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            made = njit(cache=True, **options)(function)
        except RuntimeError:  # Numba finds no place, and looks for one before it compiles
            made = njit(**options)(function)
            _warn()
        else:
            made._cache.save_overload = _if_there_is_room(made._cache.save_overload)
        return made

    return compiled


def _if_there_is_room(save: Callable[..., None]) -> Callable[..., None]:
    """Have a full disk cost time, and not the run."""

    def saved(*compiled: Any) -> None:
        try:
            save(*compiled)
        except OSError:
            _warn()

    return saved


@cache
def _warn() -> None:
    log.warning("%s %s", NOT_KEPT, REMEDY)


def kept_in(compiled: Any) -> Path | None:
    """Return the folder that keeps a compiled function; None if none does."""
    path = compiled.stats.cache_path
    return None if path is None else Path(path)


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
