"""The tasks that a client has taken from its coordinator: it takes each one once, whatever the round or the run.

One JSON object per line, in a file that only the client's user can read.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from phalanx.flower.codec import Malformed, TaskMessage
from phalanx.flower.files import locked, private_file

TASKS = "tasks.jsonl"


class SeenTask(msgspec.Struct, frozen=True):
    """A line: when a task came, its run, round and place among the client's, and its nonce in hexadecimal."""

    time: str
    kind: str
    session: str
    client: int
    version: int
    turn: int
    nonce: str


class SeenTasks:
    """The tasks that a client has taken.

    Args:
        path: of the file; None: they are remembered as long as the process lives.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines = b""

    def add(self, task: TaskMessage) -> None:
        """Note a task, durably, before it is worked on.

        Raises:
            Malformed: the client has taken it before.
        """
        if self._path is None:
            self._lines += self._new(task, self._lines)
            return
        with locked(self._path):
            if not self._path.exists():
                with private_file(self._path):
                    pass
            with self._path.open("r+b") as file:
                known = file.read()
                line = self._new(task, known)
                file.seek(known.rfind(b"\n") + 1)  # over half a line, of a process that was killed
                file.write(line)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())

    def _new(self, task: TaskMessage, known: bytes) -> bytes:
        """Return the line of a task that is not among the known ones."""
        nonce = task.nonce.hex()
        if nonce.encode() in known:
            raise Malformed(
                f"the task of version {task.version} came before: somebody has sent a copy of what the coordinator "
                "once signed. It is not carried out again"
            )
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        seen = SeenTask(time, task.kind, task.session, task.client, task.version, task.turn, nonce)
        return msgspec.json.encode(seen) + b"\n"


def file_of(memory: Path | None, key: object) -> Path | None:
    """Return the file of a client's tasks: in its memory, or else next to its key; None if it has no file of either."""
    if memory is not None:
        return memory / TASKS
    return key.with_name(f"{key.stem}.{TASKS}") if isinstance(key, Path) else None
