"""The audit trail: enrolments, suspensions, exclusions and unused updates of clients, with reasons and scores.

One JSON object per line, in `audit.jsonl` in the folder of the history, each with the same ten fields:

* `time`: wall clock in UTC, as `2026-11-21T20:16:00.000Z`; `seconds`: of the run;
* `step` and `version` (server updates) of the run at that time, the last step that was done;
* `event`: one of the below; `client`: its id, null where the event is of no known client; `name`: in the roster;
* `why`: in words; `score`: the method's own figure, by which it decided, null where there is none;
* `before`: the link of the line before, in a hash chain over all lines (`phalanx.runs.seal`). Lines of trails from
  before there was a chain have none.

Lines `recorded`, `resumed` and `ended` have an eleventh, `evidence` (`phalanx.runs.evidence`).

| event | when |
| --- | --- |
| begun, resumed, ended | the run; `why` of `begun` names it, that of `ended` is its status, and the error |
| recorded | a line of the history was written; `evidence` has the digests of what that step rests on |
| enrolled | a client was let in for the first time; `why` is what it reports |
| not enrolled | its number of examples is impossible: it never takes part |
| turned away | a node that is not in the roster, or cannot prove its identity |
| invalid | an update failed the checks of the transport or of the guard |
| lost | a task brought nothing |
| filtered | the algorithm did not use an update |
| impossible statistics | a site's statistics that no table can have, when sites agree on a scaling; not used |
| fallen | the accuracy that it reports is below its best by more than noise; `why` has both and the limit |
| suspicious | updates of a client stand out again and again, under any rule; it is not excluded for that |
| accepted | what the operator has accepted by name, such as a plan that promises nothing |
| warning | a guarantee that the run does not have, a fault of the coordinator's side, or any warning of Python's |
| outage, outage over | more clients are silent than the plan tolerates, and none is charged; they are fewer again |
| paused | the coordinator's process had stopped, as on a suspended machine; deadlines are extended by that |
| excluded | a verdict that is final: the client takes no part any more |
| suspended, re-admitted | by strikes and misses; at the end of a sentence, or by the roster |
| revoked, new key | by the roster |

Lines are only ever added, in the order of their time.  Events while a run waits for its clients are before the line
`begun` or `resumed`, with the step and the seconds of that.  If a killed run goes on, the line `resumed` names the step
after which everything is done again: equal events are not written twice, and different ones follow that line.  A
trail whose lines were changed, removed or added is refused: those up to the checkpoint by the link that it holds, later
ones by their chain.  After the checkpoint three changes are not found: lines cut off at the end, an edit of the last
line, and an end that was rewritten with links that fit.
"""

import math
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec

from phalanx.engine.observer import Progress
from phalanx.engine.suspicion import in_words
from phalanx.reading import LARGEST_LINES, contents, from_json
from phalanx.runs.evidence import StepEvidence
from phalanx.runs.files import append, settle
from phalanx.runs.reports import DRAWN, AccuracyFalls
from phalanx.runs.schema import StepRecord, to_json
from phalanx.runs.seal import HashChain, Mark, breaks, chain_of, split
from phalanx.runs.transparency import MerkleTree

