"""`phalanx run --engine`: a field of the training by one word, or by rule."""

import json

import pytest
import yaml

from phalanx import Run, Until, simulate
from phalanx.cli.main import main
from phalanx.engine.observer import Progress
from phalanx.models import MLP
from phalanx.runs import engine_choice
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.engine_choice import with_engine
from phalanx.runs.record import Record
from phalanx.training import LocalSGD

PLAN = Run(clients=3, model=MLP((4,)), training=LocalSGD(engine="loop"), until=Until(3))
COMMAND = "run --clients 3 --model.hidden [4] --until.steps 3"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))


@pytest.fixture
def much_work(monkeypatch):
    monkeypatch.setattr(engine_choice, "WORK", 0.0)


def phalanx(capsys, command):
    try:
        status = main(command.split())
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    return status, out, err


def same(folder, plan):
    """Whether the record in a folder is that of the run, to the bit."""
    found, expected = Record.load(folder), simulate(plan)
    return (found.history, found.summary.identity) == (expected.history, expected.summary.identity)


@pytest.mark.parametrize("engine", ["loop", "compiled"])
def test_an_engine_by_name_is_the_field_by_one_word(capsys, tmp_path, engine):
    assert phalanx(capsys, f"{COMMAND} --engine {engine} --folder here")[0] == 0
    assert same(tmp_path / "here", with_engine(PLAN, engine))
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["provenance"]["engine"] == engine
    assert "done already" in phalanx(capsys, f"{COMMAND} --training.engine {engine} --folder here")[1]


def test_without_the_option_little_work_is_done_by_the_loop(capsys, tmp_path):
    assert phalanx(capsys, COMMAND)[0] == 0
    assert same(tmp_path / "runs" / PLAN.slug, PLAN)


@pytest.mark.usefixtures("much_work")
def test_without_the_option_much_work_is_compiled(capsys, tmp_path):
    chosen = with_engine(PLAN, "compiled")
    assert phalanx(capsys, COMMAND)[0] == 0
    assert same(tmp_path / "runs" / chosen.slug, chosen)
    assert "done already" in phalanx(capsys, f"{COMMAND} --engine auto")[1]


@pytest.mark.usefixtures("much_work")
@pytest.mark.parametrize("way", ["option", "part", "file", "record"])
def test_an_engine_that_is_given_stays(capsys, tmp_path, way):
    """In a configuration, as that of a record, in which every field stands."""
    if way == "record":
        simulate(PLAN, folder=tmp_path / "first")
    content = {"option": {}, "part": {"training": {"engine": "loop", "lr": 0.1}}, "file": {"training.engine": "loop"}}
    file = tmp_path / "first" / "run.json" if way == "record" else tmp_path / "own.yaml"
    if way != "record":
        file.write_text(yaml.safe_dump(content[way]))
    options = " --training.engine loop" if way == "option" else ""
    assert phalanx(capsys, f"run --config {file} {COMMAND[4:]}{options} --folder here")[0] == 0
    assert same(tmp_path / "here", PLAN)


@pytest.mark.usefixtures("much_work")
def test_a_run_that_was_stopped_goes_on_with_its_engine(capsys, tmp_path):
    def stop(progress: Progress) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "runs" / PLAN.slug
    with pytest.raises(KeyboardInterrupt):
        simulate(PLAN, folder=folder, observers=[stop], checkpoint=Checkpoint(0.0))
    threads = __import__("torch").get_num_threads()
    status, out, err = phalanx(capsys, f"{COMMAND} --threads {threads}")
    assert status == 0, err
    assert "Goes on after step" in out
    assert same(folder, PLAN)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--engine fast", "engine must be one of loop, compiled, auto, got fast."),
        ("--engine loop --training.engine compiled", "--engine is loop, and training.engine another one. Leave out on"),
        ("--engine loop --training LocalOptimizer", "clients of this run train by LocalOptimizer. Leave the engine ou"),
        ("--engine compiled --training PrivateSGD", "clients of this run train by PrivateSGD. Leave the engine out, o"),
        ("--engine compiled --model ResNet18 --model.normalisation group", "Set training.engine to loop."),
        ("--model SattlerCNN", "takes examples of shape (1, 28, 28) or (1, 32, 32), got (1, 8, 8)"),
    ],
)
def test_what_does_not_go_together_says_what_to_do(capsys, tmp_path, options, why):
    status, _, err = phalanx(capsys, f"run --until.steps 1 {options}")
    assert status == 2
    assert why in err
    assert list(tmp_path.iterdir()) == []
