"""A run that is asked to end: what it leaves, and how `phalanx flower up` goes on from there."""

import dataclasses
import json
import os
import signal
import subprocess
from contextlib import suppress
from types import SimpleNamespace

import pytest

import phalanx
from flower.federations import SMALL, at_nodes, coordinator, honest
from phalanx.cli import flower as command
from phalanx.cli.main import main
from phalanx.flower import InProcessGrid, server_app
from phalanx.flower.audit import read
from phalanx.flower.local_federation import LocalFederation
from phalanx.runs.lock import exclusive
from phalanx.runs.record import Record
from phalanx.signals import passing_signals_on, stopped_like_ctrl_c

PLAN = dataclasses.replace(SMALL, clients=4, until=phalanx.Until(4))
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def told():
    """the signals that reach the previous handler, as that of Flower in the process of a server's app."""
    came = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in SIGNALS}
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_server_that_is_asked_to_end_writes_its_record_and_tells_flower_then(number, told, tmp_path):
    def stop(progress):
        if progress.step == 2:
            os.kill(os.getpid(), number)

    made = coordinator(PLAN, folder=tmp_path / "run", observers=[stop])
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid, pytest.raises(KeyboardInterrupt):
        server_app(made)(grid, grid.context({}))
    assert told == [number]
    assert Record.load(tmp_path / "run").summary.status == "stopped"
    last = read(tmp_path / "run" / "audit.jsonl")[-1]
    assert (last.event, last.step, last.why) == ("ended", 2, "stopped")
    assert (tmp_path / "run" / "checkpoint").is_file()


def test_a_second_signal_does_not_disturb_what_the_first_has_begun(told):
    written = []

    @passing_signals_on()
    def run():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            written.append("record")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert (written, told) == (["record"], [signal.SIGTERM])


def test_a_terminal_that_is_closed_ends_nothing_that_was_begun_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with suppress(KeyboardInterrupt), stopped_like_ctrl_c() as came:
            signal.raise_signal(signal.SIGHUP)
        assert came == []
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


# --- up


def test_no_process_is_left_where_nobody_can_be_told_of_the_end(tmp_path):
    """As by `phalanx flower up | tee log` and Ctrl-C, after which there is no tee: rich ends the process."""

    def nobody_reads():
        raise SystemExit(1)

    federation = LocalFederation(tmp_path, 1, ending=nobody_reads)
    node = federation.nodes[0] = subprocess.Popen(["sleep", "60"], env=federation.environment, start_new_session=True)
    try:
        with pytest.raises(SystemExit):
            federation.stop()
        assert node.poll() is not None
    finally:
        node.kill()
        node.wait()


class Interrupted(LocalFederation):
    """One that is stopped as soon as it has begun."""

    def __enter__(self):
        raise KeyboardInterrupt


