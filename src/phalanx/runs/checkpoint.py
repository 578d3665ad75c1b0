"""Checkpoints: a run that was killed goes on, with the same results to the bit as without the interruption.

The whole state of a run between steps is in one `phalanx.engine.Snapshot`: the algorithm's state, the ledger, and the
unfinished work of the transport.  Random streams have names and no state, so that they need not be kept.  The snapshot
is written to the folder of the history as one file, which is at every moment the whole old one or the whole new one:

    magic, the length of the header in 8 bytes, the header in JSON, memory from border to border, SHA-256 of all that

`phalanx.runs.packing` says how values become JSON and memory.  The header names the run, and how many lines of history
there were: on going on, later lines are dropped and computed again.
"""

import dataclasses
import hashlib
import json
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, get_type_hints

import msgspec
import torch
from jaxtyping import UInt8
from msgspec import Meta
from torch import Tensor

from phalanx.core import InfeasibleError
from phalanx.engine.loop import Snapshot
from phalanx.fields import INFINITE, CheckedFields
from phalanx.reading import LARGEST_PART, opened
from phalanx.runs.files import HISTORY, settle
from phalanx.runs.history import History
from phalanx.runs.packing import Packed, UnpackableError, pack, unpack
from phalanx.runs.record import CHECKPOINT, read_lines, summary_of
from phalanx.runs.schema import StepRecord
from phalanx.runs.seal import Mark, check_resumed

MAGIC = b"phalanx checkpoint 2\n"
CHUNK = 1 << 20  # bytes that are read at once
LOOKING, WRITING = 0.002, 0.008  # of a run's time, at most, that may go into taking snapshots and into writing them
SPEED = 1e8  # bytes per second; how fast a disk is, until one has been seen at work


@dataclasses.dataclass(frozen=True)
class Checkpoint(CheckedFields):
    """The schedule of checkpoints of a run.

    It is also saved when Ctrl-C or a mistake ends it, as it was at the last step; for that, what the state and the
    clients carried before the present step is held in memory until the step is done.

    Args:
        every_seconds: wall time between two checkpoints at least; more where they are large, so that a run spends no
            more than 1 % of its time on them. 0 saves every step, whatever that costs.
        resume: whether a run goes on from the checkpoint that its folder holds. If not, it starts over.
    """

    every_seconds: Annotated[float, Meta(ge=0), INFINITE] = 60.0
    resume: bool = True


EVERY_MINUTE = Checkpoint()


@dataclasses.dataclass(frozen=True)
class Origin:
    """The conditions that determine the bits of a run.

    Args:
        identity: of the run.
        source: of the classes that are not this library's, None if there are none.
        phalanx: its version.
        data: fingerprints.
        conditions: versions, device and threads.
    """

    identity: str
    source: str | None
    phalanx: str
    data: Mapping[str, str]
    conditions: Mapping[str, str | int]

    def outdated(self, here: "Origin") -> str:
        """Return why a run from here differs from one of the same identity from `here`; empty if it does not."""
        if self.phalanx != here.phalanx:
            return f"its results are by Phalanx {self.phalanx}, this is {here.phalanx}"
        if self.source != here.source:
            return "the source of the classes of your own that it uses has changed since"
        return ""

    def differences(self, here: "Origin") -> str:
        """Return the conditions that make the same run give other bits in `here`; empty if there are none."""
        names = sorted(self.conditions.keys() | here.conditions.keys())
        pairs = [(name, self.conditions.get(name), here.conditions.get(name)) for name in names]
        differing = [f"{name} {before}, and this is {now}" for name, before, now in pairs if before != now]
        return "; ".join([*differing, *(["other data"] if self.data != here.data else [])])


class Header(NamedTuple):
    """The header of a checkpoint."""

    origin: Origin
    step: int
    lines: int  # of history, so far
    link: str  # of the last of these; see `phalanx.runs.seal`
    seconds: float  # wall time that the run has taken
    form: dict[str, Any]  # of the snapshot; see `phalanx.runs.packing`
    audit: Mark | None = None  # the place that the audit trail of a deployment has come to


KINDS = get_type_hints(Header)  # by field


# Saving


def no_audit() -> None:
    """Return nothing: a simulated run has no audit trail."""


class Held(NamedTuple):
    """A snapshot that could be written."""

    header: Header
    packed: Packed


