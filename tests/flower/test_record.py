"""What is kept of a run with real clients: the record that a report shows, and the audit trail."""

import dataclasses
import os
import re
import time
import warnings
from types import SimpleNamespace

import msgspec
import pytest
import torch

import phalanx
from flower.federations import KEYS, QUICK, SMALL, at_nodes, attacked, coordinator, honest, resigned, roster_of
from flower.test_server import Killed, killed_at
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.attacks import Rescale
from phalanx.cli.main import main
from phalanx.core import InfeasibleError, Verdict
from phalanx.engine.guard import Guard
from phalanx.engine.observer import Progress
from phalanx.flower import InProcessGrid, Roster, Suspension, codec, coordinate, coordinator_of, live
from phalanx.flower.audit import Audit, Note, read
from phalanx.flower.logs import logged_warnings
from phalanx.flower.run_record import population
from phalanx.report import write
from phalanx.runs.record import Record
from phalanx.runs.schema import ClientRecord, FinalMetrics, Summary
from phalanx.runs.seal import SEAL, breaks, chain_of, examine, members, split
from phalanx.runs.session import simulate
from phalanx.runs.summary import Population
from phalanx.runs.verification import verify

PLAN = dataclasses.replace(SMALL, clients=4, until=phalanx.Until(3))
ATTACKED = dataclasses.replace(PLAN, algorithm=FedAvg(aggregate=Median()), attack=Rescale(-10.0), byzantine=1)
OF_NO_STEP = {"begun", "recorded", "enrolled", "turned away", "ended"}
LEFT_OUT = {"promise", "seconds", "wall_seconds", "provenance", "missing", "name"}


def progress(step, verdicts=None, invalid=(), lost=(), version=None, enrolled=(0, 1, 2, 3)):
    state = SimpleNamespace(version=step if version is None else version, verdicts=verdicts or {})
    updates = None if verdicts is None else SimpleNamespace(reports={})
    return Progress(step, float(step), state, updates, dict(invalid), dict(lost), frozenset(enrolled))


def told(path):
    return [(e.event, e.client, e.step, e.why, e.score) for e in read(path) if e.event != "accepted"]


# --- the record


def test_a_run_that_everybody_knows_has_the_record_of_its_simulation(tmp_path):
    """Population, detection, rejections, accuracies: what the report shows, to the bit."""
    made = coordinator_of(ATTACKED, roster_of(4), folder=tmp_path / "run", timeouts=QUICK)
    with InProcessGrid(at_nodes(honest(ATTACKED, tmp_path / "memory"))) as grid:
        coordinate(grid, made)
    record, wanted = Record.load(tmp_path / "run"), simulate(ATTACKED, folder=tmp_path / "simulated")
    assert record.name == "FedAvg(Median), Rescale x 1"
    for key in {*Summary.__struct_fields__} - LEFT_OUT - {"clients", "identity", "config_digest"}:
        assert getattr(record.summary, key) == getattr(wanted.summary, key), key
    for i, client in wanted.summary.clients.items():
        assert record.summary.clients[i] == msgspec.structs.replace(client, name=f"clinic-{i}", tasks=3)
    assert {**record.config, **wanted.config} == {**record.config, "until": wanted.config["until"], "accept": []}
    write([record], tmp_path / "deployed.html", "")
    write([record, wanted], tmp_path / "both.html", "")
    for name, time_, other in (("deployed", "wall-clock time", "virtual"), ("both", "time on the run&#39;s clock", "")):
        page = (tmp_path / f"{name}.html").read_text()
        assert f"Accuracy over {time_}" in page
        assert not other or f"Accuracy over {other} time" not in page


@pytest.mark.slow
def test_of_real_clients_the_record_says_what_they_declare_and_did_and_the_report_shows_it(tmp_path, capsys):
    apps = honest(PLAN, tmp_path)
    apps[2] = attacked(apps[2], lambda message, reply, context: None)
    timeouts = dataclasses.replace(QUICK, answer=1.0)
    with InProcessGrid(at_nodes(apps)) as grid:
        coordinate(grid, coordinator(PLAN, folder=tmp_path / "run", timeouts=timeouts, roster=roster_of(4)))
    record = Record.load(tmp_path / "run")
    assert record.name == "FedAvg(Mean), real clients"
    assert record.config["engine"] == "flower"
    assert record.summary.status == "finished"
    assert record.summary.final == FinalMetrics()
    assert [about.reported for about in record.summary.clients.values()] == [15, 15, 15, 15]
    assert record.summary.clients[2].name == "clinic-2"
    assert record.summary.detection is None
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "no accuracy was measured" in page
    assert "no answer within 1 s" in page
    assert "wall-clock time" in page
    assert "virtual time" not in page.lower()


