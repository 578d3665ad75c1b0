"""The models of a run on a table, and rows of other files: `phalanx evaluate`."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from commandline import said
from phalanx import Record, Run, Until, simulate
from phalanx.cli.main import main
from phalanx.data import CSV, HeldOut, Natural, Schema

N = 120


def patients(seed, n=N):
    """Patients whose sickness follows from age and marker; a wrong order of columns shows at once."""
    rng = np.random.default_rng(seed)
    age, marker = rng.normal(60, 12, n), rng.normal(5, 2, n)
    sick = np.where(age / 12 - marker / 2 + rng.normal(0, 0.3, n) > 2.5, "sick", "well")
    frame = {"age": age, "marker": marker, "sex": rng.choice(["f", "m"], n), "site": rng.choice(["Bern", "Rome"], n)}
    return pd.DataFrame({**frame, "state": sick})


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The files lie below the current folder, where a record may name them."""
    monkeypatch.chdir(tmp_path.parent)


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


LEFT = re.compile(r"(\d+) of (\d+) rows are left out: their inputs and label are those of rows that the models were")


def forms(frame, folder):
    """Files with the same rows as the run's own, none of which is the same file."""
    frame.sample(frac=1, random_state=0).to_csv(folder / "shuffled.csv", index=False)
    frame.sample(frac=1, axis=1, random_state=0).to_csv(folder / "columns.csv", index=False)
    pd.concat([frame, patients(1, 30)]).to_csv(folder / "longer.csv", index=False)
    frame.to_csv(folder / "packed.csv.gz", index=False)
    frame.to_parquet(folder / "other.parquet")
    return ("shuffled.csv", "columns.csv", "longer.csv", "packed.csv.gz", "other.parquet")


def test_rows_of_the_training_are_left_out_of_other_files(done, capsys, tmp_path):
    """Whatever the order of rows and columns, and the format: what remains are the test rows, and new ones."""
    _, own, _ = said(capsys, "evaluate", done / "run")
    tests, train = (getattr(Record.load(done / "run").summary.data, part) for part in ("test", "train"))
    for name in forms(patients(0), tmp_path):
        status, out, err = said(capsys, "evaluate", done / "run", "--data", tmp_path / name)
        more = 30 if name == "longer.csv" else 0
        assert (status, LEFT.search(err).groups()) == (0, (str(train), str(N + more))), name
        assert accuracy(out)[0] == str(tests + more)
        assert more or accuracy(out) == accuracy(own)
        _, out, _ = said(capsys, "evaluate", done / "run", "--data", tmp_path / name, "--json")
        assert json.loads(out)["left_out"] == train
        _, out, err = said(capsys, "evaluate", done / "run", "--data", tmp_path / name, "--equal_rows", "true")
        assert (accuracy(out)[0], err) == (str(N + more), "")
    _, out, err = said(capsys, "evaluate", done / "run", "--data", done / "new.csv", "--json")
    assert (json.loads(out)["left_out"], err) == (0, "")
    kept = CSV(str(done / "old.csv"), "state", owner="site").load()[0]
    whole = Record.load(done / "run").schema.dataset(patients(0))
    trained = [any(torch.equal(row, one) for one in kept.x) for row in whole.x]
    patients(0)[trained].to_csv(tmp_path / "trained.csv", index=False)
    status, _, err = said(capsys, "evaluate", done / "run", "--data", tmp_path / "trained.csv")
    assert (status, f"All {train} rows of" in err) == (2, True), err


def test_the_file_of_the_run_with_more_rows_is_refused_and_a_missing_one_is_said(done, capsys, tmp_path):
    before = (done / "old.csv").read_bytes()
    try:
        pd.concat([patients(0), patients(1, 5)]).to_csv(done / "old.csv", index=False)
        (tmp_path / "link.csv").symlink_to(done / "old.csv")
        for data in ((), ("--data", done / "old.csv"), ("--data", tmp_path / "link.csv")):
            status, _, err = said(capsys, "evaluate", done / "run", *data)
            assert (status, "is not as it was in training, so that it is not known which" in err) == (2, True), err
        (done / "old.csv").unlink()
        status, out, err = said(capsys, "evaluate", done / "run", "--data", done / "new.csv", "--json")
        assert (status, json.loads(out)["left_out"], json.loads(out)["examples"]) == (0, None, N)
        assert "The run's own data is not there as it was" in err
    finally:
        (done / "old.csv").write_bytes(before)


