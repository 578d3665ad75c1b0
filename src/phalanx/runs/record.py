"""The record of a run: its configuration, its history, its summary and its models, in a folder.

A folder holds `run.json`, `history.jsonl` (a `StepRecord` on each line) and `summary.json` (a `Summary`), and models as
`phalanx.runs.models` describes.  Folders of schema 1 are read as well.

    pandas.read_json("history.jsonl", lines=True)
"""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from torch import Tensor, nn
from typing_extensions import override

from phalanx.data import Schema, TableReading
from phalanx.data.tables import Dialect
from phalanx.errors import NotInRecordError
from phalanx.reading import LARGEST_PART, contents, from_json, lines_of, opened
from phalanx.runs import schema_v1
from phalanx.runs.canonical import digest
from phalanx.runs.display import brief, frame, html, plot
from phalanx.runs.files import HISTORY, clear_partial, inside, write_inside
from phalanx.runs.models import BEST, INDEX, Models, forget
from phalanx.runs.predicting import meaning, predictions
from phalanx.runs.schema import StepRecord, Summary, plain, to_json
from phalanx.runs.seal import UNSEALED, Examination, HashChain, Mark, SealError, check, unseal
from phalanx.runs.steps import StoredSteps, read_step
from phalanx.runs.updates import forget_updates
from phalanx.runs.witnesses import WITNESSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

