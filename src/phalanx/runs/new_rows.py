"""Examples that the models of a run were not trained on."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import torch

from phalanx.core import InfeasibleError
from phalanx.data import Dataset, HeldOut, HuggingFace, Schema, Source
from phalanx.data.table_files import CSV, Parquet, TableFile, files_of, is_pattern, rows_of
from phalanx.runs.record import Record
from phalanx.wording import plural, shown

TABLES = {CSV.__name__, Parquet.__name__}
PATHS = {"path", "test", "schema"}  # of these
FOREIGN = re.compile(r"[/\\]{2}")  # begins a name of a file on another machine
NO_PATHS = {"missing", "label", "owner", "drop"}  # of other sources


class NewRows(NamedTuple):
    """Rows of a table that the models of a run were not trained on.

    Args:
        data: the rows.
        left_out: number of other rows, whose inputs and label are those of a row of the training; None if the rows of
            the training are not known.
    """

    data: Dataset
    left_out: int | None


def own_test_part(record: Record, schema: Schema | None, own: Source, data_dir: Path | None) -> Dataset:
    """Return the test part of a run's own data.

    Args:
        record: of the run.
        schema: of the table that it was trained on; None if it was none.
        own: the run's own data.
        data_dir: where files are looked for as well.

    Raises:
        InfeasibleError: the data is not as it was in training.
    """
    parts = _loaded(own, schema, data_dir)
    if not _as_trained(record, *parts):
        what = own.path if isinstance(own, TableFile) else f"The data {type(own).__name__} of the run"
        raise InfeasibleError(
            f"{what} is not as it was in training, so that it is not known which rows the models were trained on. Name "
            "a file of new rows by --data."
        )
    return parts[1]


def new_rows(
    record: Record,
    schema: Schema,
    source: TableFile,
    own: Source | None,
    data_dir: Path | None,
    *,
    equal_rows: bool = False,
) -> NewRows:
    """Return the rows of a table that the models of a run were not trained on.

    Of a file that the run was trained on those are the rows of its test part. Of another one they are all rows that
    differ from those of the training, which are known if the run's own data is where it was, unchanged.

    Args:
        record: of the run.
        schema: of the table that it was trained on.
        source: the table; its test part, if that is a file of its own.
        own: the run's own data; None if it is not known.
        data_dir: where files are looked for as well.
        equal_rows: whether rows that are equal to one of the training are kept.

    Raises:
        InfeasibleError: it is not known which rows the models were not trained on, or there are none.
        ValueError: it does not fit the schema.
    """
    path, parts = source.test or source.path, None if own is None else _parts(record, own, schema, data_dir)
    inputs, digests = record.kept().index.inputs, {*source.digests(path, data_dir)}
    trained_on = {*(inputs.trained_on if inputs is not None else ())}
    if parts is not None and isinstance(own, TableFile) and digests == {*own.digests(own.path, data_dir)}:
        if own.test is None:
            return NewRows(parts[1], 0)
    elif parts is None and digests & trained_on:
        raise InfeasibleError(
            f"The models were trained on rows of {path}. Leave out --data to evaluate them on the run's own test part, "
            "or name a file of new rows."
        )
    elif parts is None and _is_of(path, _files_in(_data(record), data_dir, skipped="test"), data_dir):
        raise InfeasibleError(
            f"{path} is not as it was in training, so that it is not known which rows the models were trained on. Name "
            "a file of new rows."
        )
    table = schema.read(path, data_dir, source)
    try:
        data = schema.dataset(table, source.most_cells)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if parts is None or data.fingerprint() == parts[1].fingerprint():
        return NewRows(data, None if parts is None else 0)
    known = {*rows_of(parts[0])}
    new = torch.tensor([row not in known for row in rows_of(data)])
    if equal_rows or bool(new.all()):
        return NewRows(data, 0)
    if not new.any():
        raise InfeasibleError(
            f"All {plural(len(new), 'row')} of {path} are equal to rows that the models were trained on. Name a file "
            "of new rows, or, if these are other examples with the same values, give --equal_rows true."
        )
    return NewRows(data.of(new), int((~new).sum()))


def elsewhere(own: Source, data_dir: Path | None) -> str:
    """Return what the data of a run is, in words, if it lies outside the current and the data folder; else nothing.

    A record that was received can name any file of this machine, or have a data set of the hub fetched.

    Args:
        own: the data of a run, as its record says.
        data_dir: the data folder.
    """
    if isinstance(own, HeldOut):
        return elsewhere(own.source, data_dir)
    names = ["path"] if isinstance(own, HuggingFace) else sorted(PATHS)  # whose `test` is no path
    for path in filter(None, (getattr(own, name, None) for name in names)):
        if not _is_near(path, data_dir):
            return f"the file {shown(path)}"
    if isinstance(own, HuggingFace) and own.saved(data_dir) is None:
        return f"the data set {shown(own.path)} of the Hugging Face hub"
    return ""


def _is_near(path: str, data_dir: Path | None) -> bool:
    """Return whether all that a path names lies in the current or the data folder; a link there may lead anywhere."""
    here, data = Path.cwd(), None if data_dir is None else Path(os.path.abspath(data_dir))
    place = Path(os.path.normpath(here / path))
    if Path(path).is_absolute() and data is not None and place.is_relative_to(data):
        return True
    return place.is_relative_to(here) and all(
        found.resolve().is_relative_to(here.resolve()) for found in [place, *files_of(path, None)]
    )


def _is_of(path: str, named: Iterator[PurePath], data_dir: Path | None) -> bool:
    """Return whether a path is one of the files that a record names, or leads to one."""
    own = {Path(os.path.abspath(path)), *(file.resolve() for file in files_of(path, data_dir))}
    return any(fnmatchcase(str(one), str(name)) or one == name for name in named for one in own)


def own_files(record: Record, data_dir: Path | None) -> Iterator[PurePath]:
    """Yield the files that the data of a run names: without links; as pure paths if nobody may look there.

    Args:
        record: of the run.
        data_dir: where they are looked for as well.
    """
    return _files_in(_data(record), data_dir)


def _data(record: Record) -> Any:
    """Return the form of a run's own data; None if it is not known."""
    return record.config.get("data")


