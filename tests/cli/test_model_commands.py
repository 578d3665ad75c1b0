"""`phalanx evaluate` and `phalanx export`."""

import io
import re
import shutil
import sys

import pytest
import safetensors.torch
import torch

from commandline import said
from flower.federations import SMALL, at_nodes, coordinator, honest
from phalanx import Record
from phalanx.algorithms import RFFL
from phalanx.cli.main import main
from phalanx.flower import InProcessGrid, coordinate
from phalanx.models import CharLSTM, ResNet18
from phalanx.runs.export import as_onnx
from phalanx.runs.models import ModelInputs

RUN = (
    "run", "--clients", "4", "--model.hidden", "[5]", "--until.steps", "2", "--training.epochs", "1",
    "--algorithm", "RFFL", "--attack", "Rescale", "--attack.factor=-2", "--byzantine", "1",
)  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A folder with a simulated run whose clients have models of their own."""
    folder = tmp_path_factory.mktemp("models") / "done"
    assert main([*RUN, "--keep_best", "--folder", str(folder)]) == 0
    return folder


# Evaluate


def test_the_accuracies_are_those_of_the_run(done, capsys):
    status, out, _ = said(capsys, "evaluate", done)
    assert status == 0
    record = Record.load(done)
    final = record.history[-1].metrics
    mean = re.search(r"mean over honest clients +([\d.]+) % +([\d.]+)", out)
    assert mean.groups() == (f"{100 * final.accuracy:.1f}", f"{final.loss:.4f}")
    for client, accuracy in final.received_accuracy.items():
        own = f"{100 * final.client_accuracy[client]:.1f} %"
        row = rf"^ {client} +models/0-client-{client}.safetensors +{100 * accuracy:.1f} % +{own} +honest"
        assert re.search(row, out, re.MULTILINE)
    assert len(re.findall("Byzantine *$", out, re.MULTILINE)) == 1
    assert len(re.findall(r"^ \d +3\d +[\d.]+ % +[\d.]+ %", out, re.MULTILINE)) == 10, "a row for each class"


def test_other_examples_and_the_best_models(done, capsys):
    status, out, _ = said(capsys, "evaluate", done, "--data", "Digits", "--data.test_share", "0.5", "--best", "true")
    assert (status, "898 test examples" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "Name the folder of a run, such as runs/NAME"),
        (("nowhere",), "There is no folder nowhere"),
        (("done", "--data", "Digit"), "Did you mean Digits"),
        (("done", "--module", "torch.nn.Nothing"), "Nothing can be imported from torch.nn.Nothing"),
        (("done", "--module", "torch.nn.ReLU"), "The values of the model do not fit ReLU"),
        (("done/best",), "holds no finished run"),
    ],
)
def test_wrong_evaluations(arguments, why, done, capsys, monkeypatch):
    monkeypatch.chdir(done.parent)
    status, _, err = said(capsys, "evaluate", *arguments)
    assert (status, why in err) == (2, True), err


def test_examples_of_another_shape_are_refused(done, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny_source.py").write_text(
        "from dataclasses import dataclass\nimport torch\nfrom phalanx.data import Dataset, Source\n"
        "@dataclass(frozen=True)\nclass Tiny(Source):\n    def load(self, data_dir=None):\n"
        "        return (Dataset(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), 2),) * 2\n"
    )
    status, _, err = said(capsys, "evaluate", done, "--data", "tiny_source.Tiny")
    assert status == 2
    assert "take examples of shape (1, 8, 8) and know 10 classes; the data has examples of shape (2,) and 2" in err


# Export


@pytest.mark.parametrize("client", [None, 2])
def test_values_in_both_formats(client, done, tmp_path, capsys):
    expected = Record.load(done).model(client).state_dict()
    whose = () if client is None else ("--client", client)
    for form, read in (
        ("safetensors", safetensors.torch.load),
        ("torch", lambda data: torch.load(io.BytesIO(data), weights_only=True)),
    ):
        file = tmp_path / "new" / f"model.{form}"
        status, out, _ = said(capsys, "export", done, "--format", form, "-o", file, *whose)
        assert (status, str(file.stat().st_size) in out.replace(",", "")) == (0, True)
        found = read(file.read_bytes())
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("done", "-o", "x", "--format", "pdf"), "--format must be safetensors, torch or onnx, got pdf"),
        (("done", "-o", "x", "--client", "9"), "Client 9 did not take part. Who did: 0, 1, 2, 3."),
        (("done", "-o", "x", "--client", "-1"), "Client -1 did not take part"),
        (("done", "-o", "done"), "--out done is a folder. Name a file, such as done/model.safetensors"),
        (("done", "-o", "x", "--format", "onnx", "--shape", "0"), "--shape must be positive numbers, got 0"),
        (("done", "-o", "done/run.json/x"), "done/run.json"),
        (("nowhere", "-o", "x"), "There is no folder nowhere"),
        (("done",), "FOLDER --out FILE"),
    ],
)
def test_wrong_exports(arguments, why, done, capsys, monkeypatch):
    monkeypatch.chdir(done.parent)
    status, _, err = said(capsys, "export", *arguments)
    assert (status, why in err) == (2, True), err
    assert not (done.parent / "x").exists()


def test_models_that_were_not_kept_or_are_damaged(done, tmp_path, capsys):
    folder = tmp_path / "copy"
    shutil.copytree(done, folder)
    (folder / "model.safetensors").write_bytes(b"no model")
    status, _, err = said(capsys, "export", folder, "-o", tmp_path / "x", "--unsealed")
    assert (status, "holds no model" in err) == (2, True)
    (folder / "model.json").unlink()
    status, _, err = said(capsys, "evaluate", folder, "--unsealed")
    assert (status, "has not kept its models: repeat it" in err) == (2, True)
    assert not (tmp_path / "x").exists()


def test_onnx_that_is_missing_is_named_with_the_remedy(done, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    status, _, err = said(capsys, "export", done, "--format", "onnx", "-o", tmp_path / "x")
    assert status == 2
    assert "The format onnx needs the package onnxscript. Install it: pip install" in err
    assert "[onnx]" in err


def run_onnx(content, x):
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    graph = onnx.load(io.BytesIO(content))
    onnx.checker.check_model(graph)
    return torch.from_numpy(ReferenceEvaluator(graph).run(["scores"], {"examples": x.numpy()})[0])


@pytest.mark.slow
def test_an_onnx_file_gives_the_same_scores_for_a_batch_of_any_size(done, tmp_path, capsys):
    pytest.importorskip("onnxscript")
    assert said(capsys, "export", done, "--format", "onnx", "--client", 1, "-o", tmp_path / "m.onnx")[0] == 0
    model = Record.load(done).model(1)
    for size in (1, 7):
        x = torch.rand((size, 1, 8, 8))
        with torch.no_grad():
            torch.testing.assert_close(run_onnx((tmp_path / "m.onnx").read_bytes(), x), model(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape", "classes", "dtype"),
    [
        (ResNet18(), (3, 32, 32), 10, "float32"),
        (CharLSTM(hidden=8), (6,), 7, "int64"),
    ],
)
def test_networks_of_all_kinds_as_onnx(kind, shape, classes, dtype):
    pytest.importorskip("onnxscript")
    module = kind.build(shape, classes).eval()
    content = as_onnx(module, ModelInputs(shape=shape, dtype=dtype, outputs=classes))
    x = torch.rand((3, *shape)) if dtype == "float32" else torch.randint(0, 7, (3, *shape))
    with torch.no_grad():
        torch.testing.assert_close(run_onnx(content, x), module(x), atol=1e-5, rtol=1e-4)


class _Several(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x), x


@pytest.mark.slow
def test_a_network_of_several_outputs_has_its_scores_alone_as_onnx():
    pytest.importorskip("onnxscript")
    module, x = _Several().eval(), torch.rand(3, 6)
    content = as_onnx(module, ModelInputs(shape=(6,), dtype="float32", outputs=3))
    with torch.no_grad():
        torch.testing.assert_close(run_onnx(content, x), module(x)[0])


# Real clients


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The folder of a server that was only given a module, and one that knows the run."""
    import dataclasses

    from flower.federations import QUICK, roster_of
    from phalanx.flower import coordinator_of
    from phalanx.runs.federation import Federation

    root = tmp_path_factory.mktemp("real")
    plan = dataclasses.replace(SMALL, algorithm=RFFL())
    federation = Federation(plan)
    for name in ("module", "run"):
        with InProcessGrid(at_nodes(honest(plan, root / name / "clients", federation))) as grid:
            made = (
                coordinator(plan, folder=root / name, measure=federation.measure)
                if name == "module"
                else coordinator_of(plan, roster_of(plan.clients), federation, folder=root / name, timeouts=QUICK)
            )
            coordinate(grid, made)
    return root


