"""The command line as a user meets it, in process; `tests/cli/test_process.py` starts the real thing."""

import io
import json
import os
import re
import sys

import pytest
import yaml
from rich.console import Console

from phalanx.cli.main import main
from phalanx.cli.progress import follow, progress_bar
from phalanx.core import Until
from phalanx.engine.observer import Progress
from phalanx.experiments.run_events import Began
from phalanx.experiments.shown.progress_display import Display
from phalanx.runs import provenance
from phalanx.runs.checkpoint import Checkpoint, CheckpointWriter
from phalanx.runs.engine_choice import named
from phalanx.runs.plan import Run
from phalanx.runs.provenance import NUMERICS
from phalanx.runs.record import Record


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))


@pytest.fixture
def _no_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)


def phalanx(capsys, command):
    try:
        status = main(command.split())
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


def test_run_leaves_a_folder_and_shows_a_table(capsys, tmp_path):
    status, out, _ = phalanx(capsys, "run --clients 5 --until.steps 2 --attack Gaussian --byzantine 0.2")
    assert status == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("digits-fedavg-gaussian-")
    files = {"run.json", "history.jsonl", "summary.json", "report.html", "model.safetensors", "model.json", "model.md"}
    files |= {"seal.json"}
    assert {f.name for f in folder.iterdir()} == files
    assert "FedAvg(Mean), Gaussian" in out
    assert "0 of 1" in out
    assert "filtered" not in out
    assert json.loads((folder / "summary.json").read_text())["provenance"]["threads"] == 1
    assert str(folder / "report.html").replace(str(tmp_path) + os.sep, "") in out
    assert Record.load(folder).summary.identity.startswith(folder.name.rsplit("-", 1)[1])


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
    assert written == json.loads(json.dumps(named(plan).config))
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["identity"] == plan.identity


def test_refusals_reach_the_terminal(capsys):
    _, out, _ = phalanx(capsys, "run --clients 4 --attack NonFinite --byzantine 1 --until.steps 3 --folder here")
    assert "invalid 3 times (clients" in out
    assert re.search(r"NaN\s+of\s+\d+\s+values", out)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--training.lr 0", "lr must be positive and finite, got 0"),
        ("--training.lr -1e-3", "lr must be positive and finite, got -0.001"),
        ("--training.lr nan", "lr must be positive and finite, got nan"),
        ("--participation NaN", "participation must lie in (0, 1], got nan"),
        ("--until.seconds -inf", "seconds must be positive, got -inf"),
        ("--algorithm.aggregate TrimmedMean --algorithm.aggregate.beta 0.7", "beta must lie in [0, 0.5), got 0.7"),
        ("--clients 0", "clients must be at least 1, got 0"),
        ("--byzantine 0.2", "attack is not set"),
        ("--model SattlerCNN", "takes examples of shape (1, 28, 28) or (1, 32, 32), got (1, 8, 8)"),
        ("--data MNIST --data_dir nowhere", "train-images-idx3-ubyte"),
        ("--algorithm FedAsync --participation 0.5", "FedAsync is asynchronous"),
        ("--attack AllLabelsTo --attack.target 10 --byzantine 1", "one of the 10 classes, 0 to 9, got 10"),
        ("--attack Gaussian", "attack is Gaussian, but byzantine is 0: nobody would attack"),
        ("--attack Gaussian --byzantine 0.04", "0.04, which is 0.8 of 20 clients, rounded down to nobody"),
        ("--device gpu", "--device must be cpu"),
        ("--device mps", "--device must be cpu"),
        ("--device cuda:99", "--device must be cpu"),
        ("--threads 0", "--threads must be at least 1, got 0"),
        ("--threads -1", "--threads must be at least 1, got -1"),
        ("--folder file", "--folder file: file is a file. Choose another folder, or move the file away"),
        ("--folder file/below", "--folder file/below: file is a file"),
        ("--data HuggingFace --data.path x", "HuggingFace needs the package datasets. Install it: pip install"),
    ],
)
@pytest.mark.usefixtures("_no_datasets")
def test_what_cannot_begin_says_what_would_have_been_right(capsys, tmp_path, options, why):
    (tmp_path / "file").touch()
    status, _, err = phalanx(capsys, f"run --until.steps 1 {options}")
    assert status == 2
    assert why in err
    assert "Traceback" not in err
    assert [f.name for f in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("demo --threads 0", "phalanx demo: --threads must be at least 1, got 0"),
        ("demo --device gpu", "phalanx demo: --device must be cpu"),
        (
            "run --config group.yaml",
            "phalanx run: training must be one of Ditto, FedPer, LocalOptimizer, LocalSGD",
        ),
    ],
)
def test_what_cannot_begin_with_other_commands(capsys, tmp_path, command, why):
    (tmp_path / "group.yaml").write_text("training: 3")
    status, _, err = phalanx(capsys, command)
    assert (status, why in err) == (2, True)


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
    assert "default: MLP(hidden=(512,), dropout=0.0, start='torch')" in text
    assert re.search(r"--until.steps STEPS\s+[^-]*--until.seconds", text)
    options = " ".join(phalanx(capsys, "run --training.help LocalSGD")[1].split())
    assert "EPOCHS Number of passes over the client's data. (an integer of at least 1; default: 1)" in options
    assert "phalanx run --config examples/mnist.yaml --seed 1" in text
    assert "Standard deviation of each entry" in phalanx(capsys, "run --attack.help Gaussian")[1]


