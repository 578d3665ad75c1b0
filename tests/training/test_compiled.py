"""The compiled loop against autograd, which is the oracle."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.algorithms import SCAFFOLD
from phalanx.core import Correction
from phalanx.data import Dataset
from phalanx.models import MLP
from phalanx.numerics.blas_kernels import A_TURNED, B_TURNED, PLAIN, gemm, multiply
from phalanx.rng import borrowed
from phalanx.training import Ditto, FedPer, LocalSGD, compiled
from phalanx.training.compiled import CompiledTrainer
from phalanx.training.local import LocalTask
from phalanx.training.sgd import ExponentialLR, Trainer
from phalanx.training.task import CLASSIFICATION, Regression
from phalanx.training.vector import FlatModule

SIZES = (7, 0, 20, 1, 20, 13)
RECIPES = (
    LocalSGD(batch_size=4, lr=0.2),
    LocalSGD(batch_size=100),
    LocalSGD(epochs=3, batch_size=0.3, momentum=0.9),
    LocalSGD(steps=7, batch_size=5, weight_decay=0.1),
    LocalSGD(steps=1, batch_size=5),
    LocalSGD(epochs=2, batch_size=6, clip_norm=0.05),
    LocalSGD(epochs=2, batch_size=6, proximal=0.5, momentum=0.5, weight_decay=0.01, clip_norm=0.3),
    LocalSGD(batch_size=4, lr=ExponentialLR(0.5, 0.5)),
)
MODULES = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)),
    "perceptron": lambda: MLP((5, 4)).build((2, 3), 3),
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3), nn.ReLU()),
}


def more_than_layers():
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_parameter("more", nn.Parameter(torch.ones(2)))
    return module


def clients(dtype=torch.float64, sizes=SIZES):
    rng = torch.Generator().manual_seed(5)
    return [
        Dataset(torch.randn(n, 2, 3, generator=rng).to(dtype), torch.randint(0, 3, (n,), generator=rng), 3)
        for n in sizes
    ]


def trained(kind, module, recipe, *, dtype=torch.float64, corrected=False):
    """Return the changes and losses of clients that train one after the other, by one trainer."""
    with borrowed(0, "model"):
        model = FlatModule(module().to(dtype))
    trainer, rng = kind(model, recipe, 3, CLASSIFICATION), torch.Generator().manual_seed(8)
    changes = torch.full((len(SIZES), model.size), math.nan, dtype=dtype)
    losses = list[float]()
    for i, data in enumerate(clients(dtype)):
        start, added = (torch.randn(model.size, generator=rng).to(dtype) for _ in range(2))
        correction = Correction(added, 0.3 * (i % 2)) if corrected else None
        losses.append(trainer.train(LocalTask(i, i % 2, 1 + i % 3, start, changes[i], correction), data))
    return changes, losses


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("name", MODULES)
def test_it_learns_what_autograd_learns(name, recipe):
    for corrected in (False, True):
        ours, our_losses = trained(CompiledTrainer, MODULES[name], recipe, corrected=corrected)
        theirs, losses = trained(Trainer, MODULES[name], recipe, corrected=corrected)
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        assert our_losses == pytest.approx(losses, rel=1e-9, nan_ok=True)
        assert ours.abs().max() > 1e-3, "something is learnt"


def test_it_learns_the_same_in_float32_and_the_same_bits_again():
    ours, theirs, again = (
        trained(kind, MODULES["perceptron"], RECIPES[0], dtype=torch.float32)[0]
        for kind in (CompiledTrainer, Trainer, CompiledTrainer)
    )
    assert ours.dtype == torch.float32
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours, again)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("name", ["perceptron", "tanh"])
@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[5]], ids=repr)
def test_what_is_not_finite_stays_so(recipe, name, bad):
    changes = list[torch.Tensor]()
    for kind in (CompiledTrainer, Trainer):
        with borrowed(0, "model"):
            model = FlatModule(MODULES[name]().double())
        start = model.read()
        start[0] = bad
        changes.append(torch.empty(model.size).double())
        kind(model, recipe, 3, CLASSIFICATION).train(LocalTask(0, 0, 0, start, changes[-1]), clients()[2])
    assert torch.equal(changes[0].isfinite(), changes[1].isfinite())


def test_a_gradient_of_zero_is_not_clipped():
    model, one = FlatModule(nn.Linear(3, 1).double()), Dataset(torch.ones(4, 3).double(), torch.zeros(4).long(), 1)
    row = torch.full((model.size,), math.nan, dtype=torch.float64)
    trainer = CompiledTrainer(model, LocalSGD(clip_norm=1.0), 0, CLASSIFICATION)
    assert trainer.train(LocalTask(0, 0, 0, model.values.clone(), row), one) == 0.0
    assert torch.equal(row, torch.zeros(model.size).double())


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), "no Conv2d there"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), "no Dropout there"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), "no ReLU there"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Tanh()), "no Tanh there"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten()), "no Flatten there"),
        (nn.Sequential(nn.Linear(3, 2, bias=False)), "a linear layer has no bias"),
        (nn.Sequential(*[nn.Linear(2, 2)] * 3), "two layers share parameters"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(500, 2)), "the sizes of its layers do not fit"),
        (nn.Sequential(type("Scaled", (nn.Flatten,), {})(), nn.Linear(3, 2)), "no Scaled there"),
        (more_than_layers(), "it trains parameters outside of its linear layers"),
        (nn.Linear(3, 2).half(), "in torch.float16"),
        (nn.Bilinear(2, 2, 2), "no Bilinear there"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_compiled_form_is_refused(module, why):
    with pytest.raises(ValueError, match=f"{why}.*Set training.compiled to false"):
        CompiledTrainer(FlatModule(module), LocalSGD(), 0, CLASSIFICATION)


@pytest.mark.parametrize("at", [(), (0,)], ids=["chain", "layer"])
def test_modules_with_hooks_are_refused(at):
    module = nn.Sequential(nn.Linear(3, 2))
    (module[at[0]] if at else module).register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"has hooks.*Set training\.compiled to false"):
        CompiledTrainer(FlatModule(module), LocalSGD(), 0, CLASSIFICATION)


def test_layers_that_are_not_trained_and_other_devices_and_tasks_are_refused():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    module[0].bias.requires_grad_(requires_grad=False)
    with pytest.raises(ValueError, match="is not trained"):
        CompiledTrainer(FlatModule(module), LocalSGD(), 0, CLASSIFICATION)
    with pytest.raises(ValueError, match="the task has other losses"):
        CompiledTrainer(FlatModule(nn.Sequential(nn.Linear(3, 1))), LocalSGD(), 0, Regression())
    with torch.device("meta"):
        elsewhere = FlatModule(nn.Sequential(nn.Linear(3, 2)), device="meta")
    with pytest.raises(ValueError, match="the model is on meta"):
        CompiledTrainer(elsewhere, LocalSGD(), 0, CLASSIFICATION)
    with pytest.raises(ValueError, match="stacked or compiled, not both"):
        LocalSGD(stacked=True, compiled=True)


def test_a_torch_without_products_to_call_is_refused(monkeypatch):
    monkeypatch.setattr(compiled, "gemm", lambda _: None)
    with pytest.raises(ValueError, match=r"this build of torch does not share.*Set training\.compiled to false"):
        CompiledTrainer(FlatModule(nn.Sequential(nn.Linear(3, 2))), LocalSGD(), 0, CLASSIFICATION)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), r"Labels must be below 2"),
        (torch.zeros(4, 3), torch.tensor([0, 1, -100, 0]), r"Labels must be below 2"),
        (
            torch.zeros(4, 2),
            torch.tensor([0, 1, 1, 0]),
            r"takes 3 numbers for each example, got inputs of shape \(2,\)",
        ),
        (torch.zeros(4, 1, 3), torch.tensor([0, 1, 1, 0]), r"got inputs of shape \(1, 3\)"),
        ({"a": torch.zeros(4, 3)}, torch.tensor([0, 1, 1, 0]), "inputs that are several tensors"),
        (torch.zeros(4, 3).double(), torch.tensor([0, 1, 1, 0]), r"takes inputs in torch.float32.*got torch.float64"),
        (torch.zeros(4, 3), torch.zeros(4, 1).long(), r"one label of torch.int64.*labels of shape \(4, 1\)"),
        (torch.zeros(4, 3), torch.zeros(4), r"labels of shape \(4,\) in torch.float32"),
    ],
)
def test_examples_that_would_be_read_beyond_an_array_are_refused(x, y, message):
    model = FlatModule(nn.Sequential(nn.Linear(3, 2)))
    data = Dataset(torch.zeros(4, 3), torch.zeros(4).long(), 2)
    object.__setattr__(data, "x", x)  # a data set would refuse some of them
    object.__setattr__(data, "y", y)
    trainer = CompiledTrainer(model, LocalSGD(batch_size=2), 0, CLASSIFICATION)
    with pytest.raises(ValueError, match=message):
        trainer.train(LocalTask(0, 0, 0, torch.zeros(model.size), torch.zeros(model.size)), data)


def test_hooks_of_all_modules_are_refused():
    model, one = FlatModule(nn.Linear(3, 2)), Dataset(torch.ones(4, 3), torch.zeros(4).long(), 2)
    trainer = CompiledTrainer(model, LocalSGD(), 0, CLASSIFICATION)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(ValueError, match="Torch has hooks of all modules, which compiled training leaves out"):
            trainer.train(LocalTask(0, 0, 0, model.values.clone(), torch.zeros(model.size)), one)
    finally:
        hook.remove()


@pytest.mark.parametrize("change", [{}, {"algorithm": SCAFFOLD()}], ids=["FedAvg", "SCAFFOLD"])
def test_a_compiled_run_has_another_identity_and_nearly_the_same_result(change):
    recipes = LocalSGD(), LocalSGD(compiled=True)
    plans = [Run(clients=15, model=MLP((16,)), training=recipe, until=Until(4), **change) for recipe in recipes]
    loop, ours = (simulate(plan).history[-1].metrics for plan in plans)
    assert plans[0].identity != plans[1].identity
    assert ours.loss == pytest.approx(loop.loss, rel=1e-4)


@pytest.mark.parametrize("around", [Ditto, lambda recipe: FedPer(("1.*",), recipe)], ids=["Ditto", "FedPer"])
def test_personal_models_train_by_it(around):
    plan = Run(clients=5, model=MLP((16,)), until=Until(3))
    loop, ours = (
        simulate(replace(plan, training=around(LocalSGD(compiled=flag)))).history[-1].metrics for flag in (False, True)
    )
    assert ours.loss == pytest.approx(loop.loss, rel=1e-4)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (1, 5, 3), (4, 1, 2), (3, 7, 5), (16, 10, 64)])
def test_products_are_those_of_numpy(m, n, k, kind):
    rng = np.random.default_rng(m * n * k)
    a, b, c = (rng.integers(-9, 9, shape).astype(kind) for shape in ((m, k), (k, n), (m, n)))
    expected = 3 * (a @ b) - 2 * c
    for turned, left, right in ((PLAIN, a, b), (A_TURNED, a.T.copy(), b), (B_TURNED, a, b.T.copy())):
        found = c.copy().ravel()
        multiply(gemm(np.dtype(kind)), turned, m, n, k, 3.0, left.ravel(), right.ravel(), -2.0, found)
        assert np.array_equal(found.reshape(m, n), expected)
