"""Files of reported sizes, and of weights computed from them.

CSV (comma, tab or semicolon, whichever the first line has) or JSON, in UTF-8; `docs/weighting.md` shows both.  If a row
is not one positive integer for each client, all bad rows are named, and nothing is computed.
"""

import csv
import io
import json
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.cli.parser import is_float
from phalanx.reading import contents, decoded
from phalanx.runs.files import replacing, target
from phalanx.wording import shown

STANDARD_INPUT = Path("-")
CLIENT = ("client", "client_id", "id", "name", "site")
SIZE = ("size", "sizes", "reported", "declared", "examples", "num_examples", "n_examples", "samples", "num_samples",
        "n_samples", "n", "n_k", "count")  # fmt: skip
MOST = 10**15  # examples; a larger size is a mistake
LARGEST = 500_000_000  # bytes of a file
LISTED = 10  # number of bad rows in a message
BLOCK = 500  # rows that are read, or written, at a time: few enough to stay in the processor's cache
INTEGER = re.compile(r"\+?[0-9]+(\.0*)?")


class ReportedSizes(NamedTuple):
    """The contents of a file."""

    names: tuple[str, ...]  # names of the clients in it, or "0", "1", ... if there are none
    sizes: "array[int]"  # reported size of client k, whose name is names[k]; 8 bytes each


class _Entry(NamedTuple):
    """One client as in the file, not checked yet."""

    where: str  # "line 3"
    content: str
    client: str | None  # None if clients have no names
    size: str
    fault: str = ""  # why it is invalid, if that is known


class _Columns(NamedTuple):
    client: int | None
    size: int


class _Number(str):
    """A number in a JSON file, as its text."""


class _Object(list[tuple[str, Any]]):
    """An object in a JSON file: keys and values, repeated keys included."""


def read_sizes(
    path: Path,
    client_column: str | None = None,
    size_column: str | None = None,
    *,
    repeats: bool = False,
    zero: bool = False,
) -> ReportedSizes:
    """Read the sizes that clients report.

    Args:
        path: of a CSV or JSON file, or `-` for standard input. A file with another suffix is read as JSON if it begins
            with a bracket.
        client_column: the column, or key, of the clients' names, if it is none of `CLIENT`.
        size_column: the column, or key, of the sizes, if it is none of `SIZE`.
        repeats: whether a client may occur several times, as in a sample with replacement.
        zero: whether a size may be 0, as a count of one class may.

    Raises:
        ValueError: the file is empty, no UTF-8, no CSV or JSON, or columns are ambiguous; or rows are not a client
            with an integer from 1 to 10^15. The message names the first ten of these, with their lines and reasons.
        OSError: the file cannot be opened.
    """
    name = "standard input" if path == STANDARD_INPUT else str(path)
    data = _data(path)
    text = decoded(data, name)
    if not text.strip():
        raise ValueError(f"{name} is empty. Expected the clients and the sizes that they report, as CSV or JSON.")
    suffix = path.suffix.lower()
    as_json = suffix == ".json" or (suffix != ".csv" and text.lstrip()[0] in "[{")
    if as_json:
        del data
    clean = _clean_json(text, client_column, size_column) if as_json else _clean(data, text, client_column, size_column)
    if clean is not None:
        return clean
    try:
        entries = (_from_json if as_json else _from_csv)(text, name, client_column, size_column)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply to be a table of sizes.") from None
    if not entries:
        raise ValueError(f"{name} holds no client. Expected at least one, with the size that it reports.")
    return _checked(entries, name, repeats, int(not zero))


def read_counts(
    path: Path, reported: ReportedSizes, classes: Sequence[str], client_column: str | None = None
) -> list[list[int]]:
    """Read how many examples of each class clients hold, in the order of `reported`.

    Args:
        path: of the CSV or JSON file from which `reported` was read.
        reported: the sizes in that file.
        classes: the columns, or keys, of the counts.
        client_column: as for `read_sizes`.

    Raises:
        ValueError: it is standard input, which is read once; a column is missing; a count is no integer from 0; or the
            counts of a client do not sum to its size.
        OSError: the file cannot be opened.
    """
    if path == STANDARD_INPUT:
        raise ValueError("--classes needs a file: standard input can be read only once.")
    columns = [list(read_sizes(path, client_column, name, zero=True).sizes) for name in classes]
    counts = [list(row) for row in zip(*columns, strict=True)]
    for name, size, row in zip(reported.names, reported.sizes, counts, strict=True):
        if sum(row) != size:
            raise ValueError(
                f"{path}: the counts of client {shown(name, 40)} sum to {sum(row):,}, and its size is {size:,}. "
                "Name the columns of all classes in --classes."
            )
    return counts


