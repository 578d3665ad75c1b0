"""What holds of every run, whatever clients do: time, staleness, randomness, and that nobody is forgotten."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from untrained import D, arrivals, federation

import phalanx
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import ClaimVersion, Duplicate, Flood, Gaussian, HoldBack, Linger, Replay, Together
from phalanx.attacks.timing import delay
from phalanx.core import InfeasibleError, StalledError, Until
from phalanx.engine import LoopSettings
from phalanx.engine.connection import Arrivals
from phalanx.engine.ledger import MANY_TRIES
from phalanx.runs.checkpoint import pack, unpack
from phalanx.simulation import Both, Constant, Crashes, Deadline, Lognormal, Normal, OnOff, Silent, Stragglers, Zipf

ATTACKS = [
    None,
    Flood(),
    Linger(),
    HoldBack(),
    HoldBack(2),
    Replay(2),
    Replay(claims_old=True),
    Duplicate(),
    ClaimVersion(-1, honest_too=True),
    Together(Replay(), Duplicate()),
]
settings_of_a_run = st.fixed_dictionaries(
    {
        "algorithm": st.sampled_from([FedAvg(), FedAsync()]),
        "clients": st.integers(2, 6),
        "seed": st.integers(0, 50),
        "latency": st.sampled_from(
            [Constant(), Lognormal(1.0, 1.0, each_turn=True), Zipf(), Stragglers(Normal(2.0, 1.0), 0.4, 8.0)]
        ),
        "availability": st.sampled_from(
            [
                None,
                OnOff(6.0, 3.0),
                OnOff(3.0, 6.0, answers=False),
                Silent(0.3, 4.0),
                Crashes(0.3, 2.0),
                Both(OnOff(6.0, 3.0, answers=False), Both(Crashes(0.2, 2.0), Silent(0.3, 15.0))),
            ]
        ),
        "deadline": st.sampled_from([None, Deadline(1.5), Deadline(4.0)]),
        "grace": st.integers(0, 2),
        "attack": st.sampled_from(ATTACKS),
    }
)


@dataclass
class Watched:
    """A transport, and what goes in and out of it."""

    inner: object
    sent: list[tuple[float, int, int]] = field(default_factory=list)  # when, whom, which version
    came: list[tuple[float, Arrivals]] = field(default_factory=list)

    @property
    def now(self):
        return self.inner.now

    def enroll(self):
        return self.inner.enroll()

    def here(self, clients):
        return self.inner.here(clients)

    def send(self, downloads, version):
        self.sent += [(self.now, client, version) for client in downloads]
        self.inner.send(downloads, version)

    def receive(self, *, every):
        self.came.append((0.0, arrivals := self.inner.receive(every=every)))
        self.came[-1] = (self.now, arrivals)
        return arrivals


def made(plan):
    options = {name: value for name, value in plan.items() if name not in ("algorithm", "grace", "clients")}
    if options["attack"] is None:
        del options["attack"]
    else:
        options["byzantine"] = frozenset({0})
    if options["deadline"] is not None and plan["algorithm"].traits.synchronous:
        options["deadline"] = Deadline(options["deadline"].seconds, plan["grace"])
    return federation(plan["algorithm"], plan["clients"], **options)


def watched(plan, until=25):
    """The transport, what observers saw, and how the run ended."""
    transport, seen, end = Watched(made(plan)), [], None
    try:
        phalanx.run(
            plan["algorithm"], transport, torch.zeros(D), LoopSettings(until=Until.of(until)), observers=[seen.append]
        )
    except StalledError as stalled:
        end = stalled
    return transport, seen, end


@settings(max_examples=40, deadline=None)
@given(settings_of_a_run)
def test_time_staleness_and_accounts(plan):
    transport, seen, end = watched(plan)
    times = [now for now, _ in transport.came]
    assert times == sorted(times), "time never goes back"
    assert len(times) < 25 * MANY_TRIES, "nor stands still: a run without progress is given up"

    steps = [p for p in seen if p.updates is not None]
    for before, p in enumerate(steps):  # each of these algorithms adds one to the version in each step
        for client, version in zip(p.updates.clients, p.updates.versions, strict=True):
            assert version <= before, "staleness is never negative"
            assert version == [v for now, i, v in transport.sent if i == client and now < p.now][-1], "as it was sent"

    for client in range(plan["clients"]):
        owed = sum(i == client for _, i, _ in transport.sent)
        used = sum(client in p.updates.clients for p in steps)
        lost = sum(client in came.lost for _, came in transport.came)
        assert used + lost <= owed <= used + lost + 1, "every task is used or lost, but the last"
    if end is None:
        assert len(steps) == 25


@settings(max_examples=16, deadline=None)
@given(settings_of_a_run)
def test_equal_seeds_give_equal_bits_and_touch_no_global_generator(plan):
    def once():
        _, seen, end = watched(plan)
        return arrivals(seen), [(dict(p.invalid), dict(p.lost)) for p in seen], str(end), seen[-1].state.model

    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # that of `random` is drawn from by beartype
    first = once()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    torch.rand(3), np.random.random()  # somebody else draws between the runs
    second = once()
    assert first[:3] == second[:3]
    assert torch.equal(first[3], second[3])


@settings(max_examples=40, deadline=None)
@given(settings_of_a_run, st.integers(1, 24))
def test_a_run_that_goes_on_from_a_snapshot_comes_to_the_same_bits(plan, stop):
    algorithm, seen, saved = plan["algorithm"], [], []

    def keep(take):
        if len(seen) == stop:
            packed = pack(take())
            saved.append(unpack(packed.form, [_copied(piece) for piece in packed.pieces]))

    def carried_out(transport, **options):
        try:
            state = phalanx.run(
                algorithm,
                transport,
                torch.zeros(D),
                LoopSettings(until=Until(25)),
                observers=[seen.append],
                on_snapshot=keep,
                **options,
            )
        except (StalledError, InfeasibleError) as error:
            return str(error)
        return state.version, state.model.tolist()

    whole = carried_out(made(plan))
    if not saved:
        return
    before, seen = list(seen), []
    snapshot, saved = saved[0], []
    stop = -1
    assert carried_out(made(plan), resume=snapshot) == whole
    assert arrivals(seen[1:]) == arrivals(before[stop_index(before, seen) :])


def stop_index(before, after):
    return len(before) - len(after) + 1


def _copied(piece):
    return torch.tensor(list(b"".join(_bytes(part) for part in piece.read())), dtype=torch.uint8)


def _bytes(part):
    return part if isinstance(part, bytes) else part.numpy().tobytes()


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack is not None])
def test_one_client_in_flight_is_never_stale(attack):
    plan = {
        "algorithm": FedAsync(),
        "clients": 1,
        "seed": 0,
        "latency": Lognormal(each_turn=True),
        "availability": OnOff(5.0, 2.0),
        "deadline": None,
        "grace": 0,
        "attack": None,
    }
    _, seen, _ = watched(plan)
    assert [p.updates.versions for p in seen if p.updates is not None] == [(k,) for k in range(25)]
    assert delay(attack, 1.0, torch.Generator()) > 0


def test_every_client_that_is_ready_is_asked_at_once():
    """Between two waits nobody is left who is ready and there."""
    plan = {
        "algorithm": FedAsync(),
        "clients": 6,
        "seed": 3,
        "latency": Lognormal(each_turn=True),
        "availability": OnOff(6.0, 3.0, answers=False),
        "deadline": None,
        "grace": 0,
        "attack": None,
    }
    transport, seen, _ = watched(plan, until=200)
    free = {(now, client) for now, came in transport.came for client in came.back}
    asked = {(now, client) for now, client, _ in transport.sent}
    last = transport.now
    assert {(now, client) for now, client in free if now < last} <= asked
    assert free, "some left, and came back"
    assert {client for _, client in asked} == set(range(6))
    assert seen[-1].step == 200


def test_other_clients_draw_what_they_draw_whatever_one_does():
    """An attacker's timing moves no honest client's times."""

    def times(attack):
        options = {} if attack is None else {"attack": attack, "byzantine": frozenset({0})}
        seen = []
        simulation = federation(FedAsync(), 4, latency=Lognormal(each_turn=True), **options)
        phalanx.run(
            FedAsync(), simulation, torch.zeros(D), LoopSettings(until=Until(seconds=20.0)), observers=[seen.append]
        )
        return [now for now, clients, _ in arrivals(seen) if clients == (2,)]

    clean = times(None)
    for attack in (Flood(0.5), Linger(), Gaussian(), Replay(), HoldBack(1)):
        attacked = times(attack)
        shared = min(len(clean), len(attacked))
        assert shared
        assert attacked[:shared] == clean[:shared]


def test_a_client_that_fails_for_ever_beside_a_silent_one_does_not_keep_a_run_going():
    """Client 0 leaves before each of its answers, client 1 is silent, and there is no deadline."""
    plan = {
        "algorithm": FedAsync(),
        "clients": 2,
        "seed": 2,
        "latency": Stragglers(Normal(2.0, 1.0), 0.4, 8.0),
        "availability": Both(OnOff(6.0, 3.0, answers=False), Both(Crashes(0.2, 2.0), Silent(0.3, 15.0))),
        "deadline": None,
        "grace": 0,
        "attack": Linger(),
    }
    _, _, end = watched(plan)
    assert "a client failed 1000 times in a row, and nothing comes from 1 other. Set a deadline" in str(end)
