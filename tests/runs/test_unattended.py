"""Runs that nobody watches: stopped by a signal, or by a full disk."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.cli.main import main
from phalanx.core import InfeasibleError
from phalanx.runs import record as records
from phalanx.runs.checkpoint import Checkpoint, peek
from phalanx.runs.history import History
from phalanx.runs.record import Record
from phalanx.runs.session import DiskFullError
from phalanx.signals import Holding, stopped_like_ctrl_c

PLAN = Run(clients=4, until=Until(12))


# --- stop signals


@pytest.fixture(autouse=True)
def _as_in_a_terminal():
    """A job in the background of a shell ignores Ctrl-C, and `nohup` a closed terminal; commands set the threads."""
    threads = torch.get_num_threads()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(n, signal.default_int_handler if n == signal.SIGINT else signal.SIG_DFL) for n in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    torch.set_num_threads(threads)


def sends(number, step, times=1):
    """An observer that sends signals to this process after a step."""

    def observer(progress):
        if progress.step == step:
            for _ in range(times):
                os.kill(os.getpid(), number)

    return observer


def history(folder):
    return (folder / "history.jsonl").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    simulate(PLAN, folder=folder)
    return history(folder)


def test_ctrl_c_keeps_the_last_step(tmp_path, undisturbed):
    """Snapshots of quick steps are seconds apart; it went back from step 7 to step 1."""
    with pytest.raises(KeyboardInterrupt) as stop:
        simulate(PLAN, folder=tmp_path, observers=[sends(signal.SIGINT, 7)])
    assert "When it is run again, it goes on after step 7." in stop.value.__notes__
    assert peek(tmp_path).step == 7
    assert Record.load(tmp_path).summary.status == "stopped"
    simulate(PLAN, folder=tmp_path)
    assert history(tmp_path) == undisturbed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_stops_at_once_and_leaves_what_can_go_on(tmp_path, undisturbed):
    with pytest.raises(KeyboardInterrupt):
        simulate(PLAN, folder=tmp_path, observers=[sends(signal.SIGINT, 7, times=2)])
    assert Record.load(tmp_path).summary.status == "stopped"
    simulate(PLAN, folder=tmp_path)
    assert history(tmp_path) == undisturbed


def test_a_signal_after_the_last_step_stops_what_follows_and_not_the_run(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        simulate(PLAN, folder=tmp_path, observers=[sends(signal.SIGINT, 12)])
    assert Record.load(tmp_path).summary.status == "finished"
    assert not (tmp_path / "checkpoint").exists()


def test_a_run_without_a_folder_is_stopped_at_once():
    seen = []
    with pytest.raises(KeyboardInterrupt):
        simulate(PLAN, observers=[sends(signal.SIGINT, 3), lambda progress: seen.append(progress.step)])
    assert seen == [0, 1, 2]


def test_a_step_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr("phalanx.signals.GRACE", 0.2)
    holding = Holding(lambda: False)
    holding.begin()
    begun = time.monotonic()

    def step():
        os.kill(os.getpid(), signal.SIGINT)
        while time.monotonic() - begun < 20:
            time.sleep(0.01)

    try:
        with pytest.raises(KeyboardInterrupt):
            step()
    finally:
        holding.end(stopped=True)
    assert 0.2 <= time.monotonic() - begun < 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_command_line_takes_other_stop_signals_for_ctrl_c(number, tmp_path, monkeypatch, capsys):
    """SLURM and Kubernetes send SIGTERM."""
    monkeypatch.setattr("phalanx.cli.progress.follow", lambda bar, plan, name: sends(number, 7))
    options = ["--clients", "4", "--until.steps", "12", "--folder", str(tmp_path / "run")]
    assert main(["run", *options]) == 130
    said = capsys.readouterr().err
    assert "Stopped." in said
    assert "it goes on after step 7" in said
    assert Record.load(tmp_path / "run").summary.status == "stopped"
    assert signal.getsignal(number) == signal.SIG_DFL


CLI = "import sys; from phalanx.cli.main import main; sys.exit(main())"


@pytest.mark.slow
def test_a_process_that_gets_signal_after_signal_prints_no_traceback(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", CLI, "run", "--clients", "10", "--until.steps", "4000", "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (folder / "history.jsonl").is_file() or history(folder).count(b"\n") < 5:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert Record.load(folder).summary.status == "stopped"


def test_a_terminal_that_is_gone_is_no_error(monkeypatch):
    def closed(*_):
        raise OSError(errno.EIO, "Input/output error")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("phalanx.cli.main._carry_out", stop)
    monkeypatch.setattr("sys.stderr", type("Gone", (), {"write": closed, "flush": closed})())
    assert main(["report", "nowhere"]) == 130


# --- a full disk


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def disk(monkeypatch):
    """A disk that is full after so many lines of history, until it is freed; a line is written in part then."""

    def of(lines):
        count, append = itertools.count(), History._append

        def some(self, text):
            if next(count) == lines:
                monkeypatch.setattr(records, "write_inside", full)
                monkeypatch.setattr("phalanx.runs.checkpoint.write", full)
                file = self._file
                self._file = type("Full", (), {"write": full, **{n: staticmethod(getattr(file, n)) for n in KEPT}})()
                file.write(b'{"schema": 2, "st')
                self._file.tell = lambda: file.tell() - 17
                try:
                    return append(self, text)
                finally:
                    self._file = file
            return append(self, text)

        monkeypatch.setattr(History, "_append", some)

    return of


KEPT = ("seek", "truncate", "tell", "fileno", "close")


def test_a_full_disk_is_said_and_leaves_what_can_go_on(tmp_path, disk, monkeypatch, undisturbed):
    disk(6)
    with pytest.raises(DiskFullError) as error:
        simulate(PLAN, folder=tmp_path, checkpoint=Checkpoint(0.0))
    assert str(error.value) == (
        f"The disk of {tmp_path} is full, or your quota of it. Free some space; then the same command goes on after "
        "step 5."
    )
    assert error.value.__cause__.errno == errno.ENOSPC
    assert not getattr(error.value, "__notes__", [])
    assert peek(tmp_path).step == 5
    monkeypatch.undo()
    assert history(tmp_path) == b"".join(undisturbed.splitlines(keepends=True)[:6])
    simulate(PLAN, folder=tmp_path)
    assert history(tmp_path) == undisturbed


def test_where_nothing_was_saved_it_says_so(tmp_path, disk, monkeypatch):
    disk(2)
    with pytest.raises(DiskFullError, match="then the same command starts over, since nothing was saved yet"):
        simulate(PLAN, folder=tmp_path)
    monkeypatch.undo()
    assert simulate(PLAN, folder=tmp_path).summary.status == "finished"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_the_same_command_repeats_a_run_for_which_the_disk_was_full(tmp_path, monkeypatch, capsys):
    command = ["run", "--clients", "2", "--model.hidden", "[]", "--until.steps", "3", "--folder", str(tmp_path / "run")]
    monkeypatch.setattr("phalanx.cli.run.Checkpoint", lambda **options: Checkpoint(0.0, **options))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.partial").symlink_to("/dev/full")
    assert main(command) == 2
    assert "the same command starts over" in capsys.readouterr().err
    assert Record.load(tmp_path / "run").summary.status == "failed"
    assert main(command) == 0
    assert "This run is repeated: the disk was full." in capsys.readouterr().out
    assert Record.load(tmp_path / "run").summary.status == "finished"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_checkpoint_for_which_there_is_no_room_leaves_no_partial_file(tmp_path):
    (tmp_path / "checkpoint.partial").symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match="starts over"):
        simulate(PLAN, folder=tmp_path, checkpoint=Checkpoint(0.0))
    assert not (tmp_path / "checkpoint.partial").is_symlink()
    assert Record.load(tmp_path).summary.error.startswith("DiskFullError: The disk of")


@pytest.fixture
def tiny(tmp_path):
    """A disk of 100 kB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The record of this run has no seal")
