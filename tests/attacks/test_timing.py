"""Attacks by time, and what the door does about them."""

import pytest
import torch
from federations import rng

import phalanx
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import (
    Answer,
    ClaimVersion,
    Duplicate,
    Flood,
    HoldBack,
    Linger,
    Meanwhile,
    Replay,
    Rescale,
    Sybils,
    Together,
)
from phalanx.attacks.timing import answers, delay, holds_back, recalls, sends_now
from phalanx.core import StalledError, Until
from phalanx.data import Dataset
from phalanx.engine import LoopSettings
from phalanx.engine.guard import Guard
from phalanx.models import MLP
from phalanx.rng import borrowed
from phalanx.simulation import Deadline, Simulation
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule

D = 6
OLD, NEW = Answer(3, torch.full((2,), 3.0)), Answer(7, torch.full((2,), 7.0))


class Counting(Trainer):
    """Client i changes each parameter by 10 i + the number of its task."""

    def train(self, task, data):
        task.row.fill_(10.0 * task.client + task.turn)
        return 1.0


def federation(algorithm, attack, clients=3, **options):
    with borrowed(0, "model"):
        model = FlatModule(MLP(()).build((2,), 2))
    data = Dataset(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), 2)
    everyone = dict.fromkeys(range(clients), data)
    trainer = Counting(model, LocalSGD(), 0)
    return Simulation(algorithm, trainer, everyone, attack=attack, byzantine=frozenset({0}), **options)


def go(algorithm, attack, until=12, guard=None, **options):
    """What observers see; client 0 attacks, and each client takes a second."""
    seen = []
    transport = federation(algorithm, attack, **options)
    phalanx.run(
        algorithm,
        transport,
        torch.zeros(D),
        LoopSettings(until=Until.of(until), guard=guard or Guard()),
        observers=[seen.append],
    )
    return seen


def mine(seen):
    """Of the attacker's updates that came in: when, which version, and its first entry."""
    steps = [p for p in seen if p.updates is not None and 0 in p.updates.clients]
    rows = [p.updates.clients.index(0) for p in steps]
    return [
        (round(p.now, 6), p.updates.versions[k], float(p.updates.deltas[k, 0]))
        for p, k in zip(steps, rows, strict=True)
    ]


def refused(seen):
    return [p.invalid[0] for p in seen if 0 in p.invalid]


def test_a_flood_is_served_as_often_as_it_is_fast():
    seen = go(FedAsync(), Flood(0.01), until=Until(seconds=2.5))
    assert len(mine(seen)) == pytest.approx(250, abs=2)
    assert sum(1 in p.updates.clients for p in seen[1:]) == 2, "each honest client: once a second"
    assert not refused(seen), "the door cannot know how long honest work takes"
    assert [now for now, _, _ in mine(go(FedAvg(), Flood(0.01), until=3))] == [1.0, 2.0, 3.0], "a round waits for all"


def test_who_lingers_is_always_late():
    seen = go(FedAsync(), Linger(3.0, 0.5), until=Until(seconds=7.2))
    assert [(now, version) for now, version, _ in mine(seen)] == [(3.5, 0), (7.0, 7)]
    assert seen[-1].state.version - 1 - mine(seen)[-1][1] > 6, "at seven seconds, each other has been there seven times"
    assert [now for now, _, _ in mine(go(FedAvg(), Linger(3.0), until=2))] == [3.0, 6.0], "everybody waits for it"
    timely = go(FedAvg(), Linger(3.0), until=2, deadline=Deadline(1.5))
    assert not mine(timely), "nobody waits beyond the deadline"
    old = go(FedAsync(), Linger(3.0, 0.5), until=Until(seconds=7.2), guard=Guard(max_staleness=4))
    assert refused(old) == [
        "update is 6 server updates old, allowed are 4",
        "update is 6 server updates old, allowed are 4",
    ], "a door that bounds staleness keeps the late ones out"


def test_who_holds_back_speaks_when_nobody_else_is_waited_for():
    assert HoldBack().sends_now(Meanwhile(9, 0))
    assert not HoldBack().sends_now(Meanwhile(9, 1))
    assert [HoldBack(3).sends_now(Meanwhile(v, 5)) for v in range(5)] == [False, False, False, True, True]
    rounds = mine(go(FedAvg(), HoldBack(), until=3))
    assert [now for now, _, _ in rounds] == [1.001, 2.002, 3.003], "last of all, in every round"
    assert not mine(go(FedAsync(), HoldBack(), until=20)), "others are always under way: it waits in vain"
    late = go(FedAsync(), HoldBack(3), until=20)
    assert len(mine(late)) >= 3
    assert all(now_version - version >= 3 for now_version, version in ages(late))
    with pytest.raises(StalledError, match="No answer comes from 1 client") as stalled:
        go(FedAvg(), HoldBack(3))
    assert "client 0: holds its answer back" in str(stalled.value)
    assert len(go(FedAvg(), HoldBack(3), deadline=Deadline(5.0), until=3)) == 4, "a deadline ends that"


