"""CSV and parquet files as sources of examples.  They are read by pandas: the extra `tables`."""

import csv
import os
import re
import zlib
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.data.dataset import Dataset
from phalanx.data.findings import MISSING_WORDS, Finding, is_number, merged, notation
from phalanx.data.held_out import drawn
from phalanx.data.sources import Source
from phalanx.data.table_ceilings import MOST_CELLS, TooLargeError, check_columns, check_parquet, check_text
from phalanx.data.tables import (
    FILE,
    WHOLE,
    Dialect,
    Impute,
    TableReading,
    TargetScale,
    is_text,
    joined_of,
    misread,
    missing_in,
    read_frame,
    spelled,
    with_truths,
)
from phalanx.fields import PositiveInt
from phalanx.installation import DATA_DIR, installation, optional
from phalanx.reading import file_digest, table_reader
from phalanx.wording import plural, shown

GAPS = {"i": "Float64", "u": "Float64", "f": "Float64", "b": "boolean"}  # by kind of numbers, what holds gaps too
SELDOM = 0.05  # share of the test part, above which rows that are in training as well are said
LEAST_STEPS = 4  # numbers in equal steps that are names of columns, and no row
WORDS = {  # of pandas' messages
    r".*Expected (\d+) fields in line (\d+), saw (\d+).*": r"line \2 has \3 cells, expected \1. Correct the line, or "
    "the separator.",
    r".*EOF inside string starting at row (\d+).*": r"a quotation mark in row \1 is not closed. Close it.",
    r"No columns to parse from file.*": "it has no columns. Name a file whose first line names them.",
}


