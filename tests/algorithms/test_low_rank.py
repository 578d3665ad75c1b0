"""Aggregation of the products of adapters, by hand, and against what rules make of the factors."""

import dataclasses

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Mean, Median
from phalanx.algorithms import Adapter, FedAvg, LowRankProducts
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError
from phalanx.data import Dataset, InMemory
from phalanx.models import MLP, CausalTransformer, LoRA
from phalanx.training import LocalSGD, NextToken
from phalanx.weighting import Ignore
from toys import updates

RANK, IN, OUT = 2, 5, 4
ADAPTER = Adapter(3, 3 + RANK * IN, RANK, IN, OUT)  # after three entries of another layer
D = 3 + RANK * (IN + OUT)


def vector(plain, a, b):
    return torch.cat((torch.as_tensor(plain), a.flatten(), b.flatten()))


def product(model):
    a, b = ADAPTER.factors(model[None])
    return (b @ a)[0]


def stepped(algorithm, start, models):
    """The model after a round in which clients trained these from `start`."""
    state, _ = algorithm.init(start, dict.fromkeys(range(len(models)), 10))
    rows = torch.stack(models) - start
    sent = dataclasses.replace(updates([[0.0] * len(start)] * len(models)), deltas=rows, bases=(start,) * len(models))
    return algorithm.step(state, sent)[0].model


def random(rng, *shape):
    return torch.randn(*shape, generator=rng)


def test_the_mean_of_products_by_hand():
    """B A is 1 for both clients; the means of A and B are 0, and so is their product."""
    adapter = Adapter(0, 1, 1, 1, 1)
    start, one, other = torch.tensor([0.5, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([-1.0, -1.0])
    found = stepped(LowRankProducts((adapter,), preprocess=Ignore()), start, [one, other])
    assert float(found[0] * found[1]) == pytest.approx(1.0)
    plain = stepped(FedAvg(preprocess=Ignore()), start, [one, other])
    assert float(plain[0] * plain[1]) == pytest.approx(0.0)


def test_a_step_is_one_version():
    state, _ = LowRankProducts((ADAPTER,)).init(torch.zeros(D), {0: 10})
    sent = updates([[0.0] * D], bases=(torch.zeros(D),))
    for version in (1, 2):
        state, _ = LowRankProducts((ADAPTER,)).step(state, sent)
        assert state.version == version


def test_the_mean_is_the_best_approximation_of_the_mean_product_and_other_entries_are_their_mean():
    rng = torch.Generator().manual_seed(0)
    start = random(rng, D)
    models = [random(rng, D) for _ in range(3)]
    found = stepped(LowRankProducts((ADAPTER,), preprocess=Ignore()), start, models)
    torch.testing.assert_close(found[:3], torch.stack(models)[:, :3].mean(0))
    mean = torch.stack([product(m) for m in models]).mean(0)
    u, s, v = torch.linalg.svd(mean)
    torch.testing.assert_close(product(found), (u[:, :RANK] * s[:RANK]) @ v[:RANK], rtol=1e-4, atol=1e-5)
    a, _ = ADAPTER.factors(found[None])
    torch.testing.assert_close(a[0] @ a[0].T, torch.eye(RANK), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("aggregate", [Mean(), Median()], ids=str)
def test_only_the_products_count(aggregate):
    """Clients that change a layer alike are alike, whatever their factors; a rule on the factors is led astray."""
    rng = torch.Generator().manual_seed(1)
    a, b = random(rng, RANK, IN), random(rng, OUT, RANK)
    turns = [random(rng, RANK, RANK) for _ in range(5)]
    models = [vector([1.0, 2.0, 3.0], torch.linalg.inv(r) @ a, b @ r) for r in turns]
    start = torch.zeros(D)
    found = stepped(LowRankProducts((ADAPTER,), aggregate, Ignore()), start, models)
    torch.testing.assert_close(product(found), b @ a, rtol=1e-3, atol=1e-4)
    plain = stepped(FedAvg(aggregate=aggregate, preprocess=Ignore()), start, models)
    assert (product(plain) - b @ a).norm() > 0.3 * (b @ a).norm()


def test_a_median_of_products_withstands_attackers_and_their_mean_does_not():
    rng = torch.Generator().manual_seed(2)
    honest = vector([0.0] * 3, random(rng, RANK, IN), random(rng, OUT, RANK))
    models = [honest] * 7 + [-100 * honest.abs()] * 3
    robust, mean = (
        stepped(LowRankProducts((ADAPTER,), rule, Ignore()), torch.zeros(D), models) for rule in (Median(), Mean())
    )
    torch.testing.assert_close(product(robust), product(honest), rtol=1e-3, atol=1e-4)
    assert (product(mean) - product(honest)).norm() > 100


def test_a_component_of_size_zero_can_still_learn():
    """At the start B is 0, and a round of one client leaves rank 1: no row of A is 0, so B has a gradient."""
    start = vector([0.0] * 3, torch.ones(RANK, IN), torch.zeros(OUT, RANK))
    trained = start.clone()
    trained[ADAPTER.b] = 1.0
    a, _ = ADAPTER.factors(stepped(LowRankProducts((ADAPTER,)), start, [trained])[None])
    torch.testing.assert_close(a[0].norm(dim=1), torch.ones(RANK))


def test_adapters_of_another_model_and_models_without_are_refused():
    with pytest.raises(InfeasibleError, match="The adapters are those of another model"):
        LowRankProducts((ADAPTER,)).init(torch.zeros(D - 1), {0: 1})
    with pytest.raises(ValueError, match="has no adapters"):
        LowRankProducts.of(MLP((4,)), (3,), 2)


# --- models with adapters


def texts(count, seed, tokens=8, length=12):
    """Texts of a Markov chain: the next token is the last one plus 1, 2 or 3."""
    rng = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 4, (count, length + 1), generator=rng)
    signs = steps.cumsum(1) % tokens
    return Dataset(signs[:, :-1].contiguous(), signs[:, 1:].contiguous(), tokens)


NETWORK = CausalTransformer(width=16, layers=1, heads=2)
PLAN = Run(
    data=InMemory(texts(200, 0), texts(50, 1)), model=NETWORK, clients=5, task=NextToken(), until=Until(6),
    training=LocalSGD(lr=1.0, epochs=3),
)  # fmt: skip


@pytest.mark.slow
def test_lora_sends_adapters_only_and_learns_under_attack():
    pytest.importorskip("peft")
    model = LoRA(NETWORK, ("query", "value", "widen"), rank=2)
    algorithm = LowRankProducts.of(model, (12,), 8, aggregate=Median(), preprocess=Ignore())
    assert [(p.rank, p.inputs, p.outputs) for p in algorithm.adapters] == [(2, 16, 16), (2, 16, 16), (2, 16, 64)]
    plan = dataclasses.replace(PLAN, model=model, algorithm=algorithm, attack=Rescale(-20.0), byzantine=1)
    record = simulate(plan)
    losses = [step.metrics.loss for step in record.history if step.metrics is not None]
    assert losses[-1] < losses[0] - 0.05
    assert len(record.model().state_dict()) > 10
    with torch.no_grad():
        base = LoRA(NETWORK, ("query",), base="bfloat16").build((12,), 8)
        assert {p.dtype for p in base.parameters() if not p.requires_grad} == {torch.bfloat16}
        assert {p.dtype for p in base.parameters() if p.requires_grad} == {torch.float32}
        assert base(texts(2, 0).x).dtype == torch.float32
    with pytest.raises(ValueError, match="rank must be at least 1"):
        LoRA(NETWORK, ("query",), rank=0)
