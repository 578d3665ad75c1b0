"""What happened: one JSON line per step, for people and for pandas.

    pandas.read_json("history.jsonl", lines=True)

Each line has

* `step`, `version` (server updates) and `seconds` (on the run's clock);
* where the model was evaluated, `accuracy`, `loss`, `worst_client_accuracy`, `client_accuracy` and, with an attacker
  who wants something, `attack_success`: `phalanx.evaluation.figures` says what they are;
* `state`, the figures of the algorithm itself;
* `verdicts`, one for each client that took part; `refused` and `lost`, clients with the reason.

A number that is not finite is null.  Line 0 is the model before training.  A line that repeats the step of the line
above stands for a wait that brought nothing but refused or lost replies, or, as the last line, for the evaluation of
the last state.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from phalanx.core import AnyState, Progress, Verdict

Line = dict[str, Any]


class History:
    """An observer that writes down every step.

    Args:
        observed: fields of the algorithm's state to write.
        measure: evaluates a state; called before the first and after each step, returns what to write of it.
        path: a file that takes each line at once, so that a killed run leaves all its steps. Open while the history
            is entered as a context.
    """

    def __init__(
        self,
        observed: Iterable[str] = (),
        measure: Callable[[Progress], Mapping[str, Any]] = lambda progress: {},
        path: Path | None = None,
    ) -> None:
        self.lines = list[Line]()
        self._observed, self._measure, self._path = tuple(observed), measure, path
        self._file: TextIO | None = None
        self._last: Progress | None = None

    def __enter__(self) -> "History":
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        state, updates = progress.state, progress.updates
        line: Line = {"step": progress.step, "version": state.version, "seconds": progress.now}
        if updates is not None or progress.step == 0:
            line |= self._measure(progress)
        if updates is not None:
            line["state"] = {name: getattr(state, name) for name in self._observed}
            line["verdicts"] = {i: state.verdicts[i]._asdict() for i in updates.clients if i in state.verdicts}
        line |= {name: dict(what) for name, what in (("refused", progress.refused), ("lost", progress.lost)) if what}
        self._last = progress
        self._write(line)

    def conclude(self, measure: Callable[[AnyState], Mapping[str, Any]]) -> None:
        """Measures the last state if that has not been done, as when a run ends at a time and not at a step."""
        last = self._last
        if last is not None and "accuracy" not in self.lines[-1]:
            line = {"step": last.step, "version": last.state.version, "seconds": last.now}
            self._write(line | dict(measure(last.state)))

    def _write(self, line: Line) -> None:
        line = plain(line)
        self.lines.append(line)
        if self._file is not None:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()


def plain(value: Any) -> Any:
    """The value in the types of JSON: keys as text, sets as sorted lists, numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True)
class Record:
    """All that is known about a run that ended, or was stopped.

    Args:
        name: for people.
        config: the run, in the form of its configuration file.
        history: the lines.
        summary: what came out, and where; see `phalanx.runs`.
    """

    name: str
    config: dict[str, Any]
    history: list[Line]
    summary: dict[str, Any]

    def save(self, folder: Path) -> None:
        """Writes config and summary beside the history that the run wrote itself."""
        _write_json(folder / "run.json", self.config)
        _write_json(folder / "summary.json", {"name": self.name, **self.summary})

    @classmethod
    def load(cls, folder: Path) -> "Record":
        """Reads what `save` and the run have written.

        Raises:
            FileNotFoundError: the folder holds no finished run.
        """
        if missing := [n for n in ("run.json", "summary.json", "history.jsonl") if not (folder / n).is_file()]:
            raise FileNotFoundError(f"{folder} holds no finished run: {', '.join(missing)} missing.")
        summary = json.loads((folder / "summary.json").read_text())
        lines = (folder / "history.jsonl").read_text().splitlines()
        config = json.loads((folder / "run.json").read_text())
        return cls(summary.pop("name"), config, [json.loads(line) for line in lines], summary)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(plain(value), indent=1, allow_nan=False) + "\n")
    partial.replace(path)


@dataclass(frozen=True)
class Removal:
    """When and why a client was shut out, as far as the history tells."""

    step: int
    reason: str


def removals(history: Iterable[Line]) -> dict[int, Removal]:
    """The clients whose last word from the server was a rejection or refusal, and the step from which on it was so."""
    out = dict[int, Removal]()
    for line in history:
        for client, verdict in line.get("verdicts", {}).items():
            if Verdict(**verdict).accepted:
                out.pop(int(client), None)
            else:
                out.setdefault(int(client), Removal(line["step"], verdict["reason"]))
        for client, reason in line.get("refused", {}).items():
            out.setdefault(int(client), Removal(line["step"], f"refused: {reason}"))
    return out