CONFIG, SUMMARY, REPORT = "run.json", "summary.json", "report.html"
CHECKPOINT = "checkpoint"  # of a run that is not over; see `phalanx.runs.checkpoint`
NOT_COMPARED = Examination(sealed=False)
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """A run that ended, or was stopped.

    Args:
        config: the run, in the form of its configuration file.
        history: the steps. A long history that was written to a folder stays there, and is read as it is looked at.
        summary: the outcome.
        models: the models of the end; None if there are none.
        best: the models of the best evaluation; None if they were not kept.
        seal: how its folder compares with its seal; None if it was not read from a folder.
    """

    config: dict[str, Any]
    history: Sequence[StepRecord]
    summary: Summary
    models: Models | None = field(default=None, compare=False)
    best: Models | None = field(default=None, compare=False)
    seal: Examination | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.summary.name

    def model(self, client: int | None = None, *, module: nn.Module | None = None, best: bool = False) -> nn.Module:
        """Return a model of the run as a module, in evaluation mode, on the CPU.

        Args:
            client: number of the client whose model it is; None for the global model.
            module: receives the values. Needed only if the network is not known, as of real clients.
            best: take the model of the best evaluation, which `SavedModels(best=True)` keeps, and not that of the end.

        Raises:
            NotInRecordError: there is no such model.
            ValueError: the network is not known, or does not fit.
        """
        return self.kept(best=best).module(client, module)

    def inputs(self, frame: "DataFrame") -> Tensor:
        """Return what a model of the run takes for each row of a table, for a run that was trained on a table file.

        Args:
            frame: of pandas, with the columns of that file; they are scaled as in training.

        Raises:
            NotInRecordError: the record does not say how a table was read.
            ValueError: a column is missing or has missing values, cannot become numbers, or holds an unknown text.
        """
        return self.schema.inputs(frame)

    def predict(
        self, frame: "DataFrame", client: int | None = None, *, module: nn.Module | None = None, best: bool = False
    ) -> "DataFrame":
        """Return a prediction for each row of a table, for a run that was trained on a table file.

        Args:
            frame: of pandas, with the columns of that file; that of the labels or targets is not needed.
            client: number of the client whose model predicts; None for the global model.
            module: see `model`.
            best: take the model of the best evaluation.

        Returns:
            With the index of `frame`: `prediction`, and of classes `probability of CLASS` for each.

        Raises:
            InfeasibleError: the task of the run is neither `Classification` nor `Regression`.
            NotInRecordError: there is no such model, or the run was not trained on a table file.
            ValueError: the table does not fit the schema.
        """
        schema = self.schema
        outputs = meaning(schema, self.config)
        return predictions(self.kept(best=best), schema, outputs, frame, client=client, module=module)

    @property
    def schema(self) -> Schema:
        """The schema of the table file that the run was trained on.

        Raises:
            NotInRecordError: it was trained on none, or no models were kept.
        """
        models = self.kept()
        if models.schema is not None:
            if models.schema.images is not None:
                raise NotInRecordError(f"The run {self.name} was trained on images, and not on a table file.")
            return models.schema
        if models.index.inputs is None or (table := models.index.inputs.table) is None:
            raise NotInRecordError(f"The run {self.name} was not trained on a table file (CSV, Parquet).")
        return Schema.of(_as_configured(table, self.config))

    def kept(self, *, best: bool = False) -> Models:
        """Return the models of the end, or those of the best evaluation.

        Raises:
            NotInRecordError: they were not kept.
        """
        found = self.best if best else self.models
        if found is None:
            which = (
                "the models of the best evaluation: set SavedModels(best=True), or --keep_best"
                if best
                else "its models: repeat it with this version of Phalanx"
            )
            raise NotInRecordError(f"The run {self.name} has not kept {which}.")
        return found

    def frame(self, by: Literal["step", "client"] = "step") -> "DataFrame":
        """Return the history as a table of pandas.

        Args:
            by: "step", one row for each step: its metrics, and how many updates were used, filtered, invalid or lost;
                or "client", one row for each client and step: the fate of its update (used, filtered, waits, invalid or
                lost) with weight, score and reason, and the accuracy of its model.

        Raises:
            ModuleNotFoundError: pandas is not installed.
        """
        return frame(self.history, by)

    def plot(self, *metrics: str) -> "Figure":
        """Return a picture of metrics over steps, of matplotlib; notebooks show it, `savefig` writes it.

        Args:
            metrics: "accuracy", "loss", "worst_client_accuracy" or "attack_success"; the first two if none is given.
        """
        return plot(self.name, self.history, metrics or ("accuracy", "loss"))

    def _repr_html_(self) -> str:
        return html(self.name, self.summary, self.history)

    @override
    def __repr__(self) -> str:
        return brief(self.name, self.summary)

    @staticmethod
    def begin(folder: Path, config: Mapping[str, Any], *, resumed: bool = False) -> None:
        """Make `folder` ready for a run: remove the files of another one, its seal and its summary first.

        So whenever a run is killed, its folder holds either no summary, or all of one run.

        Args:
            folder: of the run.
            config: of the run.
            resumed: whether the run goes on from the checkpoint and the history in the folder.
        """
        folder.mkdir(parents=True, exist_ok=True)
        unseal(folder)
        for name in (
            (SUMMARY, UNSEALED, REPORT) if resumed else (SUMMARY, UNSEALED, REPORT, CHECKPOINT, HISTORY, WITNESSES)
        ):
            (folder / name).unlink(missing_ok=True)
        forget(folder, best=not resumed)
        if not resumed:
            forget_updates(folder)
        clear_partial(folder)
        write_inside(folder, CONFIG, _config(config))

    def save(self, folder: Path) -> None:
        """Write configuration and summary, and the history too if the run did not write all of it."""
        folder.mkdir(parents=True, exist_ok=True)
        path, size = folder / HISTORY, sum(len(to_json(step)) + 1 for step in self.history)
        if not path.is_file() or path.stat().st_size != size:  # an interrupt can fall between two lines
            write_inside(folder, HISTORY, as_lines(self.history))
        write_inside(folder, CONFIG, _config(self.config))
        write_inside(folder, SUMMARY, msgspec.json.format(to_json(self.summary), indent=1) + b"\n")

    @classmethod
    def load(cls, folder: Path | str, *, trust: bool = False, unsealed: bool = False) -> "Record":
        """Read the record of a run that ended.

        Args:
            folder: of the run.
            trust: whether `model` may import a network from elsewhere that the record names, and run its code.
            unsealed: whether it is read even if it was changed since the run ended; `seal` says what was. Folders
                without a seal are always read.

        Raises:
            SealError: the folder was changed since the run ended.
            FileNotFoundError: the folder holds no run that ended.
            ValueError: a file is damaged, or belongs to another run than the rest.
        """
        folder = Path(folder)
        seal = check(folder, unsealed=unsealed)
        if missing := [name for name in (CONFIG, SUMMARY, HISTORY) if not (folder / name).is_file()]:
            raise FileNotFoundError(_unfinished(folder, missing))
        for name in (CONFIG, SUMMARY, HISTORY):
            inside(folder, name)
        config = _read(folder / CONFIG, "a run's configuration", _configuration, seal)
        summary = _read(folder / SUMMARY, "a run's summary", _summary, seal)
        history = [*_steps(folder / HISTORY, seal)]
        if not history or len(history) != summary.lines:
            why = f"it has {len(history)} lines, and {SUMMARY} says {summary.lines}"
            raise _unusable(folder / HISTORY, "the history of this run", why)
        if digest(config) != summary.config_digest:
            raise _unusable(folder / SUMMARY, "the summary of this run", f"{CONFIG} is that of another one")
        models, best = (
            Models.load(folder / below, trust=trust, sure=partial(_sure, seal, below))
            if (folder / below / INDEX).is_file()
            else None
            for below in ("", BEST)
        )
        return cls(config, history, summary, models, best, seal)


