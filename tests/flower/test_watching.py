"""What a coordinator shows of a run while it goes on: status.json, the live view, the log, figures for Prometheus."""

import dataclasses
import io
import json
import logging
import os
import re
import sys
import threading
import time
import urllib.request
import warnings
from contextlib import nullcontext, suppress
from datetime import datetime
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

import phalanx
from flower.federations import QUICK, SMALL, at_nodes, coordinator, honest, roster_of
from phalanx.aggregators import TrimmedMean
from phalanx.algorithms import FedAvg
from phalanx.cli import flower
from phalanx.cli.main import main
from phalanx.core import ClientReport, InfeasibleError, Verdict
from phalanx.data import LognormalSizes
from phalanx.engine.observer import Progress
from phalanx.engine.suspicion import Conduct
from phalanx.flower import FlowerTransport, InProcessGrid, coordinate, live, status
from phalanx.flower.audit import read
from phalanx.flower.logs import JSONFormatter
from phalanx.flower.metrics import PrometheusMetrics
from phalanx.flower.status import ClientStatus, RunStatus, StatusBoard
from phalanx.flower.suspension import Standing, Suspension
from phalanx.installation import installation
from phalanx.runs.lock import LOCK, exclusive
from phalanx.runs.record import Record, as_lines, read_step
from phalanx.runs.schema import PromiseRecord, StepRecord, to_json
from phalanx.training.evaluation import Metrics
from phalanx.weighting import AsReported

PLAN = dataclasses.replace(SMALL, clients=4, until=phalanx.Until(2))
STATUS = RunStatus(
    phase="running",
    step=2,
    version=2,
    seconds=9.0,
    clients={
        0: ClientStatus(name="Lyon [x]", standing="here"),
        1: ClientStatus(name="Basel", standing="suspended", why="3 strikes, the last: NaN"),
        2: ClientStatus(name="Graz", standing="missing"),
    },
)
HISTORY = [
    StepRecord(step=0, version=0, seconds=0.0),
    StepRecord(
        step=1,
        version=1,
        seconds=4.5,
        metrics=Metrics(accuracy=0.625),
        verdicts={0: Verdict(True, 1.0, 0.5), 1: Verdict(False, 0.0, -0.1, "far away")},
        lost={2: "no answer within 60 s"},
    ),
]


def shown(picture, width=120):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(picture)
    return console.file.getvalue()


def test_the_view_has_rounds_who_is_there_and_the_last_verdicts():
    text = shown(live.view(STATUS, HISTORY))
    assert "step 1  version 1  4.5 s   1 here  1 missing  1 suspended" in text
    assert [line.split() for line in text.splitlines() if "62.5 %" in line] == [
        ["1", "4.5", "62.5", "%", "1", "·", "1", "·", "1"]
    ]
    rows = [line.split() for line in text.splitlines() if line.split()[1:2] in (["Basel"], ["Graz"], ["Lyon"])]
    assert [row[0] for row in rows] == ["1", "2", "0"], "first those with whom something is the matter"
    assert "filtered @1, -0.1" in text
    assert "3 strikes, the last: NaN" in text
    assert "lost @1" in text
    assert "no answer within 60 s" in text
    assert "Lyon [x]" in text, "a name is text and no markup"


def test_it_says_what_an_operator_can_do_the_worst_first_and_names_who():
    text = shown(live.view(STATUS, HISTORY), 160)
    assert "Basel: suspended. Ask the site for its log; then `phalanx flower readmit NAME` lets it in again." in text
    assert "Graz: missing. Is its node running" in text
    about = {i: ClientStatus(name=f"site {i}", standing="missing") for i in range(5)}
    said = shown(live.view(msgspec.structs.replace(STATUS, clients=about), HISTORY), 160)
    assert "site 0, site 1, site 2 and 2 more: missing." in said
    well = {0: ClientStatus(name="Lyon", standing="here")}
    good = [msgspec.structs.replace(HISTORY[1], verdicts={0: Verdict(True, 1.0, 0.5)}, lost={})]
    quiet = shown(live.view(msgspec.structs.replace(STATUS, clients=well), good), 160)
    assert not any(remedy in quiet for remedy in live.REMEDIES.values())


