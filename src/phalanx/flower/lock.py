"""A lock that keeps a second server out of a folder.

Two would overwrite each other's history, checkpoint and upload counts.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.core import InfeasibleError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("phalanx.flower")

LOCK = "lock"  # an empty file that is never removed: removing it would let a second server in


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, and make it if needed; the lock is released however the process ends.

    Raises:
        InfeasibleError: another process holds the lock, or the file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("ab") as file:
        if sys.platform == "win32":
            log.warning("%s is not locked against a second server: Windows has no such locks. Start only one.", folder)
        else:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InfeasibleError(
                    f"Another server is running in {folder}, and two would overwrite each other's files. Wait until it "
                    "ends, stop it (`flwr list`, `flwr stop`), or choose another folder."
                ) from error
            except OSError as error:
                raise InfeasibleError(
                    f"{folder} cannot be locked: {error}. Choose a folder on a file system that supports locks."
                ) from error
        yield
