"""Silence of more clients than a plan tolerates, and pauses of the coordinator: no client is charged, and bits stay."""

import dataclasses
import datetime
import itertools
import threading
import time

import httpx
import pytest
import torch
from flwr.app import Error
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from flower.federations import (
    FIRST_NODE,
    KEYS,
    MINE,
    QUICK,
    SMALL,
    at_nodes,
    coordinator,
    honest,
    named,
    roster_of,
    silent,
    states_in_simulation,
)
from phalanx import Until
from phalanx.aggregators import Median
from phalanx.algorithms import FedAsync, FedAvg, WorkerMomentum
from phalanx.core import InfeasibleError, StalledError
from phalanx.engine import LoopSettings
from phalanx.flower import FlowerTransport, InProcessGrid, Standing, Suspension, audit, coordinate, seen
from phalanx.flower.audit import read
from phalanx.flower.awake_clock import PAUSE, AwakeClock
from phalanx.flower.codec import WORDS
from phalanx.flower.outage import Outage
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from phalanx.runs.record import Record
from phalanx.runs.verification import verify
from phalanx.weighting import Ignore
from runs.test_packing import same

pytestmark = pytest.mark.filterwarnings("ignore:threshold")

MEDIAN = FedAvg(Median(), Ignore())  # tolerates 1 of 4
PLAN = dataclasses.replace(SMALL, clients=4, model=MLP((4,)), algorithm=MEDIAN, until=Until(4))
SHORT = dataclasses.replace(QUICK, answer=1.5, margin=None, absent=0.3, outage=60.0)
STRICT = Suspension(misses=1)  # one miss suspends for an hour


# --- the rule


@given(st.integers(1, 12), st.integers(0, 12), st.data())
def test_as_many_silent_clients_as_are_tolerated_are_no_outage_and_one_more_is(n, f, data):
    clients = frozenset(range(n))
    quiet = data.draw(st.frozensets(st.integers(0, n - 1)))
    outage = Outage(10.0, lambda: 0.0)
    gone = data.draw(st.frozensets(st.sampled_from(sorted(quiet)))) if quiet else frozenset()
    for client in quiet - gone:
        outage.missed(client, Standing(), "silent")
    assert outage.judge(clients, gone, f) == quiet
    too_many = len(quiet) > f if f else 2 * len(quiet) > n
    assert (outage.since is not None) is (too_many or len(quiet) == n)
    assert outage.judge(clients, clients, f) == clients
    assert outage.since is not None, "all are always too many"


def test_misses_of_long_ago_do_not_count_and_an_answer_ends_the_silence():
    now = [0.0]
    outage = Outage(10.0, lambda: now[0])
    outage.missed(0, Standing(misses=1.0), "silent")
    now[0] = 8.0
    outage.missed(1, Standing(), "silent")
    outage.missed(1, Standing(misses=1.0), "gone")
    assert outage.judge(frozenset(range(4)), frozenset(), 1) == {0, 1}
    assert outage.since == 8.0
    assert outage.before(1) == Standing(), "as before the first miss"
    assert outage.why(1) == "gone"
    now[0] = 10.5
    assert outage.judge(frozenset(range(4)), frozenset(), 1) == {1}
    assert outage.since is None
    outage.answered(1)
    assert outage.before(1) is None


@given(st.lists(st.floats(0.0, 3 * PAUSE), max_size=50))
def test_the_clock_goes_on_by_small_steps_only(steps):
    now = [100.0]
    clock = AwakeClock(lambda: now[0])
    begun = clock()
    for step in steps:
        now[0] += step
        clock()
    assert clock() - begun == pytest.approx(sum(step for step in steps if step <= PAUSE), abs=1e-6)
    assert clock.paused == pytest.approx(sum(step for step in steps if step > PAUSE), abs=1e-6)


# --- bits


class Cut:
    """A network that is cut for some clients: their tasks are not heard, or their answers are lost."""

    def __init__(self, clients, *, answers_only=False):
        self.clients, self.answers_only = clients, answers_only
        self.cut, self.lost = threading.Event(), 0

    def before(self, client, app):
        def node(message, context):
            quiet = self.cut.is_set() and client in self.clients and message.metadata.message_type == "train"
            if quiet and not self.answers_only:
                self.lost += 1
                return None
            reply = app(message, context)
            self.lost += quiet
            return None if quiet else reply

        return node

    def at(self, step, seconds):
        """Return an observer that cuts the network after a step, for some seconds."""

        def observe(progress):
            if progress.step == step and not self.lost:
                self.cut.set()
                threading.Timer(seconds, self.cut.clear).start()

        return observe


