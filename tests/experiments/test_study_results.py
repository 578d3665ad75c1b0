"""Tables, tests, costs, pages and CSV of traces that are made, not trained."""

import csv
import io

import pytest

from experiments.reproduce.made import trace
from phalanx.core import InfeasibleError
from phalanx.experiments.results import Results, Row
from phalanx.experiments.shown import study_figures, study_tables
from phalanx.experiments.shown.study_page import best, write

RULES, ATTACKS = ("mean", "median"), ("none", "flip")
ENDS = {("mean", "none"): 0.9, ("mean", "flip"): 0.3, ("median", "none"): 0.8, ("median", "flip"): 0.7}


def results(seeds=3, axes=None, failing=()):
    axes = axes or {"rule": RULES, "attack": ATTACKS}
    rows = []
    for rule in axes["rule"]:
        for attack in axes["attack"]:
            for seed in range(seeds):
                end = ENDS.get((rule, attack), 0.5) + 0.01 * seed
                one = trace([0.1, end / 2, end], seed, failed=(rule, attack, seed) in failing)
                rows.append(Row({"rule": rule, "attack": attack}, one))
    return Results("made", axes, rows)


def test_a_table_of_two_axes_has_the_mean_over_seeds_of_each_cell():
    table = results().table("rule", "attack")
    assert table["mean"]["flip"].mean == pytest.approx(0.31)
    assert (table["mean"]["flip"].n, table["mean"]["flip"].failed) == (3, 0)
    assert results().table("attack", "rule")["flip"]["mean"] == table["mean"]["flip"]


def test_a_table_is_printed_in_the_unit_of_its_figure():
    assert str(results(failing={("mean", "flip", 2)}).table("rule", "attack")) == (
        "Accuracy at the end, %\n"
        "\n"
        "rule          none                        flip\n"
        "mean    91.0 ± 2.5  30.5 ± 6.4 (n 2, 1 failed)\n"
        "median  81.0 ± 2.5                  71.0 ± 2.5\n"
        "\n"
        "Mean ± half of the 95 % interval (Student's t) over seeds; n = 3 unless a cell says otherwise."
    )
    assert repr(results(seeds=1).table("rule")).endswith("median      75.0\n\nOne seed in each cell, so no interval.")
    assert str(Results("empty", {"rule": ()}, ()).table("rule")).startswith("Accuracy at the end, %")


def test_over_other_axes_each_seed_counts_once():
    found = results().table("rule")["mean"]["accuracy"]
    assert found.mean == pytest.approx(0.61)
    assert found.n == 3, "three independent values, not six"
    assert found.high - found.mean == pytest.approx(4.3026527 * 0.01 / 3**0.5)


def test_a_seed_with_a_failed_run_is_no_part_of_a_mean_and_is_counted():
    made = results(failing={("mean", "flip", 2)})
    cell = made.table("rule", "attack")["mean"]["flip"]
    assert (cell.mean, cell.n, cell.failed) == (pytest.approx(0.305), 2, 1)
    assert made.table("rule")["mean"]["accuracy"].n == 2


def test_paired_tests_use_common_seeds_only():
    made = results()
    rows = [row for row in made.rows if row.labels["rule"] == "mean" or row.trace.seed != 1]
    (test,) = Results("made", made.axes, rows).tests("rule", at={"attack": "none"})
    assert (test.first, test.second) == ("mean", "median")
    assert (test.difference.mean, test.difference.n) == (pytest.approx(0.1), 2)
    (whole,) = made.tests("rule")
    assert whole.difference.mean == pytest.approx((0.1 - 0.4) / 2)
    assert Results("made", made.axes, made.where({"rule": "mean"})).tests("rule") == []


def test_time_to_accuracy_is_that_of_the_first_evaluation_that_reaches_the_target():
    row = Row({}, trace([0.1, 0.6, 0.5, 0.7]))
    assert row.value("steps_to_target", 0.55) == 1
    assert row.value("seconds_to_target", 0.65) == 30.0
    assert row.value("steps_to_target", 0.8) is None
    made = results()
    assert made.target == pytest.approx(0.95 * 0.91)
    assert made.table("rule", "attack", "steps_to_target")["mean"]["flip"].failed == 3


def test_wrong_names_are_refused_with_those_that_there_are():
    with pytest.raises(InfeasibleError, match=r"no axis rules\. There are: rule, attack"):
        results().table("rules")
    with pytest.raises(InfeasibleError, match=r"no metric accurracy\. There are: accuracy"):
        results().table("rule", metric="accurracy")


