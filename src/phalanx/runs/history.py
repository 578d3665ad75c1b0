"""The observer that writes `history.jsonl`, one `StepRecord` per line."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from phalanx.core import AnyState, Updates, Verdict
from phalanx.engine.observer import Progress
from phalanx.promises import Promise
from phalanx.reading import from_json
from phalanx.runs.files import replacing
from phalanx.runs.schema import PromiseRecord, StepRecord, plain, to_json
from phalanx.runs.seal import Mark, chain_of
from phalanx.runs.steps import StoredSteps
from phalanx.training.evaluation import Metrics

Measure = Callable[[Progress], Metrics | None]


def nothing(progress: Progress) -> None:
    """Measure nothing."""


class History:
    """An observer that records every step.

    Args:
        observed: fields of the algorithm's state to record.
        measure: evaluates a state; called before the first and after each step. None where nothing was measured.
        path: of the file, to which each line is written as it comes, so that a killed run leaves all its steps. It is
            made with the first line, and open until the context of the history is left. None: the steps are kept in
            memory.
        prepare: called before the file is made.
        lines: the steps so far, of a resumed run, as `read_lines` returns them. Its first call only says where it goes
            on.
    """

    def __init__(
        self,
        observed: Iterable[str] = (),
        measure: Measure = nothing,
        path: Path | None = None,
        prepare: Callable[[], None] = lambda: None,
        lines: Sequence[StepRecord] = (),
    ) -> None:
        self.lines: list[StepRecord] | StoredSteps = lines if isinstance(lines, StoredSteps) else list(lines)
        self._chain = chain_of(map(_line, self.lines))
        self._begun = False
        self._observed, self._measure = tuple(observed), measure
        self._path, self._prepare = path, prepare
        self._file: FileIO | None = None
        self._last: Progress | None = None
        self.metrics: Metrics | None = None  # of the last call, as they were measured
        self._newest = ""  # SHA-256 of the line that was written last, by this process

    def __enter__(self) -> "History":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        before, self._last = self._last, progress._replace(updates=None)  # which are the memory of the next round
        if self.lines and not self._begun:
            self._begin()
            return
        self.metrics = None if progress.updates is None and progress.step else self._measure(progress)
        invalid, enrolled = progress.invalid.items(), progress.enrolled
        self._write(
            StepRecord(
                step=progress.step,
                version=progress.state.version,
                seconds=progress.now,
                metrics=self.metrics,
                **({} if progress.updates is None else self._decided(before, progress.state, progress.updates)),
                not_enrolled={client: why for client, why in invalid if client not in enrolled},
                invalid={client: why for client, why in invalid if client in enrolled},
                lost=progress.lost,
                remarks=progress.remarks,
                influences=progress.influences,
                promise=promise_of(progress.promise),
                shares=progress.shares,
                broken=progress.broken,
                conduct=progress.conduct,
            )
        )

    def _decided(self, before: Progress | None, state: AnyState, updates: Updates) -> dict[str, Any]:
        """Return the fields that a completed step adds to its record."""
        late = before is not None and min(updates.versions) < before.state.version
        versions = zip(updates.clients, updates.versions, strict=True) if late or len(updates) == 1 else ()
        observed = plain({name: getattr(state, name) for name in self._observed})
        verdicts, reports = verdicts_of(state.verdicts), dict(updates.reports)
        return {"state": observed, "verdicts": verdicts, "versions": dict(versions), "reports": reports}

    def conclude(self, measure: Callable[[AnyState, frozenset[int]], Metrics | None]) -> None:
        """Measure the last state if that has not been done, as when a run ends at a time and not at a step."""
        last = self._last
        if last is None or self.lines[-1].metrics is not None:
            return
        if (metrics := measure(last.state, last.enrolled)) is not None:
            self._write(StepRecord(step=last.step, version=last.state.version, seconds=last.now, metrics=metrics))

    @property
    def mark(self) -> Mark:
        """The number of lines, and the last link of their chain."""
        if self._chain.mark.lines != len(self.lines):  # an interrupt can fall between the two
            self._chain = chain_of(map(_line, self.lines))
        return self._chain.mark

    @property
    def last(self) -> tuple[Mark, str]:
        """The same, and the SHA-256 of the last line; empty if another process has written it."""
        return self.mark, self._newest

    def sync(self) -> None:
        """Bring the lines to the disk, where a loss of power does not reach them."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def _begin(self) -> None:
        """Make the file, with the lines of a resumed run, in place of the one that may hold more."""
        self._begun = True
        if self._path is not None:
            self._prepare()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as file:
                lengths = [file.write(_line(step)) - 1 for step in self.lines]
                if isinstance(self.lines, StoredSteps):
                    self.lines.close()
            self._file = self._path.open("r+b", buffering=0)
            self._file.seek(0, os.SEEK_END)
            if isinstance(self.lines, StoredSteps):
                self.lines.move_to(self._path)
            else:
                self.lines = StoredSteps(self._path, lengths)

    def _append(self, text: bytes) -> int:
        """Write a line to the file, whole or not at all; return its length without its end."""
        assert self._file is not None
        before, left = self._file.tell(), memoryview(text + b"\n")
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except BaseException:
            self._file.truncate(before)
            self._file.seek(before)
            raise
        return len(text)

    def _write(self, step: StepRecord) -> None:
        text = to_json(step)
        if step.metrics is not None and b":null" in to_json(step.metrics):  # not finite; left out, as it is read
            text = to_json(from_json(text, StepRecord))
        if not self._begun:
            self._begin()
        if self._file is not None:
            self._append(text)
        if isinstance(self.lines, StoredSteps):
            self.lines.note(len(text))
        else:
            self.lines.append(from_json(text, StepRecord))  # as it is read back: with None for what is not finite
        self._newest = self._chain.add(text + b"\n")

    def settled(self) -> Sequence[StepRecord]:
        """Return the steps of a run that is over: a list, unless they are many and in the file."""
        return self.lines.settled() if isinstance(self.lines, StoredSteps) else self.lines

    def cut(self, count: int) -> None:
        """Leave out all but the first lines: a run that goes on from a checkpoint makes them again."""
        if self._file is not None and isinstance(self.lines, StoredSteps):
            self.lines.cut(count)
            self._file.truncate(self.lines.size)
            self._file.seek(self.lines.size)
            self._chain, self._newest = chain_of(map(_line, self.lines)), ""


def _line(step: StepRecord) -> bytes:
    return to_json(step) + b"\n"


def verdicts_of(verdicts: Mapping[int, Verdict]) -> dict[int, Verdict]:
    """Return the verdicts as they are recorded: by client, in order, with 0 for a weight that is not finite."""
    known = sorted(verdicts.items())
    return {i: v if math.isfinite(v.weight) else dataclasses.replace(v, weight=0.0) for i, v in known}


def promise_of(promise: Promise | None) -> PromiseRecord | None:
    """Return a promise as it is recorded."""
    return None if promise is None else PromiseRecord(f=promise.f, clients=promise.clients, text=promise.text)
