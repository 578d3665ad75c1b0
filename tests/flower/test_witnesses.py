"""Clients as witnesses of the audit trail: what they take, and what `phalanx verify` finds by what they keep."""

import dataclasses
import json
import shutil
import sys
import time

import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

import phalanx
from flower.federations import (
    FIRST_NODE,
    KEYS,
    MINE,
    QUICK,
    SMALL,
    at_nodes,
    attacked,
    coordinator,
    honest,
    named,
    resigned,
    roster_of,
    unwitnessed,
)
from flower.test_record import Killed, killed_at
from phalanx.algorithms import FedAvg
from phalanx.cli.main import main
from phalanx.engine import LoopSettings
from phalanx.flower import FlowerTransport, InProcessGrid, MalformedError, Suspension, codec, coordinate
from phalanx.flower.audit import read
from phalanx.flower.codec import COSIGNATURE, HEAD, VECTOR, ShownHead, TaskMessage
from phalanx.flower.gate import ALTERED_TRAIL, AlteredTrailError, reason_of
from phalanx.flower.identity import Roster, public_bytes, public_text
from phalanx.flower.register import Register
from phalanx.flower.seen import SeenTasks
from phalanx.models import MLP
from phalanx.runs import evidenced
from phalanx.runs.federation import Federation
from phalanx.runs.seal import HashChain, seal, split
from phalanx.runs.transparency import MerkleTree, TreeHead, cosign, open_note, public_key, sign_note
from phalanx.runs.verification import verify
from phalanx.runs.witnesses import Witness, as_json

PLAN = dataclasses.replace(SMALL, clients=3, algorithm=FedAvg(), model=MLP((4,)), until=phalanx.Until(4))
D = Federation(PLAN).start.numel()