def _sure(seal: Examination, below: str, name: str, data: bytes) -> bytes:
    return seal.sure(f"{below}/{name}".lstrip("/"), data)


def _as_configured(table: TableReading, config: Mapping[str, Any]) -> TableReading:
    """Return how a table was read, with what a record without a `schema.json` says in its configuration only."""
    given = dict((config.get("data") or {}).get("init_args", {}))
    known = {name: given[name] for name in ("separator", "decimal", "thousands") if name in given}
    missing = given.get("missing")
    return replace(
        table,
        label=given.get("label", ""),
        owner=given.get("owner"),
        dropped=tuple(given.get("drop", ())),
        dialect=Dialect(**known, missing=None if missing is None else tuple(missing)),
    )


def as_lines(history: Iterable[StepRecord]) -> bytes:
    """Return the text of `history.jsonl`."""
    return b"".join(to_json(step) + b"\n" for step in history)


def read_lines(path: Path, mark: Mark) -> StoredSteps:
    """Return the first steps of a history, which stay in its file.

    Args:
        path: of the file.
        mark: their number, and the last link of their chain.

    Raises:
        ValueError: the file does not begin with these lines.
    """
    found, lengths = HashChain(), array("Q")
    if path.is_file():
        with opened(path) as file:
            for line in islice(file, mark.lines):
                found.add(line)
                lengths.append(len(line) - 1)
    if found.mark != mark:
        why = f"its first {mark.lines} lines are not those of its checkpoint"
        raise _unusable(path, "the history of this run", why)
    return StoredSteps(path, lengths)


def _summary(text: bytes) -> Summary:
    try:
        return from_json(text, Summary)
    except ValueError:
        if (older := schema_v1.summary_of(text)) is not None:
            return older
        raise


def _steps(path: Path, seal: Examination) -> Iterator[StepRecord]:
    for number, line in enumerate(seal.sure(HISTORY, lines_of(path)).splitlines(), 1):
        try:
            yield read_step(line)
        except ValueError as error:
            raise _unusable(path, "a run's history", f"line {number}: {error}") from error


def configuration_of(folder: Path) -> dict[str, Any]:
    """Return the configuration in the folder of a run; raise `ValueError` if it is damaged."""
    return _read(inside(folder, CONFIG), "a run's configuration", _configuration)


def summary_of(folder: Path) -> Summary:
    """Return the summary in the folder of a run, which may not be that of its other files.

    Raises:
        OSError: there is none.
        ValueError: it is damaged.
    """
    return _read(inside(folder, SUMMARY), "a run's summary", _summary)


def _configuration(text: bytes) -> dict[str, Any]:
    return from_json(text, dict)


def _config(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain(config), indent=1, allow_nan=False) + "\n").encode()


def _read(path: Path, what: str, parse: Callable[[bytes], T], seal: Examination = NOT_COMPARED) -> T:
    try:
        return parse(seal.sure(path.name, contents(path, LARGEST_PART)))
    except SealError:
        raise
    except ValueError as error:
        raise _unusable(path, what, str(error)) from error


def _unfinished(folder: Path, missing: list[str]) -> str:
    """Return why a folder holds no finished run, and what to do."""
    inner = sorted(path.parent for path in folder.glob(f"*/{SUMMARY}"))
    hint = f"Name a folder that `phalanx run` has written, such as {inner[0] if inner else 'runs/NAME'}."
    if CONFIG not in missing:
        command = f"phalanx run --config {folder / CONFIG}"
        saved = (folder / CHECKPOINT).is_file()
        remedy = f"finish it: {command} --folder {folder}" if saved else f"repeat it: {command}"
        config = _read(folder / CONFIG, "a run's configuration", _configuration)
        if "engine" in config:
            remedy = "go on, start its server again, with this folder."
        hint = f"Its run was killed, or goes on. To {remedy}"
    return f"{folder} holds no finished run: {', '.join(missing)} missing. {hint}"


def _unusable(path: Path, what: str, why: str) -> ValueError:
    return ValueError(
        f"{path} is not {what}: {why.rstrip('.')}. Delete the folder, or repeat the run with `phalanx run --again`."
    )
