"""A new user's own tables, and what is wrong with them: one plain sentence with the remedy, and no traceback."""

import json
import re
import shutil

import pandas
import pytest

from cli.test_wrong_commands import INTERNAL
from phalanx import Record
from phalanx.cli.main import main

BODY = [(i % 7 / 7, i % 5 / 5, i % 2) for i in range(40)]


def rows(form, head="a,b,y", body=BODY):
    return "\n".join([head, *(form(i, *row) for i, row in enumerate(body))]) + "\n"


GOOD = rows(lambda i, a, b, y: f"{a},{b},{y}")
OPTIONS = ("--data.label", "y")
CASES = {  # the file, further options, and what the message says
    "missing values": (
        GOOD + "0.5,,1\n,0.2,0\n", (),
        r"t\.csv: Values are missing in 'a' \(1, the first in row 42\), 'b' \(1, the first in row 41\) of 42 rows",
    ),
    "a missing label": (
        GOOD + "0.5,0.1,\n", (),
        r"Values are missing in 'y' \(1, the first in row 41\) of 41 rows\. Fill them, set impute",
    ),
    "a header only": ("a,b,y\n", (), r"t\.csv: The table has no rows\. Give it a row for each example"),
    "an empty file": ("", (), r"t\.csv is empty\. Name a file with a row for each example"),
    "one class": (rows(lambda i, a, b, y: f"{a},{b},1"), (), "at least 2 classes, got 1. Check the labels"),
    "one row": ("a,b,y\n1,2,0\n", (), "a test part of 0.2 of 1 row is empty. Give the test part as a file of its own"),
    "a row per owner": (
        rows(lambda i, a, b, y: f"{a},{b},{i},{y}", "a,b,o,y"), ("--data.owner", "o", "--partition", "Natural"),
        "is empty: column 'o' has as many values as rows, and one row of each value is for training. Give",
    ),
    "a class per row": (rows(lambda i, a, b, y: f"{a},{b},{i}"), (), "is empty: column 'y' has as many values as rows"),
    "more clients than rows": (GOOD, ("--clients", "33"), "33 clients need at least 33 examples, got 32. Use fewer"),
    "float labels": (rows(lambda i, a, b, y: f"{a},{b},{y}.0"), (), "make the labels integers or text: 0, not 0.0"),
    "classes for a regression": (GOOD, ("--task", "Regression"), "or targets=True of a table; or choose"),
    "text for a regression": (
        rows(lambda i, a, b, y: f"{a},{b},c{y}"), ("--task", "Regression", "--data.targets", "true"),
        "Labels must be numbers, since targets is set, column 'y' holds",
    ),
    "a cell too many": (GOOD + "1,2,3,4\n", (), "line 42 has 4 cells, expected 3. Correct the line, or the separator"),
    "another separator": (GOOD.replace(",", ";"), (), r"the columns are \['a;b;y'\].*set the separator"),
    "a separator of two": (GOOD, ("--data.separator", ";;"), "separator must be one character, such as ; or a tab"),
    "no separator": (GOOD, ("--data.separator", ""), "separator must be one character, such as ; or a tab, got ''"),
    "Latin-1": (GOOD.encode() + b"1,2,caf\xe9\n", (), r"t\.csv is not UTF-8 text\. Save it in UTF-8"),
    "no inputs": ("y\n0\n1\n", (), r"There is no column for the inputs, only \['y'\]\. Add one"),
    "identifiers": (
        rows(lambda i, a, b, y: f"id{i},{y}", "a,y", [*BODY, *BODY, *BODY]), (), "120 different texts, and at most 100",
    ),
    "a word among numbers": (
        rows(lambda i, a, b, y: f"{i / 8},{b},{y}") + "unknown,0.1,1\n", (),
        "Column 'a' holds 'unknown' among numbers in row 41. If that is a missing value, list it in missing",
    ),
    "infinity": (GOOD + "inf,0.1,1\n", (), "Column 'a' holds numbers that are infinite.* in 1 of 41 rows. Drop these"),
    "a number beyond float32": (GOOD + "1e300,0.1,1\n", (), "Column 'a' holds numbers that are infinite, or beyond"),
    "an unknown column": (GOOD, ("--data.label", "z"), r"no column 'z'; the columns are \['a', 'b', 'y'\]\. Name one"),
    "too few names of classes": (
        GOOD, ("--data.class_names", "[0]"),
        r"labels that class_names lacks, in 20 of 40 rows \(the first: row 2\)\. Add them",
    ),
    "a network for images": (GOOD, ("--model", "LeNet"), r"takes images of shape.*or choose MLP"),
    "no owners": (GOOD, ("--partition", "Natural"), "these data have no owners. Choose data with owners"),
    "a pattern without layers": (
        GOOD, ("--training", "FedPer", "--training.shared", "[head]"), "no parameter is shared. Choose some of: 1",
    ),
}  # fmt: skip


def refused(capsys, *command):
    """Run a command that must be refused, and return its message, which is one line of plain words."""
    try:
        status = main([*command])
    except SystemExit as end:
        status = end.code
    assert status == 2
    errors = capsys.readouterr().err.strip().splitlines()
    message = [line for line in errors if line.startswith("phalanx ")]
    assert len(message) == 1, errors
    assert message[0].endswith(".")
    assert not [word for word in INTERNAL if word in message[0]]
    return message[0]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DATA", raising=False)