@pytest.fixture
def up(tmp_path, monkeypatch, capsys):
    """Carries out `phalanx flower up` in a folder, up to where its processes would start; gives what it says."""
    monkeypatch.setattr(command, "LocalFederation", Interrupted)

    def carry_out(*options):
        assert main(["flower", "up", "--folder", str(tmp_path), *options]) == 130
        return "".join(capsys.readouterr())

    return carry_out


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped in its third step lies where `up` keeps its results."""

    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    def lie():
        made = coordinator(PLAN, folder=tmp_path / "run", observers=[stop])
        with InProcessGrid(at_nodes(honest(PLAN, tmp_path / "memory"))) as grid, pytest.raises(KeyboardInterrupt):
            phalanx.flower.coordinate(grid, made)

    return lie


def test_the_same_command_goes_on_with_a_run_that_was_stopped_and_another_begins_anew(up, stopped, tmp_path, capsys):
    assert "The run had not begun: there are no results." in up("--clients", "4")
    stopped()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "stopped after 2 steps" in (tmp_path / "run" / "report.html").read_text()
    capsys.readouterr()
    said = up("--clients", "4", "--steps", "9")
    assert "Goes on after step 1, where the run was stopped. (--again starts over.)" in said
    assert f"Results so far: {tmp_path / 'run'}. The same command goes on from there." in said
    other = ["--clients", "5"]
    for more in ([], ["--asynchronous"], ["--again"]):
        other += more
        said = up(*other)
        assert "Starts over. The stopped run after step 1 is removed, except its audit trail." in said
        assert "The run had not begun" in said
        assert {path.name[:5] for path in (tmp_path / "run").iterdir()} == {"asked", "audit"}
        stopped()


def damage_note(folder):
    (folder / "up.json").write_text("")


def damage_checkpoint(folder):
    (folder / "run" / "checkpoint").write_bytes(b"?")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_note, "up.json does not describe the stopped run: Expecting value: line 1 column 1 (char 0)."),
        (damage_checkpoint, "The stopped run cannot go on: {folder}/run/checkpoint is damaged."),
    ],
    ids=["up.json", "checkpoint"],
)
def test_what_was_stopped_and_cannot_go_on_is_kept_until_it_is_told_to_begin_anew(
    damage, says, up, stopped, tmp_path, capsys
):
    up("--clients", "4")
    stopped()
    damage(tmp_path)
    before = sorted((tmp_path / "run").iterdir())
    assert main(["flower", "up", "--folder", str(tmp_path), "--clients", "4"]) == 2
    error = capsys.readouterr().err
    assert says.format(folder=tmp_path) in error
    assert "Start over with `phalanx flower up --again`, which removes" in error
    assert sorted((tmp_path / "run").iterdir()) == before
    assert "Starts over. The stopped run" in up("--clients", "4", "--again")
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert json.loads((tmp_path / "up.json").read_text())["clients"] == 4


def test_what_up_was_told_is_written_whole_or_not_at_all(up, tmp_path, monkeypatch):
    up("--clients", "4")
    before = (tmp_path / "up.json").read_text()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Path, "replace", stop)
    up("--clients", "5")
    assert (tmp_path / "up.json").read_text() == before


def test_a_folder_in_which_a_server_works_is_not_cleared(stopped, tmp_path, capsys):
    stopped()
    before = sorted((tmp_path / "run").iterdir())
    with exclusive(tmp_path / "run"):
        assert main(["flower", "up", "--folder", str(tmp_path), "--again"]) == 2
    assert f"Another process writes in {tmp_path / 'run'}, and two would overwrite" in capsys.readouterr().err
    assert sorted((tmp_path / "run").iterdir()) == before


def test_a_run_that_was_stopped_from_elsewhere_has_not_failed(stopped, tmp_path, monkeypatch, capsys):
    class Elsewhere(LocalFederation):
        """One whose run is over at once, as by `flwr stop`."""

        def __enter__(self):
            stopped()
            return self

        def run(self, app, config):
            return SimpleNamespace(poll=lambda: 1, wait=lambda: 1)

    monkeypatch.setattr(command, "LocalFederation", Elsewhere)
    assert main(["flower", "up", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"The run was stopped. Results: {tmp_path / 'run'}"


def test_what_is_there_is_not_shown_again_when_a_run_goes_on(tmp_path, monkeypatch, capsys):
    lines = [{"step": step, "version": step, "seconds": float(step)} for step in range(4)]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    answers = iter([False, True])
    console = command.live.Console()
    monkeypatch.setattr(command.live, "LOOK", 0)
    command.live.follow(tmp_path, console, lambda: next(answers), 2)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["2", "3"]


@pytest.mark.parametrize("option", [["--steps", "3"], ["--asynchronous"]])
def test_an_app_of_your_own_is_not_told_what_only_the_demonstration_knows(option, tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text("")
    assert main(["flower", "up", "--app", str(tmp_path), *option]) == 2
    assert f"{option[0]} is for the demonstration: an app of your own decides that itself." in capsys.readouterr().err