@pytest.mark.parametrize("trouble", live.REMEDIES)
def test_there_is_a_remedy_for_each_trouble_that_can_be(trouble):
    row = live.ClientRow((0, 0, 1), "Ulm", "here", live.Fate("used", 1), "")
    doubts = ("suspicious", "fallen", "slow")
    place = {
        **{each: {"doubts": (each,)} for each in doubts},
        **{each: {"standing": each} for each in status.STANDINGS},
    }
    found = [*live.to_do([row._replace(**place.get(trouble, {"fate": live.Fate(trouble, 3)}))])]
    assert found == [f"Ulm: {trouble}. {live.REMEDIES[trouble]}"]
    words = {*status.STANDINGS, *live.UNUSED, "suspicious"}
    assert words - {*live.REMEDIES} == {"here", "excluded", "revoked", "filtered"}, "these are the algorithm's or ours"


def test_before_anything_has_happened_it_says_so():
    assert shown(live.view(None, [])) == "Waiting for the run to begin.\n"
    waiting = msgspec.structs.replace(STATUS, phase="waiting")
    assert "The server waits for its clients." in shown(live.view(waiting, []))
    assert "The server waits for its clients." in shown(live.view(waiting, HISTORY))
    assert "The server waits for its clients." not in shown(live.view(STATUS, HISTORY))
    assert "No sign of life from the server for 31 s." in shown(live.view(waiting, [], silence=31.0))


LONG = "update has norm 1.35e+15, and the guard of this run lets nothing in that is longer than 100"


def many(clients, invalid):
    """So many clients, with names that have no room, of which the last have sent invalid updates."""
    about = {i: ClientStatus(name=f"University hospital {i}", standing="here") for i in range(clients)}
    bad = [clients - 1 - i for i in range(invalid)]
    good = {i: Verdict(True, 1.0, 0.5) for i in about if i not in bad}
    line = StepRecord(step=1, version=0, seconds=4.5, verdicts=good, invalid=dict.fromkeys(bad, LONG))
    history = [msgspec.structs.replace(line, step=step) for step in range(1, 20)]
    return msgspec.structs.replace(STATUS, clients=about), history


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 30), (200, 50)])
@pytest.mark.parametrize(("clients", "invalid"), [(4, 0), (8, 1), (8, 8), (30, 3), (30, 30)])
@pytest.mark.parametrize("silence", [0.0, 100.0])
def test_the_view_fits_the_window_and_shows_those_in_trouble_first(width, height, clients, invalid, silence):
    text = shown(live.view(*many(clients, invalid), (width, height), silence), width)
    lines = text.splitlines()
    assert len(lines) < height, "the last one is the cursor's"
    assert max(map(len, lines)) <= width
    rows = [line.split() for line in lines if "University" in line and line.split()[0].isdigit()]
    assert [int(row[0]) for row in rows[:invalid]] == [*range(clients - invalid, clients)][: len(rows)]
    assert all("update has norm" in " ".join(row) for row in rows[:invalid])
    left = clients - len(rows)
    if left:
        assert f"and {left} more" in text
        troubled = max(0, invalid - len(rows))
        assert (f"{troubled} in trouble" in text) is (troubled > 0)
    rounds = sum(line.split()[1:2] == ["4.5"] for line in lines)
    assert rounds in {3, 6, 7, 8}
    assert (rounds == 3) is (invalid == 30 and height < 50), (
        "rounds make room for clients in trouble, and for no others"
    )


def test_a_server_that_was_killed_is_missed_and_looked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(live, "LOOK", 0)
    (tmp_path / "history.jsonl").write_bytes(as_lines(HISTORY))
    (tmp_path / "status.json").write_bytes(to_json(STATUS))
    now, looks = time.time(), []

    def over():
        looks.append(None)
        age = {2: 29, 3: 31, 4: 200, 5: 2}.get(len(looks), 0)
        os.utime(tmp_path / "status.json", (now - age, now - age))
        return len(looks) == 6

    live.follow(tmp_path, Console(), over)
    assert [line for line in capsys.readouterr().out.splitlines()[2:] if not line.startswith("client")] == [
        "No sign of life from the server for 31 s. If it was killed, start it again.",
        "The server gives signs of life again.",
    ]
    assert "life from the server for 3 min." in shown(live.view(STATUS, HISTORY, silence=200.0))
    assert "life" not in shown(live.view(STATUS, HISTORY, silence=29.0))

    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    looks.clear()
    live.follow(tmp_path, console, over)
    assert "No sign of life from the server for 3 min." in console.file.getvalue()


