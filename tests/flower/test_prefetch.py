"""A second task at a client while it works on the first: ages as they are, answers in order, deadlines, kills."""

import dataclasses
import itertools
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

import phalanx
from algorithms.test_common import ALGORITHMS, one_of_each_class
from flower.federations import (
    FIRST_NODE,
    KEYS,
    QUICK,
    SMALL,
    Stepwise,
    at_nodes,
    coordinator,
    honest,
    resigned,
    roster_of,
)
from phalanx.algorithms import AsyncRFFL, FedAsync, FedAvg
from phalanx.core import InfeasibleError, Until, Verdict
from phalanx.engine import LoopSettings
from phalanx.engine.connection import Prefetching
from phalanx.flower import FlowerTransport, InProcessGrid, Suspension, coordinate
from phalanx.flower.codec import WORDS
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from runs.test_packing import same

pytestmark = pytest.mark.filterwarnings("ignore:threshold")

PLAN = dataclasses.replace(SMALL, clients=4, algorithm=FedAsync(), until=phalanx.Until(12))
BAD = 3  # the client that something is the matter with
ASYNCHRONOUS = [algorithm for algorithm in ALGORITHMS if not algorithm.traits.synchronous]


def turn_of(message):
    """How often the client was asked before; None if it is asked who it is."""
    words = message.content[WORDS]
    return words["turn"] if words["kind"] == "train" else None


def slow(app, seconds=0.0, events=()):
    """An app that takes its time before each task, or waits for an event before the task of a turn."""
    waits = dict(events)

    def node(message, context):
        turn = turn_of(message)
        if turn is not None:
            time.sleep(seconds)
            if turn in waits:
                assert waits[turn].wait(20)
        return app(message, context)

    node.waits = True
    return node


def run(
    folder, apps=None, *, grid=InProcessGrid, kind=FlowerTransport, plan=PLAN, observers=(), roster=None, **options
):
    """What observers were told of a run with one task sent ahead."""
    lines, timeouts = [], dataclasses.replace(options.pop("timeouts", QUICK), least=1)
    nodes = at_nodes(honest(plan, folder) | (apps or {}))
    roster = roster or roster_of(plan.clients)
    federation = Federation(plan)
    options |= {"timeouts": timeouts, "prefetch": True, "update_size": len(federation.start)}
    with grid(nodes) as made, kind(made, roster, **options) as transport:
        phalanx.run(
            plan.algorithm,
            transport,
            federation.start,
            plan,
            reference=federation.reference,
            observers=[transport, lines.append, *(observer(transport) for observer in observers)],
        )
    return lines


def arrivals(lines):
    """Client, version and age of each update."""
    return [
        (*line.updates.clients, *line.updates.versions, before.state.version - line.updates.versions[0])
        for before, line in itertools.pairwise(lines)
        if line.updates is not None
    ]


# --- what is asked of whom


@pytest.mark.parametrize("algorithm", one_of_each_class(ASYNCHRONOUS))
def test_every_asynchronous_algorithm_runs_and_nothing_is_refused(algorithm, tmp_path):
    own = {"server_examples": 8, "model": MLP((4,))} if algorithm.traits.needs_reference else {}
    plan, most = dataclasses.replace(SMALL, algorithm=algorithm, until=phalanx.Until(24), **own), []
    lines = run(tmp_path, plan=plan, observers=[lambda transport: lambda _: most.append(len(transport._ahead))])
    assert [dict(line.invalid | line.lost) for line in lines] == [{}] * 25
    assert max(most) >= 2, "second tasks there were"
    asked = [(client, version) for client, version, _ in arrivals(lines)]
    wanted = algorithm.download
    for line in lines[1:]:
        (client,), (version,), (base,) = line.updates.clients, line.updates.versions, line.updates.bases
        if not isinstance(algorithm, AsyncRFFL):  # there a download can change within a version
            then = [line.state for line in lines if line.state.version == version]  # rewards change within a version
            assert any(torch.equal(base, wanted(state, client)) for state in then)
    assert len(asked) == 24


