"""Every algorithm through the same properties: those of the list, and each exported one that it lacks, as it is."""

import dataclasses
from typing import get_args

import pytest
import torch

import phalanx
from exported import lacking
from phalanx.aggregators import CTMA, Aggregator, Median, TrimmedMean
from phalanx.algorithms import (
    BASGD,
    FLAME,
    FLHC,
    IFCA,
    RFFL,
    SCAFFOLD,
    AFLGuard,
    AsyncFilter,
    AsyncMomentum,
    AsyncRFFL,
    AtOnce,
    BenignClusters,
    ByzantineCFL,
    Catalyst,
    CentrallyPrivate,
    Challenge,
    ClusteredFL,
    DeMoA,
    FedAdagrad,
    FedAdam,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedBuff,
    FedDyn,
    FedNova,
    FedYogi,
    FoolsGold,
    Kardam,
    LowRankProducts,
    PerCluster,
    Permuted,
    Private,
    QFedAvg,
    Quorum,
    Rewarded,
    Rotated,
    ServerAlone,
    SignSGD,
    Standalone,
    StoCFL,
    Unsent,
    WorkerMomentum,
)
from phalanx.clustering import Memory, Peel
from phalanx.core import Algorithm, Keeps, Traits, Until
from phalanx.engine import LoopSettings
from phalanx.runs.observed import FORMS, observed
from phalanx.runs.schema import StepRecord, plain
from phalanx.training import LocalSGD
from phalanx.weighting import AsReported, Ignore
from toys import Scripted, updates

ALGORITHMS = [
    FedAvg(),
    FedAvg(aggregate=Median()),
    FedAvg(aggregate=TrimmedMean(0.2)),
    ByzantineCFL(),
    ByzantineCFL.as_published(),
    ByzantineCFL(exclusion=AtOnce(), until_stable=True, aggregate=Median()),
    ByzantineCFL(retest_after=1),
    BenignClusters(f=1, threshold=0.02),
    BenignClusters(
        f=1, threshold=0.02, regular=ClusteredFL(eps1=1e9, eps2=0.0, min_round=0, min_gap=0.0, aggregate=Median())
    ),
    FedAsync(),
    FedBuff(size=3),
    FedBuff(size=3, aggregate=Median()),
    Kardam(f=1),
    Kardam(f=1, compared="own", frequency="each", memory=3, interpolate=True, mixing=True),
    Kardam(f=1, bootstrap=True),
    BASGD(buffers=2),
    BASGD(buffers=2, momentum=0.9, preprocess=AsReported()),
    AsyncMomentum(),
    AsyncMomentum(aggregate=CTMA(0.2), momentum=0.0, weight_by="clients", start=1),
    Quorum(AsyncFilter(), k=4),
    DeMoA(),
    DeMoA(aggregate=CTMA(0.2), momentum=0.0),
    IFCA(1),
    IFCA(2),
    FLHC(),
    FLHC(rounds=0, clusters=1),
    StoCFL(tau=-1.0),
    Quorum(IFCA(2), k=4),
    Quorum(FLHC(rounds=1), k=3),
    Quorum(StoCFL(), k=3),
    FedAsync(preprocess=AsReported()),
    BASGD(buffers=3, reassign_after=4, fresh_only=True, first_only=True, forgets_first=True),
    AFLGuard(radius=4.0),
    FLAME(),
    FLAME(noise=0.001, compare="models"),
    Catalyst(f=1),
    Catalyst(f=1, window=2, aggregate=Median()),
    Catalyst(f=1, second_look=True),
    Catalyst.as_published(f=1),
    Quorum(FedAvg(aggregate=Median()), k=3),
    Quorum(FLAME(f=1), k=3),
    Quorum(ClusteredFL(eps1=1e9, eps2=0.0, min_round=0, min_gap=0.0), k=4),
    Quorum(ByzantineCFL(), k=4),
    RFFL(),
    RFFL.as_published(),
    RFFL(clip=0.5, own="replaced", aggregate=Median(), probation=3, min_coherence=1.5),
    RFFL(unsent=Unsent(), challenge=Challenge()),
    AsyncRFFL(),
    AsyncRFFL(challenge=Challenge()),
    QFedAvg(),
    QFedAvg(q=2.0, lr=0.5),
    FoolsGold(),
    FoolsGold(confidence=2.0, step_length="sum"),
    SignSGD(),
    SignSGD(momentum=0.0, weight_decay=0.1),
    ClusteredFL(),
    ClusteredFL.as_published(),
    ClusteredFL(eps1=1e9, eps2=0.0, min_round=0, min_gap=0.0),
    ClusteredFL(min_round=0, min_reported=0.5, memory=Memory(rate=0.5), peel=Peel(1, rounds=1), min_gap=0.0),
    Permuted(ClusteredFL(aggregate=Median()), seed=1),
    Rotated(FedAvg(), seed=1),
    Private(FedAvg(aggregate=Median()), clip=1.0, noise_multiplier=0.1),
    SCAFFOLD(),
    SCAFFOLD(aggregate=Median(), server_lr=0.5),
    FedDyn(),
    FedDyn(aggregate=Median()),
    FedNova(),
    LowRankProducts(aggregate=Median()),
    FedNova(aggregate=Median(), training=LocalSGD(batch_size=4, momentum=0.9)),
    WorkerMomentum(FedAvg(aggregate=Median())),
    Quorum(SCAFFOLD(aggregate=Median()), k=3),
    PerCluster(SCAFFOLD(), min_turns=1, min_part_size=2, min_gap=0.01),
    Permuted(FedDyn(), seed=1),
    FedAvgM(FedAvg(aggregate=Median())),
    FedAdagrad(SignSGD()),
    FedAdam(FLAME()),
    FedYogi(Permuted(FedAvg(), seed=1)),
    Quorum(FedAdam(FedAvg(aggregate=Median())), k=3),
    PerCluster(FedAdam(FedAvg()), min_turns=1, min_part_size=2, min_gap=0.01),
    CentrallyPrivate(FedAdam(FedAvg(preprocess=Ignore())), clip=1.0, noise_multiplier=0.1, count_noise=0.5),
    Rewarded(FedYogi(FedAvg(aggregate=Median()))),
    Rewarded(FedAvg(aggregate=Median())),
    Rewarded(FedAvg(aggregate=Median()), challenge=Challenge()),
    Rewarded(Catalyst(f=1), sharpness=2.0),
    PerCluster(FedAvg(), min_turns=1, min_part_size=2, min_gap=0.01),
    PerCluster(Catalyst(f=0), min_turns=1, min_part_size=2, min_gap=0.01),
    PerCluster(RFFL(), min_turns=1, min_part_size=2, min_gap=0.01),
    PerCluster(Rewarded(Quorum(FedAvg(), k=2)), min_turns=1, min_part_size=2, min_gap=0.01),
    PerCluster(AsyncRFFL(), min_turns=1, min_part_size=2, min_gap=0.01),
    Quorum(Private(Permuted(FedAvg(), seed=1), clip=1.0, noise_multiplier=0.1), k=3),
]
M, D = 6, 40_000
ALGORITHMS += [make(M, 1) for _, make in lacking(Algorithm, {type(a) for a in ALGORITHMS})]
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)


