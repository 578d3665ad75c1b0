"""What must not get in, sent over Flower's own messages: refused with a reason, and nobody else waits for it."""

import dataclasses
import re
import threading
import time
import tracemalloc

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import phalanx
from flower.federations import (
    FIRST_NODE,
    KEYS,
    QUICK,
    SMALL,
    at_nodes,
    attacked,
    coordinator,
    honest,
    resigned,
    roster_of,
    silent,
)
from flower.test_codec import bad_arrays, claiming
from phalanx import Guard, Until
from phalanx.aggregators import Median
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.core import InfeasibleError, StalledError
from phalanx.engine import LoopSettings
from phalanx.flower import FlowerTransport, InProcessGrid, Suspension, codec, coordinate
from phalanx.flower.audit import Note
from phalanx.flower.codec import (
    VECTOR,
    WORDS,
    AnswerMessage,
    MalformedError,
    TaskMessage,
    answer_content,
    signing_input,
)
from phalanx.flower.register import Register
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from phalanx.weighting import Ignore

PLAN = dataclasses.replace(SMALL, clients=4, model=MLP((4,)), until=phalanx.Until(3))
BAD = 3  # the client that misbehaves
D = Federation(PLAN).start.numel()


class Told:
    """What happened in a run."""

    def __init__(self):
        self.lines, self.notes, self.transport, self.seconds, self.error = [], [], None, 0.0, None

    def __call__(self, progress):
        self.lines.append(progress)

    @property
    def invalid(self):
        return [line.invalid[BAD] for line in self.lines if BAD in line.invalid]

    @property
    def lost(self):
        return [line.lost[BAD] for line in self.lines if BAD in line.lost]

    @property
    def served(self):
        return [set(line.updates.clients) for line in self.lines if line.updates is not None]


def run(folder, bad, *, algorithm=None, grid=InProcessGrid, least=3, until=3, roster=None, observers=(), **options):
    """A run in which one app is replaced by `bad` of it."""
    plan = dataclasses.replace(PLAN, algorithm=algorithm or FedAvg(), until=phalanx.Until(until))
    apps = honest(plan, folder)
    apps[BAD] = bad(apps[BAD])
    timeouts = dataclasses.replace(options.pop("timeouts", QUICK), least=least)
    told, nodes = Told(), at_nodes({i: app for i, app in apps.items() if app})
    guard = options.pop("guard", Guard())
    roster, options = roster or roster_of(4), {"tell": told.notes.append, **options}
    with grid(nodes) as made, FlowerTransport(made, roster, timeouts=timeouts, **options) as transport:
        told.transport, begun = transport, time.monotonic()
        try:
            start = Federation(plan).start
            phalanx.run(
                plan.algorithm,
                transport,
                start,
                LoopSettings(until=plan.until, guard=guard),
                observers=[transport, told, *observers],
            )
        except (InfeasibleError, StalledError) as error:
            told.error = error
        told.seconds = time.monotonic() - begun
    return told


def warned(caplog):
    """What was complained of: event, client, step, message."""
    names = ("event", "client", "step")
    bad = [r for r in caplog.records if (r.name, r.levelname) == ("phalanx.flower", "WARNING")]
    return [(*(getattr(record, name, None) for name in names), record.getMessage()) for record in bad]


def replies(change):
    """An app whose answers to tasks are changed, and signed anew by its own key."""

    def node(message, reply, context):
        content = reply.content
        changed = change(content)
        return Message(resigned(message, changed or content, KEYS[BAD]), reply_to=message)

    return lambda app: attacked(app, node)


def update(array):
    return replies(lambda content: content.update({VECTOR: ArrayRecord({"values": array})}))


def filled(value):
    return update(Array(np.full(D, value, np.float32)))


def some(*values):
    array = np.zeros(D, np.float32)
    array[7 : 7 + len(values)] = values
    return update(Array(array))


def without(name):
    return replies(lambda content: content.pop(name) and None)