def test_other_data_of_a_run_are_as_they_were_too(done, capsys, tmp_path):
    folder = tmp_path / "held"
    patients(0).to_csv(tmp_path / "own.csv", index=False)
    plan = Run(data=HeldOut(CSV(str(tmp_path / "own.csv"), "state")), clients=2, until=Until(1))
    simulate(plan, folder=folder)
    assert said(capsys, "evaluate", folder)[0] == 0
    patients(0)[::-1].to_csv(tmp_path / "own.csv", index=False)
    for data in ((), ("--data", tmp_path / "own.csv")):
        status, _, err = said(capsys, "evaluate", folder, *data)
        assert (status, "is not as it was in training" in err) == (2, True), err


NAMES = {"numbers": range(1, 13), "codes": [f"{k:02d}" for k in range(1, 13)], "words": [f"h{k}" for k in range(12)]}


@pytest.mark.parametrize("kind", NAMES)
def test_owners_are_the_same_in_training_and_evaluation(kind, capsys, tmp_path):
    """Twelve: as texts 10 comes before 2, as numbers after it."""
    frame = patients(0, 240).assign(site=[NAMES[kind][k % 12] for k in range(240)])
    frame.to_csv(tmp_path / "own.csv", index=False)
    data = CSV(str(tmp_path / "own.csv"), "state", owner="site")
    simulate(Run(data=data, partition=Natural(), clients=12, until=Until(1)), folder=tmp_path / "run")
    names = [*map(str, NAMES[kind])]
    assert [one.name for one in Record.load(tmp_path / "run").summary.clients.values()] == sorted(
        names, key=int if kind == "numbers" else None
    )
    _, out, _ = said(capsys, "evaluate", tmp_path / "run", "--json")
    new = patients(1, 24).assign(site=[NAMES[kind][k] for k in (0, 11) * 12])
    new.to_csv(tmp_path / "new.csv", index=False)
    new.to_parquet(tmp_path / "new.parquet")
    several = ("CSV", "--data.path", tmp_path / "new.csv", "--data.label", "state")  # which names no owner
    own = {each["name"]: each["accuracy_on_own_examples"] for each in json.loads(out)["clients"]}
    assert {*own} == {*names}
    assert None not in own.values()
    found = set()
    for other in ((tmp_path / "new.csv",), (tmp_path / "new.parquet",), several):
        _, out, _ = said(capsys, "evaluate", tmp_path / "run", "--data", *other, "--json")
        own = {each["name"]: each["accuracy_on_own_examples"] for each in json.loads(out)["clients"]}
        assert [name for name, share in own.items() if share is not None] == [names[0], names[11]]
        found.add(out)
    assert len(found) == 1
    new.assign(site=new["site"].astype(object).where(new.index != 7)).to_csv(tmp_path / "gap.csv", index=False)
    status, _, err = said(capsys, "evaluate", tmp_path / "run", "--data", tmp_path / "gap.csv")
    assert (status, "Column 'site' is empty in 1 of 24 rows (the first: row 8)" in err) == (2, True), err
    found = said(capsys, "predict", tmp_path / "run", "--data", tmp_path / "gap.csv", "-o", tmp_path / "out.csv")
    assert found[0] == 0, "a prediction needs no owner"


def test_owners_that_only_the_test_file_lacks(capsys, tmp_path):
    frame = patients(0, 120).assign(site=[*"abc"] * 40)
    frame[:90].to_csv(tmp_path / "train.csv", index=False)
    frame[90:].query("site != 'a'").to_csv(tmp_path / "test.csv", index=False)
    data = CSV(str(tmp_path / "train.csv"), "state", test=str(tmp_path / "test.csv"), owner="site")
    simulate(Run(data=data, partition=Natural(), clients=3, until=Until(1)), folder=tmp_path / "run")
    for given in ((), ("--data", tmp_path / "test.csv")):
        _, out, err = said(capsys, "evaluate", tmp_path / "run", *given, "--json")
        found = json.loads(out)
        assert (found["examples"], found["left_out"], err) == (20, 0, "")


