"""Files of measurements: CSV in UTF-8 with a header line.  Errors name the line."""

import csv
import hashlib
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.reading import contents, decoded
from phalanx.wording import shown

LARGEST = 500_000_000  # bytes of a file
MOST_ROWS = 2_000_000
DIGITS = 18  # of an integer, at most


class TraceLine(NamedTuple):
    """A line of a file."""

    where: str  # "times.csv, line 3"
    cells: Mapping[str, str]  # column -> text


class ClientTrace(NamedTuple):
    """The contents of a file."""

    rows: tuple[TraceLine, ...]
    digest: str  # SHA-256 of the file


def read_trace(file: str, needed: Sequence[str], optional: Sequence[str] = ()) -> ClientTrace:
    """Read a CSV file, comma separated, whose first line names its columns.

    Args:
        file: path of the file.
        needed: the columns that it must have.
        optional: columns that it may have; others are an error.

    Raises:
        ValueError: if there is no such file, it is not UTF-8, or a line does not match the header. The message names
            file and line.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"There is no file {file}. Expected CSV with the columns {', '.join(needed)}.")
    data = contents(path, LARGEST, own=True)
    lines = _lines(file, decoded(data, file))
    names = [cell.strip() for cell in next(lines, (1, []))[1]]
    _check_names(file, names, needed, optional)
    rows = list[TraceLine]()
    for line, cells in lines:
        where = f"{file}, line {line}"
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(names):
            raise ValueError(f"{where}: expected {len(names)} cells ({', '.join(names)}), got {len(cells)}.")
        if len(rows) == MOST_ROWS:
            raise ValueError(f"{file} has more than {MOST_ROWS:,} rows, the most that are read. Take fewer.")
        rows.append(TraceLine(where, dict(zip(names, (cell.strip() for cell in cells), strict=True))))
    if not rows:
        raise ValueError(f"{file} has no row after its header. Expected at least one for each client.")
    return ClientTrace(tuple(rows), hashlib.sha256(data).hexdigest())


def _lines(file: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Return the lines, each with its number and its cells; raise `ValueError` where the text is no CSV."""
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise ValueError(
            f"{file}, line {reader.line_num}: this is no CSV ({error}). Is a quotation mark missing?"
        ) from None


def _check_names(file: str, names: Sequence[str], needed: Sequence[str], optional: Sequence[str]) -> None:
    """Raise `ValueError` unless the columns are the needed ones and any of the optional ones."""
    fine = set(needed) <= set(names) <= {*needed, *optional} and len(set(names)) == len(names)
    if not fine:
        more = f" and optionally {', '.join(optional)}" if optional else ""
        got = shown(", ".join(names), 200) or "nothing"
        raise ValueError(f"{file}, line 1: expected the columns {', '.join(needed)}{more}, got {got}.")


def whole(row: TraceLine, column: str) -> int:
    """Return the integer in a cell, at least 0; raise `ValueError` with file and line if it holds none."""
    text = row.cells[column]
    plain = text.isascii() and text.isdigit()
    if not plain or len(text) > DIGITS:
        most = f" and at most {DIGITS} digits" if plain else ""
        raise ValueError(
            f"{row.where}: {column} must be an integer of at least 0{most}, got {shown(text) or 'nothing'!r}."
        )
    return int(text)


def number(row: TraceLine, column: str) -> float:
    """Return the finite number in a cell; raise `ValueError` with file and line if it holds none."""
    text = row.cells[column]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{row.where}: {column} must be a number of seconds, got {shown(text) or 'nothing'!r}.")
    return value
