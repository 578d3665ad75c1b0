"""Number of tasks given to each client: an upper bound on the number of its uploads.

The privacy accounting of `Private` uses this count, so it must never be too low.  An upload cannot be undone, and each
has its own noise.  Therefore a task is recorded before it is sent, a task that is repeated after a crash counts again,
and the file is only ever appended to, even when a new run starts in its folder.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from phalanx.reading import lines_of
from phalanx.runs.files import append, settle

ASKED = "asked.jsonl"  # one list per line: clients that were given a task at the same time


class UploadCounter:
    """Counter of the tasks given to each client.

    Args:
        path: the file of the counts, read if it exists; None: counts are kept in memory only.

    Raises:
        ValueError: the file is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._settled = path, False
        self._counts = Counter[int]() if path is None or not path.is_file() else _read(path)

    @property
    def counts(self) -> Mapping[int, int]:
        """Number of tasks by client."""
        return dict(self._counts)

    def note(self, clients: Iterable[int]) -> None:
        """Record that these clients are given a task, and return once that is on disk."""
        if not (given := sorted(clients)):
            return
        self._counts.update(given)
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append(self._path, json.dumps(given).encode() + b"\n")
        if not self._settled:
            settle(self._path.parent)
            self._settled = True


def _read(path: Path) -> Counter[int]:
    """Return the counts in a file.

    An incomplete last line is cut off: its tasks were not sent, since a line is complete before they are.
    """
    text = lines_of(path)
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        os.truncate(path, len(whole))
    counts = Counter[int]()
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            clients = json.loads(line)
            if type(clients) is not list or not all(type(client) is int for client in clients):
                raise ValueError("expected a list of clients")
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: {error}. If somebody changed the file, restore it. If not, move it away and "
                "keep it: the privacy accounting needs its counts."
            ) from error
        counts.update(clients)
    return counts