class Observed:
    """A run over Flower's messages: its states, events, and transport."""

    def __init__(self, plan, folder, *, change=lambda client, app: app, grid=InProcessGrid, observers=(), **options):
        self.states, self.lost, self.notes = [], {}, []
        federation = Federation(plan)
        nodes = at_nodes({i: change(i, app) for i, app in honest(plan, folder, federation).items()})
        made = {"timeouts": SHORT, "suspension": STRICT, "tell": self.notes.append, **options}
        with (
            grid(nodes) as self.grid,
            FlowerTransport(self.grid, roster_of(plan.clients), update_size=len(federation.start), **made) as transport,
        ):
            self.transport = transport
            observers = [transport, self.note, *(observer(self) for observer in observers)]
            phalanx.run(
                plan.algorithm,
                transport,
                federation.start,
                LoopSettings(
                    until=plan.until, guard=plan.guard, tolerate=1 if isinstance(plan.algorithm.rule, Median) else None
                ),
                observers=observers,
            )

    def note(self, progress):
        self.states.append(progress.state)
        self.lost |= progress.lost

    @property
    def events(self):
        return [note.event for note in self.notes if note.event != "enrolled"]


def without(outage, *events):
    return [event for event in outage if event not in events]


def outages():
    """Who is out, what is lost, and the algorithm; all but two are slow."""
    for out, lost, algorithm in itertools.product(
        ("all", "n - f", "f + 1"), ("tasks", "answers"), (MEDIAN, WorkerMomentum(MEDIAN))
    ):
        few = (out, lost, algorithm) in (("all", "tasks", MEDIAN), ("f + 1", "answers", WorkerMomentum(MEDIAN)))
        who = {"all": {0, 1, 2, 3}, "n - f": {1, 2, 3}, "f + 1": {2, 3}}[out]
        name = f"{type(algorithm).__name__}-{out}-{lost} are lost"
        yield pytest.param(algorithm, who, lost == "answers", id=name, marks=() if few else pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "out", "answers_only"), outages())
def test_after_an_outage_the_run_ends_with_the_bits_of_the_simulation(algorithm, out, answers_only, tmp_path):
    plan = dataclasses.replace(PLAN, algorithm=algorithm)
    cut = Cut(out, answers_only=answers_only)
    seen = Observed(plan, tmp_path, change=cut.before, observers=[lambda _: cut.at(2, 4.0)])
    assert cut.lost >= len(out)
    assert same(seen.states, states_in_simulation(plan))
    assert seen.lost == {}, "no round was lost to it"
    assert seen.events == ["outage", "outage over"]
    first = seen.notes[-2].why
    assert f"outage: {len(out)} of 4 clients are silent; nobody is charged. Silent: " in first
    assert all(f"{i} (clinic-{i})" in first for i in out)
    assert [seen.transport.register.standing(i).misses for i in range(4)] == [0.0] * 4
    assert [seen.transport.register.barred(i) for i in range(4)] == [""] * 4


def test_f_silent_clients_cause_no_outage_and_are_charged(tmp_path):
    cut = Cut({3})
    seen = Observed(PLAN, tmp_path, change=cut.before, observers=[lambda _: cut.at(1, 60.0)])
    cut.cut.clear()
    assert seen.events == ["suspended"]
    assert seen.lost == {3: "no answer within 1.5 s; suspended"}, "the last of three"
    assert "too many misses" in seen.transport.register.barred(3)


@pytest.mark.slow
def test_a_suspension_at_the_beginning_of_an_outage_is_lifted(tmp_path):
    """One falls silent a round before the others."""
    early, late = Cut({3}), Cut({0, 1, 2})
    change = lambda client, app: late.before(client, early.before(client, app))  # noqa: E731
    seen = Observed(
        dataclasses.replace(PLAN, until=Until(6)), tmp_path, change=change,
        observers=[lambda _: early.at(1, 4.0), lambda _: late.at(2, 4.0)],
    )  # fmt: skip
    assert seen.events == ["suspended", "re-admitted", "outage", "outage over"]
    assert [seen.transport.register.barred(i) for i in range(4)] == [""] * 4
    assert seen.states[-1].version == 6


