"""Files that are either whole or not there, in folders that may have come from somebody else."""

import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HISTORY, AUDIT = "history.jsonl", "audit.jsonl"  # of a run: its steps; and of a deployment, what happened to clients


def inside(folder: Path, name: str) -> Path:
    """Return the path of a file of a folder, which may be somebody else's; raise as `real_inside` does."""
    real_inside(folder, name)
    return folder / name


def real_inside(folder: Path, name: str) -> Path:
    """Return the same path with links followed: a link that is put there afterwards is not.

    Raises:
        ValueError: the name, or a link on the way, leads out of the folder.
    """
    path = folder / name
    if not (real := os.path.realpath(path)).startswith(os.path.join(os.path.realpath(folder), "")):
        raise ValueError(f"{path} leads out of its folder, by its name or by a link. Put the file itself in its place.")
    return Path(real)


def target(path: Path) -> Path:
    """Return the file that a path means, links followed.

    Raises:
        ValueError: it is a folder or a device, of which a file would take the place.
    """
    return _replaceable(Path(os.path.realpath(path)), path)


def _replaceable(real: Path, path: Path) -> Path:
    if real.exists() and not real.is_file():
        raise ValueError(f"{path} is a {'folder' if real.is_dir() else 'device'}. Name a file.")
    return real


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of another one, whole, where the context ends without an error.

    Its temporary name is its own: two writers do not mix, and it follows no link.

    Args:
        path: of the file.
        mode: of the new file; the umask narrows it.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)  # on a full disk it would take the room that others need
        naming(error, path, partial)
        raise


def is_full(error: BaseException) -> TypeGuard[OSError]:
    """Return whether an error says that there is no room: on a disk, in the user's share of it, or in one file."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def naming(error: BaseException, path: Path, partial: Path | None = None) -> None:
    """Make an error of the operating system name a file, where it names none, or the temporary one."""
    known = (None, os.fspath(path), os.fspath(partial or path))
    if isinstance(error, OSError) and error.errno is not None and error.filename in known:
        error.filename, error.filename2 = os.fspath(path), None


def write(path: Path, text: bytes) -> None:
    """Write a file, so that a kill leaves either all of the new one or the old one; links are followed."""
    with replacing(target(path)) as file:
        file.write(text)


def write_figure(figure: "Figure", path: Path, **how: Any) -> None:
    """Write a picture of matplotlib in the same way, in the format of its suffix; `how` is for `Figure.savefig`."""
    with replacing(target(path)) as file:
        figure.savefig(file, format=path.suffix[1:].lower() or "png", **how)


def write_inside(folder: Path, name: str, text: bytes) -> None:
    """Write a file of a folder in the same way; raise `ValueError` as `real_inside` does."""
    with replacing(_replaceable(real_inside(folder, name), folder / name)) as file:
        file.write(text)


def append(path: Path, lines: bytes, *, durable: bool = True) -> None:
    """Add lines at the end of a file: all of them, or none.

    Args:
        path: of the file.
        lines: to add.
        durable: whether they are on the disk when this returns, where a loss of power does not reach them.

    Raises:
        OSError: they cannot be written; the error names `path`.
    """
    with path.open("ab", buffering=0) as file:  # a buffer would be written once more when the file is closed
        size, left = file.tell(), memoryview(lines)
        try:
            while left:
                left = left[file.write(left) or 0 :]
            if durable:
                os.fsync(file.fileno())
        except BaseException as error:
            with suppress(OSError):  # what comes later must not follow half a line
                os.truncate(path, size)
            naming(error, path)
            raise


def clear_partial(folder: Path) -> None:
    """Remove what writers left in a folder that were killed."""
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)


def settle(folder: Path) -> None:
    """Write the entries of a folder to the disk: a new file may have no name there yet."""
    if sys.platform == "win32":  # folders cannot be opened there
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
