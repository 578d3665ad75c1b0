"""What does not fit a schema in the file of a site: errors, and remarks, with the line in the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from phalanx.data.findings import Finding
from phalanx.data.table_files import CSV, TableFile, line_of
from phalanx.data.table_remarks import classes_in, remarks_on
from phalanx.data.table_schema import Schema
from phalanx.data.tables import Name
from phalanx.wording import plural, shown

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
        images: whether its rows are images.
    """

    file: str
    rows: int
    findings: tuple[Finding, ...]
    lines: Mapping[str, int] = {}
    cells: Mapping[str, str] = {}
    classes: Mapping[Name, int] = {}
    unused: int = 0
    images: bool = False

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
    if schema.images is not None:
        return _examined_images(schema, path)
    try:
        frame = schema.read(path, source=source)
    except ValueError as error:
        return TableCheck(str(path), 0, (Finding("file", "", str(error)),))
    read = schema.columns(frame)
    errors = [*schema.check(frame), *schema.few(len(frame))]
    remarks = [*remarks_on(schema.inputs_of, schema.target, read)]
    findings = sorted([*errors, *remarks], key=lambda one: not one.error)
    separator = source.separator if isinstance(source, CSV) else schema.writing.delimiter
    lines = {one.key: line for one in findings if one.first and (line := line_of(path, one.first, separator))}
    quoted = [one for one in findings if one.first and one.code in QUOTED]
    cells = {one.key: shown(repr(str(frame[one.name].iloc[one.first - 1]))) for one in quoted}
    unused = len({*map(str, frame.columns)} - {each.name for each in schema.fields})
    return TableCheck(str(path), len(frame), tuple(findings), lines, cells, classes_in(schema.target, read), unused)


def _examined_images(schema: Schema, path: Path | str) -> TableCheck:
    """Return what does not fit a schema in a folder of images, or a CSV file of their paths."""
    try:
        found = schema.pictures(schema.image_source(str(path)))
    except ValueError as error:
        return TableCheck(str(path), 0, (Finding("file", "", str(error)),))
    findings = tuple(sorted(found.found, key=lambda one: not one.error))
    return TableCheck(str(path), len(found.files), findings, {}, found.firsts, found.classes, images=True)


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
    rows = plural(found.rows, "image" if found.images else "row")
    return f"{found.file} fits: {rows}{f', {classes}' if classes else ''}."
