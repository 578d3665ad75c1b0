"""The schema of a table: other rows become what those of the training were, or are refused by column."""

import json
import re
from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx import Run, Until, simulate
from phalanx.data import CSV, Dataset, Natural, Parquet, Schema
from phalanx.data.image_form import Images
from phalanx.data.table_columns import Constraints, Field, Imputation, Scaling, SchemaMember, Use
from phalanx.data.table_schema import USUAL, Writing
from phalanx.data.table_statistics import ColumnStatistics

OLD = pd.DataFrame({"age": [10, 20, 30, 40] * 5, "city": ["a", "b", "c", "a"] * 5, "y": ["no", "yes"] * 10})
NEW = pd.DataFrame({"y": ["yes", "yes"], "other": [1, 2], "city": ["c", "a"], "age": [25.0, 50.0]})
SECRET = "Zx9"  # a cell that no message may quote


def schema_of(frame, folder, **options):
    frame.to_csv(folder / "old.csv", index=False)
    return Schema.of(CSV(str(folder / "old.csv"), "y", **options).load()[0].reading)


def errors(schema, frame, **options):
    return [one for one in schema.check(frame, **options) if one.error]


def test_new_rows_have_the_columns_scaling_and_classes_of_the_training(tmp_path):
    """By hand: mean 25 and deviation sqrt(125) of the training, cities a, b, c, and the class "yes" is 1."""
    schema = schema_of(OLD, tmp_path, test=str(tmp_path / "old.csv"))
    NEW.to_csv(tmp_path / "new.csv", index=False)
    NEW.to_parquet(tmp_path / "new.parquet")
    for table in (NEW, tmp_path / "new.csv", str(tmp_path / "new.parquet")):
        new = schema.dataset(table)
        assert new.x.tolist() == [[0.0, 0.0, 0.0, 1.0], [pytest.approx(25 / 125**0.5), 1.0, 0.0, 0.0]]
        assert (new.y.tolist(), new.classes) == ([1, 1], 2)
    assert schema.inputs(NEW.drop(columns="y")).tolist() == new.x.tolist()
    assert [one.sentence for one in schema.check(NEW)] == ["Not used, as the schema has no such column: 'other'."]


kinds = {
    "numbers": lambda rng, n: rng.normal(1e3, 50, n),
    "timestamps": lambda rng, n: 1.7e9 + rng.integers(0, 60, n),
    "true": lambda rng, n: rng.random(n) > 0.5,
    "texts": lambda rng, n: rng.choice(["a", "b", "1"], n),
}


@pytest.mark.parametrize("impute", ["refuse", "median", "indicator"])
@pytest.mark.parametrize("labels", ["texts", "integers", "targets", "true"])
def test_what_was_trained_on_is_read_again_to_the_same_bits(impute, labels, tmp_path):
    rng, n = np.random.default_rng(0), 80
    frame = pd.DataFrame({name: make(rng, n) for name, make in kinds.items()})
    if impute != "refuse":
        frame = frame.mask(rng.random(frame.shape) < 0.1)
    makes = {
        "texts": lambda: rng.choice(["no", "yes"], n), "integers": lambda: rng.integers(3, 5, n),
        "targets": lambda: rng.normal(100, 20, n), "true": lambda: rng.random(n) > 0.5,
    }  # fmt: skip
    frame["y"], frame["who"], frame["id"] = makes[labels](), rng.choice(["A", "B"], n), np.arange(n)
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = CSV(str(tmp_path / "t.csv"), "y", owner="who", drop=("id",), impute=impute)
    train, test = source.load()
    schema = Schema.parse(Schema.of(train.reading).json, "schema.json")
    shuffled = frame.sample(frac=1, axis=1, random_state=1)
    shuffled.to_csv(tmp_path / "again.csv", index=False)
    whole = schema.dataset(tmp_path / "again.csv")
    tested = source.drawn(whole.y, whole.owners)
    assert whole.of(tested).fingerprint() == test.fingerprint()
    assert whole.of(~tested).fingerprint() == train.fingerprint()
    known = replace(train.reading, files=(), dialect=schema.dialect)
    assert replace(schema.reading, owners=known.owners) == known, "nothing is lost on the way"


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_the_order_of_columns_and_rows_changes_no_row(data):
    schema = Schema.parse(SMALL.encode(), "small")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["u", "v", "u"], "y": [0, 1, 1]})
    columns, rows = data.draw(st.permutations([*frame])), data.draw(st.permutations(range(3)))
    found, plain = schema.dataset(frame[columns].iloc[rows]), schema.dataset(frame)
    assert torch.equal(found.x, plain.x[list(rows)])
    assert torch.equal(found.y, plain.y[list(rows)])