class CheckpointWriter:
    """A holder of the last snapshot of a run, which it writes from time to time.

    Args:
        folder: the run's; None: nothing is held.
        when: how often it is written; None: nothing is held.
        origin: of the run.
        history: the run's, which is brought to the disk first.
        begun: when the run would have begun if it had never been stopped, by `time.perf_counter`.
        audit: returns the place that the audit trail has come to; None if there is none.
    """

    def __init__(
        self,
        folder: Path | None,
        when: Checkpoint | None,
        origin: Origin,
        history: History,
        begun: float,
        *,
        audit: Callable[[], Mark | None] = no_audit,
    ) -> None:
        self.path = folder / CHECKPOINT if folder and when else None
        self.origin, self.history, self.begun, self._audit = origin, history, begun, audit
        self.every = when.every_seconds if when else math.inf
        self.step = 0  # that of the file; 0 if this run has written none
        self.holds_this_step = True  # whether it holds a snapshot of the present step, or is to hold none
        self._held: Held | None = None
        self._written: Held | None = None
        self._next_look = math.inf if self.path is None else 0.0
        self._last_write, self._cost = time.perf_counter(), 0.0  # seconds

    def __call__(self, take: Callable[[], Snapshot[Any]], *, now: bool = False) -> None:
        """See `phalanx.engine.OnSnapshot`.

        Args:
            take: takes a snapshot.
            now: hold this one, whatever that costs: the run is to be left.
        """
        wanted = self._next_look < math.inf and (now or time.perf_counter() >= self._next_look)
        self.holds_this_step = wanted or self._next_look == math.inf
        if wanted:
            self._look(take)

    def _look(self, take: Callable[[], Snapshot[Any]]) -> None:
        """Hold a snapshot, and write it if it is time to."""
        now = time.perf_counter()
        try:
            snapshot = take()
            packed = pack(snapshot)
        except UnpackableError as error:
            self._next_look = math.inf
            warnings.warn(f"This run is not saved on its way, and starts over if it is killed: {error}", stacklevel=3)
            return
        header = Header(
            self.origin, snapshot.step, *self.history.mark, now - self.begun, packed.form, audit=self._audit()
        )
        self._held = held = Held(header, packed)
        self._next_look = now + (time.perf_counter() - now) / LOOKING if self.every else 0.0
        if now - self._last_write >= self._pause(packed):
            self._write(held)

    def leave(self) -> None:
        """Write the snapshot, unless a tensor of it has been changed since."""
        held = self._held
        if held is None or held is self._written or not (held.header.step and held.packed.unchanged):
            return
        try:
            self._write(held)
        except OSError as error:
            warnings.warn(f"The run could not be saved, to go on after step {held.header.step}: {error}", stacklevel=3)

    def discard(self) -> None:
        """Remove the file: the run is over."""
        if self.path is not None:
            for path in (self.path, _partial(self.path)):
                path.unlink(missing_ok=True)

    def _write(self, held: Held) -> None:
        if self.path is None:
            return
        begun = time.perf_counter()
        self.history.sync()
        write(self.path, *held)
        self._written, self.step = held, held.header.step
        self._last_write = time.perf_counter()
        self._cost = self._last_write - begun

    def _pause(self, packed: Packed) -> float:
        """Return the seconds that must pass between the last checkpoint and the next one."""
        return max(self.every, max(self._cost, packed.size / SPEED) / WRITING) if self.every else 0.0


# Going on


class Resumption(NamedTuple):
    """The point from which a run goes on; the beginning by default."""

    snapshot: Snapshot[Any] | None = None
    lines: Sequence[StepRecord] = ()  # of history, up to there
    seconds: float = 0.0  # wall time that the run has taken
    audit: Mark | None = None  # the place that the audit trail had come to


