"""The schema of a table, or of images: what they are, and how they become the inputs, labels and targets of a model.

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
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from msgspec import Meta, field
from torch import Tensor

from phalanx.data.dataset import Dataset
from phalanx.data.findings import Finding, plainly
from phalanx.data.image_form import Images, Refused, by_code
from phalanx.data.images import ImageFile, ImageFolder, ImageSource, ImageTable
from phalanx.data.table_ceilings import MOST_CELLS
from phalanx.data.table_columns import DATES, LISTED, Cells, Field, Imputation, ReadColumn, Role, Scaling, Use, gap
from phalanx.data.table_files import CSV, Parquet, TableFile, split
from phalanx.data.table_remarks import remarks_on
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
UNTRAINED_IMAGES = "Correct it, or leave them out: no model was trained on it"
TOLD = 5  # columns of which an error tells what does not fit
# What pandas takes for a missing value, and a schema says in so many words.
USUAL = ("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
         "NULL", "NaN", "None", "n/a", "nan", "null")  # fmt: skip


class UnfitTableError(ValueError):
    """A table, or images, do not fit a schema.

    Attributes:
        found: what does not fit; no sentence quotes a cell or the name of an image.
        schema: the schema.
    """

    def __init__(self, found: tuple[Finding, ...], schema: "Schema") -> None:
        more = f" {plural(len(found) - TOLD, 'column')} more do not fit." if len(found) > TOLD else ""
        super().__init__(" ".join(one.sentence for one in found[:TOLD]) + more)
        self.found, self.schema = found, schema


class Writing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How a file of text writes a table, and how many rows a site must have.

    Args:
        contract: version of this part of the format.
        delimiter: what separates columns.
        decimal: the sign before decimals.
        thousands: the sign between groups of digits; None if there is none.
        least_rows: rows below which a site takes no part, and sends no statistics; unset if there is no such number.
        images: what the images are whose classes are the target; unset for a table.
    """

    contract: Literal[1] = 1
    delimiter: str = ","
    decimal: str = "."
    thousands: str | None = None
    least_rows: Annotated[int, Meta(ge=1)] | msgspec.UnsetType = msgspec.UNSET
    images: Images | msgspec.UnsetType = msgspec.UNSET


