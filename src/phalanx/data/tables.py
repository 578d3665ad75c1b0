"""Tables as tensors: a row is an example, a column its label, its owner, or one of its inputs.

Columns of numbers and of dates become one input each, columns of text or of a pandas category one per value (one-hot).
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phalanx.data.findings import (
    MISSING_WORDS,
    SOME_VALUES,
    Finding,
    as_number_column,
    as_texts,
    fills,
    is_number,
    leaks,
    merged,
    near,
    written,
    zeros,
)
from phalanx.data.table_ceilings import TooLargeError
from phalanx.data.table_dates import DATE, days_of, numbered, pattern_of
from phalanx.wording import plural, shown

FILE = "file of the row"  # a column that names the owner of each row
WHOLE = r"[+-]?(0|[1-9][0-9]*)"  # a number, and no code such as 01

LARGEST_WHOLE = 2**53  # above which not every whole number is one of float64
MOST_VALUES = 100  # of a column of text that becomes one-hot: with more it is an identifier, or a sentence

Name = str | int
Classes = Sequence[Name] | Mapping[str, Sequence[Name]]  # in the order of their numbers; or the labels that each joins
Joined = tuple[tuple[str, tuple[Name, ...]], ...]  # classes with the labels that each joins

Impute = Literal["refuse", "median", "indicator"]


@dataclass(frozen=True)
class InputColumn:
    """An input of a model that comes from a column of a table.

    Args:
        name: of the column.
        value: the text for which the input is 1, and 0 for every other; None: the column holds numbers.
        mean: what is subtracted from a number.
        deviation: what it is divided by then.
        fill: the number in place of a missing value, as in the table; None: missing values are refused.
        gap: whether the input is 1 where the value is missing, and 0 elsewhere.
        boolean: whether the numbers are true (1) and false (0).
        date: how the dates that the numbers are days of are written; empty if they are none.
    """

    name: Name
    value: str | None = None
    mean: float = 0.0
    deviation: float = 1.0
    fill: float | None = None
    gap: bool = False
    boolean: bool = False
    date: str = ""


@dataclass(frozen=True)
class Dialect:
    """How a file of text writes a table.

    Args:
        separator: what separates columns.
        decimal: the sign before decimals.
        thousands: the sign between groups of digits; None if there is none.
        missing: the words for a missing value, besides an empty cell; None: those that are usual.
    """

    separator: str = ","
    decimal: str = "."
    thousands: str | None = None
    missing: tuple[str, ...] | None = None


@dataclass(frozen=True)
class TargetScale:
    """The mean and the standard deviation of targets in training, in their own unit."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class TableReading:
    """How the rows of a table become inputs and labels, so that other rows can become the same.

    Args:
        columns: of the inputs, in their order; those of one column of text follow each other.
        labels: by number of the class; empty for targets.
        owners: by number of the owner; empty if the rows have none.
        target: mean and deviation of the targets in training; None for labels, or if nothing is scaled.
        label: the column of the labels or targets.
        owner: the column of the owners, if there is one.
        dropped: the columns that are not used.
        dialect: of the file.
        files: SHA-256 of the files with rows of the train part.
        joined: by label, the values of the column that it joins; empty if each value is a label.
        schema: the JSON of the schema by which they were read; empty if none was given.
    """

    columns: tuple[InputColumn, ...]
    labels: tuple[Name, ...] = ()
    owners: tuple[Name, ...] = ()
    target: TargetScale | None = None
    label: Name = ""
    owner: Name | None = None
    dropped: tuple[Name, ...] = ()
    dialect: Dialect = Dialect()
    files: tuple[str, ...] = ()
    joined: Joined = ()
    schema: str = field(default="", compare=False)  # one digest is one reading, whatever a schema is called

    @property
    def by_name(self) -> Mapping[Name, Sequence[InputColumn]]:
        """The inputs of each column of the table."""
        return {name: [*of] for name, of in groupby(self.columns, key=attrgetter("name"))}

    def raw(self, cells: Mapping[Name, npt.NDArray[Any]], most: int | None = None) -> Tensor:
        """Return the inputs of each row as they are in the table, (n, inputs), float64; NaN where one is missing.

        Args:
            cells: by column, (n,): see `cells_of`.
            most: the largest number of inputs of all rows; None: there is none.

        Raises:
            ValueError: a number is infinite, or beyond float32.
            TooLargeError: there are more inputs.
        """
        rows, place = len(next(iter(cells.values()))), 0
        if most is not None and rows * len(self.columns) > most:
            raise TooLargeError(
                f"{plural(rows, 'row')} of {plural(len(self.columns), 'input')}, one for each number and text of a "
                f"column, are more than {most:,} cells. If they are meant to be, raise most_cells."
            )
        x = np.empty((rows, len(self.columns)))
        for name, of in self.by_name.items():
            x[:, place : place + len(of)] = _block(cells[name], of)
            place += len(of)
        return torch.from_numpy(x)

    def scale(self, x: Tensor) -> Tensor:
        """Return inputs with gaps filled and numbers scaled, float32, of inputs that are as in the table, float64."""
        x, numbers = self._filled(x), self._numbers
        scales = [(self.columns[j].mean, self.columns[j].deviation) for j in numbers]
        if {*scales} <= {(0.0, 1.0)}:
            return x.float()
        mean, deviation = torch.tensor(scales, dtype=torch.float64).unbind(1)
        scaled = x.clone()
        scaled[:, numbers] = (x[:, numbers] - mean) / deviation
        return scaled.float()

    def standardizing(self, x: Tensor) -> "TableReading":
        """Return a reading that gives the numbers among such inputs mean 0 and standard deviation 1."""
        if not self._numbers:
            return self
        std, mean = torch.std_mean(self._filled(x)[:, self._numbers], dim=0, correction=0)
        columns = [*self.columns]
        for j, m, s in zip(self._numbers, mean.tolist(), torch.where(std > 0, std, 1.0).tolist(), strict=True):
            columns[j] = replace(columns[j], mean=m, deviation=s)
        return replace(self, columns=tuple(columns))

    def filling(self, x: Tensor) -> "TableReading":
        """Return a reading that fills missing numbers with the median of such inputs.

        Raises:
            ValueError: a column has no number among these.
        """
        columns = [*self.columns]
        for j, column in enumerate(columns):
            if column.fill is not None and column.value is None and not column.gap:
                known = x[:, j][~x[:, j].isnan()]
                if not len(known):
                    raise ValueError(f"Column {column.name!r} has no value in training. Drop it.")
                columns[j] = replace(column, fill=float(known.quantile(0.5)))
        return replace(self, columns=tuple(columns))

    def _filled(self, x: Tensor) -> Tensor:
        """Return inputs with their gaps filled."""
        fills = {j: column.fill for j, column in enumerate(self.columns) if column.fill is not None}
        if not fills:
            return x
        filled, fill = x.clone(), torch.tensor([*fills.values()], dtype=torch.float64)
        filled[:, [*fills]] = torch.where(x[:, [*fills]].isnan(), fill, x[:, [*fills]])
        return filled

    @property
    def _numbers(self) -> list[int]:
        return [j for j, column in enumerate(self.columns) if column.value is None and not column.gap]