@pytest.mark.filterwarnings("default")
def test_a_warning_is_a_line_not_a_trace(capsys):
    _, _, err = phalanx(
        capsys, "run --algorithm ByzantineCFL --model.hidden [4] --clients 3 --until.steps 1 --folder here"
    )
    assert err.startswith("Warning: threshold = 0.02 is not above")
    assert err.count("\n") == 1


# --- what a run finds in its folder, and what it leaves there

MINE = """
from dataclasses import dataclass
from phalanx.attacks import Attack

@dataclass(frozen=True)
class Mine(Attack):
    def forge(self, update, knowledge, rng):
        {body}
"""
OWN = "run --clients 4 --until.steps 3 --byzantine 1 --attack {module}.Mine --folder here"


def own_attack(tmp_path, body):
    """A module of the user's own with an attack, new each time; returns the command that uses it."""
    sys.modules.pop("mine_to_edit", None)
    (tmp_path / "mine_to_edit.py").write_text(MINE.format(body=body))
    return OWN.format(module="mine_to_edit")


def test_a_run_whose_own_classes_were_edited_is_repeated(capsys, tmp_path):
    def loss():
        return json.loads((tmp_path / "here" / "summary.json").read_text())["final"]["loss"]

    assert phalanx(capsys, own_attack(tmp_path, "return update.delta"))[0] == 0
    before = loss()
    assert "done already" in phalanx(capsys, own_attack(tmp_path, "return update.delta"))[1]
    _, out, _ = phalanx(capsys, own_attack(tmp_path, "return -10 * update.delta"))
    assert "This run is repeated: the source of the classes of your own that it uses has changed since." in out
    assert loss() > before


def test_what_a_kill_at_the_very_end_has_left_is_removed_by_the_same_command(capsys, monkeypatch, tmp_path):
    """Between the summary and the removal of the checkpoint."""
    command = "run --clients 3 --until.steps 2 --folder here"
    monkeypatch.setattr("phalanx.cli.run.Checkpoint", lambda resume: Checkpoint(0, resume))
    monkeypatch.setattr(CheckpointWriter, "discard", CheckpointWriter.leave)
    assert phalanx(capsys, command)[0] == 0
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert (tmp_path / "here" / "checkpoint").is_file()
    assert "done already" in phalanx(capsys, command)[1]
    assert not (tmp_path / "here" / "checkpoint").exists()
    assert phalanx(capsys, "verify here")[0] == 0


