"""A small file that stands for a very large table is refused before it takes the memory."""

import gzip
import resource
import subprocess
import sys
import tracemalloc
import zipfile
from contextlib import suppress
from decimal import Decimal

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import numpy as np
import pandas
import pyarrow
from pyarrow import parquet

from phalanx.data import CSV, Parquet
from phalanx.data.table_ceilings import BYTES, MOST_CELLS, TooLargeError

ROWS = "age,ill\n" + "".join(f"{k},{k % 2}\n" for k in range(50))
GIBI = 1 << 30


def zeros(path, size):
    """A compressed file of text, of so many bytes: one member, many times."""
    member = gzip.compress(b"0,1\n" * (1 << 20))
    with path.open("wb") as file:
        file.write(gzip.compress(b"a,label\n"))
        for _ in range(size // (1 << 22)):
            file.write(member)


def of_one_value(path, rows, text=None):
    """A parquet file in which one value stands for many rows."""
    most = min(rows, 10_000_000)
    dictionary = pyarrow.array([0.0 if text is None else text])
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(most, np.int32)), dictionary)
    table = pyarrow.table({"a": column, "label": pyarrow.array(np.zeros(most, np.int8))})
    with parquet.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for _ in range(rows // most):
            writer.write_table(table)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.zip", "t.parquet"])
def test_the_ceiling_is_that_of_the_source(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        pandas.DataFrame({"age": range(50), "ill": [k % 2 for k in range(50)]}).to_parquet(path)
    elif name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("t.csv", ROWS)
    else:
        path.write_bytes(gzip.compress(ROWS.encode()) if name.endswith("gz") else ROWS.encode())
    kind = Parquet if name.endswith("parquet") else CSV
    train, test = kind(str(path), "ill", most_cells=102).load()
    assert len(train) + len(test) == 50
    with pytest.raises(TooLargeError, match=f"{name} holds more than 99 cells. If it is meant to, raise most_cells"):
        kind(str(path), "ill", most_cells=99).load()


def test_long_texts_count(tmp_path):
    of_one_value(tmp_path / "t.parquet", 4000, "x" * 100)
    with pytest.raises(TooLargeError, match="holds more than 256,000 bytes of text"):
        Parquet(str(tmp_path / "t.parquet"), "label", most_cells=10_000).load()
    (tmp_path / "t.csv").write_text("a,label\n" + f"{'x' * 1000},0\n" * 50)
    with pytest.raises(TooLargeError, match="holds more than 3,264 bytes of text"):
        CSV(str(tmp_path / "t.csv"), "label", most_cells=102).load()


@pytest.mark.parametrize(
    "more",
    [
        pyarrow.array([Decimal("1.5")] * 4000),
        pyarrow.array([b"x" * 16] * 4000, pyarrow.binary(16)),
        pyarrow.array([["x" * 100]] * 4000),
        pyarrow.array(["x" * 100] * 4000, pyarrow.large_string()),
        pyarrow.array([None] * 4000, pyarrow.null()),
    ],
    ids=lambda column: str(column.type),
)
def test_no_kind_of_column_hides_long_texts(tmp_path, more):
    dictionary = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.zeros(4000, np.int32)), pyarrow.array(["x" * 100])
    )
    table = pyarrow.table({"a": dictionary, "more": more, "label": pyarrow.array([0, 1] * 2000)})
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TooLargeError, match="holds more than 384,000 bytes of text"):
        Parquet(str(tmp_path / "t.parquet"), "label", most_cells=12_000).load()


def test_values_of_lists_are_cells(tmp_path):
    table = pyarrow.table({"a": pyarrow.array([[0.0] * 1000] * 4), "label": pyarrow.array([0, 1, 0, 1])})
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(TooLargeError, match="holds more than 3,000 cells"):
        Parquet(str(tmp_path / "t.parquet"), "label", most_cells=3000).load()


def test_numbers_that_texts_become_are_counted(tmp_path):
    (tmp_path / "t.csv").write_text("a,label\n" + "".join(f"v{k},{k % 2}\n" for k in range(50)) * 2)
    table = CSV(str(tmp_path / "t.csv"), "label", most_cells=5000)
    assert table.load()[0].shape == (50,)
    with pytest.raises(TooLargeError, match=r"100 rows of 50 inputs.* are more than 4,999 cells.*raise most_cells"):
        CSV(str(tmp_path / "t.csv"), "label", most_cells=4999).load()


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_columns_have_a_ceiling(tmp_path, monkeypatch, name):
    frame = pandas.DataFrame({"a": [1, 2, 3, 4], "b": [1, 2, 3, 4], "label": [0, 1, 0, 1]})
    frame.to_csv(tmp_path / name, index=False) if name.endswith("csv") else frame.to_parquet(tmp_path / name)
    monkeypatch.setattr("phalanx.data.table_ceilings.MOST_COLUMNS", 2)
    with pytest.raises(TooLargeError, match=r"has 3 columns, and at most 2 are read"):
        (CSV if name.endswith("csv") else Parquet)(str(tmp_path / name), "label").load()


def test_the_identity_of_a_table_does_not_name_the_default():
    assert CSV("t.csv", "y") == CSV("t.csv", "y", most_cells=MOST_CELLS)
    assert MOST_CELLS * BYTES == 3_200_000_000


@pytest.mark.parametrize("role", ["input", "label", "owner"])
def test_one_long_text_does_not_make_all_others_as_long(tmp_path, role):
    """As in an array of NumPy's own type for text: 4 bytes for each character of the longest, in every row."""
    columns = {name: [f"{name}{k % 2}" for k in range(10_000)] for name in ("input", "label", "owner")}
    columns[role][:2] = ["x" * 100_000] * 2  # 4 GB in all rows
    pandas.DataFrame(columns).to_csv(tmp_path / "t.csv", index=False)
    tracemalloc.start()
    with suppress(ValueError):
        CSV(str(tmp_path / "t.csv"), "label", owner="owner").load()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 100_000_000


@pytest.mark.parametrize("kind", ["gz", "numbers", "texts"])
@pytest.mark.slow
def test_a_bomb_does_not_take_the_memory(tmp_path, kind):
    """Each would take more than 8 GB; the process gets 6 GB of addresses, most of which torch reserves."""
    path = tmp_path / ("t.csv.gz" if kind == "gz" else "t.parquet")
    if kind == "gz":
        zeros(path, 4 * GIBI)
    else:
        of_one_value(path, *((600_000_000, None) if kind == "numbers" else (100_000, "x" * 100_000)))
    assert path.stat().st_size < 80_000_000
    source = "CSV" if kind == "gz" else "Parquet"
    code = f"from phalanx.data import {source}; {source}({str(path)!r}, 'label').load()"
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (6 * GIBI, 6 * GIBI))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=limit, check=False)
    assert "TooLargeError" in done.stderr, done.stderr[-500:]
