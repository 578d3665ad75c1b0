"""What happened: one JSON line per step, for people and for pandas.

    pandas.read_json("history.jsonl", lines=True)

Each line has

* `step`, `version` (server updates) and `seconds` (on the run's clock);
* where the model was evaluated, `accuracy`, `loss`, `worst_client_accuracy`, `received_accuracy`, `client_accuracy`
  and, with an attacker who wants something, `attack_success` and `class_accuracy`: `phalanx.training.evaluation.figures` says
  what they are; where clients are in groups, `group_accuracy` and `group_loss`, and `chosen`, which of several models
  each client took;
* `state`, the figures of the algorithm itself;
* `verdicts`, one for each client whose update came, or was decided, in this step;
* `versions`, for each client whose update came in this step, the version of the model that it answers; only where
  updates come one by one, or some of a round are late: the age of an update is the `version` of the line above, less
  this;
* `refused` and `lost`, clients with the reason.

A number that is not finite is null.  Line 0 is the model before training.  A line that repeats the step of the line
above stands for a wait that brought nothing but refused or lost replies, or, as the last line, for the evaluation of
the last state.  Who is refused on line 0 was not enrolled: it never takes part.

Three words: a client is *removed* if it is not asked again, by a verdict that is final; an update is *rejected* if the
algorithm did not use it, and *refused* if the guard did not let it in.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from phalanx.core import AnyState, Progress, Verdict
from phalanx.runs.canonical import digest

Line = dict[str, Any]


class History:
    """An observer that writes down every step.

    Args:
        observed: fields of the algorithm's state to write.
        measure: evaluates a state; called before the first and after each step, returns what to write of it.
        path: a file that takes each line at once, so that a killed run leaves all its steps. It is made with the first
            line, and open until the context is left as which the history is entered.
        prepare: called before the file is made.
        lines: those of a resumed run so far. Its first call only says where it goes on.
    """

    def __init__(
        self,
        observed: Iterable[str] = (),
        measure: Callable[[Progress], Mapping[str, Any]] = lambda progress: {},
        path: Path | None = None,
        prepare: Callable[[], None] = lambda: None,
        lines: Iterable[Line] = (),
    ) -> None:
        self.lines = list(lines)
        self._digest = hashlib.sha256("".join(map(_as_json, self.lines)).encode())
        self._begun = False
        self._observed, self._measure = tuple(observed), measure
        self._path, self._prepare = path, prepare
        self._file: TextIO | None = None
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
        state, updates = progress.state, progress.updates
        line: Line = {"step": progress.step, "version": state.version, "seconds": progress.now}
        if updates is not None or progress.step == 0:
            line |= self._measure(progress)
        if updates is not None:
            line["state"] = {name: getattr(state, name) for name in self._observed}
            line["verdicts"] = {i: verdict._asdict() for i, verdict in sorted(state.verdicts.items())}
            if len(updates) == 1 or (before is not None and min(updates.versions) < before.state.version):
                line["versions"] = dict(zip(updates.clients, updates.versions, strict=True))
        line |= {name: dict(what) for name, what in (("refused", progress.refused), ("lost", progress.lost)) if what}
        self._write(line)

    def conclude(self, measure: Callable[[AnyState, frozenset[int]], Mapping[str, Any]]) -> None:
        """Measures the last state if that has not been done, as when a run ends at a time and not at a step."""
        last = self._last
        if last is not None and "accuracy" not in self.lines[-1]:
            line = {"step": last.step, "version": last.state.version, "seconds": last.now}
            self._write(line | dict(measure(last.state, last.enrolled)))

    def mark(self) -> tuple[int, str]:
        """How many lines there are, and their SHA-256 as `read_lines` computes it."""
        return len(self.lines), self._digest.hexdigest()

    def sync(self) -> None:
        """Has the lines on the disk, where a loss of power does not reach them."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def _begin(self) -> None:
        """Makes the file, with the lines of a resumed run, in place of the one that may hold more."""
        self._begun = True
        if self._path is not None:
            self._prepare()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _write(self._path, "".join(map(_as_json, self.lines)))
            self._file = self._path.open("a", encoding="utf-8")

    def _write(self, line: Line) -> None:
        line = plain(line)
        text = _as_json(line)
        if not self._begun:
            self._begin()
        if self._file is not None:
            self._file.write(text)
            self._file.flush()
        self._digest.update(text.encode())
        self.lines.append(line)


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