def test_where_another_run_begins_it_is_shown_from_its_first_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(live, "LOOK", 0)
    looks = []

    def over():
        looks.append(None)
        lines = HISTORY if len(looks) == 1 else HISTORY[:1]
        (tmp_path / "history.jsonl").write_bytes(as_lines(lines))
        return len(looks) == 2

    live.follow(tmp_path, Console(), over)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["0", "1", "0"]


def test_without_a_terminal_each_line_of_the_history_is_a_line_of_text(tmp_path, capsys):
    (tmp_path / "history.jsonl").write_bytes(as_lines(HISTORY) + b'{"step": 2, "ver')
    (tmp_path / "summary.json").write_text("{}")
    assert main(["flower", "watch", str(tmp_path)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 3
    assert "not used: 1 (far away; -0.1)  lost: 2 (no answer within 60 s)" in out[1]
    assert out[2] == "The run ended, and it is not known how."


def test_a_run_that_has_just_been_started_is_waited_for(tmp_path, monkeypatch, capsys):
    def look(_):
        if made:
            made.pop().mkdir()
            (tmp_path / "run" / "summary.json").write_text("{}")

    made = [tmp_path / "run"]
    monkeypatch.setattr(flower.time, "sleep", look)
    assert main(["flower", "watch", str(tmp_path / "run")]) == 1
    assert f"There is no folder {tmp_path / 'run'} yet: " in capsys.readouterr().out
    monkeypatch.setattr(flower, "PATIENCE", 0)
    assert main(["flower", "watch", str(tmp_path / "none")]) == 2
    out = capsys.readouterr()
    assert "Waiting for it, 0 s at most." in out.out
    assert f"There is no folder {tmp_path / 'none'}. Name that of a run" in out.err
    assert main(["flower", "watch", str(tmp_path / "runs" / "none")]) == 2
    assert "Waiting" in capsys.readouterr().out, "the coordinator makes both"
    assert main(["flower", "watch", str(tmp_path / "none" / "none" / "run")]) == 2
    assert "Waiting" not in capsys.readouterr().out, "for what nobody makes"


@pytest.mark.parametrize(
    ("ending", "said"),
    [("finished", "The run has finished. Next: `phalanx report`"), ("failed", "The run failed: RuntimeError: no disk")],
)
def test_without_a_status_the_record_says_how_a_run_ended(ending, said, tmp_path, capsys):
    def fail(progress):
        if progress.step == 1 and ending == "failed":
            raise RuntimeError("no disk")

    with nullcontext() if ending == "finished" else pytest.raises(RuntimeError):
        phalanx.simulate(PLAN, folder=tmp_path, observers=[fail])
    assert main(["flower", "watch", str(tmp_path)]) == (ending != "finished")
    out = capsys.readouterr().out.splitlines()
    assert len([line for line in out if line.startswith("step")]) in (2, 3)
    assert out[-1].startswith(said)


def test_a_run_with_a_summary_is_over_when_its_server_has_sealed_the_folder_or_was_killed(tmp_path):
    (tmp_path / "status.json").write_bytes(to_json(msgspec.structs.replace(STATUS, phase="running")))
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "lock").touch()
    assert not live.ended(tmp_path), "the last signatures are still to come"
    long_ago = time.time() - live.QUIET - 1
    os.utime(tmp_path / "status.json", (long_ago, long_ago))
    assert live.ended(tmp_path), "the lock of a server that was killed stays"
    os.utime(tmp_path / "status.json")
    (tmp_path / "lock").unlink()
    assert live.ended(tmp_path)


def test_notices_come_and_go_without_a_terminal_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(live, "LOOK", 0)
    (tmp_path / "history.jsonl").write_bytes(as_lines(HISTORY))
    told = ["", "outage: 3 of 4 clients are silent", "", "Waits for clients to sign", ""]
    looks = [*told]

    def over():
        (tmp_path / "status.json").write_bytes(to_json(msgspec.structs.replace(STATUS, notice=looks.pop(0))))
        return not looks

    live.follow(tmp_path, Console(), over)
    said = [told[1], "The last notice is over: the run goes on.", told[3]]  # with the last, the run is over
    assert [line for line in capsys.readouterr().out.splitlines()[2:] if not line.startswith("client")] == said


def test_without_a_terminal_the_promise_is_a_line_and_clients_are_not_missing_before_the_run_begins(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(live, "LOOK", 0)
    missing, here = (ClientStatus(name="Lyon", standing=standing) for standing in ("missing", "here"))
    known = PromiseRecord(f=1, clients=4, text=("Tolerates any 1 of 4 clients.", "Accuracy is not promised."))
    told = [("waiting", None, missing), ("running", known, here)]
    (tmp_path / "history.jsonl").write_bytes(b"")

    def over():
        phase, promise, client = told.pop(0)
        found = msgspec.structs.replace(STATUS, phase=phase, promise=promise, clients={0: client})
        (tmp_path / "status.json").write_bytes(to_json(found))
        return not told

    live.follow(tmp_path, Console(), over)
    assert capsys.readouterr().out.splitlines() == [" ".join(known.text)]


def test_without_a_terminal_who_is_away_or_slow_is_named_with_the_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(live, "LOOK", 0)
    (tmp_path / "history.jsonl").write_bytes(as_lines(HISTORY))
    since, looks = status.utc(time.time() - 150), []
    slow = "its answers take 41 s, 4.1 times the 10 s of others"
    away = {
        0: ClientStatus(name="Lyon", standing="here", slow=slow),
        1: ClientStatus(name="Basel", standing="suspended", why="3 strikes", since=since, until="2026-11-27T07:00:00Z"),
        2: ClientStatus(name="Graz", standing="missing", since=since),
    }
    back = away | {2: ClientStatus(name="Graz", standing="here", since=since)}

    def over():
        looks.append(None)
        told = msgspec.structs.replace(STATUS, clients=away if len(looks) < 3 else back)
        (tmp_path / "status.json").write_bytes(to_json(told))
        return len(looks) == 4

    live.follow(tmp_path, Console(), over)
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"client 0 (Lyon) is slow: {slow}",
        "client 1 (Basel): suspended until 2026-11-27T07:00:00Z: 3 strikes",
        f"client 2 (Graz): missing since {since}, 2 min",
        "client 2 (Graz): here, after 2 min of being missing",
    ]
    picture = shown(live.view(msgspec.structs.replace(STATUS, clients=away), HISTORY), 200)
    for text in ("suspended until 2026-11-27T07:00:00Z", f"missing since {since}, 2 min", f"slow: {slow}"):
        assert text in picture


def test_a_fall_of_reported_accuracy_is_shown_as_text_and_as_picture_with_what_is_reported(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(live, "LOOK", 0)
    history = [
        StepRecord(
            step=k, version=k, seconds=0.0, reports={0: ClientReport(59, 0.5, share), 2: ClientReport(59, 0.5, 0.9)}
        )
        for k, share in enumerate((0.6, 0.93, 0.49, 0.48), 1)
    ]
    (tmp_path / "history.jsonl").write_bytes(as_lines(history))
    live.follow(tmp_path, Console(), lambda: True)
    lines = capsys.readouterr().out.splitlines()
    assert "clients report accuracy 48.0 % (0) to 90.0 % (2), median 69.0 %" in lines[3]
    assert [k for k, line in enumerate(lines) if "fallen" in line] == [2], "once"
    assert "fallen: 0 (reports an accuracy of 49.0 % in step 3, after 93.0 % in step 2" in lines[2]
    picture = shown(live.view(STATUS, history), 200)
    assert re.search(r"Lyon \[x\] +here +48.0 %.+fallen: reports an accuracy of 48.0 % in step 4", picture)
    assert "Lyon [x]: fallen. Look for an attacker" in picture


def test_an_update_that_stands_out_is_named_before_its_client_is_suspicious():
    found = Conduct(outlying="its update points against the others, cosine -0.90", updates=1, evidence=5.5)
    said = live.in_words(StepRecord(step=1, version=1, seconds=0.0, conduct={2: found}))
    assert "outlying: 2 (its update points against the others, cosine -0.90; evidence 5.5 of 100)" in said


@pytest.mark.slow
def test_a_wait_for_a_node_that_does_not_say_who_it_is_names_it_and_how_long_at_most(tmp_path, caplog):
    caplog.set_level(logging.INFO, "phalanx.flower")
    apps = {i: app for i, app in honest(PLAN, tmp_path).items() if i}
    timeouts = dataclasses.replace(QUICK, enrolment=3.0, least=3)
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(4), timeouts=timeouts) as transport:
        register, seen = transport.register, set()
        register._came = lambda: None
        begun = threading.Thread(target=transport.enroll)
        begun.start()
        while begun.is_alive():
            seen.add(register.notice)
            time.sleep(0.02)
        (said,) = seen - {""}
        assert re.match(r"Waits for 0 \(clinic-0\) to say who it is, [123] s at most\. A node answers when", said)
        assert register.notice == ""
        assert said in caplog.text


@pytest.mark.filterwarnings("default")
def test_warnings_are_a_line_of_the_log_and_an_event_of_the_audit_once(tmp_path, caplog, capfd):
    """Those of the beginning, which the first step has as a remark as well, and those of later; only the text."""

    def warn(progress):
        if progress.step == 1:
            warnings.warn("the disk of the\nmodels is slow", stacklevel=1)

    plan = dataclasses.replace(
        PLAN, algorithm=FedAvg(TrimmedMean(0.25), AsReported(beyond_tolerance="remark")), partition=LognormalSizes(2.0)
    )
    caplog.set_level("WARNING", logger="phalanx")
    with InProcessGrid(at_nodes(honest(plan, tmp_path / "clients"))) as grid:
        made = coordinator(plan, folder=tmp_path / "run", observers=[warn])
        coordinate(grid, made)
    noted = [entry.why for entry in read(tmp_path / "run" / "audit.jsonl") if entry.event == "warning"]
    assert noted.count("the disk of the\nmodels is slow") == 1
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == noted
    assert len([why for why in noted if "1 of 4 clients can hold 0." in why]) == 1
    assert ".py:" not in capfd.readouterr().err
    assert warnings.formatwarning("a", UserWarning, "b.py", 1) != ""


def test_in_a_terminal_it_is_one_picture_that_is_renewed_until_the_run_is_over(tmp_path):
    (tmp_path / "history.jsonl").write_bytes(as_lines(HISTORY))
    (tmp_path / "status.json").write_bytes(to_json(STATUS))
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    answers = iter([False, True])
    live.follow(tmp_path, console, lambda: next(answers))
    assert "suspended" in console.file.getvalue()
    assert next(answers, "asked") == "asked", "and no longer"


def test_the_status_follows_who_comes_and_goes_is_suspended_excluded_and_revoked(tmp_path):
    grid = InProcessGrid(at_nodes(honest(PLAN, tmp_path)))
    with grid, FlowerTransport(grid, roster_of(4), timeouts=QUICK) as transport:
        transport.enroll()
        with StatusBoard(tmp_path / "status.json", transport.register, 0.02) as kept:
            state = SimpleNamespace(version=7, verdicts={2: Verdict(False, 0.0, 0.1, "far away", final=True)})
            kept(Progress(3, 1.0, state, None, {}, {}))
            for _ in range(3):
                transport.register.struck(1, "NaN")
            transport.register.roster = transport.register.roster.changing(3, revoked=True)
            grid.disconnect(100)
            wanted = {0: "missing", 1: "suspended", 2: "excluded", 3: "revoked"}
            deadline, found = time.monotonic() + 20, {}
            while found != wanted and time.monotonic() < deadline:
                told = live.status(tmp_path)
                found = {i: client.standing for i, client in told.clients.items()}
                time.sleep(0.02)
            assert found == wanted
            assert (told.step, told.version) == (3, 7)
            assert told.clients[1].why == "3 strikes, the last: NaN"
            end = datetime.fromisoformat(told.clients[1].until).timestamp() - time.time()
            assert end == pytest.approx(Suspension().sentence, abs=20)
            assert told.clients[0].since.endswith("Z")
            assert kept.counts() == {"here": 0, "missing": 1, "suspended": 1, "excluded": 1, "revoked": 1}


def test_the_status_is_a_sign_of_life_where_nothing_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(status, "BEAT", 0.05)
    grid = InProcessGrid(at_nodes(honest(PLAN, tmp_path)))
    with grid, FlowerTransport(grid, roster_of(4), timeouts=QUICK) as transport:
        transport.enroll()
        with StatusBoard(tmp_path / "status.json", transport.register, 60.0) as kept:
            kept(Progress(0, 0.0, SimpleNamespace(version=0, verdicts={}), None, {}, {}))
            first = (tmp_path / "status.json").stat().st_mtime_ns
            deadline = time.monotonic() + 20
            while (tmp_path / "status.json").stat().st_mtime_ns == first and time.monotonic() < deadline:
                time.sleep(0.02)
            assert (tmp_path / "status.json").stat().st_mtime_ns > first


def test_a_file_that_is_removed_while_somebody_looks_is_as_one_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(live.Path, "is_file", lambda self: True)
    assert live.lines(tmp_path) == []
    assert live.status(tmp_path) is None


@pytest.fixture
def kept(tmp_path):
    """A status, before the run begins."""
    grid = InProcessGrid(at_nodes(honest(PLAN, tmp_path)))
    with grid, FlowerTransport(grid, roster_of(4), timeouts=QUICK) as transport:
        transport.enroll()
        yield StatusBoard(tmp_path / "status.json", transport.register, 60.0)


BEGUN = Progress(0, 0.0, SimpleNamespace(version=0, verdicts={}), None, {}, {})


def test_who_is_let_in_again_while_somebody_looks_is_not_missed(kept):
    class Changing(dict):
        """Of which another thread takes what is asked for."""

        def __contains__(self, key):
            return True

    kept._excluded = Changing()
    assert {about.standing for about in kept.clients().values()} == {"here"}


def test_before_a_run_goes_on_nobody_counts_as_suspended_by_a_clock_that_is_not_its_own(kept):
    kept._register.standings[2] = Standing(misses=3, until=1000.0, why="3 misses")
    with kept:
        assert kept.clients()[2].standing == "here"
        kept(BEGUN)
        assert kept.clients()[2].standing == "suspended"


def test_the_status_says_at_last_how_the_run_ended(kept, tmp_path):
    with suppress(InfeasibleError), kept:
        kept(BEGUN)
        assert live.status(tmp_path).phase == "running"
        raise InfeasibleError("nobody is left")
    told = live.status(tmp_path)
    assert (told.phase, told.why) == ("over", "nobody is left")
    assert live.ended(tmp_path)


def test_a_status_that_cannot_be_written_at_last_hides_no_error(kept, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    kept.__enter__()
    monkeypatch.setattr(StatusBoard, "_write", full)
    assert not kept.__exit__(InfeasibleError, InfeasibleError("nobody is left"), None)
    assert "status.json cannot be written: [Errno 28] No space left on device" in caplog.text


def stop(progress):
    if progress.step == 1:
        raise KeyboardInterrupt


@pytest.mark.parametrize("before", [None, stop], ids=["of a run that is over", "of a run that was stopped"])
def test_a_server_that_waits_for_its_clients_gives_signs_of_life_whatever_lies_in_its_folder(before, tmp_path):
    folder, seen = tmp_path / "run", []

    def watched(app):
        def node(message, context):
            if message.metadata.message_type == "query":
                seen.append((live.ended(folder), live.silence(folder) < live.QUIET, live.status(folder).phase))
            return app(message, context)

        return node

    for wrap, observers in ((lambda app: app, [before] if before else []), (watched, [])):
        apps = {i: wrap(app) for i, app in honest(PLAN, tmp_path / "memory").items()}
        with InProcessGrid(at_nodes(apps)) as grid, suppress(KeyboardInterrupt):
            coordinate(grid, coordinator(PLAN, folder=folder, observers=observers))
        assert live.ended(folder)
        os.utime(folder / "status.json", (0, 0))
    assert seen == [(False, True, "waiting")] * 4
    assert live.status(folder).why == "finished"


def test_one_server_works_in_a_folder_and_no_other_as_long_as_it_does(tmp_path):
    def another(progress):
        with pytest.raises(
            InfeasibleError, match=r"Another process writes in .*run, and two would overwrite each other's files\."
        ):
            coordinate(grid, made)

    made = coordinator(PLAN, folder=tmp_path / "run")
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid:
        coordinate(grid, dataclasses.replace(made, observers=[another]))
    assert live.status(tmp_path / "run").why == "finished"
    with exclusive(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).stat().st_size == 0


def test_where_there_are_no_locks_it_is_said(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.raises(
        InfeasibleError, match=r"Operation not supported\. Choose a folder on a file system that supports locks"
    ):
        coordinate(InProcessGrid({}), coordinator(PLAN, folder=tmp_path))


# --- the log


def test_the_log_can_be_one_json_object_per_line():
    try:
        raise ValueError("no such thing")
    except ValueError:
        error = sys.exc_info()
    record = logging.LogRecord("phalanx.flower", logging.WARNING, "f.py", 1, "client %d: %s", (2, 'a\n"b"'), error)
    (line,) = JSONFormatter().format(record).splitlines()
    told = json.loads(line)
    assert (told["level"], told["message"], told["logger"]) == ("WARNING", 'client 2: a\n"b"', "phalanx.flower")
    assert told["time"].endswith("Z")
    assert "ValueError: no such thing" in told["exception"]


# --- figures for Prometheus


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_updates_are_counted_by_fate_and_steps_timed():
    counts = {"here": 3, "missing": 1, "suspended": 0, "excluded": 0, "revoked": 0}
    metrics = PrometheusMetrics(lambda: counts, lambda: 0)

    def step(number, now, verdicts, invalid=(), lost=()):
        state = SimpleNamespace(version=number, verdicts=verdicts)
        updates = object() if verdicts else None
        metrics(Progress(number, now, state, updates, dict(invalid), dict(lost), frozenset(range(5))))

    good, bad, waits = Verdict(True, 1.0), Verdict(False, 0.0, 0.1, "far"), Verdict(True, 0.0, waits=True)
    step(0, 0.0, {})
    step(1, 4.0, {0: good, 1: bad, 2: waits}, invalid={3: "NaN"})
    step(1, 5.0, {}, lost={3: "silent", 4: "silent"})
    step(2, 10.0, {0: good})
    fates = {fate: value(metrics, "phalanx_updates_total", fate=fate) for fate in ("accepted", "filtered")}
    assert fates == {"accepted": 2, "filtered": 1}
    assert value(metrics, "phalanx_updates_total", fate="invalid") == 1
    assert value(metrics, "phalanx_updates_total", fate="lost") == 2
    assert value(metrics, "phalanx_steps_total") == 2
    assert value(metrics, "phalanx_step_seconds_sum") == 10.0
    assert value(metrics, "phalanx_step_seconds_count") == 2
    assert value(metrics, "phalanx_clients", standing="here") == 3
    counts["here"] = 2
    assert value(metrics, "phalanx_clients", standing="here") == 2, "asked for at each look"


def test_they_are_served_while_the_run_goes_on_if_asked_for_and_only_then(tmp_path):
    pages = []

    def observer(progress):
        (port,) = [int(record.args[1]) for record in heard if record.msg.startswith("metrics")]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            pages.append(page.read().decode())

    heard = []
    handler = logging.Handler()
    handler.emit = heard.append
    log = logging.getLogger("phalanx.flower")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid:
            coordinate(grid, coordinator(PLAN, metrics=0, observers=[observer]))
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    assert 'phalanx_updates_total{fate="accepted"} 8.0' in pages[-1]
    assert 'phalanx_clients{standing="here"} 4.0' in pages[-1]
    assert "clinic" not in pages[-1], "no names"


def test_a_port_that_is_taken_is_said():
    one, other = PrometheusMetrics(dict, int), PrometheusMetrics(dict, int)
    port = one.serve(0)
    try:
        with pytest.raises(InfeasibleError, match=f"Metrics cannot be served at port {port}: .* Choose another one."):
            other.serve(port)
    finally:
        one.close()


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(installation("metrics"))):
        PrometheusMetrics(dict, int)


# --- a long history


def lines_read(path, monkeypatch):
    """Counts the lines of histories that are decoded."""
    decoded = []
    monkeypatch.setattr(live, "read_step", lambda line: (decoded.append(line), read_step(line))[1])
    return decoded


@pytest.mark.parametrize("terminal", [True, False])
def test_each_look_reads_only_what_is_new(terminal, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "LOOK", 0)
    path = tmp_path / "history.jsonl"
    path.write_bytes(as_lines(HISTORY) * 50)
    decoded, looks = lines_read(path, monkeypatch), []

    def over():
        looks.append(len(decoded))
        with path.open("ab") as file:
            file.write(as_lines(HISTORY[:1]))
        return len(looks) == 6

    live.follow(tmp_path, Console(file=io.StringIO(), width=120, force_terminal=terminal), over)
    assert looks == [0, *(50 * len(HISTORY) + k for k in range(1, 6))]
    assert len(decoded) == 50 * len(HISTORY) + 6


def test_a_history_that_is_replaced_is_read_from_its_beginning_and_a_torn_line_when_it_is_whole(tmp_path):
    path = tmp_path / "history.jsonl"
    tail = live.Tail(path)
    assert (tail.look(), [*tail.new()]) == (False, [])
    path.write_bytes(as_lines(HISTORY) + b'{"schema": 2, "st')
    assert (tail.look(), [*tail.new()], tail.count, tail.whole) == (True, HISTORY, 2, 2)
    with path.open("ab") as file:
        file.write(b'ep": 9, "version": 0, "seconds": 0.0}\n')
    assert (tail.look(), [step.step for step in tail.new()]) == (False, [9])
    path.unlink()
    assert (tail.look(), [*tail.new()]) == (True, [])
    path.write_bytes(as_lines(HISTORY) * 3)
    assert (tail.look(), [*tail.new()]) == (True, HISTORY * 3), "longer than the one before, and another"
    path.write_bytes(as_lines(HISTORY))
    assert (tail.look(), [*tail.new()]) == (True, HISTORY), "shorter"
    tail.close()


def test_what_is_shown_of_a_history_is_the_same_by_parts(tmp_path):
    whole, parts = live.Seen(HISTORY * 9), live.Seen()
    for k in range(9):
        parts.add(HISTORY)
        assert len(parts.last) == min(live.ROUNDS, 2 * k + 2)
    assert (whole.last, whole.fates) == (parts.last, parts.fates)


def test_the_status_of_a_run_that_does_not_begin_has_the_seconds_of_the_wait(tmp_path):
    apps = honest(PLAN, tmp_path / "state")
    del apps[0]
    made = coordinator(PLAN, folder=tmp_path, timeouts=dataclasses.replace(QUICK, enrolment=1.2))
    with InProcessGrid(at_nodes(apps)) as grid, pytest.raises(InfeasibleError):
        coordinate(grid, made)
    known = live.status(tmp_path)
    assert known.phase == "not begun"
    assert 1.2 <= known.seconds < 60.0
    assert known.promise is None


def test_the_status_says_what_is_promised_and_what_is_wrong_at_the_moment(tmp_path):
    seen = []

    def observer(progress):
        seen.append(live.status(tmp_path))

    with InProcessGrid(at_nodes(honest(PLAN, tmp_path / "state"))) as grid:
        coordinate(grid, coordinator(PLAN, folder=tmp_path, observers=[observer]))
    assert {one.promise.text for one in seen} == {Record.load(tmp_path).summary.promise.text}
    with suppress(KeyboardInterrupt), InProcessGrid(at_nodes(honest(PLAN, tmp_path / "others"))) as grid:
        coordinate(grid, coordinator(PLAN, folder=tmp_path / "resumed", observers=[stop]))
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path / "others"))) as grid:
        coordinate(grid, coordinator(PLAN, folder=tmp_path / "resumed"))
    assert live.status(tmp_path / "resumed").promise == seen[-1].promise
    outage = msgspec.structs.replace(seen[-1], notice="outage: 2 of 4 [bold]clients")
    text = shown(live.view(outage, HISTORY))
    assert "outage: 2 of 4 [bold]clients" in text
    assert seen[-1].promise.text[0][:40] in text
