"""The arithmetic of tables by hand, and how they read in a terminal, in Markdown and in pandas."""

import io
import math

import pandas
import pytest
from made import trace
from rich.console import Console

from phalanx.experiments.papers import ComparedCell, Plot, Published, Rendering, Sample, Table, compared
from phalanx.experiments.papers.output import csv_text, flat
from phalanx.experiments.shown.text import markdown_table, terminal_table

THEIRS = Published(84.0, where="Toy 2020, Table 1", whose="A. Toy")
READ = Published(55.0, 1.5, "Toy 2020, Figure 2", "read off the figure", 1.0, "A. Toy")


def test_mean_and_standard_deviation_by_hand():
    sample = Sample.of([84.0, 84.6, 84.3])
    assert (sample.mean, sample.deviation, sample.n) == (pytest.approx(84.3), pytest.approx(0.3), 3)
    assert Sample.of([1, 2, 3, 6]).deviation == pytest.approx(math.sqrt((4 + 1 + 0 + 9) / 3))
    assert Sample.of([84.0]) == Sample(84.0, None, 1, None)
    assert Sample.of([]) == Sample(None, None, 0, None)


def test_a_sample_as_text():
    assert Sample.of([84.0, 84.6, 84.3]).text() == "84.3 ± 0.7"
    assert Sample.of([1166]).text(0) == "1166"
    assert Sample.of([]).text() == "-"


def test_the_last_and_the_best_value_of_each_seed():
    traces = [trace([0.1, 0.9, 0.80], 0), trace([0.1, 0.7, 0.84], 1)]
    cell = compared(traces, THEIRS, "So it is.")
    assert cell.ours.mean == pytest.approx(82.0)
    assert cell.ours.deviation == pytest.approx(math.sqrt(8))
    assert cell.best.mean == pytest.approx(87.0)
    assert (cell.ours.n, cell.failed, cell.remark) == (2, 0, "So it is.")
    assert cell.difference == pytest.approx(-2.0)
    lowest = compared([trace([0.5], loss=(3.0,))], figure="loss", scale=1.0, lowest=True)
    assert (lowest.ours.mean, lowest.best.mean, lowest.difference) == (3.0, 3.0, None)


def test_a_failed_run_is_no_part_of_the_mean_and_is_told():
    cell = compared([trace([0.1, 0.8]), trace([0.1, 0.2], 1, failed=True)], THEIRS)
    assert (cell.ours, cell.failed) == (Sample.of([80.0]), 1)
    assert cell.text == "80.0 (1 of 2 failed)"
    assert compared([trace([0.1], failed=True)], THEIRS).text == "failed"
    assert compared([], THEIRS).text == "missing"
    unmeasured = compared([trace([0.5, None])])
    assert (unmeasured.text, unmeasured.failed) == ("failed", 1)


def test_the_remark_of_the_published_number_is_added():
    assert compared([], Published(1.0, remark="Odd."), "Ours is even.").remark == "Ours is even. Odd."


@pytest.mark.parametrize(
    ("ours", "published", "verdict"),
    [
        ([85.0, 86.0, 87.0], THEIRS, ""),  # 86 ± 2.48, of which 84 is inside
        ([85.5, 86.0, 86.5], THEIRS, "higher"),  # 86 ± 1.24
        ([81.5, 82.0, 82.5], THEIRS, "lower"),
        ([86.1], THEIRS, ""),  # one seed has no interval
        ([56.5, 57.0, 57.5], READ, ""),  # 57 ± 1.24, and the number was read within 1
        ([57.0, 57.5, 58.0], READ, "higher"),
    ],
)
def test_higher_and_lower_mean_that_the_interval_excludes_the_published_number(ours, published, verdict):
    assert ComparedCell(Sample.of(ours), None, published).verdict == verdict


def test_the_interval_is_that_of_students_t():
    sample = Sample.of([85.0, 86.0, 87.0])
    assert sample.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert (Sample.of([85.0]).half, Sample.of([]).half) == (None, None)


def test_smaller_runs_are_not_compared_with_published_numbers():
    alone = Rendering([LONG, WIDE]).alone
    assert not any(
        "84" in cell or "higher" in cell or "lower" in cell for row in flat(alone.tables[0]).rows[1:] for cell in row
    )
    assert flat(alone.tables[1]).rows == [["mean", "80.0", "10.0"]]
    assert "not compared" in alone.notes[-1]


def test_without_a_published_number_there_is_no_difference():
    for published in (None, Published(None)):
        cell = ComparedCell(Sample.of([3.0]), None, published)
        assert (cell.difference, cell.verdict) == (None, "")
    assert ComparedCell(Sample.of([]), None, THEIRS).difference is None


