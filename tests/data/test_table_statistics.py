"""What a site tells of its table says little of single rows, and the scaling that sites agree on withstands liars."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.cli.main import main
from phalanx.data import Schema
from phalanx.data.table_statistics import ColumnStatistics, SiteStatistics, rounded, scaled_by, statistics_of

HEART = Path(__file__).parents[2] / "docs" / "tutorials" / "heart"
TEXT = """{"fields": [
 {"name": "x", "type": "number", "constraints": {"minimum": 0, "maximum": 100},
  "phalanx": {"scaling": {"mean": 50, "deviation": 10}, "impute": {"value": 50}}},
 {"name": "free", "type": "number", "phalanx": {"scaling": {"mean": 0, "deviation": 1}}},
 {"name": "plain", "type": "number"},
 {"name": "kind", "type": "string", "categories": ["a", "b"]},
 {"name": "y", "type": "string", "categories": ["no", "yes"], "phalanx": {"role": "target"}}],
 "missingValues": ["", "?"]}"""
SCHEMA = Schema.parse(TEXT.encode(), "schema.json")


def table(site=0, n=60, **columns):
    rng = np.random.default_rng(site)
    made = {"x": rng.integers(20, 80, n), "free": rng.normal(1e6, 5, n), "plain": rng.normal(0, 1, n),
            "kind": rng.choice(["a", "b"], n), "y": rng.choice(["no", "yes"], n)}  # fmt: skip
    return pd.DataFrame(made | columns)


def told(folder, frame):
    frame.to_csv(folder / "site.csv", index=False)
    return statistics_of(SCHEMA, str(folder / "site.csv"))


def saying(mean, deviation, missing=0):
    known = ColumnStatistics(mean=mean, deviation=deviation, missing=missing)
    columns, classes = {"x": known, "free": known}, {"no": 50, "yes": 50}
    return SiteStatistics(schema=SCHEMA.digest, rows=100, columns=columns, classes=classes)


def scaling(made, name="x"):
    (each,) = [each for each in made.schema.fields if each.name == name]
    return each.use.scaling.mean, each.use.scaling.deviation


def test_a_site_tells_rounded_figures_of_its_scaled_columns_alone(tmp_path):
    frame = table(x=[*np.linspace(20, 80, 47), *[None] * 13])
    found = told(tmp_path, frame)
    assert [*found.columns] == ["x", "free"]
    x = found.columns["x"]
    ordered = np.sort(frame["x"].dropna())
    inner = np.clip(ordered, ordered[5], ordered[-6])
    assert x.mean == pytest.approx(inner.mean(), abs=1)
    assert x.deviation == pytest.approx(inner.std(), rel=0.06)
    assert x.deviation == float(f"{x.deviation:.2g}")
    assert (found.rows, x.missing) == (60, 15)
    assert found.classes == {name: rounded(int((frame["y"] == name).sum())) for name in ("no", "yes")}
    assert SiteStatistics.parse(found.json, "again") == found


@settings(deadline=None, max_examples=40)
@given(st.floats(0, 100), st.floats(0, 100), st.integers(0, 3))
def test_the_extreme_value_of_one_row_does_not_change_what_a_site_tells(tmp_path_factory, first, second, seed):
    """Two tables that differ in one row, which is the largest or the smallest of both."""
    folder, others = tmp_path_factory.mktemp("site"), np.random.default_rng(seed).integers(40, 60, 59)
    ends = [value if value > 60 else value / 2.5 for value in (first, second)]
    if (ends[0] > 60) == (ends[1] > 60):
        assert told(folder, table(x=[*others, ends[0]])) == told(folder, table(x=[*others, ends[1]]))


def test_of_few_values_nothing_is_told(tmp_path):
    found = told(tmp_path, table(x=[12.25] * 19 + [None] * 41))
    assert found.columns["x"] == ColumnStatistics(missing=40)
    assert "12.25" not in found.json.decode()
    with pytest.raises(ValueError, match=r"has 19 rows, and statistics need 20"):
        told(tmp_path, table(n=19))


def test_small_classes_are_not_counted(tmp_path):
    assert told(tmp_path, table(y=["yes"] * 4 + ["no"] * 56)).classes == {"no": 55, "yes": 0}


def test_a_table_that_does_not_fit_tells_nothing(tmp_path):
    with pytest.raises(ValueError, match="Column 'x' holds a number outside 0 to 100"):
        told(tmp_path, table(x=200))


# --- what the sites agree on

possible = st.tuples(st.floats(0, 99), st.floats(0, 100)).map(
    lambda ends: (sum(ends) / 2, max(abs(ends[0] - ends[1]) / 2, 1e-3))  # those of half of the rows at each end
)


@settings(deadline=None, max_examples=200)
@given(st.data(), st.integers(1, 7))
def test_liars_in_the_minority_leave_the_scaling_within_what_honest_sites_say(data, n):
    honest = [data.draw(possible) for _ in range(n)]
    lies = st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(1e-300, 1e300))
    liars = data.draw(st.lists(lies, max_size=n - 1))
    sites = {f"{k}": saying(*one) for k, one in enumerate([*honest, *liars])}
    made = scaled_by(SCHEMA, sites)
    for part in (0, 1):
        own = [one[part] for one in honest]
        for name in ("x", "free"):
            found = scaling(made, name)[part]
            assert min(own) * (1 - 1e-11) <= found <= max(own) * (1 + 1e-11)
    assert made.tolerates == (min(made.known.values()) - 1) // 2
    assert made.known["free"] == len(sites)
    assert made.known["x"] == len(sites) - sum(one.error for one in made.findings)


def test_the_scaling_is_the_median_and_fills_gaps():
    made = scaled_by(SCHEMA, {"a": saying(40, 8), "b": saying(44, 12), "c": saying(90, 9)})
    assert scaling(made) == (44, 9)
    (x,) = [each for each in made.schema.fields if each.name == "x"]
    assert x.use.impute.value == 44
    assert made.schema.digest != SCHEMA.digest
    assert (made.tolerates, [one.code for one in made.findings]) == (1, ["unit", "unit"])


@pytest.mark.parametrize(("mean", "deviation"), [(-1, 5), (101, 5), (1e9, 5), (50, 54), (50, 1e300), (1, 49), (99, 15)])
def test_statistics_that_no_values_within_the_bounds_have_are_left_out_and_said(mean, deviation):
    made = scaled_by(SCHEMA, {"a": saying(40, 8), "liar": saying(mean, deviation)})
    assert scaling(made) == (40, 8)
    assert [(one.code, one.name) for one in made.findings if one.error] == [("impossible", "x")]
    assert "liar is left out in column 'x'" in made.findings[0].sentence


def test_all_that_a_table_can_tell_is_possible(tmp_path):
    """The largest deviation there is: half of the rows at each bound."""
    made = scaled_by(SCHEMA, {"a": told(tmp_path, table(x=[0, 100] * 30))})
    assert made.findings == ()
    assert scaling(made) == (50, 50)


def test_whatever_a_column_within_its_bounds_holds_is_possible(tmp_path):
    for k in range(6, 55, 4):
        for values in ([0] * k + [100] * (60 - k), [0] * k + [0.3] * (60 - k), [100] * k + [99.7] * (60 - k)):
            made = scaled_by(SCHEMA, {"a": told(tmp_path, table(x=values))})
            assert [one for one in made.findings if one.error] == [], (k, values[-1])


def test_a_column_of_nearly_equal_values_tells_no_deviation(tmp_path):
    """Nor does one with a single bound, whose quarter would be negative."""
    for values in ([30] * 60, [0] * 57 + [37.2, 39.9, 100]):
        assert told(tmp_path, table(x=values)).columns["x"] == ColumnStatistics()
    made = scaled_by(SCHEMA, {"a": told(tmp_path, table(x=[30] * 60))})
    assert (scaling(made), "x" in made.known) == ((50, 10), False)
    assert "it keeps its scaling" in made.findings[0].sentence
    text = TEXT.replace('"minimum": 0, "maximum": 100', '"minimum": 5')
    one = Schema.parse(text.encode(), "schema.json")
    assert statistics_of(one, str(tmp_path / "site.csv")).columns["x"] == ColumnStatistics()


@pytest.mark.parametrize("n", [20, 40, 60, 80, 250])
def test_fewer_than_five_rows_apart_from_the_others_do_not_change_what_a_site_tells(n, tmp_path):
    for high in (1, 88.5):
        found = [told(tmp_path, table(n=n, x=[0] * (n - k) + [high] * k)).columns["x"] for k in range(5)]
        assert {*found} == {ColumnStatistics()}
    some = np.linspace(40, 60, n - 4)
    low, high = (told(tmp_path, table(n=n, x=[*some, *ends])).columns["x"] for ends in ([70] * 4, [90, 95, 99, 80]))
    assert low == high


def test_a_scaling_says_of_how_many_sites_it_is_the_median():
    sites = {"a": saying(40, 8), "b": saying(44, 12), "liar": saying(1e9, 5)}
    made = scaled_by(SCHEMA, sites)
    assert (made.known, made.tolerates) == ({"x": 2, "free": 3}, 0)
    assert made.promise == "no site may lie: column 'x' is known at 2 sites"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "schema is missing"),
        ('{"schema": "x", "rows": -1}', "rows"),
        ('{"schema": "x", "rows": 1e999}', "rows"),
        ('{"schema": "x", "rows": 1, "columns": {"x": {"mean": NaN}}}', "no JSON"),
        ('{"schema": "x", "rows": 1, "columns": {"x": {"mean": 1, "deviation": 0}}}', "deviation"),
        ('{"schema": "x", "rows": 1, "more": 1}', "more is unknown here"),
        ("[" * 10_000, "holds no statistics of a site"),
    ],
)
def test_a_forged_file_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        SiteStatistics.parse(text.encode(), "site.json")


@pytest.mark.parametrize(
    ("site", "message"),
    [
        (msgspec.structs.replace(saying(1, 1), schema="sha256:" + "0" * 64), "statistics by the schema 'sha256:000"),
        (msgspec.structs.replace(saying(1, 1), columns={}), "does not have the statistics of the columns"),
        (msgspec.structs.replace(saying(1, 1), columns={"x": ColumnStatistics(), "free": ColumnStatistics()}),
         "No site has statistics of any column"),
        (msgspec.structs.replace(saying(1, 1), classes={"no": 50, "\x1b[31mill": 5}), "have the classes of the"),
    ],
)  # fmt: skip
def test_statistics_of_something_else_are_refused(site, message):
    with pytest.raises(ValueError, match=message):
        scaled_by(SCHEMA, {"site.json": site})


def test_four_hospitals_agree_without_showing_a_row(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = sorted(HEART.glob("*.csv"))
    classes = ("--classes", "healthy=0", "ill=1,2,3,4", "--zeros", "chol", "trestbps")
    commands = [("schema", "init", *files, "--target", "target", *classes)]
    commands += [("schema", "statistics", file, "-o", f"{file.stem}.json") for file in files]
    commands += [("schema", "scale", *(f"{file.stem}.json" for file in files), "-o", "agreed.json")]
    for command in commands:
        assert main([*map(str, command)]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert (
        "agreed.json: the median of 4 sites, about 925 rows, healthy about 415, ill about 510; no site may lie" in out
    )
    assert "; no site may lie: column 'ca' is known at 1 site. sha256:" in out
    pooled, agreed = Schema.load("schema.json"), Schema.load("agreed.json")
    for first, second in zip(pooled.inputs_of, agreed.inputs_of, strict=True):
        assert abs(first.use.scaling.mean - second.use.scaling.mean) < first.use.scaling.deviation
    sent = json.loads((tmp_path / "switzerland.json").read_text())
    assert {*sent} == {"schema", "rows", "classes", "columns"}
    assert sent["columns"]["chol"] == {"missing": 125}
    assert main(["schema", "scale", "va.json", "--schema", "agreed.json"]) == 2
    assert "has statistics by the schema" in capsys.readouterr().err


def test_the_reading_of_a_schema_changes_in_its_scaling_alone():
    made = scaled_by(SCHEMA, {"a": saying(40, 8)})
    for first, second in zip(SCHEMA.reading.columns, made.schema.reading.columns, strict=True):
        assert first == replace(second, mean=first.mean, deviation=first.deviation, fill=first.fill)
