"""`phalanx predict`, and exported graphs that take raw columns: both give the same."""

import numpy as np
import onnx
import pandas as pd
import pytest
import torch

from commandline import said
from phalanx import Record
from phalanx.cli.main import main
from phalanx.data import Schema
from phalanx.data.tables import TargetScale
from phalanx.runs.predicting import Meaning
from phalanx.runs.seal import SEAL, members
from phalanx.runs.table_graph import with_table

onnxruntime = pytest.importorskip("onnxruntime")

N = 300
LABELS = {"texts": ["-", 'z, "q"', "é"], "numbers": [3, 10], "targets": None}


def rows(seed, labels, n=N, gaps=0.1):
    """Rows of every kind of column: timestamps of one minute, true and false, texts that look like numbers, gaps."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "prediction": rng.normal(120, 20, n),  # as an output is called
        "time": 1.7e9 + rng.integers(0, 60, n),
        "north": 5_400_000 + rng.normal(0, 3, n),
        "smoker": rng.random(n) > 0.5,
        "word": rng.choice(["ä b", "x", "y"], n),
        "code": rng.choice(["01", "7", "NaN?"], n),
        "before/0": rng.random(n),
        "visit": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
    })  # fmt: skip
    frame = frame.mask(rng.random(frame.shape) < gaps)
    place = frame["time"].fillna(1.7e9) % 60 / 60 + rng.normal(0, 0.1, n)
    known = LABELS[labels]
    named = (
        None
        if known is None
        else pd.Series(np.array(known, dtype=object)[(place * len(known)).clip(0, len(known) - 1).astype(int)])
    )
    return frame.assign(
        who=rng.choice(["p", "q"], n), id=np.arange(n), y=place * 60 + 1.7e4 if named is None else named
    )


KINDS = [("texts", "indicator"), ("numbers", "refuse"), ("targets", "median")]  # of labels, and what fills gaps


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory):
    """A folder with a run, the kind of its labels, and whether it fills gaps."""
    labels, impute = request.param
    folder = tmp_path_factory.mktemp("predict")
    rows(0, labels, gaps=0.1 if impute != "refuse" else 0).to_csv(folder / "old.csv", index=False)
    more = ("--task", "Regression") if labels == "targets" else ()
    command = (
        "run", "--data", "CSV", "--data.path", folder / "old.csv", "--data.label", "y", "--data.drop", '["id", "who"]',
        "--data.impute", impute, "--model.hidden", "[6]", "--clients", 3, "--until.steps", 4, *more,
        "--accept", "notation:code",
        "--folder", folder / "run",
    )  # fmt: skip
    assert main([str(word) for word in command]) == 0
    return folder, labels, impute != "refuse"


def fed(schema, frame):
    """What a runtime is given: raw columns."""

    def column(each):
        cells = frame[each.name]
        if each.type == "date":
            return (cells - pd.Timestamp(0)) / pd.Timedelta(days=1)
        if each.type == "string":
            return np.where(cells.isna(), "", cells.astype(str)).astype(object)
        return cells.to_numpy(dtype=np.float64, na_value=np.nan)

    return {each.name: np.array(column(each))[:, None] for each in schema.inputs_of}


@pytest.mark.slow
def test_the_graph_gives_what_predict_gives(run, capsys, tmp_path):
    folder, labels, gaps = run
    new = rows(1, labels, 1000, gaps=0.2 if gaps else 0)
    new.drop(columns="y").sample(frac=1, axis=1, random_state=0).to_csv(tmp_path / "new.csv", index=False)
    out = tmp_path / "made" / "out.csv"
    status, said_, _ = said(capsys, "predict", folder / "run", "--data", tmp_path / "new.csv", "-o", out)
    assert (status, "predictions of 1000 rows" in said_) == (0, True)
    kind = {"prediction": str} if labels == "texts" else {}
    predicted = pd.read_csv(out, dtype=kind, keep_default_na=False)
    status, _, _ = said(capsys, "export", folder / "run", "--format", "onnx", "-o", tmp_path / "model.onnx")
    assert status == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    schema = Record.load(folder / "run").schema
    assert [each.name for each in session.get_inputs()] == [each.name for each in schema.inputs_of]
    first, *shares = session.run(None, fed(schema, new))
    if labels == "targets":
        assert new["y"].std() > 10
        assert np.abs(predicted["prediction"] - new["y"]).mean() < 40, "in the unit of the targets, near 1.7e4"
        assert np.abs(first - predicted["prediction"]).max() < 1e-5 * new["y"].std()
    else:
        names = [f"probability of {label}" for label in LABELS[labels]]
        assert [*predicted.columns] == ["prediction", *names]
        assert first.tolist() == predicted["prediction"].tolist()
        assert len({*first.tolist()}) > 1
        assert np.abs(shares[0] - predicted[names].to_numpy()).max() < 1e-5
        assert np.abs(predicted[names].sum(1) - 1).max() < 1e-5
        largest = predicted[names].to_numpy().argmax(1)
        assert predicted["prediction"].tolist() == [LABELS[labels][k] for k in largest]
    one = session.run(None, fed(schema, new.iloc[:1]))
    assert one[0].tolist() == first[:1].tolist() or labels == "targets"
    about = {each.key: each.value for each in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert Schema.parse(about["phalanx.schema"].encode(), "metadata") == schema
    assert about["phalanx.run"] == Record.load(folder / "run").summary.identity


def wrong(gaps):
    """Cells that no model takes."""
    never = [
        ("word", "unknown"),
        ("word", "X"),
        ("word", "x "),
        ("code", "2"),
        ("time", np.inf),
        ("north", -1e300),
        ("smoker", 2.0),
    ]
    return [*never, *(() if gaps else [("time", np.nan), ("word", ""), ("smoker", np.nan)])]


def test_what_predict_refuses_the_graph_refuses(run, capsys, tmp_path):
    folder, labels, gaps = run
    assert said(capsys, "export", folder / "run", "--format", "onnx", "-o", tmp_path / "model.onnx")[0] == 0
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
    schema = Record.load(folder / "run").schema
    plain = rows(2, labels, 4, gaps=0)
    for column, cell in wrong(gaps):
        changed = plain.astype({column: object})
        changed.loc[2, column] = cell
        given = fed(schema, plain)
        given[column][2, 0] = cell
        with pytest.raises(Exception, match="Unknown Category"):
            session.run(None, given)
        changed.to_csv(tmp_path / "bad.csv", index=False)
        status, _, err = said(
            capsys, "predict", folder / "run", "--data", tmp_path / "bad.csv", "-o", tmp_path / "x.csv"
        )
        assert (status, f"Column {column!r} " in err, "row 3" in err) == (2, True, True), err
        assert not (tmp_path / "x.csv").exists()
    session.run(None, fed(schema, plain))


def test_the_network_alone(run, capsys, tmp_path):
    folder, *_ = run
    command = ("export", folder / "run", "--format", "onnx", "--network", "-o", tmp_path / "network.onnx")
    assert said(capsys, *command)[0] == 0
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    assert [each.name for each in session.get_inputs()] == ["examples"]


def test_no_file_that_is_needed_is_overwritten(run, capsys, tmp_path):
    """The table, the run's own data, and all files of the record, also by a link."""
    folder, labels, gaps = run
    rows(1, labels, 20, gaps=0.1 if gaps else 0).to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "link.csv").symlink_to(tmp_path / "new.csv")
    (tmp_path / "hard.csv").hardlink_to(folder / "old.csv")
    record = [folder / "run" / name for name in [*members(folder / "run"), SEAL]]
    before = {file: file.read_bytes() for file in (tmp_path / "new.csv", folder / "old.csv", *record)}
    assert len(record) > 5
    for out in (*before, tmp_path / "link.csv", tmp_path / "hard.csv"):
        commands = [("predict", folder / "run", "--data", tmp_path / "new.csv", "-o", out)]
        commands += [("export", folder / "run", "-o", out), ("report", folder / "run", "--out", out)]
        table = out not in record
        for command in commands[: 1 if out.resolve() == (tmp_path / "new.csv") else 2 if table else 3]:
            status, _, err = said(capsys, *command)
            assert (status, "Name another file" in err) == (2, True), (command, err)
    assert all(file.read_bytes() == content for file, content in before.items())
    inside = folder / "run" / "predictions.csv"
    assert said(capsys, "predict", folder / "run", "--data", tmp_path / "new.csv", "-o", inside)[0] == 0
    assert said(capsys, "predict", folder / "run", "--data", tmp_path / "new.csv", "-o", inside)[0] == 0
    inside.unlink()


