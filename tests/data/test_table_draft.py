"""A drafted schema fits the tables that it was drafted from, and tells nothing of single rows."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data import Schema
from phalanx.data.table_check import examined
from phalanx.data.table_draft import LEAST_ROWS, bounds_of, draft
from phalanx.data.table_schema import UnfitTableError
from phalanx.data.table_statistics import statistics_of
from phalanx.data.tables import Dialect
from phalanx.flower.contract import examples_of

HEART = str(Path(__file__).parents[2] / "docs" / "tutorials" / "heart" / "*.csv")
CLASSES = {"healthy": [0], "ill": [1, 2, 3, 4]}


def table(n=60, seed=0, **columns):
    rng = np.random.default_rng(seed)
    made = {"age": rng.integers(30, 80, n), "sex": rng.choice(["f", "m"], n), "y": rng.choice(["no", "yes"], n)}
    return pd.DataFrame(made | columns)


def drafted(folder, *frames, target="y", **options):
    for k, frame in enumerate(frames):
        frame.to_csv(folder / f"{k}.csv", index=False)
    return draft([str(folder / "*.csv")], target, **options)


def said(made, code):
    return [one.sentence for one in made.findings if one.code == code]


def numbers_in(value):
    """All numbers in a JSON value, and all numbers that its texts are."""
    if isinstance(value, dict):
        return {x for part in [*value, *value.values()] for x in numbers_in(part)}
    if isinstance(value, list):
        return {x for part in value for x in numbers_in(part)}
    try:
        return {float(value)}
    except (TypeError, ValueError):
        return set()


# --- what leaves the site

planted = st.one_of(
    st.integers(-2000, 2000).map(float),
    st.floats(-1e6, 1e6, allow_nan=False),
    st.sampled_from([100.0, 1e5, 1.7e9, 0.5]),
)


@settings(deadline=None, max_examples=60)
@given(planted, st.integers(0, 3), st.booleans())
def test_no_extreme_value_of_a_single_row_is_in_a_draft(tmp_path_factory, value, seed, whole):
    """Each column has one row whose number nobody else has, far above or below the others, or among them."""
    rng = np.random.default_rng(seed)
    others = rng.normal(0, 10, 59).round(0 if whole else 6)
    frame = table(x=[*others[others != value], *[3.0] * (59 - (others != value).sum()), value])
    made = drafted(tmp_path_factory.mktemp("draft"), frame)
    (field,) = [each for each in made.schema.fields if each.name == "x"]
    low, high = field.constraints.minimum, field.constraints.maximum
    assert low < frame["x"].min() or low == 0 <= frame["x"].min()
    assert high > frame["x"].max() or high == 0 >= frame["x"].max()
    if value != 0 and value in (frame["x"].min(), frame["x"].max()):
        assert value not in numbers_in(msgspec.to_builtins(field))


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        (range(28, 78), (25, 80)),
        (range(30, 81), (25, 85)),
        (range(1, 51), (0, 55)),
        ([1.7e9 + k for k in range(60)], (1.6e9, 1.8e9)),
        (np.linspace(-0.31, 0.62, 50), (-0.4, 0.7)),
        (np.linspace(-7, 0, 50), (-8, 0)),
        ([5.5] * 50, (5.5, 5.5)),
        ([0] * 30 + [1] * 5, (0, 1)),
        ([0] * 30 + [1], (0, 2)),
    ],
)
def test_bounds_are_on_a_coarse_grid_outside_of_the_values(values, bounds):
    found = bounds_of(np.array(values, dtype=np.float64))
    assert (found.minimum, found.maximum) == bounds


@pytest.mark.parametrize("rows", range(1, LEAST_ROWS + 3))
def test_a_text_of_few_rows_is_said_and_not_written(rows, tmp_path):
    frame = table(sex=["other"] * rows + ["f", "m"] * ((60 - rows) // 2) + ["m"] * (rows % 2))
    made = drafted(tmp_path, frame)
    written = "other" in made.schema.json.decode()
    assert written == (rows >= LEAST_ROWS)
    assert written != any("'other'" in sentence for sentence in said(made, "rare"))
    found = examined(made.schema, tmp_path / "0.csv")
    assert [one.rows for one in found.errors] == ([] if written else [rows])


@pytest.mark.parametrize("place", ["sex", "code", "y"])
def test_no_rare_kind_of_any_column_is_in_a_draft(place, tmp_path):
    code = ["1", "2", "3"] * 20
    frame = table(code=code)
    frame[place] = frame[place].astype(object)
    frame.loc[7, place] = {"sex": "Zx9", "code": 7391, "y": "Zx9"}[place]
    made = drafted(tmp_path, frame, codes=("code",))
    text = made.schema.json.decode()
    assert "Zx9" not in text
    assert "7391" not in text
    assert any("7391" in sentence or "Zx9" in sentence for sentence in said(made, "rare"))


def test_a_column_with_few_values_gives_no_bounds(tmp_path):
    made = drafted(tmp_path, table(x=[1234.5, 77.25] + [None] * 58))
    assert said(made, "few") == [
        "Column 'x' has 2 values, too few for a range and a scaling: its role is \"dropped\". If it is measured, "
        "describe it as an input."
    ]
    assert not {1234.5, 77.25} & numbers_in(json.loads(made.schema.json))


def test_a_table_of_few_rows_gives_no_draft(tmp_path):
    made = drafted(tmp_path, table(19))
    assert made.schema is None
    assert said(made, "rows") == ["A draft needs 20 rows, and has 19: it would tell about single ones. Give more rows."]


def test_names_of_files_and_owners_are_not_in_a_draft(tmp_path):
    frame = table(clinic=["St. Mary"] * 30 + ["Lyon"] * 30)
    frame.to_csv(tmp_path / "secret-clinic.csv", index=False)
    text = draft([str(tmp_path / "secret-clinic.csv")], "y", owner="clinic").schema.json.decode()
    assert "Mary" not in text
    assert "secret" not in text


# --- what it holds


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6))
def test_the_tables_of_a_draft_fit_it(tmp_path_factory, seed):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("draft")
    frames = []
    for k in range(2):
        n = int(rng.integers(25, 60))
        frame = table(n, seed + k, x=rng.normal(10.0 ** rng.integers(-6, 9), 10.0 ** rng.integers(-6, 6), n))
        frame["gaps"] = np.where(rng.random(n) < 0.3, np.nan, rng.normal(0, 1, n))
        frame["true"] = rng.random(n) < 0.5
        frames.append(frame[rng.permutation(frame.columns)])
    made = drafted(folder, *frames)
    for k in range(2):
        assert examined(made.schema, folder / f"{k}.csv").errors == []
    assert Schema.parse(made.schema.json, "again") == made.schema, "and it can be read again"
    x = made.schema.dataset(folder / "0.csv").x
    assert x.isfinite().all()
    assert x.abs().max() < 100


def test_four_hospitals_become_one_schema():
    """Counts by hand: 411 of 920 patients are healthy (164 + 188 + 8 + 51); Switzerland has no cholesterol."""
    made = draft(
        [HEART], "target", classes=CLASSES, zeros=("chol", "trestbps"), codes=("cp", "restecg", "slope", "thal")
    )
    assert made.rows == {"cleveland.csv": 303, "hungarian.csv": 294, "switzerland.csv": 123, "va.csv": 200}
    schema = made.schema
    assert schema.labels == ("healthy", "ill")
    assert schema.missing_values == ("", "?")
    counts = sum(schema.dataset(str(file)).label_counts() for file in Path(HEART).parent.glob("*.csv"))
    assert counts.tolist() == [411, 509]
    by_name = {each.name: each for each in schema.fields}
    assert by_name["chol"].missing_values == ("", "?", "0")
    assert by_name["chol"].use.impute.value == pytest.approx(245, abs=5)
    assert "switzerland.csv in all" in said(made, "missing")[1]


def test_a_column_that_is_0_at_one_site_alone_is_a_question():
    made = draft([HEART], "target", classes=CLASSES)
    assert (
        "Column 'chol' is 0 in all 123 rows of switzerland.csv that have a value, and not in the others. If 0 stands "
        "for a missing value in it at every site, give --zeros chol."
    ) in said(made, "zero")
    # Three patients of Hungary and two of Long Beach have a value of ca; the other cells are empty.
    assert any(
        "'ca' is 0 in all 5 rows of hungarian.csv, va.csv that have a value" in one for one in said(made, "zero")
    )


@pytest.mark.parametrize("names", [range(3), ["none", "mild", "severe"]])
def test_a_site_that_knows_fewer_classes_is_a_question(names, tmp_path):
    sites = [table().assign(y=[names[k % 3] for k in range(len(table()))]) for _ in range(2)]
    assert not [one for one in said(drafted(tmp_path, *sites), "classes") if "has only" in one]
    sites[1].loc[sites[1]["y"] == names[2], "y"] = names[1]
    (found,) = (one for one in said(drafted(tmp_path, *sites), "classes") if "has only" in one)
    assert found.startswith(
        f"Target 'y' has 3 classes, and 1.csv has only {', '.join(map(str, sorted(names[:2])))}. If"
    )
    assert found.endswith("give --classes.")


@pytest.mark.parametrize(("word", "where"), [("?", "age"), ("NA", "age"), ("-", "age"), ("NA", "sex"), ("?", "sex")])
def test_words_for_a_missing_value_are_found(word, where, tmp_path):
    frame = table()
    frame[where] = frame[where].astype(object)
    frame.loc[3, where] = word
    made = drafted(tmp_path, frame)
    assert made.schema.missing_values == ("", word)
    assert examined(made.schema, tmp_path / "0.csv").fits


def test_a_word_that_may_be_a_value_is_a_question(tmp_path):
    made = drafted(tmp_path, table(smoker=["unknown", "never", "often"] * 20))
    assert said(made, "missing") == [
        "'unknown' in column 'smoker' is a category. If it stands for a missing value, give --missing 'unknown'."
    ]
    made = drafted(tmp_path, table(smoker=["None", "never", "often"] * 20))
    assert "'None' in column 'smoker' is taken as missing." in said(made, "missing")[0]
    assert made.schema.inputs_of[-1].categories == ("never", "often")


def test_a_number_that_stands_for_a_missing_value_does_so_in_its_column_alone(tmp_path):
    rng = np.random.default_rng(0)
    excess = rng.integers(-12, 12, 60)
    frame = table(pressure=[*rng.integers(90, 180, 50), *[-9] * 10], excess=excess)
    made = drafted(tmp_path, frame)
    by_name = {each.name: each for each in made.schema.fields}
    assert by_name["pressure"].missing_values == ("", "-9")
    assert by_name["excess"].missing_values is None
    (sentence,) = [one for one in said(made, "missing") if "-9" in one]
    assert sentence.startswith("Column 'pressure' is -9 in 10 rows, far from all others: taken as missing.")
    read = made.schema.columns(made.schema.read(tmp_path / "0.csv"))
    assert np.isnan(read["pressure"].cells).sum() == 10
    assert read["excess"].cells.tolist() == excess.tolist()


def test_a_word_that_is_missing_in_one_column_and_a_value_in_another(tmp_path):
    """A reader takes the words of a table for missing everywhere, so that this one is of its column."""
    frame = table(x=[*map(str, range(50)), *["-"] * 10], mark=["-", "+", "+"] * 20)
    made = drafted(tmp_path, frame)
    by_name = {each.name: each for each in made.schema.fields}
    assert (made.schema.missing_values, by_name["x"].missing_values) == (("",), ("", "-"))
    assert by_name["mark"].categories == ("+", "-")
    found = examined(made.schema, tmp_path / "0.csv")
    assert found.fits
    assert np.isnan(made.schema.columns(made.schema.read(tmp_path / "0.csv"))["x"].cells).sum() == 10


def test_an_owner_that_is_missing_is_said(tmp_path):
    made = drafted(tmp_path, table(clinic=["A", "B", None] * 20), owner="clinic")
    said_of_owner = [sentence for sentence in said(made, "missing") if sentence.startswith("Owner")]
    assert said_of_owner == ["Owner 'clinic' is missing in 20 of 60 rows. Fill these cells, or leave out the rows."]


def test_classes_that_are_no_whole_numbers_of_float64_are_an_error(tmp_path):
    made = drafted(tmp_path, table(y=[2**60, 2**60 + 1] * 30))
    assert made.schema is None
    assert "holds numbers beyond 9,007,199,254,740,992" in said(made, "target")[0]


def test_spellings_of_a_class_are_one_class(tmp_path):
    made = drafted(tmp_path, table(y=["Malignant", " malignant", "benign"] * 20))
    assert made.schema.labels == ("Malignant", "benign")
    assert "differ by spelling only, and are one category" in said(made, "near")[0]
    assert made.schema.dataset(tmp_path / "0.csv").label_counts().tolist() == [40, 20]


@pytest.mark.parametrize(
    ("columns", "code", "sentence"),
    [
        ({"x": ["0,5", "1,25", "3,5"] * 20}, "number", "holds a number with a comma: '0,5'. Set --decimal or"),
        ({"x": ["<0.1", "0.5", "3"] * 20}, "number", "Correct it in the file, or drop the column."),
        ({"x": [*map(str, range(59)), "Zx9"]}, "number", "holds numbers, and 'Zx9'. Correct it"),
        ({"x": [1e39] * 60}, "number", "beyond 3.4e38"),
        ({"y": [f"t{k}" for k in range(60)]}, "target", "has no class of 5 rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_drafted_is_an_error_and_nothing_is_written(columns, code, sentence, tmp_path):
    made = drafted(tmp_path, table(**columns))
    assert made.schema is None
    assert any(one.error and one.code == code and sentence in one.sentence for one in made.findings)


def test_labels_of_no_class_are_an_error(tmp_path):
    made = drafted(tmp_path, table(y=[0, 1, 5] * 20), classes=CLASSES)
    assert made.schema is None
    assert said(made, "classes") == ["Target 'y' is 5 in 20 rows, which is in no class of --classes."]


@pytest.mark.parametrize(
    ("column", "code"),
    [
        (lambda y: np.arange(60), "rows"),
        (lambda y: [f"p{k}" for k in range(60)], "rare"),
        (lambda y: np.where(y == "yes", 3.5, 1.5), "leak"),
        (lambda y: np.arange(60) * 7 + 3, "identifier"),
    ],
)
def test_columns_that_should_not_be_inputs_are_said(column, code, tmp_path):
    frame = table()
    made = drafted(tmp_path, frame.assign(x=column(frame["y"])))
    assert any(one.code == code and one.name == "x" for one in made.findings)


def test_other_notation_is_read_as_the_options_say(tmp_path):
    plain = table(x=np.random.default_rng(0).normal(1500, 400, 60).round(2))
    plain.to_csv(tmp_path / "plain.csv", index=False)
    written = plain.assign(x=[f"{v:,.2f}".translate(str.maketrans(",.", ".,")) for v in plain["x"]])
    written.to_csv(tmp_path / "written.csv", index=False, sep=";")
    first = draft([str(tmp_path / "plain.csv")], "y").schema
    second = draft([str(tmp_path / "written.csv")], "y", dialect=Dialect(";", ",", ".")).schema
    assert first.fields == second.fields
    assert (second.dataset(tmp_path / "written.csv").x == first.dataset(tmp_path / "plain.csv").x).all()


def test_regression_has_a_scaled_target(tmp_path):
    made = drafted(tmp_path, table(y=np.random.default_rng(0).normal(100, 15, 60)))
    target = made.schema.target
    assert (target.type, made.schema.labels) == ("number", ())
    assert target.use.scaling.deviation == pytest.approx(15, rel=0.3)
    assert "the task is Regression" in said(made, "target")[0]


def test_a_column_that_one_file_lacks_is_left_out(tmp_path):
    made = drafted(tmp_path, table(x=range(60)), table())
    assert "Column 'x' is only in 0.csv, and left out." in said(made, "column")[0]
    assert "x" not in [each.name for each in made.schema.fields]
    with pytest.raises(ValueError, match=r"1\.csv has no column 'x'; its columns are 'age', 'sex', 'y'"):
        draft([str(tmp_path / "*.csv")], "y", drop=("x",))


def test_few_outliers_do_not_move_the_scaling(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(50, 5, 60)
    plain = drafted(tmp_path, table(x=x)).schema.inputs_of[-1].use.scaling
    x[0] = 1e9
    moved = drafted(tmp_path, table(x=x)).schema.inputs_of[-1].use.scaling
    assert abs(moved.mean - plain.mean) < 1
    assert moved.deviation < 2 * plain.deviation


def test_a_single_value_among_equal_ones_is_known_from_its_bound_alone(tmp_path):
    """Were the scaling that of all values, it would tell the value to two digits."""
    found = [drafted(tmp_path, table(x=[7.0] * 59 + [value])).schema.inputs_of[-1] for value in (412.0, 431.0)]
    assert found[0] == found[1]
    assert found[0].constraints.maximum == 450


def test_words_in_columns_that_are_not_used_mean_nothing_elsewhere(tmp_path):
    made = drafted(tmp_path, table(note=["-", "?", "9"] * 20, grade=["-", "+", "o"] * 20), drop=("note",))
    assert made.schema.missing_values == ("",)
    assert examined(made.schema, tmp_path / "0.csv").fits


def test_dates_and_truths_of_parquet_are_texts_and_truths(tmp_path):
    frame = table(day=pd.to_datetime(["2020-01-01", "2021-05-05"] * 30), ok=[True, False] * 30)
    frame.to_parquet(tmp_path / "t.parquet")
    made = draft([str(tmp_path / "t.parquet")], "y", drop=("day",))
    assert {each.name: each.type for each in made.schema.inputs_of}["ok"] == "boolean"
    assert examined(made.schema, tmp_path / "t.parquet").fits


def test_the_codes_of_a_draft_are_read_however_they_are_written(tmp_path):
    frame = table(code=["1", "2", "3"] * 20)
    schema = drafted(tmp_path, frame, codes=("code",)).schema
    assert [column.value for column in schema.reading.columns][-3:] == ["1", "2", "3"]
    spelled = frame.assign(code=["1.0", "2", " 3"] * 20)
    spelled.to_csv(tmp_path / "spelled.csv", index=False)
    frame.assign(code=[1.0, 2.0, 3.0] * 20).to_parquet(tmp_path / "numbers.parquet")
    first = schema.dataset(tmp_path / "0.csv").x
    for name in ("spelled.csv", "numbers.parquet"):
        assert (schema.dataset(tmp_path / name).x == first).all()
    frame.assign(code=["4", "2", "3"] * 20).to_csv(tmp_path / "other.csv", index=False)
    (error,) = examined(schema, tmp_path / "other.csv").errors
    assert (error.code, error.name, error.rows) == ("word", "code", 20)


def test_a_draft_of_parquet_is_that_of_csv(tmp_path):
    frame = table(x=np.random.default_rng(0).normal(0, 1, 60))
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    first, second = (draft([str(tmp_path / f"t.{kind}")], "y").schema for kind in ("csv", "parquet"))
    assert replace(first.reading, dialect=Dialect()) == replace(second.reading, dialect=Dialect())


CELLS = [
    *("", "?", "NA", "None", "-", "0", "1", "-9", "999", "0.5", "1e3", "1e39", "0,5", "<1", "a", "A", " a", "b"),
    *("true", "False", "inf", "nan", "\u00e4", "\x1b[31m", '"', "01", "1.0", "2", "3"),
]


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_table_gives_a_schema_that_it_fits_or_a_sentence(tmp_path_factory, data):
    """Apart from rows with what is rare, which the schema does not hold."""
    folder, columns = tmp_path_factory.mktemp("draft"), {}
    for name in ("first", "second", "target"):
        pool = data.draw(st.lists(st.sampled_from(CELLS), min_size=1, max_size=5))
        seed = data.draw(st.integers(0, 99))
        columns[name] = np.random.default_rng(seed).choice(np.array(pool, dtype=object), 60)
    pd.DataFrame(columns).to_csv(folder / "0.csv", index=False)
    options = data.draw(
        st.sampled_from([{}, {"zeros": ("first",)}, {"codes": ("first",)}, {"drop": ("first",)}, {"owner": "first"}])
    )
    made = draft([str(folder / "0.csv")], "target", **options)
    if made.schema is None:
        assert any(one.error and one.sentence.endswith(".") for one in made.findings)
        return
    assert Schema.parse(made.schema.json, "again") == made.schema
    rare = {one.name for one in made.findings if one.code in ("rare", "missing")}
    errors = [one for one in examined(made.schema, folder / "0.csv").errors if one.name not in rare]
    assert errors == []


# --- several sites


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ({"sex": ["f", "m"] * 30}, {"sex": [0, 1] * 30}, "coding"),
        ({"sex": ["TRUE", "FALSE"] * 30}, {"sex": [0, 1] * 30}, "coding"),
        ({"sex": ["f", "m"] * 30}, {"sex": ["w", "h"] * 30}, "coding"),
        ({"sex": [0, 1] * 30}, {"sex": [2, 3] * 30}, "coding"),
        ({"y": ["ill", "well"] * 30}, {"y": [0, 1] * 30}, "coding"),
        ({"age": np.linspace(150, 190, 60)}, {"age": np.linspace(1.5, 1.9, 60)}, "unit"),
    ],
)
def test_sites_that_write_a_column_in_different_ways_are_a_question(first, second, code, tmp_path):
    (name,) = first
    made = drafted(tmp_path, table(**first), table(seed=1, **second))
    assert name in [one.name for one in made.findings if one.code == code and not one.error]
    for k, same in enumerate((first, second)):
        folder = tmp_path / str(k)
        folder.mkdir()
        made = drafted(folder, table(**same), table(seed=1, **same))
        assert name not in [one.name for one in made.findings if one.code in ("coding", "unit")]


def test_a_file_that_is_given_twice_is_counted_once(tmp_path):
    made = drafted(tmp_path, table(sex=["other"] * 3 + ["f", "m", "m"] * 19))
    (tmp_path / "copy.csv").write_bytes((tmp_path / "0.csv").read_bytes())
    again = draft([f"{tmp_path}/{name}" for name in ("0.csv", "./0.csv", "copy.csv", "*.csv")], "y")
    assert again.schema == made.schema
    assert again.rows == {"0.csv": 60}
    assert len(said(again, "twice")) == 4
    assert "other" not in again.schema.json.decode()


def test_sites_whose_files_have_one_name_are_told_apart(tmp_path):
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        table(seed=k).to_csv(tmp_path / str(k) / "site.csv", index=False)
    made = draft([str(tmp_path / "*" / "site.csv")], "y")
    assert made.rows == {str(tmp_path / str(k) / "site.csv"): 60 for k in range(2)}


def test_labels_that_are_words_for_a_missing_value_are_said_or_labels(tmp_path):
    for labels in (["None", "mild"], ["NA", "1", "0"]):
        frame = table(y=[*labels] * (60 // len(labels)))
        assert any(repr(labels[0]) in one for one in said(drafted(tmp_path, frame), "missing"))
        made = drafted(tmp_path, frame, classes={"well": labels[:1], "ill": [*labels[1:]]})
        assert {*made.schema.labels} == {"well", "ill"}
        assert said(made, "missing") == []
        found = examined(made.schema, tmp_path / "0.csv")
        assert (found.errors, found.classes["well"]) == ([], 60 // len(labels))


def test_labels_that_are_one_number_and_different_texts_stay_apart(tmp_path):
    made = drafted(tmp_path, table(y=["01", "1", "02"] * 20))
    assert made.schema.labels == ("01", "02", "1")
    assert examined(made.schema, tmp_path / "0.csv").classes == {"01": 20, "02": 20, "1": 20}


@pytest.mark.parametrize("dialect", [Dialect(decimal=","), Dialect(thousands="."), Dialect(separator="ab")])
def test_signs_that_no_file_can_be_written_with_are_refused(dialect, tmp_path):
    with pytest.raises(ValueError, match="must"):
        drafted(tmp_path, table(), dialect=dialect)


def test_dates_of_parquet_are_inputs_and_said(tmp_path):
    days = pd.to_datetime(["2020-01-01", "2021-05-05"] * 30)
    table(day=days, date=days.date).to_parquet(tmp_path / "t.parquet")
    made = draft([str(tmp_path / "t.parquet")], "y")
    assert {each.name for each in made.schema.inputs_of if each.type == "date"} == {"day", "date"}
    assert len(said(made, "date")) == 2
    assert examined(made.schema, tmp_path / "t.parquet").fits
    assert draft([str(tmp_path / "t.parquet")], "day").schema is None


def test_many_texts_of_few_rows_each_are_a_question(tmp_path):
    (sentence,) = said(drafted(tmp_path, table(name=[f"Anna {k}" for k in range(12)] * 5)), "identifier")
    assert "has 12 texts of few rows each" in sentence
    assert said(drafted(tmp_path, table(n=600, name=[f"ward {k}" for k in range(12)] * 50)), "identifier") == []


@pytest.mark.parametrize("cells", [[1.0, 2.0, None] * 20, ["f", "m", None] * 20, [True, None, False] * 20])
def test_an_input_that_says_where_a_value_is_missing(cells, tmp_path):
    plain, asked = (drafted(tmp_path, table(z=cells), indicator=given) for given in (False, True))
    found = [made.schema.dataset(tmp_path / "0.csv").x for made in (plain, asked)]
    assert found[1].shape[1] == found[0].shape[1] + 1
    assert found[1].sum(0).tolist().count(20.0) >= 1
    assert "an input more says so" in said(asked, "missing")[0]
    assert drafted(tmp_path, table(), indicator=True).schema == drafted(tmp_path, table()).schema, "nothing is missing"


@pytest.mark.parametrize("asked", [59, 60, 61])
def test_a_site_of_too_few_rows_does_not_fit(asked, tmp_path):
    plain = drafted(tmp_path, table(n=60)).schema
    schema = plain.asking(asked)
    assert schema.digest != plain.digest
    assert Schema.parse(schema.json, "s") == schema
    found = examined(schema, tmp_path / "0.csv")
    assert [one.code for one in found.errors] == ["rows"] * (asked > 60)
    if asked > 60:
        with pytest.raises(UnfitTableError, match=f"has 60 rows, and the schema asks each site for {asked}"):
            statistics_of(schema, str(tmp_path / "0.csv"))
        with pytest.raises(UnfitTableError, match=f"has 60 rows, and the schema asks each site for {asked}"):
            examples_of(tmp_path / "0.csv", schema)
    assert len(schema.dataset(tmp_path / "0.csv")) == 60, "a model is tested on few rows as well"
