"""The models of a run on a table, and rows of other files: `phalanx evaluate`."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from phalanx import Record, Run, Until, simulate
from phalanx.cli.main import main
from phalanx.data import CSV, HeldOut, Schema

N = 120


def patients(seed, n=N):
    """Patients whose sickness follows from age and marker; a wrong order of columns shows at once."""
    rng = np.random.default_rng(seed)
    age, marker = rng.normal(60, 12, n), rng.normal(5, 2, n)
    sick = np.where(age / 12 - marker / 2 + rng.normal(0, 0.3, n) > 2.5, "sick", "well")
    frame = {"age": age, "marker": marker, "sex": rng.choice(["f", "m"], n), "site": rng.choice(["Bern", "Rome"], n)}
    return pd.DataFrame({**frame, "state": sick})


def said(capsys, *command):
    try:
        status = main([str(word) for word in command])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A folder with a run on a table, in `run`, its file `old.csv`, and other files."""
    folder = tmp_path_factory.mktemp("tables")
    patients(0).to_csv(folder / "old.csv", index=False)
    new = patients(1)
    new.to_csv(folder / "new.csv", index=False)
    new[[*new.columns[::-1]]].to_csv(folder / "reversed.csv", index=False)
    options = ("--data", "CSV", "--data.path", folder / "old.csv", "--data.label", "state", "--data.owner", "site")
    small = (
        "--partition",
        "Natural",
        "--clients",
        2,
        "--model.hidden",
        "[5]",
        "--until.steps",
        8,
        "--training.lr",
        0.3,
    )
    command = ("run", *options, *small, "--keep_best", "--folder", folder / "run")
    assert main([str(word) for word in command]) == 0
    return folder


def test_the_schema_lies_beside_the_model(done):
    for place in (done / "run", done / "run" / "best"):
        schema = Schema.load(place / "schema.json")
        index = json.loads((place / "model.json").read_text())
        assert index["inputs"]["schema"] == schema.digest
        assert "table" not in index["inputs"]
    assert schema == Record.load(done / "run").schema
    assert [(each.name, each.use.role) for each in schema.fields] == [
        ("age", "input"), ("marker", "input"), ("sex", "input"), ("site", "owner"), ("state", "target"),
    ]  # fmt: skip


def accuracy(out):
    return re.search(r"(\d+) test examples\s+accuracy.*?global model +([\d.]+) %", out, re.DOTALL).groups()


def test_another_file_is_read_by_name_and_all_of_its_rows_are_used(done, capsys):
    model, schema, new = Record.load(done / "run").model(), Record.load(done / "run").schema, patients(1)
    with torch.inference_mode():
        right = model(schema.inputs(new)).argmax(1).numpy() == (new["state"] == "well")
    expected = (str(N), f"{100 * right.mean():.1f}")
    assert right.mean() > 0.8
    for given in (
        ("new.csv",),
        ("reversed.csv",),
        ("CSV", "--data.path", done / "reversed.csv", "--data.label", "state"),
    ):
        words = (given[0] if given[0] == "CSV" else done / given[0], *given[1:])
        status, out, _ = said(capsys, "evaluate", done / "run", "--data", *words)
        assert (status, accuracy(out)) == (0, expected)
        assert len(re.findall(r"^ \d (Bern|Rome) .*%.*%", out, re.MULTILINE)) == 2, "each on its own rows"


def test_of_a_file_that_was_trained_on_the_test_rows_are_used(done, capsys, tmp_path):
    _, own, _ = said(capsys, "evaluate", done / "run")
    shutil.copy(done / "old.csv", tmp_path / "moved.csv")
    _, moved, _ = said(capsys, "evaluate", done / "run", "--data", tmp_path / "moved.csv")
    assert accuracy(own) == accuracy(moved)
    assert accuracy(own)[0] == str(Record.load(done / "run").summary.data.test) != str(N)


