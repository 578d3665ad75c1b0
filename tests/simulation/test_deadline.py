"""Rounds that end at a deadline: late answers are dropped, or count in a later round, by the server's own record."""

import pytest
import torch
from untrained import ARRIVALS, ROUNDS, ById, arrivals, federation, go, news

import phalanx
from phalanx import Run, Until
from phalanx.algorithms import FedAsync
from phalanx.core import InfeasibleError, StalledError
from phalanx.engine import LoopSettings
from phalanx.engine.guard import Guard
from phalanx.engine.participation import Participation
from phalanx.simulation import Deadline

SLOW = ById(1.0, 1.0, 5.0)  # client 2 takes five seconds


def test_late_answers_are_dropped_and_their_clients_asked_again():
    seen = go(ROUNDS, clients=3, latency=SLOW, deadline=Deadline(2.0), until=3)
    assert arrivals(seen) == [(2.0, (0, 1), (0, 0)), (4.0, (0, 1), (1, 1)), (6.0, (0, 1), (2, 2))]
    assert news(seen, "lost") == [(now, {2: "no answer within 2 s"}) for now in (2.0, 4.0, 6.0)]


def test_late_answers_count_in_a_later_round_with_the_version_that_was_sent():
    """Asked at 0, client 2 answers at 5, in the round from 4 to 6; it is asked nothing before, and again at 5."""
    seen = go(ROUNDS, clients=3, latency=SLOW, deadline=Deadline(2.0, grace=2), until=5)
    assert arrivals(seen)[:4] == [
        (2.0, (0, 1), (0, 0)),
        (4.0, (0, 1), (1, 1)),
        (5.0, (0, 1, 2), (2, 2, 0)),  # nobody is waited for any more
        (7.0, (0, 1), (3, 3)),
    ]
    late = {2: "late: no answer within 2 s, still waited for"}
    assert news(seen, "lost") == [(2.0, late), (7.0, late)], "said once of each"
    model = seen[-1].state.model
    mean = [1.5, 1.5, 2.0, 1.5, 1.5]  # client i sends i + 1
    assert torch.allclose(model, torch.full_like(model, sum(mean)))


def test_grace_ends():
    seen = go(ROUNDS, clients=3, latency=SLOW, deadline=Deadline(2.0, grace=1), until=4)
    assert [clients for _, clients, _ in arrivals(seen)] == [(0, 1)] * 4
    assert [lost[2] for _, lost in news(seen, "lost")] == [
        "late: no answer within 2 s, still waited for",
        "no answer within 2 x 2 s",
    ] * 2


def test_a_round_in_which_nobody_is_in_time_ends_with_the_first_that_comes():
    seen = go(ROUNDS, clients=2, latency=ById(3.0, 7.0), deadline=Deadline(2.0, grace=5), until=3)
    assert arrivals(seen) == [(3.0, (0,), (0,)), (6.0, (0,), (1,)), (8.0, (1,), (0,))], "the third has one in time"


def test_without_grace_it_is_lost_and_the_run_ends_when_it_always_is():
    with pytest.raises(StalledError, match="all 2 clients") as stalled:
        go(ROUNDS, clients=2, latency=ById(3.0, 7.0), deadline=Deadline(2.0), until=3)
    assert "client 1: no answer within 2 s" in str(stalled.value)


def test_a_round_ends_early_when_all_are_there():
    seen = go(ROUNDS, clients=3, latency=SLOW, deadline=Deadline(60.0), until=2)
    assert [now for now, _, _ in arrivals(seen)] == [5.0, 10.0]


def test_the_door_knows_how_old_a_late_answer_is():
    options = {"clients": 3, "latency": SLOW, "deadline": Deadline(2.0, grace=2), "until": 3}
    seen = go(ROUNDS, guard=Guard(max_staleness=1), **options)
    assert [clients for _, clients, _ in arrivals(seen)] == [(0, 1)] * 3
    assert news(seen, "invalid") == [(5.0, {2: "update is 2 server updates old, allowed is 1"})]
    assert not news(go(ROUNDS, guard=Guard(max_staleness=2), **options), "invalid")


def test_who_is_late_is_not_drawn_for_the_next_round():
    algorithm, asked = ROUNDS, []
    simulation = federation(algorithm, clients=4, latency=ById(1.0, 1.0, 1.0, 9.0), deadline=Deadline(2.0, grace=9))
    send = simulation.send
    simulation.send = lambda downloads, version: (asked.append(sorted(downloads)), send(downloads, version))
    phalanx.run(algorithm, simulation, torch.zeros(6), LoopSettings(until=Until(4)), sample=Participation(1.0, 0))
    assert asked == [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2], [0, 1, 2]]


def test_asynchronous_algorithms_have_no_grace():
    with pytest.raises(InfeasibleError, match="FedAsync has no rounds in which a late answer could count"):
        go(ARRIVALS, deadline=Deadline(2.0, grace=1))
    with pytest.raises(ValueError, match=r"deadline\.grace is 1, and FedAsync has no rounds"):
        Run(algorithm=FedAsync(), deadline=Deadline(2.0, grace=1))
