"""The audit trail: who was let in, refused, lost, rejected, suspended, let in again or removed, and by which figure.

One JSON object per line, in `audit.jsonl` beside the history, each with the same nine fields:

* `time`: wall clock in UTC, as `2026-11-21T20:16:00.000Z`; `seconds`: of the run;
* `step` and `version` (server updates) of the run at that time, the last step that was done;
* `event`: one of the below; `client`: its id, null where the event is of no known client; `name`: in the roster;
* `why`: in words; `score`: the method's own figure, by which it decided, null where there is none.

| event | when |
| --- | --- |
| begun, resumed, ended | the run; `why` of `ended` is its status, and the error |
| enrolled | a client was let in for the first time; `why` is what it declares |
| not enrolled | its number of examples is impossible: it never takes part |
| turned away | a node that is nobody in the roster, or cannot prove who it is |
| refused | an answer was not let in, by the door or by the guard |
| lost | a task brought nothing |
| rejected | the algorithm did not use an update |
| removed | a verdict that is final: the client is not asked again |
| suspended, re-admitted | by strikes and misses; at the end of a sentence, or by the roster |
| revoked, new key | by the roster |

Lines are only ever added, in the order of their time.  What happens while a run waits for its clients stands before the
line `begun` or `resumed`, with the step and the seconds of that.  Where a killed run goes on, the line `resumed` names
the step after which everything is done again: what then comes out as before is not written twice, and what comes out
otherwise stands after that line.
"""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.core import Progress
from phalanx.runs.checkpoint import settle

AUDIT = "audit.jsonl"
FIELDS = ("time", "seconds", "step", "version", "event", "client", "name", "why", "score")
MARKS = ("begun", "resumed", "ended")  # of the run, which are written each time
OF_CLIENTS = ("suspended", "re-admitted", "revoked", "new key", "turned away")  # happen at a time, not in a step
Entry = dict[str, Any]


class Note(NamedTuple):
    """Something that happened to a client, between steps or within."""

    event: str
    client: int | None
    why: str = ""
    score: float | None = None