@pytest.mark.parametrize("word", ["-9", "999.5", "1e39"])
def test_a_number_that_means_missing_does_so_in_the_graph(word):
    described = """{"fields": [
     {"name": "a", "type": "number", "phalanx": {"impute": {"value": 4.0, "indicator": true},
                                                 "scaling": {"mean": 3, "deviation": 2}}},
     {"name": "b", "type": "boolean", "phalanx": {"impute": {"value": 1.0}}},
     {"name": "c", "type": "integer", "constraints": {"minimum": 0}},
     {"name": "y", "type": "integer", "categories": [0, 1, 2, 3], "phalanx": {"role": "target"}}],
     "missingValues": ["", "WORD", "?"]}""".replace("WORD", word)
    schema, options = Schema.parse(described.encode(), "described"), onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(with_table(identity(4), schema, Meaning(schema.labels), "run"), options)
    for a, b in ((float(word), 0.0), (5.0, float(word)), (np.nan, np.nan)):
        x = schema.inputs(pd.DataFrame({"a": [a], "b": [b], "c": [2]}))
        assert x.tolist() == [[(5.0 if a == 5 else 4.0) / 2 - 1.5, float(a != 5), float(b != 0), 2.0]]
        shares = session.run(None, {"a": [[a]], "b": [[b]], "c": [[2.0]]})[1]
        assert shares[0].tolist() == pytest.approx(torch.softmax(x[0], 0).tolist())
    with pytest.raises(Exception, match="Unknown Category"):
        session.run(None, {"a": [[1.0]], "b": [[1.0]], "c": [[float(word)]]})
    (found,) = schema.check(pd.DataFrame({"a": [1.0], "b": [1.0], "c": [float(word)]}), labels=False)
    assert (found.code, found.name) == ("missing", "c")


