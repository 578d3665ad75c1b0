"""A lock that keeps a second writer out of a folder: two would overwrite each other's files."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from phalanx.core import InfeasibleError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("phalanx")

LOCK = "lock"  # an empty file, which is there as long as somebody writes in the folder


@contextmanager
def exclusive(folder: Path, *, needed: bool = True) -> Iterator[None]:
    """Lock a folder for this process, and make it if needed; the lock is released however the process ends.

    A folder that was made for this, and in which nothing was written, is removed again.

    Args:
        folder: in which is written.
        needed: whether a file system without locks is an error.

    Raises:
        InfeasibleError: another process holds the lock; or the file system has no locks, and one is needed.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with ExitStack() as held:
        while not _lock(file := held.enter_context(_opened(path)), folder, needed=needed) or not _is(file, path):
            held.close()  # somebody released it meanwhile, and removed the file
        try:
            yield
        finally:
            with suppress(OSError):  # removed by whoever holds the lock; see above for who waits for it
                path.unlink()
                for each in made:
                    each.rmdir()


def _opened(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600), "wb")


def _is(file: BinaryIO, path: Path) -> bool:
    """Return whether the file that is open is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock(file: BinaryIO, folder: Path, *, needed: bool) -> bool:
    if sys.platform == "win32":
        log.warning("%s is not locked against a second writer: Windows has no such locks. Start only one.", folder)
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InfeasibleError(
            f"Another process writes in {folder}, and two would overwrite each other's files. Wait until it ends, stop "
            "it (a server by `flwr list` and `flwr stop`), or choose another folder."
        ) from error
    except OSError as error:
        if needed:
            raise InfeasibleError(
                f"{folder} cannot be locked: {error}. Choose a folder on a file system that supports locks."
            ) from error
        log.warning("%s cannot be locked against a second writer: %s. Start only one.", folder, error)
    return True
