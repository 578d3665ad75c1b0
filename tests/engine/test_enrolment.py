"""Who takes part: the engine knows it, and lets nobody in twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch

import phalanx
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, AsyncRFFL, ByzantineCFL, FedAsync, FedAvg, Permuted, Private, Quorum
from phalanx.core import Until
from phalanx.engine import LoopSettings
from phalanx.engine.guard import Guard
from toys import Scripted

START = torch.zeros(2)
ANSWERS = {0: [1.0], 1: [3.0], 2: [2.0]}


@dataclass
class Growing(Scripted):
    """Clients join in the wait of that number, with the sizes that they report."""

    joining: Mapping[int, Mapping[int, object]] = field(default_factory=dict)

    def receive(self, *, every):
        arrivals = super().receive(every=every)
        return arrivals._replace(joined=self.joining.get(int(self.now), {}))

    def snapshot(self):
        return self.now, tuple(self.queue)

    def restore(self, snapshot):
        self.now, self.queue = snapshot[0], list(snapshot[1])


GUARD = Guard()


def carried_out(algorithm, joining, until=3, guard=GUARD, **options):
    """The transport and what observers were shown; clients 0 and 1 are there from the start."""
    transport = Growing(ANSWERS, sizes={0: 10, 1: 10}, joining=joining)
    seen = []
    phalanx.run(
        algorithm, transport, START, LoopSettings(until=Until(until), guard=guard), observers=[seen.append], **options
    )
    return transport, seen


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAsync(), Quorum(Permuted(FedAvg()), k=2)], ids=str)
def test_who_joins_is_enrolled(algorithm):
    transport, seen = carried_out(algorithm, {1: {2: 10}}, until=4)
    assert [p.enrolled for p in seen] == [{0, 1}, *[{0, 1, 2}] * 4]
    assert not any(p.invalid for p in seen)
    assert any(2 in sent for sent in transport.sent)


def test_a_client_that_joins_late_and_reports_more_than_the_rule_tolerates_is_named():
    """Five clients hold 10 examples each; then one comes that reports ten thousand, and one that reports 20."""
    joining, seen = {1: {5: 10_000}, 2: {6: 20}}, []
    transport = Growing({i: [1.0] for i in range(7)}, sizes=dict.fromkeys(range(5), 10), joining=joining)
    phalanx.run(FedAvg(Median()), transport, START, LoopSettings(until=Until(4)), observers=[seen.append])
    said = [remark for progress in seen for remark in progress.remarks if "has joined" in remark]
    assert len(said) == 1
    assert said[0].startswith(
        "After client 5 has joined: AsReported() weighs by what clients report, and 1 of 6 clients can hold 0.995 of"
    )


def test_who_was_refused_is_not_enrolled_and_can_come_again():
    _, seen = carried_out(FedAvg(), {1: {2: 0}, 2: {2: 10}})
    assert [sorted(p.enrolled) for p in seen] == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert [set(p.invalid) for p in seen] == [set(), {2}, set(), set()]
    _, seen = carried_out(FedAvg(), {}, guard=Guard(max_size=10))
    assert seen[0].enrolled == {0, 1}


@pytest.mark.filterwarnings("ignore:threshold")  # two parameters are few
def test_excluded_clients_stay_enrolled():
    rows = {0: [torch.tensor([1.0, 0.0])], 1: [torch.tensor([1.0, 0.1])], 2: [torch.tensor([-1.0, 0.0])]}
    seen = []
    phalanx.run(
        ByzantineCFL(threshold=0.5), Scripted(rows), START, LoopSettings(until=Until(2)), observers=[seen.append]
    )
    assert seen[1].state.verdicts[2].final
    assert seen[-1].enrolled == {0, 1, 2}


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAsync(), Private(FedAvg(), 9.0, 0.0)], ids=str)
def test_nobody_joins_twice(algorithm):
    _, seen = carried_out(algorithm, {1: {0: 99}, 2: {2: 10}, 3: {2: 99}})
    assert [p.invalid for p in seen] == [
        {},
        {0: "Client 0 takes part already. Give a new client an id of its own."},
        {},
        {2: "Client 2 takes part already. Give a new client an id of its own."},
    ]


@pytest.mark.parametrize(
    ("algorithm", "title"),
    [
        (RFFL(), "RFFL"),
        (AsyncRFFL(), "AsyncRFFL"),
        (Permuted(RFFL()), r"Permuted\(RFFL\)"),
        (Quorum(RFFL(), k=2), r"Quorum\(RFFL\)"),
        (Private(Quorum(RFFL(), k=2), 9.0, 0.0), r"Private\(Quorum\(RFFL\)\)"),
    ],
    ids=str,
)
def test_an_algorithm_that_cannot_take_in_clients_goes_on_without_them(algorithm, title):
    transport, seen = carried_out(algorithm, {1: {2: 10}})
    assert not algorithm.traits.can_join
    with pytest.raises(AssertionError, match=f"^{title} cannot take in client 2, which came after the run had begun"):
        raise AssertionError(seen[1].invalid[2])
    assert seen[-1].step == 3
    assert {p.enrolled for p in seen} == {frozenset({0, 1})}
    assert not any(2 in sent for sent in transport.sent)


def test_a_run_that_goes_on_knows_who_is_enrolled():
    class Killed(BaseException):
        pass

    held = []

    def keep(take):
        held.append(take())
        if len(held) == 3:
            raise Killed

    with pytest.raises(Killed):
        carried_out(FedAvg(), {1: {2: 10}}, on_snapshot=keep)
    _, seen = carried_out(FedAvg(), {3: {2: 10}}, resume=held[-1])
    assert [(p.step, p.enrolled) for p in seen] == [(2, {0, 1, 2}), (3, {0, 1, 2})]
    assert "Client 2 takes part already" in seen[-1].invalid[2]
