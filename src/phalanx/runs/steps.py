"""The steps of a history that stay in their file: a sequence that reads them when they are looked at."""

import os
import threading
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from typing_extensions import override

from phalanx.reading import from_json
from phalanx.runs import schema_v1
from phalanx.runs.schema import StepRecord

BLOCK = 256  # lines that are read at once
SMALL = 4 << 20  # bytes of a history that may as well be in memory when its run is over


def read_step(text: bytes) -> StepRecord:
    """Return the step that a line of a history holds.

    Raises:
        ValueError: it holds no step.
    """
    try:
        return from_json(text, StepRecord)
    except ValueError:
        if (older := schema_v1.step_of(text)) is not None:
            return older
        raise


class StoredSteps(Sequence[StepRecord]):
    """The first lines of a history file as a sequence; memory holds `BLOCK` of them, and 8 bytes per block.

    The file stays open, so that the steps can be read as long as the sequence is there, even if the file is deleted or
    replaced.  Copies and pickles are lists.

    Args:
        path: of the file.
        lines: how many of its lines belong to the sequence, without their ends: their lengths in bytes.
    """

    def __init__(self, path: Path, lines: Sequence[int] = ()) -> None:
        self.size = 0  # in bytes
        self._count, self._starts = 0, array("Q")  # of blocks, in bytes
        self._block: tuple[int, list[StepRecord]] = (-1, [])  # the last that was read, with its number
        self._lock = threading.Lock()
        self.move_to(path)
        for length in lines:
            self.note(length)

    def move_to(self, path: Path) -> None:
        """Read from another file from now on, which begins with the same lines."""
        self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._close = weakref.finalize(self, os.close, self._file)

    def close(self) -> None:
        """Close the file; `move_to` opens another one."""
        self._close()

    def note(self, length: int) -> None:
        """Take a line in that was added to the file, of so many bytes without its end."""
        if self._count % BLOCK == 0:
            self._starts.append(self.size)
        if self._block[0] == self._count // BLOCK:
            self._block = (-1, [])
        self._count += 1
        self.size += length + 1

    def cut(self, count: int) -> None:
        """Leave out all but the first lines."""
        if count >= self._count:
            return
        block = count // BLOCK
        size = self._starts[block] + sum(len(line) + 1 for line in self._lines(block)[: count % BLOCK])
        del self._starts[-(-count // BLOCK) :]
        self._count, self.size, self._block = count, size, (-1, [])

    def settled(self) -> Sequence[StepRecord]:
        """Return the steps of a run that is over: as a list if they are few, and else these."""
        return self if self.size > SMALL else list(self)

    @override
    def __len__(self) -> int:
        return self._count

    @override
    def __iter__(self) -> Iterator[StepRecord]:
        k = 0
        while k < self._count:  # which may grow meanwhile
            yield from self._steps(k // BLOCK)[k % BLOCK :]
            k = min(self._count, (k // BLOCK + 1) * BLOCK)

    @overload
    def __getitem__(self, index: int) -> StepRecord: ...

    @overload
    def __getitem__(self, index: slice) -> list[StepRecord]: ...

    @override
    def __getitem__(self, index: int | slice) -> StepRecord | list[StepRecord]:
        chosen = range(self._count)[index]
        if isinstance(chosen, int):
            return self._steps(chosen // BLOCK)[chosen % BLOCK]
        return [self._steps(k // BLOCK)[k % BLOCK] for k in chosen]

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredSteps | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as that of a list

    @override
    def __repr__(self) -> str:
        return f"<{self._count} steps in a file>"

    @override
    def __reduce__(self) -> tuple[type, tuple[list[StepRecord]]]:
        return list, ([*self],)

    def _steps(self, block: int) -> list[StepRecord]:
        number, steps = self._block
        if number != block:
            steps = [read_step(line) for line in self._lines(block)]
            self._block = block, steps
        return steps

    def _lines(self, block: int) -> list[bytes]:
        stop = self._starts[block + 1] if block + 1 < len(self._starts) else self.size
        return self._text(self._starts[block], stop).splitlines()

    def _text(self, start: int, stop: int) -> bytes:
        """Return some bytes of the file."""
        parts = list[bytes]()
        with self._lock:
            os.lseek(self._file, start, os.SEEK_SET)
            while start < stop and (part := os.read(self._file, stop - start)):
                parts.append(part)
                start += len(part)
        return b"".join(parts)