def test_a_model_of_nan_is_not_evaluated(capsys, tmp_path):
    patients(0).to_csv(tmp_path / "own.csv", index=False)
    simulate(Run(data=CSV(str(tmp_path / "own.csv"), "state"), clients=2, until=Until(1)), folder=tmp_path / "run")
    (tmp_path / "run" / "seal.json").unlink()
    path = tmp_path / "run" / "model.safetensors"
    state = safetensors.torch.load_file(path)
    safetensors.torch.save_file({name: value * torch.nan for name, value in state.items()}, path)
    status, out, err = said(capsys, "evaluate", tmp_path / "run", "--json")
    assert (status, json.loads(out)["model"]["accuracy"]) == (1, None)
    assert {each["accuracy"] for each in json.loads(out)["classes"]} == {None}
    assert "outputs of the model are NaN or infinite: global model, client 0, client 1" in err
    command = ("predict", tmp_path / "run", "--data", tmp_path / "own.csv", "-o", tmp_path / "out.csv")
    status, _, err = said(capsys, *command)
    assert (status, f"NaN or infinite for {N} of {N} rows (the first: row 1)" in err) == (2, True), err
    assert not (tmp_path / "out.csv").exists()


def test_a_model_of_infinite_outputs_is_not_evaluated(capsys, tmp_path):
    """Whatever classes the rows have: a bias of minus infinity leaves the other class, with a loss of 0."""
    patients(0).to_csv(tmp_path / "own.csv", index=False)
    simulate(Run(data=CSV(str(tmp_path / "own.csv"), "state"), clients=2, until=Until(1)), folder=tmp_path / "run")
    (tmp_path / "run" / "seal.json").unlink()
    path = tmp_path / "run" / "model.safetensors"
    state = safetensors.torch.load_file(path)
    for value in state.values():
        if value.shape == (2,):
            value[:] = torch.tensor([-torch.inf, 0.0])
    safetensors.torch.save_file(state, path)
    new = patients(1)
    new[new["state"] == "well"].to_csv(tmp_path / "well.csv", index=False)
    for data in ((), ("--data", tmp_path / "well.csv")):
        status, out, err = said(capsys, "evaluate", tmp_path / "run", *data, "--json")
        found = json.loads(out, parse_constant=pytest.fail)
        assert (status, found["model"]) == (1, {"accuracy": None, "loss": None})
        assert "are NaN or infinite: global model, client 0, client 1" in err


def test_words_for_missing_values_are_no_files(capsys, tmp_path, monkeypatch):
    """Nor are the names of columns, or a separator: `*` and `?` name no file that is read, also within `HeldOut`."""
    monkeypatch.chdir(tmp_path)
    patients(0).rename(columns={"sex": "?"}).to_csv("train.csv", index=False)
    patients(1).rename(columns={"sex": "?"}).to_csv("new.csv", index=False)
    table = CSV("train.csv", "state", owner="site", drop=("?",), missing=("*", "?"), impute="median")
    for data in (table, HeldOut(table)):
        shutil.rmtree("run", ignore_errors=True)
        simulate(Run(data=data, clients=2, until=Until(1)), folder="run")
        for name in ("state", "site", "o", "median", "other.csv"):
            (tmp_path / name).write_text("x")
            found = said(capsys, "predict", "run", "--data", "new.csv", "-o", name)
            assert found[0] == 0, found
        status, _, err = said(capsys, "predict", "run", "--data", "new.csv", "-o", "train.csv")
        assert (status, "train.csv" in err) == (2, True), "that is the file of the run"
        (tmp_path / "train.csv").rename("moved.csv")
        status, _, err = said(capsys, "evaluate", "run", "--data", "new.csv")
        assert (status, "The run's own data is not there as it was" in err) == (0, True), err
        (tmp_path / "moved.csv").rename("train.csv")


