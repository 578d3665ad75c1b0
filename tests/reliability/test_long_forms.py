"""The scripts of this folder, for a moment each."""

import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.test_common import ALGORITHMS
from reliability import soak
from reliability.soak import LONG, Growth, Watch, carried_out

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "kills", "says"), [("kills.py", "6", "6 kills of 6 runs"), ("chaos.py", "3", "3 kills in 1 run")]
)
def test_what_is_killed_goes_on_to_the_same_bits(script, kills, says):
    command = [sys.executable, HERE / script, "--kills", kills, "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout
    assert "0 differ" in done.stdout


@pytest.mark.slow
def test_hostile_answers_over_http_cost_a_line_each():
    """A SuperLink and the server's app, each a process; 5 MB that would be 500 GB, other records, no protobuf."""
    command = [sys.executable, HERE / "hostile.py", "--attacks", "repeated", "wrong", "malformed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 attacks, 6 rounds: nothing wrong." in done.stdout
    assert "it takes more than 1,048,848 bytes" in done.stdout


@pytest.mark.parametrize("kind", ["FedAsync", "Catalyst", "FedAvg"])
def test_a_short_soak_ends_and_is_measured(kind, tmp_path):
    algorithm = next(a for a in ALGORITHMS if type(a).__name__ == kind)
    steps = 60 if algorithm.synchronous else 300
    watch = Watch(steps)
    carried_out(algorithm, steps, tmp_path, [watch])
    growth = watch.growth()
    assert growth.steps == steps
    assert growth.after - growth.before < 8
    assert len((tmp_path / "history.jsonl").read_bytes().splitlines()) == steps + 1


def test_what_grows_is_no_pass():
    assert Growth(100, 200.0, 201.0, 50.0, 1.1).flat
    assert not Growth(100, 200.0, 209.0, 50.0, 1.0).flat
    assert not Growth(100, 200.0, 200.0, 50.0, 1.6).flat
    assert {kind.__name__ for kind in LONG} <= {type(a).__name__ for a in soak.ALGORITHMS}
