"""How often each client was given a task: at most so many of its uploads have left it.

The account of what `Private` guarantees is made from that, so the count must never be too low.  What has left a client
cannot be taken back, and its noise is another each time; so a task is written down before it is sent, one that is given
again after a kill is another one, and the file is only ever added to, whatever begins anew in its folder.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from phalanx.runs.checkpoint import settle

ASKED = "asked.jsonl"  # one list per line: the clients that were given a task at once


class UploadCounter:
    """Counts the tasks of each client.

    Args:
        path: of the file, which may be there; None: the count is kept in memory only.

    Raises:
        ValueError: the file is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._settled = path, False
        self._counts = Counter[int]() if path is None or not path.is_file() else _read(path)

    @property
    def counts(self) -> Mapping[int, int]:
        """By client."""
        return dict(self._counts)

    def note(self, clients: Iterable[int]) -> None:
        """These are given a task now; it is on the disk when this returns."""
        if not (given := sorted(clients)):
            return
        self._counts.update(given)
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(given) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if not self._settled:
            settle(self._path.parent)
            self._settled = True


def _read(path: Path) -> Counter[int]:
    """The counts that a file holds.  A last line that was not finished was of tasks that were not sent: it goes."""
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        os.truncate(path, len(whole))
    counts = Counter[int]()
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            clients = json.loads(line)
            if type(clients) is not list or not all(type(client) is int for client in clients):
                raise ValueError("it is no list of clients")
        except ValueError as error:
            raise ValueError(
                f"{path} does not say how often clients were asked: line {number}: {error}. If somebody has changed "
                "the file, restore it; if not, move it away and keep it: its counts belong to the account of privacy."
            ) from error
        counts.update(clients)
    return counts
