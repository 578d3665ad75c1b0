"""Asynchronous servers under any order of events: answers of every kind, losses, and clients that come late."""

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phalanx.aggregators import Krum, Median
from phalanx.algorithms import (
    BASGD,
    AFLGuard,
    AsyncFilter,
    AsyncMomentum,
    AsyncRFFL,
    Catalyst,
    Challenge,
    ClusteredFL,
    FedAsync,
    FedAvg,
    FedBuff,
    Kardam,
    PerCluster,
    Quorum,
    Rewarded,
    ZenoPlusPlus,
)
from phalanx.core import StalledError
from phalanx.engine.connection import Arrivals, Reply
from phalanx.engine.guard import Guard
from phalanx.engine.ledger import Ledger
from phalanx.engine.loop import ServerLoop
from phalanx.engine.lost import LostRounds
from phalanx.engine.participation import everyone
from phalanx.engine.reference import server_reference
from phalanx.engine.settings import LoopSettings

D, FIRST, LIMIT = 3, 6, 1e6  # parameters, clients at the start, largest norm that the guard lets in
HOSTILE = st.sampled_from([0.0, -1.0, 1e-30, 5e5, -5e5])  # within the guard
INVALID = st.sampled_from([float("nan"), float("inf"), 1e9, None, "text", torch.zeros(D + 1), torch.zeros(D).double()])
FAST = settings(  # to shrink what fails takes minutes: leave out `phases` for that
    max_examples=15, stateful_step_count=30, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
SERVERS = {
    "FedAsync": FedAsync(),
    "FedBuff": FedBuff(size=3, aggregate=Median()),
    "FedBuff of different clients": FedBuff(size=3, distinct=True),
    "Kardam": Kardam(f=1),
    "BASGD": BASGD(buffers=3),
    "BASGD, reassigned": BASGD(buffers=3, reassign_after=4, fresh_only=True, first_only=True, forgets_first=True),
    "AsyncMomentum": AsyncMomentum(),
    "AsyncRFFL": AsyncRFFL(warmup=1, threshold=0.9),
    "ZenoPlusPlus": ZenoPlusPlus(),
    "AFLGuard": AFLGuard(radius=4.0),
    "Catalyst": Catalyst(f=1),
    "Rewarded Catalyst": Rewarded(Catalyst(f=1), challenge=Challenge()),
    "Quorum of FedAvg": Quorum(FedAvg(aggregate=Median()), k=3),
    "Quorum of Krum": Quorum(FedAvg(aggregate=Krum(f=1)), k=5),
    "Quorum of AsyncFilter": Quorum(AsyncFilter(), k=4),
    "Quorum of ClusteredFL": Quorum(ClusteredFL(eps1=1e9, eps2=0.0, min_round=0, min_gap=0.0), k=4),
    "clusters of quorums": PerCluster(Quorum(FedAvg(), k=2), min_turns=1, min_part_size=2, min_gap=0.01),
}


@dataclass
class Wire:
    """A transport on which a test says what happens."""

    now: float = 0.0
    open: dict[int, int] = field(default_factory=dict)  # client -> version of its unanswered download
    downloads: list[int] = field(default_factory=list)  # clients of the last send

    def enroll(self):
        return dict.fromkeys(range(FIRST), 10)

    def send(self, downloads, version):
        assert not downloads.keys() & self.open.keys(), "nobody has two tasks"
        assert all(bool(vector.isfinite().all()) for vector in downloads.values())
        self.open |= dict.fromkeys(downloads, version)
        self.downloads = [*downloads]

    def receive(self, *, every):
        raise AssertionError("the test says what happens")


class Server(RuleBasedStateMachine):
    """The loop of `phalanx.run`, one event at a time."""

    algorithm = None

    @initialize()
    def begin(self):
        self.wire, self.excluded, self.pending, self.next_client = Wire(), set(), set(), FIRST
        own = server_reference(
            self.algorithm, (lambda *_: torch.full((D,), 0.1)) if self.algorithm.traits.needs_reference else None
        )
        model = torch.zeros(D)
        self.loop = ServerLoop(
            self.algorithm,
            self.wire,
            Ledger(Guard(max_norm=LIMIT), model),
            own,
            everyone,
            (),
            LoopSettings(lost_rounds=LostRounds("skip", 1000)),
        )
        self.state = self.loop.begin(model)
        self.over = False
        self.loop.ask(self.state)

    # What happens

    @precondition(lambda self: not self.over)
    @rule(data=st.data(), value=st.sampled_from([0.1, 0.2, 0.3]))
    def honest_answer(self, data, value):
        self.arrive(self.some(data), torch.tensor([value, 0.1, 0.0]))

    @precondition(lambda self: not self.over)
    @rule(data=st.data(), value=HOSTILE)
    def hostile_answer(self, data, value):
        self.arrive(self.some(data), torch.full((D,), value))

    @precondition(lambda self: not self.over)
    @rule(data=st.data(), value=INVALID, loss=st.sampled_from([1.0, float("nan"), None, -1.0]))
    def invalid_answer(self, data, value, loss):
        client = self.some(data)
        vector = torch.full((D,), value) if isinstance(value, float) else value
        before = self.state
        self.happens(Arrivals((Reply(client, self.wire.open[client], vector, loss),)), {client})
        assert self.state is before, "what the guard does not let in changes nothing"

    @precondition(lambda self: not self.over)
    @rule(data=st.data(), version=st.integers(-2, 3), stranger=st.booleans())
    def unrequested_answer(self, data, version, stranger):
        client = 999 if stranger else self.some(data)
        if not stranger and version == self.wire.open[client]:
            return
        before = self.state
        self.happens(Arrivals((Reply(client, version, torch.ones(D), 1.0),)), set())
        assert self.state is before

    @precondition(lambda self: not self.over)
    @rule(data=st.data())
    def two_answers_at_once(self, data):
        client = self.some(data)
        reply = Reply(client, self.wire.open[client], torch.full((D,), 0.1), 1.0)
        self.happens(Arrivals((reply, reply)), {client}, came={client})

    @precondition(lambda self: not self.over)
    @rule(data=st.data())
    def lost_task(self, data):
        client, before = self.some(data), self.state
        self.happens(Arrivals(lost={client: "left"}), {client})
        assert self.state is before

    @precondition(lambda self: not self.over)
    @rule(size=st.sampled_from([10, 1, 0, -1, "many", 10**12]))
    def a_client_comes(self, size):
        before, client = self.state, self.next_client
        self.next_client += 1
        self.happens(Arrivals(joined={client: size}), set())
        joined = client in self.loop.ledger.enrolled
        assert joined == (self.algorithm.traits.can_join and size in (10, 1))
        assert torch.equal(self.state.model, before.model)
        assert (client in self.wire.open) == joined, "who joins gets a download at once"

    def some(self, data):
        return data.draw(st.sampled_from(sorted(self.wire.open)))

    def arrive(self, client, vector):
        self.happens(Arrivals((Reply(client, self.wire.open[client], vector, 1.0),)), {client}, came={client})

    def happens(self, arrivals, done, came=frozenset()):
        """One turn of the loop of `phalanx.run`, and what holds of it."""
        self.wire.now += 1.0
        for client in done:
            del self.wire.open[client]
        before = self.state
        updates, again = self.loop.settle(arrivals, before)
        assert (updates is None) == (not came)
        if updates is not None:
            assert updates.clients == tuple(came)
            self.state, updates = self.loop.advance(before, updates, again)
            self.check_step(before, came)
        self.state = self.loop.admit(arrivals.joined, self.state)
        try:
            self.loop.ask(self.state)
        except StalledError:
            self.over = True  # all are excluded, or wait for those
            assert not self.wire.open

    def check_step(self, before, came):
        """What holds of each step."""
        new, verdicts = self.state, self.state.verdicts
        divided = isinstance(self.algorithm, PerCluster)  # to divide a cluster is one more
        assert before.version <= new.version <= before.version + 1 + divided
        if new.version == before.version:
            assert torch.equal(new.model, before.model), "what changes the model counts"
        assert came <= verdicts.keys(), "each arrival has a verdict"
        decided = {i for i, verdict in verdicts.items() if not verdict.waits}
        assert decided <= came | self.pending, "nobody is judged without an update"
        for verdict in verdicts.values():
            assert 0 <= verdict.weight <= 1
            assert verdict.accepted or (verdict.weight == 0 and verdict.reason)
            assert not (verdict.waits and (verdict.weight or verdict.final))
        lost = any(verdict.reason.startswith("round lost") for verdict in verdicts.values())
        if lost:
            assert torch.equal(new.model, before.model)
            assert new.version == before.version
        waits = verdicts.keys() - decided
        if isinstance(self.algorithm, Quorum) and new.version > before.version:
            assert len(decided) >= min(self.algorithm.k, len(self.loop.ledger.enrolled - self.excluded))
            averages = len(getattr(before, "clusters", (0,)))  # in each of which weights add up to one
            assert sum(verdict.weight for verdict in verdicts.values()) <= averages + 1e-5
        self.pending |= waits
        if new.version > before.version or lost:  # else an answer was filtered, and an earlier one may still wait
            self.pending -= decided
        if isinstance(self.algorithm, Quorum):
            assert new.collected == len(self.pending), "different clients are counted"
        self.excluded |= {i for i, verdict in verdicts.items() if verdict.final}

    # What always holds

    @invariant()
    def nobody_is_forgotten(self):
        if not hasattr(self, "loop"):
            return
        assert self.wire.open.keys() == self.loop.ledger.sent.keys()
        assert not self.excluded & self.wire.open.keys(), "an excluded client gets no download"
        active = self.loop.ledger.enrolled - self.excluded
        if not self.over:
            assert active <= self.wire.open.keys() | self.pending, "who has no task waits for others"

    @invariant()
    def the_model_is_one(self):
        if hasattr(self, "state"):
            assert self.state.model.shape == (D,)
            assert bool(self.state.model.isfinite().all())


@pytest.mark.filterwarnings("ignore:threshold", "ignore:A quorum", "ignore:Krum", "ignore:A buffer", "ignore:A step")
@pytest.mark.parametrize("name", SERVERS)
def test_in_any_order_of_events(name):
    machine = type("AnyOrder", (Server,), {"algorithm": SERVERS[name]})
    run_state_machine_as_test(machine, settings=FAST)
