"""Folders are owned: one writer, nothing renamed over a file, names and links that stay inside."""

import json
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from phalanx import InfeasibleError, Record, Run, Study, Until, simulate
from phalanx.cli.main import main
from phalanx.flower.audit import set_aside
from phalanx.models import MLP
from phalanx.runs.canonical import digest
from phalanx.runs.files import AUDIT, inside, replacing, write
from phalanx.runs.lock import LOCK, exclusive
from phalanx.runs.models import SavedModels
from phalanx.runs.seal import SEAL

PLAN = Run(clients=3, model=MLP(()), until=Until(steps=2))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folders") / "run"
    simulate(PLAN, folder=folder, models=SavedModels(best=True))
    return folder


@pytest.fixture
def received(done, tmp_path):
    folder = shutil.copytree(done, tmp_path / "received")
    (folder / SEAL).unlink()  # as whoever forges a record does
    return folder


# One writer


def test_a_second_run_in_a_folder_is_refused_and_the_first_is_whole(tmp_path):
    def second(progress):
        with pytest.raises(InfeasibleError, match=r"Another process writes in .*run, and two would overwrite"):
            simulate(PLAN, folder=tmp_path / "run")

    record = simulate(PLAN, folder=tmp_path / "run", observers=[second])
    assert Record.load(tmp_path / "run") == record
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.slow
def test_a_process_that_holds_a_folder_and_is_killed_leaves_it_free(tmp_path):
    script = (
        "import sys, pathlib; from phalanx.runs.lock import exclusive\n"
        "with exclusive(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command, pipes = [sys.executable, "-c", script, str(tmp_path)], {"stdin": -1, "stdout": -1}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InfeasibleError, match="Another process"), exclusive(tmp_path):
            pass
        other.kill()
        other.wait()
    assert (tmp_path / LOCK).exists()
    with exclusive(tmp_path):
        pass


def test_whoever_waits_for_a_lock_file_that_is_removed_takes_the_new_one(tmp_path, monkeypatch):
    """Between opening the file and locking it, the holder releases it and somebody else takes a new one."""
    import fcntl

    locked, steps = fcntl.flock, []

    def flock(file, how):
        steps.append(how)
        if len(steps) == 1:
            (tmp_path / LOCK).unlink()
            (tmp_path / LOCK).touch()
        return locked(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with exclusive(tmp_path):
        assert len(steps) == 2
        monkeypatch.undo()
        with pytest.raises(InfeasibleError), exclusive(tmp_path):
            pass


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="stopped"), exclusive(tmp_path / "a" / "b"):
        raise ValueError("stopped")
    assert [*tmp_path.iterdir()] == []
    with exclusive(tmp_path / "a"):
        (tmp_path / "a" / "file").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]


# Nothing renamed over a file


def test_audit_trails_of_the_same_time_are_all_kept(tmp_path):
    for k in range(4):
        (tmp_path / AUDIT).write_text(f"{k}\n")
        os.utime(tmp_path / AUDIT, (1e9, 1e9))
        set_aside(tmp_path / AUDIT)
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["0\n", "1\n", "2\n", "3\n"]


# Names and links stay inside


@pytest.mark.parametrize("name", ["../secret", "../../secret", "/etc/passwd", "models/../../secret", "run.json", ""])
@pytest.mark.parametrize("place", ["clients", "best"])
def test_names_of_models_stay_in_the_folder(name, place, received):
    path = received / ("model.json" if place == "clients" else "best/model.json")
    index = json.loads(path.read_text())
    path.write_text(json.dumps(index | {"clients": {"0": {"0": name}}}))
    with pytest.raises(ValueError, match="is no file of a model"):
        Record.load(received)


READ = ("run.json", "summary.json", "history.jsonl", "model.json", "model.safetensors")


@pytest.mark.parametrize("name", READ)
def test_links_that_leave_a_folder_are_not_read(name, received, tmp_path):
    (received / name).rename(tmp_path / "elsewhere")
    (received / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="leads out of its folder"):
        Record.load(received).model()


def test_links_within_a_folder_are_read(received):
    (received / "model.safetensors").rename(received / "same.safetensors")
    (received / "model.safetensors").symlink_to("same.safetensors")
    assert Record.load(received).model() is not None