@pytest.mark.slow
def test_nodes_that_all_disappear_between_rounds_are_waited_for(tmp_path):
    """Longer than ten times `absent`, after which a run ends where it waits for nobody in particular."""
    nodes = {}

    def observer(seen):
        def observe(progress):
            if progress.step == 2 and not nodes:
                nodes.update(seen.grid.nodes)
                for node in nodes:
                    seen.grid.disconnect(node)
                threading.Timer(3.0, lambda: [seen.grid.connect(*one) for one in nodes.items()]).start()
                time.sleep(0.3)

        return observe

    seen = Observed(PLAN, tmp_path, observers=[observer], timeouts=dataclasses.replace(SHORT, absent=0.05))
    assert seen.events == ["outage", "outage over"]
    assert seen.lost == {}
    assert same(seen.states, states_in_simulation(PLAN))


@pytest.mark.slow
def test_who_answers_that_it_cannot_is_not_silent(tmp_path):
    """Two are cut off, then reached again, but cannot train: the outage ends, and they are charged."""
    plan, cut = dataclasses.replace(PLAN, clients=6, until=Until(30)), Cut({4, 5})
    begun, over = [], []

    def change(client, app):
        inner = cut.before(client, app)

        def node(message, context):
            if client in cut.clients and begun and not cut.cut.is_set() and message.metadata.message_type == "train":
                return Message(Error(2, "the disk of the data is not mounted"), reply_to=message)
            return inner(message, context)

        return node

    def observer(seen):
        def observe(progress):
            if progress.step == 2:
                begun.append(None)
                cut.at(2, 4.0)(progress)
            over.append(seen.transport.outage.since is None)
            time.sleep(0.1)

        return observe

    seen = Observed(
        plan, tmp_path, change=change, observers=[observer], timeouts=dataclasses.replace(SHORT, outage=20.0)
    )
    assert without(seen.events, "suspended") == ["outage", "outage over"]
    assert seen.events.count("suspended") == 2
    assert over[-1]


class Unreachable(InProcessGrid):
    """A SuperLink that takes no tasks for a while, from the third on."""

    down, tasks = False, 0

    def push_messages(self, messages):
        messages = [*messages]
        if messages[0].metadata.message_type == "train":
            self.tasks += 1
            if self.tasks == 9:
                type(self).down = True
                threading.Timer(3.0, setattr, (type(self), "down", False)).start()
            if self.down:
                raise httpx.ConnectError("All connection attempts failed")
        return super().push_messages(messages)


@pytest.mark.slow
def test_while_the_superlink_cannot_be_reached_nobody_is_charged(tmp_path):
    seen = Observed(PLAN, tmp_path, grid=Unreachable)
    assert seen.events == ["outage", "outage over"]
    assert same(seen.states, states_in_simulation(PLAN))


@pytest.mark.slow
def test_an_asynchronous_run_goes_on_after_an_outage_of_all(tmp_path):
    plan = dataclasses.replace(PLAN, algorithm=FedAsync(), until=Until(12))
    cut = Cut({0, 1, 2, 3})
    seen = Observed(plan, tmp_path, change=cut.before, observers=[lambda _: cut.at(4, 4.0)], suspension=Suspension())
    assert without(seen.events, "suspended", "re-admitted") == ["outage", "outage over"]
    assert seen.events.count("suspended") == seen.events.count("re-admitted")
    assert [seen.transport.register.barred(i) for i in range(4)] == [""] * 4
    assert seen.states[-1].version == 12


@pytest.mark.slow
def test_a_plan_that_promises_nothing_takes_more_than_half_for_an_outage(tmp_path):
    plan = dataclasses.replace(PLAN, algorithm=FedAvg(), until=Until(4))
    two, three = Cut({2, 3}), Cut({1, 2, 3})
    charged = Observed(plan, tmp_path / "2", change=two.before, observers=[lambda _: two.at(1, 60.0)])
    two.cut.clear()
    assert charged.events == ["suspended"] * 2
    seen = Observed(plan, tmp_path / "3", change=three.before, observers=[lambda _: three.at(1, 4.0)])
    assert seen.events == ["outage", "outage over"]
    assert same(seen.states, states_in_simulation(plan))


@pytest.mark.slow
def test_with_least_the_operator_says_whether_a_round_waits(tmp_path):
    """Two of four are enough, here: the round goes on without the others, who are not charged all the same."""
    plan, cut = dataclasses.replace(PLAN, algorithm=FedAvg(Median(), Ignore())), Cut({2, 3})
    timeouts = dataclasses.replace(SHORT, least=2)
    made = lambda seen: lambda _: setattr(seen.transport, "f", 1)  # noqa: E731
    seen = Observed(plan, tmp_path, change=cut.before, observers=[lambda _: cut.at(1, 60.0), made], timeouts=timeouts)
    cut.cut.clear()
    assert seen.lost.keys() == {2, 3}
    assert without(seen.events, "outage", "outage over") == []
    assert [seen.transport.register.barred(i) for i in range(4)] == [""] * 4


