"""CSV and parquet files as sources of examples.  They are read by pandas: the extra `tables`."""

import os
import re
import zlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.data.dataset import Dataset
from phalanx.data.sources import Source
from phalanx.data.tables import TableReading, is_text, read_frame
from phalanx.installation import DATA_DIR, installation
from phalanx.reading import file_digest
from phalanx.rng import numpy_generator
from phalanx.wording import plural, shown

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
        path: the file, in the current folder or in the data folder.
        label: column of the labels, integers or text; or of the targets, for a task such as `Regression`.
        test: the file of the test part; if not given, `test_share` of the rows are drawn at random.
        test_share: share of each class, or of each owner's rows if there are owners, in the test part, between 0 and 1.
        owner: column of the natural owner of each example, for the partition `Natural`.
        drop: columns that are no inputs, such as a number of the row.
        class_names: the labels in the order of their numbers; the different labels, sorted, if not given.
        standardize: whether to subtract the mean and divide by the standard deviation of the train part, for each
            column of numbers.
        split_seed: determines which rows are drawn for the test part.
        targets: whether integers in the column of the labels are targets; floating-point numbers always are.
    """

    path: str
    label: str
    test: str | None = None
    test_share: float = 0.2
    owner: str | None = None
    drop: tuple[str, ...] = ()
    class_names: tuple[int | str, ...] | None = None
    standardize: bool = True
    split_seed: int = 0
    targets: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.test_share < 1:
            raise ValueError(f"test_share must be between 0 and 1, both excluded, got {self.test_share}.")

    @property
    def file_digests(self) -> Mapping[str, str]:
        """By field, the SHA-256 of the file that it names, which identifies the data wherever the file lies.

        It is looked for in the current folder, and in that of the environment variable `PHALANX_DATA`.  A file in
        another `data_dir` is identified by its path.
        """
        folder = os.environ.get(DATA_DIR)
        named = {"path": self.path, "test": self.test}
        places = {name: _place(path, Path(folder) if folder else None) for name, path in named.items() if path}
        digests = {name: place and file_digest(place) for name, place in places.items()}
        return {name: digest for name, digest in digests.items() if digest}

    @override
    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; x is float32 of shape (n, inputs).

        Raises:
            ModuleNotFoundError: if pandas, or pyarrow for parquet files, is not installed.
            FileNotFoundError: if there is no such file.
            ValueError: if it is no such table; see `Dataset.from_pandas`.
        """
        return self._parts(None, data_dir)

    def test_as(self, reading: TableReading, data_dir: Path | None = None) -> Dataset:
        """Return the test part, read as another table was: with its columns, scaling and classes.

        Args:
            reading: of the other table, whose labels are in the column `label` here.
            data_dir: see `load`.

        Raises:
            ValueError: a text or a label was not in the other table, or a column is missing here; see `load`.
        """
        return self._parts(reading, data_dir)[1]

    def _parts(self, reading: TableReading | None, data_dir: Path | None) -> tuple[Dataset, Dataset]:
        """Return the train and test part; the train part is empty if it is not needed."""
        pandas = _pandas(type(self).__name__)
        paths = [self.path] if self.test is None else [self.path, self.test] if reading is None else [self.test]
        frames = [self._frame(path, data_dir) for path in paths]
        ours, theirs = (set(frame.columns) for frame in (frames[0], frames[-1]))
        if ours != theirs:
            raise ValueError(
                f"{self.path} and {self.test} must have the same columns; only one of them has "
                f"{', '.join(map(repr, sorted(ours ^ theirs, key=str)))}."
            )
        self._check_kinds(frames[0], frames[-1])
        table = pandas.concat(frames, ignore_index=True)
        try:
            read = read_frame(
                table,
                self.label,
                owner=self.owner,
                drop=self.drop,
                class_names=self.class_names,
                targets=self.targets,
                reading=reading,
            )
        except ValueError as error:
            raise ValueError(f"{' and '.join(paths)}: {error}") from error
        if self.test is None:
            labels = read.y if read.reading.labels else torch.zeros(len(read.y))
            tested = self._drawn(labels if read.owners is None else read.owners)
        else:
            tested = torch.arange(len(table)) >= len(table) - len(frames[-1])
        x, used = read.x, read.reading
        if self.standardize and reading is None:
            used = used.standardizing(x[~tested])
            x = used.scale(x)
        data = Dataset(x, read.y, len(used.labels), read.owners, used)
        return data.of(~tested), data.of(tested)

    def _check_kinds(self, train: Any, test: Any) -> None:
        """Raise `ValueError` if a column is text in one file and numbers in the other."""
        for name in train.columns:
            texts = [path for path, frame in ((self.path, train), (self.test, test)) if is_text(frame[name])]
            if len(texts) == 1 and name not in self.drop:
                raise ValueError(
                    f"Column {name!r} holds text in {texts[0]}, and numbers in the other file of {self.path} and "
                    f"{self.test}. Write it in the same way in both."
                )

    def _drawn(self, groups: Tensor) -> Tensor:
        """Return which examples are for tests: a share of each group, drawn by the stream "test" of `split_seed`."""
        rng, tested = numpy_generator(self.split_seed, "test"), torch.zeros(len(groups), dtype=torch.bool)
        for group in sorted(set(groups.tolist())):
            members = torch.nonzero(groups == group).flatten()
            order = torch.from_numpy(rng.permutation(len(members)))
            tested[members[order[: min(round(self.test_share * len(members)), len(members) - 1)]]] = True
        if not tested.any():
            most, rows = int(torch.unique(groups, return_counts=True)[1].max()), plural(len(groups), "row")
            what = f"column {self.owner or self.label!r} has as many values as rows"
            why = f": {what}, and one row of each value is for training" if most == 1 and len(groups) > 1 else ""
            raise ValueError(
                f"{self.path}: a test part of {self.test_share:g} of {rows} is empty{why}. "
                f"{'Raise test_share, or give' if most > 1 else 'Give'} the test part as a file of its own."
            )
        return tested

    def _frame(self, path: str, data_dir: Path | None) -> Any:
        """Return the table in a file."""
        found = _place(path, data_dir)
        if found is None:
            looked = " or ".join(str(place.absolute()) for place in _places(path, data_dir))
            raise FileNotFoundError(f"{type(self).__name__} finds no file {looked}. Correct the path.")
        if not found.stat().st_size:
            raise ValueError(f"{found} is empty. Name a file with a row for each example.")
        try:
            return self.read(found)
        except UnicodeDecodeError as error:
            raise ValueError(f"{found} is not UTF-8 text. Save it in UTF-8.") from error
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{found} cannot be read as {type(self).__name__}: {_in_words(str(error))}") from error

    @abstractmethod
    def read(self, file: Path) -> Any:
        """Return the table in a file as a pandas `DataFrame`."""


