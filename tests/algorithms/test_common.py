"""Every algorithm through the same properties.  A new algorithm is one line here."""

import dataclasses

import pytest
import torch

import phalanx
from phalanx.aggregators import Median, TrimmedMean
from phalanx.algorithms import ByzantineCFL, ClusteredFL, FedAsync, FedAvg, Permuted, Rotated
from toys import Scripted, updates

ALGORITHMS = [
    FedAvg(),
    FedAvg(aggregate=Median()),
    FedAvg(aggregate=TrimmedMean(0.2)),
    ByzantineCFL(),
    ByzantineCFL(until_stable=True, aggregate=Median()),
    FedAsync(),
    ClusteredFL(),
    ClusteredFL(eps1=1e9, eps2=0.0, min_round=0, min_gap=0.0),
    Permuted(ClusteredFL(aggregate=Median()), seed=1),
    Rotated(FedAvg(), seed=1),
]
M, D = 6, 40_000
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)


def start(algorithm):
    return algorithm.init(torch.zeros(D), {i: 10 + i for i in range(M)})


def some_updates(state, seed=0):
    rng = torch.Generator().manual_seed(seed)
    rows = 0.1 + 0.1 * torch.randn(M, D, generator=rng)
    rows[-1] = -5.0
    return dataclasses.replace(
        updates([[0.0]] * M), deltas=rows, versions=(state.version,) * M, bases=(state.model,) * M
    )


@every_algorithm
def test_steps_are_pure(algorithm):
    state, _ = start(algorithm)
    batch = some_updates(state)
    before = batch.deltas.clone(), state.model.clone()
    once, ready = algorithm.step(state, batch)
    again, ready_again = algorithm.step(state, batch)
    assert torch.equal(batch.deltas, before[0])
    assert torch.equal(state.model, before[1])
    assert torch.equal(once.model, again.model)
    assert once.verdicts == again.verdicts
    assert set(ready) == set(ready_again)


@every_algorithm
def test_hyper_parameters_and_states_are_immutable(algorithm):
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.anything = 1
    state, _ = start(algorithm)
    with pytest.raises(AttributeError):
        state.version = 3


@every_algorithm
def test_every_client_that_took_part_has_a_verdict(algorithm):
    state, _ = start(algorithm)
    state, ready = algorithm.step(state, some_updates(state))
    assert state.verdicts.keys() == set(range(M))
    for verdict in state.verdicts.values():
        assert 0 <= verdict.weight <= 1
        assert verdict.accepted or (verdict.weight == 0 and verdict.reason)
    if algorithm.synchronous:
        assert sum(v.weight for v in state.verdicts.values()) == pytest.approx(1)
    assert all(state.verdicts[i].accepted for i in ready)


@every_algorithm
def test_the_names_of_clients_do_not_matter(algorithm):
    """Clients 0..5 renamed to 5..0: the same model up to the order of a sum, the same verdicts under new names."""
    state, _ = start(algorithm)
    batch = some_updates(state)
    renamed = dataclasses.replace(batch, deltas=batch.deltas.flip(0))
    straight, _ = algorithm.step(state, batch)
    flipped_state, _ = algorithm.init(torch.zeros(D), {i: 10 + (M - 1 - i) for i in range(M)})
    flipped, _ = algorithm.step(flipped_state, renamed)
    if algorithm.synchronous:
        assert torch.allclose(straight.model, flipped.model, atol=1e-6)
        for i in range(M):
            assert straight.verdicts[i].accepted == flipped.verdicts[M - 1 - i].accepted
            assert straight.verdicts[i].weight == pytest.approx(flipped.verdicts[M - 1 - i].weight)


@every_algorithm
def test_versions_count_server_updates(algorithm):
    state, _ = start(algorithm)
    for expected in (1, 2, 3):
        batch = some_updates(state).of({0})
        state, _ = algorithm.step(state, batch)
        assert state.version == expected


@every_algorithm
def test_history_can_write_what_the_algorithm_shows(algorithm):
    state, _ = start(algorithm)
    for name in algorithm.observed:
        assert hasattr(state, name)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.filterwarnings("ignore:threshold")
def test_runs_in_the_engine_and_serves_everybody(algorithm):
    transport = Scripted({i: [0.1 * (i + 1)] for i in range(4)})
    state = phalanx.run(algorithm, transport, torch.zeros(2), until=8)
    assert state.version >= 8
    assert {i for send in transport.sent for i in send} == {0, 1, 2, 3}


def test_updates_refuse_what_is_not_in_order():
    with pytest.raises(ValueError, match="ordered by client id"):
        updates([[1.0], [2.0]], clients=[1, 0])
    with pytest.raises(ValueError, match="name each client once"):
        updates([[1.0], [2.0]], clients=[1, 1])
    with pytest.raises(ValueError, match="versions"):
        updates([[1.0], [2.0]], versions=(0,))


def test_of_is_a_view_where_all_are_members():
    batch = updates([[1.0], [2.0], [3.0]])
    assert batch.of({0, 1, 2, 9}) is batch
    part = batch.of({0, 2})
    assert part.clients == (0, 2)
    assert part.deltas.flatten().tolist() == [1.0, 3.0]
