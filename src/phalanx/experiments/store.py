"""The store of the records of a paper or a study.

A run that ends leaves a small file of its own, named by its identity, so that many processes can write at once, and a
kill loses nothing.  `Store.pack` brings these files into a single one, compressed, a line for each record:

    pandas.read_json("results/rffl/records.jsonl.gz", lines=True)
"""

import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from phalanx.experiments.trace import Trace
from phalanx.reading import LARGEST_PACKED, unzipped
from phalanx.runs.files import replacing
from phalanx.runs.plan import Run
from phalanx.runs.summary import unusable

PACKED = "records.jsonl.gz"
START = '{"identity": "'  # of each line, and then the identity


@runtime_checkable
class Records(Protocol):
    """What carries out runs needs of a store.

    Args:
        folder: of the records.
        keeps_failures: whether it takes records of runs that may end otherwise the next time.
    """

    folder: Path
    keeps_failures: bool

    def find(self, plan: Run) -> tuple[Trace | None, str]:
        """Return the record of a run, if there is one that can be used, and if one cannot be used, why not."""
        ...

    def keep(self, trace: Trace, cpu_seconds: float | None = None) -> None:
        """Keep a record, in place of an older one of the same run.

        Args:
            trace: the record.
            cpu_seconds: seconds of the processor that the run took; its duration if None.
        """
        ...

    def underway(self, plan: Run) -> Path | None:
        """Return the folder of a run that has not ended, with its checkpoint; None if it has no checkpoints."""
        ...

    def tidy(self, plan: Run) -> None:
        """Remove the folder of a run that has ended."""
        ...


class Store:
    """The records of a paper.

    Args:
        folder: of the paper's results; records are in `records` below it, and in `records.jsonl.gz`.
    """

    keeps_failures = False

    def __init__(self, folder: Path) -> None:
        self.folder, self._underway, self.packed = folder / "records", folder / "underway", folder / PACKED
        self._lines: dict[str, str] | None = None  # of the packed file, by identity

    def path(self, plan: Run) -> Path:
        """Return the path of the file of its own that the record of a run has until it is packed."""
        return self.folder / f"{plan.identity}.json"

    def holds(self, plan: Run) -> bool:
        """Return whether there is a record of a run, of whatever content."""
        return self.path(plan).is_file() or plan.identity in self._of_packed()

    def find(self, plan: Run) -> tuple[Trace | None, str]:
        """Return the record of a run, of any numerics version, and why it cannot be used.

        Returns:
            The trace, if any; and if there is one that cannot be used, why not.

        Raises:
            ValueError: the file of that name holds something else.
        """
        trace = self._read(plan.identity)
        if trace is None:
            return None, ""
        why = unusable(plan, trace)
        return (None, why) if why else (trace, "")

    def traces(self) -> Iterator[Trace]:
        """Yield all records, by identity.

        Raises:
            ValueError: a file holds something else.
        """
        for identity in sorted({path.stem for path in self.folder.glob("*.json")} | self._of_packed().keys()):
            if (trace := self._read(identity)) is not None:
                yield trace

    def keep(self, trace: Trace, cpu_seconds: float | None = None) -> None:
        """Write a record, in place of an older one of the same run; see `Records`."""
        trace.save(self.folder / f"{trace.identity}.json")

    def pack(self) -> int:
        """Bring all records into one compressed file, and return their number; equal records give equal bytes.

        No other process may pack at the same time; runs can go on.

        Raises:
            ValueError: a file holds something else; nothing is changed.
        """
        stamps = {path: path.stat().st_mtime_ns for path in self.folder.glob("*.json")}
        traces = list(self.traces())
        text = "".join(
            json.dumps({"identity": t.identity} | t.form, allow_nan=False, separators=(", ", ": ")) + "\n"
            for t in traces
        )
        with replacing(self.packed) as file:
            file.write(gzip.compress(text.encode(), 9, mtime=0))
        self._lines = None
        for path, stamp in stamps.items():
            if path.stat().st_mtime_ns == stamp:  # not written again since
                path.unlink()
        with suppress(OSError):  # there are newer ones
            self.folder.rmdir()
        return len(traces)

    def _read(self, identity: str) -> Trace | None:
        path = self.folder / f"{identity}.json"
        if path.is_file():
            return Trace.load(path)
        line = self._of_packed().get(identity)
        try:
            return None if line is None else Trace.read(line, self.packed, identity)
        except ValueError as error:
            raise ValueError(f"{self.packed} holds an invalid record of {identity[:10]}: restore the file.") from error

    def _of_packed(self) -> dict[str, str]:
        """Return the lines of the packed file, by identity.

        Raises:
            ValueError: the file is damaged.
        """
        if self._lines is None:
            try:
                text = unzipped(self.packed, LARGEST_PACKED).decode() if self.packed.is_file() else ""
            except (OSError, EOFError, ValueError) as error:
                raise ValueError(f"{self.packed} does not hold records: {error}. Restore the file.") from error
            size = len(START)
            self._lines = {line[size : size + 64]: line for line in text.splitlines()}
        return self._lines

    def underway(self, plan: Run) -> Path:
        """Return the folder of a run that has not ended, with the checkpoint from which it goes on if it is killed."""
        return self._underway / plan.identity

    def tidy(self, plan: Run) -> None:
        """Remove the folder of a run that has ended."""
        shutil.rmtree(self.underway(plan), ignore_errors=True)
        with suppress(OSError):  # others have not ended
            self._underway.rmdir()