@dataclass(frozen=True)
class CSV(TableFile):
    """A table in a CSV file, whose first line names the columns; it may be compressed (.gz, .zip, ...).

    Args:
        separator: what separates columns.
    """

    separator: str = ","

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.separator) != 1 or self.separator in '\r\n"':
            raise ValueError(f"separator must be one character, such as ; or a tab, got {self.separator!r}.")

    @override
    def read(self, file: Path) -> Any:
        return _pandas("CSV").read_csv(file, sep=self.separator, low_memory=False)


@dataclass(frozen=True)
class Parquet(TableFile):
    """A table in a parquet file."""

    @override
    def read(self, file: Path) -> Any:
        try:
            return _pandas("Parquet").read_parquet(file)
        except ImportError as error:
            message = f"Parquet needs the package pyarrow. Install it: {installation('tables')}."
            raise ModuleNotFoundError(message) from error


def _in_words(message: str) -> str:
    """Return a message of pandas in plain words, with the remedy."""
    for pattern, words in WORDS.items():
        if found := re.fullmatch(pattern, message.strip(), re.DOTALL):
            return found.expand(words)
    return f"{shown(message.rstrip('. '), 200)}. Name another file, or save it again."


def _places(path: str, data_dir: Path | None) -> list[Path]:
    return [Path(path), *([Path(data_dir) / path] if data_dir else [])]


def _place(path: str, data_dir: Path | None) -> Path | None:
    """Return where a file is, None if it is nowhere."""
    return next((place for place in _places(path, data_dir) if place.is_file()), None)


def _pandas(name: str) -> Any:
    """Return the package pandas."""
    try:
        import pandas  # noqa: PLC0415  (optional)
    except ImportError as error:
        message = f"{name} needs the package pandas. Install it: {installation('tables')}."
        raise ModuleNotFoundError(message) from error
    return pandas