# What is kept of a run

CONFIG, HISTORY, SUMMARY, REPORT = "run.json", "history.jsonl", "summary.json", "report.html"
CHECKPOINT = "checkpoint"  # of a run that is not over; see `phalanx.runs.checkpoint`
SUMMARY_HOLDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "identity": str,
    "config_digest": str,
    "lines": int,
    "status": str,
    "wall_seconds": (int, float),
    "final": dict,
    "best": dict,
    "clients": dict,
    "detection": dict,
    "rejected": dict,
    "environment": dict,
}


@dataclass(frozen=True)
class Record:
    """All that is known about a run that ended, or was stopped.

    Args:
        name: for people.
        config: the run, in the form of its configuration file.
        history: the lines.
        summary: what came out, and where; see `phalanx.runs.summary`.
    """

    name: str
    config: dict[str, Any]
    history: list[Line]
    summary: dict[str, Any]

    @staticmethod
    def begin(folder: Path, config: Mapping[str, Any], *, resumed: bool = False) -> None:
        """Makes `folder` ready for a run: what another one left there goes, its summary first.

        So whenever a run is killed, its folder holds either no summary, or all of one run.

        Args:
            folder: the run's.
            config: the run's.
            resumed: whether the run goes on from the checkpoint and the history that are there.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name in (SUMMARY, REPORT) if resumed else (SUMMARY, REPORT, CHECKPOINT, HISTORY):
            (folder / name).unlink(missing_ok=True)
        _write(folder / CONFIG, _as_json(plain(config), indent=1))

    def save(self, folder: Path) -> None:
        """Writes config and summary beside the history that the run wrote itself, and that too if it is not whole."""
        folder.mkdir(parents=True, exist_ok=True)
        history = "".join(map(_as_json, self.history))
        path = folder / HISTORY
        if not path.is_file() or path.stat().st_size != len(history):  # an interrupt can fall between two lines
            _write(path, history)
        _write(folder / CONFIG, _as_json(plain(self.config), indent=1))
        kept = {"lines": len(self.history), "config_digest": digest(plain(self.config))}
        summary = {"name": self.name, **kept, **self.summary}
        _write(folder / SUMMARY, _as_json(plain(summary), indent=1))

    @classmethod
    def load(cls, folder: Path) -> "Record":
        """Reads what `save` and the run have written.

        Raises:
            FileNotFoundError: the folder holds no run that ended.
            ValueError: a file is not what it should be, or is of another run than the rest.
        """
        if missing := [name for name in (CONFIG, SUMMARY, HISTORY) if not (folder / name).is_file()]:
            hint = "Name a folder that `phalanx run` has written, such as runs/NAME."
            if CONFIG not in missing:
                command = f"phalanx run --config {folder / CONFIG}"
                saved = (folder / CHECKPOINT).is_file()
                remedy = f"finish it: {command} --folder {folder}" if saved else f"repeat it: {command}"
                if "engine" in _read(folder / CONFIG, "a run's configuration"):
                    remedy = "go on, start its server again, with this folder."
                hint = f"Its run was killed, or goes on. To {remedy}"
            raise FileNotFoundError(f"{folder} holds no finished run: {', '.join(missing)} missing. {hint}")
        config = _read(folder / CONFIG, "a run's configuration")
        summary = _read(folder / SUMMARY, "a run's summary", SUMMARY_HOLDS)
        history = _lines(folder / HISTORY)
        told = summary.pop("lines")
        if not history or len(history) != told:
            why = f"it has {len(history)} lines, and {SUMMARY} tells of {told}"
            raise _unusable(folder / HISTORY, "the history of this run", why)
        if digest(config) != summary.pop("config_digest"):
            raise _unusable(folder / SUMMARY, "the summary of this run", "run.json is that of another one")
        return cls(summary.pop("name"), config, history, summary)


def read_lines(path: Path, count: int, digest: str) -> list[Line]:
    """The first lines of a history, whatever follows.

    Args:
        path: of the file.
        count: how many.
        digest: their SHA-256.

    Raises:
        ValueError: they are not there, or are others.
    """
    lines = _lines(path, count) if path.is_file() else []
    if hashlib.sha256("".join(map(_as_json, lines)).encode()).hexdigest() != digest:
        raise _unusable(path, "the history of this run", f"its first {count} lines are not those of its checkpoint")
    return lines


def _lines(path: Path, count: int | None = None) -> list[Line]:
    return [
        _parsed(line, path, "a run's history", {"step": int}, f"line {number}: ")
        for number, line in enumerate(_text(path).splitlines()[:count], 1)
    ]


def _read(path: Path, what: str, holds: Mapping[str, type | tuple[type, ...]] | None = None) -> dict[str, Any]:
    return _parsed(_text(path), path, what, holds or {})


def _parsed(
    text: str, path: Path, what: str, holds: Mapping[str, type | tuple[type, ...]], where: str = ""
) -> dict[str, Any]:
    """The mapping that a text holds; ValueError if it does not, or lacks something."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _unusable(path, what, f"{where}{error}") from error
    if not isinstance(value, dict):
        raise _unusable(path, what, f"{where}a mapping was expected, got {type(value).__name__}")
    if lacking := [name for name, kind in holds.items() if not isinstance(value.get(name), kind)]:
        raise _unusable(path, what, f"{where}{', '.join(lacking)} missing or of a wrong type")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _unusable(path, "text", str(error)) from error