def _files_in(form: Any, data_dir: Path | None, skipped: str = "") -> Iterator[PurePath]:
    """Yield the files that a part of a configuration names, apart from those of one field.

    A record may be somebody else's. So a pattern elsewhere, which may match millions of files, and a name that Windows
    would look up on another machine, are only names here.
    Words for missing values and names of columns are no paths, though "*" and "?" look like patterns of some.
    """
    if isinstance(form, str):
        with suppress(OSError, ValueError):  # a text that is no path: too long, or with a zero byte
            if _is_near(form, data_dir) or not (is_pattern(form) or FOREIGN.match(form)):
                yield from (file.resolve() for file in files_of(form, data_dir))
            else:
                yield PurePath(os.path.abspath(form))
    elif isinstance(form, Mapping):
        table = str(form.get("class_path")).rpartition(".")[2] in TABLES
        of = form.get("init_args", {}) if "class_path" in form else form
        for name, value in of.items():
            if name != skipped and (name in PATHS if table else name not in NO_PATHS):
                yield from _files_in(value, data_dir, skipped)
    elif isinstance(form, Sequence):
        for value in form:
            yield from _files_in(value, data_dir, skipped)


def _loaded(own: Source, schema: Schema | None, data_dir: Path | None) -> tuple[Dataset, Dataset]:
    """Return the train and test part; of a table with the scaling of the training, whatever rounding gives here."""
    if schema is None or not isinstance(own, TableFile):
        return own.load(data_dir)
    return schema.parts(schema.as_site(own) if own.schema is not None else own, data_dir)


def _parts(record: Record, own: Source, schema: Schema, data_dir: Path | None) -> tuple[Dataset, Dataset] | None:
    """Return the run's own train and test part; None if they are not there, or not as they were."""
    try:
        parts = _loaded(own, schema, data_dir)
    except (OSError, ValueError):
        return None
    return parts if _as_trained(record, *parts) else None


def _as_trained(record: Record, train: Dataset, test: Dataset) -> bool:
    """Return whether these are the data of a run, as far as its record says."""
    known = {} if record.summary.data is None else record.summary.data.fingerprint
    found = {"train": train.fingerprint, "test": test.fingerprint}
    return all(known[part] == made() for part, made in found.items() if part in known)