def raised(monkeypatch, part):
    """Raise the numerics version with a change of one part."""
    changes = (*provenance.CHANGES, frozenset({part}))
    monkeypatch.setattr(provenance, "CHANGES", changes)
    monkeypatch.setattr(provenance, "NUMERICS", len(changes))


@pytest.mark.slow
def test_a_run_is_repeated_if_a_later_numerics_version_changes_a_part_of_it(capsys, monkeypatch):
    command = "run --clients 3 --until.steps 1 --folder here"
    phalanx(capsys, command)
    raised(monkeypatch, "Median")
    assert "done already" in phalanx(capsys, command)[1]
    raised(monkeypatch, "FedAvg")
    out = phalanx(capsys, command)[1]
    assert f"This run is repeated: its results are of numerics version {NUMERICS}, this is {NUMERICS + 2}" in out
    assert "done already" in phalanx(capsys, command)[1]


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_is_stopped_names_its_folder_can_be_reported_and_is_finished(capsys, monkeypatch, tmp_path, saved):
    monkeypatch.setattr("phalanx.cli.run.Checkpoint", lambda resume: Checkpoint(0, resume))
    body = """if update.version == 2 and not __import__("os").path.exists("go"):
            raise KeyboardInterrupt
        return update.delta"""
    status, _, err = phalanx(capsys, own_attack(tmp_path, body))
    assert (status, "Stopped.\nWhat was done until then is in here; phalanx report here shows it." in err) == (
        130,
        True,
    )
    assert "When it is run again, it goes on after step 2." in err
    files = {f.name for f in (tmp_path / "here").iterdir()}
    models = {"model.safetensors", "model.json", "model.md"}
    assert files == {"run.json", "history.jsonl", "summary.json", "checkpoint", "seal.json"} | models
    status, out, _ = phalanx(capsys, "report here")
    page = (tmp_path / "here" / "report.html").read_text()
    assert (status, "Report: here/report.html" in out) == (0, True)
    assert "This run was stopped" in page
    assert "stopped after 2 steps, at " in page
    (tmp_path / "go").touch()
    if not saved:
        (tmp_path / "here" / "checkpoint").unlink()
    status, out, _ = phalanx(capsys, own_attack(tmp_path, body))
    assert (status, "Goes on after step 2 of 3." in out) == (0, saved)
    assert ("This run is repeated: it was stopped after step 2." in out) != saved
    assert Record.load(tmp_path / "here").summary.status == "finished"


@pytest.fixture
def _stopped(capsys, monkeypatch, tmp_path):
    """The folder `here` with a run that was stopped after step 2; without the file `stop` it would not be."""
    monkeypatch.setattr("phalanx.cli.run.Checkpoint", lambda resume: Checkpoint(0, resume))
    (tmp_path / "stop").touch()
    status, _, err = phalanx(capsys, own_attack(tmp_path, STOP))
    assert (status, "it goes on after step 2" in err) == (130, True)
    (tmp_path / "stop").unlink()


STOP = """if update.version == 2 and __import__("os").path.exists("stop"):
            raise KeyboardInterrupt
        return update.delta"""


@pytest.mark.usefixtures("_stopped")
def test_a_stopped_run_is_begun_again_on_request(capsys, tmp_path):
    status, out, _ = phalanx(capsys, own_attack(tmp_path, STOP) + " --again")
    assert (status, "Goes on" in out) == (0, False)
    assert Record.load(tmp_path / "here").summary.status == "finished"


@pytest.mark.usefixtures("_stopped")
def test_another_run_does_not_replace_a_stopped_or_killed_one(capsys, tmp_path):
    for _ in range(2):
        status, _, err = phalanx(capsys, own_attack(tmp_path, STOP) + " --seed 1")
        assert (status, "here holds another run (stopped after step 2). Choose another --folder" in err) == (2, True)
        for name in ("seal.json", "summary.json"):
            (tmp_path / "here" / name).unlink(missing_ok=True)
    status, _, err = phalanx(capsys, "report here")
    assert (status, "finish it: phalanx run --config here/run.json --folder here" in err) == (2, True)