def test_a_run_that_failed_or_was_stopped_leaves_a_record_that_says_why(tmp_path):
    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    made = coordinator(PLAN, folder=tmp_path / "run", observers=[stop])
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid, pytest.raises(KeyboardInterrupt):
        coordinate(grid, made)
    assert Record.load(tmp_path / "run").summary.status == "stopped"
    assert told(tmp_path / "run" / "audit.jsonl")[-1] == ("ended", None, 2, "stopped", None)
    assert main(["flower", "watch", str(tmp_path / "run")]) == 1
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid:
        coordinate(grid, dataclasses.replace(made, observers=()))
    record = Record.load(tmp_path / "run")
    assert record.summary.status == "finished"
    assert main(["flower", "watch", str(tmp_path / "run")]) == 0
    assert [line.step for line in record.history] == [0, 1, 2, 3]


@pytest.mark.slow
def test_who_never_enrolled_is_named_and_a_run_that_cannot_begin_leaves_no_record(tmp_path, capsys):
    nodes = at_nodes(honest(PLAN, tmp_path))
    del nodes[103]
    timeouts = dataclasses.replace(QUICK, enrolment=3.0)
    made = coordinator(PLAN, folder=tmp_path / "run", timeouts=timeouts)
    with InProcessGrid(nodes) as grid, pytest.raises(InfeasibleError, match=r"Missing: 3 \(clinic-3\)"):
        coordinate(grid, made)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["status.json"]
    assert main(["flower", "watch", str(tmp_path / "run")]) == 1, "and it ends"
    assert "The run did not begin: 3 of the 4 clients that are needed enrolled within 3 s." in capsys.readouterr().out
    with InProcessGrid(nodes) as grid:
        coordinate(grid, dataclasses.replace(made, timeouts=dataclasses.replace(timeouts, least=3)))
    assert Record.load(tmp_path / "run").summary.missing == {3: "clinic-3"}
    before = (tmp_path / "run" / "summary.json").read_bytes()
    with InProcessGrid(nodes) as grid, pytest.raises(InfeasibleError, match=r"Missing: 3 \(clinic-3\)"):
        coordinate(grid, made)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before, "nor does it take one away"
    assert "of the 4 clients that are needed" in live.status(tmp_path / "run").why
    assert main(["report", str(tmp_path / "run")]) == 0


def test_a_killed_server_is_started_again_and_not_simulated(tmp_path):
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid, pytest.raises(Killed):
        coordinate(grid, coordinator(PLAN, folder=tmp_path / "run", observers=[killed_at(2)]))
    for name in ("seal.json", "summary.json"):
        (tmp_path / "run" / name).unlink()  # what SIGKILL leaves
    with pytest.raises(FileNotFoundError, match=r"To go on, start its server again, with this folder\."):
        Record.load(tmp_path / "run")


# --- the audit trail