class Schema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", dict=True):
    """The columns of a table, and how they become the inputs, labels and targets of a model; or images, and classes.

    Columns are found by name; others of a table are not used.

    Attributes:
        fields: the columns; the inputs of a model are in their order. Of images, the target alone.
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
        if self.images is not None:
            if wrong := self.images.wrong:
                raise ValueError(wrong)
            if len(self.fields) != 1 or self.fields[0].use.role != "target" or self.fields[0].type != "string":
                raise ValueError("a schema of images must have one column, a target of type string with their classes")
            return
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
            raise ValueError(f"{name} is not a schema: {str(error).rstrip('.')}.") from error

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
        if reading.schema:
            return Schema.parse(reading.schema.encode(), SCHEMA_FILE)
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

    def asking(self, rows: int) -> "Schema":
        """Return the schema for sites of so many rows at least."""
        writing = msgspec.structs.replace(self.writing, least_rows=rows)
        return Schema.parse(msgspec.structs.replace(self, writing=writing).json, "--least_rows")

    # --- parts

    @property
    def images(self) -> Images | None:
        """What the images are; None for a table."""
        return self.writing.images if isinstance(self.writing.images, Images) else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return (len(self.reading.columns),) if self.images is None else self.images.shape

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
            schema=self.json.decode(),
        )

    @property
    def dialect(self) -> Dialect:
        """How a file of text writes the table."""
        return Dialect(self.writing.delimiter, self.writing.decimal, self.writing.thousands, self._words)

    @property
    def _words(self) -> tuple[str, ...]:
        return tuple(word for word in self.missing_values if word)

    def source(self, path: str) -> TableFile:
        """Return a file as a source: parquet by its ending, else CSV as the schema says that it is written.

        Raises:
            ValueError: the schema is one of images.
        """
        self._check_table()
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

    def _check_table(self) -> None:
        """Raise `ValueError` if this is a schema of images."""
        if self.images is not None:
            raise ValueError(
                "The schema describes images, and no table. Give a folder of images, or a CSV file of their paths."
            )

    def image_source(self, path: str) -> ImageSource:
        """Return a folder of images, with a folder for each class, or a CSV file of their paths, as a source."""
        if table_reader(path):
            column = "" if self.images is None else self.images.column
            return ImageTable(path, image=column, label=self.target.name, separator=self.writing.delimiter)
        return ImageFolder(path)

    def as_site(self, source: TableFile) -> TableFile:
        """Return the file of a site as it writes it, in which the words of this schema are missing values as well.

        Signs that a source does not set are those of the schema, if it names that.
        """
        words, by = dict.fromkeys([*self._words, *(source.missing or ())]), self.dialect
        if isinstance(source, CSV) and source.schema is not None:
            signs: dict[str, Any] = {"separator": by.separator, "decimal": by.decimal, "thousands": by.thousands}
            usual = CSV("", "")
            source = replace(source, **{n: v for n, v in signs.items() if getattr(source, n) == getattr(usual, n)})
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
        self._check_table()
        return (source or self.source(str(path))).frame(str(path), data_dir, *self._texts_and_names)

    def parts(self, source: TableFile | ImageSource, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """Return the train and test part of a source, with the scaling and the classes of this schema.

        Args:
            source: the file or files.
            data_dir: where they are looked for as well.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is no such table, or does not fit.
        """
        if isinstance(source, ImageSource):
            return self.pictures(source, data_dir).split(source, self)
        self._check_table()
        table, last = source.rows(data_dir, *self._texts_and_names)
        data = self.dataset(table, source.most_cells)
        return split(data, source.tested(data.y, data.owners, last))

    def pictures(self, source: ImageSource, data_dir: Path | None = None) -> "Pictures":
        """Return images as this schema says, and which of them do not fit.

        Args:
            source: where they are.
            data_dir: where they are looked for as well.

        Raises:
            FileNotFoundError: there are none.
            InfeasibleError: there are more or larger images than the ceilings.
            ValueError: names of files lead elsewhere, or the schema is one of a table.
        """
        form, target = self.images, self.target
        if form is None:
            raise ValueError("The schema describes a table, and no images. Give a table, by CSV or Parquet.")
        files, findings, last = source.gathered(data_dir)
        refused, number = list[Refused](), {label: k for k, label in enumerate(self.labels)}
        for label, others in target.use.aliases.items():
            number |= {str(other): number[label] for other in others}
        y = torch.tensor([number.get(one.label, -1) for one in files])
        refused += [Refused("word", i, f"{one.name} is {one.label!r}") for i, one in enumerate(files) if y[i] < 0]
        x = source.pixels(files, form, refused)
        if form.mean:
            x.sub_(torch.tensor(form.mean)[:, None, None]).div_(torch.tensor(form.deviation)[:, None, None])
        found, firsts = [*findings, *self.few(len(files))], dict[str, str]()
        for group in by_code(refused):
            code, first = group[0].code, group[0].place + 1
            listed = f"another class than {', '.join(map(repr, self.labels[:LISTED]))}. {UNTRAINED_IMAGES}"
            what = f"{len(group)} of {plural(len(files), 'image')}: {listed if code == 'word' else form.remedy(code)}."
            found.append(Finding(code, target.name, what, rows=len(group), first=first))
            firsts[found[-1].key] = group[0].sentence.rstrip(".")
        counts = {label: int((y == k).sum()) for k, label in enumerate(self.labels)}
        return Pictures(files, x, y, tuple(found), firsts, last, {k: n for k, n in counts.items() if n})

    @property
    def _texts_and_names(self) -> tuple[list[str], list[str]]:
        """The columns that are read as text, and those that are read as names."""
        texts = [each for each in self.fields if each.type == "string" or each.pattern]
        used = [each for each in texts if each.use.role in ("input", "target")]
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

    def few(self, rows: int) -> Iterator[Finding]:
        """Yield an error if a site has too few rows to take part."""
        least = self.writing.least_rows
        if isinstance(least, int) and rows < least:
            what, unit = ("The table has", "row") if self.images is None else ("The site has", "image")
            asked = f"{what} {plural(rows, unit)}, and the schema asks each site for {least}"
            yield Finding("rows", "", f"{asked}: it takes no part. Give more {unit}s.")

    def inputs(self, frame: Any) -> Tensor:
        """Return the inputs of each row of a pandas `DataFrame`, (n, inputs), float32.

        Raises:
            TypeError: `frame` is no `DataFrame`.
            ValueError: it does not fit; see `check`.
        """
        return self._inputs(self._checked(frame, labels=False))

    def dataset(self, frame: Any, most: int = MOST_CELLS) -> Dataset:
        """Return the examples in the rows of a table, all of them, with their labels or targets.

        Args:
            frame: a pandas `DataFrame`, or the path of a file.
            most: the largest number of inputs of all rows.

        Raises:
            TypeError: `frame` is neither.
            ValueError: it does not fit; see `check`.
        """
        table = self.read(frame) if isinstance(frame, Path | str) else frame
        read = self._checked(table, labels=True)
        found = tuple(remarks_on(self.inputs_of, self.target, read))
        target, owners, holders = read[self.target.name].cells, None, tuple[Name, ...]()
        if self.labels:
            number = {label: k for k, label in enumerate(self.labels)}
            y = torch.tensor([number[label] for label in target.tolist()], dtype=torch.int64)
        else:
            y = torch.from_numpy(target.astype(np.float32))
        held = FILE if FILE in table.columns else None if self.owner is None else self.owner.name
        if held is not None and held in table.columns:
            holders, owners = owners_in(table[held])
        x, own = self._inputs(read, most), replace(self.reading, owners=holders)
        return Dataset(x, y, len(self.labels), owners, own, found)

    def _inputs(self, read: Mapping[str, ReadColumn], most: int = MOST_CELLS) -> Tensor:
        cells: dict[Name, Cells] = {each.name: read[each.name].cells for each in self.inputs_of}
        scaled = self.reading.scale(self.reading.raw(cells, most))
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


class Pictures(NamedTuple):
    """Images that a schema describes.

    Args:
        files: the images.
        x: (n, channels, height, width); of those that do not fit, anything.
        y: (n,), their classes; -1 for one that the schema does not have.
        found: what does not fit, and remarks; no sentence has the name of an image that does not fit.
        firsts: by key of a finding, what is wrong with the first image. It stays at the site.
        last: number of images of a part for tests.
        classes: number of images of each class that there is.
    """

    files: list[ImageFile]
    x: Tensor
    y: Tensor
    found: tuple[Finding, ...]
    firsts: Mapping[str, str]
    last: int
    classes: Mapping[Name, int]

    def checked(self, schema: Schema) -> tuple[Finding, ...]:
        """Return the remarks; raise `UnfitTableError` unless all images fit."""
        if errors := tuple(one for one in self.found if one.error):
            raise UnfitTableError(errors, schema)
        return self.found

    def split(self, source: ImageSource, schema: Schema) -> tuple[Dataset, Dataset]:
        """Return the examples of training, and those for tests; raise `UnfitTableError` unless all images fit."""
        data = self.whole(schema)
        return source.split(self.files, data, source.tested(self.files, self.y, self.last))

    def whole(self, schema: Schema) -> Dataset:
        """Return all examples; raise `UnfitTableError` unless all images fit."""
        remarks = self.checked(schema)
        return Dataset(self.x, self.y, len(schema.labels), None, schema.reading, remarks)


TableFile.schema_in = staticmethod(Schema.load)


def _twice(described: Field) -> Finding:
    return Finding("column", described.name, f"Column {described.name!r} occurs twice. Leave out one.")


def dates(name: str, pattern: str, use: Use) -> Field:
    """Return the description of a column of dates that are written in a way."""
    kind: Literal["date", "datetime"] = "datetime" if "%H" in pattern else "date"
    return Field(name=name, type=kind, format="" if pattern == DATES[kind] else pattern, use=use)


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
    use = Use(scaling=scaling, impute=impute)
    if first.date:
        return dates(name, first.date, use)
    return Field(name=name, type="boolean" if first.boolean else "number", use=use)


def _inputs_of(described: Field) -> Iterable[InputColumn]:
    """Yield the inputs that a column becomes."""
    impute, scaling = described.use.impute, described.use.scaling
    fill = None if impute is None else impute.value or 0.0
    if described.type == "string":
        yield from (InputColumn(described.name, str(each), fill=fill) for each in described.categories)
    else:
        boolean = described.type == "boolean"
        mean, deviation = (0.0, 1.0) if scaling is None else (scaling.mean, scaling.deviation)
        days = described.pattern
        yield InputColumn(described.name, mean=mean, deviation=deviation, fill=fill, boolean=boolean, date=days)
    if impute is not None and impute.indicator:
        yield InputColumn(described.name, gap=True, fill=0.0)
