"""What is hidden from the server, and that nothing else changes."""

import math
from dataclasses import dataclass

import pytest
import torch
from incongruent import Divided

import phalanx
from algorithms.test_common import ALGORITHMS
from phalanx.aggregators import GeometricMedian, Krum, Mean, Median, TrimmedMean
from phalanx.algorithms import (
    BASGD,
    FLAME,
    RFFL,
    AsyncRFFL,
    ByClass,
    ByzantineCFL,
    Catalyst,
    ClusteredFL,
    FedAsync,
    FedAvg,
    FedBuff,
    FoolsGold,
    Kardam,
    PerLayer,
    Permuted,
    Private,
    QFedAvg,
    Quorum,
    Rotated,
    SignSGD,
    Standalone,
    ZenoPlusPlus,
)
from phalanx.algorithms.hidden import hartley
from phalanx.algorithms.wrapper import Wrapper
from phalanx.attacks import Rescale
from phalanx.core import Algorithm, Local, Setting, Traits, Until
from phalanx.data import PermutedLabels
from phalanx.engine import LoopSettings
from toys import Scripted

SPLITTING = ClusteredFL(split_rounds=(3, 5), min_gap=0.0)


@pytest.fixture(scope="module")
def federation():
    return Divided(6, PermutedLabels(2))


def models(federation, algorithm, until=6, **options):
    """What each client is served in the end."""
    state = federation.run(algorithm, until=until, **options)
    transport = federation.transport
    return state, [transport.model_of(i, algorithm.download(state, i)) for i in federation.data]


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(),
        FedAvg(aggregate=Median()),
        FedAvg(aggregate=TrimmedMean(0.2)),
        FedAvg(aggregate=Krum(f=1)),
        ByzantineCFL(threshold=-0.5),
        SPLITTING,
        FedAsync(),
        FedBuff(size=3),
        Kardam(f=1),
        BASGD(buffers=2),
        SignSGD(),
        Standalone(),
        Quorum(ByzantineCFL(threshold=-0.5), k=4),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:threshold")
