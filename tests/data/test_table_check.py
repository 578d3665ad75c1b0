"""A file that does not fit a schema is said to be so, with line and cell at the site, and without a cell elsewhere."""

import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data import CSV, Dataset, Schema
from phalanx.data.table_check import examined, in_words
from phalanx.data.table_schema import LARGEST, UnfitTableError

TEXT = """{"fields": [
 {"name": "age", "type": "number", "constraints": {"minimum": 0, "maximum": 120},
  "phalanx": {"scaling": {"mean": 50, "deviation": 10}}},
 {"name": "sex", "type": "string", "categories": ["f", "m"], "phalanx": {"aliases": {"m": ["M", 1], "f": [2]}}},
 {"name": "gap", "type": "number", "missingValues": ["", "?", "-9"], "phalanx": {"impute": {"value": 3}}},
 {"name": "y", "type": "string", "categories": ["well", "ill"],
  "phalanx": {"role": "target", "aliases": {"well": [0], "ill": [1, 2, 3]}}}],
 "missingValues": ["", "?"]}"""
SCHEMA = Schema.parse(TEXT.encode(), "schema.json")
SECRET = "Zx9"


def frame(n=40, **columns):
    rng = np.random.default_rng(0)
    made = {"age": rng.integers(30, 80, n), "sex": rng.choice(["f", "m", "M"], n), "gap": rng.choice([1, 2, -9], n),
            "y": rng.choice([0, 1, 2], n)}  # fmt: skip
    return pd.DataFrame(made | columns)


def found_in(table, folder):
    table.to_csv(folder / "site.csv", index=False)
    return examined(SCHEMA, folder / "site.csv")


def test_a_file_that_fits_is_counted_by_class(tmp_path):
    table = frame()
    found = found_in(table, tmp_path)
    assert found.fits
    assert (found.rows, found.classes) == (40, {"well": (table["y"] == 0).sum(), "ill": (table["y"] > 0).sum()})


def changed(column, value, row=6):
    table = frame().astype({column: object})
    table.loc[row, column] = value
    return table


@pytest.mark.parametrize(
    ("table", "code", "name", "words"),
    [
        (changed("sex", SECRET), "word", "sex", "line 8, 'Zx9'"),
        (changed("sex", 3), "word", "sex", "line 8, '3'"),
        (changed("age", SECRET), "number", "age", "line 8, 'Zx9'"),
        (changed("age", "0,5"), "number", "age", "(in part, one with a comma) in 1 of 40 rows"),
        (changed("age", 121), "range", "age", "outside 0 to 120 in 1 of 40 rows"),
        (changed("age", None), "missing", "age", "is empty in 1 of 40 rows (the first: row 7)"),
        (changed("y", 4), "word", "y", "another text than 'well', 'ill', 0, 1, 2, 3 in 1 of 40 rows"),
        (changed("y", None), "missing", "y", "is empty in 1 of 40 rows"),
        (frame().rename(columns={"age": "Age"}), "column", "age", "Is it 'Age'? Add it, or rename one."),
        (frame().drop(columns="y"), "column", "y", "Column 'y' is missing."),
    ],
)
def test_what_does_not_fit_is_said_with_the_line(table, code, name, words, tmp_path):
    found = found_in(table, tmp_path)
    (error,) = found.errors
    assert (error.code, error.name) == (code, name)
    assert words in in_words(found, error)
    assert not any(SECRET in one.sentence for one in found.findings), "what can leave the site quotes no cell"


def test_a_file_that_is_no_table_is_an_error(tmp_path):
    (tmp_path / "site.csv").write_text("age,sex,gap,y\n1,f,2,0,7\n")
    (error,) = examined(SCHEMA, tmp_path / "site.csv").errors
    assert error.code == "file"
    assert "line 2 has 5 cells" in error.sentence


