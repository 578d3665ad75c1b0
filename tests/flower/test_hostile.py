"""What hostile clients and strangers cannot do to a deployment: stop it, hold it up for ever, or borrow a signature."""

import copy
import dataclasses
import json
import os
import stat
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import yaml
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from flower.federations import FIRST_NODE, KEYS, MINE, QUICK, SMALL, at_nodes, honest, named, roster_of
from phalanx.algorithms import FedAvg
from phalanx.cli.main import main
from phalanx.core import InfeasibleError, Until
from phalanx.engine import LoopSettings
from phalanx.flower import (
    FlowerTransport,
    InProcessGrid,
    Roster,
    Suspension,
    Timeouts,
    client_app,
    codec,
    participant_of,
)
from phalanx.flower.awake_clock import AwakeClock
from phalanx.flower.certificates import KEY, make_certificates, make_secret
from phalanx.flower.client import ClientMemory, ClientWorker, RememberedTurn
from phalanx.flower.codec import (
    VECTOR,
    WORDS,
    MalformedError,
    OtherReleaseError,
    TaskMessage,
    sign_task,
    signing_input,
    task_content,
)
from phalanx.flower.deadlines import LATELY, Deadlines
from phalanx.flower.gate import ANOTHER_COORDINATOR, NO_TASK, reason_of
from phalanx.flower.identity import EnrolmentRequest, as_text, new_key, public_bytes, public_text, signed_by
from phalanx.flower.logs import configure_logs, log
from phalanx.flower.register import AT_ONCE, LISTED, Register
from phalanx.flower.seen import SeenTasks
from phalanx.runs.federation import Federation
from phalanx.wording import visible

PLAN = dataclasses.replace(SMALL, clients=4, until=phalanx.Until(3))


# --- the roster


