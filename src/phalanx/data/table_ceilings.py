"""The ceiling of a table, found before its cells are in memory: a small file can stand for a very large table."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from phalanx.errors import InfeasibleError

MOST_CELLS = 100_000_000  # rows times columns: 0.8 GB as numbers of 64 bits
BYTES = 32  # of text for each of its cells, or for each of a quarter of the most
MOST_COLUMNS = 100_000
BLOCK = 1 << 20  # bytes that are read at a time
DAMAGED = (OSError, EOFError, ValueError, RuntimeError)  # of a file that is no table, of which its reader says more


class TooLargeError(InfeasibleError):
    """A table holds more than the ceiling."""


def check_text(file: Path, separator: str, most: int) -> None:
    """Raise `TooLargeError` if a file of text, compressed or not, holds more than so many cells, or bytes of them."""
    from pandas.io.common import get_handle  # noqa: PLC0415  (optional)

    size, cells, ends = 0, 0, (separator.encode(), b"\n")
    with suppress(*DAMAGED), get_handle(file, "rb", compression="infer", is_text=False) as opened:
        while size <= most * BYTES and cells <= most and (block := opened.handle.read(BLOCK)):
            size += len(block)
            cells += sum(map(block.count, ends))
    _check(file, cells, size, most)


def check_columns(file: Path, count: int) -> None:
    """Raise `TooLargeError` if a file has more columns than a table may have; each costs more than its cells."""
    if count > MOST_COLUMNS:
        raise TooLargeError(f"{file} has {count:,} columns, and at most {MOST_COLUMNS:,} are read. Leave some out.")


def check_parquet(file: Path, most: int) -> None:
    """Raise `TooLargeError` if a parquet file holds more than so many cells, or bytes of text in them.

    A text that occurs in many rows is stored once.  So texts are counted as they occur, where they could be too many.
    """
    from pyarrow import ArrowException, parquet  # noqa: PLC0415  (optional)

    size = cells = width = 0
    with suppress(*DAMAGED, ArrowException), parquet.ParquetFile(file) as opened:
        about = opened.metadata
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        columns = [group.column(k) for group in groups for k in range(group.num_columns)]
        width = about.num_columns
        cells = max(about.num_rows * about.num_columns, sum(column.num_values for column in columns))  # lists have more
        stored = sum(column.total_uncompressed_size for column in columns)
        if cells <= most and about.num_rows * stored > BYTES * (most // 4):
            try:
                size = _characters(file, most)
            except ArrowException:  # a kind of column that cannot be counted
                size = most * BYTES + 1
    check_columns(file, width)
    _check(file, cells, size, most)


def _characters(file: Path, most: int) -> int:
    """Return the bytes of all texts of a parquet file; it ends early above the ceiling.

    Lists of texts could be of any length, and are no cells of a table: with them it is above the ceiling.
    """
    from pyarrow import compute, parquet, types  # noqa: PLC0415  (optional)

    numbers = (types.is_primitive, types.is_decimal, types.is_null)
    schema = parquet.read_schema(file)
    kinds = {field.name: field.type.value_type if types.is_dictionary(field.type) else field.type for field in schema}
    if any(map(types.is_nested, kinds.values())):
        return most * BYTES + 1
    texts = [name for name, kind in kinds.items() if not any(of(kind) for of in numbers)]
    size = 0
    if texts:
        with parquet.ParquetFile(file, read_dictionary=texts) as opened:
            for batch in opened.iter_batches(columns=texts):
                size += sum(_length(column, compute) for column in batch.columns)
                if size > most * BYTES:
                    break
    return size


def _length(column: Any, compute: Any) -> int:
    dictionary = hasattr(column, "dictionary")
    lengths = compute.binary_length(column.dictionary if dictionary else column)
    lengths = lengths.take(column.indices) if dictionary else lengths
    return compute.sum(lengths.cast("int64")).as_py() or 0


def _check(file: Path, cells: int, size: int, most: int) -> None:
    if cells > most or size > BYTES * max(cells, most // 4):
        what = f"{most:,} cells" if cells > most else f"{BYTES * max(cells, most // 4):,} bytes of text"
        raise TooLargeError(f"{file} holds more than {what}. If it is meant to, raise most_cells.")