def test_ages_are_what_they_are(tmp_path):
    """Two clients in turns.  By hand: 0, 1, 1, then 2, and 3 for ever; without a second task it is 0, then 1."""
    plan = dataclasses.replace(PLAN, clients=2, until=phalanx.Until(9))
    lines = run(tmp_path, plan=plan, grid=partial(InProcessGrid, stepwise=True), kind=Stepwise)
    assert [client for client, _, _ in arrivals(lines)] == [0, 1] * 4 + [0]
    assert [version for _, version, _ in arrivals(lines)] == [0, 0, 1, 1, 2, 2, 3, 4, 5]


def test_a_client_is_not_asked_more_often_than_the_discipline_allows(tmp_path):
    at = []

    class Timed(InProcessGrid):
        def push_messages(self, messages):
            messages = [*messages]
            at.extend((time.monotonic(), turn_of(m)) for m in messages if m.metadata.dst_node_id == FIRST_NODE)
            return super().push_messages(messages)

    run(tmp_path, grid=Timed, suspension=Suspension(interval=0.4))
    times = [when for when, turn in at if turn is not None]
    assert len(times) > 2
    assert min(b - a for a, b in itertools.pairwise(times)) >= 0.39


def test_rounds_have_no_second_task(tmp_path):
    with pytest.raises(InfeasibleError, match="FedAvg is synchronous: nothing can be sent ahead"):
        run(tmp_path, plan=dataclasses.replace(PLAN, algorithm=FedAvg()))


def test_a_transport_says_whether_it_sends_ahead(tmp_path):
    with InProcessGrid({}) as grid, FlowerTransport(grid, roster_of(1)) as transport:
        assert isinstance(transport, Prefetching)
        assert transport.prefetch is False
    assert not isinstance(Federation(PLAN).transport, Prefetching)


# --- order and deadlines