def test_lines_are_right_after_empty_lines_and_cells_of_several_lines(tmp_path):
    lines = ["", "age,sex,gap,y,note", "40,f,1,0,plain", "", '41,m,1,0,"one\ntwo"', "42,m,1,0,plain", "300,m,1,0,x"]
    (tmp_path / "site.csv").write_text("\n".join(lines) + "\n")
    found = examined(SCHEMA, tmp_path / "site.csv")
    (error,) = found.errors
    assert (error.first, found.lines[error.key]) == (4, 8)
    assert (tmp_path / "site.csv").read_text().split("\n")[7].startswith("300")


@pytest.mark.parametrize(
    ("table", "code", "name"),
    [
        (frame(y=0), "empty", "ill"),
        (frame(age=np.arange(40) % 5 + 1), "unit", "age"),
        (frame(gap=0), "zero", "gap"),
        (frame(gap=-9), "missing", "gap"),
        (frame(gap=[*np.linspace(100, 120, 39), 0]), "zero", "gap"),
        (frame(age=np.arange(40)), "rows", "age"),
        (frame(y=[0] * 20 + [1] * 20, sex=["f"] * 20 + ["m"] * 20), "leak", "sex"),
        (frame(other=1), "unused", "other"),
    ],
)
def test_what_may_be_meant_is_a_remark(table, code, name, tmp_path):
    found = found_in(table, tmp_path)
    assert found.fits
    assert (code, name) in [(one.code, one.name) for one in found.findings]


def test_aliases_mean_their_category_in_any_spelling(tmp_path):
    sexes, classes = ["f", "m", "M", 1, 2, "1.0", 2.0], [0, 1, 2, 3, "well", "ill", "0.0"]
    table = frame(7, sex=sexes, y=classes)
    table.to_csv(tmp_path / "site.csv", index=False)
    for data in (SCHEMA.dataset(tmp_path / "site.csv"), SCHEMA.dataset(table)):
        assert data.x[:, 1].tolist() == [1, 0, 0, 0, 1, 0, 1]
        assert data.y.tolist() == [0, 1, 1, 1, 0, 1, 0]
        assert data.reading.labels == ("well", "ill")


def test_words_of_a_column_mean_a_missing_value_there_alone(tmp_path):
    bare = TEXT.replace('"minimum": 0, ', "")
    schema = Schema.parse(bare.encode(), "schema.json")
    x = schema.dataset(frame(3, age=[-9, 50, 60], gap=[-9, 1, "?"])).x
    assert x[:, 0].tolist() == pytest.approx([-5.9, 0.0, 1.0])
    assert x[:, 3].tolist() == [3, 1, 3]


# --- hostile schemas


def edited(change):
    form = json.loads(TEXT)
    change(form)
    return json.dumps(form)


def put(*steps, value):
    def change(form):
        *before, last = steps
        for step in before:
            form = form[step]
        form[last] = value

    return change


HOSTILE = {
    "alias of two": (put("fields", 3, "phalanx", "aliases", "well", value=[0, 1]), "has an alias that means two"),
    "alias of another": (put("fields", 1, "phalanx", "aliases", "m", value=["f"]), "has an alias that means two"),
    "two spellings": (put("fields", 3, "phalanx", "aliases", "well", value=["1.00"]), "has an alias that means two"),
    "alias of nothing": (put("fields", 1, "phalanx", "aliases", "x", value=["y"]), "which is no category"),
    "aliases of numbers": (put("fields", 0, "phalanx", "aliases", value={"a": [1]}), "which is no category"),
    "huge number": (put("fields", 3, "phalanx", "aliases", "ill", value=[10**400]), ""),
    "huge class": (put("fields", 3, "phalanx", "aliases", "ill", value=[2**60]), "beyond 9,007,199,254,740,992"),
    "no deviation": (put("fields", 0, "phalanx", "scaling", "deviation", value=0), "deviation: expected"),
    "fewer words": (put("fields", 2, "missingValues", value=["", "-9"]), "lacks '?' among its missingValues"),
    "no empty word": (put("fields", 2, "missingValues", value=["?"]), "without \\"),
    "unknown member": (put("fields", 0, "phalanx", "run", value="rm -rf /"), "run is unknown here"),
    "unknown type": (put("fields", 0, "type", value="code"), "no known value"),
    "bounds": (put("fields", 0, "constraints", "minimum", value=500), "minimum 500 above the maximum"),
    "text": (put("fields", value="x"), "expected a list"),
    "newer": (put("phalanx", value={"contract": 2}), "no known value"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_schema_is_refused_with_a_sentence(kind):
    change, message = HOSTILE[kind]
    with pytest.raises(ValueError, match="is not a schema") as error:
        Schema.parse(edited(change).encode(), "given.json")
    assert message.rstrip("\\") in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"fields": [1e999]}',
        b'{"fields": NaN}',
        TEXT.replace("50", "1e999").encode(),
    ],
)
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(ValueError, match="is not a schema"):
        Schema.parse(text, "given.json")