@pytest.mark.parametrize("command", [["report"], ["report", "--out"]])
def test_the_report_is_not_written_through_a_link_of_the_folder(command, received, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    (received / "report.html").symlink_to(tmp_path / "mine")
    command = [command[0], str(received), *(f"{word}={received}" for word in command[1:])]
    assert main(command) == 2
    assert "report.html leads out of its folder" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("name", ["run.json", "summary.json", "model.json", "model.md", "model.safetensors"])
def test_a_run_does_not_write_through_links_of_its_folder(name, received, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (received / name).unlink(missing_ok=True)
    (received / name).symlink_to(tmp_path / "mine")
    with suppress(ValueError):  # or the link is removed, with the files of the run before
        simulate(PLAN, folder=received)
    assert (tmp_path / "mine").read_text() == "mine"


def test_inside(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run-2").mkdir()
    assert inside(tmp_path / "run", "a/b") == tmp_path / "run" / "a" / "b"
    for name in ("../run-2/a", "..", ".", str(tmp_path), "a/../../x"):
        with pytest.raises(ValueError, match="leads out"):
            inside(tmp_path / "run", name)


# Whole files


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path):
    (tmp_path / "page").write_text("old")

    def fails():
        with replacing(tmp_path / "page") as file:
            file.write(b"new")
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full") as raised:
        fails()
    assert raised.value.filename == str(tmp_path / "page")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page", "old")]


def test_the_report_says_of_which_file_the_disk_is_full(received, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    monkeypatch.setattr("pathlib.Path.replace", full)
    assert main(["report", str(received)]) == 2
    assert f"{received / 'report.html'} has no room: its disk is full" in capsys.readouterr().err


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_unlike_states_and_hidden_characters_are_compared_and_shown(received, tmp_path, monkeypatch, capsys):
    steps = [json.loads(line) for line in (received / "history.jsonl").read_text().splitlines()]
    steps[1]["state"] = {"one": 1.0}
    steps[2]["state"] = {"other": [2.0]}
    steps[2]["verdicts"]["0"]["reason"] = "\\u202egnihton"
    (received / "history.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    summary = json.loads((received / "summary.json").read_text())
    summary["name"] = "=cmd|' /C calc'!A0 \u202e\u2066\x1b"
    (received / "summary.json").write_text(json.dumps(summary))
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(received), "--name", "\u202eemos"]) == 0
    assert main(["report", str(received)]) == 0
    page = (received / "report.html").read_text() + (tmp_path / "comparison" / "study.html").read_text()
    assert not {"\u202e", "\u2066", "\x1b"} & {*page}
    cells = (tmp_path / "comparison" / "runs.csv").read_text()
    assert "'=cmd" in cells
    assert "\n=cmd" not in cells


def test_the_digest_of_a_configuration_is_that_of_its_summary(received):
    """So that the forgeries above are read as far as they are meant to be."""
    config, summary = (json.loads((received / name).read_text()) for name in ("run.json", "summary.json"))
    assert summary["config_digest"] == digest(config)


def test_a_second_study_or_page_of_a_paper_in_a_folder_is_refused(tmp_path, monkeypatch, capsys):
    """Its records are written whole each, and its pages are not."""
    monkeypatch.setattr("sys.path", [*sys.path, str(Path(__file__).parents[1] / "experiments" / "reproduce")])
    (tmp_path / "two.yaml").write_text(
        "base: {clients: 2, until: {steps: 1}}\ngrid: {participation: [1.0]}\nseeds: 1\n"
    )
    with exclusive(tmp_path / "two"):
        assert main(["study", str(tmp_path / "two.yaml"), "--folder", str(tmp_path / "two")]) == 2
        assert "Another process writes in" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "two").iterdir()] == [LOCK]
    toy = ["reproduce", "toy-paper", "figure1", "--package", "toy_papers", "--folder", str(tmp_path)]
    with exclusive(tmp_path / "two"), pytest.raises(InfeasibleError, match="Another process writes in"):
        Study(PLAN, {"participation": [1.0]}, seeds=1).run(tmp_path / "two")
    with exclusive(tmp_path / "toy-paper"):
        assert main(toy) == 2
        assert "Another process writes in" in capsys.readouterr().err
        assert main(["reproduce", "toy-paper", "--pack", "--package", "toy_papers", "--folder", str(tmp_path)]) == 2