def test_aliases_and_words_of_one_column_in_the_graph():
    described = """{"fields": [
     {"name": "a", "type": "number", "missingValues": ["", "?", "-9", "-1"], "phalanx": {"impute": {"value": 4.0}}},
     {"name": "b", "type": "number", "missingValues": ["", "?", "-1"], "phalanx": {"impute": {"value": 2.0}}},
     {"name": "c", "type": "string", "categories": ["m", "f"], "missingValues": ["", "?", "none"],
      "phalanx": {"aliases": {"m": ["M", 1], "f": [2]}, "impute": {"indicator": true}}},
     {"name": "y", "type": "string", "categories": ["v", "w", "x", "y", "z"],
      "phalanx": {"role": "target", "aliases": {"v": [0, 1]}}}],
     "missingValues": ["", "?"]}"""
    schema, options = Schema.parse(described.encode(), "described"), onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(with_table(identity(5), schema, Meaning(schema.labels), "run"), options)
    cells = [(-9.0, -9.0, "M"), (-1.0, -1.0, "1"), (3.0, 0.0, "1.0"), (0.0, 1.0, "f"), (1.0, 1.0, "none")]
    wanted = [[4, -9, 1, 0, 0], [4, 2, 1, 0, 0], [3, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 1, 0, 0, 1]]
    for (a, b, c), x in zip(cells, wanted, strict=True):
        assert schema.inputs(pd.DataFrame({"a": [a], "b": [b], "c": [c]})).tolist() == [x]
        fed = {"a": [[a]], "b": [[b]], "c": np.array([[c]], dtype=object)}
        shares = torch.softmax(torch.tensor(x, dtype=torch.float32), 0).tolist()
        classes, found = session.run(None, fed)
        assert found[0].tolist() == pytest.approx(shares)
        assert classes.tolist() == [schema.labels[int(np.argmax(x))]]
    for c in ("3", "F", "m "):
        with pytest.raises(Exception, match="Unknown Category"):
            session.run(None, {"a": [[1.0]], "b": [[1.0]], "c": np.array([[c]], dtype=object)})


