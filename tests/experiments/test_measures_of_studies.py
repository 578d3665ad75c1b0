"""Figures of the user's own of each run of a study."""

import json
from dataclasses import replace
from functools import partial

import pytest

from phalanx import Run, Study, Until, simulate
from phalanx.experiments.store import Store
from phalanx.models import MLP

BASE = Run(clients=3, until=Until(2), model=MLP((4,)))
GRID = {"training.lr": [0.1, 0.2]}


def lines(record):
    return len(record.history)


def sizes(record):
    return {i: about.size for i, about in record.summary.clients.items()}


def never(_):
    return float("nan")


def object_of_its_own(_):
    return object()


def test_numbers_are_figures_and_other_values_are_kept_as_json(tmp_path):
    study = Study(BASE, GRID, 2, measures={"lines": lines, "sizes": sizes, "never": never})
    results = study.run(tmp_path)
    record = simulate(study.planned[0].plan)
    assert results.rows[0].value("lines") == len(record.history) == 3
    assert results.rows[0].trace.measured["sizes"] == {str(i): size for i, size in sizes(record).items()}
    assert (results.table("training.lr", metric="lines")["0.1"]["lines"].mean, "sizes" in results.metrics) == (3, False)
    assert [row["lines"] for row in results.records()] == [3] * 4
    cell = results.table("training.lr", metric="never")["0.1"]["never"]
    assert (cell.mean, cell.failed) == (None, 2), "what is not finite was not measured"
    assert study.results(tmp_path).rows == results.rows, "what is read is what was measured"


def test_a_record_without_a_measure_is_no_record_of_a_study_that_has_it(tmp_path):
    plain = Study(BASE, GRID, 1)
    before = plain.run(tmp_path)
    study = replace(plain, measures={"lines": lines})
    assert (study.results(tmp_path).missing, study.cost(tmp_path).done, plain.cost(tmp_path).done) == (2, 0, 2)
    assert [row.value("lines") for row in study.run(tmp_path).rows] == [3, 3]
    assert study.results(tmp_path).missing == plain.results(tmp_path).missing == 0
    assert [row.value("loss") for row in plain.results(tmp_path).rows] == [row.value("loss") for row in before.rows]


def test_a_record_without_measures_has_the_bytes_that_it_had(tmp_path):
    Study(BASE, GRID, 1).run(tmp_path)
    for trace in Store(tmp_path).traces():
        assert "measured" not in trace.form
        assert "measured" not in trace.form["seal"]


def test_a_measure_that_gives_what_cannot_be_kept_fails_its_run_with_the_reason(tmp_path):
    (row,) = Study(BASE, {}, 1, measures={"odd": object_of_its_own}).run(tmp_path).rows
    assert row.trace.failed
    assert "object is not JSON serializable" in row.trace.error


@pytest.mark.parametrize("value", [[1], "text", 3])
def test_measures_that_are_no_mapping_in_a_file_are_refused(value, tmp_path):
    Study(BASE, {}, 1, measures={"lines": lines}).run(tmp_path)
    (path,) = Store(tmp_path).folder.glob("*.json")
    form = json.loads(path.read_text())
    path.write_text(json.dumps({name: given for name, given in form.items() if name != "seal"} | {"measured": value}))
    with pytest.raises(ValueError, match="is not the record of a run"):
        Study(BASE, {}, 1).results(tmp_path)


def times(record, *, factor):
    return factor * len(record.history)


def test_a_measure_can_have_settings(tmp_path):
    (row,) = Study(BASE, {}, 1, measures={"lines": partial(times, factor=0.5)}).run(tmp_path).rows
    assert row.value("lines") == 1.5
