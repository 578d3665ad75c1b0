"""The compiled loop against autograd, which is the oracle."""

import math
import os
import random
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.algorithms import SCAFFOLD
from phalanx.attacks import LabelFlip
from phalanx.core import Correction
from phalanx.data import Dataset, PermutedLabels
from phalanx.models import (
    MLP,
    CharLSTM,
    CoxCNN,
    GivenModule,
    KimCNN,
    LeNet,
    ResNet18,
    SattlerCifarCNN,
    SattlerCNN,
    SattlerVGG,
    WordLSTM,
    XuLyuCifarCNN,
    XuLyuMnistCNN,
)
from phalanx.numerics.blas_kernels import A_TURNED, B_TURNED, PLAIN, gemm, multiply
from phalanx.rng import borrowed
from phalanx.training import Ditto, FedPer, LocalOptimizer, LocalSGD
from phalanx.training.compiled import chain_kernels as kernels
from phalanx.training.compiled import trainer as compiled
from phalanx.training.compiled.trainer import PART, CompiledNetwork, CompiledTrainer
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
MODULES = {  # and the shape of their examples
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (2, 3)),
    "perceptron": (lambda: MLP((5, 4)).build((2, 3), 3), (2, 3)),
    "rows": (lambda: MLP((5, 4)).build((32,), 3), (32,)),
    "one layer of rows": (lambda: nn.Sequential(nn.Linear(16, 3)), (16,)),
    "tanh": (
        lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3), nn.ReLU()),
        (2, 3),
    ),
    "dropout": (lambda: MLP((9, 4), dropout=0.4).build((16,), 3), (16,)),
    "dropout after tanh": (
        lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.5), nn.Dropout(0.0), nn.Linear(8, 3)), (5,),
    ),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(24, 3)), (1, 5, 6)),
    "pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 11, (3, 2), padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(11, 9, 2, padding=2), nn.Tanh(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9 * 12, 7), nn.ReLU(), nn.Linear(7, 3),
        ),
        (2, 7, 9),
    ),
    "dropped channels": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.Dropout2d(0.4), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 7, 1), nn.Tanh(),
            nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(7 * 6, 3),
        ),
        (1, 6, 9),
    ),
    "dropped pixels": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.4), nn.Linear(5 * 6, 4),
            nn.ReLU(), nn.Dropout(0.2), nn.Linear(4, 3),
        ),
        (3, 5, 7),
    ),
}  # fmt: skip
WORDS, LENGTH = 9, 5  # tokens that there are, and of an example
TEXTS = {
    "rows": lambda: nn.Sequential(nn.Embedding(WORDS, 3), nn.Flatten(), nn.Linear(15, 3)),
    "whole vectors": lambda: nn.Sequential(
        nn.Embedding(WORDS, 16, padding_idx=0), nn.Flatten(), nn.Linear(80, 16), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(16, 3),
    ),
    "mean": lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 4), nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)),
    "mean but padding": lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 16, padding_idx=0), nn.Linear(16, 3)),
    "sum": lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 4, mode="sum"), nn.Linear(4, 3)),
    "sum but padding": lambda: nn.Sequential(
        nn.EmbeddingBag(WORDS, 4, mode="sum", padding_idx=-2), nn.Flatten(), nn.Linear(4, 3)
    ),
}  # fmt: skip
LIBRARY = (  # models with a compiled form, and the shape of their examples
    (MLP((64,)), (1, 28, 28)),
    (MLP((30, 20), dropout=0.2, start="glorot"), (1, 28, 28)),
    (LeNet(), (1, 28, 28)),
    (LeNet(), (3, 32, 32)),
    (SattlerCNN(), (1, 28, 28)),
    (SattlerCNN(), (1, 32, 32)),
    (SattlerVGG(), (3, 32, 32)),
    (SattlerCifarCNN(), (3, 32, 32)),
    (XuLyuMnistCNN(), (1, 28, 28)),
    (XuLyuCifarCNN(), (3, 32, 32)),
    (CoxCNN(), (1, 28, 28)),
)


def more_than_layers():
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_parameter("more", nn.Parameter(torch.ones(2)))
    return module