def at_once(works):
    """Does all of this in threads that begin together."""
    start, failures = threading.Barrier(len(works)), []

    def begin(work):
        start.wait()
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def requested(path, name, key):
    """The file of a client's request."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(EnrolmentRequest.sign(name, key, MINE).text)
    return path


def test_twelve_clients_that_are_enrolled_at_once_are_all_kept(tmp_path):
    path = str(tmp_path / "roster.yaml")
    named(0).save(tmp_path / "roster.yaml")
    files = [str(requested(tmp_path / "requests" / f"{k}.json", f"clinic {k}", KEYS[k])) for k in range(12)]
    at_once([lambda k=k: main(["flower", "enrol", files[k], "--roster", path]) for k in range(12)])
    roster = Roster.load(tmp_path / "roster.yaml")
    assert sorted(m.id for m in roster.members) == list(range(12))
    assert {m.name for m in roster.members} == {f"clinic {k}" for k in range(12)}
    assert sorted(p.name for p in tmp_path.iterdir()) == [".roster.yaml.lock", "requests", "roster.yaml"]


def test_a_revocation_is_not_undone_by_an_enrolment_that_began_before_it(tmp_path, monkeypatch):
    path = tmp_path / "roster.yaml"
    named(4).save(path)
    reading, adding = threading.Event(), Roster.adding

    def slowly(roster, request):
        reading.set()
        time.sleep(0.5)
        return adding(roster, request)

    monkeypatch.setattr(Roster, "adding", slowly)
    enrol = ["flower", "enrol", str(requested(tmp_path / "fifth.json", "fifth", KEYS[9])), "--roster", str(path)]
    thread = threading.Thread(target=main, args=(enrol,))
    thread.start()
    assert reading.wait(30)
    assert main(["flower", "revoke", "3", "--roster", str(path)]) == 0
    thread.join()
    roster = Roster.load(path)
    assert [m.id for m in roster.members if m.revoked] == [3]
    assert len(roster.members) == 5


def test_a_roster_that_cannot_be_written_is_the_old_one_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "roster.yaml"
    roster_of(2).save(path)
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        roster_of(3).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["roster.yaml"]


def test_a_roster_keeps_its_mode(tmp_path):
    path = tmp_path / "roster.yaml"
    roster_of(2).save(path)
    path.chmod(0o640)
    roster_of(3).save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_mistaken_folder_is_left_as_it_is(tmp_path, capsys):
    assert main(["flower", "revoke", "0", "--roster", str(tmp_path / "roster.yaml")]) == 2
    assert "There is no roster" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- secrets


@pytest.mark.parametrize("umask", [0, 0o022, 0o277])
def test_files_with_secrets_are_their_owners_only_whatever_the_umask(umask, tmp_path):
    (tmp_path / "old.secret").write_bytes(b"")
    (tmp_path / "old.secret").chmod(0o644)
    task = TaskMessage("train", "abc", bytes(32), 1, 0, 0, "float32")
    before = os.umask(umask)
    try:
        new_key(tmp_path / "key.pem")
        make_secret(tmp_path / "old.secret")
        make_certificates(tmp_path, ["localhost"])
        ClientMemory(tmp_path).keep(task, RememberedTurn(None, Federation(PLAN).start))
    finally:
        os.umask(before)
    for name in ("key.pem", "old.secret", KEY, "abc-0.npz"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name


# --- strangers


def mute(message, context):
    return None


def nobody(message, context):
    return Message(RecordDict(), reply_to=message)


def mute_at_once(node):
    node.waits = True
    return node


HASTY = dataclasses.replace(QUICK, introduction=0.4, enrolment=10.0)


def test_eighty_mute_strangers_with_low_numbers_do_not_keep_a_run_from_beginning(tmp_path):
    nodes = at_nodes(honest(PLAN, tmp_path)) | dict.fromkeys(range(2, 82), mute)
    with InProcessGrid(nodes) as grid, FlowerTransport(grid, roster_of(4), timeouts=HASTY) as transport:
        begun = time.monotonic()
        assert transport.enroll().keys() == {0, 1, 2, 3}
        assert time.monotonic() - begun < 5.0


def registered(nodes, timeouts, **options):
    grid = InProcessGrid(nodes)
    return grid, Register(grid, roster_of(4), timeouts, Suspension(), came=lambda: None, **options)


def test_many_nodes_with_the_key_of_one_client_are_left_alone(caplog):
    """200 of them, in 60 looks half a second apart: they do not take its place from each other for ever."""
    clock = SimpleNamespace(now=0.0)
    nodes, asked = frozenset(range(1000, 1200)), []
    with caplog.at_level("INFO", "phalanx.flower"):
        grid, register = registered({}, QUICK, clock=AwakeClock(lambda: clock.now))
        with grid:
            for _ in range(60):
                clock.now += 0.5
                for node in register._unknown(nodes):
                    asked.append(node)
                    register._let_in(node, register.roster.members[0], 10)
    assert {*asked} == nodes
    assert len(asked) < 220
    assert len(caplog.records) < 20
    assert "client 0 (clinic-0) is at several nodes: one took the place of another 128 times" in caplog.text
    assert register.node_of(0) is not None, "it takes part all the same"


def test_a_client_that_comes_back_at_another_node_is_let_in_at_once():
    grid, register = registered({}, QUICK)
    with grid:
        for node in range(1000, 1010):  # the one before is gone each time
            assert register._unknown(frozenset([node])) == [node]
            register._let_in(node, register.roster.members[0], 10)
            assert register.node_of(0) == node
        assert register._replaced == {}


def test_nodes_are_asked_in_the_order_in_which_they_came():
    grid, register = registered({}, QUICK)
    with grid:
        first = register._unknown(frozenset(range(1000, 1000 + AT_ONCE)))
        assert sorted(first) == list(range(1000, 1000 + AT_ONCE))
        everybody = frozenset(range(1000, 1000 + AT_ONCE)) | {5000}
        assert register._unknown(everybody) == []
        everybody |= set(range(1, 200))  # newer ones with lower numbers
        assert register._unknown(everybody) == []
        register._turn_away(1000, "mute")
        assert register._unknown(everybody) == [5000]


def test_a_node_that_blocks_beyond_its_time_blocks_no_other(monkeypatch):
    grid, register = registered({}, dataclasses.replace(QUICK, introduction=0.05))
    with grid:
        blocked = frozenset(range(AT_ONCE))
        assert len(register._unknown(blocked)) == AT_ONCE
        assert register._unknown(blocked | {7000}) == []
        time.sleep(0.06)
        assert register._unknown(blocked | {7000}) == [7000], "and none is asked twice at a time"


def test_a_stranger_costs_one_line_however_often_it_tries(caplog):
    notes = []
    grid, register = registered({50: nobody}, dataclasses.replace(QUICK, absent=0.02), tell=notes.append)
    with grid:
        register.begin("abc")
        deadline = time.monotonic() + 20
        while register._failures.get(50, 0) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert register._failures[50] >= 4
        register.close()
    turned_away = [r for r in caplog.records if getattr(r, "event", "") == "turned away"]
    assert (len(turned_away), len(notes)) == (1, 1)


def test_nodes_under_ever_new_numbers_fill_neither_log_nor_audit_trail(caplog):
    notes = []
    grid, register = registered({}, QUICK, tell=notes.append)
    with grid:
        for node in range(3 * LISTED):
            register._turn_away(node, "its key is not in the roster")
    assert len(notes) == LISTED + 1
    assert notes[-1].why.endswith("its key is not in the roster (no more are listed for 60 min)")
    assert len([r for r in caplog.records if getattr(r, "event", "") == "turned away"]) == LISTED + 1


# --- silence


def by_turns(pattern):
    """An app that answers the tasks of a pattern that has a plus there, and says nothing to the others."""

    def of(app):
        def node(message, context):
            words = message.content[WORDS]
            if words["kind"] == "train" and pattern[words["turn"] % len(pattern)] == "-":
                return None
            return app(message, context)

        return node

    return of


PATIENT = dataclasses.replace(QUICK, answer=6.0, shortest=0.3)


def carried_out(folder, patterns, until, **options):
    """The transport after a run in which some clients answer by a pattern, and the seconds that it took."""
    apps = honest(PLAN, folder)
    apps |= {client: by_turns(pattern)(apps[client]) for client, pattern in patterns.items()}
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(4), **options) as transport:
        begun = time.monotonic()
        phalanx.run(
            FedAvg(), transport, Federation(PLAN).start, LoopSettings(until=Until.of(until)), observers=[transport]
        )
        return transport, time.monotonic() - begun


@pytest.mark.slow
def test_two_that_fall_silent_by_turns_are_suspended_and_do_not_hold_up_every_round(tmp_path):
    """Silent, silent, good: with one deadline and consecutive misses, each of nine rounds in a row took all of it."""
    transport, seconds = carried_out(tmp_path, {2: "+--", 3: "+-+--"}, 12, timeouts=PATIENT)
    assert "too many misses" in transport.register.barred(2)
    assert seconds < 4 * PATIENT.answer, "a last chance each, and otherwise a deadline that follows the others"


@pytest.mark.slow
def test_a_slow_client_that_answers_is_never_suspended_for_it(tmp_path):
    """It needs four times as long as `shortest`, and is alone with that."""

    def slow(app):
        def node(message, context):
            if message.metadata.message_type == "train":
                time.sleep(1.2)
            return app(message, context)

        node.waits = True
        return node

    apps = honest(PLAN, tmp_path)
    apps[3] = slow(apps[3])
    served = []
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(4), timeouts=PATIENT) as transport:
        observer = lambda p: served.append(p.updates is not None and 3 in p.updates.clients)  # noqa: E731
        transport._deadlines._times = {i: [0.01] for i in range(3)}  # the others are known, and quick
        phalanx.run(
            FedAvg(), transport, Federation(PLAN).start, LoopSettings(until=Until(8)), observers=[transport, observer]
        )
        assert transport.register.barred(3) == ""
    assert served[-4:] == [True] * 4, "once it has answered, its deadline allows for it"


TIMES = st.floats(0.0, 1e4)


@given(st.lists(st.tuples(st.integers(0, 5), TIMES), max_size=60), TIMES, st.floats(0.0, 10.0))
def test_nobody_can_shorten_a_deadline_below_what_its_client_needs(others, own, misses):
    """Whatever any number of other clients do."""
    bounds = Timeouts(answer=600.0, shortest=60.0, margin=4.0)
    deadlines = Deadlines(bounds)
    deadlines.answered(99, own)
    for client, seconds in others:
        deadlines.answered(client, seconds)
    known = deadlines.of(99, misses, last_chance=False)
    assert min(600.0, max(60.0, 4.0 * own)) <= known <= 600.0
    assert deadlines.of(99, misses, last_chance=True) == 600.0
    assert 60.0 <= deadlines.of(7, misses, last_chance=False) <= 600.0, "one that has never answered"
    assert deadlines.of(7, misses, last_chance=True) == 600.0


@given(st.lists(TIMES, min_size=3, max_size=9), st.lists(TIMES, max_size=8))
def test_a_minority_cannot_move_the_deadline_of_a_newcomer_out_of_the_honest_range(honest_times, hostile):
    hostile = hostile[: len(honest_times) - 1]
    deadlines = Deadlines(Timeouts(answer=1e9, shortest=1e-9, margin=1.0))
    for client, seconds in enumerate([*honest_times, *hostile]):
        deadlines.answered(client, seconds)
    made = deadlines.of(1000, 0.0, last_chance=False)
    assert max(1e-9, min(honest_times)) <= made <= max(1e-9, *honest_times)


def test_who_answers_last_by_far_is_called_slow():
    deadlines = Deadlines(Timeouts())
    for client, seconds in ((0, 10.0), (1, 12.0), (2, 11.0), (3, 41.0)):
        deadlines.answered(client, seconds)
    assert deadlines.slow() == {3: "its answers take 41 s, 3.7 times the 11 s of others"}
    for client in range(4):
        for _ in range(LATELY):
            deadlines.answered(client, 1.0 + 5.0 * (client == 3))
    assert deadlines.slow() == {}, "five seconds are Flower's"


def test_deadlines_by_hand():
    deadlines = Deadlines(Timeouts(answer=600.0, shortest=5.0, margin=3.0))
    assert deadlines.of(0, 0.0, last_chance=False) == 600.0, "nobody has answered yet"
    for client, seconds in ((0, 10.0), (1, 20.0), (2, 90.0)):
        deadlines.answered(client, seconds)
    assert deadlines.of(0, 0.0, last_chance=False) == 60.0, "the median, which is longer than its own"
    assert deadlines.of(2, 0.0, last_chance=False) == 270.0, "its own"
    assert deadlines.of(0, 1.0, last_chance=False) == 120.0
    assert deadlines.of(2, 2.0, last_chance=False) == 600.0
    for _ in range(LATELY):
        deadlines.answered(2, 1.0)
    assert deadlines.of(2, 0.0, last_chance=False) == 30.0, "what was long ago does not count"
    assert Deadlines(Timeouts(margin=None)).of(0, 0.0, last_chance=False) == 600.0


@pytest.mark.parametrize("margin", [0.5, float("inf"), float("nan")])
def test_a_margin_that_would_be_no_deadline_is_refused(margin):
    with pytest.raises(ValueError, match="margin must be at least 1 and finite, got"):
        Timeouts(margin=margin)


# --- whom an answer is for

OTHER = KEYS[10]  # of a second coordinator


def worker(coordinator, client=0):
    return ClientWorker(participant_of(PLAN, client, KEYS[client], coordinator=coordinator))


def asked(**changes):
    return TaskMessage("enrol", "abc", bytes(32), -1, 0, 0, "float32", MINE)._replace(**changes)


def signed(task, key=KEYS[11], download=None, addressee=b""):
    content = task_content(task, download)
    sign_task(content, key, addressee)
    return content


def test_a_signature_for_one_coordinator_is_refused_by_another():
    """As where one passes the other's question on to a client of both, and its answer back."""
    answer = worker(MINE).introduce(signed(asked()))
    signature, key = answer[WORDS]["signature"], public_bytes(KEYS[0])
    assert signed_by(key, signature, signing_input(asked(), answer))
    for other in (public_text(OTHER), ""):
        assert not signed_by(key, signature, signing_input(asked(coordinator=other), answer))


