"""Checkpoints: a run that was killed goes on, and its bits are those of a run that nobody disturbed.

All that a run carries from one step to the next is in one `phalanx.engine.Snapshot`: the algorithm's state, the books,
and what the transport has under way.  Random streams have names and no state, so that they need not be kept.  The
snapshot is written beside the history as one file, which is at every moment the old one or the new one, whole:

    magic, the length of the header in 8 bytes, the header in JSON, memory from border to border, SHA-256 of all that

`phalanx.runs.packing` says how values become JSON and memory.  The header names the run, and how many lines of history
there were: on going on, later lines are dropped and computed again.
"""

import dataclasses
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from phalanx.core import InfeasibleError
from phalanx.engine.loop import Snapshot
from phalanx.runs.history import History
from phalanx.runs.packing import Packed, Unpackable, pack, unpack
from phalanx.runs.record import CHECKPOINT, HISTORY, read_lines
from phalanx.runs.schema import StepRecord

MAGIC = b"phalanx checkpoint 1\n"
CHUNK = 1 << 20  # bytes that are read at once
LOOKING, WRITING = 0.002, 0.008  # of a run's time, at most, that may go into taking snapshots and into writing them
SPEED = 1e8  # bytes per second; how fast a disk is, until one has been seen at work


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """When a run is saved on its way.

    It is also saved when Ctrl-C or a mistake ends it, as it was at the last step; for that, what the state and the
    clients carried before the present step is held in memory until the step is done.

    Args:
        every_seconds: wall time between two checkpoints at least; more where they are large, so that a run spends no
            more than 1 % of its time on them. 0 saves every step, whatever that costs.
        resume: whether a run goes on from the checkpoint that its folder holds. If not, it starts anew.
    """

    every_seconds: float = 60.0
    resume: bool = True

    def __post_init__(self) -> None:
        if not self.every_seconds >= 0:
            raise ValueError(f"every_seconds must be at least 0, got {self.every_seconds}.")


EVERY_MINUTE = Checkpoint()


@dataclasses.dataclass(frozen=True)
class Origin:
    """What decides about the bits of a run.

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
        """Why a run from here is another than one of the same identity from `here`; empty if it is not."""
        if self.phalanx != here.phalanx:
            return f"its results are by Phalanx {self.phalanx}, this is {here.phalanx}"
        if self.source != here.source:
            return "the source of the classes of your own that it uses has changed since"
        return ""

    def differences(self, here: "Origin") -> str:
        """What makes the same run give other bits in `here`; empty if nothing does."""
        names = sorted(self.conditions.keys() | here.conditions.keys())
        pairs = [(name, self.conditions.get(name), here.conditions.get(name)) for name in names]
        told = [f"{name} {before}, and this is {now}" for name, before, now in pairs if before != now]
        return "; ".join([*told, *(["other data"] if self.data != here.data else [])])


class Header(NamedTuple):
    """What a checkpoint says of itself."""

    origin: Origin
    step: int
    lines: int  # of history, so far
    digest: str  # SHA-256 of these
    seconds: float  # wall time that the run has taken
    form: dict[str, Any]  # of the snapshot; see `phalanx.runs.packing`


# Saving


class Held(NamedTuple):
    """A snapshot that could be written."""

    header: Header
    packed: Packed


class CheckpointWriter:
    """Holds the last snapshot of a run, and writes it now and then.

    Args:
        folder: the run's; None: nothing is held.
        when: how often it is written; None: nothing is held.
        origin: of the run.
        history: the run's, which is brought to the disk first.
        begun: when the run would have begun if it had never been stopped, by `time.perf_counter`.
    """

    def __init__(
        self, folder: Path | None, when: Checkpoint | None, origin: Origin, history: History, begun: float
    ) -> None:
        self.path = folder / CHECKPOINT if folder and when else None
        self.origin, self.history, self.begun = origin, history, begun
        self.every = when.every_seconds if when else math.inf
        self.step = 0  # that of the file; 0 if this run has written none
        self._held: Held | None = None
        self._written: Held | None = None
        self._next_look = math.inf if self.path is None else 0.0
        self._last_write, self._cost = time.perf_counter(), 0.0  # seconds

    def __call__(self, take: Callable[[], Snapshot[Any]]) -> None:
        """See `phalanx.engine.OnSnapshot`."""
        now = time.perf_counter()
        if now < self._next_look:
            return
        try:
            snapshot = take()
            packed = pack(snapshot)
        except Unpackable as error:
            self._next_look = math.inf
            warnings.warn(f"This run is not saved on its way, and starts anew if it is killed: {error}", stacklevel=3)
            return
        header = Header(self.origin, snapshot.step, *self.history.mark(), now - self.begun, packed.form)
        self._held = held = Held(header, packed)
        self._next_look = now + (time.perf_counter() - now) / LOOKING if self.every else 0.0
        if now - self._last_write >= self._pause(packed):
            self._write(held)

    def leave(self) -> None:
        """Writes what it holds, unless somebody has written to a tensor of it since."""
        held = self._held
        if held is None or held is self._written or not (held.header.step and held.packed.unchanged):
            return
        try:
            self._write(held)
        except OSError as error:
            warnings.warn(f"The run could not be saved, to go on after step {held.header.step}: {error}", stacklevel=3)

    def discard(self) -> None:
        """Removes the file: the run is over."""
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
        """Seconds that have to pass between the last checkpoint and one of this."""
        return max(self.every, max(self._cost, packed.size / SPEED) / WRITING) if self.every else 0.0


# Going on


class Resumption(NamedTuple):
    """Where a run goes on; at the beginning, if nothing else is said."""

    snapshot: Snapshot[Any] | None = None
    lines: Sequence[StepRecord] = ()  # of history, up to there
    seconds: float = 0.0  # wall time that the run has taken


def resumption(folder: Path | None, when: Checkpoint | None, here: Origin, device: torch.device) -> Resumption:
    """Where a run goes on, by what its folder holds; warns if that is of another run.

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
        warnings.warn(f"{folder} held a run that came to step {step}. This one starts anew: {why}.", stacklevel=4)
        return Resumption()
    if why := origin.differences(here):
        raise InfeasibleError(
            f"{folder} holds this run up to step {step}, computed with {why}: it would not give the same bits. "
            "Compute it as before to go on, or start it anew: `phalanx run --again`, or Checkpoint(resume=False)."
        )
    header, pieces = _read(folder / CHECKPOINT)
    lines = read_lines(folder / HISTORY, header.lines, header.digest)
    try:
        snapshot = unpack(header.form, pieces, device)
    except ValueError as error:
        raise _damaged(folder / CHECKPOINT, str(error)) from error
    return Resumption(snapshot, lines, header.seconds)