def shared_rows():
    module = nn.Sequential(nn.EmbeddingBag(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


def clients(shape, dtype=torch.float64, sizes=SIZES):
    rng = torch.Generator().manual_seed(5)
    return [
        Dataset(torch.randn(n, *shape, generator=rng).to(dtype), torch.randint(0, 3, (n,), generator=rng), 3)
        for n in sizes
    ]


def writers(sizes=SIZES):
    """Clients with texts, in which tokens are repeated, and one of padding alone."""
    rng = torch.Generator().manual_seed(6)
    held = [
        Dataset(torch.randint(WORDS, (n, LENGTH), generator=rng), torch.randint(3, (n,), generator=rng), 3)
        for n in sizes
    ]
    for data in held:
        data.x[::3, 2:], data.x[::7] = 0, 0
    return held


def trained(kind, module, recipe, held, *, corrected=False, bad=None):
    """Return the changes and losses of clients that train one after the other, by one trainer."""
    dtype = held[0].x.dtype if held[0].x.is_floating_point() else torch.float64
    with borrowed(0, "model"):
        model = FlatModule(module().to(dtype))
    trainer, rng = kind(model, recipe, 3, CLASSIFICATION), torch.Generator().manual_seed(8)
    changes = torch.full((len(held), model.size), math.nan, dtype=dtype)
    losses, begun = list[float](), model.read()
    for i, data in enumerate(held):
        moved, added = (torch.randn(model.size, generator=rng).to(dtype) for _ in range(2))
        start = begun + moved / model.size**0.5
        if i == bad:
            start[::3] = math.nan
        correction = Correction(0.1 * added, 0.3 * (i % 2)) if corrected else None
        losses.append(trainer.train(LocalTask(i, i % 2, 1 + i % 3, start, changes[i], correction), data))
    return changes, losses


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("name", MODULES)
def test_it_learns_what_autograd_learns(name, recipe):
    module, shape = MODULES[name]
    for corrected in (False, True):
        ours, our_losses = trained(CompiledTrainer, module, recipe, clients(shape), corrected=corrected)
        theirs, losses = trained(Trainer, module, recipe, clients(shape), corrected=corrected)
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        assert our_losses == pytest.approx(losses, rel=1e-9, nan_ok=True)
        assert ours.abs().max() > 1e-3, "something is learnt"


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("name", TEXTS)
def test_it_learns_of_texts_what_autograd_learns(name, recipe):
    for corrected in (False, True):
        ours, our_losses = trained(CompiledTrainer, TEXTS[name], recipe, writers(), corrected=corrected)
        theirs, losses = trained(Trainer, TEXTS[name], recipe, writers(), corrected=corrected)
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
        assert our_losses == pytest.approx(losses, rel=1e-9, nan_ok=True)
        assert ours[:, : WORDS * 3].abs().max() > 1e-5, "the embedding learns"


@pytest.mark.parametrize("name", TEXTS)
def test_a_step_on_texts_is_the_gradient_of_autograd(name):
    (held,) = writers((12,))
    with borrowed(0, "model"):
        module = TEXTS[name]().double()
    module.eval()
    F.cross_entropy(module(held.x), held.y).backward()
    expected = -torch.cat([p.grad.flatten() for p in module.parameters()])
    model = FlatModule(nn.Sequential(*[part for part in module if not isinstance(part, nn.Dropout)]))
    row = torch.full((model.size,), math.nan, dtype=torch.float64)
    trainer = CompiledTrainer(model, LocalSGD(batch_size=12, lr=1.0), 0, CLASSIFICATION)
    trainer.train(LocalTask(0, 0, 0, model.read(), row), held)
    assert torch.allclose(row, expected, rtol=1e-9, atol=1e-12)
    padding = module[0].padding_idx if hasattr(module[0], "padding_idx") else None
    if padding is not None:
        assert row[: module[0].weight.numel()].view_as(module[0].weight)[padding].eq(0).all(), "padding learns nothing"


@pytest.mark.parametrize(("model", "shape"), LIBRARY, ids=repr)
def test_models_of_the_library_agree_with_autograd(model, shape):
    """In float64 to 1e-9 of a parameter, in float32 as far as rounding allows, and to the same bits again."""
    recipe = LocalSGD(batch_size=9, lr=0.05, momentum=0.5)
    for dtype, most in ((torch.float64, 1e-9), (torch.float32, 2e-5)):
        held = clients(shape, dtype, sizes=(20, 5))
        ours, theirs, again = (
            trained(kind, lambda: model.build(shape, 10), recipe, held)[0]
            for kind in (CompiledTrainer, Trainer, CompiledTrainer)
        )
        assert (ours - theirs).abs().max() < most
        assert ours.abs().max() > 1e-2
        assert torch.equal(ours, again)


@pytest.mark.parametrize(
    ("model", "shape"),
    [(KimCNN(vocabulary=50), (9,)), (CharLSTM(), (9,)), (WordLSTM(), (9,)), (ResNet18(), (3, 32, 32))],
    ids=lambda value: type(value).__name__,
)
def test_other_models_of_the_library_are_refused(model, shape):
    model = FlatModule(model.build(shape, 10), buffers="freeze")
    with pytest.raises(
        ValueError, match=r"Training has no compiled form: (it takes chains of|a convolution has no bias)"
    ):
        CompiledTrainer(model, LocalSGD(), 0, CLASSIFICATION)


def drawn(rnd):
    """Return a random chain that has a compiled form, and the shape of its examples."""
    (channels, height, width), layers = (rnd.choice((1, 2, 5, 17)), rnd.randint(1, 20), rnd.randint(1, 20)), []
    shape = channels, height, width
    for _ in range(rnd.randint(1, 3)):
        pad, outputs = rnd.choice((0, 0, 1, 2)), rnd.choice((1, 3, 5, 6, 8, 10, 13, 20))
        filters = rnd.randint(1, min(5, height + 2 * pad)), rnd.randint(1, min(5, width + 2 * pad))
        layers.append(nn.Conv2d(channels, outputs, filters, padding=pad))
        channels, height, width = outputs, height + 2 * pad - filters[0] + 1, width + 2 * pad - filters[1] + 1
        after = [rnd.choice((nn.ReLU(), nn.Tanh(), nn.Identity()))]
        if min(height, width) > 1 and rnd.random() < 0.6:
            after.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        rnd.shuffle(after)
        if rnd.random() < 0.3:
            after.append(nn.Dropout2d(rnd.uniform(0.1, 0.7)))
        layers += [layer for layer in after if not isinstance(layer, nn.Identity)]
    layers += [nn.Flatten(), nn.Linear(channels * height * width, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)]
    return nn.Sequential(*layers), shape


@pytest.mark.parametrize("seed", range(40))
def test_networks_drawn_at_random_agree(seed):
    rnd = random.Random(seed)
    with borrowed(seed, "model"):
        module, shape = drawn(rnd)
    recipe = LocalSGD(batch_size=rnd.choice((1, 3, 8, 9, 16, 32)), lr=0.01, momentum=rnd.choice((0.0, 0.5)))
    held = clients(shape, sizes=rnd.choices((1, 2, 7, 9, 16, 33), k=2))
    ours, theirs = (trained(kind, lambda: deepcopy(module), recipe, held)[0] for kind in (CompiledTrainer, Trainer))
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_those_of_the_module_in_evaluation(name):
    """Of one example, of a part and of several parts with a remainder; dropout does nothing."""
    module, shape = MODULES[name]
    model = FlatModule(module().double().eval())
    network = CompiledNetwork(model)
    for vector in (model.read(), torch.randn(model.size, dtype=torch.float64)):
        model.load(vector)
        for n in (1, PART, 2 * PART + 3):
            x = torch.randn(n, *shape, dtype=torch.float64)
            assert torch.allclose(network(x), model.outputs(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", TEXTS)
def test_outputs_of_texts_are_those_of_the_module(name):
    model = FlatModule(TEXTS[name]().double().eval())
    network = CompiledNetwork(model)
    model.load(torch.randn(model.size, dtype=torch.float64))
    for n in (1, PART, 2 * PART + 3):
        (held,) = writers((n,))
        assert torch.allclose(network(held.x), model.outputs(held.x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("model", "shape"), LIBRARY, ids=repr)
def test_outputs_of_the_library_agree(model, shape):
    flat, x = FlatModule(model.build(shape, 10).eval()), torch.randn(40, *shape)
    network = CompiledNetwork(flat)
    found, wanted = network(x), flat.outputs(x)
    assert torch.allclose(found, wanted, atol=2e-5)
    assert wanted.std() > 1e-3
    assert torch.equal(network(x[:7]), CompiledNetwork(flat)(x[:7])), "nothing is left of what was there before"
    assert torch.equal(network(x), found)


@pytest.mark.parametrize("personal", [False, True], ids=["shared", "Ditto"])
def test_a_compiled_run_of_images_is_evaluated_by_the_compiled_loop(personal, monkeypatch):
    """To the same figures but for rounding, also by group, on the goal of an attack, and of models of clients' own."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(4 * 36, 10))
    training = LocalSGD(engine="compiled")
    plan = Run(
        clients=6, model=GivenModule(network), training=Ditto(training) if personal else training, until=Until(2),
        attack=LabelFlip(0, 1), byzantine=1, groups=PermutedLabels(2),
    )  # fmt: skip
    ours = simulate(plan).history[-1].metrics
    called = list[int]()
    plain = lambda self, x: called.append(len(x)) or self.model.outputs(x)  # noqa: E731
    monkeypatch.setattr(CompiledNetwork, "__call__", plain)
    theirs = simulate(plan).history[-1].metrics
    assert called
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert ours.group_loss == pytest.approx(theirs.group_loss, rel=1e-5)
    assert ours.attack_success == pytest.approx(theirs.attack_success, abs=0.01)
    called.clear()
    simulate(replace(plan, training=LocalSGD()))
    assert not called


def test_equal_pixels_are_pooled_as_torch_does():
    """The gradient goes to the first of equal ones, also where all are 0."""
    module, shape = MODULES["pooled"]
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (30, *shape), generator=rng).double()
    x[:5] = 0
    held = [Dataset(x, torch.randint(0, 3, (30,), generator=rng), 3)]
    ours, theirs = (trained(kind, module, LocalSGD(batch_size=8), held)[0] for kind in (CompiledTrainer, Trainer))
    assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["rows", "pooled", "dropped pixels"])
def test_a_client_that_diverges_leaves_nothing_behind(name):
    module, shape = MODULES[name]
    fine, after = (trained(CompiledTrainer, module, RECIPES[0], clients(shape), bad=bad)[0] for bad in (None, 2))
    assert not after[2].isfinite().all()
    assert torch.equal(fine[3:], after[3:])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e300])
@pytest.mark.parametrize("name", ["perceptron", "rows", "tanh", "convolution", "pooled"])
@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[5]], ids=repr)
def test_what_is_not_finite_stays_so(recipe, name, bad):
    changes = list[torch.Tensor]()
    build, shape = MODULES[name]
    for kind in (CompiledTrainer, Trainer):
        with borrowed(0, "model"):
            model = FlatModule(build().double())
        start = model.read()
        start[0] = bad
        changes.append(torch.empty(model.size).double())
        kind(model, recipe, 3, CLASSIFICATION).train(LocalTask(0, 0, 0, start, changes[-1]), clients(shape)[2])
    assert changes[0].isfinite().all() == changes[1].isfinite().all(), "no guard takes one of them for an update"
    if name in ("perceptron", "rows", "tanh"):
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
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(1.0)), "no Dropout there"),
        (nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)), "no Dropout there"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5), nn.Tanh()), "no Tanh there"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout2d(0.5)), "no Dropout2d there"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(8, 2)), "no Dropout there"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(8, 2)), "no MaxPool2d there"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.MaxPool2d(2)), "no MaxPool2d there"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, affine=False, track_running_stats=False)),
            "no BatchNorm2d",
        ),
        (nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Flatten(), nn.Linear(8, 2)), "a convolution has strides"),
        (
            nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 2)),
            "a convolution has strides, groups",
        ),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding=(1, 0)), nn.Flatten(), nn.Linear(8, 2)), "another padding than"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, padding="same"), nn.Flatten(), nn.Linear(8, 2)), "another padding than"),
        (nn.Sequential(nn.Conv2d(2, 2, 3, bias=False), nn.Flatten(), nn.Linear(8, 2)), "a convolution has no bias"),
        (nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(3, 2, 3)), "the sizes of its layers do not fit"),
        (nn.Sequential(nn.Conv2d(2, 2, 3), nn.Linear(8, 2)), "without a Flatten between"),
        (nn.Sequential(nn.Linear(8, 2), nn.Conv2d(2, 2, 3)), "a convolution comes after a linear layer"),
        (nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU()), "its last layer is not linear"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), "no ReLU there"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Tanh()), "no Tanh there"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten()), "no Flatten there"),
        (nn.Sequential(nn.Linear(3, 2, bias=False)), "a linear layer has no bias"),
        (nn.Sequential(*[nn.Linear(2, 2)] * 3), "two layers share parameters"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(500, 2)), "the sizes of its layers do not fit"),
        (nn.Sequential(type("Scaled", (nn.Flatten,), {})(), nn.Linear(3, 2)), "no Scaled there"),
        (more_than_layers(), "it trains parameters outside of its layers"),
        (nn.Linear(3, 2).half(), "in torch.float16"),
        (nn.Bilinear(2, 2, 2), "no Bilinear there"),
        (nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2)), "after an embedding without a Flatten between"),
        (nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(4, 2)), "the sizes of its layers do not fit"),
        (nn.Sequential(nn.EmbeddingBag(4, 3), nn.Linear(6, 2)), "the sizes of its layers do not fit"),
        (nn.Sequential(nn.Embedding(4, 3), nn.Conv2d(1, 2, 3)), "a convolution comes after an embedding"),
        (nn.Sequential(nn.Linear(4, 3), nn.Embedding(4, 3), nn.Linear(3, 2)), "no Embedding there"),
        (nn.Sequential(nn.Flatten(), nn.Embedding(4, 3), nn.Linear(3, 2)), "no Embedding there"),
        (nn.Sequential(nn.Embedding(4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3, 2)), "no ReLU there"),
        (nn.Sequential(nn.Embedding(4, 3, max_norm=1.0), nn.Flatten(), nn.Linear(3, 2)), "no Embedding there"),
        (nn.Sequential(nn.Embedding(4, 3, scale_grad_by_freq=True), nn.Linear(3, 2)), "no Embedding there"),
        (nn.Sequential(nn.EmbeddingBag(4, 3, mode="max"), nn.Linear(3, 2)), "no EmbeddingBag there"),
        (nn.Sequential(nn.EmbeddingBag(4, 3).requires_grad_(False), nn.Linear(3, 2)), "an embedding is not trained"),
        (shared_rows(), "it trains parameters outside of its layers"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_compiled_form_is_refused(module, why):
    with pytest.raises(ValueError, match=f"{why}.*Set training.engine to loop"):
        CompiledTrainer(FlatModule(module), LocalSGD(), 0, CLASSIFICATION)


@pytest.mark.parametrize("at", [(), (0,)], ids=["chain", "layer"])
def test_modules_with_hooks_are_refused(at):
    module = nn.Sequential(nn.Linear(3, 2))
    (module[at[0]] if at else module).register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"has hooks.*Set training\.engine to loop"):
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


def test_a_torch_without_products_to_call_is_refused(monkeypatch):
    monkeypatch.setattr(compiled, "gemm", lambda _: None)
    with pytest.raises(ValueError, match=r"this build of torch does not share.*Set training\.engine to loop"):
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


@pytest.mark.parametrize(
    ("name", "x", "message"),
    [
        ("rows", torch.full((4, LENGTH), WORDS), r"Tokens must lie in 0\.\.8, the rows of the embedding, got 9\.\.9"),
        ("mean", torch.full((4, LENGTH), -1), r"Tokens must lie in 0\.\.8.*got -1\.\.-1"),
        ("rows", torch.zeros(4, LENGTH + 1).long(), r"takes 5 tokens for each example, got inputs of shape \(6,\)"),
        ("mean", torch.zeros(4, 2, 2).long(), r"takes tokens for each example, got inputs of shape \(2, 2\)"),
        ("mean", torch.zeros(4, 0).long(), r"got inputs of shape \(0,\)"),
        ("rows", torch.zeros(4, LENGTH), r"takes inputs in torch.int64, as tokens are, got torch.float32"),
    ],
)
def test_tokens_that_would_be_read_beyond_the_table_are_refused(name, x, message):
    trainer, data = CompiledTrainer(FlatModule(TEXTS[name]()), LocalSGD(), 0, CLASSIFICATION), writers((4,))[0]
    object.__setattr__(data, "x", x)
    start = trainer.model.read()
    with pytest.raises(ValueError, match=message):
        trainer.train(LocalTask(0, 0, 0, start, start.clone()), data)


@pytest.mark.parametrize("shape", [(2, 9), (1, 7, 9), (2, 7, 40), (2, 1, 1), (126,)])
def test_images_that_do_not_fit_are_refused(shape):
    module, fitting = MODULES["pooled"]
    trainer, data = (
        CompiledTrainer(FlatModule(module()), LocalSGD(), 0, CLASSIFICATION),
        clients(shape, torch.float32)[0],
    )
    start = trainer.model.read()
    with pytest.raises(
        ValueError, match="The first layer takes images of 2 channels that fit it for each example, got"
    ):
        trainer.train(LocalTask(0, 0, 0, start, start.clone()), data)
    trainer.train(LocalTask(0, 0, 0, start, start.clone()), clients(fitting, torch.float32)[0])


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
    recipes = LocalSGD(), LocalSGD(engine="compiled")
    plans = [Run(clients=15, model=MLP((16,)), training=recipe, until=Until(4), **change) for recipe in recipes]
    loop, ours = (simulate(plan).history[-1].metrics for plan in plans)
    assert plans[0].identity != plans[1].identity
    assert ours.loss == pytest.approx(loop.loss, rel=1e-4)


@pytest.mark.parametrize("around", [Ditto, lambda recipe: FedPer(("1.*",), recipe)], ids=["Ditto", "FedPer"])
def test_personal_models_train_by_it(around):
    plan = Run(clients=5, model=MLP((16,)), until=Until(3))
    loop, ours = (
        simulate(replace(plan, training=around(LocalSGD(engine=engine)))).history[-1].metrics
        for engine in ("loop", "compiled")
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


# Products in bfloat16


half = pytest.mark.skipif(not kernels.BFLOAT16, reason="this processor has no products in bfloat16")


class Rounding(torch.autograd.Function):
    """A convolution whose inputs, filters and gradients are rounded to bfloat16, and nothing else: the oracle."""

    @staticmethod
    def forward(ctx, x, weight, bias, padding):
        ctx.save_for_backward(x := x.bfloat16().float(), weight := weight.bfloat16().float())
        ctx.padding = padding
        return torch.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx, g):
        (x, weight), rounded = ctx.saved_tensors, g.bfloat16().float()
        by_x = torch.nn.grad.conv2d_input(x.shape, weight, rounded, padding=ctx.padding)
        by_weight = torch.nn.grad.conv2d_weight(x, weight.shape, rounded, padding=ctx.padding)
        return by_x, by_weight, g.sum((0, 2, 3)), None


class Rounded(nn.Conv2d):
    def forward(self, x):
        return Rounding.apply(x, self.weight, self.bias, self.padding)


def rounded(module):
    for part in module.modules():
        part.__class__ = Rounded if type(part) is nn.Conv2d else type(part)
    return module


def error(ours, theirs):
    """Return the distance of the changes of clients, relative to their length."""
    return float((ours - theirs).norm() / theirs.norm())


@half
@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[6]], ids=repr)
@pytest.mark.parametrize("name", ["convolution", "pooled", "dropped channels", "dropped pixels"])
def test_convolutions_in_bfloat16_are_those_of_rounded_numbers(name, recipe):
    """Rounding to the other side is rare: the error is far below that of bfloat16."""
    module, shape = MODULES[name]
    short, held = replace(recipe, precision="bfloat16"), clients(shape, torch.float32)
    ours, losses = trained(CompiledTrainer, module, short, held)
    theirs, expected = trained(Trainer, lambda: rounded(module()), recipe, held)
    exact, _ = trained(Trainer, module, recipe, held)
    assert error(ours, theirs) < 2e-4
    assert error(exact, theirs) > 1e-3
    assert losses == pytest.approx(expected, rel=1e-4, nan_ok=True)
    assert torch.equal(ours, trained(CompiledTrainer, module, short, held)[0])


@half
@pytest.mark.parametrize("seed", range(20))
def test_networks_drawn_at_random_agree_in_bfloat16(seed):
    rnd = random.Random(seed)
    with borrowed(seed, "model"):
        module, shape = drawn(rnd)
    recipe = LocalSGD(batch_size=rnd.choice((1, 3, 8, 9, 16, 32)), lr=0.01, steps=2)
    held = clients(shape, torch.float32, sizes=rnd.choices((1, 2, 7, 9, 16, 33), k=2))
    ours, _ = trained(CompiledTrainer, lambda: deepcopy(module), replace(recipe, precision="bfloat16"), held)
    theirs, _ = trained(Trainer, lambda: rounded(deepcopy(module)), recipe, held)
    assert error(ours, theirs) < 1e-3


@half
@pytest.mark.parametrize("model", [SattlerCNN(), XuLyuMnistCNN(), CoxCNN()], ids=repr)
def test_models_of_the_library_agree_in_bfloat16(model):
    recipe, held = LocalSGD(batch_size=9, lr=0.05), clients((1, 28, 28), torch.float32, sizes=(20, 5))
    ours, _ = trained(
        CompiledTrainer, lambda: model.build((1, 28, 28), 10), replace(recipe, precision="bfloat16"), held
    )
    theirs, _ = trained(Trainer, lambda: rounded(model.build((1, 28, 28), 10)), recipe, held)
    assert error(ours, theirs) < 2e-3


@half
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so_in_bfloat16(bad):
    module, shape = MODULES["pooled"]
    with borrowed(0, "model"):
        model = FlatModule(module())
    recipe, held = LocalSGD(batch_size=4, precision="bfloat16"), clients(shape, torch.float32)
    trainer, start, rows = CompiledTrainer(model, recipe, 3, CLASSIFICATION), model.read(), torch.zeros(3, model.size)
    for row, first in zip(rows, (float(start[0]), bad, float(start[0])), strict=True):
        begun = start.clone()
        begun[0] = first
        trainer.train(LocalTask(2, 0, 0, begun, row), held[2])
    assert not rows[1].isfinite().all(), "no guard takes it for an update"
    assert torch.equal(rows[0], rows[2]), "and it leaves nothing behind"


@half
def test_bits_are_rounded_as_torch_does():
    rng = np.random.default_rng(0)
    bits = np.concatenate(
        [rng.integers(0, 2**32, 100_000, np.uint32), np.arange(0x7F7F7FF0, 0x7F818010, dtype=np.uint32)]
    )
    found, wanted = np.empty(len(bits), np.uint16), torch.from_numpy(bits.view(np.float32)).bfloat16()
    kernels._halve(bits.view(np.float32), 0, found, len(bits))
    ours = torch.from_numpy(found.view(np.int16)).view(torch.bfloat16)
    assert torch.equal(ours.isnan(), wanted.isnan())
    assert torch.equal(ours[~ours.isnan()], wanted[~wanted.isnan()])


def test_a_processor_without_bfloat16_and_other_models_are_refused(monkeypatch):
    recipe, module = LocalSGD(engine="compiled", precision="bfloat16"), MODULES["convolution"][0]()
    with pytest.raises(ValueError, match=r"the model is in torch\.float64, and precision is bfloat16"):
        recipe.trainer(FlatModule(module.double()), CLASSIFICATION, 0)
    monkeypatch.setattr(kernels, "BFLOAT16", False)
    with pytest.raises(ValueError, match="this processor has no instructions for products in bfloat16"):
        recipe.trainer(FlatModule(module.float()), CLASSIFICATION, 0)
    with pytest.raises(ValueError, match="it has no convolution"):
        recipe.trainer(FlatModule(MODULES["perceptron"][0]()), CLASSIFICATION, 0)
    with pytest.raises(ValueError, match=r"in torch\.float64, and precision bfloat16 is for models in torch\.float32"):
        replace(recipe, engine="loop").trainer(FlatModule(module.double()), CLASSIFICATION, 0)


def test_another_precision_is_refused(monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    for kind in (LocalSGD, LocalOptimizer):
        with pytest.raises(ValueError, match="precision must be one of 'float32', 'bfloat16', got 'half'"):
            kind(precision="half")


# Tiles


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("shape", kernels.SHAPES)
@pytest.mark.parametrize(("count", "taps", "vectors"), [(1, 1, 1), (8, 3, 4), (13, 25, 7), (10, 2, 11)])
def test_tiles_of_products_are_those_of_numpy(kind, shape, count, taps, vectors):
    rng, length = np.random.default_rng(count), vectors * kernels.BYTES // np.dtype(kind).itemsize
    a, run = rng.integers(-9, 9, (count, taps)).astype(kind), rng.integers(-9, 9, 3 * taps + length).astype(kind)
    offsets, start = rng.permutation(3 * taps)[:taps], rng.integers(-9, 9, count).astype(kind)
    table = np.stack([rng.permutation(taps), offsets], 1)
    expected = a[:, table[:, 0]] @ np.stack([run[offset : offset + length] for offset in offsets])
    c, sizes = np.full((count + 1) * length, 7, kind), (np.int64(taps), np.int64(count))
    where = (table.ravel(), kernels.ZERO, np.int64(taps), c, np.int64(0), np.int64(length), np.int64(vectors), start)
    for begin in (kernels.ZERO, kernels.NO_START):
        kernels._add_products(np.int64(shape), a.ravel(), kernels.ZERO, *sizes, run, kernels.ZERO, *where, begin)
    assert np.array_equal(c[: count * length].reshape(count, length), start[:, None] + 2 * expected)
    assert np.array_equal(c[count * length :], np.full(length, 7)), "nothing beyond the last filter"


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("count", "taps", "rows", "vectors"),
    [(1, 1, 1, 1), (4, 6, 2, 3), (9, 25, 3, 1), (5, 13, 1, 7), (6, 7, 5, 30), (5, 7, 2, 150)],
)
def test_tiles_of_dots_are_those_of_numpy(kind, count, taps, rows, vectors):
    rng, length = np.random.default_rng(taps), vectors * kernels.BYTES // np.dtype(kind).itemsize
    z = rng.integers(-9, 9, (count, rows, length)).astype(kind)
    # The last two shapes are read in pieces: of several rows, and of one.
    x, line = rng.integers(-9, 9, 3 * taps + rows * (length + 5)).astype(kind), length + 5
    offsets = rng.permutation(3 * taps)[:taps]
    seen = np.stack([[x[k + r * line : k + r * line + length] for r in range(rows)] for k in offsets])
    d, table = np.full((count + 1) * taps, 7, kind), np.stack([np.zeros(taps, np.int64), offsets], 1).ravel()
    of_z = (z.ravel(), kernels.ZERO, np.int64(rows * length), np.int64(length), np.int64(count))
    of_x = (x, kernels.ZERO, np.int64(line), table, kernels.ZERO, np.int64(taps))
    kernels._add_dots(*of_z, *of_x, np.int64(rows), np.int64(length), d, kernels.ZERO, np.int64(taps))
    assert np.array_equal(d[: count * taps].reshape(count, taps), 7 + np.einsum("irp,krp->ik", z, seen))
    assert np.array_equal(d[count * taps :], np.full(taps, 7)), "nothing beyond the last filter"


def test_tanh_is_that_of_torch_up_to_rounding():
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.tensor([0.0, -0.0, 1e-30, -1e-40, math.inf, -math.inf])])
    found = x.clone()
    kernels._activate(np.int64(kernels.TANH), found.numpy())
    wanted = x.double().tanh()
    assert (((found - wanted) / wanted.abs().clamp(min=1e-30)).abs().nan_to_num() < 5e-7).all()
    assert found.abs().max() == 1
    kernels._activate(np.int64(kernels.TANH), (nothing := np.array([math.nan, 1], np.float32)))
    assert np.isnan(nothing[0])


NARROW = """
import phalanx.numerics.kernels as host
host.WIDE, host.BYTES = False, 32
from training import test_compiled as tests
assert tests.kernels.BYTES == 32
for name in ("rows", "pooled", "dropped channels"):
    tests.test_it_learns_what_autograd_learns(name, tests.RECIPES[0])
    tests.test_outputs_are_those_of_the_module_in_evaluation(name)
tests.test_models_of_the_library_agree_with_autograd(tests.CoxCNN(), (1, 28, 28))
print("agreed")
"""


@pytest.mark.slow
def test_processors_with_narrow_vectors_agree(tmp_path):
    """Half of the width, and other tiles, compiled in a process of their own."""
    surroundings = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", NARROW], capture_output=True, text=True, check=False, env=surroundings, timeout=600
    )
    assert done.stdout == "agreed\n", done.stderr