def ages(seen):
    return [(p.state.version - 1, p.updates.versions[0]) for p in seen[1:] if p.updates.clients == (0,)]


def test_a_replay_under_its_present_version_passes_the_door():
    assert Replay(2).answers(NEW, [OLD]) == (NEW,), "it has nothing that old yet"
    assert Replay(1).answers(NEW, [OLD]) == (Answer(7, OLD.delta),)
    seen = go(FedAsync(), Replay(2), until=15)
    assert [delta for _, _, delta in mine(seen)] == [0.0, 1.0, 0.0, 1.0, 2.0]
    assert not refused(seen)


def test_a_replay_under_its_old_version_does_not():
    assert Replay(1, claims_old=True).answers(NEW, [OLD]) == (OLD,)
    seen = go(FedAsync(), Replay(1, claims_old=True), until=15)
    assert [delta for _, _, delta in mine(seen)] == [0.0], "its first one, which was new"
    assert refused(seen) == ["answers version 0, expected version 1"], "then the server waits for its answer"
    lost = go(FedAsync(), Replay(1, claims_old=True), until=15, deadline=Deadline(2.0))
    assert [p.now for p in lost if 0 in p.lost] == [3.0, 5.0], "until the deadline, after which it is asked again"


def test_duplicates_count_once():
    seen = go(FedAvg(), Duplicate(3), until=2)
    assert torch.equal(seen[-1].state.model, go(FedAvg(), Rescale(1.0), until=2)[-1].state.model)
    assert refused(seen) == [f"{why}; {why}" for why in (f"duplicate: version {k} is answered already" for k in (0, 1))]
    asynchronous = go(FedAsync(), Duplicate(2), until=6)
    assert [delta for _, _, delta in mine(asynchronous)] == [0.0, 1.0]
    assert refused(asynchronous) == [
        "duplicate: version 0 is answered already",
        "duplicate: version 1 is answered already",
    ]


@pytest.mark.parametrize("ahead", [-1, 1, 100])
def test_a_client_cannot_claim_a_version(ahead):
    seen = go(FedAsync(), ClaimVersion(ahead), until=12)
    assert not mine(seen)
    assert refused(seen) == [f"answers version {ahead}, expected version 0"]
    both = go(FedAsync(), ClaimVersion(ahead, honest_too=True), until=12)
    assert [version for _, version, _ in mine(both)] == [0, 1, 4, 7], "the versions that it was sent"
    assert len(refused(both)) == 4
    model = both[-1].state.model
    assert torch.equal(model, go(FedAsync(), Rescale(1.0), until=12)[-1].state.model), "nobody else notices"


def test_together_with_what_is_in_the_update():
    attack = Together(Rescale(-10.0), Together(Linger(2.0), Duplicate(2)))
    assert delay(attack, 3.0, rng()) == 6.0
    assert answers(attack, NEW, []) == [NEW, NEW]
    assert (holds_back(attack), recalls(attack)) == (False, 0)
    seen = go(FedAsync(), attack, until=Until(seconds=4.5))
    assert [(now, delta) for now, _, delta in mine(seen)] == [(2.0, 0.0), (4.0, -10.0)]
    assert len(refused(seen)) == 2
    mixed = Together(Replay(3), HoldBack(2))
    assert (holds_back(mixed), recalls(mixed)) == (True, 3)
    assert not sends_now(mixed, Meanwhile(1, 0))
    assert answers(Together(Replay(1), ClaimVersion(2)), NEW, [OLD]) == [Answer(9, OLD.delta)]
    forged = [delta for _, _, delta in mine(go(FedAsync(), Together(Replay(1), Rescale(-1.0)), until=9))]
    assert forged == [0.0, 0.0, -1.0], "what is replayed is what was forged"


def test_sybils_keep_the_time_of_their_attack():
    attack = Sybils(Together(Rescale(2.0), Together(Linger(4.0), HoldBack(1))))
    assert delay(attack, 1.0, rng()) == 4.0
    assert holds_back(attack)
    assert not sends_now(attack, Meanwhile(0, 0))
    assert recalls(Sybils(Replay(2))) == 2
    assert answers(Sybils(Duplicate(2)), NEW, []) == [NEW, NEW]


def test_what_does_not_concern_time_answers_once_and_when_it_is_done():
    attack = Rescale(-1.0)
    assert delay(attack, 3.0, rng()) == 3.0
    assert answers(attack, NEW, []) == (NEW,)
    assert (holds_back(attack), recalls(attack)) == (False, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Flood(0.0),
        lambda: Linger(0.5),
        lambda: Linger(seconds=-1.0),
        lambda: HoldBack(0),
        lambda: Replay(0),
        lambda: Duplicate(1),
        lambda: ClaimVersion(0),
    ],
)
def test_out_of_range(make):
    with pytest.raises(ValueError, match="must"):
        make()