def test_a_disk_that_is_really_full(tiny, capsys, monkeypatch):
    monkeypatch.setattr("phalanx.cli.run.Checkpoint", lambda **options: Checkpoint(0.0, **options))
    options = ["--clients", "10", "--model.hidden", "[4]", "--until.steps", "2000", "--folder", str(tiny / "run")]
    assert main(["run", *options]) == 2
    said = capsys.readouterr().err
    assert "is full, or your quota of it. Free some space; then the same command goes on after step" in said
    assert "Traceback" not in said
    lines = history(tiny / "run").splitlines()
    assert all(json.loads(line) for line in lines)
    step = peek(tiny / "run").step
    assert Record.load(tiny / "run").summary.status == "failed"
    assert 0 < step <= len(lines)
    subprocess.run(["mount", "-o", "remount,size=40m", str(tiny)], check=True)
    seen = []
    monkeypatch.setattr("phalanx.cli.progress.follow", lambda *_: lambda p: seen.append(p.step) or stop_at(p, step + 3))
    assert main(["run", *options]) == 130
    assert seen[0] == step


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(tiny, capsys):
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    for command in (["run", "--until.steps", "1"], ["compare", str(tiny)]):
        assert main([*command, "--folder", str(tiny / "new" / "run")]) == 2
        said = capsys.readouterr()
        assert f"nothing can be written to {tiny}. Choose another folder." in said.err.replace("\n", " ")
        assert not said.out, "nothing was begun"


def stop_at(progress, step):
    if progress.step == step:
        os.kill(os.getpid(), signal.SIGINT)


# --- the current folder


@pytest.mark.slow
def test_a_file_in_the_current_folder_does_not_take_the_place_of_a_package(tmp_path, monkeypatch):
    """Of a module that is not installed neither: it is found only where a class of one's own is named."""
    simulate(Run(clients=3, until=Until(1)), folder=tmp_path / "run")
    (tmp_path / "jinja2.py").write_text("raise SystemExit('somebody else is here')")
    command = [sys.executable, "-c", CLI, "report", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    before, during = ["", str(tmp_path), *sys.path], []
    monkeypatch.setattr(sys, "path", [*before])
    monkeypatch.setattr("phalanx.cli.main._main", lambda _: during.append([*sys.path]) or 0)
    assert main(["report"]) == 0
    assert during == [before[2:]]
    assert sys.path == before, "as it was"


def test_signals_are_as_before_when_a_command_is_over():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert main(["report", "nowhere"]) == 2
    with pytest.raises(InfeasibleError), stopped_like_ctrl_c():
        raise InfeasibleError("x")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