def resumption(folder: Path | None, when: Checkpoint | None, here: Origin, device: torch.device) -> Resumption:
    """Return the point from which a run goes on, by its folder; warn if the folder is of another run.

    Args:
        folder: the run's; None: at the beginning.
        when: whether to look; None: at the beginning.
        here: what the run's bits depend on today.
        device: takes the tensors that were on a GPU.

    Raises:
        InfeasibleError: it is this run's, and would not give the same bits under the conditions of today.
        ValueError: a file is damaged.
    """
    saved = peek(folder) if folder and when and when.resume else None
    if saved is None or folder is None:
        return Resumption()
    origin, step = saved.origin, saved.step
    why = "it is another" if origin.identity != here.identity else origin.outdated(here)
    if why:
        warnings.warn(f"{folder} held a run that came to step {step}. This one starts over: {why}.", stacklevel=4)
        return Resumption()
    if why := origin.differences(here):
        raise InfeasibleError(
            f"{folder} holds this run up to step {step}, computed with {why}: it would not give the same bits. "
            "Compute it as before to go on, or start it over: `phalanx run --again`, or Checkpoint(resume=False)."
        )
    check_resumed(folder)
    header, pieces = _read(folder / CHECKPOINT)
    lines = read_lines(folder / HISTORY, Mark(header.lines, header.link))
    try:
        snapshot = unpack(header.form, pieces, device)
    except ValueError as error:
        raise _damaged(folder / CHECKPOINT, str(error)) from error
    return Resumption(snapshot, lines, header.seconds, header.audit)


def peek(folder: Path) -> Header | None:
    """Return the header of the checkpoint in a folder, or None.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    with opened(path) as file:
        return _header(path, file)


def begun_in(folder: Path) -> str:
    """Return the identity of the run that was begun in a folder; empty if there is none, or none that can be read."""
    with suppress(OSError, ValueError):
        saved = peek(folder)
        return summary_of(folder).identity if saved is None else saved.origin.identity
    return ""


# The file


def write(path: Path, header: Header, packed: Packed) -> None:
    """Write a checkpoint: it is on the disk before it replaces the previous one."""
    text = json.dumps(header._asdict() | {"origin": dataclasses.asdict(header.origin)}).encode()
    try:
        with open(_partial(path), "wb", opener=private) as file:
            digest = hashlib.sha256()
            for part in _parts(text, packed):
                file.write(part)
                digest.update(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        _partial(path).unlink(missing_ok=True)  # on a full disk it would take the room that others need
        raise
    _partial(path).replace(path)
    settle(path.parent)


def private(path: str, flags: int) -> int:
    """Open a file that, if it is new, nobody but its owner can read: it holds models, and what clients sent."""
    return os.open(path, flags, 0o600)


def _parts(text: bytes, packed: Packed) -> Iterator[bytes | memoryview]:
    yield MAGIC + len(text).to_bytes(8, "little") + text
    for piece in packed.pieces:
        before, held, after = piece.read()
        yield before
        yield held.numpy().data
        yield after


def _read(path: Path) -> tuple[Header, list[UInt8[Tensor, "_"]]]:
    """Return the header, and the memory, each piece separate."""
    _check(path)
    with path.open("rb") as file:
        header = _header(path, file)
        try:
            sizes = msgspec.convert(header.form["pieces"], list[tuple[Annotated[int, msgspec.Meta(ge=0)], bool]])
        except (KeyError, msgspec.ValidationError) as error:
            raise _damaged(path, "its header cannot be read") from error
        if sum(size for size, _ in sizes) > path.stat().st_size:
            raise _damaged(path, "it is shorter than its header says")
        pieces = [torch.empty(size, dtype=torch.uint8) for size, _ in sizes]
        for piece in pieces:
            file.readinto(piece.numpy().data)
    return header, pieces


def _check(path: Path) -> None:
    """Raise ValueError if the file is not exactly as it was written."""
    digest, left = hashlib.sha256(), path.stat().st_size - hashlib.sha256().digest_size
    with path.open("rb") as file:
        while left > 0:
            part = file.read(min(left, CHUNK))
            digest.update(part)
            left -= len(part)
        if file.read() != digest.digest():
            raise _damaged(path, "its checksum is wrong")


def _header(path: Path, file: BinaryIO) -> Header:
    if (begins := file.read(len(MAGIC))) != MAGIC:
        older = re.fullmatch(rb"phalanx checkpoint \d\n", begins)
        raise _damaged(path, "another version of Phalanx wrote it" if older else "it begins with something else")
    try:
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_PART:
            raise ValueError("it is larger than any")
        fields = json.loads(file.read(length))
        if set(fields) != set(KINDS):
            raise ValueError(f"expected {', '.join(KINDS)}")
        return Header(**{name: msgspec.convert(fields[name], kind) for name, kind in KINDS.items()})
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(path, "its header cannot be read") from error


def _partial(path: Path) -> Path:
    return path.with_suffix(".partial")


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} is not a whole checkpoint: {why}. Delete it, or start the run over: "
        "`phalanx run --again`, `phalanx flower up --again`, or Checkpoint(resume=False)."
    )