SIGNED = {
    "a longer vector": (update(Array(np.zeros(D + 1, np.float32))), "claims to be float32"),
    "a matrix": (update(Array(np.zeros((D, D), np.float32))), "claims to be float32"),
    "float64": (update(Array(np.zeros(D))), "claims to be float64"),
    "integers": (update(Array(np.zeros(D, np.int32))), "claims to be int32"),
    "complex": (update(Array(np.zeros(D, np.complex64))), "claims to be complex64"),
    "NaN": (some(np.nan), f"holds 1 NaN of {D} values"),
    "infinity": (some(np.inf), f"holds 1 infinite of {D} values"),
    "minus infinity": (some(-np.inf), f"holds 1 infinite of {D} values"),
    "infinity beside minus infinity": (some(np.inf, -np.inf), f"holds 2 infinite of {D} values"),
    "1e30": (filled(1e30), "norm .*allowed is 1e"),
    "no update": (without(VECTOR), "records are 'phalanx', expected"),
    "one record more": (replies(lambda c: c.update(more=ConfigRecord({"x": 1}))), "records are 'more',"),
    "an update of another kind": (replies(lambda c: c.update({VECTOR: ConfigRecord()})), "is a ConfigRecord"),
    "one array more": (
        replies(lambda c: c[VECTOR].update(more=Array(np.zeros(3)))),
        "arrays are 'more', 'values', expected 'values'",
    ),
    "twenty times the size": (update(Array("float32", (D,), "numpy.ndarray", bytes(80 * D))), "begins with"),
    "another version": (replies(lambda c: c[WORDS].update(version=77)), "answers version 77, expected version"),
    "a loss of NaN": (replies(lambda c: c[WORDS].update(value=float("nan"))), "loss is nan"),
    "a negative loss": (replies(lambda c: c[WORDS].update(value=-1.0)), "loss is -1.0"),
    "a loss in words": (replies(lambda c: c[WORDS].update(value="low")), "loss is 'low'"),
} | {f"array: {name}": (update(array), f"array 'values' .*{why}") for name, (array, why) in bad_arrays(D).items()}


def in_turn(bads):
    """An app that misbehaves in each of these ways, one after the other."""

    def of(app):
        ways = [bad(app) for bad in bads]

        def node(message, context):
            words = message.content[WORDS]
            return (ways[words["turn"]] if words["kind"] == "train" else app)(message, context)

        return node

    return of


PATIENT = Suspension(strikes=1000, misses=1000)


def test_what_is_signed_and_not_fit_is_refused_and_a_strike(tmp_path, caplog):
    told = run(tmp_path, in_turn([bad for bad, _ in SIGNED.values()]), until=len(SIGNED), suspension=PATIENT)
    assert told.error is None
    came = {name: line.invalid.get(BAD, "taken") for name, line in zip(SIGNED, told.lines[1:], strict=True)}
    assert {name: reason for name, reason in came.items() if not re.search(SIGNED[name][1], reason)} == {}
    assert told.served == [{0, 1, 2}] * len(SIGNED)
    assert [message for *_, message in warned(caplog)] == [f"client {BAD}: {reason}" for reason in told.invalid]
    assert told.transport.register.standing(BAD).strikes == len(SIGNED)
    assert torch.isfinite(told.lines[-1].state.model).all()


