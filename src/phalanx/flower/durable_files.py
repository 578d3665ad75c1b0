"""Writing of files that must not be lost, and of files that nobody else may read."""

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from phalanx.errors import InfeasibleError
from phalanx.runs.files import naming, settle

if sys.platform != "win32":
    import fcntl

log = logging.getLogger("phalanx.flower")

PRIVATE, PUBLIC = 0o600, 0o666  # modes of new files; the umask narrows the second only


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that only its owner can read, from the moment it exists and whatever the umask is.

    Raises:
        FileExistsError: the file exists.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if hasattr(os, "fchmod"):  # a umask can also take away the owner's own rights
                os.fchmod(descriptor, PRIVATE)
            yield file
    except BaseException as error:
        path.unlink()  # half a key would stay in the way of a whole one
        naming(error, path)
        raise


@contextmanager
def only_for_owner(folder: Path) -> Iterator[None]:
    """Keep others from reading the files of a folder: those that are there, and those that this process makes."""
    before = os.umask(0o077)
    try:
        for path in folder.glob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(path.stat().st_mode & 0o700)
        yield
    finally:
        os.umask(before)


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file as `private_file` opens it."""
    with private_file(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Replace a file: at every moment, also after a loss of power, it is the old one or the new one, whole.

    The new file has the mode of the old one.  Its temporary name is its own, so that two writers do not mix.

    Args:
        path: of the file.
        content: of the new one.
        secret: whether only its owner can read the new one, whatever the mode of the old one is.
    """
    with replacing_durably(path, content, secret=secret):
        pass


@contextmanager
def replacing_durably(path: Path, content: bytes, *, secret: bool = False) -> Iterator[None]:
    """Have the new file on the disk, and let it take the place of the old one where the context ends without an error.

    So of two files that belong together, none is replaced before there was room for both.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    mode = PRIVATE if secret else path.stat().st_mode & 0o777 if path.exists() else None
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE if secret else PUBLIC)
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        yield
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        naming(error, path, partial)
        raise
    settle(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file, and wait until they have done so; for all who call this.

    The lock is on an empty file of its own, since the file itself is replaced.  It is released however the process
    ends, and never removed: removing it would let two in.

    Raises:
        InfeasibleError: the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("ab") as file:
        if sys.platform == "win32":
            log.warning("%s is not locked: Windows has no such locks. Change it by one command at a time.", path)
        else:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise InfeasibleError(
                    f"{path} cannot be locked: {error}. Keep it on a file system that supports locks."
                ) from error
        yield
