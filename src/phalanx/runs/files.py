"""Files that are either whole or not there."""

import os
from pathlib import Path


def target(path: Path) -> Path:
    """Return the file that a path means, links followed.

    Raises:
        ValueError: it is a folder or a device, of which a file would take the place.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a {'folder' if path.is_dir() else 'device'}. Name a file.")
    return Path(os.path.realpath(path))


def write(path: Path, text: bytes) -> None:
    """Write a file, so that a kill leaves either all of the new one or the old one."""
    path = target(path)
    partial = path.with_suffix(".partial")
    try:
        partial.write_bytes(text)
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk it would take the room that others need
        raise
    partial.replace(path)