@pytest.mark.usefixtures("_stopped")
@pytest.mark.filterwarnings("default:.*held a run")
def test_a_stopped_run_of_classes_that_were_edited_starts_anew_and_says_so(capsys, tmp_path):
    status, out, err = phalanx(capsys, own_attack(tmp_path, "return -update.delta"))
    assert (status, "Goes on" in out) == (0, False)
    assert "held a run that came to step 2. This one starts over: the source of the classes of your own that it" in err


@pytest.mark.usefixtures("_stopped")
def test_a_stopped_run_goes_on_under_the_same_conditions_only(capsys, tmp_path):
    status, _, err = phalanx(capsys, own_attack(tmp_path, STOP) + " --threads 2")
    assert status == 2
    assert "here holds this run up to step 2, computed with threads 1, and this is 2: it would not give" in err
    status, out, _ = phalanx(capsys, own_attack(tmp_path, STOP))
    assert (status, "Goes on after step 2 of 3." in out) == (0, True)


@pytest.mark.usefixtures("_stopped")
@pytest.mark.parametrize("damage", [b"", b"phalanx checkpoint 1\n"])
def test_a_damaged_checkpoint_is_named_with_the_remedy(capsys, tmp_path, damage):
    (tmp_path / "here" / "checkpoint").write_bytes(damage)
    status, _, err = phalanx(capsys, own_attack(tmp_path, STOP))
    assert (status, "here/checkpoint is not a whole checkpoint" in err) == (2, True)
    assert "Delete it, or start the run over: `phalanx run --again`" in err
    assert phalanx(capsys, own_attack(tmp_path, STOP) + " --again")[0] == 0


