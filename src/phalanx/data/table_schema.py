"""The schema of a table: what its columns are, and how they become the inputs, labels and targets of a model.

`schema.json` is a Table Schema, version 2 (https://datapackage.org/standard/table-schema/).  What that lacks stands
under `phalanx`: the role of a column, its unit, its scaling, and what takes the place of missing values.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import torch
from msgspec import field
from torch import Tensor

from phalanx.data.dataset import Dataset
from phalanx.data.findings import Finding, plainly
from phalanx.data.table_columns import LISTED, Cells, Field, Imputation, ReadColumn, Role, Scaling, Use, gap
from phalanx.data.table_files import CSV, Parquet, TableFile
from phalanx.data.tables import (
    FILE,
    Dialect,
    InputColumn,
    Name,
    TableReading,
    TargetScale,
    check_frame,
    missing_in,
    owners_in,
)
from phalanx.reading import contents, from_json, table_reader
from phalanx.wording import plural

SCHEMA_FILE = "schema.json"
STANDARD: Final = "https://datapackage.org/profiles/2.0/tableschema.json"
LARGEST = 10_000_000  # bytes of a schema
TOLD = 5  # columns of which an error tells what does not fit
# What pandas takes for a missing value, and a schema says in so many words.
USUAL = ("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
         "NULL", "NaN", "None", "n/a", "nan", "null")  # fmt: skip


class UnfitTableError(ValueError):
    """A table does not fit a schema.

    Attributes:
        found: what does not fit; no sentence quotes a cell.
        schema: the schema.
    """

    def __init__(self, found: tuple[Finding, ...], schema: "Schema") -> None:
        more = f" {plural(len(found) - TOLD, 'column')} more do not fit." if len(found) > TOLD else ""
        super().__init__(" ".join(one.sentence for one in found[:TOLD]) + more)
        self.found, self.schema = found, schema


class Writing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a file of text writes a table.

    Args:
        contract: version of this part of the format.
        delimiter: what separates columns.
        decimal: the sign before decimals.
        thousands: the sign between groups of digits; None if there is none.
    """

    contract: Literal[1] = 1
    delimiter: str = ","
    decimal: str = "."
    thousands: str | None = None


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", dict=True):
    """The columns of a table, and how they become the inputs, labels and targets of a model.

    Columns are found by name; others of a table are not used.

    Attributes:
        fields: the columns; the inputs of a model are in their order.
        missing_values: the words for a missing value.
        writing: how a file of text writes them; `phalanx` in JSON.
        name: of the schema.
        fields_match: "subset": a table may have more columns.
        standard: the format.

    Raises:
        ValueError: a column is described in two ways, or not at all.
    """

    fields: tuple[Field, ...]
    missing_values: tuple[str, ...] = ("",)
    writing: Writing = field(default=Writing(), name="phalanx")
    name: str = ""
    fields_match: Literal["subset"] = "subset"
    standard: Literal["https://datapackage.org/profiles/2.0/tableschema.json"] = field(default=STANDARD, name="$schema")

    def __post_init__(self) -> None:
        names = Counter(each.name for each in self.fields)
        if twice := [name for name, times in names.items() if times > 1]:
            raise ValueError(f"Column {twice[0]!r} occurs twice. Leave out one")
        words = {*self.missing_values}
        for each in self.fields:
            if each.wrong:
                raise ValueError(f"Column {each.name!r} {each.wrong}")
            if each.missing_values and not words <= (own := {*each.missing_values}):
                lacking = min(words - own)
                raise ValueError(
                    f"Column {each.name!r} lacks {lacking!r} among its missingValues, which the table has. Add it"
                )
        if len(self._of("target")) != 1 or len(self._of("owner")) > 1 or not self._of("input"):
            raise ValueError(
                "there must be one column of role target, one at most of role owner, and some of role input"
            )

    def _of(self, role: Role) -> list[Field]:
        return [each for each in self.fields if each.use.role == role]

    # --- forms

    @staticmethod
    def load(path: Path | str) -> "Schema":
        """Read a schema from a file.

        Raises:
            OSError: it cannot be read.
            ValueError: it holds no schema; the message says where.
        """
        return Schema.parse(contents(Path(path), LARGEST), str(path))

    @staticmethod
    def parse(text: bytes, name: str) -> "Schema":
        """Return the schema in a JSON text; raise `ValueError` if it is none.

        Args:
            text: the JSON.
            name: of the file, for messages.
        """
        try:
            return from_json(text, Schema)
        except ValueError as error:
            raise ValueError(f"{name} is not a schema of a table: {str(error).rstrip('.')}.") from error

    @property
    def json(self) -> bytes:
        """The text of `schema.json`."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the JSON form with sorted keys, without its own name, titles and descriptions."""
        bare = [msgspec.structs.replace(each, title="", description="") for each in self.fields]
        plain = msgspec.structs.replace(self, fields=tuple(bare), name="")
        return f"sha256:{sha256(msgspec.json.encode(plain, order='sorted')).hexdigest()}"

    @staticmethod
    def of(reading: TableReading) -> "Schema":
        """Return the schema of a table that was read: columns, texts, scaling, classes, how its file is written."""
        target, writes = reading.target, reading.dialect
        whole = reading.labels and not any(isinstance(label, str) for label in reading.labels)
        scaling = None if target is None else Scaling(mean=target.mean, deviation=target.deviation)
        fields = [_field(str(name), of) for name, of in reading.by_name.items()]
        if reading.owner not in (None, FILE):
            fields.append(Field(name=str(reading.owner), type="string", use=Use(role="owner")))
        fields += [Field(name=str(name), type="string", use=Use(role="dropped")) for name in reading.dropped]
        kind: Literal["integer", "string", "number"] = "integer" if whole else "string" if reading.labels else "number"
        use = Use(role="target", scaling=scaling, aliases=dict(reading.joined))
        fields.append(Field(name=str(reading.label), type=kind, categories=reading.labels, use=use))
        words = USUAL if writes.missing is None else writes.missing
        writing = Writing(delimiter=writes.separator, decimal=writes.decimal, thousands=writes.thousands)
        return Schema(fields=tuple(fields), missing_values=("", *words), writing=writing)

    # --- parts

    @property
    def inputs_of(self) -> list[Field]:
        """The columns of the inputs, in their order."""
        return self._of("input")

    @property
    def target(self) -> Field:
        """The column of the labels or targets."""
        return self._of("target")[0]

    @property
    def owner(self) -> Field | None:
        """The column of the owners; None if there is none."""
        return next(iter(self._of("owner")), None)

    @property
    def labels(self) -> tuple[Name, ...]:
        """The classes, by number; empty for targets."""
        return self.target.categories

    @property
    def pooled(self) -> tuple[str, ...]:
        """The columns whose scaling is pooled, so that one site that lied moved it as far as it liked."""
        scaled = ((each.name, each.use.scaling) for each in self.fields)
        return tuple(name for name, scaling in scaled if scaling is not None and scaling.rule == "pooled")

    def missing_in(self, described: Field) -> tuple[str, ...]:
        """Return the words for a missing value in a column."""
        return self.missing_values if described.missing_values is None else described.missing_values

    @cached_property
    def reading(self) -> TableReading:
        """How rows become inputs, in the form in which they are computed."""
        scaling = self.target.use.scaling
        return TableReading(
            columns=tuple(chain.from_iterable(map(_inputs_of, self.inputs_of))),
            labels=self.labels,
            target=None if scaling is None else TargetScale(scaling.mean, scaling.deviation),
            joined=tuple(self.target.use.aliases.items()),
            label=self.target.name,
            owner=None if self.owner is None else self.owner.name,
            dropped=tuple(each.name for each in self._of("dropped")),
            dialect=self.dialect,
        )

    @property
    def dialect(self) -> Dialect:
        """How a file of text writes the table."""
        return Dialect(self.writing.delimiter, self.writing.decimal, self.writing.thousands, self._words)

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(word for word in self.missing_values if word)

    def source(self, path: str) -> TableFile:
        """Return a file as a source: parquet by its ending, else CSV as the schema says that it is written."""
        by = self.dialect
        if table_reader(path) == "Parquet":
            return Parquet(path, self.target.name, missing=by.missing)
        return CSV(
            path,
            self.target.name,
            separator=by.separator,
            decimal=by.decimal,
            thousands=by.thousands,
            missing=by.missing,
        )

    def as_site(self, source: TableFile) -> TableFile:
        """Return the file of a site as it writes it, in which the words of this schema are missing values as well."""
        words = dict.fromkeys([*self._words, *(source.missing or ())])
        return replace(source, missing=tuple(words))

    # --- tables

    def read(self, path: Path | str, data_dir: Path | None = None, source: TableFile | None = None) -> Any:
        """Return the table in a file as a pandas `DataFrame`, with columns of text as text, whatever it looks like.

        Args:
            path: of the file; or a pattern, such as `sites/*.csv`.
            data_dir: where it is looked for as well.
            source: how it is written; None: as the schema says.

        Raises:
            ModuleNotFoundError: pandas is not installed.
            FileNotFoundError: there is no such file.
            ValueError: it is no such table.
        """
        return (source or self.source(str(path))).frame(str(path), data_dir, *self._texts_and_names)

    def parts(self, source: TableFile, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part of a source, with the scaling and the classes of this schema.

        Args:
            source: the file or files.
            data_dir: where they are looked for as well.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no such table, or does not fit.
        """
        table, last = source.rows(data_dir, *self._texts_and_names)
        data = self.dataset(table)
        tested = source.tested(data.y, data.owners, last)
        return data.of(~tested), data.of(tested)

    @property
    def _texts_and_names(self) -> tuple[list[str], list[str]]:
        """The columns that are read as text, and those that are read as names."""
        used = [each for each in self.fields if each.type == "string" and each.use.role in ("input", "target")]
        return [each.name for each in used], [] if self.owner is None else [self.owner.name]

    def check(self, frame: Any, *, labels: bool = True) -> tuple[Finding, ...]:
        """Return what does not fit the schema in a table: errors, and remarks.  No sentence quotes a cell.

        Args:
            frame: a pandas `DataFrame`.
            labels: whether it must have the column of the target.

        Raises:
            TypeError: `frame` is no `DataFrame`.
        """
        return tuple(
            chain(
                self._columns(frame, labels=labels),
                *(read.found for read in self.columns(frame, labels=labels).values()),
                self._owners(frame) if labels else (),
            )
        )

    def inputs(self, frame: Any) -> Tensor:
        """Return the inputs of each row of a pandas `DataFrame`, (n, inputs), float32.

        Raises:
            TypeError: `frame` is no `DataFrame`.
            ValueError: it does not fit; see `check`.
        """
        return self._inputs(self._checked(frame, labels=False))

    def dataset(self, frame: Any) -> Dataset:
        """Return the examples in the rows of a table, all of them, with their labels or targets.

        Args:
            frame: a pandas `DataFrame`, or the path of a file.

        Raises:
            TypeError: `frame` is neither.
            ValueError: it does not fit; see `check`.
        """
        table = self.read(frame) if isinstance(frame, Path | str) else frame
        read = self._checked(table, labels=True)
        target, owners, holders = read[self.target.name].cells, None, tuple[Name, ...]()
        if self.labels:
            number = {label: k for k, label in enumerate(self.labels)}
            y = torch.tensor([number[label] for label in target.tolist()], dtype=torch.int64)
        else:
            y = torch.from_numpy(target.astype(np.float32))
        held = FILE if FILE in table.columns else None if self.owner is None else self.owner.name
        if held is not None and held in table.columns:
            holders, owners = owners_in(table[held])
        return Dataset(self._inputs(read), y, len(self.labels), owners, replace(self.reading, owners=holders))

    def _inputs(self, read: Mapping[str, ReadColumn]) -> Tensor:
        cells: dict[Name, Cells] = {each.name: read[each.name].cells for each in self.inputs_of}
        scaled = self.reading.scale(self.reading.raw(cells))
        if (infinite := ~scaled.isfinite().all(0)).any():
            column = self.reading.columns[int(infinite.int().argmax())].name
            raise ValueError(f"Column {column!r} is infinite once it is scaled. Correct its scaling in the schema.")
        return scaled

    def _checked(self, frame: Any, *, labels: bool) -> Mapping[str, ReadColumn]:
        """Return the columns of a table; raise `ValueError` unless it fits."""
        read = self.columns(frame, labels=labels)
        found = [*self._columns(frame, labels=labels), *chain.from_iterable(each.found for each in read.values())]
        found += self._owners(frame) if labels else ()
        if errors := tuple(one for one in found if one.error):
            raise UnfitTableError(errors, self)
        return read

    def _wanted(self, labels: bool) -> list[Field]:
        return [*self.inputs_of, *([self.target] if labels else [])]

    def _columns(self, frame: Any, *, labels: bool) -> Iterator[Finding]:
        """Yield what is wrong with the names of the columns, and the number of rows."""
        check_frame(frame)
        names = Counter(map(str, frame.columns))
        known = {each.name for each in self.fields} | {FILE}
        others = [name for name in names if name not in known]
        spelled = dict[str, list[str]]()
        for name in others:
            spelled.setdefault(plainly(name), []).append(name)
        wanted = [each.name for each in self._wanted(labels)]
        if len(wanted) > 1 and not {*map(plainly, wanted)} & {*map(plainly, names)}:
            listed = ", ".join(map(repr, wanted[:LISTED])) + (", ..." if len(wanted) > LISTED else "")
            how = f"The first line of a file names them, separated by {self.writing.delimiter!r}"
            yield Finding("column", wanted[0], f"None of the columns is there: {listed}. {how}.")
            return
        for each in self._wanted(labels):
            if names[each.name] > 1:
                yield _twice(each)
            if each.name not in names:
                alike = spelled.get(plainly(each.name), [])
                hint = f" Is it {alike[0]!r}?" if alike else ""
                yield Finding("column", each.name, f"Column {each.name!r} is missing.{hint} Add it, or rename one.")
        if others:
            listed = ", ".join(map(repr, others[:LISTED])) + (", ..." if len(others) > LISTED else "")
            yield Finding("unused", others[0], f"Not used, as the schema has no such column: {listed}.", error=False)
        if not len(frame):
            yield Finding("rows", "", "The table has no rows. Give it a row for each example.")

    def columns(self, frame: Any, *, labels: bool = True) -> Mapping[str, ReadColumn]:
        """Return the columns of a table that are described and occur once, by name, with what does not fit.

        Args:
            frame: a pandas `DataFrame`.
            labels: whether the target is read.

        Raises:
            TypeError: `frame` is no `DataFrame`.
        """
        check_frame(frame)
        counts = Counter(map(str, frame.columns))
        places = {str(name): i for i, name in enumerate(frame.columns) if counts[str(name)] == 1}
        wanted = [each for each in self._wanted(labels) if each.name in places]
        return {
            each.name: ReadColumn.of(frame.iloc[:, places[each.name]], each, self.missing_in(each)) for each in wanted
        }

    def _owners(self, frame: Any) -> Iterator[Finding]:
        """Yield what is wrong with the owners of rows, if a table has them."""
        names = [str(name) for name in frame.columns]
        if self.owner is None or FILE in names or not (count := names.count(self.owner.name)):
            return
        if count > 1:
            yield _twice(self.owner)
        elif (empty := missing_in(frame[self.owner.name], self.missing_values, number=False)).any():
            yield gap(self.owner, empty, "Fill these cells, or leave out the rows, or the whole column")


def _twice(described: Field) -> Finding:
    return Finding("column", described.name, f"Column {described.name!r} occurs twice. Leave out one.")


def _field(name: str, of: Sequence[InputColumn]) -> Field:
    """Return the description of a column whose inputs these are."""
    first, texts = of[0], tuple(each.value for each in of if each.value is not None)
    gap = any(each.gap for each in of)
    if texts:
        impute = None if first.fill is None else Imputation(indicator=gap)
        return Field(name=name, type="string", categories=texts, use=Use(impute=impute))
    impute = None if first.fill is None else Imputation(value=first.fill, indicator=gap)
    plain = (first.mean, first.deviation) == (0.0, 1.0)
    scaling = None if plain else Scaling(mean=first.mean, deviation=first.deviation)
    return Field(name=name, type="boolean" if first.boolean else "number", use=Use(scaling=scaling, impute=impute))


def _inputs_of(described: Field) -> Iterable[InputColumn]:
    """Yield the inputs that a column becomes."""
    impute, scaling = described.use.impute, described.use.scaling
    fill = None if impute is None else impute.value or 0.0
    if described.type == "string":
        yield from (InputColumn(described.name, str(each), fill=fill) for each in described.categories)
    else:
        boolean = described.type == "boolean"
        mean, deviation = (0.0, 1.0) if scaling is None else (scaling.mean, scaling.deviation)
        yield InputColumn(described.name, mean=mean, deviation=deviation, fill=fill, boolean=boolean)
    if impute is not None and impute.indicator:
        yield InputColumn(described.name, gap=True, fill=0.0)
