"""The scripts of this folder, for a moment each."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.test_common import ALGORITHMS
from flower.federations import KEYS, at_nodes, coordinator
from phalanx.flower import InProcessGrid, client_app, coordinate, participant_of
from phalanx.runs.record import Record
from reliability import soak
from reliability.chaos import digest
from reliability.processes import Noted, planned, simulated, turns_of
from reliability.soak import LONG, Growth, Watch, carried_out

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "kills", "says"), [("kills.py", "6", "6 kills of 6 runs"), ("chaos.py", "3", "3 kills in 1 run")]
)
def test_what_is_killed_goes_on_to_the_same_bits(script, kills, says):
    command = [sys.executable, HERE / script, "--kills", kills, "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout
    assert "0 differ" in done.stdout


def test_a_deployment_is_simulated_with_the_turns_that_its_clients_noted(tmp_path):
    """As `processes.py` does at the end of a run; its processes are too many for a test."""
    plan, apps = planned(3), {}
    for i in range(plan.clients):
        made = participant_of(plan, i, KEYS[i])
        noted = Noted(**vars(made.training), notes=str(tmp_path / f"notes-{i}"))
        apps[i] = client_app(dataclasses.replace(made, training=noted))
    with InProcessGrid(at_nodes(apps)) as grid:
        state = coordinate(grid, coordinator(plan, folder=tmp_path / "run"))
    steps = [line for line in Record.load(tmp_path / "run").history if line.verdicts]
    assert turns_of(tmp_path) == {(i, version): version for i in range(plan.clients) for version in range(3)}
    assert simulated(steps, tmp_path) == digest(state)
    (tmp_path / "notes-0").write_text("0 0\n1 2\n2 3\n")  # had it lost a task
    assert simulated(steps, tmp_path) != digest(state)


@pytest.mark.slow
def test_hostile_answers_over_http_cost_a_line_each():
    """A SuperLink and the server's app, each a process; 5 MB that would be 500 GB, other records, no protobuf."""
    command = [sys.executable, HERE / "hostile.py", "--attacks", "repeated", "wrong", "malformed"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 attacks, 6 rounds: nothing wrong." in done.stdout
    assert "it takes more than 1,048,848 bytes" in done.stdout


@pytest.mark.parametrize("kind", ["FedAsync", "Catalyst", "FedAvg"])
def test_a_short_soak_ends_and_is_measured(kind, tmp_path):
    algorithm = next(a for a in ALGORITHMS if type(a).__name__ == kind)
    steps = 60 if algorithm.traits.synchronous else 300
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