def test_rows_and_parts_are_checked():
    with pytest.raises(ValueError, match=r"needs 2 cells \(a, b\), got 1: \['x'\]"):
        Table("T", ["a", "b"], [["x", "y"], ["x"]])
    with pytest.raises(ValueError, match="a part of its own, got \\['', ''\\]"):
        Rendering(plots=[Plot(None), Plot(None)])


LONG = Table(
    "Long | narrow",
    ["rule", "accuracy, %"],
    [
        ["mean | all", ComparedCell(Sample.of([81.0, 82.0]), Sample.of([90.0, 91.0]), THEIRS, "Odd.")],
        ["median", ComparedCell(Sample.of([55.0, 56.0]), Sample.of([60.0, 61.0]), READ)],
        ["none", "not defined"],
    ],
    ["A note."],
)
WIDE = Table(
    "Wide",
    ["rule", "clean, %", "noise, %"],
    [
        [
            "mean",
            ComparedCell(Sample.of([80.0]), None, THEIRS),
            ComparedCell(Sample.of([10.0]), None, READ, "Collapses."),
        ]
    ],
)


def test_one_column_of_comparisons_is_taken_apart():
    assert flat(LONG).columns == ["rule", "accuracy, %: ours", "best", "published", "difference", "remark"]
    assert flat(LONG).rows == [
        ["mean | all", "81.5 ± 6.4", "90.5 ± 6.4", "84", "-2.5", "Odd."],
        ["median", "55.5 ± 6.4", "60.5 ± 6.4", "55 ± 1.5", "+0.5", ""],
        ["none", "not defined", "", "", "", ""],
    ]
    assert flat(LONG).notes == [
        "A note.",
        "Ours: mean ± half of its 95 % interval over 2 seeds, at the end of training; best: at each run's best "
        "evaluation.",
        '"higher" and "lower": our 95 % interval excludes the published number. One seed has none.',
        "Published: Toy 2020, Table 1, printed; runs of A. Toy.",
        "Published: Toy 2020, Figure 2, read off the figure, within 1; runs of A. Toy.",
    ]


def test_several_columns_of_comparisons_are_one_cell_each():
    assert flat(WIDE).columns == ["rule", "clean, %", "noise, %"]
    assert flat(WIDE).rows == [["mean", "80.0 (84, -4.0)", "10.0 (55 ± 1.5, -45.0)"]]
    assert flat(WIDE).notes[0] == "mean, noise, %: Collapses."
    assert "In brackets: the published number, and ours minus that." in flat(WIDE).notes


def test_what_no_row_has_is_no_column():
    bare = Table("Bare", ["n", "U*"], [["75", ComparedCell(Sample.of([1166]), decimals=0)], ["100", "none"]])
    assert flat(bare).columns == ["n", "U*: ours"]
    assert flat(bare).rows == [["75", "1166"], ["100", "none"]]
    assert flat(Table("Text", ["a"], [["b"]])).notes == []


def test_markdown_keeps_its_columns():
    lines = markdown_table(flat(LONG)).splitlines()
    assert lines[0] == "**Long | narrow**"
    assert lines[3] == "| --- | ---: | ---: | ---: | ---: | --- |"
    assert lines[4] == "| mean \\| all | 81.5 ± 6.4 | 90.5 ± 6.4 | 84 | -2.5 | Odd. |"
    assert {line.replace("\\|", "").count("|") for line in lines[2:7]} == {7}


def test_the_terminal_shows_the_same_words():
    console = Console(file=io.StringIO(), width=120)
    console.print(terminal_table(flat(LONG)))
    out = console.file.getvalue()
    assert all(word in out for word in ("mean | all", "81.5 ± 6.4", "-2.5", "Odd.", "not defined"))


def test_csv_goes_to_pandas_with_every_number():
    frame = pandas.read_csv(io.StringIO(csv_text([LONG, WIDE])))
    assert list(frame["table"]) == ["Long | narrow"] * 3 + ["Wide"]
    mean = frame.iloc[0]
    assert (mean["rule"], mean["what"], mean["remark"]) == ("mean | all", "accuracy, %", "Odd.")
    assert mean[["mean", "n", "failed", "best", "published", "difference"]].tolist() == [81.5, 2, 0, 90.5, 84.0, -2.5]
    assert mean["sd"] == pytest.approx(math.sqrt(0.5))
    assert frame.iloc[1]["published sd"] == 1.5
    assert "within 1" in frame.iloc[1]["source"]
    assert (frame.iloc[2]["remark"], math.isnan(frame.iloc[2]["mean"])) == ("not defined", True)
    wide = frame.iloc[3]
    assert (wide["clean, %: mean"], wide["noise, %: difference"]) == (80.0, -45.0)
    assert math.isnan(wide["mean"])
