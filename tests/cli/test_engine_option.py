"""`phalanx run --engine`: the flags of the training by one word, or by a measurement that is made once."""

import json

import pytest

from phalanx import Run, Until, simulate
from phalanx.cli.main import main
from phalanx.core import Progress
from phalanx.models import MLP
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.engines import Bench, with_engine
from phalanx.runs.record import Record

PLAN = Run(clients=3, model=MLP((4,)), until=Until(3))
COMMAND = "run --clients 3 --model.hidden [4] --until.steps 3"
FAST = {"loop": 0.004, "stacked": 0.003, "compiled": 0.002}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))


@pytest.fixture
def measured(monkeypatch):
    """Sets what the engines take; nothing may be measured before."""

    def take(seconds=None):
        found = (lambda *_: pytest.fail("measured")) if seconds is None else (lambda *_: seconds)
        monkeypatch.setattr(Bench, "compare", found)

    take()
    return take


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


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("engine", ["loop", "stacked", "compiled"])
def test_an_engine_by_name_is_the_flag_by_one_word(capsys, tmp_path, engine):
    status, out, _ = phalanx(capsys, f"{COMMAND} --engine {engine} --folder here")
    assert (status, "Engine" in out) == (0, False)
    assert same(tmp_path / "here", with_engine(PLAN, engine))
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["provenance"]["engine"] == engine
    if engine != "loop":
        assert "done already" in phalanx(capsys, f"{COMMAND} --training.{engine} true --folder here")[1]


@pytest.mark.usefixtures("measured")
def test_without_the_option_it_is_the_loop(capsys, tmp_path):
    assert phalanx(capsys, COMMAND)[0] == 0
    assert (tmp_path / "runs" / PLAN.slug / "summary.json").is_file()


@pytest.mark.parametrize("folder", ["", " --folder here"])
def test_the_fastest_is_measured_once_and_kept(capsys, tmp_path, measured, folder):
    chosen = with_engine(PLAN, "compiled")
    where = tmp_path / ("here" if folder else f"runs/{chosen.slug}")
    measured(FAST)
    status, out, _ = phalanx(capsys, f"{COMMAND} --engine auto{folder}")
    assert status == 0
    assert "Engine: compiled, 2 ms a client (loop 4 ms, stacked 3 ms)." in out
    assert same(where, chosen)
    measured(None)
    kept = f"Engine: compiled, as in the run that {where.relative_to(tmp_path)} holds."
    _, out, _ = phalanx(capsys, f"{COMMAND} --engine auto{folder}")
    assert (kept in out, "done already" in out) == (True, True)
    _, out, _ = phalanx(capsys, f"{COMMAND} --engine auto{folder} --again")
    assert (kept in out, "done already" in out) == (True, False)
    (where / "summary.json").unlink()  # as if it had been killed before it could save anything
    _, out, _ = phalanx(capsys, f"{COMMAND} --engine auto{folder}")
    assert (kept in out, "done already" in out) == (True, False)
    assert same(where, chosen)


@pytest.mark.usefixtures("measured")
def test_a_run_that_was_stopped_goes_on_with_its_engine(capsys, tmp_path):
    def stop(progress: Progress) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    chosen = with_engine(PLAN, "stacked")
    folder = tmp_path / "runs" / chosen.slug
    with pytest.raises(KeyboardInterrupt):
        simulate(chosen, folder=folder, observers=[stop], checkpoint=Checkpoint(0.0))
    threads = __import__("torch").get_num_threads()
    status, out, err = phalanx(capsys, f"{COMMAND} --engine auto --threads {threads}")
    assert status == 0, err
    assert "Engine: stacked, as in the run" in out
    assert "Goes on after step" in out
    assert same(folder, chosen)


def test_another_run_in_the_folder_is_refused_before_anything_is_measured(capsys, tmp_path, measured):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "run.json").write_text("{nonsense")  # it is not this run, whatever it is
    measured(FAST)
    assert phalanx(capsys, f"{COMMAND} --engine auto --folder here")[0] == 0
    measured(None)
    status, _, err = phalanx(capsys, f"{COMMAND} --engine auto --folder here --seed 1")
    assert (status, "here holds another run" in err) == (2, True)
    measured(FAST)
    assert phalanx(capsys, f"{COMMAND} --engine auto --folder here --seed 1 --again")[0] == 0


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--engine fast", "engine must be one of loop, stacked, compiled, auto, or null, got fast."),
        ("--engine loop --training.compiled true", "--engine is loop, and training is compiled. Leave out one of the"),
        ("--engine auto --training.stacked true", "--engine is auto, and training is stacked. Leave out one of the"),
        ("--engine compiled --training.stacked true", "--engine is compiled, and training is stacked. Leave out one"),
        ("--engine auto --training LocalOptimizer", "clients of this run train by LocalOptimizer. Leave the engine ou"),
        ("--engine loop --training PrivateSGD", "clients of this run train by PrivateSGD. Leave the engine out, or se"),
        ("--engine stacked --training Ditto", "Set stacked to false.\nThat comes from --engine stacked. Leave it out"),
        ("--engine stacked --algorithm SCAFFOLD", "\nThat comes from --engine stacked. Leave it out, or give --engine"),
        ("--engine auto --jobs 2 --algorithm SCAFFOLD", "SCAFFOLD corrects their gradients. Leave out --jobs."),
        ("--engine auto --model SattlerCNN", "takes examples of shape (1, 28, 28) or (1, 32, 32), got (1, 8, 8)"),
    ],
)
def test_what_does_not_go_together_says_what_to_do(capsys, tmp_path, options, why):
    status, _, err = phalanx(capsys, f"run --until.steps 1 {options}")
    assert status == 2
    assert why in err
    assert list(tmp_path.iterdir()) == []