class Columns(NamedTuple):
    """The parts of a `Dataset` that were read from a table."""

    x: Tensor  # (n, inputs), float64, as in the table
    y: Tensor  # (n,), int64; or float32, if they are targets
    owners: Tensor | None  # (n,), int64
    reading: TableReading
    findings: tuple[Finding, ...] = ()


def read_frame(
    frame: Any,
    label: str,
    *,
    owner: str | None = None,
    drop: Sequence[str] = (),
    class_names: Classes | None = None,
    targets: bool = False,
    impute: Impute = "refuse",
    most: int | None = None,
) -> Columns:
    """Return the inputs, labels and owners of a table.

    Args:
        frame: a pandas `DataFrame`.
        label: the column of the labels.
        owner: the column of the owners, if there is one.
        drop: columns that are not used.
        class_names: the labels in the order of their numbers; or, by class, the labels that it joins; the different
            labels, sorted, if not given.
        targets: whether integers in the column of the labels are targets; floating-point numbers always are.
        impute: whether missing inputs are refused, or become the median ("median"), also with an input of 0 and 1 that
            says so ("indicator"). Of text, each of its inputs is 0.
        most: the largest number of inputs of all rows; None: there is none.

    Raises:
        TypeError: if `frame` is no `DataFrame`.
        ValueError: if a column is missing, has missing values, or cannot become numbers.
        TooLargeError: if there are more inputs.
    """
    check_frame(frame)
    frame = with_truths(frame)
    names = list(frame.columns)
    named = [label, *([owner] if owner is not None else []), *drop]
    _check_names(names, named)
    if len(set(named)) < len(named):
        raise ValueError(f"label, owner and drop must be different columns, got {', '.join(map(repr, named))}.")
    used = [name for name in names if name not in drop]
    _check_complete(frame[[name for name in used if name in (label, owner) or impute == "refuse"]], rows=len(frame))
    inputs = [name for name in used if name not in (label, owner)]
    if not inputs:
        raise ValueError(f"There is no column for the inputs, only {names}. Add one, or name fewer in drop.")
    frame, dates = _with_days(frame, inputs)
    joined, labels = joined_of(class_names), tuple[Name, ...]()
    if joined:
        y, labels = _joined_labels(frame[label], label, joined, targets=targets), tuple(name for name, _ in joined)
    else:
        y, labels = _labels(frame[label], label, cast(Sequence[Name] | None, class_names), targets=targets)
    holders, owners = ((), None) if owner is None else owners_in(frame[owner])
    columns = tuple(each for name in inputs for each in _input_columns(frame[name], name, impute, dates.get(name, "")))
    reading = TableReading(columns, labels, holders, label=label, owner=owner, dropped=tuple(drop), joined=joined)
    x = reading.raw({name: cells_of(frame[name]) for name in inputs}, most)
    return Columns(x, y, owners, reading, _findings(frame, inputs, label, owner, y if labels else None))