def one_of_each_class(these):
    """Return the parameters of a test: of each class the first, and the others where slow tests run."""
    first = {type(algorithm): algorithm for algorithm in reversed(these)}.values()
    return [pytest.param(a, id=str(a), marks=() if any(a is b for b in first) else pytest.mark.slow) for a in these]


def needed(algorithm, examples=10):
    """The fields that a run with an algorithm needs: examples of the server, and the training whose steps it counts."""
    own = {"training": algorithm.training} if isinstance(algorithm, FedNova) else {}
    return own | {"server_examples": examples * algorithm.traits.needs_reference}


def start(algorithm):
    return algorithm.init(torch.zeros(D), {i: 10 + i for i in range(M)})


def some_updates(algorithm, state, seed=0):
    rng = torch.Generator().manual_seed(seed)
    rows = 0.1 + 0.1 * torch.randn(M, D, generator=rng)
    rows[-1] = -5.0
    return dataclasses.replace(
        updates([[0.0]] * M),
        deltas=rows,
        versions=(state.version,) * M,
        bases=tuple(algorithm.download(state, i) for i in range(M)),
        reference=torch.full((D,), 0.1),
    )


@every_algorithm
def test_steps_are_pure(algorithm):
    state, _ = start(algorithm)
    batch = some_updates(algorithm, state)
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
def test_what_the_engine_asks_an_algorithm_is_a_value(algorithm):
    """And not a method, which is true whatever it would return."""
    assert isinstance(algorithm.title, str)
    assert algorithm.rule is None or isinstance(algorithm.rule, Aggregator)
    traits = algorithm.traits
    assert type(traits) is Traits
    assert type(traits.vectors) is int
    assert traits.keeps in get_args(Keeps)
    assert all(type(name) is str for name in traits.observed)
    for name in ("synchronous", "can_join", "exact_losses", "needs_reference", "knows_layout", "corrects", "remembers"):
        assert type(getattr(traits, name)) is bool, name


