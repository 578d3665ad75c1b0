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
from phalanx.data.table_columns import Scaling
from phalanx.data.table_impossible import rounded, spread_apart, wrong_counts
from phalanx.data.table_statistics import ColumnStatistics, SiteStatistics, pooled, scaled_by, statistics_of

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
    lambda ends: (sum(ends) / 2, max(abs(ends[0] - ends[1]) / 2, 1.0))  # those of half of the rows at each end
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
    for name in ("x", "free"):
        assert made.known[name] == len(sites) - sum(one.error and one.name == name for one in made.findings)
    assert not [one for one in made.findings if one.error and int(one.site) < n]


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


HONEST = {"a": saying(40, 8), "b": saying(44, 12), "c": saying(41, 9)}
CANNOT_BE = {  # what is wrong, and the columns in which it is found; "" is the whole site
    "negative rows": ({"rows": -5}, "it has -5 rows", [""]),
    "rows that are not rounded": ({"rows": 102}, "it has 102 rows, which is no multiple of 5", [""]),
    "too few rows": ({"rows": 15, "classes": {"no": 15, "yes": 0}}, "it has 15 rows, fewer than 20", [""]),
    "a negative class": ({"classes": {"no": -50, "yes": 150}}, "it has -50 rows", [""]),
    "a class above the rows": ({"classes": {"no": 105, "yes": 0}}, "it has 105 rows of class 'no', of 100", [""]),
    "classes above the rows": ({"classes": {"no": 60, "yes": 60}}, "its classes have 120 rows, and it has 100", [""]),
    "classes below the rows": ({"classes": {"no": 50, "yes": 40}}, "its classes have 90 rows, and it has 100", [""]),
    "missing above the rows": ({"missing": 105}, "105 values are missing in 100 rows", ["x", "free"]),
    "negative missing": ({"missing": -5}, "-5 values are missing in 100 rows", ["x", "free"]),
    "missing where none is": ({"missing": 5}, "5 values are missing, and the schema has none missing", ["free"]),
    "a mean of too few": ({"missing": 90}, "it has a mean of fewer than 20 values", ["x"]),
    "a mean alone": ({"deviation": None}, "it has one of mean and deviation", ["x", "free"]),
    "NaN": ({"mean": float("nan")}, "it has mean nan", ["x", "free"]),
    "an infinite deviation": ({"deviation": float("inf")}, "and deviation inf", ["x", "free"]),
    "a negative deviation": ({"deviation": -1.0}, "and deviation -1", ["x", "free"]),
    "a mean below": ({"mean": -3.0}, "its mean -3 is outside of the bounds 0 to 100", ["x"]),
    "a mean above": ({"mean": 101.0}, "its mean 101 is outside of the bounds 0 to 100", ["x"]),
    "a deviation": ({"mean": 50.0, "deviation": 54.0}, "is above 50, the largest within the bounds 0 to 100", ["x"]),
    "a deviation beside its mean": ({"mean": 99.0, "deviation": 15.0}, "its deviation 15 is above 1", ["x"]),
    "a spread above all": ({"deviation": 1500.0}, "its deviation is 1500, and that of all other sites 8", ["free"]),
    "a spread below all": ({"deviation": 0.07}, "its deviation is 0.07, and that of all other sites 8", ["x", "free"]),
}  # fmt: skip


