"""The evidence of a deployment: what its audit trail says of updates, history and models, and what `verify` finds."""

import dataclasses
import hashlib
import json
import os
import shutil
import time

import pytest
import safetensors.torch
from flwr.app import Message

import phalanx
from flower.federations import (
    KEYS,
    MINE,
    SMALL,
    at_nodes,
    attacked,
    coordinator,
    honest,
    named,
    resigned,
    unwitnessed,
)
from flower.test_record import Killed, killed_at
from phalanx.aggregators import Median
from phalanx.algorithms import ClusteredFL, FedAvg
from phalanx.cli.main import main
from phalanx.flower import InProcessGrid, codec, coordinate, live, register
from phalanx.flower.audit import read
from phalanx.flower.identity import public_text
from phalanx.models import MLP
from phalanx.reading import contents
from phalanx.runs import evidenced
from phalanx.runs.evidence import StepEvidence
from phalanx.runs.models import Served, others
from phalanx.runs.replay import UpdateReplay
from phalanx.runs.seal import HashChain, chain_of, file_hash, members, seal, split
from phalanx.runs.statements import fingerprint_of, statement
from phalanx.runs.updates import read_kept
from phalanx.runs.verification import verify
from phalanx.weighting import Ignore

PLAN = dataclasses.replace(
    SMALL, clients=3, algorithm=FedAvg(Median(), Ignore()), model=MLP((4,)), until=phalanx.Until(3)
)


def trained(folder, *, plan=PLAN, apps=None, **options):
    options = {"folder": folder / "run", "roster": named(3), "key": KEYS[11], **options}
    with InProcessGrid(at_nodes(apps or honest(plan, folder, coordinator=MINE))) as grid:
        return coordinate(grid, coordinator(plan, **options))


