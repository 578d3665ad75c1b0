"""Modules as vectors: the order is that of `module.parameters()`, row by row, whatever lies inside."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone knows)
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from phalanx.data import Dataset
from phalanx.rng import borrowed
from phalanx.training import LocalSGD
from phalanx.training.local import LocalTask
from phalanx.training.task import CLASSIFICATION
from phalanx.training.vector import FlatModule, rows_as_matrix


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def conv():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, (1, 2), bias=False), nn.Flatten(), nn.Linear(3 * 4 * 3, 3)
    )


def batch_norm():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


class Tied(nn.Module):
    """A layer that is used twice, and a second name for its weight."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(self.one(x).tanh())


def built(build):
    with borrowed(0, "module"):
        return build()


INPUTS = {mlp: (7, 6), conv: (7, 2, 6, 6), Tied: (7, 4), batch_norm: (7, 2, 6, 6)}


def example(build, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(INPUTS[build], generator=rng), torch.randint(3, (7,), generator=rng)


def numbers(size, seed=1, dtype=torch.float32):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


plain_modules = pytest.mark.parametrize("build", [mlp, conv, Tied])


# --- vectors


@plain_modules
def test_read_is_parameters_to_vector(build):
    module = built(build)
    plain = copy.deepcopy(module)
    model = FlatModule(module)
    assert model.size == model.trainable == sum(p.numel() for p in plain.parameters())
    assert torch.equal(model.read(), parameters_to_vector(plain.parameters()))


@plain_modules
def test_load_is_vector_to_parameters(build):
    module = built(build)
    plain = copy.deepcopy(module)
    model = FlatModule(module)
    vector = numbers(model.size)
    model.load(vector)
    vector_to_parameters(vector, plain.parameters())
    for (name, ours), (other, theirs) in zip(module.named_parameters(), plain.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(ours, theirs)
    x, _ = example(build)
    torch.testing.assert_close(module(x), plain(x))
    assert torch.equal(model.read(), vector)


@plain_modules
def test_state_dict_has_the_shapes_and_values_of_the_plain_module(build):
    module = built(build)
    plain = copy.deepcopy(module).state_dict()
    FlatModule(module)
    assert module.state_dict().keys() == plain.keys()
    assert all(torch.equal(module.state_dict()[name], value) for name, value in plain.items())


def test_conv_weights_by_hand():
    """(out, in, height, width) in row-major order, behind each other with the bias."""
    model = FlatModule(nn.Conv2d(2, 2, (1, 2)))
    model.load(torch.arange(10.0))
    assert model.module.weight.tolist() == [[[[0.0, 1.0]], [[2.0, 3.0]]], [[[4.0, 5.0]], [[6.0, 7.0]]]]
    assert model.module.bias.tolist() == [8.0, 9.0]
    assert model.read().tolist() == list(range(10))


def test_loading_copies():
    model = FlatModule(built(mlp))
    vector = numbers(model.size)
    before = vector.clone()
    model.load(vector)
    model.values.zero_()
    assert torch.equal(vector, before)
    vector.fill_(5.0)
    assert torch.equal(model.read(), torch.zeros(model.size))


def test_reading_into_a_row_copies():
    model = FlatModule(built(conv))
    rows = torch.full((3, model.size), torch.nan)
    returned = model.read(rows[1])
    assert returned.data_ptr() == rows[1].data_ptr()
    assert torch.equal(rows[1], model.read())
    assert torch.isnan(rows[[0, 2]]).all()
    model.values.zero_()
    assert bool((rows[1] != 0).any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_the_module_s(dtype):
    model = FlatModule(built(mlp).to(dtype))
    vector = numbers(model.size, dtype=dtype)
    model.load(vector)
    assert model.dtype == model.read().dtype == model.gradient.dtype == dtype
    assert torch.equal(model.read(), vector)


# --- gradients


@plain_modules
def test_backward_fills_the_gradient(build):
    module = built(build)
    plain = copy.deepcopy(module)
    model, (x, y) = FlatModule(module), example(build)
    F.cross_entropy(module(x), y).backward()
    F.cross_entropy(plain(x), y).backward()
    offset = 0
    for ours, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        part = model.gradient[offset : offset + ours.numel()]
        torch.testing.assert_close(ours.grad, theirs.grad)
        assert ours.grad.untyped_storage().data_ptr() == model.gradient.untyped_storage().data_ptr()
        torch.testing.assert_close(part.sort().values, theirs.grad.flatten().sort().values)
        offset += ours.numel()
    model.gradient.zero_()
    assert all(bool((p.grad == 0).all()) for p in module.parameters())


@plain_modules
def test_a_step_on_the_flat_vectors_is_a_step_of_the_module(build):
    """Values and gradient lie in one order, whatever it is."""
    module = built(build)
    plain = copy.deepcopy(module)
    model, (x, y) = FlatModule(module), example(build)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for _ in range(3):
        model.gradient.zero_()
        F.cross_entropy(module(x), y).backward()
        model.values[: model.trainable].add_(model.gradient, alpha=-0.5)
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(model.read(), parameters_to_vector(plain.parameters()))


@pytest.mark.parametrize(
    "norms",
    [
        lambda: (nn.InstanceNorm2d(3), nn.InstanceNorm2d(4, affine=True)),
        lambda: (nn.GroupNorm(1, 3), nn.GroupNorm(2, 4)),
    ],
)
@pytest.mark.parametrize("first", [False, True], ids=["after a convolution", "first"])
@pytest.mark.parametrize("images", [1, 5])
def test_normalisation_has_the_gradient_of_images_in_rows(images, first, norms):
    """Torch's own is wrong for one image alone that lies channels last, or its process crashes."""
    with borrowed(0, "model"):
        one, other = norms()
        module = nn.Sequential(nn.Conv2d(2, 3, 2), one, nn.Conv2d(3, 4, 2), other, nn.Flatten(), nn.Linear(64, 3))
        module = nn.Sequential(*[nn.GroupNorm(2, 2)] * first, *module).double()
        x, y = torch.randn(images, 2, 6, 6).double(), torch.randint(3, (images,))
    F.cross_entropy(module(x), y).backward()
    expected = torch.cat([p.grad.flatten() for p in module.parameters()])
    model, row = FlatModule(module), torch.zeros(len(expected)).double()
    LocalSGD(lr=1.0).trainer(model, CLASSIFICATION, 0).train(LocalTask(0, 0, 0, model.read(), row), Dataset(x, y, 3))
    assert torch.allclose(-row, expected, atol=1e-12)
    assert torch.allclose(model.arranged(-row), model.gradient, atol=1e-12)


class Two(nn.Module):
    """A network of two inputs that are normalised first."""

    def __init__(self):
        super().__init__()
        self.norm, self.score = nn.GroupNorm(1, 3), nn.Linear(27, 3)

    def forward(self, image, other):
        return self.score(self.norm(image).flatten(1) + other.flatten(1))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_that_are_normalised_first_lie_in_rows(channels):
    """With one channel the strides are those of both orders, of which torch takes the one that crashes."""
    module = nn.Sequential(nn.GroupNorm(1, channels), nn.Flatten(), nn.Linear(9 * channels, 3))
    x, y = torch.randn(4, channels, 3, 3), torch.randint(3, (4,))
    for net, inputs in ((module, x), (Two(), {"image": x.expand(4, 3, 3, 3), "other": x.expand(4, 3, 3, 3)})):
        model = FlatModule(net)
        row = torch.zeros(model.size)
        task = LocalTask(0, 0, 0, model.read(), row)
        LocalSGD().trainer(model, CLASSIFICATION, 0).train(task, Dataset(inputs, y, 3))
        assert row.isfinite().all()
        assert row.any()


def test_tied_parameters_travel_once():
    model = FlatModule(built(Tied))
    assert model.size == 4 * 4 + 4 + 4
    model.load(numbers(model.size))
    assert model.module.one.weight is model.module.other.weight
    assert torch.equal(model.module.other.weight.flatten(), numbers(model.size)[:16])


def test_frozen_parameters_do_not_travel():
    module = built(mlp)
    module[0].requires_grad_(False)
    frozen = module[0].weight.clone()
    model = FlatModule(module)
    assert model.size == model.trainable == 5 * 3 + 3
    assert torch.equal(model.read(), torch.cat([module[2].weight.flatten(), module[2].bias]))
    model.load(torch.zeros(model.size))
    assert torch.equal(module[0].weight, frozen)
    assert not module[2].weight.any()
    F.cross_entropy(module(example(mlp)[0]), example(mlp)[1]).backward()
    assert module[0].weight.grad is None
    assert model.gradient.any()


# --- buffers


def test_buffers_need_a_policy():
    said = r'Sequential has 3 buffers \(1\.running_mean, .*\).*buffers="average" to aggregate them'
    with pytest.raises(ValueError, match=said):
        FlatModule(built(batch_norm))


def test_averaged_buffers_travel_behind_the_parameters():
    module = built(batch_norm)
    parameters = sum(p.numel() for p in module.parameters())
    model = FlatModule(module, "average")
    assert (model.trainable, model.size) == (parameters, parameters + 8)
    assert len(model.gradient) == parameters
    start = model.read()
    assert torch.equal(start[parameters:], torch.tensor([0.0] * 4 + [1.0] * 4))  # running mean, running variance

    x, _ = example(batch_norm)
    module.train()
    module(x)
    trained = model.read()
    inner = module[0](x).detach()
    torch.testing.assert_close(trained[parameters : parameters + 4], 0.1 * inner.mean((0, 2, 3)))
    torch.testing.assert_close(trained[parameters + 4 :], 0.9 + 0.1 * inner.var((0, 2, 3)))
    assert torch.equal(trained[:parameters], start[:parameters])

    vector = numbers(model.size).abs()
    model.load(vector)
    assert torch.equal(model.read(), vector)
    assert torch.equal(module[1].running_var, vector[-4:])
    assert torch.equal(module[1].running_mean, vector[-8:-4])


def test_frozen_buffers_come_back_with_each_load():
    module = built(batch_norm)
    module[1].running_mean.fill_(0.25)
    model = FlatModule(module, "freeze")
    assert model.size == model.trainable == sum(p.numel() for p in module.parameters())
    start = model.read()
    module.train()
    module(example(batch_norm)[0])
    assert not torch.equal(module[1].running_mean, torch.full((4,), 0.25))
    model.load(start)
    assert torch.equal(module[1].running_mean, torch.full((4,), 0.25))
    assert torch.equal(module[1].running_var, torch.ones(4))
    assert int(module[1].num_batches_tracked) == 0


@pytest.mark.parametrize("policy", ["average", "freeze"])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_nothing_of_one_client_is_left_for_the_next(policy, momentum):
    """With momentum None batch normalisation weighs by the number of batches it has seen, an integer buffer."""
    module = built(batch_norm)
    module[1].momentum = momentum
    model = FlatModule(module, policy)
    start = model.read()

    def after(seed):
        model.load(start)
        module.train()
        module(example(batch_norm, seed)[0])
        return torch.cat([model.read(), module[1].running_mean, module[1].running_var])

    first = after(1)
    after(2)
    assert torch.equal(after(1), first)


@pytest.mark.parametrize("policy", ["refuse", "average", "freeze"])
def test_policies_are_one_where_there_are_no_buffers(policy):
    model = FlatModule(built(conv), policy)
    assert torch.equal(model.read(), parameters_to_vector(built(conv).parameters()))


# --- what cannot travel


def test_mixed_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"one dtype, got torch\.float32, torch\.float64"):
        FlatModule(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    module = built(batch_norm)
    module[1].running_mean = module[1].running_mean.double()
    with pytest.raises(ValueError, match=r"one dtype, got torch\.float32, torch\.float64"):
        FlatModule(module, "average")


@pytest.mark.parametrize("module", [nn.Flatten(), nn.Linear(2, 2).requires_grad_(False)], ids=str)
def test_nothing_to_train_is_refused(module):
    with pytest.raises(ValueError, match=f"{type(module).__name__} has no trainable parameters"):
        FlatModule(module)


# --- rows


def test_adjacent_rows_are_a_matrix_without_a_copy():
    storage = torch.arange(20.0)
    rows = storage[2:18].view(4, 4)
    matrix = rows_as_matrix([rows[i] for i in range(4)])
    assert matrix.data_ptr() == rows.data_ptr()
    assert torch.equal(matrix, rows)
    middle = rows_as_matrix([rows[1], rows[2]])
    assert middle.data_ptr() == rows[1].data_ptr()
    assert torch.equal(middle, rows[1:3])
    last = rows_as_matrix([rows[3]])
    assert (last.data_ptr(), last.shape, last.stride()) == (rows[3].data_ptr(), (1, 4), (4, 1))
    assert torch.equal(last, rows[3:])


ROWS = torch.arange(16.0).view(4, 4)


@pytest.mark.parametrize(
    "rows",
    [
        [ROWS[1], ROWS[0]],
        [ROWS[0], ROWS[2]],
        [ROWS[0], ROWS[0]],
        [ROWS[0], ROWS[1].clone()],
        [ROWS[0].clone(), ROWS[1]],
        [ROWS.T[0], ROWS.T[1]],
        [ROWS[0, :2], ROWS[1, :2]],
        [torch.zeros(4).as_strided((4,), (0,)), ROWS[1]],
        [ROWS.as_strided((2,), (2,), 0), ROWS.as_strided((2,), (2,), 2)],
        [ROWS.T[1]],
    ],
    ids=[
        "reversed",
        "gap",
        "twice",
        "elsewhere",
        "first elsewhere",
        "columns",
        "parts",
        "expanded",
        "every other",
        "one column",
    ],
)
def test_other_rows_are_copied(rows):
    matrix = rows_as_matrix(rows)
    assert torch.equal(matrix, torch.stack(rows))
    assert matrix.untyped_storage().data_ptr() not in {row.untyped_storage().data_ptr() for row in rows}