MARKS = ("begun", "resumed", "ended")  # of the run, which are written each time
AT_A_TIME = (  # events that happen at a time, not in a step
    *("suspended", "re-admitted", "revoked", "new key", "turned away"),
    *("outage", "outage over", "paused"),
)
RENAMED = {"refused": "invalid", "rejected": "filtered", "removed": "excluded"}  # events of older trails


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of an audit trail; the fields are described above."""

    time: str
    seconds: float
    step: int
    version: int
    event: str
    client: int | None
    name: str
    why: str
    score: float | None
    before: str = ""
    evidence: StepEvidence | msgspec.UnsetType = msgspec.UNSET


class Note(NamedTuple):
    """An event of a client, between steps or within."""

    event: str
    client: int | None
    why: str = ""
    score: float | None = None
    evidence: StepEvidence | msgspec.UnsetType = msgspec.UNSET


class Audit:
    """The only writer of an audit trail: an `Observer` that also takes events between steps, by `note`.

    Nothing is written before the run has begun; what was noted until then comes first, at the second of its beginning.

    Args:
        path: of the file; None: nothing is kept.
        now: seconds of the run.
        name: of a client, as reports show it.
        resumed: whether the run goes on. If not, the trail of an earlier run is moved aside, under the time of that.
        reached: the place that the trail had come to at the checkpoint of a run that goes on; None if that is not
            known.
        session: names the run; its line `begun` says it.
        of_step: returns the evidence of a step, or of a wait without one; None if there is none.
        of_end: returns the evidence of a run that ends (`ended=True`), or goes on; likewise.

    Raises:
        ValueError: the trail of a run that goes on was changed.
    """

    def __init__(
        self,
        path: Path | None,
        now: Callable[[], float],
        name: Callable[[int], str],
        *,
        resumed: bool = False,
        reached: Mark | None = None,
        session: Callable[[], str] = str,
        of_step: Callable[[Progress], StepEvidence | None] = lambda progress: None,
        of_end: Callable[..., StepEvidence | None] = lambda **_: None,
    ) -> None:
        self._session, self._tree, self._of_step, self._of_end = session, MerkleTree(), of_step, of_end
        self._path, self._now, self._name, self._resumed = path, now, name, resumed
        if path is not None and resumed:
            _check(path, reached)
            for line in split(path.read_bytes()) if path.is_file() else []:
                if line.endswith(b"\n"):
                    self._tree.add(line)
        self._chain = HashChain()
        self._ended = False
        self._lock = threading.Lock()
        self._waiting: list[Entry] | None = []  # None: the run has begun
        self._step, self._version = 0, 0
        self._known = Counter[tuple[object, ...]]()  # lines from before the stop, not to be written twice
        self._excluded = set[int]()
        self._falls = AccuracyFalls()
        self._python = deque[Entry]()  # warnings of Python that are not recorded yet
        self._warned = set[str]()  # remarks that came as warnings of Python before they came with a step
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
            goes_on = self._waiting is not None and self._resumed
            if self._waiting is not None:
                self._begin(progress.now)
            notes = [*self._notes(progress)]
            if self._path is not None and not goes_on and (found := self._of_step(progress)) is not None:
                notes.append(Note("recorded", None, evidence=found))
            self._write([self._entry(note) for note in notes])

    def catch_up(self, history: Sequence[StepRecord], /) -> None:
        """See `CatchingUp`."""
        for step in history:
            self._falls.add(step.step, step.reports)

    def note(self, note: Note) -> None:
        """Record an event between steps, from any thread.  An error is raised at the next step."""
        with self._lock:
            self._add([self._entry(note)])

    def _add(self, entries: Sequence[Entry]) -> None:
        """Record events, after the warnings that are left; the lock is held."""
        left = [self._python.popleft() for _ in range(len(self._python))]
        entries = [*left, *entries]
        if self._ended:
            return
        if self._waiting is not None:
            self._waiting += entries
            return
        try:
            self._write(entries)
        except OSError as error:
            self._failed = error

    def warned(self, text: str) -> None:
        """Record a warning of Python's; one that comes while a line is written, with the next line."""
        self._warned.add(text)
        self._python.append(self._entry(Note("warning", None, text)))
        if self._lock.acquire(blocking=False):  # or this thread is the one that holds it
            try:
                self._add([])
            finally:
                self._lock.release()

    def end(self, why: str) -> None:
        """Record that the run is over, or stopped; what comes later is no event of it, and not recorded."""
        with self._lock:
            self._add([])
            if self._waiting is None and not self._ended:
                self._write([self._entry(self._with_end(Note("ended", None, why)))])
            self._ended = True

    @property
    def mark(self) -> Mark | None:
        """The place that the trail has come to; None if nothing is kept, or the run has not begun."""
        with self._lock:
            return None if self._path is None or self._waiting is not None else self._chain.mark

    def head(self, sizes: Sequence[int]) -> tuple[int, bytes, dict[int, list[bytes]]] | None:
        """Return what the Merkle tree over the lines has come to, for witnesses; None if nothing is kept.

        Args:
            sizes: numbers of lines, at most as many as there are.

        Returns:
            The number of lines, the root of their tree, and by each of these sizes the proof that the trail goes on
            from there (RFC 9162).
        """
        with self._lock:
            if self._path is None:
                return None
            size = len(self._tree)
            return size, self._tree.root(size), {old: self._tree.consistency(old, size) for old in sizes}

    def begin(self) -> None:
        """Write what was noted until now: of what has no steps."""
        with self._lock:
            if self._waiting is not None:
                self._begin(0.0)

    def _begin(self, seconds: float) -> None:
        """Prepare the file: earlier notes, then the line that the run begins, or goes on."""
        waiting, self._waiting = self._waiting or [], None
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._resumed:
            self._recall(self._step)
        else:
            set_aside(self._path)
        after = f"goes on after step {self._step}"
        mark = (
            self._with_end(Note("resumed", None, after))
            if self._resumed
            else Note("begun", None, f"run {found}" if (found := self._session()) else "")
        )
        now = round(seconds, 3) if self._resumed else 0.0
        at = {"seconds": now, "step": self._step, "version": self._version}
        self._write([*(msgspec.structs.replace(entry, **at) for entry in waiting), self._entry(mark)])

    def _with_end(self, note: Note) -> Note:
        found = None if self._path is None else self._of_end(ended=note.event == "ended")
        return note if found is None else note._replace(evidence=found)

    def _recall(self, step: int) -> None:
        """Read the lines from before the run was stopped, and cut off an incomplete one."""
        if self._path is None or not self._path.is_file():
            return
        whole = self._path.read_bytes().rpartition(b"\n")
        if whole[2]:
            os.truncate(self._path, len(whole[0] + whole[1]))
        self._chain = chain_of(split(whole[0] + whole[1]))
        for entry in read(self._path):
            if entry.event not in (*MARKS, *AT_A_TIME, "recorded"):
                self._known[_key(entry)] += 1
            if entry.event == "excluded" and entry.client is not None and entry.step <= step:
                self._excluded.add(entry.client)

    def _notes(self, progress: Progress) -> Iterator[Note]:
        """Yield the events in the progress."""
        for remark in progress.remarks:
            if remark not in self._warned:
                yield Note("warning", None, remark)
        self._warned -= {*progress.remarks}
        for client, why in sorted(progress.invalid.items()):
            yield Note("invalid" if client in progress.enrolled else "not enrolled", client, why)
        for client, why in sorted(progress.lost.items()):
            yield Note("lost", client, why)
        if progress.updates is None:
            return
        for client, verdict in sorted(progress.state.verdicts.items()):
            if verdict.accepted and not verdict.final:
                self._excluded.discard(client)
            elif verdict.final and client not in self._excluded:
                self._excluded.add(client)
                yield Note("excluded", client, verdict.reason, verdict.score)
            elif not (verdict.accepted or verdict.waits or verdict.final):
                yield Note("filtered", client, verdict.reason, verdict.score)
        for client, found in sorted(progress.conduct.items()):
            if found.newly:
                yield Note("suspicious", client, in_words(found), found.evidence)
        for client, why in self._falls.add(progress.step, progress.updates.reports).items():
            yield Note("fallen", client, f"{why}: {DRAWN}")

    def _entry(self, note: Note) -> Entry:
        name = self._name(note.client) if note.client is not None else ""
        score = note.score if note.score is not None and math.isfinite(note.score) else None
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        now = round(self._now(), 3)
        at = time, now, self._step, self._version
        return Entry(*at, note.event, note.client, name, note.why, score, evidence=note.evidence)

    def _write(self, entries: Sequence[Entry]) -> None:
        """Add lines at once, and write them to the disk; not those from before the run was stopped."""
        new = [entry for entry in entries if not self._repeats(entry)]
        if self._path is None or not new:
            return
        lines, chain = list[bytes](), copy(self._chain)
        for entry in new:
            lines.append(to_json(msgspec.structs.replace(entry, before=chain.mark.link)) + b"\n")
            chain.add(lines[-1])
        append(self._path, b"".join(lines))
        self._chain = chain
        for line in lines:
            self._tree.add(line)
        if not self._settled:
            settle(self._path.parent)
            self._settled = True

    def _repeats(self, entry: Entry) -> bool:
        """Return whether a line from before the run was stopped is of this event; each line matches one event."""
        key = _key(entry)
        if self._known[key] <= 0:
            return False
        self._known[key] -= 1
        return True