@pytest.mark.slow
def test_an_outage_that_does_not_end_ends_the_run_which_goes_on_later_as_the_message_says(tmp_path):
    cut = Cut({0, 1, 2})
    federation = Federation(PLAN)
    apps = {i: cut.before(i, app) for i, app in honest(PLAN, tmp_path / "state", federation).items()}
    folder = tmp_path / "run"
    short = dataclasses.replace(SHORT, outage=2.5)
    options = {"federation": federation, "folder": folder, "tolerate": 1, "accept": (), "suspension": STRICT}
    with InProcessGrid(at_nodes(apps)) as grid, pytest.raises(StalledError, match=r"Start the run again when they are"):
        coordinate(grid, coordinator(PLAN, timeouts=short, observers=[cut.at(2, 600.0)], **options))
    assert "client 0: no answer within " in Record.load(folder).summary.error
    cut.cut.clear()
    with InProcessGrid(at_nodes(apps)) as grid:
        state = coordinate(grid, coordinator(PLAN, timeouts=short, **options))
    assert same([state], states_in_simulation(PLAN)[-1:])
    assert [entry.event for entry in read(folder / "audit.jsonl") if entry.event in ("suspended", "lost")] == []


# --- pauses of the coordinator


class Paused:
    """A clock that jumps by ten minutes while a client works on its second task, as for a process that was stopped."""

    def __init__(self, client=3, then=lambda: None):
        self.ahead, self.client, self.then = 0.0, client, then
        self.clock = AwakeClock(lambda: time.monotonic() + self.ahead)

    def before(self, client, app):
        def node(message, context):
            words = message.content[WORDS]
            if client == self.client and (words["kind"], words["turn"]) == ("train", 1) and not self.ahead:
                time.sleep(0.3)  # the others have answered
                self.ahead = 600.0
                time.sleep(0.3)
                self.then()
            return app(message, context)

        return node


def test_a_pause_of_the_coordinator_extends_all_deadlines(tmp_path):
    paused = Paused()
    seen = Observed(PLAN, tmp_path, change=paused.before, timeouts=QUICK, clock=paused.clock)
    assert seen.events == ["paused"]
    assert seen.notes[-1].why == "the coordinator's process stopped for 600 s; deadlines are extended by that"
    assert seen.lost == {}
    assert same(seen.states, states_in_simulation(PLAN))


def test_a_task_that_expires_at_flower_while_the_coordinator_pauses_is_sent_again_and_no_miss(tmp_path):
    made = []

    class Expiring(InProcessGrid):
        def __init__(self, nodes):
            super().__init__(nodes)
            made.append(self)

        def expire(self):
            """Let the open messages of client 3 expire."""
            with self._lock:
                for delivery in self._deliveries.values():
                    if delivery.node == FIRST_NODE + 3:
                        delivery.failure = Error(4, "expired")
            time.sleep(0.3)

    paused = Paused(then=lambda: [one.expire() for one in made])
    seen = Observed(PLAN, tmp_path, change=paused.before, timeouts=QUICK, clock=paused.clock, grid=Expiring)
    assert seen.events == ["paused"]
    assert seen.transport.register.standing(3).misses == 0.0
    assert same(seen.states, states_in_simulation(PLAN))


def test_a_pause_while_clients_enrol_extends_the_time_for_it(tmp_path):
    paused = Paused()
    nodes = at_nodes(honest(PLAN, tmp_path))
    late = nodes.pop(FIRST_NODE + 3)
    timeouts = dataclasses.replace(QUICK, enrolment=3.0)
    with (
        InProcessGrid(nodes) as grid,
        FlowerTransport(grid, roster_of(4), timeouts=timeouts, clock=paused.clock) as transport,
    ):
        threading.Timer(0.3, setattr, (paused, "ahead", 600.0)).start()
        threading.Timer(1.5, grid.connect, (FIRST_NODE + 3, late)).start()
        assert transport.enroll().keys() == {0, 1, 2, 3}


# --- the beginning


