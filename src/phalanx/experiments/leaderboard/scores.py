"""The records of a tier: a file of JSON lines, one short line for each run.

A line has the columns of COLUMNS: the first 16 digits of the run's identity, its seed, its accuracy, the number of
honest clients that were excluded, seconds of the processor, the number of the line of its origin, and why it failed if
it did.  The settings of the run follow from the definition of the tier, of which the identity is the digest.  A mapping
in place of a list is an origin: the software and hardware of the runs that name its number.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.runs.canonical import source
from phalanx.runs.plan import Run
from phalanx.runs.provenance import NUMERICS, Provenance

COLUMNS = ("identity", "seed", "accuracy", "honest_excluded", "cpu_seconds", "origin", "error")
DIGITS = 16  # of an identity


class Score(NamedTuple):
    """The outcome of a run.

    Args:
        accuracy: at the end, from 0 to 1; None if the run failed, or it was not finite.
        excluded: number of honest clients that were excluded.
        seconds: of the processor.
        error: why the run failed; "" if it did not.
    """

    accuracy: float | None
    excluded: int
    seconds: float
    error: str = ""


def key_of(plan: Run) -> str:
    """Return the key of a run: its identity, with the source of a user's own classes if it has any."""
    own = source(plan)
    return (hashlib.sha256(f"{plan.identity} {own}".encode()).hexdigest() if own else plan.identity)[:DIGITS]


class Scores:
    """The scores of runs in a file.

    Args:
        path: of the file, which need not exist.
        any_numerics: whether scores of other numerics versions than this library's are read as well.
        failed: whether runs without an accuracy are read; if not, they are carried out again. Of several lines for one
            run, the last counts.
    """

    def __init__(self, path: Path, *, any_numerics: bool = False, failed: bool = True) -> None:
        self.path, self.origins = path, list[Provenance]()
        self._known = dict[str, Score]()
        self._of = dict[str, int]()  # number of the origin of each
        for number, line in enumerate(_lines(path), 1):
            try:
                form = json.loads(line)
                if isinstance(form, dict):
                    self.origins.append(Provenance.read(form))
                    continue
                key, _, accuracy, excluded, seconds, origin, *error = form
                score, made = Score(accuracy, excluded, seconds, *error), self.origins[origin]
            except (ValueError, TypeError, IndexError) as error:
                raise ValueError(f"{path}, line {number}, is no score: {error}. Restore the file.") from error
            if not any_numerics and made.numerics != NUMERICS:
                continue
            self._known[key], self._of[key] = score, origin
            if not failed and score.accuracy is None:
                del self._known[key]

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: str) -> Score | None:
        """Return the score of a run; None if there is none."""
        return self._known.get(key)

    def origin(self, key: str) -> Provenance:
        """Return the software and hardware of a run."""
        return self.origins[self._of[key]]

    def keep(self, key: str, seed: int, score: Score, made: Provenance) -> None:
        """Add a score, at the end of the file, so that a kill loses no other."""
        lines = list[Any]()
        if made not in self.origins:
            self.origins.append(made)
            lines.append(made.form)
        error = [score.error] if score.error else []
        lines.append([key, seed, score.accuracy, score.excluded, score.seconds, self.origins.index(made), *error])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines))
        self._known[key], self._of[key] = score, lines[-1][5]

    def seconds(self) -> float:
        """Return the processor's seconds for all scores."""
        return sum(score.seconds for score in self._known.values())


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; remove a last line that a kill has cut."""
    if not path.is_file():
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} holds no scores: its text is not UTF-8. Restore the file.") from error
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    yield from text.splitlines()


def mean(scores: Sequence[Score | None]) -> float | None:
    """Return the mean accuracy; None if one is missing or failed."""
    values = [score.accuracy for score in scores if score is not None and score.accuracy is not None]
    return sum(values) / len(values) if values and len(values) == len(scores) else None
