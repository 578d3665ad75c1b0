from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

import phalanx
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import Attack, Gaussian, Misreporting, Poisoning, Rescale
from phalanx.attacks.attack import AttackTraits
from phalanx.core import Algorithm, InfeasibleError, Local, Until
from phalanx.data import Dataset
from phalanx.engine import LoopSettings
from phalanx.models import MLP
from phalanx.rng import borrowed
from phalanx.simulation import Constant, Lognormal, Simulation
from phalanx.simulation.latency import Latency
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule


def build(algorithm, clients=4, *, recipe=None, seed=0, dropout=0.0, **options):
    rng = torch.Generator().manual_seed(7)
    data = {
        i: Dataset(torch.rand(20, 3, generator=rng), torch.randint(0, 2, (20,), generator=rng), 2)
        for i in range(clients)
    }
    with borrowed(seed, "model"):
        model = FlatModule(MLP((8,), dropout).build((3,), 2))
    start = model.read()
    trainer = Trainer(model, recipe or LocalSGD(batch_size=5), seed)
    return Simulation(algorithm, trainer, data, seed=seed, **options), start


def train(algorithm, until=3, **options):
    simulation, start = build(algorithm, **options)
    return phalanx.run(algorithm, simulation, start, LoopSettings(until=Until.of(until))), simulation


def test_a_round_takes_as_long_as_its_slowest_client():
    @dataclass(frozen=True)
    class ById(Latency):
        def seconds(self, task, seed):
            return 1.0 + task.client

    _, simulation = train(FedAvg(), until=3, clients=4, latency=ById())
    assert simulation.now == 12.0
    seen = []
    simulation, start = build(FedAsync(), clients=2, latency=ById())
    phalanx.run(FedAsync(), simulation, start, LoopSettings(until=Until(5)), observers=[seen.append])
    assert [(p.updates.clients[0], p.now) for p in seen[1:]] == [(0, 1.0), (1, 2.0), (0, 2.0), (0, 3.0), (1, 4.0)]


def test_staleness_is_the_servers_own_count():
    seen = []
    simulation, start = build(FedAsync(), clients=5, latency=Lognormal(1.0, 1.0, each_turn=True))
    phalanx.run(FedAsync(), simulation, start, LoopSettings(until=Until(40)), observers=[seen.append])
    ages = [p.state.version - 1 - p.updates.versions[0] for p in seen[1:]]
    assert min(ages) >= 0
    assert max(ages) > 0
    alone, start = build(FedAsync(), clients=1)
    seen = []
    phalanx.run(FedAsync(), alone, start, LoopSettings(until=Until(5)), observers=[seen.append])
    assert [p.state.verdicts[0].score for p in seen[1:]] == [0.0] * 5


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAsync()])
def test_the_same_seed_gives_the_same_bits_and_leaves_global_randomness_alone(algorithm):
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    options = {"dropout": 0.5, "attack": Gaussian(), "byzantine": {1}, "latency": Lognormal()}
    first, _ = train(algorithm, until=6, **options)
    torch.rand(17)  # somebody else draws between the runs
    second, _ = train(algorithm, until=6, **options)
    other, _ = train(algorithm, until=6, seed=1, **options)
    assert torch.equal(first.model, second.model)
    assert not torch.equal(first.model, other.model)
    torch.set_rng_state(torch_before)
    train(algorithm, until=2, **options)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert (np.random.get_state()[1] == numpy_before).all()


def test_an_attacker_changes_no_honest_update():
    seen = {}
    for name, options in {"clean": {}, "attacked": {"attack": Gaussian(), "byzantine": {2}}}.items():
        simulation, start = build(FedAvg(), **options)
        simulation.send(dict.fromkeys(range(4), start), 0)
        seen[name] = {reply.client: reply.delta for reply in simulation.receive(every=True).replies}
    for honest in (0, 1, 3):
        assert torch.equal(seen["clean"][honest], seen["attacked"][honest])
    assert not torch.equal(seen["clean"][2], seen["attacked"][2])


def test_an_attack_sees_its_own_update_and_forges_it():
    clean, start = build(FedAvg())
    evil, _ = build(FedAvg(), attack=Rescale(-10.0), byzantine={0})
    for simulation in (clean, evil):
        simulation.send({0: start, 1: start}, 0)
    honest, forged = (simulation.receive(every=True).replies for simulation in (clean, evil))
    assert torch.equal(forged[0].delta, -10 * honest[0].delta)
    assert torch.equal(forged[1].delta, honest[1].delta)