def test_the_frame_has_a_row_for_each_run():
    frame = results(failing={("mean", "flip", 2)}).frame()
    assert len(frame) == 12
    assert list(frame.columns[:4]) == ["rule", "attack", "seed", "accuracy"]
    assert (frame["status"] == "failed").sum() == 1


def test_third_axes_have_tables_of_their_own_up_to_a_limit():
    rows = [Row({"a": "x", "b": "y", "c": str(k % 13)}, trace([0.5], k)) for k in range(26)]
    axes = {"a": ("x",), "b": ("y",), "c": tuple(str(k) for k in range(13))}
    assert study_tables.panels(Results("made", axes, rows)) == [{}]
    few = Results("made", {**axes, "c": ("0", "1", "none of them")}, [row for row in rows if int(row.labels["c"]) < 2])
    assert study_tables.panels(few) == [{"c": "0"}, {"c": "1"}]


def test_values_are_compared_over_the_combinations_that_all_have():
    made = results(seeds=1)
    assert [line.partition(" %")[0] for line in best(made)] == ["median: 75.0", "mean: 60.0"]
    without = [row for row in made.rows if row.labels != {"rule": "mean", "attack": "flip"}]
    *lines, why = best(Results("made", made.axes, without))
    assert [line.partition(" %")[0] for line in lines] == ["mean: 90.0", "median: 80.0"]  # not 75.0, of both attacks
    assert why == "Means over the 1 of 2 combinations of the other axes and seeds that all have."
    apart = [
        row
        for row in made.rows
        if row.labels in ({"rule": r, "attack": a} for r, a in zip(RULES, ATTACKS, strict=True))
    ]
    *lines, why = best(Results("made", made.axes, apart))
    assert [line.partition(" %")[0] for line in lines] == ["mean: 90.0", "median: 70.0"]
    assert why == "These are not comparable: no combination of the other axes has a run of each rule."


@pytest.mark.parametrize(("axes", "of"), [(("rule", "attack"), "seeds"), (("rule", "attack", "more"), "runs")])
def test_the_legend_says_of_what_a_band_is(axes, of):
    values = {"rule": RULES, "attack": ATTACKS, "more": ("x", "y")[: len(axes) - 1]}
    rows = [
        Row({"rule": rule, "attack": attack, "more": more}, trace([0.1, 0.5], seed))
        for rule in RULES
        for attack in ATTACKS
        for more in values["more"]
        for seed in range(2)
    ]
    made = Results("made", {axis: values[axis] for axis in axes}, rows)
    texts = [text.get_text() for text in next(study_figures.curve_figures(made)).figure.legends[0].get_texts()]
    assert f"lowest to highest of {2 if of == 'seeds' else 4} {of}" in texts


def test_csv_has_every_run_and_every_cell(tmp_path):
    made = results()
    runs = list(csv.DictReader(io.StringIO(study_tables.runs_csv(made))))
    assert len(runs) == 12
    assert float(runs[0]["accuracy"]) == 0.9
    cells = list(csv.DictReader(io.StringIO(study_tables.tables_csv(made))))
    flip = next(c for c in cells if (c["rule"], c["attack"], c["metric"]) == ("mean", "flip", "accuracy"))
    assert float(flip["mean"]) == pytest.approx(0.31)
    assert flip["n"] == "3"


def test_pages_escape_names_and_are_the_same_for_the_same_results(tmp_path):
    axes = {"rule": ("mean", "<script>alert(1)</script>"), "attack": ATTACKS}
    files = write(results(axes=axes), tmp_path / "one", "phalanx study x.yaml")
    write(results(axes=axes), tmp_path / "two", "phalanx study x.yaml")
    text = files[0].read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count("src=") == text.count('src="data:image/svg+xml;base64,')
    for path in files:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
    assert {"study.html", "study.md", "runs.csv", "tables.csv", "tests.csv"} <= {path.name for path in files}


def test_at_200_runs_no_panel_has_more_than_seven_curves():
    axes = {"rule": tuple(f"rule {k}" for k in range(10)), "attack": tuple(f"attack {k}" for k in range(10))}
    drawn = list(study_figures.curve_figures(results(2, axes)))
    assert sum(len(one.figure.axes) for one in drawn) == 10
    assert all(len(axes.get_legend_handles_labels()[0]) <= 7 for one in drawn for axes in one.figure.axes)