def test_what_an_array_says_of_its_size_takes_no_memory(tmp_path):
    """A gigabyte, and not terabytes: memory for it could be had."""
    words = "{'descr': '<f4', 'fortran_order': False, 'shape': (250000000,), }"
    claims = [
        Array("float32", (D,), "numpy.ndarray", claiming(words, D)),
        Array("float32", (250_000_000,), "numpy.ndarray", claiming(words, D)),
        Array("float32", (1,) * 1000, "numpy.ndarray", claiming(words, D)),
    ]
    tracemalloc.start()
    try:
        told = run(tmp_path, in_turn([update(array) for array in claims]), until=3, suspension=PATIENT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(told.invalid) == 3
    assert all(len(why) < 200 for why in told.invalid), "nor does the reason hold what it says"
    assert peak < 5e7


def test_after_three_strikes_a_client_is_not_asked_any_more(tmp_path):
    told = run(tmp_path, filled(np.nan), until=5)
    assert told.served == [{0, 1, 2}] * 5
    why = f"update holds {D} NaN of {D} values"
    assert told.invalid == [why, why, f"{why}; suspended"], "the guard finds it, not the transport"
    barred = told.transport.register.barred(BAD)
    assert re.fullmatch(rf"suspended for 3\d+ s more after 3 strikes, the last: {why}", barred)


# --- who it is from


def signed_by_another(message, reply, context):
    reply.content[WORDS]["key"] = KEYS[0].public_key().public_bytes_raw()
    return Message(resigned(message, reply.content, KEYS[0]), reply_to=message)


def signed_by_a_stranger(message, reply, context):
    reply.content[WORDS]["key"] = KEYS[9].public_key().public_bytes_raw()
    return Message(resigned(message, reply.content, KEYS[9]), reply_to=message)


def with_another_key_and_its_name(message, reply, context):
    return Message(resigned(message, reply.content, KEYS[9]), reply_to=message)


def changed_after_signing(message, reply, context):
    reply.content[VECTOR] = codec.encode(torch.ones(D))
    return reply


def unsigned(message, reply, context):
    del reply.content[WORDS]["signature"]
    return reply


def with_the_nonce_of_another_question(message, reply, context):
    """The answer that this client has signed for another question, of which nothing but the nonce differs."""
    task = codec.TaskMessage(**{name: message.content[WORDS][name] for name in codec.TaskMessage._fields})
    reply.content[WORDS]["nonce"] = b"x" * 32
    reply.content[WORDS]["signature"] = KEYS[BAD].sign(
        codec.signing_input(task._replace(nonce=b"x" * 32), reply.content)
    )
    return reply


def nothing_at_all(message, reply, context):
    return Message(RecordDict(), reply_to=message)


def as_somebody_else(message, reply, context):
    reply.metadata.__dict__["_src_node_id"] = FIRST_NODE
    return reply


def for_another_message(message, reply, context):
    reply.metadata.__dict__["_reply_to_message_id"] = "0" * 64
    return reply


def replayed():
    """The first answer, again and again."""
    first = []

    def change(message, reply, context):
        first.append(reply.content)
        return Message(first[0], reply_to=message)

    return change


def answering_another_task():
    """The answer to client 0's task: right in all, but for another task."""

    def change(message, reply, context):
        task = codec.TaskMessage(**{name: message.content[WORDS][name] for name in codec.TaskMessage._fields})
        other = task._replace(client=0, nonce=b"x" * 32)
        reply.content[WORDS]["nonce"] = other.nonce
        reply.content[WORDS]["signature"] = KEYS[BAD].sign(codec.signing_input(other, reply.content))
        return reply

    return change


UNSIGNED = {
    "signed by another client": (signed_by_another, "signed by client 0 (clinic-0)"),
    "signed by a stranger": (signed_by_a_stranger, "signed by a key that is not in the roster"),
    "signed by a key that it is not": (with_another_key_and_its_name, "its signature is not valid"),
    "changed after it was signed": (changed_after_signing, "its signature is not valid"),
    "without a signature": (unsigned, "unsigned: record 'phalanx' holds"),
    "without anything": (nothing_at_all, "unsigned: record 'phalanx' is a NoneType"),
    "by another node, as it says": (as_somebody_else, "its reply is from node 100"),
    "for another message, as it says": (for_another_message, "answers another message"),
    "for another task": (answering_another_task(), "meant for another task: its nonce is different"),
}


def test_what_is_not_surely_signed_is_refused_and_no_strike(tmp_path, caplog):
    ways = [lambda app, change=change: attacked(app, change) for change, _ in UNSIGNED.values()]
    told = run(tmp_path, in_turn(ways), until=len(ways), suspension=PATIENT)
    assert told.error is None
    assert told.served == [{0, 1, 2}] * len(ways)
    for (name, (_, why)), reason in zip(UNSIGNED.items(), told.invalid, strict=True):
        assert why in reason, f"{name}: {reason}"
    assert all(f"client {BAD}: {reason}" in caplog.text for reason in told.invalid)
    standing = told.transport.register.standing(BAD)
    assert (standing.strikes, standing.misses) == (0, len(ways)), "anybody could have sent it"


def test_a_good_answer_makes_up_for_a_quarter_of_a_miss_only(tmp_path):
    def well(message, reply, context):
        return reply

    ways = [unsigned, unsigned, well, unsigned, unsigned, unsigned]
    told = run(tmp_path, in_turn([lambda app, w=w: attacked(app, w) for w in ways]), until=8)
    assert [BAD in served for served in told.served] == [False, False, True, False, False, False, False, False]
    assert len(told.invalid) == 4, "1, 2, 1.75, 2.75: the fourth miss is one too many"
    assert "too many misses, the last: unsigned" in told.transport.register.barred(BAD)


def test_an_answer_that_is_replayed_is_taken_once(tmp_path, caplog):
    told = run(tmp_path, lambda app: attacked(app, replayed()))
    assert told.served == [{0, 1, 2, 3}, {0, 1, 2}, {0, 1, 2}]
    why = "replayed, or meant for another task: its nonce is different"
    assert told.invalid == [why] * 2
    assert warned(caplog) == [("invalid", BAD, step, f"client {BAD}: {why}") for step in (1, 2)]


def test_an_answer_of_an_earlier_run_is_no_answer_in_the_next(tmp_path):
    """The same clients with the same keys: what one of them signed for a run is replayed in another."""
    kept = {}

    def keeping(message, reply, context):
        kept[message.content[WORDS]["version"]] = reply.content
        return reply

    def replaying(message, reply, context):
        return Message(kept[message.content[WORDS]["version"]], reply_to=message)

    run(tmp_path / "one", lambda app: attacked(app, keeping))
    told = run(tmp_path / "two", lambda app: attacked(app, replaying))
    alone = run(tmp_path / "three", lambda app: attacked(app, unsigned))
    why = "replayed, or meant for another task: its nonce is different"
    assert told.invalid == [why, why, f"{why}; suspended"]
    assert told.served == alone.served == [{0, 1, 2}] * 3
    assert torch.equal(told.lines[-1].state.model, alone.lines[-1].state.model), "honest clients come to the same"


class Twice(InProcessGrid):
    """Hands out each reply twice, and the first reply of each node for all later messages too."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.first = {}

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        found = [self.first.setdefault(r.metadata.src_node_id, r) if _trained(r) else r for r in found]
        return found * 2


def _trained(reply):
    return reply.metadata.message_type == "train" and reply.metadata.src_node_id == FIRST_NODE + BAD


def test_a_second_copy_counts_for_nothing_and_an_old_one_answers_nothing_new(tmp_path, caplog):
    told = run(tmp_path, lambda app: app, grid=Twice)
    assert told.served == [{0, 1, 2, 3}, {0, 1, 2}, {0, 1, 2}]
    why = f"its reply is from node {FIRST_NODE + BAD}, or answers another message"
    assert told.invalid == [why] * 2
    assert warned(caplog) == [("invalid", BAD, step, f"client {BAD}: {why}") for step in (1, 2)]


# --- what never comes


class Announced(InProcessGrid):
    """One node announces its replies and uploads nothing: whoever pulls them is blocked for long."""

    def pull_messages(self, message_ids):
        for number in message_ids:
            delivery = self._deliveries.get(number)
            asks_to_train = delivery and b"train" in b"".join(delivery.contents.values())
            if asks_to_train and delivery.node == FIRST_NODE + BAD:
                time.sleep(30)
        return super().pull_messages(message_ids)


SHORT = dataclasses.replace(QUICK, answer=1.0)


@pytest.mark.slow
def test_a_reply_that_is_announced_and_never_uploaded_holds_nobody_beyond_the_deadline(tmp_path):
    told = run(tmp_path, lambda app: app, grid=Announced, timeouts=SHORT, until=2)
    assert told.served == [{0, 1, 2}] * 2
    assert told.lost == ["no answer within 1 s"] * 2
    assert 2.0 <= told.seconds < 5.0


@pytest.mark.slow
def test_in_an_asynchronous_run_nobody_waits_for_it_at_all(tmp_path):
    told = run(tmp_path, lambda app: app, grid=Announced, algorithm=FedAsync(), until=12)
    assert {client for served in told.served for client in served} == {0, 1, 2}
    assert told.lost == []
    assert told.seconds < QUICK.answer / 2


@pytest.mark.slow
def test_a_client_that_never_answers_is_lost_at_the_deadline_and_then_suspended(tmp_path, caplog):
    told = run(tmp_path, silent(), timeouts=SHORT, until=5)
    assert told.served == [{0, 1, 2}] * 5
    why = "no answer within 1 s"
    assert told.lost == [why, why, f"{why}; suspended"], "after three misses it is not asked any more"
    suspended = f"for 3600 s, after too many misses, the last: {why}"
    assert warned(caplog) == [
        *(("lost", BAD, step, f"client {BAD}: {why}") for step in range(3)),
        ("suspended", BAD, 2, f"client {BAD} is suspended {suspended}"),
    ]
    assert Note("suspended", BAD, suspended) in told.notes
    assert told.seconds < 3 * 1.0 + 3


def test_an_app_that_fails_is_lost_without_what_it_said(tmp_path):
    def fails(message, reply, context):
        raise OSError("disk\x1b[31m full" + "!" * 1000)

    told = run(tmp_path, lambda app: attacked(app, fails))
    assert told.served == [{0, 1, 2}] * 3
    assert told.lost == ["its app failed"] * 2 + ["its app failed; suspended"]


class Unreadable(InProcessGrid):
    """What one node sends makes Flower raise."""

    def pull_messages(self, message_ids):
        found = super().pull_messages(message_ids)
        if any(_trained(reply) for reply in found):
            raise KeyError("CustomDataClass")
        return found


def test_a_reply_that_flower_cannot_read_is_refused(tmp_path):
    told = run(tmp_path, lambda app: app, grid=Unreadable)
    assert told.served == [{0, 1, 2}] * 3
    why = "its reply cannot be read: KeyError: 'CustomDataClass'"
    assert told.invalid == [why, why, f"{why}; suspended"]


# --- enrolment


def reports(value):
    def change(message, reply, context):
        reply.content[WORDS]["value"] = value
        return Message(resigned(message, reply.content, KEYS[BAD]), reply_to=message)

    return lambda app: attacked(app, change, "query")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (-5, "reports -5 examples, allowed are 1 to 1,000,000,000"),
        (0, "reports 0 examples"),
        (10**18, "reports 1,000,000,000,000,000,000 examples"),
        (float("nan"), "reports nan examples, which is not an integer"),
        (2.5, "reports 2.5 examples, which is not an integer"),
        (1e300, "reports 1e+300 examples, which is not an integer"),
        ("many", "reports 'many' examples, which is not an integer"),
    ],
)
def test_a_client_that_declares_an_impossible_size_does_not_take_part(value, why, tmp_path, caplog):
    told = run(tmp_path, reports(value), until=2)
    assert told.lines[0].invalid.keys() == {BAD}
    assert told.lines[0].invalid[BAD].startswith(why)
    assert warned(caplog) == [("not enrolled", BAD, 0, f"client {BAD}: not enrolled: {told.lines[0].invalid[BAD]}")]
    assert told.served == [{0, 1, 2}] * 2


@pytest.mark.parametrize("value", [True, [1, 2], b"\x00"])
def test_a_size_that_is_no_number_at_all_is_not_let_in(value, tmp_path, caplog):
    told = run(tmp_path, reports(value), until=1, timeouts=dataclasses.replace(QUICK, enrolment=1.5))
    assert told.served == [{0, 1, 2}]
    turned_away("as its number of examples", told, caplog)


def test_of_a_size_in_words_the_beginning_is_kept(tmp_path):
    """All that clients report is in every checkpoint."""
    told = run(tmp_path, reports("many" * 500_000), until=1)
    assert told.transport.snapshot().reported[BAD] == "many" * 24 + "m..."
    assert told.lines[0].invalid[BAD].startswith("reports 'manymany")


def register_at(grid):
    return Register(grid, roster_of(4), QUICK, Suspension(), came=lambda: None)


def test_an_integer_of_any_length_is_not_let_in():
    """Flower 1.41 carries none beyond 64 bits."""
    register, task = register_at(InProcessGrid({})), TaskMessage("enrol", "abc", bytes(32), -1, 0, 0, "float32")

    def introduced(size):
        key = KEYS[BAD].public_key().public_bytes_raw()
        content = answer_content(AnswerMessage(task.nonce, key, 0, size, b""))
        content[WORDS]["signature"] = KEYS[BAD].sign(signing_input(task, content))
        return register._introduced(Message(content, FIRST_NODE, "query"), task)

    assert introduced(2**63 - 1)[1] == 2**63 - 1
    with pytest.raises(MalformedError, match="reports a int as its number of examples, expected an integer of 64 bits"):
        introduced(10**1000)


def test_of_strangers_only_those_that_are_connected_are_remembered():
    """Without authentication of nodes, each time that one comes back it has another number."""

    def nobody(message, context):
        return Message(RecordDict(), reply_to=message)

    with InProcessGrid({}) as grid:
        register = register_at(grid)
        register.begin("abc")
        for node in range(50, 55):
            grid.connect(node, nobody)
            deadline = time.monotonic() + QUICK.answer
            while register.strangers.keys() != {node} and time.monotonic() < deadline:
                time.sleep(0.01)
            assert register.strangers.keys() == {node}
            grid.disconnect(node)
        register.close()


def turned_away(why, told, caplog):
    """Asserts that a node was, and that this is in the log and in the audit trail, which has what is told."""
    node = FIRST_NODE + BAD
    reason = told.transport.register.strangers[node]
    assert why in reason
    assert ("turned away", None, 0, f"node {node} is not let in: {reason}") in warned(caplog)
    assert Note("turned away", None, f"node {node}: {reason}") in told.notes


def introduced(change):
    return lambda app: attacked(app, change, "query")


STRANGERS = {
    "unknown": (introduced(signed_by_a_stranger), "its key is not in the roster"),
    "unsigned": (introduced(unsigned), "record 'phalanx' holds"),
    "client 0, as it says": (
        introduced(lambda m, r, c: (r.content[WORDS].update(key=KEYS[0].public_key().public_bytes_raw()), r)[1]),
        "it says it is client 0 (clinic-0), and has not signed that",
    ),
    "replayed": (introduced(with_the_nonce_of_another_question), "has not signed that, for this question"),
    "silent": (lambda app: lambda message, context: None, "did not say who it is within 1 s"),
}


AT_ONCE = "replayed"  # the case that `reliability/conditions.py` rests on


@pytest.mark.parametrize(
    ("bad", "why"),
    [pytest.param(*of, id=name, marks=() if name == AT_ONCE else pytest.mark.slow) for name, of in STRANGERS.items()],
)
def test_strangers_are_not_let_in(bad, why, tmp_path, caplog):
    timeouts = dataclasses.replace(SHORT, enrolment=1.8, introduction=1.0)
    told = run(tmp_path, bad, until=2, timeouts=timeouts)
    assert told.served == [{0, 1, 2}] * 2
    turned_away(why, told, caplog)


def test_a_client_that_never_enrols_is_named(tmp_path):
    timeouts = dataclasses.replace(QUICK, enrolment=1.0)
    told = run(tmp_path, lambda app: None, least=4, timeouts=timeouts)
    assert isinstance(told.error, InfeasibleError)
    assert str(told.error).startswith("3 of the 4 clients that are needed enrolled within 1 s. Missing: 3 (clinic-3).")
    assert told.seconds < 3


def test_a_revoked_client_is_not_let_in(tmp_path):
    timeouts = dataclasses.replace(QUICK, enrolment=2.0)
    told = run(tmp_path, lambda app: app, roster=roster_of(4).changing(BAD, revoked=True), until=1, timeouts=timeouts)
    assert told.served == [{0, 1, 2}]
    assert told.transport.register.strangers[FIRST_NODE + BAD] == "client 3 (clinic-3) is revoked"


# --- suspension, and the way back


@pytest.mark.slow
def test_after_enough_strikes_a_client_is_not_asked_until_its_sentence_is_over(tmp_path):
    slowly = [lambda _: time.sleep(0.03)]  # 40 rounds are longer than two sentences
    told = run(tmp_path, filled(np.nan), until=40, suspension=Suspension(strikes=2, sentence=0.5), observers=slowly)
    assert 2 < len(told.invalid) < 20
    assert told.error is None


def test_a_suspended_client_is_let_in_again_by_the_server(tmp_path):
    plan, apps = PLAN, honest(PLAN, tmp_path)
    sick = {"ill": True}

    def change(message, reply, context):
        if sick["ill"]:
            reply.content[WORDS].update(value=-1.0)
        return Message(resigned(message, reply.content, KEYS[BAD]), reply_to=message)

    apps[BAD] = attacked(apps[BAD], change)
    served = []
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(4), timeouts=QUICK) as transport:

        def observer(progress):
            served.append(set(progress.updates.clients) if progress.updates else None)
            if progress.step == 5:
                sick["ill"] = False
                transport.register.readmit(BAD)

        start = Federation(plan).start
        phalanx.run(FedAvg(), transport, start, LoopSettings(until=Until(7)), observers=[transport, observer])
    assert served[1:] == [{0, 1, 2}] * 5 + [{0, 1, 2, 3}] * 2


def test_a_new_term_in_the_roster_lets_a_suspended_client_in_again(tmp_path):
    path = tmp_path / "roster.yaml"
    roster_of(4).save(path)
    seen = []

    def bad(app):
        return filled(np.nan)(app)

    apps = honest(PLAN, tmp_path)
    apps[BAD] = bad(apps[BAD])
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, path, timeouts=QUICK) as transport:

        def observer(progress):
            seen.append(BAD in progress.invalid)
            if progress.step == 5:
                roster_of(4).changing(BAD, term=2).save(path)
                deadline = time.monotonic() + 5
                while transport.register.roster.active[BAD].term == 1 and time.monotonic() < deadline:
                    time.sleep(0.02)

        phalanx.run(
            FedAvg(), transport, Federation(PLAN).start, LoopSettings(until=Until(7)), observers=[transport, observer]
        )
    assert seen[1:] == [True, True, True, False, False, True, True]


def test_a_client_that_is_revoked_in_mid_run_is_not_asked_any_more_and_the_promise_is_for_the_rest(tmp_path):
    path, served, promised = tmp_path / "roster.yaml", [], []
    roster_of(4).save(path)
    with (
        InProcessGrid(at_nodes(honest(PLAN, tmp_path))) as grid,
        FlowerTransport(grid, path, timeouts=QUICK) as transport,
    ):

        def observer(progress):
            served.append(set(progress.updates.clients) if progress.updates else None)
            promised.extend([(progress.promise.f, progress.promise.clients)] if progress.promise else [])
            if progress.step == 2:
                roster_of(4).changing(BAD, revoked=True).save(path)
                while BAD in transport.register.roster.active:
                    time.sleep(0.02)

        phalanx.run(
            FedAvg(Median(), Ignore()),
            transport,
            Federation(PLAN).start,
            LoopSettings(until=Until(4), tolerate=1),
            observers=[transport, observer],
        )
    assert served[1:] == [{0, 1, 2, 3}] * 2 + [{0, 1, 2}] * 2
    assert promised == [(1, 4), (1, 3)]


@pytest.mark.slow
def test_a_round_does_not_wait_for_a_client_that_is_revoked_meanwhile(tmp_path):
    path = tmp_path / "roster.yaml"
    roster_of(4).save(path)
    threading.Timer(3.0, roster_of(4).changing(BAD, revoked=True).save, (path,)).start()
    told = run(tmp_path, silent(), until=2, roster=path)
    assert told.served == [{0, 1, 2}] * 2
    assert told.lost == ["it is not, or no longer, in the roster"]
    assert told.seconds < QUICK.answer / 2


@pytest.mark.slow
def test_who_answers_at_once_gets_no_more_turns_than_the_others(tmp_path):
    """The honest take 0.3 s; the attacker none.  Without a limit it has most of the arrivals."""

    def slow(app):
        def node(message, context):
            if message.metadata.message_type == "train":
                time.sleep(0.3)
            return app(message, context)

        node.waits = True
        return node

    def share(interval):
        apps = {i: app if i == BAD else slow(app) for i, app in honest(PLAN, tmp_path).items()}
        arrivals = []
        with InProcessGrid(at_nodes(apps)) as grid:
            suspension = Suspension(interval=interval)
            with FlowerTransport(grid, roster_of(4), timeouts=QUICK, suspension=suspension) as transport:
                observe = lambda p: arrivals.extend(p.updates.clients if p.updates else ())  # noqa: E731
                phalanx.run(
                    FedAsync(), transport, Federation(PLAN).start, LoopSettings(until=Until(24)), observers=[observe]
                )
        return arrivals.count(BAD) / len(arrivals)

    assert share(0.0) > 0.5
    assert share(0.4) < 0.35


@pytest.mark.slow
def test_the_remedy_for_slow_introductions_is_named_and_works(tmp_path):
    """Nodes that need 1.5 s to say who they are, where they have 0.3 s; then as the message says."""
    plan = dataclasses.replace(SMALL, algorithm=FedAvg(), clients=3, until=Until(1))

    def slow(app):
        def node(message, context):
            if message.metadata.message_type == "query":
                time.sleep(1.5)
            return app(message, context)

        return node

    apps = {i: slow(app) for i, app in honest(plan, tmp_path / "state").items()}
    times = dataclasses.replace(QUICK, introduction=0.3, enrolment=3.0)
    with InProcessGrid(at_nodes(apps)) as grid, pytest.raises(InfeasibleError, match=r"raise Timeouts\.introduction"):
        coordinate(grid, coordinator(plan, timeouts=times))
    with InProcessGrid(at_nodes(apps)) as grid:
        longer = dataclasses.replace(times, introduction=20.0, enrolment=20.0)
        state = coordinate(grid, coordinator(plan, timeouts=longer))
    assert state.version == 1