def peek(folder: Path) -> Header | None:
    """The header of the checkpoint that a folder holds, or None.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return _header(path, file)


# The file


def write(path: Path, header: Header, packed: Packed) -> None:
    """Writes a checkpoint: to the disk before it takes the place of the one before."""
    text = json.dumps(header._asdict() | {"origin": dataclasses.asdict(header.origin)}).encode()
    with _partial(path).open("wb") as file:
        digest = hashlib.sha256()
        for part in _parts(text, packed):
            file.write(part)
            digest.update(part)
        file.write(digest.digest())
        file.flush()
        os.fsync(file.fileno())
    _partial(path).replace(path)
    settle(path.parent)


def settle(folder: Path) -> None:
    """Has on the disk which files a folder holds: a new one that is there may have no name yet."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _parts(text: bytes, packed: Packed) -> Iterator[bytes | memoryview]:
    yield MAGIC + len(text).to_bytes(8, "little") + text
    for piece in packed.pieces:
        before, held, after = piece.read()
        yield before
        yield held.numpy().data
        yield after


def _read(path: Path) -> tuple[Header, list[UInt8[Tensor, "_"]]]:
    """The header, and the memory, each piece of its own."""
    _check(path)
    with path.open("rb") as file:
        header = _header(path, file)
        pieces = [torch.empty(size, dtype=torch.uint8) for size, _ in header.form["pieces"]]
        for piece in pieces:
            file.readinto(piece.numpy().data)
    return header, pieces


def _check(path: Path) -> None:
    """Raises ValueError if the file is not as it was written, to the last bit."""
    digest, left = hashlib.sha256(), path.stat().st_size - hashlib.sha256().digest_size
    with path.open("rb") as file:
        while left > 0:
            part = file.read(min(left, CHUNK))
            digest.update(part)
            left -= len(part)
        if file.read() != digest.digest():
            raise _damaged(path, "its checksum is wrong")


def _header(path: Path, file: BinaryIO) -> Header:
    if file.read(len(MAGIC)) != MAGIC:
        raise _damaged(path, "it begins with something else")
    try:
        length = int.from_bytes(file.read(8), "little")
        told = json.loads(file.read(min(length, path.stat().st_size)))
        return Header(**told | {"origin": Origin(**told["origin"])})
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(path, "its header cannot be read") from error


def _partial(path: Path) -> Path:
    return path.with_suffix(".partial")


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} is not a whole checkpoint: {why}. Delete it, or start the run anew: "
        "`phalanx run --again`, `phalanx flower up --again`, or Checkpoint(resume=False)."
    )