def small(*more):
    return ("run", "--clients", "4", "--until.steps", "1", "--model.hidden", "[]", "--folder", "out", *more)


@pytest.mark.parametrize("case", CASES)
def test_a_table_with_a_mistake(case, tmp_path, capsys):
    content, options, message = CASES[case]
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    found = refused(capsys, *small("--data", "CSV", "--data.path", "t.csv", *OPTIONS, *options))
    assert re.search(message, found)


def test_two_files_that_write_a_column_differently(tmp_path, capsys):
    (tmp_path / "train.csv").write_text(GOOD)
    (tmp_path / "test.csv").write_text(rows(lambda i, a, b, y: f"{a},{b},{'yes' if y else 'no'}"))
    found = refused(capsys, *small("--data", "CSV", "--data.path", "train.csv", "--data.test", "test.csv", *OPTIONS))
    assert "Column 'y' holds numbers in train.csv and text in test.csv." in found


def test_a_file_in_place_of_a_class(capsys):
    assert "data is a class, and my.csv a file. Give --data CSV --data.path my.csv." in refused(
        capsys, *small("--data", "my.csv")
    )
    assert "Give --data Parquet --data.path x.parquet." in refused(capsys, *small("--data", "x.parquet"))


@pytest.mark.parametrize(
    "content",
    [
        rows(lambda i, a, b, y: f"{a},{b},{'yes' if y else 'no'}"),  # text as labels
        rows(lambda i, a, b, y: f"{a},{b},{y + 1}"),  # labels from 1
        rows(lambda i, a, b, y: f"{a},{b},{bool(y)}"),
        rows(lambda i, a, b, y: f"{a},{i % 4 if i % 4 < 3 else '3+'},{y}"),  # a grade: text, for good
    ],
)
def test_a_table_that_is_fine(content, tmp_path, capsys):
    (tmp_path / "t.csv").write_text(content)
    accept = ("--accept", '["leak:b"]')  # the grade tells the label of these rows
    assert main([*small("--data", "CSV", "--data.path", "t.csv", *OPTIONS, *accept)]) == 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run, `out`, and tables of which one has a gap."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "t.csv").write_text(GOOD)
    (folder / "gaps.csv").write_text(GOOD + "1,,0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([*small("--data", "CSV", "--data.path", "t.csv", *OPTIONS)]) == 0
    return folder


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("evaluate", "out", "--data", "gaps.csv"), "gaps.csv: Column 'b' is empty in 1 of 41 rows (the first"),
        (("evaluate", "out", "--data", "Digits"), "know 2 classes; the data has examples of shape (1, 8, 8)"),
        (("evaluate", "out", "--best"), "has not kept the models of the best evaluation"),
        (("evaluate", "nowhere"), "There is no folder nowhere. Name that of a run"),
        (("export", "out"), "Give the folder of a run and a file: FOLDER --out FILE"),
        (("export", "out", "--client", "9", "-o", "m.safetensors"), "Client 9 did not take part. Who did: 0, 1, 2, 3"),
        (("export", "out", "--format", "xml", "-o", "m"), "--format must be safetensors, torch or onnx, got xml"),
        (("export", "out", "-o", "."), "is a folder. Name a file"),
    ],
)  # fmt: skip
def test_what_follows_a_run(command, message, trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    assert message in refused(capsys, *command)


def test_new_rows_are_scaled_as_those_of_the_training(trained, monkeypatch, capsys):
    """All have one label, and other means: by their own mean half of them would be on the wrong side."""
    monkeypatch.chdir(trained)
    body = [(a / 100, 0.5, int(a > 50)) for a in range(0, 101, 2)]
    (trained / "large.csv").write_text(rows(lambda i, a, b, y: f"{a},{b},{y}", body=body))
    (trained / "new.csv").write_text(rows(lambda i, a, b, y: f"{a - 0.001},{b},{y}", body=body[40:]))
    assert main([*small("--data", "CSV", "--data.path", "large.csv", *OPTIONS), "--folder", "large",
                 "--training.lr", "1", "--training.epochs", "20", "--until.steps", "5",
                 "--accept", '["leak:a"]']) == 0  # fmt: skip
    capsys.readouterr()
    assert (
        main(["evaluate", "large", "--data", "CSV", "--data.path", "new.csv", "--data.test", "new.csv", *OPTIONS]) == 0
    )
    shown = capsys.readouterr().out
    assert "11 test examples" in shown
    assert re.search(r"global model +100\.0 %", shown), shown
    record = Record.load(trained / "large")
    frame = pandas.read_csv("new.csv")
    assert record.model()(record.inputs(frame)).argmax(1).tolist() == [1] * 11
    assert "\nmodel(record.inputs(frame))" in (trained / "large" / "model.md").read_text()


def test_a_record_that_does_not_say_how_inputs_were_scaled(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    folder = tmp_path / "older"
    shutil.copytree(trained / "out", folder)
    index = json.loads((folder / "model.json").read_text())
    assert index["inputs"].pop("schema").startswith("sha256:")
    (folder / "model.json").write_text(json.dumps(index))
    (folder / "seal.json").unlink()
    assert main(["evaluate", str(folder), "--data", "CSV", "--data.path", "t.csv", *OPTIONS]) == 0
    assert "does not say how inputs were scaled: t.csv is standardized by its own train" in capsys.readouterr().err
    with pytest.raises(LookupError, match="was not trained on a table file"):
        Record.load(folder).inputs(pandas.read_csv("t.csv"))