def test_which_rows_were_trained_on_must_be_known(done, capsys, tmp_path):
    folder = tmp_path / "held"
    plan = Run(data=HeldOut(CSV(str(done / "old.csv"), "state")), clients=2, until=Until(1))
    simulate(plan, folder=folder)
    status, _, err = said(capsys, "evaluate", folder, "--data", done / "old.csv")
    assert (status, LEFT.search(err).groups()) == (0, ("77", str(N))), "0.8 of 0.8 of the rows"
    frame, before = patients(0), (done / "old.csv").read_bytes()
    try:
        frame[::-1].to_csv(done / "old.csv", index=False)
        status, _, err = said(capsys, "evaluate", done / "run")
        assert (status, "old.csv is not as it was in training, so that it is not known" in err) == (2, True), err
        (tmp_path / "moved.csv").write_bytes(before)
        status, _, err = said(capsys, "evaluate", folder, "--data", tmp_path / "moved.csv")
        assert (status, "were trained on rows of" in err) == (2, True), err
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
            (a, b), (c, d) = each["confusion_on_own_examples"]
            shares = (each["accuracy_on_own_examples"], a / (a + b), d / (c + d))
            own = " +".join(f"{100 * share:.1f} %" for share in shares) + " +honest"
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
    assert {each["label_reweighted_accuracy"] for each in found["clients"]} == {None}, "both have the other class too"


def test_what_is_taken_for_what_of_all_rows_and_of_each_site(done, capsys):
    """Counted here from `phalanx predict`'s classes, row by row."""
    assert main(["evaluate", str(done / "run"), "--data", str(done / "new.csv"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    new = pd.read_csv(done / "new.csv")
    predicted = Record.load(done / "run").predict(new)["prediction"]
    classes = [one["class"] for one in found["classes"]]

    def counted(rows):
        return [[int(((new.state == a) & (predicted == b) & rows).sum()) for b in classes] for a in classes]

    assert found["confusion"] == counted(new.state.notna())
    assert {c["name"]: c["confusion_on_own_examples"] for c in found["clients"]} == {
        site: counted(new.site == site) for site in ("Bern", "Rome")
    }
    assert main(["evaluate", str(done / "run"), "--data", str(done / "new.csv")]) == 0
    out = capsys.readouterr().out
    (a, b), (c, d) = found["confusion"]
    assert re.search(rf"sick +{a} +{b}\s+well +{c} +{d}\s", out), out
    assert "own sick" in out


def test_with_groups_each_client_is_judged_by_the_labels_that_it_sees(done, capsys, tmp_path):
    """Labels of two groups are permuted otherwise; each client's own accuracy is the diagonal of its confusions."""
    data = ("--data", "CSV", "--data.path", done / "old.csv", "--data.label", "state", "--data.owner", "site")
    split = ("--partition", "Natural", "--clients", 2, "--groups", "SwappedLabels", "--groups.pairs", "[[0, 1]]")
    run = ("run", *data, *split, "--algorithm", "Standalone", "--until.steps", 8, "--training.lr", 0.3)
    assert main([*map(str, run), "--folder", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    for client in json.loads(capsys.readouterr().out)["clients"]:
        right = sum(client["confusion_on_own_examples"][k][k] for k in range(2))
        rows = sum(map(sum, client["confusion_on_own_examples"]))
        assert client["accuracy_on_own_examples"] == pytest.approx(right / rows)


def test_a_site_without_rows_of_a_class_has_no_share_of_it(done, tmp_path, capsys):
    rows = pd.read_csv(done / "new.csv")
    rows[(rows.site != "Bern") | (rows.state == "well")].to_csv(tmp_path / "some.csv", index=False)
    assert main(["evaluate", str(done / "run"), "--data", str(tmp_path / "some.csv")]) == 0
    bern = next(line for line in capsys.readouterr().out.splitlines() if "Bern" in line)
    assert re.search(r" %  +- +[\d.]+ %", bern), bern


def test_a_record_has_no_file_read_that_lies_elsewhere(done, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = said(capsys, "evaluate", done / "run")
    assert (status, out) == (2, "")
    assert f"the run's own data is the file {done / 'old.csv'}. It is outside" in err
    assert "If the run is yours, give --trust; else name examples by --data." in err
    status, _, err = said(capsys, "evaluate", done / "run", "--data", done / "new.csv")
    assert (status, "old.csv, is not read without --trust, so that rows that" in err) == (0, True)
    assert said(capsys, "evaluate", done / "run", "--trust")[0] == 0
    monkeypatch.setenv("PHALANX_DATA", str(done))
    assert said(capsys, "evaluate", done / "run")[0] == 0, "the data folder is one's own"