def write_weights(path: Path, reported: ReportedSizes, weights: Sequence[float]) -> None:
    """Write client, reported size, weight and share of the weight, by the suffix as .csv or .json.

    Args:
        path: the file.
        reported: the contents of the file of sizes.
        weights: of each client, in the same order.

    Raises:
        ValueError: the suffix is another one, or the folder does not exist.
        OSError: the file cannot be written.
    """
    check_target(path, (".csv", ".json"))
    total, columns = sum(weights), ("client", "reported", "weight", "share")
    rows = zip(reported.names, reported.sizes, weights, (weight / total for weight in weights), strict=True)
    with replacing(target(path)) as binary, io.TextIOWrapper(binary, "utf-8", newline="") as file:
        if path.suffix.lower() == ".csv":
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)
            return
        before = "["
        for block in iter(lambda: list(islice(rows, BLOCK)), []):
            text = json.dumps([dict(zip(columns, row, strict=True)) for row in block], indent=1, ensure_ascii=False)
            file.write(before + text[1:-2])
            before = ","
        file.write("\n]\n")


def check_target(path: Path, allowed: Sequence[str]) -> None:
    """Raise ValueError if a path of output has another suffix, or its folder does not exist."""
    if path.suffix.lower() not in allowed:
        raise ValueError(f"{path} must end in {', '.join(allowed[:-1])} or {allowed[-1]}, which says what it will be.")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}. Make it first, or choose another.")


# Reading


def _data(path: Path) -> bytes:
    if path != STANDARD_INPUT and not path.exists():
        raise ValueError(f"There is no file {path}.")
    if path != STANDARD_INPUT and path.is_dir():
        raise ValueError(f"{path} is a folder. Name a CSV or JSON file in it.")
    return sys.stdin.buffer.read() if path == STANDARD_INPUT else contents(path, LARGEST, own=True)


def _clean(data: bytes, text: str, client_column: str | None, size_column: str | None) -> ReportedSizes | None:
    """Return the contents of a CSV file without faults; None if there may be one, so that each row must be checked.

    Rows are read in blocks, and only names and sizes are kept, so that a million clients take little memory.
    """
    rows: Iterator[list[str]] = filter(None, _reader(io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline=""), text))
    names, sizes = list[str](), array("q")
    try:
        first = next(rows, list[str]())
        columns, begin = _layout([cell.strip() for cell in first], "", client_column, size_column)
        if begin == 0:
            rows = chain([first], rows)
        for block in iter(lambda: list(islice(rows, BLOCK)), []):
            fields = [*zip(*block, strict=True)]  # a ValueError if a row has more fields than another
            if len(fields) != len(first):
                return None
            digits = fields[columns.size]
            together, lengths = "".join(digits), {*map(len, digits)}
            if not (together.isascii() and together.isdigit() and min(lengths) > 0 and max(lengths) < 16):
                return None
            sizes.extend(map(int, digits))
            if columns.client is not None:
                names += map(str.strip, fields[columns.client])
    except (csv.Error, ValueError):  # the other reader says what is wrong
        return None
    return _distinct(names if columns.client is not None else None, sizes)


def _clean_json(text: str, client_column: str | None, size_column: str | None) -> ReportedSizes | None:
    """Return the contents of a JSON file without faults, as `_clean` does."""
    names, sizes = list[str](), array("q")
    columns: tuple[str | None, str] | None = None

    def keep(pairs: list[tuple[str, Any]]) -> Any:
        """Keep name and size of an object of a list, so that the objects need not be held; return a mark of that."""
        nonlocal columns
        if columns is None:
            keys = [key for key, _ in pairs]
            found = _find(keys, "", client_column, size_column)
            columns = None if found.client is None else keys[found.client], keys[found.size]
        row = dict(pairs)
        if len(row) < len(pairs) or type(row[columns[1]]) is not int:
            raise ValueError
        sizes.append(row[columns[1]])
        if columns[0] is not None:
            name = row[columns[0]]
            if type(name) not in (str, int):
                raise ValueError
            names.append(str(name).strip())
        return sizes

    mapping = text.lstrip().startswith("{")
    try:
        value = json.loads(text, object_pairs_hook=_Object if mapping else keep, parse_int=_whole)
        if isinstance(value, _Object) and client_column is None and size_column is None:
            names, whole = [key.strip() for key, _ in value], [size for _, size in value]
        elif isinstance(value, list) and sizes and len(value) == len(sizes) and all(one is sizes for one in value):
            return _distinct(names if names else None, sizes)  # a list of objects, with none in one another
        elif isinstance(value, list) and not sizes and client_column is None and size_column is None:
            names, whole = [], value
        else:
            return None
        del value
        if not all(type(size) is int for size in whole):
            return None
        sizes.extend(whole)
    except (ValueError, KeyError, OverflowError, RecursionError):  # the other reader says what is wrong
        return None
    return _distinct(names if mapping else None, sizes)