SMALL = """{"fields": [{"name": "a", "type": "number", "phalanx": {"scaling": {"mean": 1, "deviation": 2}}},
 {"name": "b", "type": "string", "categories": ["u", "v"]},
 {"name": "y", "type": "integer", "categories": [0, 1], "phalanx": {"role": "target"}}]}"""


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"city": ["a", SECRET]}, "word", "another text than 'a', 'b', 'c' in 1 of 2 rows (the first: row 2)"),
        ({"city": ["A ", "a"]}, "word", "the first: row 1; 1 differ in spelling only). Correct it, or leave out"),
        ({"city": [1, 2]}, "type", "Column 'city' holds numbers or dates, and not texts in 2 of 2 rows"),
        ({"city": [None, "a"]}, "missing", "Column 'city' is empty in 1 of 2 rows (the first: row 1). Fill these"),
        ({"age": [1, SECRET]}, "number", "Column 'age' holds what is no number in 1 of 2 rows (the first: row 2)."),
        ({"age": ["0,5", "3"]}, "number", "no number (in part, one with a comma) in 1 of 2 rows"),
        ({"age": [1.0, None]}, "missing", "Column 'age' is empty in 1 of 2 rows (the first: row 2). Fill these cells"),
        ({"age": [1.0, np.inf]}, "number", "infinite, or beyond 3.4e38 in 1 of 2 rows"),
        ({"age": [1e300, 1]}, "number", "infinite, or beyond 3.4e38 in 1 of 2 rows"),
        ({"age": [True, False]}, "type", "holds true and false, and not numbers in 2 of 2 rows"),
        ({"age": pd.to_datetime(["2020-01-01"] * 2)}, "type", "holds dates, and not numbers"),
        ({"ok": ["yes", "no"]}, "number", "Column 'ok' holds neither true nor false in 2 of 2 rows (the first: row 1)"),
        ({"y": ["yes", SECRET]}, "word", "Column 'y' holds another text than 'no', 'yes' in 1 of 2 rows"),
        ({"y": [0, 1]}, "type", "Column 'y' holds numbers or dates, and not texts"),
        ({"y": [None, "no"]}, "missing", "Column 'y' is empty in 1 of 2 rows"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_refused_by_column_without_a_cell(change, code, message, tmp_path):
    old = OLD.assign(ok=[True, False] * 10) if "ok" in change else OLD
    schema = schema_of(old, tmp_path)
    frame = NEW.assign(**change)
    (found,) = errors(schema, frame)
    assert (found.code, found.name) == (code, next(iter(change)))
    assert message in found.sentence
    assert SECRET not in found.sentence
    with pytest.raises(ValueError, match=re.escape(message)):
        schema.dataset(frame)
    if "y" not in change:
        with pytest.raises(ValueError, match=re.escape(message)):
            schema.inputs(frame)


def test_columns_that_are_missing_or_occur_twice(tmp_path):
    schema = schema_of(OLD, tmp_path)
    (found,) = errors(schema, NEW.rename(columns={"age": "Age "}))
    assert found.sentence == "Column 'age' is missing. Is it 'Age '? Add it, or rename one."
    (tmp_path / "new.csv").write_text("age;city;y\n10;a;no\n")
    with pytest.raises(ValueError, match=r"^None of the columns is there: 'age', 'city', 'y'\. .* separated by ','"):
        schema.dataset(tmp_path / "new.csv")
    (tmp_path / "new.csv").write_text("10,a\n20,b\n")
    with pytest.raises(ValueError, match="line 1 looks like a row of data"):
        schema.dataset(tmp_path / "new.csv")
    twice = pd.concat([NEW, NEW[["age"]]], axis=1)
    assert [one.sentence for one in errors(schema, twice)] == ["Column 'age' occurs twice. Leave out one."]
    (tmp_path / "twice.csv").write_text("age,city,age,y\n1,a,2,no\n")
    with pytest.raises(ValueError, match=r"line 1 names 'age' twice. Give columns different names, and a line with"):
        schema.dataset(tmp_path / "twice.csv")
    assert errors(schema, NEW.drop(columns="y"), labels=False) == []
    assert "Column 'y' is missing" in errors(schema, NEW.drop(columns="y"))[0].sentence
    assert "no rows" in errors(schema, NEW[:0])[0].sentence
    with pytest.raises(TypeError, match="frame must be a pandas DataFrame"):
        schema.check([[1, 2]])


def test_texts_that_look_like_numbers_stay_texts(tmp_path):
    """A new file in which all values of a column of text are numbers, by chance."""
    old = OLD.assign(city=["1", "2", "x", "1"] * 5, y=["0", "one"] * 10)
    schema = schema_of(old, tmp_path)
    old[["y", "city", "age"]].head(2).assign(y="0").to_csv(tmp_path / "new.csv", index=False)
    new = schema.dataset(tmp_path / "new.csv")
    assert (new.x[:, 1:].tolist(), new.y.tolist()) == ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0, 0])