def owners_in(column: Any) -> tuple[tuple[Name, ...], Tensor]:
    """Return the different owners in a column, sorted, and the number of each row's, (n,), int64."""
    known, numbers = np.unique(_values(column), return_inverse=True)
    return tuple(known.tolist()), torch.from_numpy(numbers)


def _findings(
    frame: Any, inputs: Sequence[Name], label: str, owner: str | None, labels: Tensor | None
) -> tuple[Finding, ...]:
    """Return what is suspicious about the columns of a table."""
    texts = [name for name in inputs if is_text(frame[name])]
    found = [one for name in texts for one in near(_known(frame[name]), str(name), "Texts")]
    named = {"Labels": label, **({"Owners": owner} if owner is not None else {})}
    for what, name in named.items():
        if is_text(frame[name]):
            found += near(_known(frame[name]), name, what)
    for column in [*texts, *([label] if labels is not None and is_text(frame[label]) else [])]:
        counts = Counter(as_texts(_values(frame[column].dropna())).tolist())
        found += written(counts, str(column), "a class" if column == label else "an input of 0 and 1")
    columns = {str(name): _values(frame[name]) if name in texts else _numbers(frame[name]) for name in inputs}
    numbers = {name: cells for name, cells in columns.items() if name not in {*map(str, texts)}}
    for name, cells in numbers.items():
        if numbered(cells):
            what = f"Column {name!r} seems to hold dates as 20241231, whose differences are no days"
            found.append(Finding("date", name, f"{what}. Write them as 2024-12-31.", error=False))
    if labels is None:
        found += merged(_numbers(frame[label]), "target")
    return (*found, *zeros(numbers), *fills(numbers), *leaks(columns, None if labels is None else labels.numpy()))


def check_frame(frame: Any) -> None:
    """Raise `TypeError` unless this is a table of pandas."""
    if not (hasattr(frame, "columns") and hasattr(frame, "dtypes") and hasattr(frame, "iloc")):
        raise TypeError(f"frame must be a pandas DataFrame, got {type(frame).__name__}. Read files by pandas.read_csv.")


def with_truths(frame: Any) -> Any:
    """Return a table of pandas whose columns of true, false and gaps, which pandas reads as objects, are `boolean`."""
    if not frame.columns.is_unique:
        return frame
    return frame.astype({name: "boolean" for name in frame if _holds_truths(frame[name])})


def as_truths(column: Any) -> Any:
    """Return a column of pandas, as `boolean` if it holds true, false and gaps as objects."""
    return column.astype("boolean") if _holds_truths(column) else column