@pytest.mark.parametrize(
    ("mine", "content", "why"),
    [
        (
            MINE,
            signed(asked(coordinator=public_text(OTHER)), OTHER),
            "is from the coordinator .*, and this client answers",
        ),
        (MINE, signed(asked(), OTHER), "not signed by the coordinator that it names"),
        (MINE, task_content(asked()), "not signed by the coordinator that it names"),
        (MINE, task_content(asked(coordinator="")), "is from a coordinator without a key, and this client answers"),
        ("", signed(asked()), "was not given the key of its coordinator, and answers nobody"),
        ("", task_content(asked(coordinator="")), "was not given the key of its coordinator, and answers nobody"),
    ],
)
def test_a_client_answers_no_other_coordinator_than_its_own(mine, content, why):
    with pytest.raises(MalformedError, match=why):
        worker(mine).introduce(content)


def test_what_a_client_is_given_as_the_key_of_its_coordinator_is_one():
    with pytest.raises(ValueError, match="A public key must be"):
        worker("3f9a0c5d7e21b864")


TRAIN = asked(kind="train", client=0, version=7, turn=2)
D = Federation(PLAN).start.numel()


def changed(name, value):
    def change(content):
        content[WORDS][name] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("session", "abd"),
        changed("nonce", b"x" * 32),
        changed("client", 1),
        changed("version", 8),
        changed("turn", 3),
        changed("transfer", "int8"),
        changed("kind", "enrol"),
        changed("signature", bytes(64)),
        changed("signature", b""),
        lambda content: content.update({VECTOR: codec.encode(torch.ones(D))}),
    ],
)
def test_each_part_of_a_task_is_signed(change):
    own = public_bytes(KEYS[0])
    assert len(worker(MINE).train(signed(TRAIN, download=torch.zeros(D), addressee=own))) == 2
    content = signed(TRAIN, download=torch.zeros(D), addressee=own)
    change(content)
    with pytest.raises(MalformedError, match="not signed by the coordinator that it names, for this client"):
        worker(MINE).train(content)