def test_a_huge_schema_is_refused_and_a_large_one_is_read_at_once(tmp_path):
    (tmp_path / "huge.json").write_bytes(b" " * (LARGEST + 1))
    with pytest.raises(ValueError, match="is larger than 10,000,000 bytes"):
        Schema.load(tmp_path / "huge.json")
    fields = [{"name": f"c{k}", "type": "number"} for k in range(50_000)]
    fields.append({"name": "y", "type": "number", "phalanx": {"role": "target"}})
    begun = time.perf_counter()
    schema = Schema.parse(json.dumps({"fields": fields}).encode(), "large")
    assert len(schema.check(pd.DataFrame({"c7": [1.0], "y": [2.0]}))) == 49_999
    assert time.perf_counter() - begun < 10
    with pytest.raises(ValueError, match="occurs twice"):
        Schema.parse(json.dumps({"fields": fields + fields}).encode(), "large")


def test_a_scaling_that_makes_inputs_infinite_is_refused():
    schema = Schema.parse(edited(put("fields", 0, "phalanx", "scaling", "deviation", value=1e-300)).encode(), "given")
    with pytest.raises(ValueError, match="Column 'age' is infinite once it is scaled"):
        schema.dataset(frame())


def test_the_order_of_classes_is_part_of_the_digest_and_that_of_aliases_is_not():
    def other(change):
        return Schema.parse(edited(change).encode(), "other").digest

    assert other(put("fields", 3, "categories", value=["ill", "well"])) != SCHEMA.digest
    aliases = {"ill": [1, 2, 3], "well": [0]}
    assert other(put("fields", 3, "phalanx", "aliases", value=aliases)) == SCHEMA.digest
    assert Schema.parse(edited(put("name", value="x")).encode(), "other").digest == SCHEMA.digest
    for step in ("age", "gap"):
        assert Schema.parse(TEXT.replace(step, f"{step}2").encode(), "other").digest != SCHEMA.digest


def test_an_error_tells_at_most_five_columns_and_keeps_all():
    with pytest.raises(UnfitTableError, match=r"1 column more do not fit") as error:
        Schema.parse(
            json.dumps(
                {"fields": [{"name": f"c{k}", "type": "number"} for k in range(6)]
                 + [{"name": "y", "type": "number", "phalanx": {"role": "target"}}]}
            ).encode(), "s",
        ).dataset(pd.DataFrame({"y": [1.0], **{f"c{k}": ["x"] for k in range(6)}}))  # fmt: skip
    assert [one.name for one in error.value.found] == [f"c{k}" for k in range(6)]


# --- classes that join labels, without a schema


def joined(folder, values, classes):
    pd.DataFrame({"x": np.arange(len(values)) % 7, "y": values}).to_csv(folder / "t.csv", index=False)
    return CSV(str(folder / "t.csv"), "y", class_names=classes, test=str(folder / "t.csv")).load()[0]


