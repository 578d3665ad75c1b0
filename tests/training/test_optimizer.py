"""Local training by any optimizer of torch, against plain loops of torch, and remembered over a kill."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from phalanx import Run, Until, simulate
from phalanx.core import InfeasibleError
from phalanx.data import Dataset, InMemory
from phalanx.models import MLP
from phalanx.rng import borrowed, generator
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.federation import Federation
from phalanx.runs.packing import pack
from phalanx.training import (
    Classification,
    Compose,
    ExponentialLR,
    FlatModule,
    Flip,
    LocalOptimizer,
    LocalSGD,
    PadAndCrop,
)
from phalanx.training.local import LocalTask

RNG = torch.Generator().manual_seed(3)
DATA = Dataset(torch.randn(26, 1, 4, 4, generator=RNG), torch.randint(3, (26,), generator=RNG), 3)


def network():
    with borrowed(1, "model"):
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3)).double()


def examples():
    return dataclasses.replace(DATA, x=DATA.x.double())


def trained(trainer, start, data, **key):
    out = torch.empty_like(start)
    loss = trainer.train(LocalTask(**{"client": 2, "turn": 0, "version": 0, **key}, start=start, row=out), data)
    return out, loss


def ours(recipe, turns=1, version=0, module=None):
    model = FlatModule(module or network())
    trainer, start = recipe.trainer(model, Classification(), 7), model.read()
    for turn in range(turns):
        start = start + trained(trainer, start, examples(), turn=turn, version=version)[0]
    return start


def plain(optimizer, schedule, turns=1, epochs=2, size=8, clip=None, augment=None):
    """The same by a loop as in torch's tutorials; `optimizer` and `schedule` are functions."""
    module, data = network(), examples()
    made = optimizer(module.parameters())
    for turn in range(turns):
        order, noise = generator(7, "batches", 2, turn), generator(7, "augment", 2, turn)
        rates = schedule(made)
        for _ in range(epochs):
            for part in torch.split(torch.randperm(len(data), generator=order), size):
                made.zero_grad()
                x = data.x[part] if augment is None else augment(data.x[part], noise)
                cross_entropy(module(x), data.y[part]).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(module.parameters(), clip)
                made.step()
                rates.step()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def constant(optimizer):
    return torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)  # 26 examples, 8 at a time, twice


def warmup(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min((k + 1) / 3, 1.0))


