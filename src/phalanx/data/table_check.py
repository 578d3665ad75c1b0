"""What does not fit a schema in the file of a site: errors, and remarks, with the line in the file."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phalanx.data.findings import Finding, as_texts, fills, leaks, zeros
from phalanx.data.table_columns import ReadColumn
from phalanx.data.table_files import CSV, TableFile, line_of
from phalanx.data.table_schema import Schema
from phalanx.data.tables import Name
from phalanx.wording import plural, shown

LEAST_KNOWN = 20  # values from which a unit is judged
APART = 3.0  # deviations between the mean of a schema and the median of a file, from which the unit is in question
QUOTED = ("word", "number", "type", "range")  # findings about cells that can be shown


class TableCheck(NamedTuple):
    """What was found in a file.

    Args:
        file: its path.
        rows: their number; 0 if it cannot be read.
        findings: errors first. No sentence quotes a cell; of a file without a header, names of columns are cells.
        lines: by key of a finding, the line of its first row in a file of text.
        cells: by key of a finding, the cell of its first row. They stay at the site.
        classes: number of rows of each class; empty for targets, or if these do not fit.
        unused: number of columns that the schema does not have.
    """

    file: str
    rows: int
    findings: tuple[Finding, ...]
    lines: Mapping[str, int] = {}
    cells: Mapping[str, str] = {}
    classes: Mapping[Name, int] = {}
    unused: int = 0

    @property
    def errors(self) -> list[Finding]:
        """The findings that are errors."""
        return [one for one in self.findings if one.error]

    @property
    def fits(self) -> bool:
        """Whether there is no error."""
        return not self.errors


def examined(schema: Schema, path: Path | str, source: TableFile | None = None) -> TableCheck:
    """Return what does not fit a schema in a file.

    Args:
        schema: the schema.
        path: of the file.
        source: how it is written; None: as the schema says.

    Raises:
        ModuleNotFoundError: pandas is not installed.
        FileNotFoundError: there is no such file.
    """
    try:
        frame = schema.read(path, source=source)
    except ValueError as error:
        return TableCheck(str(path), 0, (Finding("file", "", str(error)),))
    read = schema.columns(frame)
    errors = schema.check(frame)
    remarks = [*_remarks(schema, frame, read)] if len(frame) else []
    findings = sorted([*errors, *remarks], key=lambda one: not one.error)
    separator = source.separator if isinstance(source, CSV) else schema.writing.delimiter
    lines = {one.key: line for one in findings if one.first and (line := line_of(path, one.first, separator))}
    cells = {one.key: _cell(frame, one) for one in findings if one.first and one.code in QUOTED}
    unused = len({*map(str, frame.columns)} - {each.name for each in schema.fields})
    return TableCheck(str(path), len(frame), tuple(findings), lines, cells, _classes(schema, read), unused)


def _cell(frame: Any, finding: Finding) -> str:
    return shown(repr(str(frame[finding.name].iloc[finding.first - 1])))


def _classes(schema: Schema, read: Mapping[str, ReadColumn]) -> Mapping[Name, int]:
    """Return the number of rows of each class; empty if the target does not fit."""
    target = read.get(schema.target.name)
    if target is None or target.found or not schema.labels:
        return {}
    return {label: int((target.cells == label).sum()) for label in schema.labels}


def _remarks(schema: Schema, frame: Any, read: Mapping[str, ReadColumn]) -> Iterator[Finding]:
    """Yield what may be meant, of the columns that fit."""
    classes = _classes(schema, read)
    for label, count in classes.items():
        if not count:
            yield Finding("empty", str(label), f"No row is of class {label!r}.", error=False)
    inputs = {each.name: read[each.name] for each in schema.inputs_of if each.name in read}
    cells = {name: one.cells for name, one in inputs.items() if not one.found}
    numbers = {name: values for name, values in cells.items() if values.dtype.kind == "f"}
    for each in schema.inputs_of:
        if each.use.scaling is None or each.name not in numbers:
            continue
        known = numbers[each.name][~np.isnan(numbers[each.name])]
        distance = abs(np.median(known) - each.use.scaling.mean) if len(known) >= LEAST_KNOWN else 0.0
        if distance > APART * each.use.scaling.deviation:
            what = f"In most rows column {each.name!r} is more than {APART:g} deviations from the mean of the schema"
            yield Finding("unit", each.name, f"{what}. Is it in another unit?", error=False)
    for name, values in cells.items():
        if (values == None if values.dtype.kind == "O" else np.isnan(values)).all():  # noqa: E711  (of each entry)
            yield Finding("missing", name, f"Column {name!r} is missing in every row.", error=False)
    for name, values in numbers.items():
        if (values == 0).all():
            only = f"Column {name!r} is 0 in every row. If 0 stands for a missing value, say so in the schema."
            yield Finding("zero", name, only, error=False)
    yield from zeros(numbers)
    yield from fills(numbers)
    target = read.get(schema.target.name)
    if classes and target is not None:
        labels = np.unique(as_texts(target.cells), return_inverse=True)[1]
        columns = {name: as_texts(values) if values.dtype.kind == "O" else values for name, values in cells.items()}
        for one in leaks(columns, labels):
            yield replace(one, error=False)


def in_words(found: TableCheck, finding: Finding) -> str:
    """Return the sentence of a finding for the terminal of the site, with line and cell."""
    line, cell = found.lines.get(finding.key), found.cells.get(finding.key)
    where = f" First: line {line}{f', {cell}' if cell else ''}." if line else f" First: {cell}." if cell else ""
    return f"{finding.sentence}{where}"


def outcome(found: TableCheck) -> str:
    """Return in a sentence whether a file fits."""
    if count := len(found.errors):
        return f"{found.file} does not fit: {plural(count, 'error')}."
    classes = ", ".join(f"{label} {number:,}" for label, number in found.classes.items())
    return f"{found.file} fits: {plural(found.rows, 'row')}{f', {classes}' if classes else ''}."