@pytest.mark.parametrize("rule", ["median", "pooled"])
@pytest.mark.parametrize("kind", CANNOT_BE)
def test_what_cannot_be_is_refused_named_and_not_used(kind, rule):
    change, why, where = CANNOT_BE[kind]
    column = ColumnStatistics(**{"mean": 40.0, "deviation": 8.0} | {k: v for k, v in change.items() if k in
                              ("mean", "deviation", "missing")})  # fmt: skip
    whole = {k: v for k, v in change.items() if k in ("rows", "classes")}
    liar = msgspec.structs.replace(saying(40, 8), columns={"x": column, "free": column}, **whole)
    made, without = (scaled_by(SCHEMA, sites, rule) for sites in (HONEST | {"liar": liar}, HONEST))
    found = [one for one in made.findings if one.code == "impossible"]
    assert {one.site for one in found} == {"liar"}
    named = [one for one in found if why in one.sentence]
    assert [one.name for one in named] == where
    assert all(one.sentence.startswith("liar is left out") for one in named)
    for name in where if where != [""] else ("x", "free"):
        assert scaling(made, name) == scaling(without, name)
    assert made.counted == (("a", "b", "c") if where == [""] else ("a", "b", "c", "liar"))


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(st.data())
def test_honest_tables_never_have_statistics_that_cannot_be(tmp_path_factory, data):
    """Whatever a table holds that fits the schema: sites of one population, of 20 rows or more."""
    folder, sites = tmp_path_factory.mktemp("sites"), {}
    kind = data.draw(st.sampled_from(["uniform", "normal", "heavy", "two", "grid"]))
    low, high = sorted(data.draw(st.tuples(st.floats(0, 100), st.floats(0, 100))))
    for k in range(data.draw(st.integers(1, 5))):
        n, rng = data.draw(st.integers(20, 90)), np.random.default_rng(data.draw(st.integers(0, 10**6)))
        drawn = {"uniform": rng.uniform(low, high, n), "normal": rng.normal(low, high - low, n), "grid":
                 rng.integers(int(low), int(high) + 1, n), "heavy": low + rng.pareto(1.5, n) * (high - low),
                 "two": rng.choice([low, high], n)}[kind]  # fmt: skip
        x = np.clip(drawn.astype(float), 0, 100)
        x[rng.random(n) < data.draw(st.floats(0, 1))] = np.nan
        x[0] = low
        y = rng.choice(["no", "yes"], n, p=[share := data.draw(st.floats(0, 1)), 1 - share])
        sites[str(k)] = told(folder, table(k, n, x=x, y=y))
    made = scaled_by(SCHEMA, sites)
    assert [one.sentence for one in made.findings if one.error] == []


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6).filter(lambda counts: sum(counts) >= 20))
def test_counts_of_an_honest_table_always_add_up(counts):
    assert wrong_counts(rounded(sum(counts)), {str(k): rounded(count) for k, count in enumerate(counts)}) == ""


def test_two_sites_apart_are_two_opinions():
    """Of two nobody can say which one lies."""
    assert spread_apart({"a": 1.0, "b": 1e6}) == {}
    assert [*spread_apart({"a": 1.0, "b": 1e6, "c": 2.0})] == ["b"]
    assert spread_apart({"a": 1.0, "b": 100.0, "c": 2.0}) == {}


def test_pooled_figures_are_those_of_all_rows_together():
    rng = np.random.default_rng(0)
    parts = [rng.normal(1e6 * k, k + 1, 50 + 20 * k) for k in range(4)]
    mean, deviation = pooled([Scaling(mean=p.mean(), deviation=p.std()) for p in parts], [len(p) for p in parts])
    every = np.concatenate(parts)
    assert mean == pytest.approx(every.mean(), rel=1e-13)
    assert deviation == pytest.approx(every.std(), rel=1e-12)


def test_one_liar_moves_a_pooled_scaling_and_not_a_median():
    sites = {**HONEST, "liar": msgspec.structs.replace(saying(1e6, 9), rows=10**6, classes={"no": 10**6, "yes": 0})}
    median, pool = (scaled_by(SCHEMA, sites, rule) for rule in ("median", "pooled"))
    assert 40 <= scaling(median, "free")[0] <= 44
    assert scaling(pool, "free")[0] > 9e5
    assert (median.tolerates, pool.tolerates) == (1, 0)
    assert pool.promise == "no site may lie: it is of all rows together"
    assert (median.schema.pooled, pool.schema.pooled) == ((), ("x", "free"))
    assert Schema.parse(pool.schema.json, "again").pooled == ("x", "free")


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