def trained(folder, apps, **options):
    """A run whose coordinator has a key."""

    options = {"folder": folder / "run", "roster": named(3), "key": KEYS[11], **options}
    with InProcessGrid(at_nodes(apps)) as grid:
        return coordinate(grid, coordinator(PLAN, **options))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The folder of a run, and of its clients, one of which sends NaN: each step has a line in the trail."""
    folder = tmp_path_factory.mktemp("original")
    apps = honest(PLAN, folder, coordinator=MINE)

    def spoil(message, reply, context):
        reply.content[VECTOR] = codec.encode(torch.full((D,), torch.nan))
        return Message(resigned(message, reply.content, KEYS[2]), reply_to=message)

    apps[2] = attacked(apps[2], spoil)
    trained(folder, apps, suspension=Suspension(strikes=100))
    return folder


@pytest.fixture
def folder(original, tmp_path):
    shutil.copytree(original, tmp_path / "copy")
    return tmp_path / "copy"


def witnesses(folder):
    return [folder / str(i) / "tasks.jsonl" for i in range(3)]


def sizes(path):
    """The sizes of the heads that a client holds."""
    return [int(seen["checkpoint"].split("\n")[1]) for line in path.read_bytes().splitlines()
            if (seen := json.loads(line))["checkpoint"]]  # fmt: skip


def rewritten(folder, change):
    """Rewrites the trail, its links and the seal, as somebody can who owns the folder."""
    path = folder / "run" / "audit.jsonl"
    lines, chain = [], HashChain()
    for line in change(split(path.read_bytes())):
        entry = json.loads(line)
        entry["before"] = chain.mark.link
        lines.append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        chain.add(lines[-1])
    path.write_bytes(b"".join(lines))
    seal(folder / "run", {})


def test_a_trail_that_clients_have_seen_is_verified_by_what_they_keep(folder, capsys):
    lines = read(folder / "run" / "audit.jsonl")
    assert lines[3].why == f"run {json.loads(witnesses(folder)[0].read_bytes().splitlines()[-1])['session']}"
    for path in witnesses(folder):
        assert len(held := sizes(path)) == 5
        assert held == sorted(set(held)), "each round has seen more of it"
        assert held[-1] == len(lines), "and all have seen its end"
    files = [*map(str, witnesses(folder)), str(folder / "run" / "witnesses.json")]
    command = ["verify", str(folder / "run"), "--coordinator", MINE]
    assert main([*command, *(word for file in files for word in ("--witness", file))]) == 0
    said = capsys.readouterr().out
    assert main([*command, "--witness", *files]) == 0
    assert capsys.readouterr().out == said
    assert main([*command, "--witness", *files[:2], "--witness", *files[2:]]) == 0
    assert capsys.readouterr().out == said
    assert (
        f"holds 5 checkpoints of this folder, up to line {sizes(witnesses(folder)[1])[-1]}, signed by {MINE}." in said
    )
    assert "Integrity: intact" in said
    assert set(json.loads((folder / "run" / "witnesses.json").read_bytes())["clients"]) == {"0", "1", "2"}


def test_every_line_that_is_altered_is_named_though_chain_and_seal_were_made_again(folder):
    known, path = sizes(witnesses(folder)[0]), folder / "run" / "audit.jsonl"
    original = path.read_bytes()
    for number in range(1, known[-1] + 1):

        def alter(lines, number=number):
            entry = json.loads(lines[number - 1])
            entry["why"] = f"{entry['why']} another"
            return [*lines[: number - 1], json.dumps(entry).encode(), *lines[number:]]

        rewritten(folder, alter)
        assert unwitnessed(folder / "run").status == (number == 4), "the folder alone does not show it"
        if number == 4:  # it names the run
            found = verify(folder / "run", [witnesses(folder)[0]])
            assert ("names another run than the one that clients have signed", 4) in {
                (f.what, f.line) for f in found.findings
            }
            assert (found.integrity, found.witnessed, found.status) == ("no", False, 1)
            assert "the trail here is not the one that it saw" in found.witnesses[0]
            path.write_bytes(original)
            continue
        found = unwitnessed(folder / "run", [witnesses(folder)[0]])
        (finding,) = found.findings
        last = next(size for size in known if size >= number)
        first = max((size for size in known if size < number), default=0) + 1
        assert (finding.file, finding.kind, finding.line) == ("audit.jsonl", "changed", first)
        assert f"to {last}: one or more" in finding.text or (first == last and "is not the one" in finding.text)
        assert found.integrity == "no"
        path.write_bytes(original)
    assert last == known[-1]


def test_a_tail_that_was_cut_is_missing(folder):
    known = sizes(witnesses(folder)[0])
    rewritten(folder, lambda lines: lines[: known[-1] - 1])
    (itself,) = unwitnessed(folder / "run").findings
    assert itself.what == "has no line that says that the run has ended, and the folder is sealed"
    found = unwitnessed(folder / "run", witnesses(folder))
    assert {(f.kind, f.line) for f in found.findings} == {("missing", None), ("missing", known[-2] + 1)}
    assert f"line {known[-2] + 1} to {known[-1]}: 1 missing" in found.findings[1].text
    assert (found.integrity, found.completeness, found.status) == ("yes", "no", 1)


def test_a_break_of_the_chain_in_the_stretch_is_named(folder):
    path, known = folder / "run" / "audit.jsonl", sizes(witnesses(folder)[0])
    lines = split(path.read_bytes())
    lines[known[0]] = lines[known[0]].replace(b'"event":"', b'"event":"x')
    path.write_bytes(b"".join(lines))
    seal(folder / "run", {})
    found = unwitnessed(folder / "run", [witnesses(folder)[0]])
    itself, finding = found.findings
    assert (itself.line, "does not follow line" in itself.what) == (known[0] + 2, True)
    assert finding.line == known[0] + 1
    assert f"the hash chain breaks at line {known[0] + 2}" in finding.text


def test_a_witness_of_other_runs_verifies_nothing(folder, tmp_path):
    other = tmp_path / "other.jsonl"
    SeenTasks(other).add(of(1, session="def"), shown(TREE, 3, session="def"))
    found = verify(folder / "run", [other])
    assert found.findings == ()
    assert (found.status, found.witnessed) == (2, False)
    assert "is a witness of other runs" in found.witnesses[0]


@pytest.mark.parametrize("what", ["note", "cosignature", "junk", "another key"])
def test_what_a_witness_holds_and_the_coordinator_has_not_signed_shows_nothing(what, folder):
    path, key = witnesses(folder)[0], ""
    if what == "note":
        text = path.read_text()
        path.write_text(text.replace("\\n\\n\u2014", "x\\n\\n\u2014", 1))
    elif what == "cosignature":
        path = folder / "run" / "witnesses.json"
        held = json.loads(path.read_bytes())
        held["clients"]["0"]["cosignature"] = held["clients"]["1"]["cosignature"]
        path.write_text(json.dumps(held))
        seal(folder / "run", {})
    elif what == "junk":
        path.write_text("junk\n" + path.read_text())
    else:
        key = "ed25519:" + MINE[8:][::-1]
    found = verify(folder / "run", [path], key if key.endswith("=") else "ed25519:x" if key else "")
    assert (found.status, found.witnessed) == (1 if what == "cosignature" else 2, False)
    if what == "cosignature":
        (finding,) = found.findings
        assert (finding.file, finding.clients) == ("witnesses.json", (0,))


@pytest.mark.parametrize("whose", ["coordinator", "client", "name"])
def test_co_signatures_of_others_than_the_evidence_names_are_none(whose, folder):
    """Valid ones, under a key that somebody has made."""
    path, made = folder / "run" / "witnesses.json", {}
    for client, found in json.loads(path.read_bytes())["clients"].items():
        head = open_note(found["checkpoint"], public_key(MINE))
        if whose == "coordinator":
            found |= {"checkpoint": sign_note(head, KEYS[7]), "coordinator": public_text(KEYS[7])}
        elif whose == "name":
            found |= {"name": "another"}
        else:
            found |= {"key": public_text(KEYS[7]), "cosignature": cosign(head, KEYS[7], 1_800_000_000)}
        made[int(client)] = Witness(**found)
    path.write_bytes(as_json(made))
    seal(folder / "run", {})
    found = verify(folder / "run")
    assert {finding.file for finding in found.findings} == {"witnesses.json"}
    known = (0, 1) if whose == "client" else (0, 1, 2)  # of client 2 no update was used
    assert [finding.clients for finding in found.findings] == [(client,) for client in known]
    what = {"coordinator": "another coordinator", "client": "another key", "name": "the client otherwise"}[whose]
    assert all(what in finding.what for finding in found.findings)


def test_a_client_that_was_taken_out_of_the_list_is_named(folder):
    path = folder / "run" / "witnesses.json"
    left = json.loads(path.read_bytes())["clients"]
    del left["1"]
    path.write_bytes(as_json({int(client): Witness(**found) for client, found in left.items()}))
    seal(folder / "run", {})
    found = verify(folder / "run")
    (finding,) = found.findings
    assert (finding.kind, finding.what, finding.clients) == ("missing", "lacks a client that has co-signed", (1,))
    assert (found.completeness, found.status) == ("no", 1)


def test_a_list_of_witnesses_that_is_written_otherwise_is_named(folder):
    path = folder / "run" / "witnesses.json"
    path.write_bytes(path.read_bytes() + b"\n")
    seal(folder / "run", {})
    (finding,) = verify(folder / "run").findings
    assert (finding.file, finding.what) == ("witnesses.json", "is not as a coordinator writes it")


def older(folder, path):
    """Puts the first co-signature of each client in the place of its last."""
    made = {}
    for client, found in json.loads(path.read_bytes())["clients"].items():
        held = [json.loads(line) for line in witnesses(folder)[int(client)].read_bytes().splitlines()]
        checkpoint = next(one["checkpoint"] for one in held if one["checkpoint"])
        head = open_note(checkpoint, public_key(MINE))
        found |= {"checkpoint": checkpoint, "cosignature": cosign(head, KEYS[int(client)], 1_800_000_000)}
        made[int(client)] = Witness(**found)
    path.write_bytes(as_json(made))


def test_an_older_list_of_co_signatures_says_up_to_which_line_it_speaks_and_clients_find_the_rest(folder, capsys):
    """The coordinator can keep an old `witnesses.json`, put it back at the end, and change the trail after it."""
    path, known = folder / "run" / "witnesses.json", sizes(witnesses(folder)[0])
    older(folder, path)

    def alter(lines):
        entry = json.loads(lines[known[0]])
        return [*lines[: known[0]], json.dumps(entry | {"why": "another"}).encode(), *lines[known[0] + 1 :]]

    rewritten(folder, alter)
    alone, lines = verify(folder / "run"), len(read(folder / "run" / "audit.jsonl"))
    assert (alone.findings, alone.integrity, alone.completeness, alone.status) == ((), "unknown", "unknown", 2)
    assert alone.unseen == range(known[0] + 1, lines + 1)
    assert main(["verify", str(folder / "run")]) == 2
    assert (
        f"Integrity: not known. No co-signature that was checked covers audit.jsonl from line {known[0] + 1} on"
        in capsys.readouterr().out
    )
    found = verify(folder / "run", [witnesses(folder)[0]])
    assert (found.integrity, found.status) == ("no", 1)
    assert {(f.file, f.line) for f in found.findings} == {("audit.jsonl", known[0] + 1)}

    rewritten(folder, lambda lines: lines[: known[0]])  # or nothing is left of what came then
    first, *_, cut = verify(folder / "run").findings
    assert (first.text, cut.file, cut.kind, cut.text) == (
        "history.jsonl, line 2 was added (step 1)",
        "audit.jsonl",
        "missing",
        "audit.jsonl has no line that says that the run has ended, and the folder is sealed",
    )


def test_the_list_of_a_client_makes_known_what_no_co_signature_in_the_folder_covers(folder):
    path = folder / "run" / "witnesses.json"
    older(folder, path)
    seal(folder / "run", {})
    assert verify(folder / "run").status == 2
    found = verify(folder / "run", [witnesses(folder)[0]])
    assert (found.integrity, found.completeness, found.status) == ("yes", "yes", 0)


@pytest.mark.parametrize("why", ["the coordinator had no key", "the package that checks them is missing"])
def test_without_co_signatures_that_were_checked_a_trail_is_not_known_to_be_whole(why, folder, tmp_path, monkeypatch):
    """Clients sign their updates, and nothing else of the trail."""
    run = folder / "run"
    if why == "the coordinator had no key":
        run = tmp_path / "without" / "run"
        apps = at_nodes(honest(PLAN, run.parent, coordinator="any"))
        with InProcessGrid(apps) as grid:
            coordinate(grid, coordinator(PLAN, folder=run, roster=roster_of(3)))
    else:
        monkeypatch.setattr(evidenced, "find_spec", lambda name: None)
        monkeypatch.setitem(sys.modules, "phalanx.runs.witnessed", None)
    found = verify(run)
    assert (found.findings, found.proves, found.unseen.start) == ((), True, 1)
    assert (found.integrity, found.completeness, found.status) == ("unknown", "unknown", 2)


@pytest.fixture
def known(folder):
    """The roster, as somebody has it from elsewhere."""
    named(3).save(folder / "mine.yaml")
    return folder / "mine.yaml"


def test_keys_and_names_are_compared_with_a_roster_from_elsewhere(folder, known, capsys):
    command = ["verify", str(folder / "run"), "--roster", str(known)]
    assert main(command) == 0
    assert f"3 clients with a signature compared with {known}" in capsys.readouterr().out
    right = Roster.load(known)
    changes = {
        "who is not in": lambda m: None if m.id == 1 else m,
        "and the key in": lambda m: dataclasses.replace(m, key=public_bytes(KEYS[7])) if m.id == 1 else m,
        "calls it clinic-1, and": lambda m: dataclasses.replace(m, name="another") if m.id == 1 else m,
    }
    for what, change in changes.items():
        Roster((*filter(None, map(change, right.members)),), right.coordinator).save(known)
        assert main(command) == 1
        said = capsys.readouterr().out.splitlines()
        (line,) = [line for line in said if line.startswith("  ")]
        assert what in line, said
        assert line.endswith("(client 1)")
    Roster(right.members, public_text(KEYS[7])).save(known)
    assert main(command) == 1
    assert f"names the coordinator {MINE}, and its key in {known} is {public_text(KEYS[7])}" in capsys.readouterr().out


def test_a_client_of_whom_nothing_but_a_co_signature_is_there_is_compared_as_well(folder, known):
    """Of client 2 no update was used."""
    clients = {m.id: (m.name, public_text(KEYS[m.id])) for m in Roster.load(known).members if m.id != 2}
    found = verify(folder / "run", roster=evidenced.KnownRoster("mine", clients))
    assert [(f.file, f.clients) for f in found.findings] == [("audit.jsonl", (2,))]


def test_verify_says_how_many_clients_have_co_signed_and_a_quorum_is_demanded(folder, capsys):
    path, (early, *_, last) = folder / "run" / "witnesses.json", sizes(witnesses(folder)[0])
    whole = path.read_bytes()
    older(folder, path)
    made = {int(client): Witness(**found) for client, found in json.loads(whole)["clients"].items()}
    old = {int(client): Witness(**found) for client, found in json.loads(path.read_bytes())["clients"].items()}
    path.write_bytes(as_json({**made, 2: old[2]}))
    seal(folder / "run", {})
    assert main(["verify", str(folder / "run")]) == 0
    said = capsys.readouterr().out
    assert f"Clients that co-signed audit.jsonl: 2 of 3 up to line {last}, 3 of 3 up to line {early}." in said
    assert main(["verify", str(folder / "run"), "--quorum", "2"]) == 0
    capsys.readouterr()
    assert main(["verify", str(folder / "run"), "--quorum", "3"]) == 2
    said = capsys.readouterr().out
    few = "not known. Co-signatures that were checked are of fewer than 3 clients for audit.jsonl"
    few = f"{few} from line {early + 1} on"
    assert f"Integrity: {few}" in said
    assert f"Completeness: {few}" in said
    assert main(["verify", str(folder / "run"), "--quorum", "3", "--witness", str(witnesses(folder)[2])]) == 0
    lists = [*map(str, witnesses(folder)[:2])]
    assert main(["verify", str(folder / "run"), "--quorum", "3", "--witness", *lists]) == 2, "they are the same clients"
    assert verify(folder / "run", quorum=4).unseen == range(1, last + 1)
    assert main(["verify", str(folder / "run"), "--quorum", "0"]) == 2
    assert "The quorum must be at least 1 client, got 0." in capsys.readouterr().err


def test_a_list_counts_once_for_a_quorum_and_so_do_all_that_do_not_say_whose_they_are(folder, tmp_path):
    (folder / "run" / "witnesses.json").unlink()
    own = witnesses(folder)[0]
    tasks = [json.loads(line) for line in own.read_text().splitlines()]
    assert {task["client"] for task in tasks} == {-1, 0}, "introductions do not say whose they are"
    seen = verify(folder / "run", [own]).seen
    assert [client for client in seen if client == 0 or isinstance(client, str)] == [0]
    copies = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for copy in copies:
        copy.write_text("".join(f"{json.dumps({**task, 'client': -1})}\n" for task in tasks))
    assert [client for client in verify(folder / "run", copies).seen if isinstance(client, str)] == [""]


def test_a_file_that_holds_no_checkpoint_is_refused(folder, capsys):
    (folder / "none.jsonl").write_text("")
    assert main(["verify", str(folder / "run"), "--witness", str(folder / "none.jsonl")]) == 2
    assert "holds no checkpoint. Name the list of tasks" in capsys.readouterr().err
    assert main(["verify", str(folder / "run"), "--witness", str(folder / "nowhere")]) == 2
    assert "There is no file" in capsys.readouterr().err


# --- what a client takes

TASK = TaskMessage("train", "abc", bytes(32), 0, 0, 0, "float32", MINE)


def of(nonce, **changes):
    return TASK._replace(nonce=bytes([nonce]) * 32, **changes)


def tree_of(*lines):
    tree = MerkleTree()
    for line in lines:
        tree.add(line.encode())
    return tree


def shown(tree, size, *olds, session="abc", key=KEYS[11]):
    head = TreeHead(f"phalanx/{session}", size, tree.root(size))
    return ShownHead(sign_note(head, key), {old: tree.consistency(old, size) for old in olds})


TREE, FORK = tree_of(*"abcdefgh"), tree_of(*"abcXefgh")


def test_a_client_takes_heads_that_go_on_and_no_others(tmp_path):
    seen = SeenTasks(tmp_path / "tasks.jsonl")
    assert seen.add(of(1), shown(TREE, 3)).size == 3
    assert seen.add(of(2), shown(TREE, 5, 3, 2)).size == 5
    assert seen.add(of(3), shown(TREE, 5, 5)).size == 5
    refused = [shown(FORK, 8, 5), shown(TREE, 8), shown(TREE, 8, 3), shown(TREE, 4, 3), shown(FORK, 5, 5), None]
    for nonce, head in enumerate(refused, 10):
        with pytest.raises(AlteredTrailError, match="audit trail") as caught:
            seen.add(of(nonce), head)
        assert reason_of(caught.value) == ALTERED_TRAIL
    assert seen.size("abc") == 5
    assert seen.add(of(30), shown(TREE, 8, 5)).size == 8
    assert SeenTasks(tmp_path / "tasks.jsonl").size("abc") == 8
    assert seen.add(of(31, session="def"), shown(FORK, 2, session="def")).size == 2, "another run has another trail"
    lines = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_bytes().splitlines()]
    assert [line["refused"] for line in lines] == [False] * 3 + [True] * 6 + [False] * 2


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (shown(TREE, 3, key=KEYS[0]), "not signed by the coordinator"),
        (ShownHead("junk", {}), "is no checkpoint"),
        (shown(TREE, 3, session="def"), "is of another run"),
    ],
)
def test_what_is_no_head_of_this_run_is_refused(head, why):
    with pytest.raises(MalformedError, match=why):
        SeenTasks(None).add(TASK, head)


@pytest.mark.parametrize(
    "record",
    [
        MetricRecord({"note": 1}),
        ConfigRecord({"note": 1}),
        ConfigRecord({"note": "x", "03": b""}),
        ConfigRecord({"note": "x", "3": b"short"}),
        ConfigRecord({"note": "x", "3": b"x" * 32 * 65}),
        ConfigRecord({"note": "x", "3": "text"}),
        ConfigRecord({"note": "x"} | {str(k): b"" for k in range(50)}),
    ],
)
def test_a_head_of_another_form_is_malformed(record):
    content = RecordDict({HEAD: record})
    with pytest.raises(MalformedError, match="record 'checkpoint'"):
        codec.read_head(content)


def test_a_fork_that_two_clients_were_shown_is_found_by_both_of_their_lists(tmp_path, folder):
    session = json.loads(witnesses(folder)[0].read_bytes().splitlines()[-1])["session"]
    lines = split((folder / "run" / "audit.jsonl").read_bytes())
    fork = tree_of(*(line.decode() for line in [*lines[:2], b"another\n", *lines[3:]]))
    head = shown(fork, sizes(witnesses(folder)[0])[-1], session=session)
    SeenTasks(tmp_path / "lyon.jsonl").add(of(1, session=session), head)
    found = verify(folder / "run", [witnesses(folder)[0], tmp_path / "lyon.jsonl"])
    assert any("was signed in two forms, shown to tasks.jsonl and to lyon.jsonl: the trail forked" in f.text
               for f in found.findings)  # fmt: skip
    assert any("of which lyon.jsonl is a witness" in finding.text for finding in found.findings)
    assert verify(folder / "run", [witnesses(folder)[0]]).findings == ()


# --- coordinators


def test_after_a_kill_the_trail_goes_on_for_its_witnesses(tmp_path):
    with pytest.raises(Killed):
        trained(tmp_path, honest(PLAN, tmp_path, coordinator=MINE), observers=[killed_at(2)])
    before = [sizes(path) for path in witnesses(tmp_path)]
    state = trained(tmp_path, honest(PLAN, tmp_path, coordinator=MINE))
    assert state.version == 4
    for path, held in zip(witnesses(tmp_path), before, strict=True):
        assert sizes(path)[: len(held)] == held
        assert len(sizes(path)) > len(held)
    found = verify(tmp_path / "run", witnesses(tmp_path))
    assert (found.findings, found.witnessed) == ((), True)


@pytest.mark.slow
def test_an_answer_that_is_lost_leaves_a_head_from_which_the_next_goes_on(tmp_path):
    apps, lost = honest(PLAN, tmp_path, coordinator=MINE), []

    def losing(message, reply, context):
        lost.append(message)
        return None if len(lost) in (1, 2) else reply

    apps[2] = attacked(apps[2], losing)
    times = dataclasses.replace(QUICK, answer=1.0, least=2, margin=None)
    state = trained(tmp_path, apps, timeouts=times, suspension=Suspension(misses=100))
    assert state.version == 4
    assert len(sizes(witnesses(tmp_path)[2])) == 5
    assert "2" in json.loads((tmp_path / "run" / "witnesses.json").read_bytes())["clients"]


@pytest.mark.parametrize("line", ["", "\u2014 phalanx/client AAAA\n", None])
def test_an_answer_that_does_not_co_sign_is_invalid(line, tmp_path):
    apps = honest(PLAN, tmp_path, coordinator=MINE)

    def change(message, reply, context):
        if line is None:
            del reply.content[COSIGNATURE]
        else:
            reply.content[COSIGNATURE]["line"] = line
        return Message(resigned(message, reply.content, KEYS[2]), reply_to=message)

    apps[2] = attacked(attacked(apps[2], change), change, kind="query")
    trained(tmp_path, apps, timeouts=dataclasses.replace(QUICK, least=2))
    reasons = {entry.why for entry in read(tmp_path / "run" / "audit.jsonl") if entry.event == "invalid"}
    why = "it has not co-signed the head of the audit trail that it was sent"
    assert reasons == {why, f"{why}; suspended"}
    assert set(json.loads((tmp_path / "run" / "witnesses.json").read_bytes())["clients"]) == {"0", "1"}


def test_a_client_that_has_seen_more_lines_than_there_are_is_turned_away_and_says_why(tmp_path):
    apps = honest(PLAN, tmp_path, coordinator=MINE)
    with InProcessGrid(at_nodes(apps)) as grid:
        head = lambda olds: (8, TREE.root(8), {old: TREE.consistency(old, 8) for old in olds})  # noqa: E731
        with FlowerTransport(grid, named(3), timeouts=QUICK, key=KEYS[11], head=head) as first:
            phalanx.run(FedAvg(), first, Federation(PLAN).start, LoopSettings(until=phalanx.Until(1)))
            session = first.register.session
        short = lambda olds: (3, TREE.root(3), {old: TREE.consistency(old, 3) for old in olds})  # noqa: E731
        register = Register(grid, named(3), QUICK, Suspension(), came=lambda: None, key=KEYS[11], head=short)
        register.begin(session)
        end = time.monotonic() + QUICK.answer
        while len(register.strangers) < 3 and time.monotonic() < end:
            time.sleep(0.02)
        register.close()
    assert register.strangers[FIRST_NODE] == (
        "client 0 (clinic-0) has seen 8 lines of the audit trail, which has 3: it was cut, or the client lies"
    )
