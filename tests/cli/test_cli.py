"""The command line as a user meets it, in process; `tests/cli/test_process.py` starts the real thing."""

import json
import os
import re

import pytest
import yaml

from phalanx.cli import main
from phalanx.history import Record
from phalanx.runs import Run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))


def phalanx(capsys, command):
    try:
        status = main(command.split())
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


def test_run_leaves_a_folder_and_shows_a_table(capsys, tmp_path):
    status, out, _ = phalanx(capsys, "run --clients 5 --until.steps 2 --attack Gaussian --byzantine 0.2 --threads 1")
    assert status == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("digits-fedavg-gaussian-")
    assert {f.name for f in folder.iterdir()} == {"run.json", "history.jsonl", "summary.json", "report.html"}
    assert "FedAvg(Mean), Gaussian" in out
    assert "0 of 1" in out
    assert str(folder / "report.html").replace(str(tmp_path) + os.sep, "") in out
    assert Record.load(folder).summary["identity"].startswith(folder.name.rsplit("-", 1)[1])


def test_a_run_that_is_done_is_not_repeated_and_another_does_not_replace_it(capsys, tmp_path):
    command = "run --clients 3 --until.steps 1 --folder here"
    assert phalanx(capsys, command)[0] == 0
    before = (tmp_path / "here" / "summary.json").stat().st_mtime_ns
    status, out, _ = phalanx(capsys, command)
    assert (status, "done already" in out) == (0, True)
    assert (tmp_path / "here" / "summary.json").stat().st_mtime_ns == before
    status, _, err = phalanx(capsys, command + " --seed 1")
    assert (status, "holds another run" in err) == (2, True)
    assert phalanx(capsys, command + " --seed 1 --again")[0] == 0


def test_a_failed_run_says_why_and_leaves_its_record(capsys):
    status, out, _ = phalanx(capsys, "run --clients 3 --until.steps 2 --training.lr 1e30 --folder here")
    assert status == 1
    assert "had to stop" in out
    assert re.search(r"client 0: update (holds|has norm)", out)


def test_configuration_goes_round_in_a_circle(capsys, tmp_path):
    status, out, _ = phalanx(capsys, "run --algorithm ByzantineCFL --attack Gaussian --byzantine 3 --print_config")
    assert status == 0
    assert yaml.safe_load(out)["attack"] == {
        "class_path": "phalanx.attacks.Gaussian",
        "init_args": {"std": 1.0, "add": False},
    }
    (tmp_path / "mine.yaml").write_text(out)
    again = phalanx(capsys, "run --config mine.yaml --print_config")[1]
    assert again == out
    changed = phalanx(capsys, "run --config mine.yaml --attack.std 2 --print_config")[1]
    assert yaml.safe_load(changed)["attack"]["init_args"]["std"] == 2.0


def test_what_the_command_line_makes_is_the_value_that_python_makes(capsys, tmp_path):
    phalanx(capsys, "run --clients 3 --until.steps 1 --folder here")
    plan = Run(clients=3, until=Run().until.of(1))
    written = json.loads((tmp_path / "here" / "run.json").read_text())
    assert written == json.loads(json.dumps(plan.config))
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["identity"] == plan.identity


def test_refusals_reach_the_terminal(capsys):
    _, out, _ = phalanx(capsys, "run --clients 4 --attack NonFinite --byzantine 1 --until.steps 3 --folder here")
    assert "refused 3 times (clients" in out
    assert re.search(r"NaN\s+of\s+\d+\s+values", out)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--training.lr 0", "lr must be positive, got 0"),
        ("--algorithm.aggregate TrimmedMean --algorithm.aggregate.beta 0.7", "beta must lie in [0, 0.5), got 0.7"),
        ("--clients 0", "clients must be at least 1, got 0"),
        ("--byzantine 0.2", "attack is not set"),
        ("--model SattlerCNN", "takes examples of shape (1, 28, 28) or (1, 32, 32), got (1, 8, 8)"),
        ("--data MNIST --data_dir nowhere", "train-images-idx3-ubyte"),
        ("--algorithm FedAsync --participation 0.5", "FedAsync is asynchronous"),
        ("--attack AllLabelsTo --attack.target 10 --byzantine 1", "one of the 10 classes, 0 to 9, got 10"),
    ],
)
def test_what_cannot_begin_says_what_would_have_been_right(capsys, options, why):
    status, _, err = phalanx(capsys, f"run --until.steps 1 {options}")
    assert status == 2
    assert why in err
    assert "Traceback" not in err


def test_a_class_of_ones_own_by_its_import_path(capsys, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from phalanx.attacks import Attack\n"
        "@dataclass(frozen=True)\n"
        "class Zero(Attack):\n"
        "    factor: float = 0.0\n"
        "    def forge(self, update, knowledge, rng):\n"
        "        return self.factor * update.delta\n"
    )
    command = "run --clients 4 --until.steps 1 --byzantine 1 --folder here --attack mine.Zero --attack.factor 0.5"
    assert phalanx(capsys, command)[0] == 0
    config = json.loads((tmp_path / "here" / "run.json").read_text())
    assert config["attack"] == {"class_path": "mine.Zero", "init_args": {"factor": 0.5}}


def test_who_holds_what(capsys, tmp_path):
    status, out, _ = phalanx(capsys, "partition --clients 4 --partition Shards --picture held.png")
    assert status == 0
    assert "Digits dealt to 4 clients by Shards" in out
    sizes = [int(row.split("│")[2]) for row in out.splitlines() if re.match(r"│\s+\d+ │", row)]
    assert sum(sizes) == 1438
    assert (tmp_path / "held.png").read_bytes().startswith(b"\x89PNG")


def test_one_report_of_several_runs(capsys, tmp_path):
    for seed in (0, 1):
        phalanx(capsys, f"run --clients 3 --until.steps 1 --seed {seed} --folder run{seed}")
    status, _, _ = phalanx(capsys, "report run0 run1 --out both.html --title Twice")
    assert status == 0
    assert "<title>Twice" in (tmp_path / "both.html").read_text()
    status, _, err = phalanx(capsys, "report nowhere")
    assert (status, "holds no finished run" in err) == (2, True)


@pytest.mark.parametrize(
    "command", ["--help", "run --help", "demo --help", "partition --help", "report --help", "--version"]
)
def test_help_is_there_and_names_no_internals(capsys, command):
    status, out, _ = phalanx(capsys, command)
    assert status == 0
    assert "<class" not in out
    assert "{'class_path'" not in out


def test_help_names_what_can_be_chosen(capsys):
    text = " ".join(phalanx(capsys, "run --help")[1].split())
    algorithms = re.search(r"one of ([\w, ]+), or the import path of your own; default: FedAvg", text)[1].split(", ")
    assert {"FedAvg", "ByzantineCFL", "FedAsync"} <= set(algorithms)  # and those of other tests
    assert "Algorithm" not in algorithms
    assert "default: MLP(hidden=(512,), dropout=0.0)" in text
    assert "phalanx run --config examples/mnist.yaml --seed 1" in text
    assert "standard deviation of each entry" in phalanx(capsys, "run --attack.help Gaussian")[1]


@pytest.mark.filterwarnings("default")
def test_a_warning_is_a_line_not_a_trace(capsys):
    _, _, err = phalanx(
        capsys, "run --algorithm ByzantineCFL --model.hidden [4] --clients 3 --until.steps 1 --folder here"
    )
    assert err.startswith("Warning: threshold = 0.02 is not above")
    assert err.count("\n") == 1