class Swapped(InProcessGrid):
    """The answer to turn 0 of a client comes when it is told to, and that to turn 1 would be there before it."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.turns, self.looked_for, self.first_may = {}, [], threading.Event()

    def push_messages(self, messages):
        messages = [*messages]
        numbers = super().push_messages(messages)
        told = {n: turn_of(m) for n, m in zip(numbers, messages, strict=True)}
        self.turns |= {n: t for n, t in told.items() if self._deliveries[n].node == FIRST_NODE + BAD}
        return numbers

    def pull_messages(self, message_ids):
        (number,) = message_ids
        if self.turns.get(number) == 0 and not self.first_may.is_set():
            return []
        found = super().pull_messages([number])
        if self.turns.get(number) is not None and found:
            self.looked_for.append(self.turns[number])
        return found

    @property
    def second_is_there(self):
        """Whether the client has answered turn 1."""
        numbers = [n for n, turn in self.turns.items() if turn == 1 and n in self._deliveries]
        return any(self._deliveries[n].reply for n in numbers)


def test_an_answer_to_the_second_task_waits_for_the_first(tmp_path):
    seen, grids = [], []

    def observer(transport):
        grid = transport.register.grid
        grids.append(grid)

        def observe(progress):
            if grid.second_is_there and not grid.first_may.is_set():
                seen.append(progress.step)
                if len(seen) > 3:
                    grid.first_may.set()

        return observe

    plan = dataclasses.replace(PLAN, until=phalanx.Until(40))
    lines = run(tmp_path, grid=Swapped, plan=plan, observers=[observer])
    steps = [(line.step, version) for line, (i, version, _) in zip(lines[1:], arrivals(lines), strict=True) if i == BAD]
    assert len(seen) > 3, "steps were done while the second answer was there"
    assert steps[0][0] > seen[-1]
    assert steps[0][1] == 0
    assert steps[1][1] > 0
    assert grids[0].looked_for[:2] == [0, 1]
    assert not any(line.invalid or line.lost for line in lines)


@pytest.mark.slow
def test_the_second_deadline_counts_from_the_end_of_the_first(tmp_path):
    """Client 3 answers its first task after half a second, and never again."""

    def mute(app):
        def node(message, context):
            if turn_of(message) == 0:
                time.sleep(0.6)
            return None if turn_of(message) else app(message, context)

        node.waits = True
        return node

    ends, begun = [], []

    def observer(transport):
        begun.append(time.monotonic())

        def observe(progress):
            time.sleep(0.02)
            if progress.updates is not None and BAD in progress.updates.clients:
                ends.append(("first", time.monotonic()))
            if BAD in progress.lost:
                ends.append((progress.lost[BAD], time.monotonic()))

        return observe

    apps = honest(PLAN, tmp_path)
    plan = dataclasses.replace(PLAN, until=phalanx.Until(seconds=3.0))
    timeouts = dataclasses.replace(QUICK, answer=1.2)
    run(tmp_path, {BAD: mute(apps[BAD])}, plan=plan, timeouts=timeouts, observers=[observer])
    assert [what for what, _ in ends][:2] == ["first", "no answer within 1.2 s"]
    assert ends[1][1] - ends[0][1] == pytest.approx(1.2, abs=0.3)


@pytest.mark.slow
def test_both_tasks_of_a_silent_client_are_lost_one_after_the_other(tmp_path):
    def mute(message, context):
        return None if turn_of(message) is not None else apps[BAD](message, context)

    apps, lost = honest(PLAN, tmp_path), []

    def observer(transport):
        def observe(progress):
            time.sleep(0.02)
            if BAD in progress.lost:
                lost.append(time.monotonic())

        return observe

    plan = dataclasses.replace(PLAN, until=phalanx.Until(seconds=3.5))
    timeouts = dataclasses.replace(QUICK, answer=1.2)
    run(tmp_path, {BAD: mute}, plan=plan, timeouts=timeouts, observers=[observer], suspension=Suspension(misses=2))
    assert len(lost) == 3, "two deadlines; then it is suspended, with its third task under way"
    assert lost[1] - lost[0] == pytest.approx(1.2, abs=0.5)
    assert lost[2] - lost[1] < 0.3


# --- who must not be asked any more


def check_that_nothing_came_after(lines, step):
    """Nobody was refused, nothing of the client was used, and the run went on."""
    assert all(BAD not in line.updates.clients for line in lines if line.updates is not None and line.step > step)
    assert lines[-1].step >= 12


def test_of_a_client_that_is_suspended_the_second_task_is_given_up(tmp_path):
    def ill(app):
        def node(message, context):
            reply = app(message, context)
            if turn_of(message) == 0:
                time.sleep(0.2)
                reply.content[WORDS]["value"] = -1.0  # a loss that is none
                return Message(resigned(message, reply.content, KEYS[BAD]), reply_to=message)
            return reply  # as it should be

        node.waits = True
        return node

    apps = honest(PLAN, tmp_path)
    others = {i: slow(app, 0.05) for i, app in apps.items() if i != BAD}
    lines = run(tmp_path, others | {BAD: ill(apps[BAD])}, suspension=Suspension(strikes=1))
    check_that_nothing_came_after(lines, 0)
    why = "loss is -1.0, not a finite number of at least 0; suspended"
    assert [line.invalid[BAD] for line in lines if line.invalid] == [why]
    (lost,) = [line.lost for line in lines if line.lost]
    assert lost.keys() == {BAD}
    assert lost[BAD].startswith("suspended for 3600 s more after 1 strike, the last: loss is -1.0")


def test_of_a_client_that_is_revoked_both_tasks_are_given_up_at_once(tmp_path):
    path, never = tmp_path / "roster.yaml", threading.Event()
    roster_of(4).save(path)
    apps = honest(PLAN, tmp_path)

    def observer(transport):
        def observe(progress):
            time.sleep(0.03)
            if progress.step == 4 and progress.updates is not None:
                assert BAD in transport._ahead
                roster_of(4).changing(BAD, revoked=True).save(path)
                while BAD in transport.register.roster.active:
                    time.sleep(0.02)

        return observe

    begun = time.monotonic()
    try:
        lines = run(tmp_path, {BAD: slow(apps[BAD], events={0: never})}, roster=path, observers=[observer])
    finally:
        never.set()
    check_that_nothing_came_after(lines, 0)
    lost = [line.lost[BAD] for line in lines if BAD in line.lost]
    assert lost == ["it is not, or no longer, in the roster"] * 2
    assert time.monotonic() - begun < QUICK.answer / 2


@dataclasses.dataclass(frozen=True)
class Removes(FedAsync):
    """Removes a client for good with the first update that it brings."""

    def step(self, state, updates):
        assert state.version < 1 or BAD not in updates.clients or not state.verdicts.get(BAD, Verdict(True, 1.0)).final
        state, ready = super().step(state, updates)
        if BAD in updates.clients:
            state = state._replace(verdicts={BAD: Verdict(False, 0.0, None, "removed", final=True)})
        return state, ready - {BAD}


def test_of_a_client_that_the_algorithm_removes_the_second_task_is_given_up(tmp_path):
    plan, waits_for = dataclasses.replace(PLAN, algorithm=Removes(), until=phalanx.Until(30)), []
    holds_two = threading.Event()
    apps = {i: slow(app, 0.05) for i, app in honest(plan, tmp_path).items()}
    apps[BAD] = slow(apps[BAD], events={0: holds_two})

    def observer(transport):
        def observe(_):
            waits_for.append({*transport._open})
            if BAD in transport._ahead:
                holds_two.set()

        return observe

    lines = run(tmp_path, apps, plan=plan, observers=[observer])
    came = [line.step for line in lines if line.updates is not None and BAD in line.updates.clients]
    assert len(came) == 1
    check_that_nothing_came_after(lines, came[0])
    assert BAD in waits_for[came[0] - 1]
    assert not any(BAD in clients for clients in waits_for[came[0] :])
    assert not any(line.invalid or line.lost for line in lines)


def test_participants_that_are_removed_by_their_reputation_do_no_harm(tmp_path):
    def against(app):
        def node(message, context):
            reply = app(message, context)
            if turn_of(message) is None:
                return reply
            array = reply.content["vector"]["values"].numpy()
            array *= -1.0
            reply.content["vector"]["values"] = type(reply.content["vector"]["values"])(array)
            return Message(resigned(message, reply.content, KEYS[BAD]), reply_to=message)

        return node

    plan = dataclasses.replace(PLAN, algorithm=AsyncRFFL(warmup=0), until=phalanx.Until(60))
    lines = run(tmp_path, {BAD: against(honest(plan, tmp_path)[BAD])}, plan=plan)
    gone = [line.step for line in lines if any(v.final for v in line.state.verdicts.values())]
    assert gone, "somebody was removed"
    assert not any(line.invalid or line.lost for line in lines)


# --- kill and resume


class Killed(BaseException):
    """The server's process is gone."""


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAsync(), AsyncRFFL()], ids=str)
def test_a_server_that_was_killed_gives_both_tasks_again(algorithm, tmp_path):
    """Clients that remember go back two turns: what they say they sent in all is what the server has of them."""
    plan = dataclasses.replace(PLAN, algorithm=algorithm, until=phalanx.Until(16))
    kept, steps, clients = [], {}, range(plan.clients)

    def observer(progress):
        if progress.updates is not None:
            steps[progress.step] = (*progress.updates.clients, progress.updates.deltas[0].clone())
            time.sleep(0.1)  # clients come to the end of both tasks
        assert not progress.invalid
        assert not progress.lost
        if progress.step == 8 and not kept:
            kept.append(progress.step)
            raise Killed

    for _ in range(2):
        made = coordinator(plan, folder=tmp_path / "run", observers=[observer], prefetch=True)
        with InProcessGrid(at_nodes(honest(plan, tmp_path))) as grid:
            try:
                coordinate(grid, made)
            except Killed:
                continue
    assert max(steps) == 16
    if not algorithm.traits.remembers:
        return
    for client in clients:
        sent = [delta for _, (i, delta) in sorted(steps.items()) if i == client]
        files = {int(path.stem.split("-")[-1]): path for path in (tmp_path / str(client)).glob("*.npz")}
        with np.load(files[len(sent) - 1]) as file:  # what it did after that is on its way
            assert torch.allclose(torch.from_numpy(file["memory"]), torch.stack(sent).sum(0), atol=1e-6)