def test_real_clients_models_are_exported(real, tmp_path, capsys):
    for folder in (real / "module", real / "run"):
        status, *_ = said(capsys, "export", folder, "--client", 3, "-o", tmp_path / "m.safetensors")
        assert status == 0
        found = safetensors.torch.load_file(tmp_path / "m.safetensors")
        expected = safetensors.torch.load_file(folder / "models" / "0-client-3.safetensors")
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_network_that_only_the_server_knew_is_asked_for(real, tmp_path, capsys):
    folder, file = real / "module", tmp_path / "m.onnx"
    status, _, err = said(capsys, "export", folder, "--format", "onnx", "-o", file)
    assert (status, "does not say what examples the model takes. Give the shape of one: --shape" in err) == (2, True)
    pytest.importorskip("onnxscript")
    status, _, err = said(capsys, "export", folder, "--format", "onnx", "-o", file, "--shape", 5)
    assert (status, "--module on the command line" in err) == (2, True)
    status, _, err = said(capsys, "evaluate", folder)
    assert (status, "does not say on what data this run was trained. Name some by --data" in err) == (2, True)


def test_a_record_of_real_clients_that_knows_the_run_builds_the_network(real):
    record = Record.load(real / "run")
    assert record.model(2)(torch.zeros(1, 5)).shape[0] == 1
    with pytest.raises(ValueError, match="--module on the command line"):
        Record.load(real / "module").model(2)
    assert Record.load(real / "module").model(2, module=record.model()) is not None
