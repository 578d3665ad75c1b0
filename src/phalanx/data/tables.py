"""Tables as tensors: a row is an example, a column its label, its owner, or one of its inputs.

Columns of numbers become one input each, columns of text or of a pandas category one input per value (one-hot).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MOST_VALUES = 100  # of a column of text that becomes one-hot: with more it is an identifier, or a sentence

SOME_VALUES = 20  # of a column of text: with more, most of them numbers, it is one of numbers with a mistake

Name = str | int


@dataclass(frozen=True)
class InputColumn:
    """An input of a model that comes from a column of a table.

    Args:
        name: of the column.
        value: the text for which the input is 1, and 0 for every other; None: the column holds numbers.
        mean: what is subtracted from a number.
        deviation: what it is divided by then.
    """

    name: Name
    value: str | None = None
    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True)
class TableReading:
    """How the rows of a table become inputs and labels, so that other rows can become the same.

    Args:
        columns: of the inputs, in their order; those of one column of text follow each other.
        labels: by number of the class; empty for targets.
    """

    columns: tuple[InputColumn, ...]
    labels: tuple[Name, ...] = ()

    def inputs(self, frame: Any) -> Tensor:
        """Return the inputs of each row of a pandas `DataFrame`, (n, inputs), float32; other columns are not used.

        Raises:
            TypeError: `frame` is no `DataFrame`.
            ValueError: a column is missing or has missing values, cannot become numbers, or holds an unknown text.
        """
        _check_frame(frame)
        by_name = [(name, [*of]) for name, of in groupby(self.columns, key=attrgetter("name"))]
        names = [name for name, _ in by_name]
        _check_names(list(frame.columns), names)
        _check_complete(frame[names])
        blocks = [_block(frame[name], of) for name, of in by_name]
        return self.scale(torch.from_numpy(np.concatenate(blocks, axis=1)))

    def scale(self, x: Tensor) -> Tensor:
        """Return inputs with their numbers scaled, of inputs that are as in the table."""
        numbers = self._numbers
        scales = [(self.columns[j].mean, self.columns[j].deviation) for j in numbers]
        if {*scales} <= {(0.0, 1.0)}:
            return x
        mean, deviation = torch.tensor(scales, dtype=torch.float64).unbind(1)
        scaled = x.clone()
        scaled[:, numbers] = ((x[:, numbers].double() - mean) / deviation).float()
        return scaled

    def standardizing(self, x: Tensor) -> "TableReading":
        """Return a reading that gives the numbers among such inputs mean 0 and standard deviation 1."""
        if not self._numbers:
            return self
        std, mean = torch.std_mean(x[:, self._numbers].double(), dim=0, correction=0)
        columns = [*self.columns]
        for j, m, s in zip(self._numbers, mean.tolist(), torch.where(std > 0, std, 1.0).tolist(), strict=True):
            columns[j] = replace(columns[j], mean=m, deviation=s)
        return replace(self, columns=tuple(columns))

    @property
    def _numbers(self) -> list[int]:
        return [j for j, column in enumerate(self.columns) if column.value is None]


class Columns(NamedTuple):
    """The parts of a `Dataset` that were read from a table."""

    x: Tensor  # (n, inputs), float32
    y: Tensor  # (n,), int64; or float32, if they are targets
    owners: Tensor | None  # (n,), int64
    reading: TableReading


def read_frame(
    frame: Any,
    label: str,
    *,
    owner: str | None = None,
    drop: Sequence[str] = (),
    class_names: Sequence[Name] | None = None,
    targets: bool = False,
    reading: TableReading | None = None,
) -> Columns:
    """Return the inputs, labels and owners of a table.

    Args:
        frame: a pandas `DataFrame`.
        label: the column of the labels.
        owner: the column of the owners, if there is one.
        drop: columns that are not used.
        class_names: the labels in the order of their numbers; the different labels, sorted, if not given.
        targets: whether integers in the column of the labels are targets; floating-point numbers always are.
        reading: of another table, whose inputs and classes these become; `class_names` and `targets` do not count then.

    Raises:
        TypeError: if `frame` is no `DataFrame`.
        ValueError: if a column is missing, has missing values, or cannot become numbers.
    """
    _check_frame(frame)
    names = list(frame.columns)
    named = [label, *([owner] if owner is not None else []), *drop]
    _check_names(names, named)
    if len(set(named)) < len(named):
        raise ValueError(f"label, owner and drop must be different columns, got {', '.join(map(repr, named))}.")
    used = [name for name in names if name not in drop]
    _check_complete(frame[used])
    inputs = [name for name in used if name not in (label, owner)]
    if not inputs:
        raise ValueError(f"There is no column for the inputs, only {names}. Add one, or name fewer in drop.")
    if reading is not None:
        class_names, targets = reading.labels or None, not reading.labels
    y, labels = _labels(frame[label], label, class_names, targets=targets, again=reading is not None)
    owners = None if owner is None else torch.from_numpy(np.unique(_values(frame[owner]), return_inverse=True)[1])
    if reading is None:
        reading = TableReading(tuple(each for name in inputs for each in _input_columns(frame[name], name)), labels)
    return Columns(reading.inputs(frame), y, owners, reading)


def _check_frame(frame: Any) -> None:
    """Raise `TypeError` unless this is a table of pandas."""
    if not (hasattr(frame, "columns") and hasattr(frame, "dtypes") and hasattr(frame, "iloc")):
        raise TypeError(f"frame must be a pandas DataFrame, got {type(frame).__name__}. Read files by pandas.read_csv.")


def _check_names(names: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Raise `ValueError` if a column is wanted that the table lacks, or if it has one twice."""
    if missing := [name for name in wanted if name not in names]:
        single = " If this is several columns, set the separator." if len(names) == 1 else ""
        raise ValueError(
            f"There is no column {' or '.join(map(repr, missing))}; the columns are {names}. Name one of them.{single}"
        )
    if twice := sorted({str(name) for name in names if names.count(name) > 1}):
        raise ValueError(f"Columns must have different names, got {', '.join(twice)} more than once. Rename them.")