@every_algorithm
def test_every_client_that_took_part_has_a_verdict(algorithm):
    state, _ = start(algorithm)
    state, ready = algorithm.step(state, some_updates(algorithm, state))
    assert state.verdicts.keys() == set(range(M))
    for verdict in state.verdicts.values():
        assert 0 <= verdict.weight <= 1
        assert verdict.accepted or (verdict.weight == 0 and verdict.reason)
    if algorithm.traits.synchronous:
        waits = all(v.waits for v in state.verdicts.values())
        used = 0 if isinstance(algorithm, (ServerAlone, Standalone)) or waits else 1
        assert sum(v.weight for v in state.verdicts.values()) == pytest.approx(used)
    assert not any(state.verdicts[i].final for i in ready)
    if algorithm.traits.synchronous:
        assert set(ready) == {i for i, verdict in state.verdicts.items() if not verdict.final}


@pytest.mark.parametrize(
    "algorithm", [a for a in ALGORITHMS if isinstance(getattr(a, "server_lr", None), float)], ids=str
)
def test_the_servers_learning_rate_is_in_no_weight(algorithm):
    weights = []
    for lr in (0.25, 0.5):
        rated = dataclasses.replace(algorithm, server_lr=lr)
        state, _ = start(rated)
        state, _ = rated.step(state, some_updates(algorithm, state))
        weights.append({i: (verdict.accepted, verdict.weight) for i, verdict in state.verdicts.items()})
    assert weights[0] == weights[1]
    assert any(weight > 0 for _, weight in weights[0].values())


@every_algorithm
def test_the_names_of_clients_do_not_matter(algorithm):
    """Clients 0..5 renamed to 5..0: the same model up to the order of a sum, the same verdicts under new names."""
    state, _ = start(algorithm)
    batch = some_updates(algorithm, state)
    renamed = dataclasses.replace(batch, deltas=batch.deltas.flip(0))
    straight, _ = algorithm.step(state, batch)
    flipped_state, _ = algorithm.init(torch.zeros(D), {i: 10 + (M - 1 - i) for i in range(M)})
    flipped, _ = algorithm.step(flipped_state, renamed)
    if algorithm.traits.synchronous:
        assert torch.allclose(straight.model, flipped.model, atol=1e-6)
        for i in range(M):
            assert straight.verdicts[i].accepted == flipped.verdicts[M - 1 - i].accepted
            assert straight.verdicts[i].weight == pytest.approx(flipped.verdicts[M - 1 - i].weight)


@every_algorithm
def test_versions_count_server_updates(algorithm):
    state, _ = start(algorithm)
    for expected in (1, 2, 3):
        before, model, batch = state.version, state.model, some_updates(algorithm, state).of({0})
        state, _ = algorithm.step(state, batch)
        if algorithm.traits.synchronous:
            assert state.version == expected
        assert before <= state.version <= before + 1
        assert state.version > before or torch.equal(state.model, model), "what is used counts"


@every_algorithm
def test_history_can_write_what_the_algorithm_shows(algorithm):
    state, _ = start(algorithm)
    for name in algorithm.traits.observed:
        assert hasattr(state, name)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
@pytest.mark.filterwarnings("ignore:threshold")
def test_runs_in_the_engine_and_serves_everybody(algorithm):
    transport = Scripted({i: [0.1 * (i + 1)] for i in range(4)})
    own = (lambda model, version: torch.full((2,), 0.1)) if algorithm.traits.needs_reference else None
    state = phalanx.run(algorithm, transport, torch.zeros(2), LoopSettings(until=Until(8)), reference=own)
    assert state.version >= (8 if algorithm.traits.synchronous else 1)
    assert {i for send in transport.sent for i in send} == {0, 1, 2, 3}
    for name in FORMS.keys() & set(algorithm.traits.observed):
        shown = StepRecord(step=0, version=0, seconds=0.0, state=plain({name: getattr(state, name)}))
        assert (observed(shown, name) is None) == (getattr(state, name) is None), f"pages know another form of {name}"


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


def test_an_algorithm_is_called_by_few_names():
    """What it only declares is in `traits`."""
    public = {name: value for name, value in vars(Algorithm).items() if not name.startswith("_")}
    values = {name for name, value in public.items() if isinstance(value, property)}
    assert values == {"traits", "title", "rule"}
    assert len(public) - len(values) <= 13
