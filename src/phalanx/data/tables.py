"""Tables as tensors: a row is an example, a column its label, its owner, or one of its inputs.

Columns of numbers become one input each, columns of text or of a pandas category one input per value (one-hot).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MOST_VALUES = 100  # of a column of text that becomes one-hot: with more it is an identifier, or a sentence

SOME_VALUES = 20  # of a column of text: with more, most of them numbers, it is one of numbers with a mistake

Name = str | int


class Columns(NamedTuple):
    """The parts of a `Dataset` that were read from a table."""

    x: Tensor  # (n, inputs), float32
    y: Tensor  # (n,), int64; or float32, if they are targets
    classes: int  # 0 for targets
    owners: Tensor | None  # (n,), int64
    numeric: Tensor  # (inputs,), bool: which inputs are numbers, and not a value of a text


def read_frame(
    frame: Any,
    label: str,
    *,
    owner: str | None = None,
    drop: Sequence[str] = (),
    class_names: Sequence[Name] | None = None,
    targets: bool = False,
) -> Columns:
    """Return the inputs, labels and owners of a table.

    Args:
        frame: a pandas `DataFrame`.
        label: the column of the labels.
        owner: the column of the owners, if there is one.
        drop: columns that are not used.
        class_names: the labels in the order of their numbers; the different labels, sorted, if not given.
        targets: whether integers in the column of the labels are targets; floating-point numbers always are.

    Raises:
        TypeError: if `frame` is no `DataFrame`.
        ValueError: if a column is missing, has missing values, or cannot become numbers.
    """
    if not (hasattr(frame, "columns") and hasattr(frame, "dtypes") and hasattr(frame, "iloc")):
        raise TypeError(f"frame must be a pandas DataFrame, got {type(frame).__name__}. Read files by pandas.read_csv.")
    names = list(frame.columns)
    _check_names(names, label, owner, drop)
    used = [name for name in names if name not in drop]
    _check_complete(frame[used])
    inputs = [name for name in used if name not in (label, owner)]
    if not inputs:
        raise ValueError(f"There is no column for the inputs, only {names}. Add one, or name fewer in drop.")
    y, classes = _labels(frame[label], label, class_names, targets)
    owners = None if owner is None else torch.from_numpy(np.unique(_values(frame[owner]), return_inverse=True)[1])
    blocks = [_inputs(frame[name], name) for name in inputs]
    numeric = [not is_text(frame[name]) for name, block in zip(inputs, blocks, strict=True) for _ in block.T]
    return Columns(torch.from_numpy(np.concatenate(blocks, axis=1)), y, classes, owners, torch.tensor(numeric))


def _check_names(names: Sequence[Any], label: str, owner: str | None, drop: Sequence[str]) -> None:
    """Raise `ValueError` if a column is named that the table lacks, or that it has twice."""
    wanted = [label, *([owner] if owner is not None else []), *drop]
    if missing := [name for name in wanted if name not in names]:
        single = " If this is several columns, set the separator." if len(names) == 1 else ""
        raise ValueError(
            f"There is no column {' or '.join(map(repr, missing))}; the columns are {names}. Name one of them.{single}"
        )
    if twice := sorted({str(name) for name in names if names.count(name) > 1}):
        raise ValueError(f"Columns must have different names, got {', '.join(twice)} more than once. Rename them.")
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"label, owner and drop must be different columns, got {', '.join(map(repr, wanted))}.")


def _check_complete(frame: Any) -> None:
    """Raise `ValueError` if values are missing."""
    if gaps := {name: int(count) for name, count in frame.isna().sum().items() if count}:
        listed = ", ".join(f"{name!r} ({count})" for name, count in gaps.items())
        raise ValueError(f"Values are missing in {listed} of {len(frame)} rows. Fill them, or drop rows or columns.")
    if not len(frame):
        raise ValueError("The table has no rows. Give it a row for each example.")


def _labels(column: Any, name: str, class_names: Sequence[Name] | None, targets: bool) -> tuple[Tensor, int]:
    """Return the number of each label and the number of classes, or the targets and 0."""
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
        return torch.from_numpy(column.to_numpy(dtype=np.float32, copy=True)), 0
    values = _values(column).tolist()
    known = _known(column) if class_names is None else [*map(str, class_names)] if is_text(column) else [*class_names]
    number = {value: k for k, value in enumerate(known)}
    if unknown := sorted(set(values) - number.keys()):
        listed = ", ".join(map(repr, unknown[:5]))
        raise ValueError(f"Column {name!r} has labels that class_names lacks: {listed}. Add them to it.")
    return torch.tensor([number[value] for value in values]), len(known)


def _inputs(column: Any, name: str) -> npt.NDArray[np.float32]:
    """Return a column of numbers as (n, 1), or one of text as (n, values): 1 where a row has the value, else 0."""
    if column.dtype.kind not in "iufbO":
        raise ValueError(
            f"Column {name!r} holds {column.dtype}, expected numbers or text. Convert it to numbers, or drop it."
        )
    if not is_text(column):
        with np.errstate(over="ignore"):
            numbers = np.asarray(column.to_numpy(dtype=np.float32))
        if bad := int((~np.isfinite(numbers)).sum()):
            raise ValueError(
                f"Column {name!r} holds numbers that are infinite, or beyond 3.4e38, in {bad} of {len(numbers)} rows. "
                "Drop these rows or the column, or write it in other units."
            )
        return numbers[:, None]
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
    return np.asarray(_values(column)[:, None] == np.asarray(known)[None], dtype=np.float32)


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
