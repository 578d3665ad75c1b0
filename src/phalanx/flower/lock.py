"""One server to a folder: two would write over each other's history, checkpoint, and count of tasks."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.core import InfeasibleError

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("phalanx.flower")

LOCK = "lock"  # is empty, and stays: whoever removed it would let a second server in


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Has a folder for this process alone; it is made if there is none, and free again however the process ends.

    Raises:
        InfeasibleError: another process has it, or the file system has no locks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("ab") as file:
        if sys.platform == "win32":
            log.warning("Nothing keeps a second server out of %s: there are no such locks on Windows.", folder)
        else:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InfeasibleError(
                    f"Another server works in {folder}, and two would write over each other. Wait for its end, or stop "
                    "it (`flwr list`, `flwr stop`); or choose another folder."
                ) from error
            except OSError as error:
                raise InfeasibleError(
                    f"{folder} cannot be kept from a second server: {error}. Choose a folder on a file system that "
                    "has locks."
                ) from error
        yield