@pytest.mark.parametrize("values", [[0, 1, 2, 4] * 5, ["0", "1", "2", "4"] * 5, [0.0, 1.0, 2.0, 4.0] * 5])
def test_a_source_joins_labels_in_the_order_of_their_first(values, tmp_path):
    data = joined(tmp_path, values, {"ill": (1, 2, 3, 4), "well": (0,)})
    assert data.reading.labels == ("well", "ill")
    assert data.y.tolist() == [int(float(v) > 0) for v in values]
    schema = Schema.parse(Schema.of(data.reading).json, "schema.json")
    again = schema.dataset(tmp_path / "t.csv")
    assert (again.fingerprint(), again.reading.labels) == (data.fingerprint(), ("well", "ill"))


def test_texts_are_joined_too(tmp_path):
    data = joined(tmp_path, ["mild", "severe", "none "] * 5, {"sick": ("mild", "severe"), "not": ("none ",)})
    assert (data.reading.labels, data.y.tolist()[:3]) == (("sick", "not"), [0, 0, 1])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"well": (0,), "ill": (1,)}, "has labels that class_names lacks, in 20 of 40 rows"),
        ({"well": (0, 1), "ill": (1, 2, 4)}, "joins a list of labels of its own"),
        ({}, "joins a list of labels of its own"),
        ({"well": (True,), "ill": (1, 2, 4)}, "joins a list of labels of its own"),
        ({"well": (), "ill": (0, 1, 2, 4)}, "joins a list of labels of its own"),
    ],
)
def test_a_label_of_no_class_or_of_two_is_an_error(classes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        joined(tmp_path, [0, 1, 2, 4] * 5, classes)


def test_a_data_frame_joins_labels_as_a_file_does():
    table = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": [0, 3, 1]})
    assert Dataset.from_pandas(table, "y", class_names={"a": [0], "b": [1, 2, 3]}).y.tolist() == [0, 1, 1]


def test_the_tutorial_has_no_remark_that_quotes_a_cell(tmp_path):
    heart = Path(__file__).parents[2] / "docs" / "tutorials" / "heart" / "va.csv"
    found = examined(SCHEMA, heart)
    assert not found.fits
    assert all("'va'" not in one.sentence for one in found.findings)


# --- any schema

WORDS = [
    "age",
    "f",
    "m",
    "",
    "?",
    "1",
    "-9",
    "input",
    "target",
    "owner",
    "number",
    "integer",
    "boolean",
    "string",
    "well",
]
NUMBERS = [0, 1, -1, 2**53, 2**70, 0.5, 1e308, -1e308, 5e-324]
plain = st.none() | st.booleans() | st.sampled_from([*WORDS, *NUMBERS]) | st.floats() | st.text(max_size=3)
keys = st.sampled_from(["m", "f", "well", "mean", "deviation", "value", "role"])
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=2))


def places(form, before=()):
    """The places of all values in a JSON value."""
    items = form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ()
    for key, inner in items:
        yield (*before, key)
        yield from places(inner, (*before, key))


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(st.data())
def test_a_schema_with_any_values_is_refused_with_a_sentence_or_reads_tables(data):
    """One, two or three values are replaced by others; a table is read, or does not fit, and nothing else happens."""
    form = json.loads(TEXT)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([*places(form)]))
        put(*place, value=data.draw(values))(form)
    schema = error = None
    try:
        schema = Schema.parse(json.dumps(form).encode(), "given.json")
    except ValueError as raised:
        error = raised
    if schema is None:
        assert str(error).startswith("given.json is not a schema: ")
        return
    assert Schema.parse(schema.json, "again").digest == schema.digest
    table = frame(8)
    found = schema.check(table)
    errors = [one for one in found if one.error]
    if errors:
        with pytest.raises(UnfitTableError):
            schema.dataset(table)
        return
    read = None
    try:
        read = schema.dataset(table)
    except ValueError as raised:
        error = raised
    if read is None:
        assert "once it is scaled" in str(error)
    else:
        assert read.x.isfinite().all()
        assert read.x.shape == (8, len(schema.reading.columns))
