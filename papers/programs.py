"""What the program of a paper's authors runs, compared with what the experiments here run.

Each paper with a program has one table (`program.py` of its package). A row names a setting of the program and a
reader of the same setting of a `Run`; the values in the table are read from the runs of the experiments.  A row whose
runs differ from the program says why.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.experiments.papers.comparison import Table
from phalanx.experiments.papers.experiment import SCALES, Context, Exhibit, Scale
from phalanx.experiments.papers.rendering import Rendering
from phalanx.runs.plan import Run

ASPECTS = (
    "scaling",
    "padding",
    "initialisation",
    "batch",
    "epochs",
    "rate",
    "decay of the rate",
    "evaluation",
    "norm limit",
)  # that each table has a row for
Runs = Callable[[Scale, int], Mapping[str, Run]]


@dataclass(frozen=True)
class Setting:
    """A setting of the program, and where it is in the runs.

    Args:
        what: one of `ASPECTS`, or another.
        program: what the program has, in words.
        field: of a `Run` as a path, such as "training.batch_size"; or a name of `READERS`.
        same: the values of that field that are the program's; empty if no value can be.
        why: why the runs at the paper's size have another value; "" if they have the program's.
        quick: why those at quick scale have; None if for the same reason.
    """

    what: str
    program: str
    field: str
    same: tuple[Any, ...]
    why: str = ""
    quick: str | None = None

    def values(self, runs: Mapping[str, Run]) -> list[Any]:
        """Return the different values of the field in some runs, without those of runs that do not have it."""
        found = (read(run, self.field) for run in runs.values())
        return sorted({repr(value): value for value in found if value is not MISSING}.values(), key=repr)

    def reason(self, scale: Scale) -> str:
        """Return why runs of a scale differ; "" if they do not."""
        return self.why if scale == "paper" or self.quick is None else self.quick


@dataclass(frozen=True)
class Program:
    """The settings of a program.

    Args:
        source: repository and version.
        covers: which runs the table is about, in words.
        paper: what of it the paper says, too.
        runs: these runs, for a scale and a seed.
        settings: its rows.
        notes: below the table.
    """

    source: str
    covers: str
    paper: str
    runs: Runs
    settings: Sequence[Setting]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def exhibit(self) -> Exhibit:
        """The table as an experiment that trains nothing."""
        title = f"Settings of the authors' program and of the runs: {self.covers}"
        return Exhibit(title, self.paper, dict.fromkeys(SCALES, 0.0), lambda scale, seed: {}, self._render)

    def _render(self, records: Mapping[str, object], context: Context) -> Rendering:
        return Rendering((self.table(),), notes=(f"Program: {self.source}.",))

    def table(self) -> Table:
        """Return the rows, with the values of the runs on both scales."""
        by_scale = {scale: self.runs(scale, 0) for scale in SCALES}
        rows = []
        for one in self.settings:
            ours = {scale: one.values(runs) for scale, runs in by_scale.items()}
            shown = [", ".join(map(_text, ours[scale])) or "-" for scale in ("paper", "quick")]
            why = " ".join(filter(None, (one.why, one.quick and f"Quick scale: {one.quick}")))
            rows.append([one.what, one.program, f"`{one.field}`", *shown, why])
        columns = ("setting", "program", "field", "ours, paper's size", "ours, quick scale", "why another")
        return Table("Settings", columns, rows, self.notes)


MISSING = object()


def read(run: Run, path: str) -> Any:
    """Return the value of a field; `MISSING` if the run does not have it.

    Data sets of which a part is drawn are looked through: "data.standardize" of `Subset(MNIST())` is that of `MNIST`.
    """
    return READERS[path](run) if path in READERS else _field(run, path)


def _field(run: Run, path: str) -> Any:
    value: Any = run
    for name in path.split("."):
        while not hasattr(value, name) and hasattr(value, "source"):
            value = value.source
        if not hasattr(value, name):
            return MISSING
        value = getattr(value, name)
    return value


def _rate(run: Run) -> float:
    return run.training.learning_rate(0)


def _decay(run: Run) -> float:
    """Return the factor on the learning rate from one round to the next that learns."""
    return round(run.training.learning_rate(2) / run.training.learning_rate(0), 4)


def _start(run: Run) -> str:
    return str(getattr(run.model, "start", "torch"))


def _tests(run: Run) -> str:
    count = _field(run, "data.tests")
    return "all test images" if count in (None, MISSING) else f"{count:,} test images"


def _padding(run: Run) -> int:
    found = _field(run, "data.padding")
    return 0 if found is MISSING else int(found)


READERS: Mapping[str, Callable[[Run], Any]] = {
    "training.learning_rate(0)": _rate,
    "training.learning_rate(2) / (0)": _decay,
    "model.start": _start,
    "data.tests": _tests,
    "data.padding": _padding,
}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
