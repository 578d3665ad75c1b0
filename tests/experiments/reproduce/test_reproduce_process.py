"""`phalanx reproduce` as a process of its own that is killed, stopped and left alone."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.experiments.papers import Trace

PROGRAM = Path(sys.executable).with_name("phalanx")
COMMAND = "reproduce toy-paper figure1 --package toy_papers --seeds 2 --jobs 2 --folder"
ALL = 8  # runs of that command, half of them with noise

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes as Linux shows them"),
]


def start(folder, pause=0.0, marks=None):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "TOY_PAUSE": str(pause)}
    environment.pop("PHALANX_DATA", None)  # it would show in the command that goes on
    environment |= {"TOY_MARKS": str(marks)} if marks else {}
    return subprocess.Popen(
        [str(PROGRAM), *COMMAND.split(), str(folder)], cwd=Path(__file__).parent, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def records(folder):
    return {path.name: path for path in Path(folder).rglob("records/*.json")}


def until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def gone(group):
    """Whether no process of the group is left; those that have ended and nobody asks after do not count."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            state, _, its_group, *_ = path.read_text().rpartition(")")[2].split()
            if its_group == str(group) and state != "Z":
                return False
    return True


def traces(folder):
    return {name: replace(Trace.load(path), wall_seconds=0.0) for name, path in records(folder).items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    process = start(folder)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return folder


def test_what_was_finished_before_a_kill_is_not_repeated_and_the_end_is_the_same(undisturbed, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    process = start(tmp_path / "results", pause=0.5, marks=marks)
    until(lambda: len(records(tmp_path / "results")) >= 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    kept = {name: path.stat().st_mtime_ns for name, path in records(tmp_path / "results").items()}
    assert 3 <= len(kept) < ALL
    noisy = sum(Trace.load(path).settings.get("attack") is not None for path in records(tmp_path / "results").values())
    for mark in marks.iterdir():
        mark.unlink()

    process = start(tmp_path / "results", marks=marks)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert f"{len(kept)} of {ALL} records are in" in out
    now = records(tmp_path / "results")
    assert {name: now[name].stat().st_mtime_ns for name in kept} == kept
    assert len(list(marks.iterdir())) == ALL // 2 - noisy
    assert traces(tmp_path / "results") == traces(undisturbed)
    for ending in (".csv", ".svg", ".png"):
        path = Path("toy-paper") / f"figure1-quick{ending}"
        assert (tmp_path / "results" / path).read_bytes() == (undisturbed / path).read_bytes()


def test_ctrl_c_ends_all_processes_says_what_is_kept_and_how_to_go_on(tmp_path):
    process = start(tmp_path / "results", pause=2.0)
    until(lambda: len(records(tmp_path / "results")) >= 1)
    os.killpg(process.pid, signal.SIGINT)
    asked = time.monotonic()
    out, _ = process.communicate(timeout=60)
    assert time.monotonic() - asked < 10
    assert process.returncode == 130, out
    until(lambda: gone(process.pid), 30)
    kept = len(records(tmp_path / "results"))
    assert f"Stopped.\n{kept} of {ALL} records are kept in {tmp_path}/results/toy-paper/records.\n" in out
    options = f"--scale quick --seeds 2 --jobs 2 --folder {tmp_path}/results --package toy_papers"
    assert f"To go on: phalanx reproduce toy-paper figure1 {options}\n" in out
    assert "Traceback" not in out


def test_when_the_command_alone_is_killed_its_processes_end(tmp_path):
    process = start(tmp_path / "results", pause=0.3)
    until(lambda: len(records(tmp_path / "results")) >= 1)
    process.kill()
    process.communicate(timeout=60)
    until(lambda: gone(process.pid), 30)
