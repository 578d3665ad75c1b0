"""The installed program and the examples, each as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phalanx.cli.main import _without_folder

EXAMPLES = Path(__file__).parents[2] / "examples"


def started(*command, cwd=None):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120, check=False)


@pytest.mark.slow
def test_import_takes_less_time_than_that_of_torch():
    """Some 0.7 of it; a ratio, since a busy machine slows both."""
    clock = "time.process_time()"
    code = f"import time; a = {clock}; import torch; b = {clock}; from phalanx import *; print(({clock} - b) / (b - a))"
    assert min(float(started(sys.executable, "-c", code).stdout) for _ in range(3)) < 1.0


@pytest.mark.slow
def test_import_loads_nothing_that_it_may_not_need():
    code = "import sys; from phalanx import *; print(*sys.modules)"
    loaded = started(sys.executable, "-c", code).stdout.split()
    assert "phalanx" in loaded
    assert not {"matplotlib", "sklearn", "rich", "jinja2", "pooch", "datasets"}.intersection(loaded)


@pytest.mark.slow
def test_the_demo_as_a_process(tmp_path):
    program = Path(sys.executable).with_name("phalanx")
    done = started(str(program), "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Byzantine CFL, attacked" in done.stdout
    assert "6 of 6" in done.stdout
    assert (tmp_path / "runs" / "demo" / "report.html").stat().st_size > 100_000


@pytest.mark.slow
def test_the_quickstart():
    done = started(sys.executable, str(EXAMPLES / "quickstart.py"))
    assert done.returncode == 0, done.stderr
    assert "6 of 6 attackers excluded" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        "--algorithm own_algorithm.ServerMomentum --algorithm.momentum 0.8",
        "--attack own_attack.Opposite --byzantine 6",
        "--model own_model.Softmax",
        "--task own_task.Focal --task.gamma 1",
        "--data own_dataset.Moons --data.noise 0.2",
        "--algorithm.aggregate own_rule.ShortenedMean --algorithm.aggregate.factor 0.9",
        "--partition own_partition.Favourites --partition.share 0.9",
        "--training own_training.OneStep --training.lr 0.2",
    ],
)
@pytest.mark.slow
def test_classes_of_ones_own_by_import_path(options, tmp_path):
    program = Path(sys.executable).with_name("phalanx")
    command = [str(program), "run", *options.split(), "--until.steps", "3", "--folder", str(tmp_path / "run")]
    done = started(*command, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()


# --- killed and stopped

RUNS = {
    "rounds": "--clients 10 --until.steps 30 --participation 0.5 --attack LazyFreeRider --byzantine 3",
    "arrivals": "--clients 10 --until.steps 60 --algorithm FedAsync --latency Lognormal --latency.each_turn true",
}
OFTEN = """
import functools, sys
import phalanx.cli.run
from phalanx.cli.main import main
phalanx.cli.run.Checkpoint = functools.partial(phalanx.cli.run.Checkpoint, 0.0)
sys.exit(main())
"""  # the command line, but with a checkpoint after every step


def run_of(options, folder):
    return ["run", *options.split(), "--folder", str(folder)]


def killed(arguments, folder, number, lines):
    """Starts a run, and sends it a signal when its history has so many lines; returns what it had done then."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", OFTEN, *arguments], env=environment, stderr=subprocess.PIPE)
    history = folder / "history.jsonl"
    deadline = time.monotonic() + 300
    while not history.is_file() or history.read_bytes().count(b"\n") < lines:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
@pytest.mark.slow
def test_a_run_that_is_killed_twice_and_stopped_once_comes_to_the_same_bits(options, tmp_path):
    program = str(Path(sys.executable).with_name("phalanx"))
    assert started(program, *run_of(options, tmp_path / "plain")).returncode == 0
    folder = tmp_path / "disturbed"
    for number, lines, status in ((signal.SIGKILL, 5, -9), (signal.SIGINT, 12, 130), (signal.SIGKILL, 20, -9)):
        assert killed(run_of(options, folder), folder, number, lines) == status
        assert (folder / "checkpoint").is_file()
        assert (folder / "summary.json").is_file() == (number == signal.SIGINT)
    done = started(program, *run_of(options, folder))
    assert done.returncode == 0, done.stderr
    assert "Goes on after step " in done.stdout
    assert int(done.stdout.split("Goes on after step ")[1].split()[0]) >= 10
    for name in ("history.jsonl", "run.json"):
        assert (folder / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    summaries = [json.loads((f / "summary.json").read_text()) for f in (folder, tmp_path / "plain")]
    assert all(summary.pop("wall_seconds") for summary in summaries)
    assert summaries[0] == summaries[1]
    assert {f.name for f in folder.iterdir()} == {f.name for f in (tmp_path / "plain").iterdir()}


def test_a_command_restores_the_import_path_that_it_had_and_no_other(monkeypatch):
    """Another thread may have put another list in its place meanwhile."""
    had, other = [*sys.path], ["elsewhere"]
    monkeypatch.setattr(sys, "path", [*had])
    mine = sys.path
    with _without_folder():
        monkeypatch.setattr(sys, "path", other)
    assert other == ["elsewhere"]
    assert mine == had