def _whole(text: str) -> int | _Number:
    """Return a number of a JSON file, as an integer if it is one of plain digits."""
    return int(text) if text.isdigit() and len(text) < 16 else _Number(text)


def _distinct(names: list[str] | None, sizes: "array[int]") -> ReportedSizes | None:
    """Return sizes that are positive, of clients that have different names or none; None for others."""
    if not sizes or min(sizes) == 0:
        return None
    if names is None:
        return ReportedSizes(tuple(map(str, range(len(sizes)))), sizes)
    distinct = set(names)
    return None if "" in distinct or len(distinct) < len(names) else ReportedSizes(tuple(names), sizes)


def _from_csv(text: str, name: str, client_column: str | None, size_column: str | None) -> list[_Entry]:
    records = _records(text, name)
    first = [cell.strip() for cell in records[0][2]]
    columns, begin = _layout(first, name, client_column, size_column)
    return [_row(f"line {line}", content, cells, len(first), columns) for line, content, cells in records[begin:]]


def _layout(
    first: Sequence[str], name: str, client_column: str | None, size_column: str | None
) -> tuple[_Columns, int]:
    """Return the columns of a table, by its first row, and the number of rows before the data."""
    if client_column is not None or size_column is not None or not _is_data(first):
        return _find(first, name, client_column, size_column), 1
    if len(first) > 2:
        raise ValueError(
            f"{name} has {len(first)} columns and no header that names them. Give it one with `client` and `size`."
        )
    return (_Columns(None, 0) if len(first) == 1 else _Columns(0, 1)), 0


def _reader(lines: Iterable[str], text: str) -> Any:
    """Return a `csv.reader` of lines, with the delimiter that the first line of a text has."""
    first = next(line for line in io.StringIO(text, newline="") if line.strip())
    delimiter = next((d for d in ",\t;" if d in first), ",")
    return csv.reader(lines, delimiter=delimiter, strict=True, skipinitialspace=True)


def _records(text: str, name: str) -> list[tuple[int, str, list[str]]]:
    """Return the number of the first line, the text and the cells of each record; blank lines are none."""
    lines = list(io.StringIO(text, newline=""))  # breaks lines as `csv` does
    reader, records, end = _reader(lines, text), [], 0
    try:
        for cells in reader:
            start, end = end, reader.line_num
            if content := "".join(lines[start:end]).strip():
                records.append((start + 1, content, cells))
    except csv.Error as error:
        raise ValueError(f"{name}, line {end + 1}: this is no CSV ({error}). Is a quotation mark missing?") from None
    return records


def _row(where: str, content: str, cells: Sequence[str], width: int, columns: _Columns) -> _Entry:
    if len(cells) != width:
        return _Entry(where, content, None, "", f"{len(cells)} field{'s' * (len(cells) != 1)}, expected {width}")
    client = None if columns.client is None else cells[columns.client].strip()
    return _Entry(where, content, client, cells[columns.size].strip())


def _is_data(cells: Iterable[str]) -> bool:
    """Return whether a first row is no header: it holds a number, and no known name of a column."""
    return not any(_plain(cell) in CLIENT + SIZE for cell in cells) and any(is_float(cell) for cell in cells)


def _find(names: Sequence[str], name: str, client_column: str | None, size_column: str | None) -> _Columns:
    """Return the columns of clients and sizes."""
    there = f"There are: {', '.join(shown(n, 30) for n in names[:20])}."
    client, size = _one(names, client_column, CLIENT, there, name), _one(names, size_column, SIZE, there, name)
    if size is None:
        known = ", ".join(SIZE)
        raise ValueError(f"{name}: no column has a name known for sizes ({known}). {there} Say which: --size_column.")
    if client is None and len(names) > 1:
        known = ", ".join(CLIENT)
        raise ValueError(
            f"{name}: no column has a name known for clients ({known}). {there} Say which: --client_column."
        )
    return _Columns(client, size)