def test_every_line_says_who_when_at_which_version_why_and_by_which_figure(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl", lambda: 7.25, lambda i: {0: "Lyon", 1: "Basel"}.get(i, ""))
    audit.note(Note("enrolled", 1, "reports 60 examples"))
    audit(progress(0, invalid={4: "reports -1 examples"}))
    verdicts = {
        0: Verdict(True, 1.0, 0.9),
        1: Verdict(False, 0.0, -0.25, "turned away"),
        2: Verdict(True, 0, waits=True),
    }
    audit(progress(1, verdicts, lost={3: "silent"}, version=5))
    audit(progress(2, {1: Verdict(False, 0.0, float("nan"), "for good", final=True)}, invalid={0: 'a\n"b"'}))
    audit(progress(3, {1: Verdict(False, 0.0, 0.1, "for good", final=True)}))
    audit.end("finished")
    assert told(tmp_path / "audit.jsonl") == [
        ("enrolled", 1, 0, "reports 60 examples", None),
        ("begun", None, 0, "", None),
        ("not enrolled", 4, 0, "reports -1 examples", None),
        ("lost", 3, 1, "silent", None),
        ("filtered", 1, 1, "turned away", -0.25),
        ("invalid", 0, 2, 'a\n"b"', None),
        ("excluded", 1, 2, "for good", None),
        ("ended", None, 3, "finished", None),
    ]
    lines = read(tmp_path / "audit.jsonl")
    assert (lines[4].version, lines[4].name, lines[4].seconds) == (5, "Basel", 7.25)
    assert lines[0].seconds == 0.0, "it was noted before the clock of the run began"
    assert lines[4].time.endswith("Z")


def test_what_is_done_again_after_a_kill_is_not_written_twice_and_what_differs_is(tmp_path):
    path = tmp_path / "audit.jsonl"
    rejected = {0: Verdict(False, 0.0, 0.5, "far away")}

    def begun(resumed):
        audit = Audit(path, lambda: 0.0, str, resumed=resumed)
        audit.note(Note("enrolled", 0, "reports 5 examples"))
        return audit

    first = begun(False)
    for step in range(3):
        first(progress(step, rejected if step else None))
    first.note(Note("suspended", 0, "for 3600 s"))
    with path.open("ab") as file:
        file.write(b'{"time": "2026-11-21T20:1')  # killed while it wrote
    second = begun(True)
    second(progress(1))
    second(progress(2, rejected))
    second.note(Note("suspended", 0, "for 3600 s"))
    second(progress(3, rejected))
    second(progress(3, lost={0: "silent"}))
    second(progress(3, lost={0: "silent"}))
    third = begun(True)
    third(progress(1))
    third(progress(2, {0: Verdict(False, 0.0, 0.75, "far away")}))
    assert told(path) == [
        ("enrolled", 0, 0, "reports 5 examples", None),
        ("begun", None, 0, "", None),
        ("filtered", 0, 1, "far away", 0.5),
        ("filtered", 0, 2, "far away", 0.5),
        ("suspended", 0, 2, "for 3600 s", None),
        ("resumed", None, 1, "goes on after step 1", None),
        ("suspended", 0, 2, "for 3600 s", None),
        ("filtered", 0, 3, "far away", 0.5),
        ("lost", 0, 3, "silent", None),
        ("lost", 0, 3, "silent", None),
        ("resumed", None, 1, "goes on after step 1", None),
        ("filtered", 0, 2, "far away", 0.75),
    ]


def test_lines_stand_in_the_order_of_their_time_also_of_those_who_came_before_the_run_began(tmp_path):
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid:
        coordinate(grid, coordinator(PLAN, folder=tmp_path / "run"))
    lines = read(tmp_path / "run" / "audit.jsonl")
    steps = ["recorded"] * PLAN.until.steps
    assert [line.event for line in lines] == [*["enrolled"] * 4, "begun", "recorded", "accepted", *steps, "ended"]
    for figure in ("time", "seconds"):
        assert [getattr(line, figure) for line in lines] == sorted(getattr(line, figure) for line in lines)
    assert {line.seconds for line in lines[:4]} == {0.0}


def test_a_killed_run_has_one_line_for_each_thing_that_happened(tmp_path):
    plan = dataclasses.replace(ATTACKED, until=phalanx.Until(4))
    for observers in ([killed_at(2)], []):
        apps = honest(plan, tmp_path / "memory")
        made = coordinator(plan, folder=tmp_path / "run", observers=observers)
        with InProcessGrid(at_nodes(apps)) as grid:
            try:
                coordinate(grid, made)
            except Killed:
                continue
    events = [line for line in told(tmp_path / "run" / "audit.jsonl") if line[0] == "enrolled"]
    assert sorted(line[1] for line in events) == [0, 1, 2, 3]
    marks = [line[0] for line in told(tmp_path / "run" / "audit.jsonl") if line[1] is None]
    steps = ["recorded"] * 3  # of which the first run did not keep the last in its checkpoint
    assert marks == ["begun", *steps, "ended", "resumed", *steps, "ended"]


def test_strikes_suspension_readmission_and_the_roster_are_on_record(tmp_path):
    plan = dataclasses.replace(PLAN, until=phalanx.Until(6))
    roster, file = roster_of(4), tmp_path / "roster.yaml"
    roster.save(file)

    def holds_nan(message, reply, context):
        content = reply.content
        update = codec.encode(torch.full((34,), float("nan")), "float32")
        name = next(iter(content.array_records))
        content[name] = update
        return type(reply)(resigned(message, content, KEYS[1]), reply_to=message)

    apps = honest(plan, tmp_path)
    apps[1] = attacked(apps[1], holds_nan)

    trail = tmp_path / "run" / "audit.jsonl"

    def noted():
        return [(event, client, step) for event, client, step, *_ in told(trail) if event not in OF_NO_STEP]

    def observer(progress):
        if progress.step == 2:
            Roster.load(file).changing(1, term=2).changing(3, revoked=True).save(file)
            patient = time.monotonic() + QUICK.answer
            while ("revoked", 3, 2) not in noted() and time.monotonic() < patient:
                time.sleep(0.01)

    made = coordinator(
        plan, roster=file, folder=tmp_path / "run", observers=[observer], suspension=Suspension(strikes=1)
    )
    with InProcessGrid(at_nodes(apps)) as grid:
        coordinate(grid, made)
    assert noted() == [
        ("invalid", 1, 1),
        ("suspended", 1, 1),
        ("re-admitted", 1, 2),
        ("revoked", 3, 2),
        ("invalid", 1, 3),
        ("suspended", 1, 3),
    ]
    (first, second) = [why for event, *_, why, _ in told(trail) if event == "suspended"]
    assert first == second == "for 3600 s, after 1 strike, the last: update holds 34 NaN of 34 values"
    why = [why for event, *_, why, _ in told(trail) if event == "turned away"]
    assert set(why) <= {"node 103: client 3 (clinic-3) is revoked"}, "asked again who it is, as often as there is time"


def test_the_trail_of_another_run_is_moved_aside_and_never_deleted(tmp_path):
    for _ in range(2):
        audit = Audit(tmp_path / "audit.jsonl", lambda: 0.0, str)
        audit(progress(0))
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == 2
    assert kept[0].startswith("audit-2")


def test_a_trail_that_cannot_be_written_ends_the_run_with_the_next_step(tmp_path):
    audit = Audit(tmp_path / "run" / "audit.jsonl", lambda: 0.0, str)
    audit(progress(0))
    (tmp_path / "run" / "audit.jsonl").unlink()
    (tmp_path / "run").rmdir()
    audit.note(Note("suspended", 0, "for long"))
    with pytest.raises(FileNotFoundError):
        audit(progress(1))


def trail_with_mark(path, steps=4):
    audit = Audit(path, lambda: 0.0, str)
    for step in range(steps):
        audit(progress(step, lost={0: f"silent in step {step}"} if step else ()))
    return split(path.read_bytes()), audit.mark


def test_a_trail_that_was_changed_is_not_gone_on_with(tmp_path):
    path = tmp_path / "audit.jsonl"
    lines, mark = trail_with_mark(path)
    assert len(lines) == mark.lines == 4
    changed = lines[1].replace(b"silent", b"hidden")
    assert changed != lines[1]
    for text, why in (
        ([lines[0], *lines[2:]], "line 2 does not follow line 1"),
        ([lines[0], changed, *lines[2:]], "line 3 does not follow line 2"),
        ([lines[1], lines[0], *lines[2:]], "line 1 is not the first line that was written"),
        ([*lines[:2], lines[1], *lines[2:]], "line 3 does not follow line 2"),
        ([b'{"event":"begun"}\n', *lines], "line 2 does not follow line 1"),
        (lines[:3], "it ends after line 3, and had 4 lines or more"),
        ([*lines[:3], lines[3].replace(b"silent", b"hidden")], "its first 4 lines are not those of the checkpoint"),
        ([], "it ends after line 0, and had 4 lines or more"),
    ):
        path.write_bytes(b"".join(text))
        with pytest.raises(ValueError, match=f"{why}.* Restore the file.*flower up --again"):
            Audit(path, lambda: 0.0, str, resumed=True, reached=mark)
        assert path.read_bytes() == b"".join(text), "a refusal changes nothing"
    path.write_bytes(b"".join(lines) + b'{"time": "2026')  # killed while it wrote
    again = Audit(path, lambda: 0.0, str, resumed=True, reached=mark)
    again(progress(3))
    again.end("finished")
    after = split(path.read_bytes())
    assert after[:4] == lines
    assert [entry.event for entry in read(path)[4:]] == ["resumed", "ended"]
    assert again.mark == chain_of(after).mark
    assert not [*breaks(after)]


def test_a_trail_from_before_there_was_a_chain_is_gone_on_with(tmp_path):
    path = tmp_path / "audit.jsonl"
    lines, _ = trail_with_mark(path)
    old = [re.sub(rb',"before":"[0-9a-f]*"', b"", line) for line in lines]
    assert not any(b"before" in line for line in old)
    path.write_bytes(b"".join(old))
    again = Audit(path, lambda: 0.0, str, resumed=True)
    again(progress(3))
    after = split(path.read_bytes())
    assert after[:4] == old
    assert not [*breaks(after)]
    assert [number for number, _ in breaks([*after[:2], *after[3:]])] == [4]


def test_nothing_follows_the_end_of_a_trail(tmp_path):
    path = tmp_path / "audit.jsonl"
    audit = Audit(path, lambda: 0.0, str)
    audit(progress(0))
    audit.end("finished")
    audit.note(Note("turned away", None, "too late"))
    audit.end("finished")
    assert [entry.event for entry in read(path)] == ["begun", "ended"]


def test_the_folder_of_a_coordinator_is_sealed_and_a_changed_one_does_not_go_on(tmp_path):
    folder, plan = tmp_path / "run", dataclasses.replace(ATTACKED, until=phalanx.Until(4))

    def carried_out(*observers):
        with InProcessGrid(at_nodes(honest(plan, tmp_path / "memory"))) as grid:
            coordinate(grid, coordinator(plan, folder=folder, observers=observers))

    with pytest.raises(Killed):
        carried_out(killed_at(2))
    assert examine(folder).sentence == ""
    (folder / SEAL).unlink()  # which a server that is killed has not
    path = folder / "audit.jsonl"
    whole = path.read_bytes()
    lines = split(whole)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(ValueError, match=r"audit\.jsonl is not the audit trail that this run wrote: line 3"):
        carried_out()
    path.write_bytes(whole)
    carried_out()
    found = verify(folder)
    assert (found.findings, found.status) == ((), 2), "a coordinator without a key has no witnesses"
    assert {"audit.jsonl", "asked.jsonl", "model.safetensors"} <= {*members(folder)}
    lines = split(path.read_bytes())
    path.write_bytes(b"".join(lines[:-1]))
    assert [(f.kind, f.file, f.line) for f in verify(folder).findings] == [("missing", "audit.jsonl", len(lines))]


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_trail_that_cannot_be_ended_keeps_no_summary_from_being_written(tmp_path, monkeypatch, caplog):
    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Audit, "end", full)
    made = coordinator(PLAN, folder=tmp_path / "run", observers=[stop])
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid, pytest.raises(KeyboardInterrupt) as stopped:
        coordinate(grid, made)
    assert "How the run ended is not all on record: [Errno 28] No space left" in stopped.value.__notes__[0]
    assert "[Errno 28] No space left" in caplog.text
    assert Record.load(tmp_path / "run").summary.status == "stopped"
    with InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid, pytest.raises(OSError, match="No space left"):
        coordinate(grid, dataclasses.replace(made, observers=()))
    assert Record.load(tmp_path / "run").summary.status == "finished"