def test_an_omniscient_attack_knows_every_honest_update_of_its_round_and_in_flight():
    class Spy(Attack):
        traits = AttackTraits(omniscient=True)

        def forge(self, update, knowledge, rng):
            seen.append((knowledge.honest.clone(), set(knowledge.byzantine)))
            return knowledge.honest.mean(0)

    class Blind(Spy):
        traits = AttackTraits()

        def forge(self, update, knowledge, rng):
            assert knowledge is None
            return update.delta

    seen = []
    simulation, start = build(FedAvg(), attack=Spy(), byzantine={0, 2})
    simulation.send(dict.fromkeys(range(4), start), 0)
    replies = {reply.client: reply.delta for reply in simulation.receive(every=True).replies}
    assert len(seen) == 2
    assert torch.equal(seen[0][0], torch.stack([replies[1], replies[3]]))
    assert seen[0][1] == {0, 2}
    train(FedAvg(), until=1, attack=Blind(), byzantine={0})
    seen.clear()
    simulation, start = build(FedAsync(), attack=Spy(), byzantine={3}, latency=Lognormal(1.0, 1.0, each_turn=True))
    phalanx.run(FedAsync(), simulation, start, LoopSettings(until=Until(20)))
    assert {len(honest) for honest, _ in seen} <= {0, 1, 2, 3}
    assert any(len(honest) for honest, _ in seen)


def test_data_and_sizes_of_attackers_only():
    class Liar(Poisoning, Misreporting):
        def poison(self, data, rng):
            return Dataset(data.x, torch.zeros_like(data.y), data.classes)

        def reported_size(self, size):
            return 1000 * size

    simulation, _ = build(FedAvg(), attack=Liar(), byzantine={1})
    assert simulation.enroll() == {0: 20, 1: 20_000, 2: 20, 3: 20}
    assert simulation.data[1].y.sum() == 0
    assert simulation.data[0].y.sum() > 0


def test_byzantine_clients_need_an_attack_and_must_exist():
    with pytest.raises(InfeasibleError, match="no attack"):
        build(FedAvg(), byzantine={0})
    with pytest.raises(InfeasibleError, match=r"\[9\] are not among the 4 clients"):
        build(FedAvg(), byzantine={9}, attack=Gaussian())


class Plain(NamedTuple):
    version: int
    model: torch.Tensor
    verdicts: dict


@dataclass(frozen=True)
class Personal(Algorithm):
    """Clients keep their own models: each adds what it is sent to where it stood, and counts its uploads."""

    def init(self, model, sizes):
        return Plain(0, model, {}), sizes.keys()

    def step(self, state, updates):
        return Plain(state.version + 1, torch.ones_like(state.model), {}), set(updates.clients)

    def integrate(self, local: Local | None, download):
        return download if local is None else local.params + local.delta + download

    def upload(self, delta, memory):
        count = torch.zeros(1) if memory is None else memory
        return 2 * delta, count + 1


def test_clients_remember_what_their_role_needs():
    simulation, start = build(Personal(), clients=1)
    simulation.send({0: start}, 0)
    first = simulation.receive(every=True).replies[0].delta.clone()
    assert torch.equal(simulation.model_of(0, torch.ones_like(start)), start + first + 1)
    assert torch.equal(simulation.model_of(0, torch.ones_like(start)), start + first + 1), "asking changes nothing"
    simulation.send({0: torch.ones_like(start)}, 1)
    simulation.receive(every=True)
    local = simulation._locals[0]
    assert torch.equal(local.params, start + first + 1)
    assert local.memory.item() == 2
    plain, start = build(FedAvg())
    plain.send({0: start}, 0)
    assert plain._locals == {}, "nothing is kept where nothing is needed"


def test_updates_of_a_round_lie_in_one_matrix():
    """No second copy of the matrix, however many clients."""
    simulation, start = build(FedAvg())
    seen = []
    phalanx.run(FedAvg(), simulation, start, LoopSettings(until=Until(1)), observers=[seen.append])
    deltas = seen[1].updates.deltas
    assert deltas.untyped_storage().nbytes() == deltas.numel() * 4
    assert deltas.stride() == (len(start), 1)


def test_constant_latency_is_the_default():
    _, simulation = train(FedAvg(), until=2)
    assert simulation.latency == Constant(1.0)
    assert simulation.now == 2.0