class Audit:
    """The only writer of an audit trail: an `Observer` that is told, by `note`, what happens beside the steps.

    Nothing is written before the run has begun; what was noted until then comes first, at the second of its beginning.

    Args:
        path: of the file; None: nothing is kept.
        now: seconds of the run.
        name: of a client, for people.
        resumed: whether the run goes on. If not, the trail of an earlier run is moved aside, under the time of that.
    """

    def __init__(
        self, path: Path | None, now: Callable[[], float], name: Callable[[int], str], *, resumed: bool = False
    ) -> None:
        self._path, self._now, self._name, self._resumed = path, now, name, resumed
        self._lock = threading.Lock()
        self._waiting: list[Entry] | None = []  # None: the run has begun
        self._step, self._version = 0, 0
        self._known = Counter[str]()  # lines from before the run was stopped, that must not be written twice
        self._removed = set[int]()
        self._failed: OSError | None = None
        self._settled = False

    def __call__(self, progress: Progress, /) -> None:
        """See `Observer`.

        Raises:
            OSError: the trail cannot be written; a run without one does not go on.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            self._step, self._version = progress.step, progress.state.version
            if self._waiting is not None:
                self._begin(progress)
            self._write([self._entry(note) for note in self._told(progress)])

    def note(self, note: Note) -> None:
        """Takes down what happens beside the steps; from any thread.  What goes wrong is raised at the next step."""
        with self._lock:
            entry = self._entry(note)
            if self._waiting is not None:
                self._waiting.append(entry)
                return
            try:
                self._write([entry])
            except OSError as error:
                self._failed = error

    def end(self, why: str) -> None:
        """The run is over, or stopped."""
        with self._lock:
            if self._waiting is None:
                self._write([self._entry(Note("ended", None, why))])

    def _begin(self, progress: Progress) -> None:
        """Makes the file ready: what was noted before, then the line that says that the run begins, or goes on."""
        waiting, self._waiting = self._waiting or [], None
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._resumed:
            self._recall(progress.step)
        else:
            set_aside(self._path)
        after = f"goes on after step {progress.step}"
        mark = Note("resumed", None, after) if self._resumed else Note("begun", None)
        now = round(progress.now, 3) if self._resumed else 0.0
        at = {"seconds": now, "step": progress.step, "version": progress.state.version}
        self._write([*(entry | at for entry in waiting), self._entry(mark)])

    def _recall(self, step: int) -> None:
        """Takes over what was written before the run was stopped, and cuts off a line that was not finished."""
        if self._path is None or not self._path.is_file():
            return
        whole = self._path.read_bytes().rpartition(b"\n")
        if whole[2]:
            os.truncate(self._path, len(whole[0] + whole[1]))
        for entry in read(self._path):
            if entry["event"] == "enrolled" or entry["event"] not in (*MARKS, *OF_CLIENTS):
                self._known[_key(entry)] += 1
            if entry["event"] == "removed" and entry["step"] <= step:
                self._removed.add(entry["client"])

    def _told(self, progress: Progress) -> Iterator[Note]:
        """What an observer sees of clients."""
        for client, why in sorted(progress.refused.items()):
            at_first = progress.step == 0 and progress.updates is None
            yield Note("not enrolled" if at_first else "refused", client, why)
        for client, why in sorted(progress.lost.items()):
            yield Note("lost", client, why)
        if progress.updates is None:
            return
        for client, verdict in sorted(progress.state.verdicts.items()):
            if verdict.accepted and not verdict.final:
                self._removed.discard(client)
            elif verdict.final and client not in self._removed:
                self._removed.add(client)
                yield Note("removed", client, verdict.reason, verdict.score)
            elif not (verdict.accepted or verdict.waits or verdict.final):
                yield Note("rejected", client, verdict.reason, verdict.score)

    def _entry(self, note: Note) -> Entry:
        name = self._name(note.client) if note.client is not None else ""
        score = None if note.score is None else float(note.score)
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        held = (time, round(self._now(), 3), self._step, self._version, note.event, note.client, name, note.why, score)
        return dict(zip(FIELDS, held, strict=True))

    def _write(self, entries: list[Entry]) -> None:
        """Adds lines at once, and has them on the disk; not those that were there before the run was stopped."""
        new = [entry for entry in entries if not self._repeats(entry)]
        if self._path is None or not new:
            return
        text = "".join(json.dumps(_finite(entry), allow_nan=False) + "\n" for entry in new)
        with self._path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if not self._settled:
            settle(self._path.parent)
            self._settled = True

    def _repeats(self, entry: Entry) -> bool:
        """Whether a line from before the run was stopped tells of this; each of them stands for one."""
        key = _key(entry)
        if self._known[key] <= 0:
            return False
        self._known[key] -= 1
        return True


def _key(entry: Entry) -> str:
    """What two lines have in common that tell of the same; of an enrolment, whenever it is repeated."""
    names = ("event", "client", "why") if entry["event"] == "enrolled" else FIELDS[2:]
    return json.dumps([_finite(entry)[name] for name in names])


def _finite(entry: Entry) -> Entry:
    """With null in place of a figure that is no number."""
    score = entry["score"]
    return entry | {"score": score if score is not None and abs(score) < float("inf") else None}


def set_aside(path: Path) -> None:
    """Gives a trail the time of its last line as part of its name: no trail is ever deleted."""
    if not path.is_file():
        return
    stamp = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path.rename(path.with_name(f"{path.stem}-{stamp}{path.suffix}"))


def read(path: Path) -> list[Entry]:
    """The whole lines of an audit trail.

    Raises:
        ValueError: one of them is none.
    """
    entries = []
    for number, line in enumerate(path.read_bytes().rpartition(b"\n")[0].splitlines(), 1):
        try:
            entry = json.loads(line)
            if sorted(entry) != sorted(FIELDS):
                raise ValueError(f"it has {', '.join(sorted(entry))}, expected {', '.join(FIELDS)}")
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path} is not an audit trail: line {number}: {error}. If somebody has changed the file, restore it; "
                "if not, move it away, and keep it."
            ) from error
        entries.append(entry)
    return entries
