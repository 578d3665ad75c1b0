"""The progress and the clients of a run, in `status.json` in its folder, for views in other processes."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from phalanx.core import ClientReport, Verdict
from phalanx.engine.observer import Progress
from phalanx.engine.suspicion import Conduct, in_words
from phalanx.flower.register import Register
from phalanx.reading import LARGEST_PART, contents, from_json
from phalanx.runs.files import write
from phalanx.runs.history import promise_of
from phalanx.runs.reports import AccuracyFalls
from phalanx.runs.schema import PromiseRecord, SchemaPart, Status, StepRecord, to_json
from phalanx.runs.summary import ending

log = logging.getLogger("phalanx.flower")

STATUS = "status.json"
BEAT = 10.0  # seconds without a change, after which the file is written all the same, as a sign of life
Phase = Literal["waiting", "running", "over", "not begun"]
Standing = Literal["here", "missing", "suspended", "excluded", "revoked"]
STANDINGS: tuple[Standing, ...] = ("here", "missing", "suspended", "excluded", "revoked")


class ClientStatus(SchemaPart, frozen=True, kw_only=True):
    """One client of the roster.

    Args:
        name: in the roster.
        standing: whether it is connected, and if it may take part.
        why: it is suspended or excluded.
        since: the wall clock in UTC at which it came to be there, missing or suspended, as `2026-11-27T06:30:00Z`.
        until: the same of the end of its suspension, or "it is re-admitted"; empty if it is not suspended.
        suspicious: why it is suspicious; empty if it is not.
        fallen: why its reported accuracy is far below its best; empty if it is not.
        slow: how much longer its answers take than those of others; empty if they do not.
        accuracy: what it last reported of the model; None if it reports none.
    """

    name: str
    standing: Standing
    why: str = ""
    since: str = ""
    until: str = ""
    suspicious: str = ""
    fallen: str = ""
    slow: str = ""
    accuracy: float | None = None


class RunStatus(SchemaPart, frozen=True, kw_only=True):
    """The content of `status.json`.

    Args:
        phase: of the run.
        why: how the run ended, or why it did not begin.
        ending: "finished", "stopped" or "failed"; None as long as the run is not over.
        step: number of steps so far.
        version: of the model.
        seconds: on the run's clock; before the run begins, since the server waits for its clients.
        promise: what the run promises now; None before it begins.
        notice: what is wrong at the moment on the coordinator's side, and what to do; empty if nothing is.
        clients: of the roster, by id.
    """

    phase: Phase
    why: str = ""
    ending: Status | None = None
    step: int
    version: int
    seconds: float
    promise: PromiseRecord | None = None
    notice: str = ""
    clients: Mapping[int, ClientStatus] = {}


def utc(at: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def read(path: Path) -> RunStatus | None:
    """Return the status that the server wrote; None if there is none yet.

    Raises:
        ValueError: the file holds something else.
    """
    try:
        text = contents(path, LARGEST_PART)
    except FileNotFoundError:  # or the server removes it just now
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not the status of a run: {error}") from error
    try:
        return from_json(text, RunStatus)
    except ValueError as error:
        raise ValueError(
            f"{path} is not the status of a run: {error}. Watch a run with the version of Phalanx that carries it out."
        ) from error


class StatusBoard:
    """An observer that keeps `status.json`: `phase`, `step`, `version`, `seconds`, and of each client its standing.

    As a context it writes the file at once, while the run waits for its clients; then with each step, and between
    steps as soon as somebody comes, goes or is suspended, or nothing has changed for `BEAT` seconds: where it is older,
    nobody keeps it any more.  At last the file says, as `why`, how the run ended, or why it did not begin.

    Args:
        path: of the file; None: nothing is written.
        register: of the clients that have enrolled.
        every: seconds between two looks between steps.
    """

    def __init__(self, path: Path | None, register: Register, every: float) -> None:
        self._path, self._register, self._every = path, register, every
        self._step, self._version, self._excluded = 0, 0, dict[int, str]()
        self._suspicious, self._made = dict[int, str](), time.monotonic()
        self._promise: PromiseRecord | None = None
        self._falls, self._accuracies = AccuracyFalls(), dict[int, float | None]()
        self._since = dict[int, tuple[Standing, str]]()  # by client, its standing, and since when
        self._ends = dict[tuple[int, float], str]()  # of suspensions, by client and second of the run
        self._phase: Phase = "waiting"
        self._ending: Status | None = None
        self._why, self._over, self._lock = "", threading.Event(), threading.Lock()
        self._shown: tuple[dict[int, ClientStatus], str] = ({}, "")
        self._written = 0.0  # when, by time.monotonic
        self._thread = threading.Thread(target=self._watch, daemon=True, name="phalanx board")

    def __enter__(self) -> "StatusBoard":
        if self._path is not None:
            self._write(self.clients())
            self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2 * self._every)
        how = ending(error)
        self._ending = how.status
        self._phase, self._why = "not begun" if self._phase == "waiting" else "over", how.error or how.status
        self._renew(self.clients())

    def __call__(self, progress: Progress, /) -> None:
        """See `Observer`."""
        self._phase, self._step, self._version = "running", progress.step, progress.state.version
        reports = progress.updates.reports if progress.updates is not None else {}
        self._take_in(progress.step, progress.state.verdicts, progress.conduct, reports)
        self._promise = promise_of(progress.promise) or self._promise
        if self._path is not None:
            self._write(self.clients())

    def catch_up(self, history: Sequence[StepRecord], /) -> None:
        """See `CatchingUp`."""
        for step in history:
            self._take_in(step.step, step.verdicts, step.conduct, step.reports)
            self._promise = step.promise or self._promise

    def _take_in(
        self,
        step: int,
        verdicts: Mapping[int, Verdict],
        conduct: Mapping[int, Conduct],
        reports: Mapping[int, ClientReport],
    ) -> None:
        """Note who is excluded, who is suspicious, and what clients report."""
        self._falls.add(step, reports)
        self._accuracies |= {client: report.accuracy for client, report in reports.items()}
        for client, verdict in verdicts.items():
            if verdict.final:
                self._excluded[client] = verdict.reason
            elif verdict.accepted:
                self._excluded.pop(client, None)
        self._suspicious |= {client: in_words(found) for client, found in conduct.items() if found.newly}

    def clients(self) -> dict[int, ClientStatus]:
        """Return the status of each client of the roster, by id."""
        return {m.id: self._client(m.id, m.name) for m in sorted(self._register.roster.members, key=lambda m: m.id)}

    def suspicious(self) -> int:
        """Return the number of suspicious clients."""
        return len(self._suspicious)

    def counts(self) -> dict[Standing, int]:
        """Return the number of clients with each standing."""
        found = Counter(client.standing for client in self.clients().values())
        return {standing: found[standing] for standing in STANDINGS}

    def _client(self, client: int, name: str) -> ClientStatus:
        standing, why, until = self._standing(client)
        if (since := self._since.get(client)) is None or since[0] != standing:
            self._since[client] = since = standing, utc(time.time())
        return ClientStatus(
            name=name,
            standing=standing,
            why=why,
            since=since[1],
            until=until,
            suspicious=self._suspicious.get(client, ""),
            fallen=self._falls.now.get(client, ""),
            slow=self._register.slow.get(client, "") if standing == "here" else "",
            accuracy=self._accuracies.get(client),
        )

    def _standing(self, client: int) -> tuple[Standing, str, str]:
        """Return the standing of a client, why, and until when."""
        if client not in self._register.roster.active:
            return "revoked", "", ""
        if (why := self._excluded.get(client)) is not None:
            return "excluded", why, ""
        standing = self._register.standing(client)
        if self._phase != "waiting" and standing.until > self._register.now:  # before, the clock is not the run's
            left, key = standing.until - self._register.now, (client, standing.until)
            end = (
                "it is re-admitted" if math.isinf(left) else self._ends.setdefault(key, utc(round(time.time() + left)))
            )
            return "suspended", standing.why, end
        return "missing" if self._register.node_of(client) is None else "here", "", ""

    def _watch(self) -> None:
        while not self._over.wait(min(self._every, BEAT)):
            found = self.clients()
            if (found, self._register.notice) == self._shown and time.monotonic() - self._written < BEAT:
                continue
            self._renew(found)

    def _renew(self, clients: dict[int, ClientStatus]) -> None:
        try:
            self._write(clients)
        except OSError as error:  # a view is missing, and nothing else
            log.warning("%s cannot be written: %s", self._path, error)

    def _write(self, clients: dict[int, ClientStatus]) -> None:
        if self._path is None:
            return
        with self._lock:
            began, notice = self._phase in ("running", "over"), self._register.notice
            status = RunStatus(
                phase=self._phase,
                why=self._why,
                ending=self._ending,
                step=self._step,
                version=self._version,
                seconds=round(self._register.now if began else time.monotonic() - self._made, 3),
                promise=self._promise,
                notice=notice,
                clients=clients,
            )
            write(self._path, to_json(status))
            self._shown, self._written = (clients, notice), time.monotonic()
