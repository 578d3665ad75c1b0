"""What the simulation shows to attackers, and whole runs under attack."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

import phalanx
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, ByzantineCFL, ClusteredFL, FedAsync, FedAvg, Quorum
from phalanx.algorithms.quorum import QuorumState
from phalanx.attacks import (
    ALIE,
    Attack,
    Backdoor,
    Gaussian,
    InnerProduct,
    LabelFlip,
    LabelShift,
    LazyFreeRider,
    MinMax,
    ModelNegation,
    ReportSize,
    Rescale,
    Sybils,
    Together,
)
from phalanx.attacks.attack import AttackTraits
from phalanx.core import InfeasibleError, Until
from phalanx.data import Dataset
from phalanx.engine import LoopSettings
from phalanx.models import MLP
from phalanx.rng import borrowed
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate
from phalanx.simulation import Lognormal, Simulation
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule
from phalanx.weighting import AsReported, Preprocess


def build(algorithm, attack, byzantine, clients=5, **options):
    rng = torch.Generator().manual_seed(7)
    data = {
        i: Dataset(torch.rand(20, 3, generator=rng), torch.randint(0, 2, (20,), generator=rng), 2)
        for i in range(clients)
    }
    with borrowed(0, "model"):
        model = FlatModule(MLP((4,)).build((3,), 2))
    simulation = Simulation(
        algorithm, Trainer(model, LocalSGD(batch_size=5), 0), data, attack=attack, byzantine=byzantine, **options
    )
    return simulation, model.read()


@dataclass(frozen=True)
class Spy(Attack):
    """Writes down what it is shown."""

    traits: ClassVar[AttackTraits] = AttackTraits(omniscient=True)
    seen: ClassVar[list] = []

    def forge(self, update, knowledge, rng):
        self.seen.append((update, knowledge))
        return update.delta


@dataclass(frozen=True)
class Searcher(Spy):
    traits: ClassVar[AttackTraits] = AttackTraits(omniscient=True, needs_rule=True)


@dataclass(frozen=True)
class Shares(Preprocess):
    """Weighs each client by its share of the sizes that it is shown."""

    def __call__(self, sizes):
        return {i: size / sum(sizes.values()) for i, size in sizes.items()}


@pytest.fixture(autouse=True)
def _nothing_seen():
    Spy.seen.clear()


def test_attackers_see_the_round_in_the_order_of_ids():
    simulation, start = build(FedAvg(aggregate=Median()), Spy(), {1, 3, 4})
    simulation.send(dict.fromkeys((0, 1, 2, 4), start), 0)
    replies = {reply.client: reply.delta for reply in simulation.receive(every=True).replies}
    (one, first), (two, second) = Spy.seen
    assert (one.client, two.client) == (1, 4)
    assert first is second, "seen once, by all"
    assert first.byzantine == {1, 3, 4}
    assert first.clients == (0, 2)
    assert torch.equal(first.honest, torch.stack([replies[0], replies[2]]))
    assert [u.client for u in first.colluders] == [1, 4]
    assert torch.equal(first.colluders[1].delta, two.delta)
    assert first.rule == Median()
    assert first.weights is None


def test_the_weights_are_shown_to_those_that_try_out_the_rule():
    simulation, start = build(FedAvg(), Together(Searcher(), ReportSize(500)), {1})
    simulation.reveal(FedAvg().init(start, simulation.enroll())[0])
    simulation.send(dict.fromkeys(range(5), start), 0)
    simulation.receive(every=True)
    ((_, knowledge),) = Spy.seen
    assert knowledge.weights == {0: 20.0, 1: 500.0, 2: 20.0, 3: 20.0, 4: 20.0}


@pytest.mark.parametrize("wrapped", [lambda a: a, lambda a: Quorum(a, k=5)], ids=["alone", "quorum"])
def test_the_weights_are_those_within_the_cluster_of_each_client(wrapped):
    """Clients 0 and 1 are one cluster, 2 and 3 another, and 4 is on its way to one of them."""
    inner = ClusteredFL(preprocess=Shares())
    simulation, start = build(wrapped(inner), Together(Searcher(), ReportSize(60)), {1})
    sizes = {i: size for i, size in simulation.enroll().items() if i < 4}
    state, _ = inner.init(start, sizes)
    edges = ((0, 1), torch.ones(2, len(start))), ((2, 3), -torch.ones(2, len(start)))
    tree = state.tree.split(0, (frozenset({0, 1}), frozenset({2, 3})), start, edges, 1)
    state = inner.join(state._replace(tree=tree), 4, 20)
    simulation.reveal(state if wrapped(inner) is inner else QuorumState(state, {}, frozenset(range(5)), {}))
    simulation.send(dict.fromkeys(range(5), start), 1)
    simulation.receive(every=True)
    assert Spy.seen[0][1].weights == {0: 0.25, 1: 0.75, 2: 0.5, 3: 0.5, 4: 0.0}


def test_the_weights_of_excluded_clients_are_zero():
    algorithm = ByzantineCFL(preprocess=AsReported())
    simulation, start = build(algorithm, Searcher(), {1})
    with pytest.warns(UserWarning, match="threshold"):
        state, _ = algorithm.init(start, simulation.enroll())
    simulation.reveal(state._replace(benign=state.benign - {1, 3}))
    simulation.send(dict.fromkeys(range(5), start), 1)
    simulation.receive(every=True)
    assert Spy.seen[0][1].weights == {0: 20.0, 1: 0.0, 2: 20.0, 3: 0.0, 4: 20.0}


def test_rules_are_tried_out_with_equal_weights_where_nobody_has_any():
    simulation, start = build(RFFL(), Searcher(), {1})
    state, _ = RFFL().init(start, simulation.enroll())
    simulation.reveal(state._replace(probation=dict.fromkeys(range(5), 1)))
    simulation.send(dict.fromkeys(range(5), start), 1)
    simulation.receive(every=True)
    assert Spy.seen[0][1].weights is None


def test_attackers_remember_their_previous_download():
    simulation, start = build(FedAvg(), Spy(), {1, 2})
    simulation.send({0: start, 1: start}, 0)
    simulation.receive(every=True)
    simulation.send({0: start + 1, 1: start + 1, 2: start + 1}, 1)
    simulation.receive(every=True)
    previous = {(update.client, update.version): update.previous for update, _ in Spy.seen}
    assert previous[1, 0] is None
    assert torch.equal(previous[1, 1], start)
    assert previous[2, 1] is None
    assert simulation.adversary.previous.keys() == {1, 2}, "nothing is kept for the honest"


def test_a_lazy_free_rider_repeats_the_last_global_update():
    simulation, start = build(FedAvg(), LazyFreeRider(std=0.0), {2})
    models = []
    phalanx.run(
        FedAvg(),
        simulation,
        start,
        LoopSettings(until=Until(3)),
        observers=[lambda p: models.append((p.state.model, p.updates))],
    )
    assert models[1][1].deltas[2].abs().sum() == 0
    assert torch.equal(models[2][1].deltas[2], models[1][0] - models[0][0])
    assert torch.equal(models[3][1].deltas[2], models[2][0] - models[1][0])


def test_model_negation_pulls_the_model_to_zero():
    simulation, start = build(FedAvg(), ModelNegation(), {0, 1, 2, 3, 4})
    state = phalanx.run(FedAvg(), simulation, start, LoopSettings(until=Until(1)))
    assert state.model.abs().max() < 1e-6


@pytest.mark.parametrize(
    "attack", [ALIE("search"), InnerProduct("search"), Sybils(Together(ALIE("search"), Rescale()))]
)
def test_a_search_without_a_rule_is_refused_at_the_door(attack):
    with pytest.raises(InfeasibleError, match=r"FedAsync has none\. Choose an algorithm that has"):
        build(FedAsync(), attack, {1})
    build(FedAsync(), attack, set())


@pytest.mark.parametrize("attack", [ALIE(), MinMax(), Sybils(Gaussian()), InnerProduct()])
@pytest.mark.parametrize("algorithm", [FedAvg(), FedAsync()])
def test_omniscient_runs_repeat_to_the_bit(attack, algorithm):
    states = []
    for _ in range(2):
        simulation, start = build(algorithm, attack, {1, 3}, latency=Lognormal(1.0, 1.0, each_turn=True))
        states.append(phalanx.run(algorithm, simulation, start, LoopSettings(until=Until(10))))
    assert torch.equal(states[0].model, states[1].model)


@pytest.mark.parametrize("attack", [ALIE("search"), InnerProduct("search")])
def test_colluders_of_a_round_send_the_same(attack):
    simulation, start = build(FedAvg(aggregate=Median()), attack, {1, 3})
    simulation.send(dict.fromkeys(range(5), start), 0)
    replies = {reply.client: reply.delta for reply in simulation.receive(every=True).replies}
    assert torch.equal(replies[1], replies[3])
    assert not torch.equal(replies[1], replies[0])


SHORT = Run(
    attack=Attack(), clients=10, byzantine=3, model=MLP((64,)), until=Until(steps=12), training=LocalSGD(lr=0.2)
)


def final(attack, **changes):
    return simulate(replace(SHORT, attack=attack, **changes)).summary.final


def test_a_backdoor_opens_and_leaves_accuracy_alone():
    opened = final(Together(Backdoor(target=0), Rescale(10 / 3)))
    assert opened.attack_success > 0.8
    assert opened.accuracy > 0.8
    closed = final(Together(Rescale(1.0), Backdoor(target=0)), byzantine=1, algorithm=FedAvg(aggregate=Median()))
    assert closed.attack_success < 0.3


def test_flipped_labels_do_what_they_want_with_a_lie_about_the_size():
    alone, lying = final(LabelFlip(1, 7)), final(Together(LabelFlip(1, 7), ReportSize(10_000_000)))
    assert alone.attack_success < 0.3
    assert lying.attack_success > 0.7


def test_a_shift_of_labels_with_a_lie_about_the_size_takes_over():
    lying = final(Together(LabelShift(), ReportSize(10_000_000)), byzantine=1)
    assert lying.accuracy < 0.1


def test_rffl_sends_models():
    """So its last change is a difference, which is small, and not the download, which is as long as the model."""
    simulation, start = build(RFFL(), LazyFreeRider(std=0.0), {2})
    sent = []
    phalanx.run(RFFL(), simulation, start, LoopSettings(until=Until(3)), observers=[lambda p: sent.append(p.updates)])
    last = sent[-1].of({2}).deltas[0]
    assert 0 < last.norm() < 0.5 * start.norm()