@pytest.mark.parametrize("tolerate", [1, None])
def test_a_run_begins_without_as_many_clients_as_its_plan_tolerates(tolerate, tmp_path):
    plan = dataclasses.replace(PLAN, algorithm=MEDIAN if tolerate else FedAvg())
    apps = honest(plan, tmp_path / "state")
    del apps[3]
    made = coordinator(plan, tolerate=tolerate, folder=tmp_path, timeouts=dataclasses.replace(SHORT, enrolment=1.0))
    with InProcessGrid(at_nodes(apps)) as grid:
        if tolerate is None:
            with pytest.raises(InfeasibleError, match=r"3 of the 4 clients that are needed .*Missing: 3 \(clinic-3\)"):
                coordinate(grid, made)
            return
        assert coordinate(grid, made).version == 4
    assert "begins without clients 3 (clinic-3)" in [entry.why for entry in read(tmp_path / "audit.jsonl")]
    assert Record.load(tmp_path).summary.missing == {3: "clinic-3"}


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_wall_clock_that_jumps_changes_nothing(jump, tmp_path, monkeypatch):
    """By a day, after each step: of coordinator and clients, in all that asks for the time of day."""
    by, real = [0.0], time.time

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=by[0])

    def jumps(progress):
        by[0] += jump

    states = []
    for name in ("calm", "jumping"):
        folder = tmp_path / name
        if name == "jumping":
            monkeypatch.setattr(time, "time", lambda: real() + by[0])
            for module in (audit, seen):
                monkeypatch.setattr(module, "datetime", Jumping)
        with InProcessGrid(at_nodes(honest(PLAN, folder, coordinator=MINE))) as grid:
            options = {"folder": folder / "run", "roster": named(PLAN.clients), "key": KEYS[11], "observers": [jumps]}
            states.append(coordinate(grid, coordinator(PLAN, **options)))
    assert torch.equal(states[0].model, states[1].model)
    lines = read(tmp_path / "jumping" / "run" / "audit.jsonl")
    assert abs(by[0]) >= PLAN.until.steps * 86_400
    assert [line.seconds for line in lines] == sorted(line.seconds for line in lines)
    events = [
        sorted(line.event for line in read(tmp_path / name / "run" / "audit.jsonl")) for name in ("calm", "jumping")
    ]
    assert events[0] == events[1], "nobody is late, suspended or turned away"
    found = verify(tmp_path / "jumping" / "run", [tmp_path / "jumping" / "0" / "tasks.jsonl"], MINE)
    assert (found.findings, found.status) == ((), 0)


def slow_to_introduce(seconds):
    def of(app):
        def node(message, context):
            if message.metadata.message_type == "query":
                time.sleep(seconds)
            return app(message, context)

        node.waits = True
        return node

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "short", "remedy", "longer"),
    [
        (1.5, {"introduction": 0.2, "enrolment": 1.0}, "introduction", {"introduction": 20.0, "enrolment": 10.0}),
        (1.5, {"introduction": 20.0, "enrolment": 0.7}, "enrolment", {"introduction": 20.0, "enrolment": 10.0}),
    ],
)
def test_the_remedy_for_clients_that_are_not_in_is_named_and_works(seconds, short, remedy, longer, tmp_path):
    apps = {i: slow_to_introduce(seconds)(app) for i, app in honest(PLAN, tmp_path).items()}
    plan = dataclasses.replace(PLAN, until=Until(1))
    with InProcessGrid(at_nodes(apps)) as grid, pytest.raises(InfeasibleError, match=rf"Raise Timeouts\.{remedy}\."):
        coordinate(grid, coordinator(plan, timeouts=dataclasses.replace(QUICK, absent=30.0, **short)))
    with InProcessGrid(at_nodes(apps)) as grid:
        made = coordinator(plan, timeouts=dataclasses.replace(QUICK, **longer))
        assert coordinate(grid, made).version == 1


@pytest.mark.slow
def test_a_node_has_twice_the_time_to_introduce_itself_after_each_failure(tmp_path):
    """0.2, 0.4, 0.8 and 1.6 s: a client that needs a second is let in without any change of settings."""
    apps = {i: slow_to_introduce(1.0)(app) for i, app in honest(PLAN, tmp_path).items()}
    timeouts = dataclasses.replace(QUICK, introduction=0.2, absent=0.1, enrolment=20.0)
    with InProcessGrid(at_nodes(apps)) as grid, FlowerTransport(grid, roster_of(4), timeouts=timeouts) as transport:
        assert transport.enroll().keys() == {0, 1, 2, 3}


@pytest.mark.slow
def test_a_silent_client_from_the_first_round_on_is_no_outage(tmp_path):
    """An attacker can do no more by silence than before."""
    seen = Observed(PLAN, tmp_path, change=lambda i, app: silent()(app) if i == 3 else app, suspension=Suspension())
    assert seen.events == ["suspended"]
    assert seen.states[-1].version == 4
