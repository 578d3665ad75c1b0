"""The tasks that a client has taken from its coordinator: it takes each one once, whatever the round or the run.

One JSON object per line, in a file that only the client's user can read.  A line also holds the head of the audit trail
that came with the task, so that the client is a witness of the trail: `phalanx verify FOLDER --witness FILE` compares
them.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from phalanx.flower.codec import MalformedError, ShownHead, TaskMessage
from phalanx.flower.durable_files import locked, private_file
from phalanx.flower.gate import AlteredTrailError
from phalanx.flower.identity import from_text
from phalanx.runs.files import settle
from phalanx.runs.transparency import TreeHead, goes_on, open_note
from phalanx.runs.witnesses import TASKS, SeenTask


class SeenTasks:
    """The tasks that a client has taken.

    Args:
        path: of the file; None: they are remembered as long as the process lives.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines = b""

    def add(self, task: TaskMessage, shown: ShownHead | None = None) -> TreeHead | None:
        """Note a task, durably, before it is worked on; return the head of the audit trail that came with it.

        Raises:
            MalformedError: the client has taken the task before.
            AlteredTrailError: the head does not go on from the last one of this run. It is noted all the same, since it
                is signed: with the one before, it shows what the coordinator did.
        """
        if self._path is None:
            line, head, why = _judged(task, shown, self._lines)
            self._lines += line
        else:
            line, head, why = self._written(self._path, task, shown)
        if why:
            raise AlteredTrailError(why)
        return head

    def _written(self, path: Path, task: TaskMessage, shown: ShownHead | None) -> tuple[bytes, TreeHead | None, str]:
        with locked(path):
            if not path.exists():
                with private_file(path):
                    pass
                settle(path.parent)
            with path.open("r+b") as file:
                known = file.read()
                whole = known.rfind(b"\n") + 1
                judged = _judged(task, shown, known[:whole])
                file.seek(whole)  # over half a line, of a process that was killed
                file.write(judged[0])
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
        return judged

    def size(self, session: str) -> int:
        """Return the size of the last head that the client holds of a run; 0 if none."""
        known = self._lines if self._path is None else self._path.read_bytes() if self._path.exists() else b""
        last = _last(known, session)
        return 0 if last is None else last.size


def _judged(task: TaskMessage, shown: ShownHead | None, known: bytes) -> tuple[bytes, TreeHead | None, str]:
    """Return the line of a task, its head, and why that does not go on from the last one; raise if it came before."""
    nonce = task.nonce.hex()
    if nonce.encode() in known:
        raise MalformedError(
            f"the task of version {task.version} came before: somebody has sent a copy of what the coordinator once "
            "signed. It is not carried out again"
        )
    last, head, why, note = _last(known, task.session), None, "", "" if shown is None else shown.note
    if shown is not None:
        try:
            head = open_note(shown.note, from_text(task.coordinator))
        except ValueError as error:
            raise MalformedError(f"the head of the audit trail is not valid: {error}") from error
        if head.origin != f"phalanx/{task.session}":
            raise MalformedError("the head of the audit trail is of another run")
        if last is not None and not goes_on(last, head, shown.proofs.get(last.size, ())):
            why = (
                f"the audit trail had {last.size} lines when this client last saw it, and that which it was shown now, "
                f"of {head.size} lines, does not begin with these. Ask the coordinator, and keep the list of tasks: "
                "it holds both, signed"
            )
    elif last is not None and task.kind == "train":
        why = "the coordinator has shown the head of its audit trail before, in this run, and now sends none"
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    of = task.coordinator if note else ""
    seen = SeenTask(time, task.kind, task.session, task.client, task.version, task.turn, nonce, note, of, bool(why))
    return msgspec.json.encode(seen) + b"\n", head, why


def _last(known: bytes, session: str) -> TreeHead | None:
    """Return the last head of a run that went on from those before."""
    for line in reversed(known.splitlines()):
        try:
            seen = msgspec.json.decode(line, type=SeenTask)
            if seen.session == session and seen.checkpoint and not seen.refused:
                return open_note(seen.checkpoint, from_text(seen.coordinator))
        except ValueError:
            continue  # a line that somebody has changed says nothing
    return None


def file_of(memory: Path | None, key: object) -> Path | None:
    """Return the file of a client's tasks: in its memory, or else next to its key; None if it has no file of either."""
    if memory is not None:
        return memory / TASKS
    return key.with_name(f"{key.stem}.{TASKS}") if isinstance(key, Path) else None
