"""The observer that writes `history.jsonl`, one `StepRecord` per line."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from phalanx.core import AnyState, Progress, Updates, Verdict
from phalanx.runs.record import as_lines, write
from phalanx.runs.schema import StepRecord, from_json, plain, to_json
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
            made with the first line, and open until the context of the history is left.
        prepare: called before the file is made.
        lines: the steps so far, of a resumed run. Its first call only says where it goes on.
    """

    def __init__(
        self,
        observed: Iterable[str] = (),
        measure: Measure = nothing,
        path: Path | None = None,
        prepare: Callable[[], None] = lambda: None,
        lines: Iterable[StepRecord] = (),
    ) -> None:
        self.lines = list(lines)
        self._digest = sha256(as_lines(self.lines))
        self._begun = False
        self._observed, self._measure = tuple(observed), measure
        self._path, self._prepare = path, prepare
        self._file: BinaryIO | None = None
        self._last: Progress | None = None

    def __enter__(self) -> "History":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        before, self._last = self._last, progress
        if self.lines and not self._begun:
            self._begin()
            return
        refused, enrolled = progress.refused.items(), progress.enrolled
        self._write(
            StepRecord(
                step=progress.step,
                version=progress.state.version,
                seconds=progress.now,
                metrics=None if progress.updates is None and progress.step else self._measure(progress),
                **({} if progress.updates is None else self._decided(before, progress.state, progress.updates)),
                not_enrolled={client: why for client, why in refused if client not in enrolled},
                invalid={client: why for client, why in refused if client in enrolled},
                lost=progress.lost,
            )
        )

    def _decided(self, before: Progress | None, state: AnyState, updates: Updates) -> dict[str, Any]:
        """What a step that was taken adds to its record."""
        late = before is not None and min(updates.versions) < before.state.version
        versions = zip(updates.clients, updates.versions, strict=True) if late or len(updates) == 1 else ()
        observed = plain({name: getattr(state, name) for name in self._observed})
        return {"state": observed, "verdicts": _verdicts(state.verdicts), "versions": dict(versions)}

    def conclude(self, measure: Callable[[AnyState, frozenset[int]], Metrics | None]) -> None:
        """Measure the last state if that has not been done, as when a run ends at a time and not at a step."""
        last = self._last
        if last is None or self.lines[-1].metrics is not None:
            return
        if (metrics := measure(last.state, last.enrolled)) is not None:
            self._write(StepRecord(step=last.step, version=last.state.version, seconds=last.now, metrics=metrics))

    def mark(self) -> tuple[int, str]:
        """Return the number of lines, and their SHA-256 as `read_lines` computes it."""
        return len(self.lines), self._digest.hexdigest()

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
            write(self._path, as_lines(self.lines))
            self._file = self._path.open("ab")

    def _write(self, step: StepRecord) -> None:
        text = to_json(step) + b"\n"
        if not self._begun:
            self._begin()
        if self._file is not None:
            self._file.write(text)
            self._file.flush()
        self._digest.update(text)
        self.lines.append(from_json(text, StepRecord))  # as it is read back: with None for what is not finite


def _verdicts(verdicts: Mapping[int, Verdict]) -> dict[int, Verdict]:
    """The verdicts by client, in order, with 0 for a weight that is not finite."""
    known = sorted(verdicts.items())
    return {i: v if math.isfinite(v.weight) else dataclasses.replace(v, weight=0.0) for i, v in known}