def test_a_file_is_read_as_that_of_the_training_was(tmp_path):
    (tmp_path / "old.csv").write_text(
        "a;b;y\n" + "\n".join(f"{i}.000,5;?;{i % 2}" if i % 5 else f"{i},5;3;{i % 2}" for i in range(40))
    )
    source = CSV(
        str(tmp_path / "old.csv"), "y", separator=";", decimal=",", thousands=".", missing=("?",), impute="median"
    )
    schema = Schema.of(source.load()[0].reading)
    assert schema.missing_values == ("", "?")
    (tmp_path / "new.csv").write_text("y;b;a\n1;?;1.234,5\n")
    (x,) = schema.dataset(tmp_path / "new.csv").x
    mean, deviation = (schema.fields[0].use.scaling.mean, schema.fields[0].use.scaling.deviation)
    assert x[0] == np.float32((1234.5 - mean) / deviation)
    (tmp_path / "new.csv").write_text("y;b;a\n1;NA;1\n")
    with pytest.raises(ValueError, match="Column 'b' holds what is no number in 1 of 1 row"):
        schema.dataset(tmp_path / "new.csv")


READERS = {
    "csv": (lambda frame, path: frame.to_csv(path, index=False), CSV),
    "parquet": (lambda frame, path: frame.to_parquet(path), Parquet),
}