def test_permuted_models_are_the_same_to_the_bit(federation, algorithm):
    _, plain = models(federation, algorithm)
    hidden_state, hidden = models(federation, Permuted(algorithm, seed=5))
    for one, other in zip(plain, hidden, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(hidden_state.model, plain[0]), "the server has something else"


@pytest.mark.parametrize(
    ("algorithm", "steps"),
    [
        (FLAME(), 6),
        (Catalyst(f=1), 20),
        (RFFL(challenge=None), 6),  # shifts are drawn in the order that the server sees
        (QFedAvg(q=2.0, lr=0.5), 6),
        (FoolsGold(), 3),  # its logit magnifies rounding: on some processors differences reach 1e-4 in the fourth round
    ],
    ids=lambda value: type(value).__name__,
)
def test_permuted_models_are_the_same_to_rounding_where_lengths_count(federation, algorithm, steps):
    _, plain = models(federation, algorithm, until=steps)
    _, hidden = models(federation, Permuted(algorithm, seed=5), until=steps)
    for one, other in zip(plain, hidden, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("kind", [Permuted, Rotated])
def test_a_server_that_trains_itself_must_see_models(kind):
    with pytest.raises(ValueError, match=rf"{kind.__name__} hides models .* ZenoPlusPlus has .* alone"):
        kind(ZenoPlusPlus())

    class Judging(FedAvg):
        traits = Traits(reference_every=1)

    with pytest.raises(ValueError, match=f"{kind.__name__} hides models"):
        kind(Quorum(Judging(), 2))


@pytest.mark.parametrize("kind", [Permuted, Rotated])
@pytest.mark.parametrize(
    "algorithm",
    [
        RFFL(allocation=PerLayer((2, 1))),
        AsyncRFFL(allocation=PerLayer((2, 1))),
        RFFL(agreement=ByClass(0, 2, 3)),
        Private(RFFL(allocation=PerLayer((2, 1))), clip=1.0, noise_multiplier=0.0),
    ],
    ids=["layers", "layers of arrivals", "classes", "within another"],
)
def test_a_server_that_looks_at_layers_must_know_them(kind, algorithm):
    with pytest.raises(ValueError, match=f"{kind.__name__} hides from the server which entry of a model is which"):
        kind(algorithm)
    assert kind(RFFL()).algorithm == RFFL()


@pytest.mark.parametrize("inner", [Permuted(FedAvg()), Quorum(Rotated(FedAvg()), 2)], ids=str)
def test_nothing_is_hidden_twice(inner):
    with pytest.raises(ValueError, match=r"Permuted is around .*, and one transform hides all: take either"):
        Permuted(inner)


def test_clusters_are_found_under_a_permutation(federation):
    state, _ = models(federation, Permuted(SPLITTING, seed=5))
    assert len(state.clusters) == 3
    assert federation.true_groups() & set(map(frozenset, state.clusters.values()))


def test_an_attack_that_knows_no_order_does_the_same_harm(federation):
    attacked = {"attack": Rescale(), "byzantine": {2}}
    _, plain = models(federation, FedAvg(aggregate=Median()), **attacked)
    _, hidden = models(federation, Permuted(FedAvg(aggregate=Median()), 1), **attacked)
    assert torch.equal(plain[0], hidden[0])


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(),
        FedAvg(aggregate=GeometricMedian()),
        FedAvg(aggregate=Krum(f=1)),
        ByzantineCFL(threshold=-0.5),
        SPLITTING,
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:threshold")
def test_rotated_models_are_the_same_to_rounding(federation, algorithm):
    state, plain = models(federation, algorithm, until=4)
    rotated_state, rotated = models(federation, Rotated(algorithm, seed=5), until=4)
    for one, other in zip(plain, rotated, strict=True):
        assert torch.allclose(one, other, atol=2e-4)
    assert torch.linalg.vector_norm(rotated_state.model).item() == pytest.approx(float(state.model.norm()), rel=1e-3)


def test_rules_by_coordinate_see_other_coordinates_when_rotated(federation):
    _, plain = models(federation, FedAvg(aggregate=Median()), until=1)
    _, rotated = models(federation, Rotated(FedAvg(aggregate=Median())), until=1)
    assert not torch.allclose(plain[0], rotated[0], atol=2e-4)


# The transforms


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5, 16, 97, 120])
def test_the_hartley_transform_is_its_definition(d):
    n = torch.arange(d, dtype=torch.float64)
    angle = 2 * math.pi * n[:, None] * n / d
    matrix = (angle.cos() + angle.sin()) / math.sqrt(d)
    x = torch.randn(d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    assert torch.allclose(hartley(x), matrix @ x, atol=1e-10)
    assert torch.allclose(hartley(hartley(x)), x, atol=1e-12)


@pytest.mark.parametrize("kind", [Permuted, Rotated])
@pytest.mark.parametrize("d", [1, 2, 3, 8, 50, 97])
def test_transforms_are_orthonormal_and_undone(kind, d):
    wrapper = kind(FedAvg(), seed=3)
    matrix = torch.stack([wrapper.hidden(e) for e in torch.eye(d, dtype=torch.float64)])
    assert torch.allclose(matrix @ matrix.T, torch.eye(d, dtype=torch.float64), atol=1e-12)
    x = torch.randn(d, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(wrapper.revealed(wrapper.hidden(x)), x, atol=1e-6)
    assert wrapper.hidden(x).dtype == x.dtype


def test_seeds_and_kinds_hide_differently():
    x = torch.randn(200, generator=torch.Generator().manual_seed(0))
    seen = [Permuted(FedAvg(), 0), Permuted(FedAvg(), 1), Rotated(FedAvg(), 0), Rotated(FedAvg(), 1)]
    hidden = [wrapper.hidden(x) for wrapper in seen]
    for k, one in enumerate(hidden):
        assert not torch.allclose(one, x)
        assert not any(torch.allclose(one, other) for other in hidden[k + 1 :])
    assert torch.equal(hidden[0].sort().values, x.sort().values), "a permutation shows all values"


def test_a_rotation_spreads_a_single_parameter_over_all():
    d = 4096
    for k in (0, 17, d - 1):
        spread_out = Rotated(FedAvg(), seed=k).hidden(torch.eye(d)[k])
        assert spread_out.abs().max() < 8 / math.sqrt(d)
        assert (spread_out.abs() > 1e-4 / math.sqrt(d)).float().mean() > 0.99


def test_a_rotation_needs_no_matrix():
    """O(d log d) time and O(d) memory: as a matrix, this one would have 90 billion entries."""
    d = 300_007  # a prime, for which transforms are hardest
    x = torch.randn(d, generator=torch.Generator().manual_seed(0))
    wrapper = Rotated(FedAvg(), 1)
    hidden = wrapper.hidden(x)
    assert float(hidden.norm()) == pytest.approx(float(x.norm()), rel=1e-6)
    assert float((wrapper.revealed(hidden) - x).abs().max()) < 1e-6


# The wrapper


def test_the_server_role_is_that_of_the_algorithm():
    wrapper, x = Permuted(FedAvg(aggregate=Median()), seed=1), torch.arange(5.0)
    state, ready = wrapper.init(x, {0: 1, 1: 1})
    assert torch.equal(state.model, wrapper.hidden(x))
    assert ready == {0, 1}
    assert torch.equal(wrapper.integrate(None, wrapper.download(state, 0)), x)
    assert (wrapper.traits.synchronous, wrapper.traits.observed) == (True, ())
    assert wrapper.rule == Median()
    assert Permuted(FedAsync()).traits.synchronous is False
    assert Permuted(FedAsync()).rule is None
    assert Permuted(ByzantineCFL()).traits.observed == ByzantineCFL().traits.observed


def test_a_wrapper_forwards_everything_that_an_algorithm_has():
    public = {name for name in vars(Algorithm) if not name.startswith("_")}
    assert public - vars(Wrapper).keys() == set()


@dataclass(frozen=True)
class Plain(Wrapper):
    """Changes nothing."""

    def pools(self, setting, state=None):
        return super().pools(setting, state)


def test_a_wrapper_says_what_is_combined_before_it_can_be_made():
    class Silent(Wrapper):
        """Changes what is sent, and says nothing of it."""

    with pytest.raises(TypeError, match="abstract"):
        Silent(FedAvg())
    with pytest.raises(TypeError, match="abstract"):
        Wrapper(FedAvg())


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_a_wrapper_that_changes_nothing_is_as_the_algorithm(algorithm):
    wrapper = Plain(algorithm)
    declared = [name for name, value in vars(Algorithm).items() if name[0] != "_" and not callable(value)]
    assert [getattr(wrapper, name) for name in declared if name != "title"] == [
        getattr(algorithm, name) for name in declared if name != "title"
    ]
    assert wrapper.title == f"Plain({algorithm.title})"
    state, ready = wrapper.init(torch.zeros(40_000), {i: 10 + i for i in range(6)})
    assert set(ready) == set(algorithm.init(torch.zeros(40_000), {i: 10 + i for i in range(6)})[1])
    assert wrapper.weights(state, [0, 3]) == algorithm.weights(state, [0, 3])
    assert wrapper.pools(Setting(5), state) == algorithm.pools(Setting(5), state)
    assert wrapper.candidate_models(state, 2).keys() == algorithm.candidate_models(state, 2).keys()
    assert torch.equal(wrapper.download(state, 2), algorithm.download(state, 2))
    if algorithm.traits.can_join:
        assert wrapper.join(state, 9, 5).verdicts == {}


@pytest.mark.parametrize("kind", [Permuted, Rotated])
def test_what_a_client_remembers_is_in_the_clear(kind):
    class Carries(FedAvg):
        """Trains from where it was: w + dw + what it is sent, as allocated gradients are."""

        def integrate(self, local, download):
            return download if local is None else local.params + local.delta + download

        def upload(self, delta, memory):
            return 2 * delta, torch.ones(1) if memory is None else memory + 1

    wrapper = kind(Carries(), 3)
    params, delta, download = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    sent, memory = wrapper.upload(delta, None)
    assert torch.allclose(wrapper.revealed(sent), 2 * delta, atol=1e-6)
    assert float(memory) == 1
    found = wrapper.integrate(Local(params, sent, memory), wrapper.hidden(download))
    assert torch.allclose(found, params + 2 * delta + download, atol=1e-5)


def test_it_runs_in_the_engine_as_any_algorithm():
    wrapper = Permuted(FedAvg(aggregate=Mean()), 3)
    assert isinstance(wrapper, Algorithm)
    state = phalanx.run(wrapper, Scripted({0: [1.0], 1: [3.0]}), torch.zeros(2), LoopSettings(until=Until(3)))
    assert state.model.tolist() == [6.0, 6.0]