def recorded(folder):
    return [line.evidence for line in read(folder / "run" / "audit.jsonl") if line.event == "recorded"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, what its clients sent, and its states."""
    folder, sent, states = tmp_path_factory.mktemp("evidence"), [], []

    def noted(message, reply, context):
        sent.append(codec.fingerprint(reply.content).hex())
        return reply

    apps = {i: attacked(app, noted) for i, app in honest(PLAN, folder, coordinator=MINE).items()}
    trained(folder, apps=apps, observers=[states.append])
    return folder, sent, states


@pytest.fixture
def folder(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "copy")
    return tmp_path / "copy"


def witnesses(folder):
    return [folder / str(i) / "tasks.jsonl" for i in range(3)]


def rewritten(folder, change):
    """Changes entries of the trail, and makes its links and the seal again, as somebody can who owns the folder."""
    path, lines, chain = folder / "run" / "audit.jsonl", [], HashChain()
    for line in split(path.read_bytes()):
        entry = json.loads(line)
        change(entry)
        lines.append(json.dumps({**entry, "before": chain.mark.link}, separators=(",", ":")).encode() + b"\n")
        chain.add(lines[-1])
    path.write_bytes(b"".join(lines))
    seal(folder / "run", {})


def test_each_step_has_the_digests_of_what_clients_signed_and_of_what_was_made_of_it(run):
    folder, sent, states = run
    found = recorded(folder)
    assert len(found) == 4, "the state before the first step, and three steps"
    assert {one.digest for evidence in found for one in evidence.signed.values()} == set(sent)
    for evidence, progress in zip(found, states, strict=True):
        assert evidence.result == hashlib.sha256(progress.state.model.numpy().tobytes()).hexdigest()
        assert (evidence.promise.f, evidence.promise.clients) == (0, 3)
    for evidence, progress in zip(found[1:], states[1:], strict=True):
        assert evidence.algorithm["init_args"]["aggregate"]["class_path"].endswith("Median")
        assert evidence.verdicts == progress.state.verdicts
        assert set(evidence.updates) == set(evidence.signed) == {0, 1, 2}
        assert [one.key for one in evidence.signed.values()] == [public_text(KEYS[i]) for i in range(3)]
    digests = [hashlib.sha256(line).hexdigest() for line in split((folder / "run" / "history.jsonl").read_bytes())]
    assert [evidence.line for evidence in found] == digests
    ended = read(folder / "run" / "audit.jsonl")[-1]
    kept = {"model.json", "model.safetensors", "model.md", "run.json", "summary.json", "asked.jsonl"}
    assert (ended.event, set(ended.evidence.files)) == ("ended", kept)
    assert kept == {*members(folder / "run")} - {"history.jsonl", "audit.jsonl", "witnesses.json"}, (
        "nothing is left out"
    )


def test_a_folder_that_nobody_touched_fits_its_evidence(folder, capsys):
    found = verify(folder / "run", witnesses(folder), MINE)
    assert (found.findings, found.status) == ((), 0)
    assert main(["verify", str(folder / "run")]) == 0
    said = capsys.readouterr().out
    assert "audit.jsonl has the evidence of 4 lines of the history, 6 other files, 9 signatures of 3 clients." in said
    lines = len(read(folder / "run" / "audit.jsonl"))
    assert f"Clients that co-signed audit.jsonl: 3 of 3 up to line {lines}." in said


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("how", ["changed", "missing", "added"])
def test_a_line_of_the_history_that_does_not_fit_is_named_though_the_seal_was_made_again(folder, number, how):
    path = folder / "run" / "history.jsonl"
    lines = split(path.read_bytes())
    changed = lines[number].replace(b'"seconds":', b'"seconds":1')
    new = {"changed": [changed], "missing": [], "added": [lines[number], changed]}[how]
    path.write_bytes(b"".join([*lines[:number], *new, *lines[number + 1 :]]))
    seal(folder / "run", {})
    found = verify(folder / "run")
    (finding,) = found.findings
    assert (finding.file, finding.kind) == ("history.jsonl", how)
    assert finding.line == number + 1 + (how == "added")
    assert found.status == 1


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
@pytest.mark.parametrize("how", ["changed", "missing"])
def test_a_model_that_does_not_fit_is_named_though_the_seal_was_made_again(folder, name, how):
    path = folder / "run" / name
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    seal(folder / "run", {})
    found = verify(folder / "run")
    assert [(finding.file, finding.kind) for finding in found.findings] == [(name, how)]


def test_a_model_that_was_put_in_is_named(folder):
    (folder / "run" / "models").mkdir()
    (folder / "run" / "models" / "1.safetensors").write_bytes(b"x")
    seal(folder / "run", {})
    assert [(f.file, f.kind) for f in verify(folder / "run").findings] == [("models/1.safetensors", "added")]


def test_who_forges_the_evidence_as_well_is_found_by_the_witnesses_up_to_the_last_model(folder):
    model = folder / "run" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"\x01")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()

    def forge(entry):
        if entry["event"] == "ended":
            entry["evidence"]["files"]["model.safetensors"] = digest

    rewritten(folder, forge)
    assert unwitnessed(folder / "run").status == 0, "the folder alone does not show it"
    last = len(read(folder / "run" / "audit.jsonl"))
    for witness in witnesses(folder):
        found = unwitnessed(folder / "run", [witness])
        assert [finding.file for finding in found.findings] == ["audit.jsonl"]
        assert (found.findings[0].kind, found.status) == ("changed", 1)
        assert f"to {last}" in found.findings[0].text


def other(text):
    return ("1" if text[0] == "0" else "0") + text[1:]


FORGED = {
    "digest": other,
    "signature": other,
    "nonce": other,
    "turn": lambda turn: turn + 1,
    "version": lambda version: version + 1,
    "key": lambda key: public_text(KEYS[7]),
}


@pytest.mark.parametrize("field", FORGED)
@pytest.mark.parametrize("client", ["0", "2"])
def test_an_update_that_its_client_has_not_signed_is_named_with_line_step_and_client(folder, field, client):
    def forge(entry):
        if entry["step"] == 2 and entry["event"] == "recorded":
            signed = entry["evidence"]["signed"][client]
            signed[field] = FORGED[field](signed[field])

    rewritten(folder, forge)
    (finding,) = unwitnessed(folder / "run").findings
    lines = read(folder / "run" / "audit.jsonl")
    assert (lines[finding.line - 1].event, finding.step, finding.clients) == ("recorded", 2, (int(client),))
    assert f"holds a signature that the key of client {client} (clinic-{client}) has not made" in finding.text


@pytest.mark.parametrize("field", ["session", "coordinator", "transfer"])
def test_what_all_clients_signed_alike_cannot_be_changed(folder, field):
    def forge(entry):
        if entry["step"] == 1 and entry["event"] == "recorded":
            entry["evidence"][field] = "bfloat16" if field == "transfer" else public_text(KEYS[7])

    rewritten(folder, forge)
    assert [(f.step, f.clients) for f in unwitnessed(folder / "run").findings] == [(1, (0,)), (1, (1,)), (1, (2,))]


def test_signatures_of_two_clients_that_were_swapped_are_both_named(folder):
    def forge(entry):
        if entry["step"] == 1 and entry["event"] == "recorded":
            signed = entry["evidence"]["signed"]
            signed["0"], signed["1"] = signed["1"], signed["0"]

    rewritten(folder, forge)
    assert [finding.clients for finding in unwitnessed(folder / "run").findings] == [(0,), (1,)]


UNFIT = {
    "not signed": "names an update that client 1 (clinic-1) has not signed",
    "no update": "names no update of client 1 (clinic-1), which has signed one",
    "signed before": "holds an answer of client 1 (clinic-1) that was used before",
    "another run": "holds a signature that client 1 (clinic-1) has made in another run",
    "another key": "names another key of client 1 (clinic-1) than before, and no line says that it has a new one",
}


def signed_anew(evidence, client, key):
    found = evidence["signed"][client]
    task = evidence["coordinator"], evidence["session"], bytes.fromhex(found["nonce"]), int(client)
    stated = statement(
        "train", *task, found["version"], found["turn"], evidence["transfer"], bytes.fromhex(found["digest"])
    )
    found |= {"key": public_text(key), "signature": key.sign(stated).hex()}


def forged(how, evidence, first):
    if how == "not signed":
        del evidence["signed"]["1"]
    elif how == "no update":
        del evidence["updates"]["1"]
    elif how == "signed before":
        evidence["signed"]["1"] = first["signed"]["1"]
    elif how == "another run":
        evidence["session"] = "0" * 32
        for client in ("0", "1", "2"):
            signed_anew(evidence, client, KEYS[int(client)])
    else:
        signed_anew(evidence, "1", KEYS[7])


@pytest.mark.parametrize("how", UNFIT)
@pytest.mark.parametrize("step", [2, 3])
def test_an_update_that_a_valid_signature_does_not_cover_is_named(folder, how, step):
    first = {}

    def forge(entry):
        if entry["event"] == "recorded":
            if entry["step"] == 1:
                first.update(entry["evidence"])
            if entry["step"] == step:
                entry["evidence"]["updates"]["1"] = "1" * 64
                forged(how, entry["evidence"], first)

    rewritten(folder, forge)
    findings = [finding for finding in unwitnessed(folder / "run").findings if finding.clients == (1,)]
    assert [(UNFIT[how] in finding.text, finding.step) for finding in findings] == [(True, step)]


@pytest.mark.parametrize("event", ["new key", "resumed"])
def test_a_new_key_is_allowed_once_after_the_line_that_says_so(folder, event):
    def forge(entry):
        if entry["event"] == "recorded" and entry["step"] >= 2:
            signed_anew(entry["evidence"], "1", KEYS[7])
        elif entry["event"] == "enrolled" and entry["client"] == 1:
            entry |= {"event": event}

    rewritten(folder, forge)
    found = unwitnessed(folder / "run")
    assert found.findings == ()
    assert "More than one key, to be compared with the roster: client 1 (clinic-1)." in found.evidence

    def back(entry):
        if entry["event"] == "recorded" and entry["step"] == 3:
            signed_anew(entry["evidence"], "1", KEYS[1])

    rewritten(folder, back)
    (finding,) = unwitnessed(folder / "run").findings
    assert (finding.step, finding.clients) == (3, (1,))
    assert UNFIT["another key"] in finding.text


def test_a_trail_without_evidence_is_said(folder, with_updates, tmp_path):
    rewritten(folder, lambda entry: entry.pop("evidence", None))
    assert unwitnessed(folder / "run").evidence == (
        "audit.jsonl has no evidence: nothing shows who sent which update, and what was made of it.",
    )
    shutil.copytree(with_updates, tmp_path / "kept")
    rewritten(tmp_path / "kept", lambda entry: entry.pop("evidence", None))
    assert {finding.kind for finding in unwitnessed(tmp_path / "kept" / "run").findings} == {"added"}


def test_lines_without_evidence_and_updates_that_were_not_kept_are_said(folder):
    def forge(entry):
        if entry["event"] == "recorded" and entry["step"] == 2:
            del entry["evidence"]

    rewritten(folder, forge)
    assert unwitnessed(folder / "run").evidence[1:] == (
        "Without evidence: 1 line of the history.",
        "Updates that were not kept cannot be compared with what clients signed.",
    )


@pytest.mark.parametrize("number", [10**9, 10**30, -1])
def test_an_invented_number_of_lines_is_named_at_once(folder, number):
    def forge(entry):
        if entry["event"] == "ended":
            entry["evidence"]["history"][0] = number

    rewritten(folder, forge)
    begun = time.monotonic()
    finding, *ended = unwitnessed(folder / "run").findings
    assert ("in the evidence" if number == 10**9 else "holds no evidence") in finding.text or number == 10**30
    assert [one.what.partition(" that ")[0] for one in ended] == (["has no line"] if number == -1 else [])
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("event", ["suspicious", "resumed", "ended"])
def test_a_line_that_was_added_after_the_end_is_named(folder, event):
    """No client has seen it, and none has to: a run that has finished has no further events."""
    path = folder / "run" / "audit.jsonl"
    lines = split(path.read_bytes())
    entry = {**json.loads(lines[-1]), "event": event, "client": 1, "before": chain_of(lines).mark.link}
    path.write_bytes(b"".join([*lines, json.dumps(entry).encode() + b"\n"]))
    seal(folder / "run", {})
    (finding,) = verify(folder / "run").findings
    assert (finding.kind, finding.line, finding.clients) == ("added", len(lines) + 1, (1,))


def test_evidence_is_found_however_its_line_is_written(folder):
    path, chain, lines = folder / "run" / "audit.jsonl", HashChain(), []
    for line in split(path.read_bytes()):
        entry = {**json.loads(line), "before": chain.mark.link}
        lines.append(json.dumps(entry, separators=(" , ", " : ")).replace('"evi', '"\\u0065vi').encode() + b"\n")
        chain.add(lines[-1])
    path.write_bytes(b"".join(lines))
    seal(folder / "run", {})
    assert "has the evidence of 4 lines" in unwitnessed(folder / "run").evidence[0]
    (folder / "run" / "model.safetensors").write_bytes(b"x")
    seal(folder / "run", {})
    assert [finding.file for finding in unwitnessed(folder / "run").findings] == ["model.safetensors"]


@pytest.mark.parametrize("name", ["history.jsonl", "model.safetensors", "model.json", "updates/00000001.safetensors"])
@pytest.mark.parametrize("what", ["a pipe", "a folder"])
@pytest.mark.parametrize("sealed", [True, False])
def test_what_is_no_file_is_named_and_not_waited_for(with_updates, tmp_path, name, what, sealed):
    shutil.copytree(with_updates, tmp_path / "copy")
    path = tmp_path / "copy" / "run" / name
    path.unlink()
    os.mkfifo(path) if what == "a pipe" else path.mkdir()
    if not sealed:
        (tmp_path / "copy" / "run" / "seal.json").unlink()
    found = verify(tmp_path / "copy" / "run")
    assert name in {finding.file for finding in found.findings}
    assert found.status == 1
    with pytest.raises(ValueError, match="is no file"):
        contents(path, 100)
    with pytest.raises(ValueError, match="is no file"):
        file_hash(path)


def test_a_history_above_its_ceiling_is_said_to_be_one(folder, monkeypatch):
    monkeypatch.setattr(evidenced, "lines_of", lambda path: contents(path, 10_000_000 if "audit" in path.name else 9))
    (finding,) = verify(folder / "run").findings
    assert "is larger than 9 bytes" in finding.text


def test_evidence_of_another_form_is_named(folder):
    def forge(entry):
        if entry["step"] == 1 and entry["event"] == "recorded":
            entry["evidence"] = {"history": "x"}

    rewritten(folder, forge)
    findings = unwitnessed(folder / "run").findings
    assert ["holds no evidence" in finding.text for finding in findings] == [True]


@pytest.mark.parametrize("steps", [1, 2])
def test_after_a_kill_the_evidence_of_what_was_done_again_counts(tmp_path, steps):
    with pytest.raises(Killed):
        trained(tmp_path, observers=[killed_at(steps)])
    trained(tmp_path)
    lines = [line for line in read(tmp_path / "run" / "audit.jsonl") if line.event in ("recorded", "resumed")]
    assert len([line for line in lines if line.step == steps and line.event == "recorded"]) == 2, (
        "the step was done twice"
    )
    found = verify(tmp_path / "run", witnesses(tmp_path), MINE)
    assert (found.findings, found.status) == ((), 0)


def test_after_a_second_kill_before_anything_was_done_again_nothing_is_missing(tmp_path):
    """The evidence of the step that is to be done again speaks of a line that the history no longer has."""
    for step in (3, 2):
        with pytest.raises(Killed):
            trained(tmp_path, observers=[killed_at(step)])
    lines = read(tmp_path / "run" / "audit.jsonl")
    assert [line.step for line in lines if line.event in ("recorded", "resumed")][-2:] == [3, 2]
    assert len(split((tmp_path / "run" / "history.jsonl").read_bytes())) == 3
    assert verify(tmp_path / "run").findings == ()


def test_the_evidence_of_several_models_changes_with_each_of_them(tmp_path):
    """The models of clusters are in it, and not only the global one."""
    plan = dataclasses.replace(PLAN, algorithm=ClusteredFL(), clients=3)
    states = []
    trained(tmp_path, plan=plan, observers=[lambda progress: states.append(progress.state)])
    found = recorded(tmp_path)
    assert [evidence.result for evidence in found] == [
        hashlib.sha256(state.model.numpy().tobytes()).hexdigest() for state in states
    ]
    model, own = states[0].model, states[0].model + 1
    alone = Served(model, [(0, {0: model}), (1, {0: model})])
    assert others(alone) == ""
    with_own = [others(Served(model, [(0, {0: model}), (client, {0: model, 1: own})])) for client in (1, 2)]
    assert len({"", *with_own}) == 3
    assert others(Served(model, [(0, {0: model}), (1, {0: model, 1: own * 2})])) not in ("", *with_own)


def test_a_client_that_does_not_co_sign_the_end_holds_up_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(register, "END", 0.5)
    apps, notices = honest(PLAN, tmp_path, coordinator=MINE), []

    def silent(message, reply, context):
        if message.content["phalanx"]["client"] != 1:
            return reply
        time.sleep(0.3)
        notices.append(live.status(tmp_path / "run").notice)
        return None

    apps[1] = attacked(apps[1], silent, kind="query")
    begun = time.monotonic()
    trained(tmp_path, apps=apps)
    assert time.monotonic() - begun < 15
    assert notices == ["The steps are done. Waits for clients to sign the end of the audit trail, 0.5 s at most"]
    assert live.status(tmp_path / "run").notice == "", "it is over"
    last = len(read(tmp_path / "run" / "audit.jsonl"))
    held = json.loads((tmp_path / "run" / "witnesses.json").read_bytes())["clients"]
    assert [int(held[i]["checkpoint"].split("\n")[1]) == last for i in "012"] == [True, False, True]
    assert verify(tmp_path / "run", witnesses(tmp_path), MINE).status == 0


@pytest.mark.parametrize("how", ["under the key of another", "without a signature"])
def test_who_does_not_sign_its_answer_at_the_end_is_no_witness_of_it(how, tmp_path):
    apps = honest(PLAN, tmp_path, coordinator=MINE)

    def change(message, reply, context):
        words = reply.content["phalanx"]
        if message.content["phalanx"]["client"] != 1:
            return reply
        if how == "without a signature":
            words["signature"] = bytes(64)
            return reply
        words["key"] = KEYS[2].public_key().public_bytes_raw()
        return Message(resigned(message, reply.content, KEYS[1]), reply_to=message)

    apps[1] = attacked(apps[1], change, kind="query")
    trained(tmp_path, apps=apps)
    last = len(read(tmp_path / "run" / "audit.jsonl"))
    held = json.loads((tmp_path / "run" / "witnesses.json").read_bytes())["clients"]
    assert [int(held[i]["checkpoint"].split("\n")[1]) == last for i in "012"] == [True, False, True]


def test_every_field_of_the_evidence_is_written(run):
    folder = run[0]
    names = {
        name
        for evidence in recorded(folder)
        for name, value in json.loads(
            json.dumps({f: getattr(evidence, f) not in ("", {}, None) for f in StepEvidence.__struct_fields__})
        ).items()
        if value
    }
    assert names == {*StepEvidence.__struct_fields__} - {"files", "others", "kept"}


# --- kept updates


def kept_run(folder, transfer="float32"):
    trained(folder, keep_updates=True, transfer=transfer)
    return folder / "run"


@pytest.fixture(scope="module")
def with_updates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("with-updates")
    kept_run(folder)
    return folder


@pytest.mark.parametrize("transfer", ["float32", "bfloat16", "int8"])
def test_kept_updates_are_those_that_clients_signed_and_replay_to_the_same_bytes(transfer, tmp_path, capsys):
    run = kept_run(tmp_path, transfer)
    assert main(["verify", str(run)]) == 0
    assert "Evidence: 9 kept updates compared with audit.jsonl." in capsys.readouterr().out
    steps = [*UpdateReplay(run, PLAN.algorithm, secret=True).steps()]
    assert [step.same for step in steps] == [True] * 3
    for step in (1, 2, 3):
        kept = read_kept(run, step)
        for client, signed in recorded(tmp_path)[step].signed.items():
            assert fingerprint_of(kept.fingerprint_parts(client)).hex() == signed.digest
    assert all(path.stat().st_mode & 0o077 == 0 for path in (run / "updates").iterdir()), "only for the owner"


def test_a_kept_update_that_is_another_one_is_named_with_its_client(with_updates, tmp_path):
    shutil.copytree(with_updates, tmp_path / "copy")
    run = tmp_path / "copy" / "run"
    path = run / "updates" / "00000002.safetensors"
    original = path.read_bytes()
    tensors = safetensors.torch.load(original)
    with safetensors.safe_open(path, "pt") as opened:
        about = opened.metadata()
    for client in ("0", "1", "2"):
        changed = {**tensors, client: -tensors[client]}
        path.write_bytes(safetensors.torch.save(changed, about))
        seal(run, {})
        (finding,) = verify(run).findings
        assert (finding.file, finding.step, finding.clients) == ("updates/00000002.safetensors", 2, (int(client),))
    path.write_bytes(safetensors.torch.save({**tensors, "losses": tensors["losses"] + 1}, about))
    seal(run, {})
    assert [finding.text for finding in verify(run).findings] == ["updates/00000002.safetensors was changed (step 2)"]
    path.unlink()
    seal(run, {})
    assert [finding.text for finding in verify(run).findings] == ["updates/00000002.safetensors is missing (step 2)"]
    path.write_bytes(original)
    (run / "updates" / "00000009.safetensors").write_bytes(original)
    seal(run, {})
    assert [finding.kind for finding in verify(run).findings] == ["added"]


def test_a_kept_update_is_compared_with_what_the_algorithm_got_and_not_only_with_what_was_signed(
    with_updates, tmp_path
):
    shutil.copytree(with_updates, tmp_path / "copy")

    def forge(entry):
        if entry["event"] == "recorded" and entry["step"] == 2:
            entry["evidence"]["updates"]["1"] = "1" * 64

    rewritten(tmp_path / "copy", forge)
    (finding,) = unwitnessed(tmp_path / "copy" / "run").findings
    assert (finding.file, finding.step, finding.clients) == ("updates/00000002.safetensors", 2, (1,))


@pytest.mark.parametrize("field", ["result", "updates"])
def test_a_replay_compares_each_step_with_the_trail(with_updates, tmp_path, field):
    shutil.copytree(with_updates, tmp_path / "copy")

    def forge(entry):
        if entry["event"] == "recorded" and entry["step"] == 2:
            evidence = entry["evidence"]
            evidence[field] = "1" * 64 if field == "result" else {**evidence[field], "1": "1" * 64}

    rewritten(tmp_path / "copy", forge)
    replay = UpdateReplay(tmp_path / "copy" / "run", PLAN.algorithm, secret=True)
    assert [step.same for step in replay.steps()] == [True, False, True]
    assert "audit.jsonl; after the last step, model.safetensors" in replay.compared


def test_without_the_option_nothing_is_kept(run):
    assert not (run[0] / "run" / "updates").exists()
