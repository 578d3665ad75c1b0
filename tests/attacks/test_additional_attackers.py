"""Attackers that come beside the clients: whoever was there before holds, draws and trains as without them."""

import dataclasses

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.algorithms import FedAvg
from phalanx.attacks import Gaussian, LabelFlip, NonFinite, Rescale
from phalanx.data import ClassImbalance, LinearRamp, PermutedLabels, Uniform
from phalanx.models import MLP
from phalanx.report.client_ledger import attacked
from phalanx.report.outcome import _twin
from phalanx.runs.federation import Federation

ALONE = Run(clients=10, model=MLP((16,)), until=Until(3))


def beside(count, attack, **changes):
    return dataclasses.replace(ALONE, additional_byzantine=count, attack=attack, **changes)


@pytest.mark.parametrize("partition", [Uniform(), LinearRamp(), ClassImbalance(each=30)], ids=str)
@pytest.mark.parametrize("count", [2, 11])
def test_clients_hold_what_they_hold_without_attackers(partition, count):
    plan = beside(count, LabelFlip(), partition=partition)
    federation, without = Federation(plan), Federation(dataclasses.replace(ALONE, partition=partition))
    assert federation.honest == list(range(10))
    assert federation.byzantine == plan.attackers() == set(range(10, 10 + count))
    for i in range(10):
        assert torch.equal(federation.parts[i], without.parts[i])
        assert torch.equal(federation.transport.data[i].y, without.transport.data[i].y)
    size = round(sum(map(len, without.parts)) / 10)
    assert [len(part) for part in federation.parts[10:]] == [size] * count
    assert len(federation.parts[10].unique()) == size
    assert not torch.equal(federation.parts[10], federation.parts[11])
    assert not bool((federation.transport.data[10].y == 1).any()), "label 1 is flipped"
    assert bool((federation.data[10].y == 1).any())


def test_attackers_of_any_number_draw_what_they_draw():
    few, many = Federation(beside(2, Gaussian())), Federation(beside(11, Gaussian()))
    assert all(torch.equal(a, b) for a, b in zip(few.parts, many.parts, strict=False))


def test_attackers_whose_updates_are_refused_change_no_bit():
    states = []
    for plan in (ALONE, beside(4, NonFinite())):
        simulate(plan, observers=[lambda p: states.append(p.state.model)])
    assert all(torch.equal(a, b) for a, b in zip(states[:4], states[4:], strict=True))


def test_some_of_the_clients_can_attack_as_well():
    plan = beside(2, Rescale(), byzantine=3)
    among = dataclasses.replace(plan, additional_byzantine=0).attackers()
    assert len(among) == 3
    assert plan.attackers() == among | {10, 11}
    assert (plan.population, plan.title) == (12, "FedAvg(Mean), Rescale x 5")


def test_summary_and_report_know_them():
    plan = beside(3, Rescale(-1.0))
    record, clean = simulate(plan), simulate(ALONE)
    assert "rescale" in plan.slug
    assert [c.byzantine for c in record.summary.clients.values()] == [False] * 10 + [True] * 3
    assert record.history[-1].metrics.received_accuracy.keys() == set(range(10))
    assert attacked(record)
    assert not attacked(clean)
    assert _twin(record, [record, clean]) is clean


def test_a_fixed_number_of_them_in_each_round():
    plan = beside(10, Rescale(1.0), participation=0.5, byzantine_per_round=4)
    took_part = [line.verdicts.keys() for line in simulate(plan).history[1:]]
    assert [len(clients) for clients in took_part] == [10] * 3
    assert [sum(i >= 10 for i in clients) for clients in took_part] == [4] * 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"additional_byzantine": -1}, "additional_byzantine must be at least 0, got -1"),
        ({"additional_byzantine": 2}, "additional_byzantine is 2, but attack is not set"),
        (
            {"additional_byzantine": 2, "attack": Gaussian(), "groups": PermutedLabels(2)},
            "no group is named for these",
        ),
        (
            {"additional_byzantine": 2, "attack": Gaussian(), "participation": 0.5, "byzantine_per_round": 3},
            r"must lie in 0\.\.2, where 6 of 12 clients take part in a round and 2 are Byzantine, got 3",
        ),
    ],
)
def test_what_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(ALONE, algorithm=FedAvg(), **changes)