def _one(names: Sequence[str], given: str | None, known: Sequence[str], there: str, name: str) -> int | None:
    option = "--client_column" if known is CLIENT else "--size_column"
    found = [k for k, n in enumerate(names) if (n == given if given is not None else _plain(n) in known)]
    if len(found) > 1:
        raise ValueError(
            f"{name}: several columns could be meant. {there} Say which: {option}, with a name of its own."
        )
    if given is not None and not found:
        raise ValueError(f"{name} has no column {shown(given)!r}, as {option} says. {there}")
    return found[0] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _from_json(text: str, name: str, client_column: str | None, size_column: str | None) -> list[_Entry]:
    try:
        value = json.loads(
            text, object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_Number
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}, line {error.lineno}: this is no JSON ({error.msg}).") from None
    if isinstance(value, list) and value and not isinstance(value, _Object) and isinstance(value[0], _Object):
        columns = [key for key, _ in value[0]]
        return _objects(value, columns, _find(columns, name, client_column, size_column))
    if client_column is not None or size_column is not None:
        raise ValueError(f"{name} has no columns. --client_column and --size_column are for tables.")
    if isinstance(value, _Object):
        return [_entry(k, f"{key}: {_written(size)}", key, size) for k, (key, size) in enumerate(value, 1)]
    if isinstance(value, list):
        return [_entry(k, _written(size), None, size) for k, size in enumerate(value, 1)]
    raise ValueError(f"{name} must hold a mapping of clients to sizes, or a list, got {shown(_written(value))}.")


def _objects(values: Sequence[Any], names: Sequence[str], columns: _Columns) -> list[_Entry]:
    entries = []
    for k, value in enumerate(values, 1):
        keys = [key for key, _ in value] if isinstance(value, _Object) else []
        wanted = [names[c] for c in columns if c is not None]
        if missing := [key for key in wanted if keys.count(key) != 1]:
            entries.append(_entry(k, _written(value), None, None, f"it needs one {missing[0]}"))
            continue
        row = dict(value)
        client = None if columns.client is None else row[names[columns.client]]
        named = client is None or isinstance(client, str)  # numbers are strings here
        fault = "" if named and (columns.client is None or client is not None) else "the client is no name or number"
        entries.append(_entry(k, _written(value), client if named else None, row[names[columns.size]], fault))
    return entries


def _entry(k: int, content: str, client: str | None, size: Any, fault: str = "") -> _Entry:
    wrong = fault or ("" if isinstance(size, _Number) else "the size is not a number")
    return _Entry(f"entry {k}", content, client if client is None else client.strip(), str(size), wrong)


def _written(value: Any) -> str:
    """Return a value of a JSON file approximately as its text there."""
    if isinstance(value, _Object):
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {_written(v)}" for key, v in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return str(value) if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)


# Checking


def _checked(entries: Sequence[_Entry], name: str, repeats: bool, least: int) -> ReportedSizes:
    faults, seen, names = list[str](), dict[str, _Entry](), list[str]()
    for k, entry in enumerate(entries):
        client = str(k) if entry.client is None else entry.client
        before = seen.setdefault(client, entry)
        why = entry.fault or ("" if client else "the client has no name") or _fault(entry.size, least)
        if not why and before is not entry and not (repeats and before.size == entry.size):
            why = f"the client is there already, on {before.where}".replace("on entry", "as entry")
        if why:
            faults.append(f"  {entry.where}: `{shown(entry.content)}`: {why}")
        names.append(client)
    if faults:
        more = [f"  and {len(faults) - LISTED:,} more"] if len(faults) > LISTED else []
        rows = "rows are" if len(faults) > 1 else "row is"
        head = f"{name}: {len(faults):,} {rows} no client with a size from {least} to 10^15. Nothing was computed."
        raise ValueError("\n".join([head, *faults[:LISTED], *more]))
    return ReportedSizes(tuple(names), array("q", (int(_digits(entry.size) or 0) for entry in entries)))


def _fault(size: str, least: int) -> str:
    """Return why a value is no size of at least 0 or 1; empty if it is one."""
    if not size:
        return "the size is missing"
    if INTEGER.fullmatch(size):
        digits = _digits(size)
        if not digits:
            return "the size is zero" if least else ""
        return "the size is above 10^15" if len(digits) > 16 or int(digits) > MOST else ""
    if not is_float(size) or isnan(float(size)):
        return "the size is not a number"
    number = float(size)
    if not 0 <= number <= MOST:
        return "the size is negative" if number < 0 else "the size is above 10^15"
    return "write the size in plain digits" if number.is_integer() else "the size is not an integer"


def _digits(size: str) -> str:
    """Return the digits of an integer, without leading zeros."""
    return size.partition(".")[0].lstrip("+0")
