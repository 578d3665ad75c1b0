"""Local training against torch's own optimiser, and what a client may remember: nothing."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone knows)
from torch import nn
from torch.nn.utils import parameters_to_vector

from phalanx.data import Dataset
from phalanx.models import MLP
from phalanx.rng import borrowed, generator
from phalanx.training.local import LocalTask
from phalanx.training.sgd import ExponentialLR, LocalSGD, StepLR, Trainer, batches
from phalanx.training.vector import FlatModule

CLASSES = 3


def mlp(dropout=0.0):
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES))


def conv():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES))


SHAPES = {mlp: (5,), conv: (2, 6, 6)}


def built(build, dtype=torch.float64, **arguments):
    with borrowed(0, "module"):
        return build(**arguments).to(dtype)


def examples(n, build=mlp, seed=0, dtype=torch.float64):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *SHAPES[build], generator=rng, dtype=dtype)
    return Dataset(x, torch.randint(CLASSES, (n,), generator=rng), CLASSES)


def trained(trainer, data, start=None, client=0, turn=0, version=0):
    """The change, and the loss."""
    start = start_of(trainer) if start is None else start
    out = torch.full_like(start, torch.nan)
    loss = trainer.train(LocalTask(client, turn, version, start, out), data)
    return out, loss


def start_of(trainer):
    return parameters_to_vector(built(mlp, trainer.model.dtype).parameters()).detach()


def plain_torch(module, recipe, data, *, lr, seed, client, turn):
    """The same in torch's words: a module, an optimiser, an order from the same stream."""
    module = copy.deepcopy(module).train()
    start = [p.detach().clone() for p in module.parameters()]
    before = parameters_to_vector(module.parameters()).detach()
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    rng, losses, taken = generator(seed, "batches", client, turn), [], 0
    for epoch in range(10**6 if recipe.steps else recipe.epochs):
        order = torch.randperm(len(data), generator=rng)
        for at in range(0, len(data), recipe.batch_size):
            chosen = order[at : at + recipe.batch_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(module(data.x[chosen]), data.y[chosen])
            loss.backward()
            if recipe.clip_norm is not None:
                norm = math.sqrt(sum(float(p.grad.square().sum()) for p in module.parameters()))
                for p in module.parameters():
                    p.grad *= min(1.0, recipe.clip_norm / norm)
            for p, received in zip(module.parameters(), start, strict=True):
                p.grad += recipe.proximal * (p.detach() - received)
            optimizer.step()
            if epoch == 0:
                losses += [loss.item()] * len(chosen)
            taken += 1
            if taken == recipe.steps:
                break
        if taken == recipe.steps:
            break
    return parameters_to_vector(module.parameters()).detach() - before, sum(losses) / len(losses)


RECIPES = [
    LocalSGD(),
    LocalSGD(epochs=3, batch_size=4, lr=0.2),
    LocalSGD(epochs=2, batch_size=5, lr=0.1, momentum=0.9),
    LocalSGD(epochs=2, batch_size=5, lr=0.1, weight_decay=0.05),
    LocalSGD(epochs=2, batch_size=5, lr=0.5, clip_norm=0.3),
    LocalSGD(epochs=2, batch_size=3, lr=0.2, momentum=0.8, weight_decay=0.01, clip_norm=0.5),
    LocalSGD(epochs=3, batch_size=4, lr=0.2, proximal=0.7),
    LocalSGD(epochs=2, batch_size=3, lr=0.2, momentum=0.8, weight_decay=0.01, clip_norm=0.5, proximal=2.0),
    LocalSGD(steps=1, batch_size=4, lr=0.3),
    LocalSGD(steps=7, batch_size=4, lr=0.2, momentum=0.5),  # 13 examples: 4 minibatches an epoch
    LocalSGD(epochs=2, batch_size=100, lr=0.2),
    LocalSGD(epochs=2, batch_size=1, lr=0.05),
    LocalSGD(epochs=2, batch_size=5, lr=ExponentialLR(0.3, 0.9), momentum=0.9),
    LocalSGD(epochs=2, batch_size=5, lr=StepLR(0.3, 2, 0.5)),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("build", [mlp, conv])
def test_equals_torch(build, recipe):
    module, data = built(build), examples(13, build)
    start = parameters_to_vector(module.parameters()).detach()
    trainer = Trainer(FlatModule(copy.deepcopy(module)), recipe, seed=4)
    for turn, version in ((0, 0), (1, 5)):
        lr = recipe.learning_rate(version)
        expected, loss = plain_torch(module, recipe, data, lr=lr, seed=4, client=6, turn=turn)
        change, reported = trained(trainer, data, start, client=6, turn=turn, version=version)
        torch.testing.assert_close(change, expected, rtol=0, atol=1e-12)
        assert reported == pytest.approx(loss, abs=1e-12)
        assert float(change.abs().max()) > 1e-3


def test_clipping_is_torch_s_up_to_its_summand_of_a_millionth():
    data, recipe = examples(6), LocalSGD(batch_size=6, lr=1.0, clip_norm=0.01)
    module = built(mlp)
    F.cross_entropy(module(data.x), data.y).backward()
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    assert float(norm) > 0.01
    change, _ = trained(Trainer(FlatModule(built(mlp)), recipe, 0), data)
    expected = torch.cat([-p.grad.flatten() for p in module.parameters()])
    torch.testing.assert_close(change, expected, rtol=1e-4, atol=0)
    assert float(change.norm()) == pytest.approx(0.01, rel=1e-12)


def test_short_gradients_are_not_lengthened():
    data = examples(6)
    loose, free = (Trainer(FlatModule(built(mlp)), LocalSGD(batch_size=6, clip_norm=c), 0) for c in (1e9, None))
    assert torch.equal(trained(loose, data)[0], trained(free, data)[0])


def test_clipping_survives_a_gradient_of_zero():
    data = Dataset(torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.int64), 1)
    model = FlatModule(nn.Linear(1, 1).double())  # one class: nothing to learn
    change, loss = trained(Trainer(model, LocalSGD(clip_norm=1.0), 0), data, model.read())
    assert (change.tolist(), loss) == ([0.0, 0.0], 0.0)


def test_one_step_by_hand():
    """Softmax regression from zero on one example: p = 1/2, gradient (p - y) x."""
    data = Dataset(torch.tensor([[2.0]]), torch.tensor([0]), 2)
    change, loss = trained(Trainer(FlatModule(nn.Linear(1, 2)), LocalSGD(lr=0.1), 0), data, torch.zeros(4))
    torch.testing.assert_close(change, torch.tensor([0.1, -0.1, 0.05, -0.05]))
    assert loss == pytest.approx(math.log(2))


# --- minibatches


def visited(recipe, n, turn=0):
    """The minibatches of one turn as (epoch, indices of examples)."""
    data = Dataset(torch.arange(float(n)).unsqueeze(1), torch.arange(n) % CLASSES, CLASSES)
    found = list(recipe.minibatches(data, generator(0, "batches", 0, turn)))
    assert all(bool((x.flatten().long() % CLASSES == y).all()) for _, x, y in found)
    return [(epoch, x.flatten().long().tolist()) for epoch, x, _ in found]


@pytest.mark.parametrize(("n", "size"), [(13, 4), (12, 4), (3, 4), (1, 1), (5, 1)])
def test_each_epoch_visits_every_example_once_in_a_new_order(n, size):
    found = visited(LocalSGD(epochs=3, batch_size=size), n)
    orders = [[i for e, batch in found if e == epoch for i in batch] for epoch in range(3)]
    assert [sorted(order) for order in orders] == [list(range(n))] * 3
    assert n < 10 or len({tuple(order) for order in orders}) == 3
    full, rest = divmod(n, size)
    assert [len(batch) for _, batch in found] == ([size] * full + [rest] * (rest > 0)) * 3


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 8, 9])
def test_steps_cross_epochs(steps):
    """13 examples in minibatches of 4: an epoch has four, the last one of a single example."""
    found = visited(LocalSGD(steps=steps, epochs=1, batch_size=4), 13)
    assert [epoch for epoch, _ in found] == [k // 4 for k in range(steps)]
    assert [len(batch) for _, batch in found] == [1 if k % 4 == 3 else 4 for k in range(steps)]
    assert found == visited(LocalSGD(epochs=3, batch_size=4), 13)[:steps]


def test_turns_have_orders_of_their_own():
    recipe = LocalSGD(batch_size=13)
    assert visited(recipe, 13, turn=1) == visited(recipe, 13, turn=1)
    assert visited(recipe, 13, turn=1) != visited(recipe, 13, turn=2)


@pytest.mark.parametrize("build", [mlp, conv])
def test_batches_keep_examples_and_order(build):
    data = examples(7, build)
    found = list(batches(data, 3))
    assert [len(y) for _, y in found] == [3, 3, 1]
    assert torch.equal(torch.cat([x for x, _ in found]), data.x)
    assert torch.equal(torch.cat([y for _, y in found]), data.y)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_reach_convolutions_with_their_channels_last(channels):
    """Also where they have one channel, of which torch cannot tell; the fast kernels are chosen by the strides."""
    images = Dataset(torch.rand(7, channels, 8, 6), torch.zeros(7, dtype=torch.int64), 2)
    for x, _ in batches(images, 3):
        assert x.stride() == (48 * channels, 1, 6 * channels, channels)
        out = nn.Conv2d(channels, 4, 3)(x)
        assert out.stride() == (96, 1, 16, 4)
    assert torch.equal(torch.cat([x for x, _ in batches(images, 3)]), images.x)


def test_the_loss_is_that_of_the_first_epoch():
    """With steps that end within the first epoch, of what was seen of it."""
    data = examples(13)
    of_one, of_many = (trained(Trainer(FlatModule(built(mlp)), LocalSGD(epochs=e), 0), data)[1] for e in (1, 5))
    assert of_one == of_many
    module, recipe = built(mlp), LocalSGD(steps=1, batch_size=4)
    (_, x, y), *_ = recipe.minibatches(data, generator(0, "batches", 0, 0))
    _, loss = trained(Trainer(FlatModule(built(mlp)), recipe, 0), data)
    assert loss == pytest.approx(F.cross_entropy(module(x), y).item(), abs=1e-12)


# --- schedules


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (ExponentialLR(0.5, 0.5), [0.5, 0.25, 0.125]),
        (ExponentialLR(0.2, 1.0), [0.2, 0.2, 0.2]),
        (StepLR(0.4, 2, 0.5), [0.4, 0.4, 0.2, 0.2, 0.1]),
        (StepLR(0.4, 1, 0.5), [0.4, 0.2, 0.1]),
    ],
)
def test_schedules_by_hand(schedule, rates):
    assert [schedule(version) for version in range(len(rates))] == pytest.approx(rates)
    assert [LocalSGD(lr=schedule).learning_rate(v) for v in range(len(rates))] == pytest.approx(rates)