def test_which_rows_were_trained_on_must_be_known(done, capsys, tmp_path):
    folder = tmp_path / "held"
    plan = Run(data=HeldOut(CSV(str(done / "old.csv"), "state")), clients=2, until=Until(1))
    simulate(plan, folder=folder)
    status, _, err = said(capsys, "evaluate", folder, "--data", done / "old.csv")
    assert (status, "were trained on rows of" in err) == (2, True), err
    frame, before = patients(0), (done / "old.csv").read_bytes()
    try:
        frame.assign(age=frame["age"] + 1).to_csv(done / "old.csv", index=False)
        status, _, err = said(capsys, "evaluate", done / "run")
        assert (status, "old.csv is not as it was in training, so that it is not known" in err) == (2, True), err
    finally:
        (done / "old.csv").write_bytes(before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="marker"), "Column 'marker' is missing. Add it, or rename one."),
        (lambda f: f.assign(state=f["state"].replace("sick", "Zx9")), "another text than 'sick', 'well' in"),
        (lambda f: f.assign(sex="Zx9"), f"another text than 'f', 'm' in {N} of {N} rows"),
        (lambda f: f.assign(age="Zx9"), "Column 'age' holds what is no number in"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_without_a_cell(change, message, done, capsys, tmp_path):
    change(patients(2)).to_csv(tmp_path / "t.csv", index=False)
    status, out, err = said(capsys, "evaluate", done / "run", "--data", tmp_path / "t.csv")
    assert (status, message in err) == (2, True), err
    assert "Zx9" not in out + err


def test_a_schema_that_is_not_that_of_the_models_is_refused(done, capsys, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(done / "run", folder)
    text = (folder / "schema.json").read_text()
    (folder / "seal.json").unlink()
    (folder / "schema.json").write_text(text.replace('"mean": ', '"mean": 1'))
    for command in (("evaluate", folder), ("export", folder, "-o", tmp_path / "x")):
        status, _, err = said(capsys, *command)
        assert (status, "is not the schema that these models were trained with" in err) == (2, True), err
    (folder / "schema.json").unlink()
    status, _, err = said(capsys, "evaluate", folder)
    assert (status, "schema.json is missing, which says how rows become inputs" in err) == (2, True), err


def test_a_record_that_is_older_than_schemas(done, capsys, tmp_path):
    """Its `model.json` has a table without label and dialect, which its configuration has."""
    folder = tmp_path / "older"
    shutil.copytree(done / "run", folder)
    index = json.loads((folder / "model.json").read_text())
    for name in ("schema", "trained_on"):
        del index["inputs"][name]
    columns = [{"name": c.name, "value": c.value, "mean": c.mean, "deviation": c.deviation, "fill": None, "gap": False}
               for c in Record.load(done / "run").schema.reading.columns]  # fmt: skip
    index["inputs"]["table"] = {
        "columns": columns,
        "labels": ["sick", "well"],
        "owners": ["Bern", "Rome"],
        "target": None,
    }
    (folder / "model.json").write_text(json.dumps(index))
    (folder / "schema.json").unlink()
    (folder / "seal.json").unlink()
    assert Record.load(folder).schema == Record.load(done / "run").schema
    for other in ((), ("--data", done / "reversed.csv")):
        older, newer = (said(capsys, "evaluate", place, *other) for place in (folder, done / "run"))
        assert (
            older[1].partition("Not sealed: whether it was changed since the run ended cannot be seen.\n")[2]
            == newer[1]
        )
        _, out, err = said(capsys, "evaluate", folder, *other, "--json")
        assert ("Not sealed" in err, json.loads(out)["model"]["accuracy"] > 0) == (True, True)


def test_a_run_on_no_table_has_no_schema(capsys, tmp_path, done):
    simulate(Run(until=Until(1), clients=2), folder=tmp_path / "digits")
    assert not (tmp_path / "digits" / "schema.json").exists()
    status, _, err = said(capsys, "evaluate", tmp_path / "digits", "--data", done / "new.csv")
    assert (status, "was not trained on a table file (CSV, Parquet)" in err) == (2, True), err


def test_the_figures_as_json_are_those_of_the_tables(done, capsys):
    for data in ((), ("--data", done / "new.csv")):
        _, table, _ = said(capsys, "evaluate", done / "run", *data)
        status, out, err = said(capsys, "evaluate", done / "run", *data, "--json")
        found = json.loads(out)
        assert (status, err) == (0, "")
        assert accuracy(table) == (str(found["examples"]), f"{100 * found['model']['accuracy']:.1f}")
        assert sum(each["examples"] for each in found["classes"]) == found["examples"]
        assert [each["class"] for each in found["classes"]] == ["sick", "well"]
        share = sum(each["examples"] * each["accuracy"] for each in found["classes"]) / found["examples"]
        assert share == pytest.approx(found["model"]["accuracy"])
        for each in found["clients"]:
            own = f"{100 * each['accuracy_on_own_examples']:.1f} % +honest"
            assert re.search(rf"^ {each['client']} {each['name']} .* {own}", table, re.MULTILINE)
        assert [each["name"] for each in found["clients"]] == ["Bern", "Rome"]
        assert found["identity"] == Record.load(done / "run").summary.identity


def test_what_is_not_defined_is_null_in_json(done, capsys, tmp_path):
    """Rows of one class, of no known owner."""
    new = patients(1)
    new[new["state"] == "sick"].drop(columns="site").to_csv(tmp_path / "sick.csv", index=False)
    status, out, _ = said(capsys, "evaluate", done / "run", "--data", tmp_path / "sick.csv", "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert status == 0
    assert found["classes"][1] == {"class": "well", "examples": 0, "accuracy": None}
    assert all("accuracy_on_own_examples" not in each for each in found["clients"])