def test_a_snapshot_holds_both_tasks_in_order(tmp_path):
    never = threading.Event()
    apps = {i: slow(app, events={0: never} if i == BAD else {}) for i, app in honest(PLAN, tmp_path).items()}
    held = []

    def keep(take):
        snapshot = take()
        if BAD in snapshot.ahead and not held:
            held.append(snapshot)

    start, roster = Federation(PLAN).start, roster_of(4)
    with (
        InProcessGrid(at_nodes(apps)) as grid,
        FlowerTransport(grid, roster, timeouts=QUICK, prefetch=True) as transport,
    ):
        phalanx.run(PLAN.algorithm, transport, start, LoopSettings(until=Until(6)), on_snapshot=keep)
        never.set()
    (snapshot,) = held
    underway = snapshot.transport
    assert (underway.pending[BAD].version, underway.pending[BAD].turn) == (0, 0)
    assert (underway.ahead[BAD].version, underway.ahead[BAD].turn) == (snapshot.ahead[BAD].version, 1)
    assert snapshot.sent.keys() == underway.pending.keys()
    assert same(
        {i: sent.version for i, sent in snapshot.ahead.items()}, {i: p.version for i, p in underway.ahead.items()}
    )

    lines, turns = [], []

    class Noted(InProcessGrid):
        def push_messages(self, messages):
            messages = [*messages]
            turns.extend(turn_of(m) for m in messages if m.metadata.dst_node_id == FIRST_NODE + BAD)
            return super().push_messages(messages)

    grid, more = Noted(at_nodes(honest(PLAN, tmp_path))), snapshot.step + 12
    with grid, FlowerTransport(grid, roster, timeouts=QUICK, prefetch=True) as transport:
        phalanx.run(
            PLAN.algorithm, transport, start, LoopSettings(until=Until(more)), observers=[lines.append], resume=snapshot
        )
    assert [turn for turn in turns if turn is not None][:3] == [0, 1, 2]
    assert not any(line.invalid or line.lost for line in lines)
    assert [version for client, version, _ in arrivals(lines) if client == BAD][:2] == [0, snapshot.ahead[BAD].version]


