"""Dates as inputs of tables: read as days, in every way of writing that is one way only, and refused otherwise."""

import numpy as np
import pandas as pd
import pytest
import torch

from phalanx.data import CSV, Parquet, Schema
from phalanx.data.table_check import examined
from phalanx.data.table_dates import PATTERNS, TWO_DIGITS, days_of, pattern_of
from phalanx.data.table_draft import draft

N = 120
RNG = np.random.default_rng(5)
MOMENTS = pd.Series(pd.Timestamp("2019-01-01") + pd.to_timedelta(RNG.integers(0, 900 * 24 * 60, N), unit="min"))
LABELS = RNG.integers(0, 2, N)
AGES = RNG.integers(30, 80, N)
GAPS = [3, 40, 41]


def table(dates):
    return pd.DataFrame({"age": AGES, "visit": dates, "y": LABELS})


def written(folder, dates, name="t.csv"):
    table(dates).to_csv(folder / name, index=False)
    return str(folder / name)


def days(pattern):
    """The days by Python's own calendar, to the part that a pattern writes."""
    kept = MOMENTS if "%S" in pattern or "%M" in pattern else MOMENTS.dt.normalize()
    return np.array(
        [(each.to_pydatetime() - pd.Timestamp(0).to_pydatetime()).total_seconds() / 86_400 for each in kept]
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_dates_are_days_however_they_are_written(tmp_path, pattern):
    dates = MOMENTS.dt.strftime(pattern)
    assert pattern_of({*dates}, "visit") == pattern
    assert days_of(dates, pattern).tolist() == days(pattern).tolist()
    path = written(tmp_path, dates)
    train, test = CSV(path, "y", standardize=False).load()
    assert sorted(torch.cat((train.x, test.x))[:, 1].tolist()) == sorted(np.float32(days(pattern)).tolist())
    schema = Schema.of(train.reading)
    assert torch.equal(Schema.parse(schema.json, "s").dataset(path).x[:, 1], torch.tensor(days(pattern)).float())
    (column,) = [each for each in schema.inputs_of if each.name == "visit"]
    assert (column.type, column.pattern) == ("datetime" if "%H" in pattern else "date", pattern)


@pytest.mark.parametrize("kind", ["datetime64[s]", "datetime64[ns]", "date"])
def test_dates_of_parquet(tmp_path, kind):
    dates = MOMENTS.dt.date if kind == "date" else MOMENTS.astype(kind)
    table(dates).to_parquet(tmp_path / "t.parquet")
    train, test = Parquet(str(tmp_path / "t.parquet"), "y", standardize=False).load()
    wanted = days("%Y" if kind == "date" else "%S")
    assert sorted(torch.cat((train.x, test.x))[:, 1].tolist()) == sorted(np.float32(wanted).tolist())
    assert torch.equal(Schema.of(train.reading).dataset(tmp_path / "t.parquet").x[:, 1], torch.tensor(wanted).float())


MISTAKES = {
    "two ways": lambda iso: [text if k % 9 else "03.04.2020" for k, text in enumerate(iso)],
    "a word": lambda iso: [text if k % 9 else "unknown" for k, text in enumerate(iso)],
    "no such day": lambda iso: [text if k % 9 else "2020-02-30" for k, text in enumerate(iso)],
    "a month 13": lambda iso: [text if k % 9 else "2020-13-01" for k, text in enumerate(iso)],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_dates_with_a_mistake_are_refused_by_run_by_schema_and_by_draft(tmp_path, mistake):
    iso = MOMENTS.dt.strftime("%Y-%m-%d")
    wrong, right = written(tmp_path, MISTAKES[mistake](iso)), written(tmp_path, iso, "right.csv")
    with pytest.raises(ValueError, match="'visit' holds dates, and not all are written in one way"):
        CSV(wrong, "y").load()
    assert draft([wrong], "y").schema is None
    found = examined(draft([right], "y").schema, wrong)
    assert {(one.code, one.name, one.rows) for one in found.errors} == {("type", "visit", len(range(0, N, 9)))}
    assert examined(draft([right], "y").schema, right).fits


@pytest.mark.parametrize("pattern", TWO_DIGITS)
def test_years_of_two_digits_are_refused(tmp_path, pattern):
    with pytest.raises(ValueError, match="year of four digits"):
        CSV(written(tmp_path, MOMENTS.dt.strftime(pattern)), "y").load()


@pytest.mark.parametrize("sign", ["/", "-"])
def test_days_that_may_be_months_are_refused(tmp_path, sign):
    dates = [f"{1 + k % 12:02d}{sign}{1 + k // 12:02d}{sign}2020" for k in range(N)]
    with pytest.raises(ValueError, match="day and month can be either"):
        CSV(written(tmp_path, dates), "y").load()


@pytest.mark.parametrize("texts", [["1-2", "3-4"], ["30-39", "40-49"], ["a", "b"], ["1.2.3", "2.0.1", "3.1.4"], []])
def test_texts_that_are_no_dates(texts):
    assert pattern_of(texts, "a") == ""


@pytest.mark.parametrize("impute", ["median", "indicator"])
def test_dates_that_are_missing_are_filled(tmp_path, impute):
    dates = MOMENTS.dt.strftime("%d.%m.%Y").astype(object)
    dates[GAPS] = None
    path = written(tmp_path, dates)
    with pytest.raises(ValueError, match=r"Values are missing in 'visit' \(3"):
        CSV(path, "y").load()
    train, _ = CSV(path, "y", impute=impute).load()
    assert train.x.isfinite().all()
    schema = Schema.of(train.reading)
    assert schema.dataset(path).x[GAPS, 1].unique().numel() == 1
    assert train.x.shape[1] == 2 + (impute == "indicator")


def test_dates_as_numbers_are_said(tmp_path):
    dates = MOMENTS.dt.strftime("%Y%m%d")
    found = {one.key for one in CSV(written(tmp_path, dates), "y").load()[0].findings}
    assert "date:visit" in found
    plain = {one.key for one in CSV(written(tmp_path, 20_250_000 + AGES), "y").load()[0].findings}
    assert "date:visit" not in plain


def test_a_draft_tells_no_date(tmp_path):
    path = written(tmp_path, MOMENTS.dt.strftime("%d.%m.%Y"))
    made = draft([path], "y")
    text = made.schema.json.decode()
    assert not any(date in text for date in MOMENTS.dt.strftime("%d.%m.%Y"))
    (column,) = [each for each in made.schema.inputs_of if each.name == "visit"]
    assert (column.type, column.format, column.constraints.minimum) == ("date", "%d.%m.%Y", None)
    assert abs(made.schema.dataset(path).x[:, 1].mean()) < 0.2
    assert draft([path], "visit").schema is None