AUGMENT = Compose((Flip(), PadAndCrop(1)))
CASES = {
    "Adam": (LocalOptimizer("Adam", 0.01), lambda p: torch.optim.Adam(p, 0.01), constant, {}),
    "AdamW": (LocalOptimizer("torch.optim.AdamW", 0.01, {"weight_decay": 0.3}),
              lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.3), constant, {}),
    "SGD": (LocalOptimizer("SGD", 0.1, {"momentum": 0.9}), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
            constant, {}),
    "cosine": (LocalOptimizer("Adam", 0.01, schedule="cosine"), lambda p: torch.optim.Adam(p, 0.01), cosine, {}),
    "warm-up": (LocalOptimizer("Adam", 0.01, warmup=3), lambda p: torch.optim.Adam(p, 0.01), warmup, {}),
    "clipped": (LocalOptimizer("SGD", 0.1, clip_norm=0.05), lambda p: torch.optim.SGD(p, 0.1), constant,
                {"clip": 0.05}),
    "remembered": (LocalOptimizer("Adam", 0.01, remember=True), lambda p: torch.optim.Adam(p, 0.01), constant,
                   {"turns": 3}),
    "augmented": (LocalOptimizer("Adam", 0.01, augment=AUGMENT), lambda p: torch.optim.Adam(p, 0.01), constant,
                  {"augment": AUGMENT}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_is_a_plain_loop_of_torch(case):
    recipe, optimizer, schedule, how = CASES[case]
    recipe = dataclasses.replace(recipe, epochs=2, batch_size=8)
    expected = plain(optimizer, schedule, **how)
    close = 1e-4 if "clip" in how else 1e-9  # torch's clipping adds 1e-6 to the norm
    torch.testing.assert_close(ours(recipe, how.get("turns", 1)), expected, rtol=close, atol=close / 100)
    assert (ours(recipe) - ours(LocalOptimizer("SGD", 1e-12))).abs().max() > 1e-3


def test_plain_sgd_is_local_sgd():
    settings = {"lr": ExponentialLR(0.3, 0.5), "epochs": 3, "batch_size": 5}
    found = ours(LocalOptimizer("SGD", **settings), version=2)
    torch.testing.assert_close(found, ours(LocalSGD(**settings), version=2), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("parts", [2, 3, 100])
def test_parts_of_a_minibatch_give_its_gradient(parts):
    y = torch.full((26, 3), -100)
    y[:, 0], y[::3, 1:] = DATA.y, 1  # sequences with 1 or 3 labels, so that parts count unequally
    data = Dataset(torch.randn(26, 3, generator=generator(0, "x"), dtype=torch.float64), y, 3)
    table = nn.Sequential(nn.Linear(3, 9), nn.Unflatten(1, (3, 3))).double()
    found = []
    for recipe in (LocalOptimizer(batch_size=8), LocalOptimizer(batch_size=8, parts=parts)):
        model = FlatModule(copy.deepcopy(table))
        found.append(trained(recipe.trainer(model, Classification(), 7), model.read(), data))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-8, atol=1e-10)
    assert found[0][1] == pytest.approx(found[1][1])


def test_forgets_by_default():
    recipe = LocalOptimizer(lr=0.01, batch_size=8)
    model = FlatModule(network())
    trainer, start = recipe.trainer(model, Classification(), 7), model.read()
    first = trained(trainer, start, examples())
    assert torch.equal(trained(trainer, start, examples())[0], first[0])
    assert trainer.snapshot() == {}


def test_a_snapshot_is_not_changed_by_later_training():
    trainer = LocalOptimizer(remember=True, batch_size=8).trainer(model := FlatModule(network()), Classification(), 7)
    start = model.read()
    trained(trainer, start, examples())
    packed, snapshot = pack(trainer.snapshot()), trainer.snapshot()
    second = trained(trainer, start, examples(), turn=1)[0]
    assert packed.unchanged
    trainer.restore(snapshot)
    assert torch.equal(trained(trainer, start, examples(), turn=1)[0], second)


def test_bfloat16_is_coarser_and_near():
    found = []
    for precision in ("float32", "bfloat16"):
        model, recipe = FlatModule(network().float()), LocalOptimizer("SGD", 0.1, precision=precision)
        found.append(trained(recipe.trainer(model, Classification(), 7), model.read(), DATA)[0])
    assert 0 < (found[0] - found[1]).abs().max() < 0.02
    by_sgd = LocalSGD(lr=0.1, precision="bfloat16").trainer(model, Classification(), 7)
    assert torch.equal(
        trained(by_sgd, torch.zeros(model.size), DATA)[0],
        trained(recipe.trainer(model, Classification(), 7), torch.zeros(model.size), DATA)[0],
    )


def test_no_examples_change_nothing():
    model = FlatModule(network())
    recipe = LocalOptimizer(steps=3)
    out, loss = trained(recipe.trainer(model, Classification(), 0), model.read(), examples().of(torch.arange(0)))
    assert not out.any()
    assert math.isnan(loss)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": "Adm"}, "optimizer must be the name of a class of torch.optim"),
        ({"optimizer": "torch.nn.Linear"}, "must be a class of optimizers"),
        ({"optimizer": "LBFGS"}, "several times a step"),
        ({"options": {"beta": 1}}, "Adam does not take lr and the options"),
        ({"parts": 0}, "parts must be at least 1"),
        ({"warmup": -1}, "warmup must be at least 0"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"batch_size": 0}, "batch_size must be"),
    ],
)
def test_refuses_what_is_no_training(wrong, message):
    with pytest.raises(ValueError, match=message):
        LocalOptimizer(**wrong)


# --- augmentation


def test_flips_and_crops_are_pixels_of_the_padded_image():
    x = torch.arange(1.0, 1 + 40 * 2 * 3 * 4).reshape(40, 2, 3, 4)
    flipped = Flip()(x, generator(0, "augment"))
    kinds = [torch.equal(a, b) for a, b in zip(flipped, x, strict=True)]
    assert 5 < sum(kinds) < 35
    assert all(torch.equal(a, b.flip(-1)) for a, b, kept in zip(flipped, x, kinds, strict=True) if not kept)
    padded = pad(x, (2, 2, 2, 2))
    places = set()
    for image, found in zip(padded, PadAndCrop(2)(x, generator(0, "augment")), strict=True):
        at = [(i, j) for i in range(5) for j in range(5) if torch.equal(image[:, i : i + 3, j : j + 4], found)]
        assert at
        places.add(at[0])
    assert len(places) > 10


def test_refuses_to_flip_what_is_no_image():
    with pytest.raises(ValueError, match="Flip needs images"):
        Flip()(torch.zeros(3, 4), generator(0, "augment"))


# --- runs

SMALL = Run(
    data=InMemory(DATA.of(torch.arange(20)), DATA.of(torch.arange(20, 26))), clients=3, model=MLP((5,)),
    training=LocalOptimizer(lr=0.02, batch_size=4, remember=True), until=Until(6),
)  # fmt: skip


def test_remembered_state_is_remembered_over_a_kill(tmp_path):

    whole = simulate(SMALL)

    def kill(progress):
        if progress.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(SMALL, folder=tmp_path, observers=[kill], checkpoint=Checkpoint(0))
    resumed = simulate(SMALL, folder=tmp_path, checkpoint=Checkpoint(0))
    assert list(resumed.history) == list(whole.history)
    forgetful = simulate(dataclasses.replace(SMALL, training=dataclasses.replace(SMALL.training, remember=False)))
    assert list(forgetful.history) != list(whole.history)


def test_refuses_to_remember_elsewhere():
    class Elsewhere:
        def executor(self, blueprint, data, *, exact):
            raise AssertionError

    with pytest.raises(InfeasibleError, match="clients that train elsewhere cannot"):
        Federation(SMALL, executors=Elsewhere())