def coded(n=40):
    """Numbers, whole numbers, texts and truths with words for what is missing, and the same with gaps."""
    frame = pd.DataFrame({
        "a": np.arange(n) / 4, "b": np.arange(n) % 5, "c": ["u", "v"] * (n // 2), "y": ["no", "yes"] * (n // 2),
    })  # fmt: skip
    words = frame.assign(a=frame["a"].where(frame.index % 7 != 0, -9.0), b=frame["b"].where(frame.index % 6 != 0, -9))
    words["c"] = frame["c"].where(frame.index % 9 != 0, "?")
    gaps = frame.mask(pd.DataFrame({"a": frame.index % 7 == 0, "b": frame.index % 6 == 0, "c": frame.index % 9 == 0}))
    return words, gaps.assign(y=frame["y"])


def test_words_for_a_missing_value_mean_the_same_to_all_readers(tmp_path):
    """In training and for new rows; a data frame in memory is read alike."""
    words, gaps = coded()
    parts, schemas = [], []
    for name, (save, kind) in READERS.items():
        for frame, which in ((words, "words"), (gaps, "gaps")):
            save(frame, tmp_path / f"{which}.{name}")
            source = kind(str(tmp_path / f"{which}.{name}"), "y", missing=("-9", "?"), impute="indicator")
            parts.append(source.load())
            schemas.append(Schema.of(parts[-1][0].reading))
    assert {train.fingerprint() for train, _ in parts} == {parts[0][0].fingerprint()}
    assert {schema.digest for schema in schemas} == {schemas[0].digest}
    files = [tmp_path / f"{which}.{name}" for name in READERS for which in ("words", "gaps")]
    texts = words.astype(object).assign(a=words["a"].astype(str))  # numbers that are written as texts
    found = [schemas[0].dataset(table) for table in (*files, words, gaps, texts)]
    assert {one.fingerprint() for one in found} == {found[0].fingerprint()}
    assert found[0].x[0].tolist()[-1] == 1.0, "the first row has no text"


@pytest.mark.parametrize("word", ["", "NA", "None"])
def test_a_word_is_missing_unless_it_is_a_value(word, tmp_path):
    """Parquet and a data frame can hold an empty text; one of the usual words is missing where the schema says so."""
    schema = schema_of(OLD, tmp_path)
    (found,) = errors(schema, NEW.assign(city=["a", word]))
    assert (found.code, "is empty in 1 of 2 rows (the first: row 2)" in found.sentence) == ("missing", True)
    NEW.assign(city=["a", word]).to_parquet(tmp_path / "new.parquet")
    with pytest.raises(ValueError, match=r"'city' is empty in 1 of 2 rows \(the first: row 2\)"):
        schema.dataset(tmp_path / "new.parquet")
    if word:
        OLD.replace({"city": {"a": word}}).to_parquet(tmp_path / "old.parquet")
        known = Schema.of(Parquet(str(tmp_path / "old.parquet"), "y").load()[0].reading)
        assert known.missing_values == ("",)
        for words in (known.missing_values, ("", *USUAL)):
            assert errors(replaced(known, words), NEW.assign(city=[word, "c"])) == []


def replaced(schema, words):
    import msgspec

    return msgspec.structs.replace(schema, missing_values=words)


@pytest.mark.parametrize(
    "names",
    [("TRUE", "FALSE"), ("true", "false"), ("True", "False"), ("01", "02"), ("yes", "no"), ("0", "1"), ("-1", "+1")],
)
def test_classes_are_called_as_the_file_calls_them(names, tmp_path):
    whole = {"0": 0, "1": 1, "-1": -1, "+1": 1}
    frame = OLD.assign(y=[names[k % 2] for k in range(20)])
    schema = schema_of(frame, tmp_path)
    assert {*schema.labels} == {whole.get(name, name) for name in names}
    whole_file = schema.dataset(tmp_path / "old.csv")
    assert [schema.labels[k] for k in whole_file.y] == [whole.get(name, name) for name in frame["y"]]
    if names[0].lower() == "true":
        truths = frame.assign(y=frame["y"].str.lower() == "true")
        truths.to_parquet(tmp_path / "old.parquet")
        for table in (truths, truths.astype({"y": "boolean"}), tmp_path / "old.parquet"):
            assert schema.dataset(table).y.tolist() == whole_file.y.tolist()
        assert Schema.of(Parquet(str(tmp_path / "old.parquet"), "y").load()[0].reading).labels == ("False", "True")


@pytest.mark.parametrize("names", [("0", "1"), ("01", "02"), ("-1", "+1")])
@pytest.mark.parametrize("spaces", [("",), (" ",), ("", " ", "\t")])
def test_a_space_beside_a_number_is_none_of_a_name(spaces, names, tmp_path):
    """In labels and owners, alone or mixed with cells without one; in training, and by the schema of the others."""
    rows = [(k % 10, names[k % 2], names[k // 2 % 2]) for k in range(40)]
    between = [spaces[k % len(spaces)] for k in range(40)]
    before = ["age,y,who", *(f"{age},{label},{owner}" for age, label, owner in rows)]
    after = ["age,y,who", *(f"{r[0]},{s}{r[1]},{r[2]}{s}" for r, s in zip(rows, between, strict=True))]
    (tmp_path / "plain.csv").write_text("\n".join(before))
    (tmp_path / "spaced.csv").write_text("\n".join(after))
    plain, spaced = (CSV(str(tmp_path / name), "y", owner="who").load() for name in ("plain.csv", "spaced.csv"))
    assert [one.fingerprint() for one in spaced] == [one.fingerprint() for one in plain]
    assert spaced[0].reading.labels == plain[0].reading.labels
    assert spaced[0].reading.owners == plain[0].reading.owners
    assert spaced[0].findings == plain[0].findings
    for schema in (Schema.of(plain[0].reading), Schema.of(spaced[0].reading)):
        found = [schema.dataset(tmp_path / name) for name in ("plain.csv", "spaced.csv")]
        assert found[0].fingerprint() == found[1].fingerprint()
        assert found[1].reading.owners == plain[0].reading.owners


def truths(n, *, gap):
    """True and false, with or without an empty cell; and texts as labels."""
    cells = [k % 3 == 0 for k in range(n)]
    return pd.DataFrame({"ok": [None, *cells[1:]] if gap else cells, "age": range(n), "y": ["no", "yes"] * (n // 2)})


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("true", ["TRUE", "true", "True"])
def test_true_and_false_with_gaps_are_true_and_false(name, true, tmp_path):
    """In one file, in one of two, in one of a pattern; its own file fits its schema, and so does a data frame."""
    save, kind = READERS[name]
    spelled = {True: true, False: {"TRUE": "FALSE", "true": "false", "True": "False"}[true]}
    for which, gap in (("a", True), ("b", False)):
        frame = truths(20, gap=gap)
        save(frame.assign(ok=frame["ok"].map(spelled)) if name == "csv" else frame, tmp_path / f"{which}.{name}")
    one, two = str(tmp_path / f"a.{name}"), str(tmp_path / f"b.{name}")
    for files in (
        {"path": one},
        {"path": one, "test": two},
        {"path": two, "test": one},
        {"path": f"{tmp_path}/*.{name}"},
    ):
        source = kind(label="y", impute="indicator", standardize=False, **files)
        parts = source.load()
        assert [(each.name, each.boolean) for each in parts[0].reading.columns][:1] == [("ok", True)]
        assert {*torch.cat([part.x for part in parts])[:, 0].tolist()} == {0.0, 1.0}
        schema = Schema.of(parts[0].reading)
        assert schema.fields[0].type == "boolean"
        assert [part.fingerprint() for part in schema.parts(source)] == [part.fingerprint() for part in parts]
    memory = truths(20, gap=True)
    for frame in (memory, memory.astype({"ok": "boolean"})):
        assert torch.equal(schema.dataset(frame).x, schema.dataset(one).x)
    whole = truths(20, gap=False)
    assert Dataset.from_pandas(whole.astype({"ok": object}), "y").x.tolist() == whole[["ok", "age"]].values.tolist()


def test_true_and_false_are_no_numbers_of_another_file(tmp_path):
    """A column that is empty in one file is that: not true."""
    (tmp_path / "a.csv").write_text("ok,x,y\n" + "TRUE,1,a\nFALSE,2,b\n" * 5)
    (tmp_path / "b.csv").write_text("ok,x,y\n" + "1,1,a\n0,2,b\n" * 5)
    (tmp_path / "c.csv").write_text("ok,x,y\n" + ",1,a\n,2,b\n" * 5)
    a, b, c = (str(tmp_path / f"{name}.csv") for name in "abc")
    with pytest.raises(ValueError, match=r"'ok' holds true and false in .*a\.csv and numbers in .*b\.csv\. Write it"):
        CSV(a, "y", test=b).load()
    _, test = CSV(a, "y", test=c, impute="indicator", standardize=False).load()
    assert test.x[:, :2].tolist() == [[0.5, 1.0]] * 10


def test_an_owner_that_is_missing_is_refused_with_its_row(tmp_path):
    schema = schema_of(OLD.assign(who=["A", "B"] * 10), tmp_path, owner="who")
    for cell in (None, np.nan, "", "NA"):
        (found,) = errors(schema, NEW.assign(who=["A", cell]))
        assert found.sentence == (
            "Column 'who' is empty in 1 of 2 rows (the first: row 2). Fill these cells, or leave out the rows, or the "
            "whole column."
        )
        with pytest.raises(ValueError, match="Column 'who' is empty"):
            schema.dataset(NEW.assign(who=["A", cell]))
        assert errors(schema, NEW.assign(who=["A", cell]), labels=False) == []
    assert len(schema.inputs(NEW.assign(who=["A", None]))) == 2
    assert schema.dataset(NEW.assign(who=[1, 2])).reading.owners == (1, 2)


def test_the_usual_words_are_those_of_pandas():
    from pandas._libs.parsers import STR_NA_VALUES

    assert {*USUAL, ""} == STR_NA_VALUES


def test_bounds_and_whole_numbers():
    described = json.loads(SMALL)
    described["fields"][0] |= {"type": "integer", "constraints": {"minimum": 0, "maximum": 120}}
    schema = Schema.parse(json.dumps(described).encode(), "small")
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"], "y": [0, 1]})
    assert errors(schema, frame) == []
    (found,) = errors(schema, frame.assign(a=[-1, 121]))
    assert "a number outside 0 to 120 in 2 of 2 rows (the first: row 1). Is it another unit?" in found.sentence
    (found,) = errors(schema, frame.assign(a=[1, 2.5]))
    assert "not whole in 1 of 2 rows (the first: row 2)" in found.sentence
    assert "holds another class than 0, 1" in errors(schema, frame.assign(y=[0, 2]))[0].sentence
    assert "holds another class than 0, 1" in errors(schema, frame.assign(y=[0, 0.5]))[0].sentence
    assert "no number" in errors(schema, frame.assign(y=["yes", "no"]))[0].sentence


def changed(**of_first):
    described = json.loads(SMALL)
    described["fields"][0] |= of_first
    return described


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", "it is no JSON"),
        ("{", "it ends early"),
        ("{}", "fields is missing"),
        (json.dumps({**changed(), "phalanx": {"contract": 2}}), "phalanx.contract"),
        (json.dumps({**changed(), "primaryKey": "a"}), "primaryKey is unknown here"),
        (json.dumps(changed(rdfType="x")), r"fields[0]: rdfType is unknown here"),
        (json.dumps(changed(type="geopoint")), "no known value"),
        (json.dumps(changed(type="date", format="%d.%m.%y", constraints={})), "a year of four digits"),
        (json.dumps(changed(format="%Y-%m-%d")), "has a format, which dates have"),
        (json.dumps(changed(type="date", constraints={"minimum": 1})), "a bound that no date has"),
        (json.dumps(changed(name="b")), "Column 'b' occurs twice"),
        (json.dumps(changed(name="")), "fields[0].name"),
        (json.dumps(changed(type="string")), "scaling or a bound that no string has"),
        (json.dumps(changed(type="boolean", constraints={"minimum": 1})), "a bound that no boolean has"),
        (json.dumps(changed(constraints={"minimum": 2, "maximum": 1})), "the minimum 2 above the maximum 1"),
        (json.dumps(changed(phalanx={"scaling": {"mean": 0, "deviation": 0}})), "deviation"),
        (json.dumps(changed(phalanx={"scaling": {"kind": "federated", "rule": "median"}})), "kind is unknown here"),
        (json.dumps(changed(phalanx={"impute": {"indicator": True}})), "imputes a value, which numbers need"),
        (json.dumps(changed(phalanx={"role": "dropped"})).replace('"u", "v"', '"u", "u"'), "a category twice"),
        (json.dumps(changed(phalanx={"role": "dropped"})).replace('"u", "v"', ""), "needs its texts as categories"),
        (json.dumps(changed(phalanx={"role": "target"})), "one column of role target"),
        (SMALL.replace("[0, 1]", '["0", "1"]'), "of type integer, and not all of its categories are"),
        (SMALL.replace("[0, 1]", "[]"), "is the target: a number, or a string or an integer with the classes"),
        (SMALL.replace('"mean": 1,', '"mean": 1e999,'), "mean"),
        (SMALL.replace('"mean": 1,', '"mean": NaN,'), "it is no JSON"),
    ],
)  # fmt: skip
def test_what_is_no_schema_is_refused_with_the_place(text, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        Schema.parse(text.encode(), "site.json")
    assert str(refused.value).startswith("site.json is not a schema: ")


def test_the_digest_is_of_what_changes_a_number(tmp_path):
    schema = Schema.parse(SMALL.encode(), "small")
    titled = json.loads(SMALL)
    titled["name"] = "small"
    titled["fields"][0] |= {"title": "Age", "description": "in years"}
    assert Schema.parse(json.dumps(titled).encode(), "small").digest == schema.digest
    for text in (SMALL.replace('"mean": 1', '"mean": 1.5'), SMALL.replace('"u", "v"', '"v", "u"')):
        assert Schema.parse(text.encode(), "small").digest != schema.digest
    (tmp_path / "schema.json").write_bytes(schema.json)
    assert Schema.load(tmp_path / "schema.json") == schema


def numbered(number):
    """Schemas of a table and of images with a number in each place of one."""
    use = Use(scaling=Scaling(mean=number, deviation=number), impute=Imputation(value=number))
    column = Field(name="x", type="number", constraints=Constraints(minimum=number, maximum=number), use=use)
    target = Field(name="y", type="string", categories=("a", "b"), use=Use(role="target"))
    images = Images(size=(2, 2), channels="L", mean=(number,), deviation=(number,))
    return Schema(fields=(column, target)), Schema(fields=(target,), writing=Writing(images=images))


def members_of(value):
    """The classes and names of all members that hold a number with a fraction, in a schema."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            held = getattr(value, name)
            if isinstance(held, float) or (isinstance(held, tuple) and any(isinstance(each, float) for each in held)):
                yield type(value), name
            yield from members_of(held)
    elif isinstance(value, tuple):
        for each in value:
            yield from members_of(each)


@given(st.one_of(st.integers(1, 2**63), st.integers(10**20, 10**300)))
@settings(max_examples=100)
def test_a_schema_made_in_python_has_the_digest_of_its_file_whatever_the_kind_of_its_numbers(number):
    tables = [numbered(kind(number)) for kind in (int, float, np.float64, *([np.int64] if number < 2**63 else []))]
    for made in zip(*tables, strict=True):
        read = [Schema.parse(each.json, "schema.json") for each in made]
        assert len({each.digest for each in (*made, *read)}) == 1
        assert read == [*made]


def test_each_member_with_a_fraction_is_among_them_and_is_finite():
    declared = {(kind, name) for kind in SchemaMember.__subclasses__() for name in kind.__struct_fields__
                if "float" in str(kind.__annotations__.get(name))} - {
        (ColumnStatistics, "mean"), (ColumnStatistics, "deviation")}  # fmt: skip
    assert {found for schema in numbered(1.0) for found in members_of(schema)} == declared
    for kind, name in declared:
        needed = {"size": (2, 2)} if kind is Images else {"mean": 0, "deviation": 1} if kind is Scaling else {}
        for wrong in (np.nan, np.inf, -np.inf, 10**400):
            with pytest.raises(ValueError, match=f"{name} must be finite, got "):
                kind(**needed | {name: (wrong,) if kind is Images else wrong})


def test_owners_of_a_file_and_of_several(tmp_path):
    frame = OLD.assign(who=["A", "B"] * 10)
    schema = schema_of(frame, tmp_path, owner="who")
    new = schema.dataset(frame[::-1])
    assert (new.reading.owners, new.owners.tolist()) == (("A", "B"), [1, 0] * 10)
    assert schema.dataset(NEW).owners is None, "new rows need no owner"
    for name in "pq":
        OLD.to_csv(tmp_path / f"site-{name}.csv", index=False)
    source = CSV(str(tmp_path / "site-*.csv"), "y")
    schema = Schema.of(source.load()[0].reading)
    assert schema.owner is None
    assert schema.dataset(tmp_path / "site-*.csv").reading.owners == ("site-p", "site-q")
    Parquet(str(tmp_path / "x.parquet"), "y")


BY_SCHEMA = """{"fields": [
 {"name": "seen", "type": "date", "format": "%d.%m.%Y", "phalanx": {"scaling": {"mean": 18000, "deviation": 100}}},
 {"name": "size", "type": "number", "constraints": {"minimum": 0},
  "phalanx": {"unit": "mm", "scaling": {"mean": 3, "deviation": 2}, "impute": {"value": 3, "indicator": true}}},
 {"name": "kind", "type": "string", "categories": ["a", "b"], "phalanx": {"aliases": {"a": ["A"]}}},
 {"name": "site", "type": "string", "phalanx": {"role": "owner"}},
 {"name": "state", "type": "string", "categories": ["ill", "well"], "phalanx": {"role": "target"}}],
 "missingValues": ["", "n.d."], "phalanx": {"contract": 1, "delimiter": ";", "decimal": ","}}"""


def by_schema(folder, n=80):
    """A file as `BY_SCHEMA` says, and that schema's file."""
    rng = np.random.default_rng(3)
    seen = pd.Timestamp("2019-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D")
    size = [f"{value:.1f}".replace(".", ",") if value > 1 else "n.d." for value in rng.random(n) * 6]
    frame = pd.DataFrame({"state": rng.choice(["ill", "well"], n), "size": size, "seen": seen.strftime("%d.%m.%Y")})
    frame = frame.assign(kind=rng.choice(["a", "A", "b"], n), site=rng.choice(["bern", "lyon"], n), other=1)
    frame.to_csv(folder / "t.csv", sep=";", index=False)
    (folder / "s.json").write_text(BY_SCHEMA)
    return str(folder / "t.csv"), str(folder / "s.json")


def test_a_simulation_reads_a_table_by_the_schema_of_the_federation(tmp_path):
    path, file = by_schema(tmp_path)
    schema = Schema.load(file)
    train, test = CSV(path, "state", schema=file).load()
    every = schema.dataset(path)
    assert (len(train) + len(test), train.classes, train.reading.owners) == (80, 2, ("bern", "lyon"))
    assert sorted(torch.cat((train.x, test.x)).tolist()) == sorted(every.x.tolist())
    assert Schema.of(train.reading) == schema, "a run keeps the schema, with its unit, its bounds and its aliases"
    run = Run(data=CSV(path, "state", schema=file), clients=2, partition=Natural(), until=Until(1))
    record = simulate(run, folder=tmp_path / "run")
    assert record.schema.digest == schema.digest
    assert Schema.load(tmp_path / "run" / "schema.json") == schema


def test_a_simulation_is_identified_by_what_its_schema_says(tmp_path):
    path, file = by_schema(tmp_path)
    of = [Run(data=CSV(path, "state", schema=file)).identity]
    (tmp_path / "elsewhere.json").write_text(BY_SCHEMA)
    of.append(Run(data=CSV(path, "state", schema=str(tmp_path / "elsewhere.json"))).identity)
    (tmp_path / "s.json").write_text(BY_SCHEMA.replace('"mean": 3', '"mean": 4'))
    of.append(Run(data=CSV(path, "state", schema=file)).identity)
    assert of[0] == of[1] != of[2]


@pytest.mark.parametrize(
    "own",
    [{"owner": "site"}, {"drop": ("other",)}, {"class_names": ("ill", "well")}, {"standardize": False},
     {"targets": True}, {"impute": "median"}],
)  # fmt: skip
def test_what_a_schema_says_is_not_said_again(tmp_path, own):
    path, file = by_schema(tmp_path)
    with pytest.raises(ValueError, match=f"schema says what the columns are, and so does {next(iter(own))}"):
        CSV(path, "state", schema=file, **own)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.replace("n.d.", "unknown"), "Column 'size' holds what is no number"),
        (lambda t: t.replace(";A;", ";C;"), "Column 'kind' holds another text"),
        (lambda t: t.replace("well", "Well"), "Column 'state' holds another text"),
        (lambda t: t.replace(".2019", "/2019"), "Column 'seen' holds what is no date"),
        (lambda t: t.replace("seen", "Seen", 1), "Column 'seen' is missing. Is it 'Seen'"),
        (lambda t: t.replace(";", "|"), "None of the columns is there"),
    ],
)
def test_a_table_that_does_not_fit_the_schema_of_a_simulation_is_refused(tmp_path, change, says):
    path, file = by_schema(tmp_path)
    (tmp_path / "t.csv").write_text(change((tmp_path / "t.csv").read_text()))
    with pytest.raises(ValueError, match=says):
        CSV(path, "state", schema=file).load()