def _holds_truths(column: Any) -> bool:
    """Return whether a column of objects holds true, false and gaps alone, and not gaps alone."""
    from pandas.api.types import infer_dtype  # noqa: PLC0415  (optional)

    return bool(column.dtype == object and infer_dtype(column, skipna=True) == "boolean")


def _check_names(names: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Raise `ValueError` if a column is wanted that the table lacks, or if it has one twice."""
    if missing := [name for name in wanted if name not in names]:
        names = [name for name in names if name != FILE]
        single = " If this is several columns, set the separator." if len(names) == 1 else ""
        raise ValueError(
            f"There is no column {' or '.join(map(repr, missing))}; the columns are {names}. Name one of them.{single}"
        )
    if twice := sorted({str(name) for name in names if names.count(name) > 1}):
        raise ValueError(f"Columns must have different names, got {', '.join(twice)} more than once. Rename them.")


def _check_complete(frame: Any, *, rows: int) -> None:
    """Raise `ValueError` if values are missing, or the table has no rows."""
    if gaps := {name: int(count) for name, count in frame.isna().sum().items() if count}:
        first = {name: int(np.argmax(frame[name].isna().to_numpy(dtype=bool))) + 1 for name in gaps}
        listed = ", ".join(f"{name!r} ({count}, the first in row {first[name]})" for name, count in gaps.items())
        raise ValueError(
            f"Values are missing in {listed} of {rows} rows. Fill them, set impute, or drop rows or columns. If a "
            "word such as None or NA is a value here, list in missing only the words for a missing value."
        )
    if not rows:
        raise ValueError("The table has no rows. Give it a row for each example.")


def _labels(
    column: Any, name: str, class_names: Sequence[Name] | None, *, targets: bool
) -> tuple[Tensor, tuple[Name, ...]]:
    """Return the number of each label and the labels by number, or the targets and no labels."""
    if column.dtype.kind == "b" and not targets and not _whole(class_names):
        column = column.astype(str)  # the classes are called as the table calls them
    kind = column.dtype.kind
    if kind not in "iufbO" or (is_text(column) and targets):
        allowed = "numbers, since targets is set" if targets else "numbers or text"
        raise ValueError(
            f"Labels must be {allowed}, column {name!r} holds {column.dtype}. Convert it, or choose another one."
        )
    if targets or kind == "f":
        if class_names is not None:
            raise ValueError(
                f"Column {name!r} holds numbers that are targets, which have no classes. Leave class_names out, or "
                "convert the column to integers or text."
            )
        return torch.from_numpy(column.to_numpy(dtype=np.float32, copy=True)), ()
    if kind in "iu" and class_names is not None and not _whole(class_names):
        if all(re.fullmatch(WHOLE, str(each)) for each in class_names):
            class_names = [int(each) for each in class_names]
        else:
            column = column.astype(str)
    if is_text(column) and class_names is None and (why := misread(column, name)):
        raise ValueError(why)
    values = _values(column).tolist()
    known = _known(column) if class_names is None else [*map(str, class_names)] if is_text(column) else [*class_names]
    number = {value: k for k, value in enumerate(known)}
    if unknown := [row for row, value in enumerate(values, 1) if value not in number]:
        raise ValueError(
            f"Column {name!r} has labels that class_names lacks, in {len(unknown)} of {plural(len(values), 'row')} "
            f"(the first: row {unknown[0]}). Add them to it, or correct them."
        )
    return torch.tensor([number[value] for value in values]), tuple(known)


def _joined_labels(column: Any, name: str, joined: Joined, *, targets: bool) -> Tensor:
    """Return the number of the class that joins each label."""
    if column.dtype.kind == "f" and (column % 1 == 0).all():
        column = column.astype("int64")
    labels, _ = _labels(column, name, [label for _, of in joined for label in of], targets=targets)
    return torch.tensor([k for k, (_, of) in enumerate(joined) for _ in of])[labels]


def joined_of(class_names: Classes | None) -> Joined:
    """Return the classes that join labels, in the order of the first label of each; empty if they join none.

    Raises:
        ValueError: a label is in two classes, or a class has none.
    """
    if not isinstance(class_names, Mapping):
        return ()
    every = [label for of in class_names.values() for label in (of if isinstance(of, (list, tuple)) else (None,))]
    named = all(isinstance(label, (int, str)) and not isinstance(label, bool) for label in every)
    if not (every and named and all(class_names.values())) or len({*map(str, every)}) < len(every):
        raise ValueError(
            f"Each class of class_names joins a list of labels of its own, got {shown(str(dict(class_names)), 200)}. "
            "Name each label once, as in {healthy: [0], ill: [1, 2]}."
        )
    of = {str(name): tuple(sorted(labels, key=_by_kind)) for name, labels in class_names.items()}
    return tuple(sorted(of.items(), key=lambda item: _by_kind(item[1][0])))


def _by_kind(label: Name) -> tuple[bool, Name]:
    return isinstance(label, str), label


def _whole(class_names: Sequence[Name] | None) -> bool:
    """Return whether classes are named, all by integers."""
    return class_names is not None and all(isinstance(name, int) for name in class_names)


def _with_days(frame: Any, names: Sequence[Name]) -> tuple[Any, Mapping[Name, str]]:
    """Return a table with days in place of the dates of some columns, and how the dates of each are written."""
    found, days = dict[Name, str](), dict[Name, Any]()
    for name in names:
        column = frame[name]
        known = [] if not is_text(column) else [*map(str, column.dropna().unique())]
        if pattern := DATE if column.dtype.kind == "M" else pattern_of(known, str(name)):
            found[name], days[name] = pattern, days_of(column, pattern)
    frame = frame.copy(deep=False) if days else frame
    for name, column in days.items():
        frame[name] = column
    return frame, found


def _input_columns(column: Any, name: Name, impute: Impute, date: str = "") -> list[InputColumn]:
    """Return the inputs that a column becomes: one if it holds numbers, else one for each of its texts."""
    if column.dtype.kind not in "iufbO":
        raise ValueError(
            f"Column {name!r} holds {column.dtype}, expected numbers or text. Convert it to numbers, or drop it."
        )
    fill = None if impute == "refuse" else 0.0
    gap = [InputColumn(name, gap=True, fill=0.0)] if impute == "indicator" and column.isna().any() else []
    if (unheld := beyond_whole(column)).any():
        raise ValueError(
            f"Column {name!r} holds whole numbers beyond {LARGEST_WHOLE:,}, of which float64 does not tell all apart "
            f"(the first: row {int(unheld.argmax()) + 1}). Drop it, or subtract what they have in common."
        )
    if not is_text(column):
        return [InputColumn(name, fill=fill, boolean=column.dtype.kind == "b", date=date), *gap]
    known = _known(column)
    if why := misread(column, name):
        raise ValueError(why)
    words = [value for value in known if not is_number(value)]
    if words and len(known) > SOME_VALUES and 2 * len(words) < len(known):
        raise ValueError(
            f"Column {name!r} holds numbers, and text in row {_row(column, words[0])}. Correct it, drop it, or make it "
            "numbers."
        )
    if len(known) > MOST_VALUES:
        raise ValueError(
            f"Column {name!r} has {len(known):,} different texts, and at most {MOST_VALUES} become inputs of 0 and 1. "
            "Drop it, or turn it into numbers."
        )
    if not known:
        raise ValueError(f"Column {name!r} is empty. Drop it.")
    return [*(InputColumn(name, value, fill=fill) for value in known), *gap]


def beyond_whole(column: Any) -> npt.NDArray[np.bool_]:
    """Return which cells of a column of pandas are whole numbers of which float64 does not hold each one."""
    if is_text(column):
        large = [bool(re.fullmatch(WHOLE, str(cell))) and abs(int(cell)) > LARGEST_WHOLE for cell in column]
        return np.array(large, dtype=bool)
    if column.dtype.kind not in "iu":
        return np.zeros(len(column), dtype=bool)
    return np.asarray(((column > LARGEST_WHOLE) | (column < -LARGEST_WHOLE)).to_numpy(dtype=bool, na_value=False))


def misread(column: Any, name: Name) -> str:
    """Return why a column of numbers was read as text, with the row and the remedy; empty if it is none."""
    found = as_number_column([*map(str, column.dropna().unique())])
    if found is None:
        return ""
    word, options = found.text.strip(), ""
    if word.lower() in MISSING_WORDS:
        options = f" Options of `phalanx run` for it: --data.missing '[\"{word}\"]' --data.impute median."
    return f"Column {name!r} {found.what} in row {_row(column, found.text)}. {found.remedy}{options}"


def _row(column: Any, text: str) -> int:
    """Return the number of the first row with a text, from 1."""
    return int(np.argmax((column.astype(str) == text).to_numpy(dtype=bool))) + 1


def _block(cells: npt.NDArray[Any], wanted: Sequence[InputColumn]) -> npt.NDArray[np.float64]:
    """Return the inputs that are wanted of a column, (n, inputs), as in the table; NaN where one is missing.

    They are numbers, or 1 where a row has a text, else 0; and 1 where a value is missing, else 0.
    """
    text = wanted[0].value is not None
    empty = cells == None if text else np.isnan(cells)  # noqa: E711  (of each entry)
    gaps = np.repeat(empty[:, None].astype(np.float64), sum(each.gap for each in wanted), axis=1)
    if text:
        known = np.asarray([each.value for each in wanted if not each.gap], dtype=object)
        return np.concatenate([(cells[:, None] == known[None]).astype(np.float64), gaps], axis=1)
    if bad := int(beyond(cells).sum()):
        raise ValueError(
            f"Column {wanted[0].name!r} holds numbers that are infinite, or beyond 3.4e38, in {bad} of {len(cells)} "
            "rows. Drop these rows or the column, or write it in other units."
        )
    return np.concatenate([cells[:, None], gaps], axis=1)


def beyond(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which numbers are infinite, or so in float32."""
    with np.errstate(over="ignore"):
        return np.isinf(numbers.astype(np.float32))


def cells_of(column: Any, empty: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[Any]:
    """Return the cells of a column, (n,): numbers, float64, NaN where one is missing; or texts, None where missing.

    Args:
        column: of pandas.
        empty: (n,), where one is missing; None: where pandas has no value.
    """
    text = is_text(column)
    cells = np.asarray(column.astype(str), dtype=object) if text else _numbers(column).copy()
    cells[column.isna().to_numpy(dtype=bool) if empty is None else empty] = None if text else np.nan
    return cells


def spelled(words: Iterable[str]) -> list[str]:
    """Return the words for a missing value as a cell can hold them: also after a space, as in "1, ?"."""
    plain = [*words]
    return [*plain, *(f" {word}" for word in plain if word)]


def missing_in(
    column: Any, words: Iterable[str], known: Collection[Name] = (), *, number: bool
) -> npt.NDArray[np.bool_]:
    """Return which cells of a column are missing, (n,): those without a value, and those that hold a word for it.

    Args:
        column: of pandas.
        words: for a missing value. One that is a number means that number, in a column of numbers.
        known: values that are none of these words.
        number: whether the column is meant to hold numbers.
    """
    empty, values = column.isna().to_numpy(dtype=bool), {*map(str, known)}
    named = [word for word in words if word not in values]
    numbers = [float(word) for word in named if is_number(word)]
    if is_text(column):
        cells = column.astype(str)
        found = (cells.isin(spelled(named)) | (cells.str.strip() == "")).to_numpy(dtype=bool)
        if number and numbers:
            found = found | cells.map(lambda cell: is_number(cell) and float(cell) in numbers).to_numpy(dtype=bool)
        return np.asarray(empty | found)
    return np.asarray(empty | np.isin(_numbers(column), numbers)) if column.dtype.kind in "iuf" else empty


def is_text(column: Any) -> bool:
    """Return whether a column holds text, or a pandas category."""
    return bool(column.dtype.kind == "O")


def _values(column: Any) -> npt.NDArray[Any]:
    """Return the values of a column: text, each as long as it is, or numbers."""
    return as_texts(np.asarray(column, dtype=object)) if is_text(column) else np.asarray(column)


def _numbers(column: Any) -> npt.NDArray[np.float64]:
    """Return the numbers of a column, float64; NaN where one is missing."""
    return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))


def _known(column: Any) -> list[Any]:
    """Return the values that a column can have: its categories in their order, or those that it has, sorted."""
    if hasattr(column, "cat"):
        return list(map(str, column.cat.categories))
    known: list[Any] = np.unique(_values(column.dropna())).tolist()
    return known