def test_a_run_that_is_stopped_before_its_first_step(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("phalanx.runs.session.Federation", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    status, _, err = phalanx(capsys, "run --folder here")
    assert (status, err) == (130, "\nStopped.\n")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("content", ["{}", "", "nonsense"])
def test_a_damaged_folder_is_named_with_the_remedy(capsys, tmp_path, content):
    command = "run --clients 3 --until.steps 1 --folder here"
    phalanx(capsys, command)
    (tmp_path / "here" / "summary.json").write_text(content)
    for tried in (command, "report here"):
        status, _, err = phalanx(capsys, tried)
        assert (status, "here is not as its run left it: summary.json was changed" in err) == (2, True)
    (tmp_path / "here" / "seal.json").unlink()
    for tried in (command, "report here"):
        status, _, err = phalanx(capsys, tried)
        assert (status, "Traceback" in err) == (2, False)
        assert "here/summary.json is not a run's summary" in err
        assert "Delete the folder, or repeat the run with `phalanx run --again`" in err
    assert phalanx(capsys, command + " --again")[0] == 0


def test_a_run_that_was_killed_says_how_to_repeat_it(capsys, tmp_path):
    phalanx(capsys, "run --clients 3 --until.steps 1 --folder here")
    for name in ("seal.json", "summary.json"):
        (tmp_path / "here" / name).unlink()
    status, _, err = phalanx(capsys, "report here")
    assert (status, "To repeat it: phalanx run --config here/run.json" in err) == (2, True)
    assert phalanx(capsys, "run --config here/run.json --folder there")[0] == 0
    assert Record.load(tmp_path / "there").config["clients"] == 3


def test_what_run_prints_partition_reads(capsys, tmp_path):
    printed = phalanx(capsys, "run --clients 3 --device cuda --threads 2 --print_config")[1]
    (tmp_path / "mine.yaml").write_text(printed)
    status, out, _ = phalanx(capsys, "partition --config mine.yaml")
    assert (status, "Digits dealt to 3 clients" in out) == (0, True)
    assert "--threads" not in phalanx(capsys, "partition --help")[1]


def test_an_empty_configuration_changes_nothing(capsys, tmp_path):
    for content in ("", "# nothing\n\n"):
        (tmp_path / "empty.yaml").write_text(content)
        with_it = phalanx(capsys, "run --config empty.yaml --clients 3 --print_config")
        assert with_it == phalanx(capsys, "run --clients 3 --print_config")


@pytest.mark.slow
def test_runs_of_one_title_are_told_apart_and_a_folder_will_do_for_the_page(capsys, tmp_path):
    for name, options in (("a", "--clients 3"), ("b", "--clients 4 --seed -1"), ("c", "--clients 4 --seed 5")):
        phalanx(capsys, f"run --until.steps 1 {options} --folder {name}")
    (tmp_path / "pages").mkdir()
    status, out, _ = phalanx(capsys, "report a b c --out pages")
    assert (status, "Report: pages/report.html" in out) == (0, True)
    page = (tmp_path / "pages" / "report.html").read_text()
    for name in ("clients=3, seed=0", "clients=4, seed=-1", "clients=4, seed=5"):
        assert f"<b>FedAvg(Mean), {name}</b>" in page


@pytest.mark.slow
def test_what_was_excluded_filtered_and_invalid_has_tables_and_lines_of_its_own(capsys):
    options = "--clients 8 --byzantine 2 --until.steps 2"
    _, out, _ = phalanx(capsys, f"run {options} --attack Gaussian --algorithm.aggregate Krum --algorithm.aggregate.f 2")
    assert "Updates that were filtered or invalid" in out
    assert re.search(r"FedAvg\(Krum\), Gaussian x 2\s+100.0 %\s+83.3 %", out)
    assert "Excluded clients" not in out
    assert "0 of 2" in out
    _, out, _ = phalanx(capsys, f"run {options} --attack Gaussian --algorithm ByzantineCFL")
    assert "Excluded clients" in out
    _, out, _ = phalanx(capsys, f"run {options} --attack NonFinite")
    assert re.search(r"FedAvg\(Mean\), NonFinite x 2\s+100.0 %\s+0.0 %", out)
    assert "Excluded clients" not in out
    assert "invalid 4 times (clients " in out


def test_clients_that_never_took_part_are_named_with_the_reason(capsys):
    options = "--partition Dirichlet --partition.alpha 0.01 --partition.allow_empty true --clients 30 --until.steps 1"
    out = " ".join(phalanx(capsys, f"run {options}")[1].split())
    assert re.search(r"client \d+ never took part: reports 0 examples, allowed are 1 to 1,000,000,000", out)
    assert "Excluded clients" not in out


@pytest.mark.parametrize(
    ("until", "total", "done"), [(Until(), 30, 2), (Until(7), 7, 2), (Until(seconds=60), 60, 5), (Until(4, 60), 4, 2)]
)
def test_the_bar_goes_by_steps_or_else_by_seconds(until, total, done):
    with progress_bar(Console(file=io.StringIO())) as progress:
        observer = follow(progress, Run(until=until), "a run")
        observer(Progress(2, 5.2, None, None, {3: "NaN"}, {}))
        (task,) = progress.tasks
    assert (task.total, task.completed, task.fields["note"]) == (total, done, "1 invalid")


def test_a_bar_shows_a_name_as_it_is():
    name, out = "5C:AB:CD [bold]", io.StringIO()
    with progress_bar(Console(file=out, force_terminal=True, width=100)) as progress:
        follow(progress, Run(), name)
    assert name in out.getvalue()
    plan, out = Run(), io.StringIO()
    with Display(Console(file=out, force_terminal=True, width=100)) as bars:
        bars.expect({plan.identity: name})
        bars.show(Began(1, plan))
    assert name in out.getvalue()


def test_colons_around_letters_make_no_picture(tmp_path, monkeypatch, capsys):
    """A fingerprint has :AB: in it, of which rich makes one sign unless it is told not to."""
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--clients", "3", "--until.steps", "1", "--folder", "5C:AB:CD:1F"]) == 0
    out = capsys.readouterr().out
    assert "5C:AB:CD:1F" in out
    assert out.isascii() or not {"\U0001f18e", "\U0001f4bf"} & {*out}
