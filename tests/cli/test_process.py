"""The installed program and the examples, each as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def started(*command, cwd=None):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120, check=False)


def test_import_takes_less_than_a_second_beyond_torch():
    code = "import time, torch; t = time.perf_counter(); import phalanx; print(time.perf_counter() - t)"
    assert float(started(sys.executable, "-c", code).stdout) < 1.0


def test_import_loads_nothing_that_it_may_not_need():
    code = "import sys, phalanx; print(*sys.modules)"
    loaded = started(sys.executable, "-c", code).stdout.split()
    assert "phalanx" in loaded
    assert not {"matplotlib", "sklearn", "rich", "jsonargparse", "jinja2", "pooch", "datasets"}.intersection(loaded)


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
    assert "6 of 6 attackers removed" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        "--algorithm own_algorithm.FedAvgM --algorithm.momentum 0.8",
        "--attack own_attack.Opposite --byzantine 6",
        "--model own_model.Softmax",
        "--data own_dataset.Moons --data.noise 0.2",
    ],
)
@pytest.mark.slow
def test_classes_of_ones_own_by_import_path(options, tmp_path):
    program = Path(sys.executable).with_name("phalanx")
    command = [str(program), "run", *options.split(), "--until.steps", "3", "--folder", str(tmp_path / "run")]
    done = started(*command, cwd=EXAMPLES)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