def test_a_number_is_the_learning_rate_of_every_version():
    assert [LocalSGD(lr=0.3).learning_rate(version) for version in (0, 1, 1000)] == [0.3, 0.3, 0.3]


def test_the_version_and_not_the_turn_sets_the_rate():
    data, recipe = examples(4), LocalSGD(batch_size=4, lr=ExponentialLR(0.5, 0.5))
    trainer = Trainer(FlatModule(built(mlp)), recipe, 0)
    first, fourth = (trained(trainer, data, turn=0, version=v)[0] for v in (0, 3))
    torch.testing.assert_close(fourth, first / 8)
    assert torch.equal(trained(trainer, data, turn=0, version=3)[0], fourth)


# --- no memory, no side effects


FULL = LocalSGD(epochs=2, batch_size=3, lr=0.2, momentum=0.9, weight_decay=0.01, clip_norm=1.0)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_same_client_and_turn_same_bits(dropout):
    data = examples(10)
    trainer = Trainer(FlatModule(built(mlp, dropout=dropout)), FULL, 0)
    first = trained(trainer, data, client=2, turn=3)
    again = trained(Trainer(FlatModule(built(mlp, dropout=dropout)), FULL, 0), data, client=2, turn=3)
    assert torch.equal(first[0], again[0])
    assert first[1] == again[1]
    others = [
        trained(Trainer(FlatModule(built(mlp, dropout=dropout)), FULL, seed), data, client=client, turn=turn)[0]
        for seed, client, turn in ((0, 2, 4), (0, 3, 3), (1, 2, 3))
    ]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations([first[0], *others], 2))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_order_of_clients_does_not_matter(dropout):
    data = {i: examples(6 + i, seed=i) for i in range(3)}
    starts = {i: start_of(Trainer(FlatModule(built(mlp)), FULL, 0)) + i for i in range(3)}

    def changes(order):
        trainer = Trainer(FlatModule(built(mlp, dropout=dropout)), FULL, 0)
        return {i: trained(trainer, data[i], starts[i], client=i) for i in order}

    reference = changes((0, 1, 2))
    for order in ((2, 1, 0), (1, 2, 0), (1, 1, 0, 2)):
        for i, (change, loss) in changes(order).items():
            assert torch.equal(change, reference[i][0])
            assert loss == reference[i][1]