def _key(entry: Entry) -> tuple[object, ...]:
    """Return the common part of two lines of one event; of an enrolment, also of its repetitions."""
    what = (entry.event, entry.client, entry.why)
    return what if entry.event == "enrolled" else (*what, entry.step, entry.version, entry.name, entry.score)


def _check(path: Path, reached: Mark | None) -> None:
    """Raise `ValueError` if the trail of a run that goes on is not as the run left it."""
    lines = split(contents(path, LARGEST_LINES)) if path.is_file() else []
    lines = [line for line in lines if line.endswith(b"\n")]  # the last may be half of one
    if (found := next(breaks(lines), None)) is not None:
        raise _altered(path, f"line {found[0]} {found[1]}")
    if reached is None:
        return
    if len(lines) < reached.lines:
        raise _altered(path, f"it ends after line {len(lines)}, and had {reached.lines} lines or more")
    if chain_of(lines[: reached.lines]).mark != reached:
        raise _altered(path, f"its first {reached.lines} lines are not those of the checkpoint")


def _altered(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} is not the audit trail that this run wrote: {why}. Restore the file. To start over, which moves it "
        "aside: `phalanx flower up --again`, or Checkpoint(resume=False)."
    )


def set_aside(path: Path) -> None:
    """Add the time of its last line to the name of a trail, and a number if that name is taken: none is deleted."""
    if not path.is_file():
        return
    stamp = datetime.fromtimestamp(path.stat().st_mtime, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    numbers = ("" if k == 1 else f"-{k}" for k in count(1))
    names = (path.with_name(f"{path.stem}-{stamp}{number}{path.suffix}") for number in numbers)
    path.rename(next(name for name in names if not os.path.lexists(name)))


def read(path: Path) -> list[Entry]:
    """Return the complete lines of an audit trail.

    Raises:
        ValueError: one of them is none.
    """
    entries = []
    for number, line in enumerate(contents(path, LARGEST_LINES).rpartition(b"\n")[0].splitlines(), 1):
        try:
            entry = from_json(line, Entry)
        except ValueError as error:
            raise ValueError(
                f"{path} is not an audit trail: line {number}: {error}. If somebody has changed the file, restore it; "
                "if not, move it away, and keep it."
            ) from error
        entries.append(msgspec.structs.replace(entry, event=RENAMED.get(entry.event, entry.event)))
    return entries