def test_a_task_for_another_client_is_not_carried_out():
    with pytest.raises(MalformedError, match="not signed by the coordinator that it names, for this client"):
        worker(MINE).train(signed(TRAIN, download=torch.zeros(D), addressee=public_bytes(KEYS[1])))


@pytest.mark.parametrize("how", ["memory", "key", "neither"])
def test_a_task_that_came_before_is_not_carried_out_again(how, tmp_path):
    """In the same round, in a later one, and in another run; also by a new process of the client."""
    own = public_bytes(KEYS[0])
    key = tmp_path / "own.pem"
    key.write_bytes(KEYS[0].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key.chmod(0o600)
    options = {"memory": {"memory": tmp_path / "memory"}, "key": {"key": key}, "neither": {}}[how]
    made = dataclasses.replace(participant_of(PLAN, 0, KEYS[0], coordinator=MINE), **options)
    tasks = [
        TRAIN._replace(nonce=bytes([k]) * 32, session=session, version=k, turn=k)
        for session in ("abc", "def")
        for k in (ord(session[0]), ord(session[1]))
    ]
    contents = [signed(task, download=torch.zeros(D), addressee=own) for task in tasks]
    worker = ClientWorker(made)
    for content in contents:
        worker.train(content)
    again = worker if how == "neither" else ClientWorker(made)
    for task, content in zip(tasks, contents, strict=True):
        with pytest.raises(MalformedError, match=f"the task of version {task.version} came before"):
            again.train(content)
    fresh = TRAIN._replace(nonce=b"f" * 32, version=200, turn=200)
    again.train(signed(fresh, download=torch.zeros(D), addressee=own))
    if how != "neither":
        file = tmp_path / ("memory/tasks.jsonl" if how == "memory" else "own.tasks.jsonl")
        assert [json.loads(line)["version"] for line in file.read_bytes().splitlines()] == [97, 98, 100, 101, 200]
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_list_of_tasks_that_ends_in_half_a_line_goes_on_in_a_whole_one(tmp_path):
    seen = SeenTasks(tmp_path / "tasks.jsonl")
    seen.add(TRAIN)
    with (tmp_path / "tasks.jsonl").open("ab") as file:
        file.write(b'{"time":"2026')
    seen.add(TRAIN._replace(nonce=b"y" * 32))
    lines = (tmp_path / "tasks.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["nonce"] for line in lines] == ["00" * 32, "79" * 32]


class Claiming(FlowerTransport):
    """A second coordinator, which claims to be the first: it names that one's key, and signs with its own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.register.coordinator = MINE


@pytest.mark.slow
@pytest.mark.parametrize("relays", ["its own tasks", "the tasks of the first"])
def test_of_six_clients_none_answers_a_second_coordinator(relays, tmp_path):
    """Its roster has them all; it once took them by the name of the first, 6 of 6."""
    federation, recorded = Federation(SMALL), {}
    apps = {}
    for i in range(6):
        made = participant_of(SMALL, i, KEYS[i], tmp_path / str(i), federation, coordinator=MINE)
        apps[i] = client_app(made)

    def recording(i):
        def node(message, context):
            recorded.setdefault(i, []).append(copy.deepcopy(message.content))
            return apps[i](message, context)

        return node

    def relaying(i):
        """Passes on what the first coordinator has sent to the client, in place of what the second sends."""

        def node(message, context):
            kind = message.content[WORDS]["kind"]
            message.content = next(c for c in recorded[i] if c[WORDS]["kind"] == kind)
            return apps[i](message, context)

        return node

    first = {FIRST_NODE + i: recording(i) for i in range(6)}
    size, timeouts = federation.start.numel(), dataclasses.replace(QUICK, enrolment=2.0)
    with InProcessGrid(first) as grid, FlowerTransport(grid, named(6), timeouts=timeouts, key=KEYS[11]) as transport:
        phalanx.run(FedAvg(), transport, federation.start, LoopSettings(until=Until(1)))
        assert transport.register.reported.keys() == set(range(6)), "the first coordinator has them"
    roster = dataclasses.replace(roster_of(6), coordinator=public_text(OTHER))
    second = {FIRST_NODE + i: apps[i] if relays == "its own tasks" else relaying(i) for i in range(6)}
    with (
        InProcessGrid(second) as grid,
        Claiming(grid, roster, timeouts=timeouts, key=OTHER, update_size=size) as transport,
        pytest.raises(InfeasibleError, match=f"(?s)0 of the 6 clients .*{NO_TASK}"),
    ):
        phalanx.run(FedAvg(), transport, federation.start, LoopSettings(until=Until(1)))
    assert transport.register.reported == {}


@pytest.mark.slow
def test_the_key_of_the_coordinator_can_be_in_the_configuration_of_the_node(tmp_path):
    federation = Federation(PLAN)
    made = [participant_of(PLAN, i, KEYS[i], tmp_path / str(i), federation, coordinator="") for i in range(4)]
    config = {FIRST_NODE + i: {"coordinator": MINE if i else public_text(OTHER)} for i in range(4)}
    timeouts = dataclasses.replace(QUICK, enrolment=2.0, least=3)
    apps = at_nodes({i: client_app(one) for i, one in enumerate(made)})
    with (
        InProcessGrid(apps, config) as grid,
        FlowerTransport(grid, named(4), timeouts=timeouts, key=KEYS[11]) as transport,
    ):
        phalanx.run(FedAvg(), transport, federation.start, LoopSettings(until=Until(2)))
        assert transport.register.strangers[FIRST_NODE] == f"its app failed: {ANOTHER_COORDINATOR}"
        assert transport.register.reported.keys() == {1, 2, 3}


def test_a_message_of_another_version_says_so():
    content = task_content(TaskMessage("enrol", "abc", bytes(32), -1, 0, 0, "float32"))
    del content[WORDS]["signature"]
    content[WORDS]["format"] = "3 of Phalanx 0.0"
    with pytest.raises(
        OtherReleaseError, match=r"format is '3 of Phalanx 0\.0', expected .*install the same Phalanx"
    ) as got:
        worker("").introduce(content)
    assert reason_of(got.value) == "it has another release of Phalanx than the coordinator"


# --- names in terminals and logs

HOSTILE_NAME = "St.\x1b[2J\x1b]0;owned\x07 \u202eyraM\u2066\x9b31m\rclient 0\nrevoked"


def printable(text):
    return all(c.isprintable() for line in text.split("\n") for c in line)


def test_a_name_is_escaped_wherever_it_is_shown(tmp_path, capsys):
    path = tmp_path / "roster.yaml"
    named(0).save(path)
    made = requested(tmp_path / "request.json", HOSTILE_NAME, KEYS[0])
    assert main(["flower", "enrol", str(made), "--roster", str(path)]) == 0
    assert main(["flower", "roster", "--roster", str(path)]) == 0
    said = capsys.readouterr().out
    assert printable(said)
    assert r"\x1b[2J" in said
    assert r"\u202e" in said
    assert len(said.splitlines()) == 3, "two for the enrolment, one for the roster"
    member = Roster.load(path).members[0]
    assert printable(str(member))


def test_a_name_in_a_roster_of_old_is_escaped_as_it_is_read(tmp_path):
    path = tmp_path / "roster.yaml"
    entry = {"id": 0, "name": HOSTILE_NAME, "key": as_text(public_bytes(KEYS[0]))}
    path.write_text(yaml.safe_dump({"clients": [entry]}))
    assert Roster.load(path).members[0].name == visible(HOSTILE_NAME)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_of_the_log_is_one_line_that_moves_no_cursor(form, capsys):
    configure_logs(form)
    log.handlers[-1].setStream(sys.stderr)
    log.warning("client %s sent %s", HOSTILE_NAME, "x\n2026-11-23 INFO client 3 is revoked")
    (line,) = capsys.readouterr().err.splitlines()
    assert printable(line)
    assert r"\x1b[2J" in line if form == "text" else r"\u001b[2J" in line


def test_names_of_letters_of_any_script_stay_as_they_are():
    for name in ("Klinikum Großhadern", "مستشفى", "北京协和医院", "a [red]b[/] \\"):
        assert visible(name) == name
    assert visible("a\nb\x1b", lines=True) == "a\nb\\x1b"
    assert visible("\ud800") == "\\ud800"