def test_a_changed_trail_is_not_read(tmp_path):
    (tmp_path / "audit.jsonl").write_text('{"event": "begun"}\n')
    with pytest.raises(ValueError, match=r"line 1: time is missing.* move it away, and keep it"):
        read(tmp_path / "audit.jsonl")


def test_a_deployment_claims_no_epsilon():
    """Noise from the streams of a seed that the server knows hides nothing from it."""
    known = Population(clients={0: ClientRecord(epsilon=3.0, size=4)})
    found = population([], {0: 4}, roster_of(1), Guard(), known, tasks={0: 2}).clients[0]
    assert (found.epsilon, found.size, found.tasks) == (None, 4, 2)


@pytest.mark.filterwarnings("default")
def test_a_warning_that_comes_while_a_line_is_written_is_the_next_line(tmp_path, monkeypatch):
    audit, told = Audit(tmp_path / "audit.jsonl", lambda: 0.0, str), []
    audit(progress(0))
    synced = os.fsync

    def slow(number):
        if not told:
            told.append("the disk is slow")
            warnings.warn(told[0], stacklevel=1)
        return synced(number)

    monkeypatch.setattr(os, "fsync", slow)
    with logged_warnings() as taken:
        taken.tell(audit.warned)
        audit.note(Note("suspended", 1, "misses"))
        warnings.warn("and another", stacklevel=1)
    audit.end("finished")
    events = [(entry.event, entry.why) for entry in read(tmp_path / "audit.jsonl")]
    assert events == [
        ("begun", ""), ("suspended", "misses"), ("warning", "the disk is slow"), ("warning", "and another"),
        ("ended", "finished"),
    ]  # fmt: skip
    assert [*breaks(split((tmp_path / "audit.jsonl").read_bytes()))] == []