def test_a_model_of_nan_gives_no_class():
    """Nor one of some rows; the arg max of NaN would be the first class."""
    schema = Schema.parse(
        b"""{"fields": [{"name": "a", "type": "number"}, {"name": "b", "type": "number"},
     {"name": "y", "type": "integer", "categories": [0, 1], "phalanx": {"role": "target"}}]}""",
        "described",
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(with_table(root(2), schema, Meaning(schema.labels), "run"), options)
    assert session.run(None, {"a": [[1.0], [4.0]], "b": [[9.0], [1.0]]})[0].tolist() == [1, 0]
    with pytest.raises(Exception, match="Unknown Category"):
        session.run(None, {"a": [[1.0], [4.0]], "b": [[9.0], [-1.0]]})


def test_a_missing_word_and_bounds_in_the_graph():
    """A schema with bounds, whole numbers, and a word for what is missing, which a run does not write."""
    described = """{"fields": [
     {"name": "age", "type": "integer", "constraints": {"minimum": 0, "maximum": 120}},
     {"name": "sex", "type": "string", "categories": ["f", "m"], "phalanx": {"impute": {"indicator": true}}},
     {"name": "y", "type": "integer", "categories": [7, 5, 1, 2], "phalanx": {"role": "target"}}],
     "missingValues": ["", "?"]}"""
    schema = Schema.parse(described.encode(), "described")
    network = identity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(with_table(network, schema, Meaning(schema.labels), "run"), options)

    def shares(age, sex):
        return session.run(None, {"age": np.array([[age]]), "sex": np.array([[sex]], dtype=object)})[1]

    for age, sex, x in ((1.0, "m", [1, 0, 1, 0]), (0.0, "?", [0, 0, 0, 1]), (120.0, "", [120, 0, 0, 1])):
        wanted = torch.softmax(torch.tensor(x, dtype=torch.float32), 0)
        assert shares(age, sex)[0].tolist() == pytest.approx(wanted.tolist())
        frame = pd.DataFrame({"age": [age], "sex": [sex if sex not in ("", "?") else None]})
        assert schema.inputs(frame).tolist() == [x]
    for age in (-1.0, 121.0, 1.5, np.nan):
        with pytest.raises(Exception, match="Unknown Category"):
            shares(age, "m")
        assert any(one.error for one in schema.check(pd.DataFrame({"age": [age], "sex": ["m"]}), labels=False))


def identity(width):
    return network("Identity", width)


def root(width):
    return network("Sqrt", width)


def network(operator, width):
    from onnx import TensorProto, helper

    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in ("examples", "scores")
    ]
    graph = helper.make_graph([helper.make_node(operator, ["examples"], ["scores"])], "network", values[:1], values[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--data", "none.csv", "-o", "x"), "finds no file"),
        (("run", "--data", "old.csv", "-o", "run"), "--out run is a folder. Name a file, such as run/predictions.csv"),
        (("run", "--data", "old.csv", "-o", "x", "--client", "9"), "Client 9 did not take part"),
        (("run", "--data", "old.csv", "-o", "x", "--best"), "has not kept the models of the best evaluation"),
        (("run", "--data", "old.csv"), "FOLDER --data FILE -o FILE"),
        (("nowhere", "--data", "old.csv", "-o", "x"), "There is no folder nowhere"),
    ],
)
def test_wrong_predictions(arguments, message, run, capsys, monkeypatch):
    monkeypatch.chdir(run[0])
    status, _, err = said(capsys, "predict", *arguments)
    assert (status, message in err) == (2, True), err


@pytest.mark.parametrize("run", KINDS[-1:], indirect=True)
def test_a_task_whose_outputs_are_no_predictions(run):
    record = Record.load(run[0] / "run")
    changed = {**record.config, "task": {"class_path": "phalanx.training.MultiLabel", "init_args": {}}}
    from phalanx.runs.predicting import meaning

    with pytest.raises(ValueError, match="for the task MultiLabel are no classes and no numbers to predict"):
        meaning(record.schema, changed)
    own = {
        **record.config,
        "task": {"class_path": "phalanx.training.Regression", "init_args": {"mean": 5.0, "deviation": 2.0}},
    }
    assert meaning(record.schema, own).scale == TargetScale(5.0, 2.0)
    assert meaning(record.schema, record.config).scale == record.schema.reading.target
