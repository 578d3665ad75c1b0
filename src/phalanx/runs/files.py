"""Files that are either whole or not there."""

from pathlib import Path


def write(path: Path, text: bytes) -> None:
    """Write a file, so that a kill leaves either all of the new one or the old one."""
    partial = path.with_suffix(".partial")
    try:
        partial.write_bytes(text)
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk it would take the room that others need
        raise
    partial.replace(path)
