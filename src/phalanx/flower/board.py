"""Where a run is and who is there, in `status.json` beside the history, for whoever watches from another process."""

import json
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phalanx.core import Progress
from phalanx.flower.register import Register

log = logging.getLogger("phalanx.flower")

STATUS = "status.json"
BEAT = 10.0  # seconds without a change, after which the file is written all the same, as a sign of life
Standing = Literal["here", "missing", "suspended", "removed", "revoked"]
STANDINGS: tuple[Standing, ...] = ("here", "missing", "suspended", "removed", "revoked")


class Client(NamedTuple):
    """How it stands with a client."""

    name: str
    standing: Standing
    why: str = ""


class Board:
    """An observer that keeps `status.json`: `step`, `version`, `seconds`, and of each client its standing.

    The file is written with each step, and between steps as soon as somebody comes, goes or is suspended, or nothing
    has changed for `BEAT` seconds: where it is older, nobody keeps it any more.

    Args:
        path: of the file; None: nothing is written.
        register: who is there.
        every: seconds between two looks between steps.
    """

    def __init__(self, path: Path | None, register: Register, every: float) -> None:
        self._path, self._register, self._every = path, register, every
        self._step, self._version, self._removed = 0, 0, dict[int, str]()
        self._begun, self._over, self._lock = False, threading.Event(), threading.Lock()
        self._shown: dict[int, Client] = {}
        self._written = 0.0  # when, by time.monotonic
        self._thread = threading.Thread(target=self._watch, daemon=True, name="phalanx board")

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2 * self._every)

    def __call__(self, progress: Progress, /) -> None:
        """See `Observer`."""
        self._step, self._version = progress.step, progress.state.version
        for client, verdict in progress.state.verdicts.items():
            if verdict.final:
                self._removed[client] = verdict.reason
            elif verdict.accepted:
                self._removed.pop(client, None)
        if self._path is not None:
            self._write(self.clients())
            if not self._begun:
                self._begun = True
                self._thread.start()

    def clients(self) -> dict[int, Client]:
        """How it stands with each client of the roster, by id."""
        return {m.id: self._client(m.id, m.name) for m in sorted(self._register.roster.members, key=lambda m: m.id)}

    def counts(self) -> dict[Standing, int]:
        """How many clients have each standing."""
        found = Counter(client.standing for client in self.clients().values())
        return {standing: found[standing] for standing in STANDINGS}

    def _client(self, client: int, name: str) -> Client:
        if client not in self._register.roster.active:
            return Client(name, "revoked")
        if client in self._removed:
            return Client(name, "removed", self._removed[client])
        standing = self._register.standing(client)
        if standing.until > self._register.now:
            return Client(name, "suspended", standing.why)
        return Client(name, "missing" if self._register.node_of(client) is None else "here")

    def _watch(self) -> None:
        while not self._over.wait(min(self._every, BEAT)):
            found = self.clients()
            if found == self._shown and time.monotonic() - self._written < BEAT:
                continue
            try:
                self._write(found)
            except OSError as error:  # a view is missing, and nothing else
                log.warning("%s cannot be written: %s", self._path, error)

    def _write(self, clients: dict[int, Client]) -> None:
        if self._path is None:
            return
        told: dict[str, Any] = {
            "step": self._step,
            "version": self._version,
            "seconds": round(self._register.now, 3),
            "clients": {str(client): about._asdict() for client, about in clients.items()},
        }
        with self._lock:
            partial = self._path.with_suffix(".partial")
            partial.write_text(json.dumps(told), encoding="utf-8")
            partial.replace(self._path)
            self._shown, self._written = clients, time.monotonic()