def test_a_run_goes_on_without_second_tasks_where_it_began_with_them(tmp_path):
    plan = dataclasses.replace(PLAN, until=phalanx.Until(14))
    lines = []

    def observer(progress):
        lines.append(progress)
        if progress.step == 6 and len(lines) == 7:
            raise Killed

    for prefetch in (True, False):
        made = coordinator(plan, folder=tmp_path / "run", observers=[observer], prefetch=prefetch)
        with InProcessGrid(at_nodes(honest(plan, tmp_path))) as grid:
            try:
                coordinate(grid, made)
            except Killed:
                continue
    assert lines[-1].step == 14
    assert not any(line.invalid or line.lost for line in lines)


def test_a_bad_record_beside_the_second_answer_is_refused_as_any(tmp_path):
    def more(app):
        def node(message, context):
            reply = app(message, context)
            if turn_of(message) == 1:
                content = RecordDict(dict(reply.content) | {"more": ConfigRecord({"x": 1})})
                return Message(resigned(message, content, KEYS[BAD]), reply_to=message)
            return reply

        return node

    plan = dataclasses.replace(PLAN, until=phalanx.Until(20))
    apps = honest(plan, tmp_path)
    others = {i: slow(app, 0.1) for i, app in apps.items() if i != BAD}
    lines = run(tmp_path, others | {BAD: more(apps[BAD])}, plan=plan)
    (refused,) = [line.invalid for line in lines if line.invalid]
    assert refused[BAD].startswith("records are 'more', ")
    assert [client for client, _, _ in arrivals(lines)].count(BAD) > 1, "and goes on"