def _unusable(path: Path, what: str, why: str) -> ValueError:
    return ValueError(f"{path} is not {what}: {why}. Delete the folder, or repeat the run with `phalanx run --again`.")


def _as_json(value: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


# What became of clients and of their updates


@dataclass(frozen=True)
class Removal:
    """When and why a client was removed: from then on it is not asked."""

    step: int
    reason: str


@dataclass(frozen=True)
class Refusals:
    """How often the guard refused what a client sent, and why it did the last time."""

    times: int
    reason: str


def removals(history: Iterable[Line]) -> dict[int, Removal]:
    """The clients that a verdict removed for good, with the step from which on it was so."""
    out = dict[int, Removal]()
    for line in history:
        for client, told in line.get("verdicts", {}).items():
            verdict = Verdict(**told)
            if verdict.final:
                out.setdefault(int(client), Removal(line["step"], verdict.reason))
            elif verdict.accepted:
                out.pop(int(client), None)
    return out


def refusals(history: Sequence[Line]) -> dict[int, Refusals]:
    """The clients of which something was refused that they sent."""
    out = dict[int, Refusals]()
    for line in history[1:]:
        for name, reason in line.get("refused", {}).items():
            before = out.get(int(name))
            out[int(name)] = Refusals(before.times + 1 if before else 1, reason)
    return out


def not_enrolled(history: Sequence[Line]) -> dict[int, str]:
    """The clients that never took part, because of what they declared, with the reason."""
    return {int(client): reason for line in history[:1] for client, reason in line.get("refused", {}).items()}


def rejected(history: Sequence[Line], clients: Set[int]) -> float | None:
    """The share of the updates of some clients that were rejected or refused; None if they sent none.

    What counts is whether an update was used: a second copy of one that was is no update of its own.
    """
    unused = list[bool]()
    for line in history[1:]:
        fates = dict.fromkeys(line.get("refused", {}), False)
        told = line.get("verdicts", {}).items()
        fates |= {client: verdict["accepted"] for client, verdict in told if not verdict.get("waits")}
        unused += [not used for client, used in fates.items() if int(client) in clients]
    return sum(unused) / len(unused) if unused else None
