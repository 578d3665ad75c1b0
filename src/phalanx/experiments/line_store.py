"""A store for many short runs: one file, with a line for each run."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from phalanx.experiments.trace import MOST, Trace
from phalanx.reading import from_json, lines_of
from phalanx.runs.canonical import source
from phalanx.runs.files import append, replacing
from phalanx.runs.plan import Run
from phalanx.runs.provenance import Provenance
from phalanx.wording import shown

DIGITS = 16  # of an identity
LONGEST = 200  # characters of an error


class Line(NamedTuple):
    """What a store of lines keeps of a run."""

    accuracy: float | None
    honest_excluded: int
    cpu_seconds: float
    origin: int
    error: str = ""


class _Written(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A line as it is in the file."""

    key: Annotated[str, Meta(min_length=DIGITS, max_length=DIGITS)]
    seed: int
    accuracy: Annotated[float, Meta(gt=-MOST, lt=MOST)] | None
    honest_excluded: Annotated[int, Meta(ge=0)]
    cpu_seconds: Annotated[float, Meta(ge=0, lt=MOST)]
    origin: Annotated[int, Meta(ge=0)]
    error: str = ""


class LineStore:
    """The records of many short runs in one file of JSON lines: a record is its outcome.

    A line is the first 16 digits of the run's identity, its seed, its accuracy at the end (null if it has none), the
    number of honest clients that were excluded, seconds of the processor, the number of the line of its origin, and why
    it failed if it did.  The settings of the run follow from its study, of which the identity is the digest.  A mapping
    in place of a list is an origin: the software and hardware of the runs that name its number.

    Args:
        path: of the file, which need not exist.
        any_numerics: whether runs are found that this library may compute with other bits.
        failed: whether runs without an accuracy are read; if not, they are carried out again. Of several lines for one
            run, the last counts.

    Raises:
        ValueError: the file holds something else.
    """

    keeps_failures = True

    def __init__(self, path: Path, *, any_numerics: bool = False, failed: bool = True) -> None:
        self.file, self.folder, self.origins, self._any = path, path.parent, list[Provenance](), any_numerics
        self._lines = dict[str, Line]()
        for number, text in enumerate(_lines(path), 1):
            try:
                if text.startswith("{"):
                    self.origins.append(Provenance.read(from_json(text.encode(), dict)))
                    continue
                found = from_json(text.encode(), _Written)
                self.origins[found.origin]
            except (ValueError, IndexError, TypeError) as error:
                raise ValueError(f"{path}, line {number}, is no record: {error}. Restore the file.") from error
            self._lines[found.key] = Line(*msgspec.structs.astuple(found)[2:])
            if not failed and found.accuracy is None:
                del self._lines[found.key]

    def __len__(self) -> int:
        return len(self._lines)

    def find(self, plan: Run) -> tuple[Trace | None, str]:
        """Return the record of a run, as far as the line has it; see `Records`."""
        if (line := self._lines.get(key_of(plan.identity, own := source(plan)))) is None:
            return None, ""
        if (why := self.origins[line.origin].outdated(plan)) and not self._any:
            return None, why
        return Trace(
            name=plan.title,
            identity=plan.identity,
            source=own,
            settings=plan.settings,
            seed=plan.seed,
            clients=plan.population,
            status="failed" if line.error else "finished",
            error=line.error or None,
            provenance=self.origins[line.origin],
            wall_seconds=line.cpu_seconds,
            curves={"accuracy": (line.accuracy,), "honest_excluded": (line.honest_excluded,)},
            byzantine=plan.drawn_attackers,
        ), ""

    def keep(self, trace: Trace, cpu_seconds: float | None = None) -> None:
        """Add a line, at the end of the file, so that a kill loses no other."""
        lines = list[Any]()
        if trace.provenance not in self.origins:
            self.origins.append(trace.provenance)
            lines.append(trace.provenance.form)
        error = shown((trace.error or "failed").partition("\n")[0], LONGEST) if trace.failed else ""
        accuracy, origin = None if trace.failed else trace.final(), self.origins.index(trace.provenance)
        seconds, key = trace.wall_seconds if cpu_seconds is None else cpu_seconds, key_of(trace.identity, trace.source)
        line = Line(accuracy, trace.honest_excluded, seconds, origin, error)
        lines.append([key, trace.seed, *line[:4], *filter(None, [error])])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines)
        append(self.file, text.encode(), durable=False)
        self._lines[key] = line

    def underway(self, plan: Run) -> None:
        """Return None: short runs have no checkpoints."""

    def tidy(self, plan: Run) -> None:
        """Do nothing: short runs have no checkpoints."""

    def seconds(self) -> float:
        """Return the seconds of the processor of all runs."""
        return sum(line.cpu_seconds for line in self._lines.values())


def key_of(identity: str, own: str | None) -> str:
    """Return the key of a run in a store of lines: the first digits of its identity.

    Args:
        identity: of the run.
        own: digest of the source of a user's own classes, which goes into the key; None if it uses none.
    """
    return (hashlib.sha256(f"{identity} {own}".encode()).hexdigest() if own else identity)[:DIGITS]


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; remove a last line that a kill has cut."""
    if not path.is_file():
        return
    try:
        text = lines_of(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} holds no records: its text is not UTF-8. Restore the file.") from error
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        with replacing(path) as file:
            file.write(text.encode())
    yield from text.splitlines()