@dataclass(frozen=True)
class TableFile(Source):
    """A table in a file, or one for training and one for tests, with a row for each example.

    Columns of numbers become one input each, columns of text one input of 0 and 1 for each of their values.

    Args:
        path: the file, in the current folder or in the data folder. A pattern such as `sites/*.csv` names one file for
            each owner, who has the file's name; for `sites/*/train.csv`, the folder's.
        label: column of the labels, integers or text; or of the targets, for a task such as `Regression`.
        test: the file of the test part; if not given, `test_share` of the rows are drawn at random.
        test_share: share of each class, or of each owner's rows if there are owners, in the test part, between 0 and 1.
        owner: column of the natural owner of each example, for the partition `Natural`.
        drop: columns that are no inputs, such as a number of the row.
        class_names: the labels in the order of their numbers; or, by class, the labels that it joins, as in
            `{healthy: [0], ill: [1, 2, 3, 4]}`, in the order of their first labels; the different labels, sorted, if
            not given.
        standardize: whether to subtract the mean and divide by the standard deviation of the train part, for each
            column of numbers; the targets of `Regression` are scaled alike in training, and measured in their own unit.
        split_seed: determines which rows are drawn for the test part.
        targets: whether integers in the column of the labels are targets; floating-point numbers always are.
        impute: how to fill missing inputs: "refuse"; "median" of the train part, where texts are 0 in each of their
            inputs; or "indicator", the same with an input more that is 1 where one is missing.
        missing: the words for a missing value, such as "?" or "-9"; an empty cell always is one. If not given, those
            that are usual in a file of text: NA, N/A, NaN, None, null and some others; in parquet there are none.
        schema: the file of a schema of the federation, by which the table is read. It says what the columns are: owner,
            drop, class_names, standardize, targets and impute do not go with it.
        most_cells: the largest number of cells, rows times columns, of a file, and 32 bytes of text for each of them.
            A small file can stand for a very large table; it is refused before it takes the memory.
    """

    path: str
    label: str
    test: str | None = None
    test_share: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    owner: str | None = None
    drop: tuple[str, ...] = ()
    class_names: tuple[int | str, ...] | Mapping[str, Sequence[int | str]] | None = None
    standardize: bool = True
    split_seed: int = 0
    targets: bool = False
    impute: Impute = "refuse"
    missing: tuple[str, ...] | None = None
    most_cells: PositiveInt = MOST_CELLS
    schema: str | None = None
    schema_in: ClassVar[Callable[[Path], Any]]  # of `phalanx.data.table_schema`, which reads files by this class

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        own = {
            "owner": None,
            "drop": (),
            "class_names": None,
            "standardize": True,
            "targets": False,
            "impute": "refuse",
        }
        if self.schema is not None and (given := [name for name, value in own.items() if getattr(self, name) != value]):
            raise ValueError(f"schema says what the columns are, and so does {given[0]}. Leave out one of them.")
        joined_of(self.class_names)
        if is_pattern(self.path) and self.owner is not None:
            raise ValueError(
                f"path {self.path!r} names a file for each owner, and owner is {self.owner!r}. Leave out owner."
            )

    @property
    def file_digests(self) -> Mapping[str, str]:
        """By field, the SHA-256 of the file that it names, which identifies the data wherever the file lies.

        It is looked for in the current folder, and in that of the environment variable `PHALANX_DATA`.  A file in
        another `data_dir` is identified by its path.
        """
        folder = os.environ.get(DATA_DIR)
        named = {"path": self.path, "test": self.test, "schema": self.schema}
        places = {name: files_of(path, Path(folder) if folder else None) for name, path in named.items() if path}
        return {name: found for name, files in places.items() if files and (found := _digest(files))}

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x is float32 of shape (n, inputs).

        Raises:
            ModuleNotFoundError: if pandas, or pyarrow for parquet files, is not installed.
            FileNotFoundError: if there is no such file.
            ValueError: if it is no such table; see `Dataset.from_pandas`.
        """
        return self._parts(data_dir)

    def _parts(self, data_dir: Path | None) -> tuple[Dataset, Dataset]:
        """Return the train and test part."""
        _pandas(type(self).__name__)  # before a file is looked for
        if self.schema is not None:
            return self._described(self.schema, data_dir)
        named = [label for _, of in joined_of(self.class_names) for label in of] or self.class_names
        whole = named is not None and all(isinstance(each, int) for each in named)
        names = [*([] if whole or self.targets else [self.label]), *([] if self.owner is None else [self.owner])]
        table, last = self.rows(data_dir, names=names)
        try:
            read = read_frame(
                table,
                self.label,
                owner=FILE if FILE in table.columns else self.owner,
                drop=self.drop,
                class_names=self.class_names,
                targets=self.targets,
                impute=self.impute,
                most=self.most_cells,
            )
        except ValueError as error:
            kind = TooLargeError if isinstance(error, TooLargeError) else ValueError
            raise kind(f"{' and '.join(self._paths)}: {error}") from error
        tested = self.tested(read.y, read.owners, last)
        used = replace(read.reading, dialect=self.dialect, files=self.digests(self.path, data_dir))
        x, findings = read.x, read.findings
        findings += tuple(_untrained(read.reading, x, tested, apart=self.test is not None))
        used = self._fitted(used, x[~tested], read.y[~tested])
        if not self.standardize:
            findings += tuple(merged(x.numpy()))
        data = Dataset(used.scale(x), read.y, len(used.labels), read.owners, used, findings)
        return split(data, tested)

    def _described(self, path: str, data_dir: Path | None) -> tuple[Dataset, Dataset]:
        """Return the train and test part of a table that a schema describes."""
        if not (found := files_of(path, data_dir)):
            raise FileNotFoundError(f"There is no schema {shown(path, 300)}. Correct the path.")
        schema = TableFile.schema_in(found[0])
        if self.label != schema.target.name:
            raise ValueError(f"label is {self.label!r}, and the target of {path} {schema.target.name!r}. Name that.")
        try:
            train, test = schema.parts(schema.as_site(self), data_dir)
        except ValueError as error:
            raise ValueError(f"{' and '.join(self._paths)}: {error}") from error
        reading = replace(train.reading or schema.reading, files=self.digests(self.path, data_dir))
        return replace(train, reading=reading), replace(test, reading=reading)

    @property
    def _paths(self) -> list[str]:
        return [self.path] if self.test is None else [self.path, self.test]

    def rows(self, data_dir: Path | None, texts: Collection[str] = (), names: Collection[str] = ()) -> tuple[Any, int]:
        """Return the rows of all files, and how many of them, the last ones, are of a file of tests.

        Args:
            data_dir: see `frame`, as for the others.
            texts: columns of text.
            names: columns of names.
        """
        frames = [self.frame(path, data_dir, texts, names) for path in self._paths]
        self._check_same(frames[0], frames[-1], self.path, str(self.test))
        return _joined(frames), len(frames[-1]) * (self.test is not None)

    def tested(self, y: Tensor, owners: Tensor | None, last: int) -> Tensor:
        """Return which of these rows are for tests, (n,): the last ones, or those that are drawn.

        Args:
            y: (n,), the labels or targets.
            owners: (n,), the owner of each row, if there are any.
            last: number of rows of a file of tests.
        """
        return self.drawn(y, owners) if self.test is None else torch.arange(len(y)) >= len(y) - last

    @property
    def dialect(self) -> Dialect:
        """How the file writes a table."""
        return Dialect()

    def digests(self, path: str, data_dir: Path | None) -> tuple[str, ...]:
        """Return the SHA-256 of the file of a path, or of each file of a pattern."""
        return tuple(digest for file in files_of(path, data_dir) if (digest := file_digest(file)))

    def _fitted(self, reading: TableReading, x: Tensor, y: Tensor) -> TableReading:
        """Return the reading with what it takes from the inputs and the labels or targets of the train part."""
        try:
            reading = reading.filling(x)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        if not self.standardize:
            return reading
        if not reading.labels:
            std, mean = torch.std_mean(y.double(), correction=0)
            if std > 0:
                reading = replace(reading, target=TargetScale(float(mean), float(std)))
        return reading.standardizing(x)

    def _check_same(self, ours: Any, theirs: Any, our_path: str, their_path: str) -> None:
        """Raise `ValueError` if two tables differ in their columns, or in what these hold."""
        if ours is theirs:
            return
        if {*ours.columns} != {*theirs.columns}:
            only = sorted({*ours.columns} ^ {*theirs.columns}, key=str)
            raise ValueError(
                f"{our_path} and {their_path} must have the same columns; only one of them has "
                f"{', '.join(map(repr, only))}."
            )
        for name in ours.columns:
            if name in (*self.drop, self.owner) or ours[name].isna().all() or theirs[name].isna().all():
                continue
            held = {our_path: _kind(ours[name]), their_path: _kind(theirs[name])}
            if len({*held.values()}) > 1:
                for path, frame in ((our_path, ours), (their_path, theirs)):
                    if held[path] == "text" and (why := misread(frame[name], name)):
                        raise ValueError(f"{path}: {why}")
                what = " and ".join(f"{kind} in {path}" for path, kind in held.items())
                raise ValueError(f"Column {name!r} holds {what}. Write it in the same way in both.")

    def drawn(self, y: Tensor, owners: Tensor | None) -> Tensor:
        """Return which rows are for tests, (n,): a share of each class, or of each owner's rows.

        They are drawn by the stream "test" of `split_seed`.

        Args:
            y: (n,), the labels or targets; targets are one class.
            owners: (n,), the owner of each row, if there are any.

        Raises:
            ValueError: there would be none.
        """
        groups = owners if owners is not None else torch.zeros(len(y)) if y.is_floating_point() else y
        tested = drawn(groups, self.test_share, self.split_seed)
        if not tested.any():
            most, rows = int(torch.unique(groups, return_counts=True)[1].max()), plural(len(groups), "row")
            what = f"column {self.owner or self.label!r} has as many values as rows"
            why = f": {what}, and one row of each value is for training" if most == 1 and len(groups) > 1 else ""
            raise ValueError(
                f"{self.path}: a test part of {self.test_share:g} of {rows} is empty{why}. "
                f"{'Raise test_share, or give' if most > 1 else 'Give'} the test part as a file of its own."
            )
        return tested

    def frame(self, path: str, data_dir: Path | None, texts: Collection[str] = (), names: Collection[str] = ()) -> Any:
        """Return the table in a file; of several, with a column `FILE` that names the file of each row.

        Args:
            path: of the file, or a pattern.
            data_dir: where it is looked for as well.
            texts: columns that hold text, whatever it looks like.
            names: columns that hold names, of classes or owners: 01 is a text, and 1 a number.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no such table.
        """
        found = files_of(path, data_dir)
        if not found:
            looked = " or ".join(str(place.absolute()) for place in _places(path, data_dir))
            raise FileNotFoundError(f"{type(self).__name__} finds no file {looked}. Correct the path.")
        frames = [self._read(file, texts, names) for file in found]
        if not is_pattern(path):
            return frames[0]
        for file, frame in zip(found, frames, strict=True):
            self._check_same(frames[0], frame, found[0].name, file.name)
        owners = owners_of_files(found, path)
        return _joined([frame.assign(**{FILE: owner}) for owner, frame in zip(owners, frames, strict=True)])

    def _read(self, file: Path, texts: Collection[str], names: Collection[str]) -> Any:
        """Return the table in a file that is there."""
        if not file.stat().st_size:
            raise ValueError(f"{file} is empty. Name a file with a row for each example.")
        try:
            self.check_size(file)
            return self.read(file, texts, names)
        except TooLargeError:
            raise
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text. Save it in UTF-8.") from error
        except (ValueError, OSError, EOFError, zlib.error, csv.Error) as error:
            raise ValueError(f"{file} cannot be read as {type(self).__name__}: {_in_words(str(error))}") from error

    @abstractmethod
    def check_size(self, file: Path) -> None:
        """Raise `TooLargeError` if a file holds more than `most_cells`."""

    @abstractmethod
    def read(self, file: Path, texts: Collection[str] = (), names: Collection[str] = ()) -> Any:
        """Return the table in a file as a pandas `DataFrame`; for `texts` and `names` see `frame`."""


@dataclass(frozen=True)
class CSV(TableFile):
    """A table in a CSV file, whose first line names the columns; it may be compressed (.gz, .zip, ...).

    Args:
        separator: what separates columns.
        decimal: the sign before decimals, "." or ",".
        thousands: the sign between groups of digits; none if not given.
    """

    separator: str = ","
    decimal: str = "."
    thousands: str | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_separator(self.separator)
        if len(self.decimal) != 1 or (self.thousands is not None and len(self.thousands) != 1):
            raise ValueError(
                f"decimal and thousands must be one character each, got {self.decimal!r} and {self.thousands!r}."
            )
        if self.decimal in (self.separator, self.thousands):
            raise ValueError(f"decimal, thousands and separator must differ, got {self.decimal!r} twice.")

    @property
    @override
    def dialect(self) -> Dialect:
        return Dialect(self.separator, self.decimal, self.thousands, self.missing)

    @override
    def check_size(self, file: Path) -> None:
        check_text(file, self.separator, self.most_cells)

    @override
    def read(self, file: Path, texts: Collection[str] = (), names: Collection[str] = ()) -> Any:
        pandas = _pandas("CSV")
        from pandas.io.common import get_handle  # noqa: PLC0415  (optional)

        with get_handle(file, "r", encoding="utf-8", compression="infer") as opened:
            lines = csv.reader(opened.handle, delimiter=self.separator)
            check_columns(file, len(next((line for line in lines if any(map(str.strip, line))), ())))
        words = [] if self.missing is None else ["", *spelled(self.missing)]
        read = partial(
            pandas.read_csv,
            file,
            sep=self.separator,
            decimal=self.decimal,
            thousands=self.thousands,
            na_values=words,
            keep_default_na=self.missing is None,
            low_memory=False,
        )
        frame = read(dtype=dict.fromkeys(texts, str))
        if blank := _blank(frame):
            read = partial(read, na_values=[*words, *blank])
            frame = read(dtype=dict.fromkeys(texts, str))
        frame = with_truths(frame)
        if read_as_numbers := [name for name in names if name in frame and frame[name].dtype.kind in "iub"]:
            written = read(usecols=read_as_numbers, dtype=str)
            for name in read_as_numbers:
                cells = written[name].str.strip()
                if not cells.str.fullmatch(WHOLE).all():
                    frame[name] = cells
        with get_handle(file, "r", encoding="utf-8", compression="infer") as opened:
            _check_cells(csv.reader(opened.handle, delimiter=self.separator), frame)
        return frame


def rows_of(data: Dataset) -> Iterator[bytes]:
    """Yield the inputs and the label of each row, to the bit; zero has one sign."""
    assert isinstance(data.x, Tensor)
    for x, y in zip((data.x + 0).numpy(), (data.y + 0).numpy(), strict=True):
        yield x.tobytes() + y.tobytes()


def split(data: Dataset, tested: Tensor) -> tuple[Dataset, Dataset]:
    """Return the train and the test part of a table; findings say what is in both.

    Args:
        data: all rows.
        tested: (n,), which of them are for tests.
    """
    again = tuple(_again(data, tested))
    data = replace(data, findings=(*data.findings, *again)) if again else data
    return data.of(~tested), data.of(tested)


def _again(data: Dataset, tested: Tensor) -> Iterator[Finding]:
    """Yield a remark if rows of the test part are in training as well, though a column tells most rows apart."""
    train = [*rows_of(data.of(~tested))]
    known = {*train}
    again = [row in known for row in rows_of(data.of(tested))]
    assert isinstance(data.x, Tensor)
    finest = max(len(column.unique()) for column in data.x.T)
    if finest >= len(known) / 2 and sum(again) > SELDOM * len(again):
        what = f"{plural(sum(again), 'row')} of the {len(again):,} of the test part are in training as well"
        yield Finding("twice", "test", f"{what}. If the file holds rows twice, leave out one of each.", error=False)


def _untrained(reading: TableReading, x: Tensor, tested: Tensor, *, apart: bool) -> Iterator[Finding]:
    """Yield the columns with texts that only the test part has: a model has learned nothing of them.

    Args:
        reading: of the table.
        x: (n, inputs), as in the table.
        tested: (n,), which rows are the test part.
        apart: whether that is a file of its own, which may be spelled in another way.
    """
    place = 0
    for name, of in reading.by_name.items():
        texts = [place + j for j, column in enumerate(of) if column.value is not None]
        new = [j for j in texts if not x[~tested, j].any() and x[tested, j].any()]
        place += len(of)
        if new:
            rows, whole = int(x[tested][:, new].any(1).sum()), int(tested.sum())
            what = f"{plural(len(new), 'text')} of column {name!r}, in {rows:,} of the {plural(whole, 'row')}"
            what = f"{what} of the test part, never occur in training. Are they spelled alike?"
            yield Finding("unseen", str(name), what, error=apart and rows > SELDOM * whole)


def _blank(frame: Any) -> list[str]:
    """Return the cells of spaces alone in a table, each once: they are as empty as those without."""
    texts = [frame.iloc[:, k] for k in range(frame.shape[1]) if is_text(frame.iloc[:, k])]
    return [cell for cell in {each for column in texts for each in column.dropna().unique()} if not str(cell).strip()]


def _check_cells(lines: Any, frame: Any) -> None:
    """Raise `ValueError` if a line has another number of cells than the first, or that names no columns."""
    width = 0
    for line in lines:
        if not width and (why := _as_cells(line, frame)):
            raise ValueError(f"line {lines.line_num} looks like a row of data: {why}")
        if not width and (twice := sorted({name for name in line if name and line.count(name) > 1})):
            raise ValueError(
                f"line {lines.line_num} names {twice[0]!r} twice. Give columns different names, and a line with the "
                "names if there is none"
            )
        width = width or len(line)
        if line and len(line) != width:
            which = "the separator, or " if width == 1 else ""
            raise ValueError(
                f"line {lines.line_num} has {plural(len(line), 'cell')}, and the first line, which names the columns, "
                f"{width}. Correct {which}one of the two"
            )


def _as_cells(names: Sequence[str], frame: Any) -> str:
    """Return why the names of the columns of a table seem to be its first row, without one of them; empty if not.

    They do if most are numbers, words for a missing value, or found in their own columns; or all that stand above
    numbers.  Numbers in equal steps, such as years, are names.
    """
    named = {k: name.strip() for k, name in enumerate(names) if name.strip()}
    numbers = [k for k, name in named.items() if is_number(name) or notation(name)]
    others = [k for k, name in named.items() if k not in {*numbers} and _is_cell(name, frame.iloc[:, k])]
    columns = {k for k in named if frame.dtypes.iloc[k].kind in "iuf"}
    cells = {*numbers, *others}
    if not (2 * len(cells) > len(named) or (columns and columns <= cells)):
        return ""
    if not others and len(numbers) >= LEAST_STEPS and all(is_number(named[k]) for k in numbers):
        steps = np.diff([float(named[k]) for k in numbers])
        if steps[0] > 0 and np.allclose(steps, steps[0]):
            return ""
    return (
        f"{len(cells)} of {plural(len(named), 'name')} are numbers, words for a missing value, or values of their "
        "own columns. Put a line with the names of the columns first. If this is it, put a letter before each number"
    )


def _is_cell(name: str, column: Any) -> bool:
    """Return whether a name that is no number is a word for a missing value, or a value of its own column."""
    if name.lower() in {*MISSING_WORDS, "true", "false"}:
        return True
    return bool(is_text(column) and (column == name).any())


def line_of(path: Path | str, row: int, separator: str) -> int:
    """Return the line of a file of text in which a row begins, both from 1; 0 if the file is none, or has no such row.

    Args:
        path: of the file.
        row: below the line that names the columns.
        separator: what separates columns.
    """
    from pandas.io.common import get_handle  # noqa: PLC0415  (optional)

    if table_reader(str(path)) == "Parquet" or not Path(path).is_file():
        return 0
    with get_handle(path, "r", encoding="utf-8", compression="infer") as opened:
        lines, begun = csv.reader(opened.handle, delimiter=separator), 0
        for line in lines:
            row -= bool(line)
            if row < 0:
                return begun + 1
            begun = lines.line_num
    return 0


@dataclass(frozen=True)
class Parquet(TableFile):
    """A table in a parquet file."""

    @property
    @override
    def dialect(self) -> Dialect:
        return Dialect(missing=self.missing or ())

    @override
    def check_size(self, file: Path) -> None:
        with suppress(ImportError):  # which reading says
            check_parquet(file, self.most_cells)

    @override
    def read(self, file: Path, texts: Collection[str] = (), names: Collection[str] = ()) -> Any:
        try:
            frame = _pandas("Parquet").read_parquet(file)
        except ImportError as error:
            message = f"Parquet needs the package pyarrow. Install it: {installation('tables')}."
            raise ModuleNotFoundError(message) from error
        for name in frame if frame.columns.is_unique else ():
            empty = missing_in(frame[name], ["", *(self.missing or ())], number=not is_text(frame[name]))
            if (empty & ~frame[name].isna()).any():
                frame[name] = frame[name].mask(empty)
        return with_truths(frame)


def _kind(column: Any) -> str:
    """Return what a column holds, in words."""
    return "text" if is_text(column) else "true and false" if column.dtype.kind == "b" else "numbers"


def _in_words(message: str) -> str:
    """Return a message of pandas in plain words, with the remedy."""
    if re.match(r"line \d+ (has|names|looks) ", message):
        return f"{message}."
    for pattern, words in WORDS.items():
        if found := re.fullmatch(pattern, message.strip(), re.DOTALL):
            return found.expand(words)
    return f"{shown(message.rstrip('. '), 200)}. Name another file, or save it again."


def _places(path: str, data_dir: Path | None) -> list[Path]:
    return [Path(path), *([Path(data_dir) / path] if data_dir else [])]


def is_pattern(path: str) -> bool:
    """Return whether a path names several files."""
    return any(sign in path for sign in "*?[")


def check_separator(separator: str) -> None:
    """Raise `ValueError` unless this can separate the columns of a file of text."""
    if len(separator) != 1 or separator in '\r\n"':
        raise ValueError(f"separator must be one character, such as ; or a tab, got {separator!r}.")


def files_of(path: str, data_dir: Path | None) -> list[Path]:
    """Return the file of a path, or the files of a pattern, by name; nothing if there are none."""
    for place in _places(path, data_dir):
        if place.is_file():
            return [place]
        if is_pattern(path):
            files = sorted(Path(file) for file in glob(str(place)) if Path(file).is_file())
            if files:
                return files
    return []


def _digest(files: Sequence[Path]) -> str:
    """Return the SHA-256 of a file; of several, that of their names and digests."""
    if len(files) == 1:
        return file_digest(files[0]) or ""
    return sha256("\n".join(f"{file.name} {file_digest(file)}" for file in files).encode()).hexdigest()


def matched_parts(place: Path, pattern: str) -> list[str]:
    """Return the parts of a path, folders and file, that the wildcards of its pattern matched."""
    signs = Path(pattern).parts
    return [part for part, sign in zip(place.parts[-len(signs) :], signs, strict=True) if is_pattern(sign)]


def owners_of_files(files: Sequence[Path], pattern: str) -> list[str]:
    """Return a name for the owner of each file: what the wildcards matched, without its ending if these differ."""
    named = ["/".join(matched_parts(file, pattern)) for file in files]
    if not is_pattern(Path(pattern).name):
        return named
    stems = ["/".join(matched_parts(file.with_suffix(""), pattern)) for file in files]
    return stems if len({*stems}) == len(stems) else named


def _joined(frames: Sequence[Any]) -> Any:
    """Return the rows of all tables; a column that is empty in one of them has the kind of the others."""
    kinds = {name: frame[name].dtype for frame in frames for name in frame.columns if not frame[name].isna().all()}
    for frame in frames:
        empty = [name for name in frame.columns if frame[name].isna().all() and name in kinds]
        for name in empty:
            frame[name] = frame[name].astype(GAPS.get(kinds[name].kind, kinds[name]))
    return _pandas("A table").concat(frames, ignore_index=True)


def _pandas(name: str) -> Any:
    """Return the package pandas."""
    return optional("pandas", name, "tables")