def _check_complete(frame: Any) -> None:
    """Raise `ValueError` if values are missing."""
    if gaps := {name: int(count) for name, count in frame.isna().sum().items() if count}:
        listed = ", ".join(f"{name!r} ({count})" for name, count in gaps.items())
        raise ValueError(f"Values are missing in {listed} of {len(frame)} rows. Fill them, or drop rows or columns.")
    if not len(frame):
        raise ValueError("The table has no rows. Give it a row for each example.")


def _labels(
    column: Any, name: str, class_names: Sequence[Name] | None, *, targets: bool, again: bool
) -> tuple[Tensor, tuple[Name, ...]]:
    """Return the number of each label and the labels by number, or the targets and no labels.

    `again`: whether `class_names` are the labels of another table.
    """
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
    values = _values(column).tolist()
    known = _known(column) if class_names is None else [*map(str, class_names)] if is_text(column) else [*class_names]
    number = {value: k for k, value in enumerate(known)}
    if unknown := sorted(set(values) - number.keys()):
        listed = ", ".join(map(repr, unknown[:5]))
        if again:
            raise ValueError(
                f"Column {name!r} has labels that the table of the training lacks: {listed}. Leave out such rows: the "
                "model was not trained on them."
            )
        raise ValueError(f"Column {name!r} has labels that class_names lacks: {listed}. Add them to it.")
    # JSON, in which a record says how a table was read, has True and 1 apart, and a label is a text or an integer.
    return torch.tensor([number[value] for value in values]), tuple(int(k) if isinstance(k, bool) else k for k in known)


def _input_columns(column: Any, name: Name) -> list[InputColumn]:
    """Return the inputs that a column becomes: one if it holds numbers, else one for each of its texts."""
    if column.dtype.kind not in "iufbO":
        raise ValueError(
            f"Column {name!r} holds {column.dtype}, expected numbers or text. Convert it to numbers, or drop it."
        )
    if not is_text(column):
        return [InputColumn(name)]
    known = _known(column)
    words = [value for value in known if not _is_number(value)]
    if words and len(known) > SOME_VALUES and 2 * len(words) < len(known):
        raise ValueError(
            f"Column {name!r} holds numbers and text, such as {words[0]!r}. Correct it, drop it, or make it numbers."
        )
    if len(known) > MOST_VALUES:
        raise ValueError(
            f"Column {name!r} has {len(known):,} different texts, and at most {MOST_VALUES} become inputs of 0 and 1. "
            "Drop it, or turn it into numbers."
        )
    return [InputColumn(name, value) for value in known]


def _block(column: Any, wanted: Sequence[InputColumn]) -> npt.NDArray[np.float32]:
    """Return the inputs that are wanted of a column, (n, inputs): numbers, or 1 where a row has a text, else 0."""
    name, text = wanted[0].name, is_text(column)
    if text != (wanted[0].value is not None):
        raise ValueError(
            f"Column {name!r} holds {'text' if text else 'numbers'}, expected {'numbers' if text else 'text'}. "
            "Write it as in the table that the model was trained on."
        )
    if text:
        known = [each.value for each in wanted]
        if unknown := sorted({*_values(column).tolist()} - {*known}):
            raise ValueError(
                f"Column {name!r} holds {unknown[0]!r}, which is none of {', '.join(map(repr, known))}. Leave out "
                "such rows: the model was not trained on them."
            )
        return np.asarray(_values(column)[:, None] == np.asarray(known)[None], dtype=np.float32)
    with np.errstate(over="ignore"):
        numbers = np.asarray(column.to_numpy(dtype=np.float32))
    if bad := int((~np.isfinite(numbers)).sum()):
        raise ValueError(
            f"Column {name!r} holds numbers that are infinite, or beyond 3.4e38, in {bad} of {len(numbers)} rows. "
            "Drop these rows or the column, or write it in other units."
        )
    return numbers[:, None]


def _is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_text(column: Any) -> bool:
    """Return whether a column holds text, or a pandas category."""
    return bool(column.dtype.kind == "O")


def _values(column: Any) -> npt.NDArray[Any]:
    """Return the values of a column: text, or numbers."""
    return np.asarray(column.astype(str) if is_text(column) else column, dtype=str if is_text(column) else None)


def _known(column: Any) -> list[Any]:
    """Return the values that a column can have: its categories in their order, or those that it has, sorted."""
    return list(map(str, column.cat.categories)) if hasattr(column, "cat") else np.unique(_values(column)).tolist()