def test_a_client_that_diverges_leaves_nothing_behind():
    data, trainer = examples(6), Trainer(FlatModule(built(mlp)), FULL, 0)
    before = trained(trainer, data)[0]
    broken = trained(trainer, data, torch.full_like(before, torch.nan))
    assert torch.isnan(broken[0]).any()
    assert math.isnan(broken[1])
    assert torch.equal(trained(trainer, data)[0], before)


def test_evaluation_mode_does_not_stick():
    trainer, data = Trainer(FlatModule(built(mlp, dropout=0.5)), FULL, 0), examples(6)
    before = trained(trainer, data)[0]
    trainer.model.module.eval()
    assert torch.equal(trained(trainer, data)[0], before)


def test_arguments_and_the_global_generator_are_left_alone():
    trainer, data = Trainer(FlatModule(built(mlp, dropout=0.5)), FULL, 0), examples(6)
    start = start_of(trainer)
    kept = start.clone(), data.x.clone(), data.y.clone(), torch.get_rng_state()
    trained(trainer, data, start)
    assert torch.equal(start, kept[0])
    assert torch.equal(data.x, kept[1])
    assert torch.equal(data.y, kept[2])
    assert torch.equal(torch.get_rng_state(), kept[3])


def test_dropout_takes_nothing_from_outside():
    data = examples(6)
    trainer = Trainer(FlatModule(built(mlp, dropout=0.5)), FULL, 0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        one = trained(trainer, data)[0]
        torch.manual_seed(2)
        assert torch.equal(trained(trainer, data)[0], one)
    without = trained(Trainer(FlatModule(built(mlp)), FULL, 0), data)[0]
    assert not torch.equal(one, without)


def test_the_change_goes_to_the_row_that_was_given():
    trainer, data = Trainer(FlatModule(built(mlp)), FULL, 0), examples(6)
    rows = torch.full((3, trainer.model.size), torch.nan, dtype=torch.float64)
    start = start_of(trainer)
    trainer.train(LocalTask(0, 0, 0, start, rows[1]), data)
    torch.testing.assert_close(start + rows[1], trainer.model.read())
    assert torch.isnan(rows[[0, 2]]).all()
    assert torch.equal(rows[1], trained(trainer, data)[0])


@pytest.mark.parametrize(("held", "size"), [(100, 29), (10, 2), (4, 1), (3, 1), (1, 1)])
def test_a_share_of_the_examples_per_minibatch(held, size):
    recipe = LocalSGD(steps=1, batch_size=0.29)
    data = Dataset(torch.arange(float(held))[:, None], torch.zeros(held, dtype=torch.int64), 1)
    ((_, x, _),) = recipe.minibatches(data, generator(0, "batches"))
    assert len(x) == size
    whole = torch.cat([x for _, x, _ in LocalSGD(batch_size=7).minibatches(data, generator(0, "batches"))])
    assert torch.equal(x, whole[:size])


# --- bad parameters


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, r"batch_size must be at least 1, or a share in \(0, 1\), got 0"),
        ({"batch_size": 2.5}, r"batch_size must be at least 1, or a share in \(0, 1\), got 2\.5"),
        ({"batch_size": math.nan}, r"batch_size must be at least 1, or a share in \(0, 1\), got nan"),
        ({"lr": 0.0}, r"lr must be positive and finite, got 0\.0"),
        ({"lr": -0.1}, r"lr must be positive and finite, got -0\.1"),
        ({"lr": math.inf}, "lr must be positive and finite, got inf"),
        ({"lr": math.nan}, "lr must be positive and finite, got nan"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1\.0"),
        ({"momentum": -0.1}, r"momentum must lie in \[0, 1\), got -0\.1"),
        ({"momentum": math.nan}, r"momentum must lie in \[0, 1\), got nan"),
        ({"weight_decay": -1.0}, r"weight_decay must be at least 0 and finite, got -1\.0"),
        ({"weight_decay": math.nan}, "weight_decay must be at least 0 and finite, got nan"),
        ({"proximal": -0.1}, r"proximal must be at least 0 and finite, got -0\.1"),
        ({"clip_norm": 0.0}, r"clip_norm must be positive, got 0\.0"),
        ({"clip_norm": math.nan}, "clip_norm must be positive, got nan"),
        ({"epochs": 0, "momentum": -1}, r"epochs must be at least 1, got 0; momentum must lie in \[0, 1\), got -1"),
    ],
    ids=str,
)
def test_bad_recipes_name_the_allowed_range(wrong, message):
    with pytest.raises(ValueError, match=message):
        LocalSGD(**wrong)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (ExponentialLR, (0.0, 0.9), r"start must be positive and finite, got 0\.0"),
        (ExponentialLR, (0.1, 0.0), r"decay must lie in \(0, 1\], got 0\.0"),
        (ExponentialLR, (0.1, 1.1), r"decay must lie in \(0, 1\], got 1\.1"),
        (ExponentialLR, (math.nan, 0.9), "start must be positive"),
        (StepLR, (0.0, 0, 0.9), "start must be positive and finite, got 0.0; every must be at least 1, got 0"),
        (StepLR, (0.1, 0, 0.9), "every must be at least 1, got 0"),
        (StepLR, (0.1, 1, 1.5), "decay must lie in"),
    ],
)
def test_bad_schedules_name_the_allowed_range(kind, wrong, message):
    with pytest.raises(ValueError, match=message):
        kind(*wrong)


@pytest.mark.parametrize("recipe", [LocalSGD(), LocalSGD(steps=5)])
def test_a_client_without_examples_changes_nothing_and_ends(recipe):
    model = FlatModule(MLP((4,)).build((3,), 2))
    start = model.read()
    out = torch.ones_like(start)
    data = Dataset(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), 2)
    assert math.isnan(Trainer(model, recipe, seed=0).train(LocalTask(0, 0, 0, start, out), data))
    assert not out.any()


def test_batch_normalisation_is_never_given_a_single_example():
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    model = FlatModule(module, "average")
    data = Dataset(torch.randn(9, 8, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 4, 4)
    out = torch.empty(model.size)
    Trainer(model, LocalSGD(epochs=2, batch_size=4), 0).train(LocalTask(0, 0, 0, model.read(), out), data)
    assert torch.isfinite(out).all()
