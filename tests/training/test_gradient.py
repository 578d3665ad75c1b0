"""Gradients without a graph against those of autograd, which is the oracle: to the bit."""

import math

import pytest
import torch
from torch import nn

from phalanx.data import Dataset
from phalanx.models import MLP, CoxCNN, LeNet, SattlerCifarCNN, SattlerCNN, XuLyuCifarCNN, XuLyuMnistCNN
from phalanx.rng import borrowed
from phalanx.training import FlatModule, LocalSGD, Trainer
from phalanx.training import pooling_kernels as kernels
from phalanx.training.gradient import Gradient, kernels_of, same_bits
from phalanx.training.local import LocalTask
from phalanx.training.task import CLASSIFICATION, NextToken

MODULES = {
    "softmax regression": ((6,), lambda: MLP(()).build((6,), 3)),
    "perceptron": ((2, 3, 4), lambda: MLP((40, 7)).build((2, 3, 4), 3)),
    "tanh": (
        (1, 2, 3),
        lambda: nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3)),
    ),
    "first a layer without parameters": ((6,), lambda: nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(6, 3))),
    "images of digits": ((1, 28, 28), lambda: MLP((64,)).build((1, 28, 28), 10)),
}


def by_graph(model, x, y):
    """Return the loss and the gradient by autograd."""
    loss = CLASSIFICATION.loss(model.outputs(x), y)
    model.gradient.zero_()
    loss.backward()
    return loss.detach(), model.gradient.clone()


def minibatch(shape, size, dtype, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(size, *shape, generator=rng).to(dtype), torch.randint(3, (size,), generator=rng)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 2, 5, 16, 32, 33, 100])
@pytest.mark.parametrize("name", MODULES)
def test_the_bits_are_those_of_autograd(name, size, dtype):
    shape, build = MODULES[name]
    model = FlatModule(build().to(dtype))
    gradient = Gradient(model, CLASSIFICATION)
    for turn in range(3):  # the first one is compared within
        x, y = minibatch(shape, size, dtype, turn)
        loss = gradient(x, y)
        found = model.gradient.clone()
        expected = by_graph(model, x, y)
        assert same_bits(loss, expected[0])
        assert same_bits(found, expected[1])
    assert gradient.plain
    assert found.abs().max() > 0


CONVOLUTIONS = {
    "Sattler": ((1, 28, 28), SattlerCNN()),
    "Sattler, CIFAR": ((3, 32, 32), SattlerCifarCNN()),
    "Xu and Lyu": ((1, 28, 28), XuLyuMnistCNN()),
    "Xu and Lyu, CIFAR": ((3, 32, 32), XuLyuCifarCNN()),
    "Cox": ((1, 28, 28), CoxCNN()),
    "LeNet, sides that 2 does not divide": ((3, 17, 23), LeNet()),
}


@pytest.mark.parametrize("size", [3, 10])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_have_the_bits_of_autograd(name, size):
    shape, network = CONVOLUTIONS[name]
    with borrowed(0, "model"):
        model = FlatModule(network.build(shape, 10))
    gradient, drops = Gradient(model, CLASSIFICATION), isinstance(network, CoxCNN)
    for turn in range(3):
        x, y = minibatch(shape, size, torch.float32, turn)
        x = x.contiguous(memory_format=torch.channels_last)
        with borrowed(turn, "dropout"):
            loss = gradient(x, y)
            drawn = torch.rand(3)
        found = model.gradient.clone()
        with borrowed(turn, "dropout"):
            expected = by_graph(model, x, y)
            assert torch.equal(drawn, torch.rand(3)), "as many random numbers"
        assert same_bits(loss, expected[0])
        assert same_bits(found, expected[1])
    assert gradient._compared == {size}, "without a graph"
    assert gradient.plain is not drops


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(2, 10, 6, 4), (3, 7, 5, 33), (1, 2, 2, 16), (2, 3, 9, 1)], ids=str)
@pytest.mark.parametrize("positive", [False, True])
def test_pooling_chooses_what_torch_chooses(positive, shape, dtype):
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(-2, 3, shape, generator=rng).to(dtype)  # many equal ones
    x[torch.rand(shape, generator=rng) < 0.1] = math.nan
    x[torch.rand(shape, generator=rng) < 0.1] = -0.0
    x[torch.rand(shape, generator=rng) < 0.1] = -math.inf
    images = x.clone().permute(0, 3, 1, 2).requires_grad_()
    expected = torch.nn.functional.max_pool2d(images, 2)
    expected = expected.relu() if positive else expected
    g = torch.randn(expected.shape, generator=rng).to(dtype)
    g[g.abs() < 0.1] = -0.0
    expected.backward(g)
    y = torch.empty(expected.permute(0, 2, 3, 1).shape, dtype=dtype)
    chosen, gx = torch.empty(y.shape, dtype=torch.int32), torch.full_like(x, math.nan)
    kernels.pool(x.numpy(), positive, y.numpy(), chosen.numpy())
    kernels.unpool(g.permute(0, 2, 3, 1).contiguous().numpy(), chosen.numpy(), gx.numpy())
    assert same_bits(y, expected.detach().permute(0, 2, 3, 1).contiguous())
    assert same_bits(gx, images.grad.permute(0, 2, 3, 1).contiguous())


@pytest.mark.parametrize(
    ("shape", "build"),
    [
        ((3, 8, 8), lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Linear(6, 3), nn.Flatten(), nn.Linear(36, 3))),
        ((4, 6), lambda: nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6, 3))),
        ((2, 4), lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(8, 3))),
    ],
    ids=["linear layer on images", "pooling of one image", "as usual"],
)
def test_kernels_of_unusual_inputs_have_the_gradient_of_autograd(shape, build):
    model = FlatModule(build())
    gradient = Gradient(model, CLASSIFICATION)
    for turn in range(2):
        x, y = minibatch(shape, 5, torch.float32, turn)
        gradient(x, y)
        assert same_bits(model.gradient.clone(), by_graph(model, x, y)[1])


def test_autograd_makes_no_graph_after_the_first_minibatch_of_a_size(monkeypatch):
    calls = []
    model = FlatModule(MLP((4,)).build((6,), 3))
    gradient = Gradient(model, CLASSIFICATION)
    monkeypatch.setattr(model.module, "forward", lambda x, old=model.module.forward: calls.append(len(x)) or old(x))
    for size in (4, 4, 2, 4, 2):
        gradient(*minibatch((6,), size, torch.float32))
    assert calls == [4, 2]


def test_other_bits_are_noticed_and_autograd_goes_on(monkeypatch):
    model = FlatModule(MLP((4,)).build((6,), 3))
    gradient = Gradient(model, CLASSIFICATION)
    backward = torch.ops.aten._log_softmax_backward_data.default
    wrong = lambda g, *rest: backward(g, *rest).mul_(1 + 1e-6)  # noqa: E731
    monkeypatch.setattr(torch.ops.aten._log_softmax_backward_data, "default", wrong)
    x, y = minibatch((6,), 4, torch.float32)
    gradient(x, y)
    assert same_bits(model.gradient.clone(), by_graph(model, x, y)[1])
    assert not gradient.plain


def test_hooks_of_all_modules_see_every_minibatch_while_there_are_some():
    seen = []
    model = FlatModule(MLP((4,)).build((6,), 3))
    gradient, (x, y) = Gradient(model, CLASSIFICATION), minibatch((6,), 4, torch.float32)
    gradient(x, y)
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    for _ in range(2):
        gradient(x, y)
    hook.remove()
    gradient(x, y)
    assert seen.count(nn.Sequential) == 2
    assert gradient.plain


class Odd(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked():
    module = MLP((4,)).build((6,), 3)
    module[1].register_forward_hook(lambda layer, x, y: 2 * y)
    return module


def replaced():
    module = MLP((4,)).build((6,), 3)
    module[1].forward = lambda x: nn.functional.dropout(nn.Linear.forward(module[1], x), 0.5, module[1].training)
    return module


class Dropping(nn.Flatten):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def clamped():
    module = MLP((4,)).build((6,), 3)
    module[1].weight.register_hook(lambda g: g.clamp(-9, 9))  # of the first minibatch it changes nothing
    return module


def after_the_gradient():
    module = MLP((4,)).build((6,), 3)
    module[1].bias.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-9, 9))
    return module


def frozen():
    module = MLP((4,)).build((6,), 3)
    module[1].weight.requires_grad = False
    return module


def twice():
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Dropout(1.0), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2, bias=False), nn.Flatten(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2, padding="same"), nn.Flatten(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.MaxPool2d(3), nn.Flatten(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.MaxPool2d(2, stride=1), nn.Flatten(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Linear(6, 3, bias=False)),
        lambda: nn.Sequential(Odd(6, 3)),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(6, 3)),
        lambda: nn.Sequential(Dropping(), nn.Linear(6, 3)),
        hooked,
        replaced,
        clamped,
        after_the_gradient,
        frozen,
    ],
)
def test_other_layers_are_left_to_autograd(build):
    model = FlatModule(build())
    assert kernels_of(model.module) is None
    assert not Gradient(model, CLASSIFICATION).plain


def test_other_tasks_are_left_to_autograd():
    assert not Gradient(FlatModule(MLP(()).build((6,), 3)), NextToken()).plain


def test_a_layer_that_is_there_twice_has_the_gradient_of_autograd():
    model = FlatModule(twice())
    gradient = Gradient(model, CLASSIFICATION)
    for turn in range(2):
        x, y = minibatch((6,), 5, torch.float32, turn)
        gradient(x, y)
        assert same_bits(model.gradient.clone(), by_graph(model, x, y)[1])


@pytest.mark.parametrize("shape", [(2, 4), (3, 2, 4)], ids=str)
def test_a_linear_layer_of_more_than_rows_is_left_to_autograd(shape):
    outputs = 5 * math.prod(shape[:-1])
    model = FlatModule(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(outputs, 3)))
    gradient = Gradient(model, CLASSIFICATION)
    for turn in range(2):
        x, y = minibatch(shape, 5, torch.float32, turn)
        loss = gradient(x, y)
        found = model.gradient.clone()
        expected = by_graph(model, x, y)
        assert same_bits(loss, expected[0])
        assert same_bits(found, expected[1])
    assert not gradient.plain


@pytest.mark.parametrize(
    "recipe",
    [
        LocalSGD(batch_size=4),
        LocalSGD(epochs=3, batch_size=5, momentum=0.9, weight_decay=0.01),
        LocalSGD(steps=7, batch_size=6, clip_norm=0.1, proximal=0.5),
    ],
    ids=repr,
)
def test_a_client_learns_the_same_bits(recipe, monkeypatch):
    x, y = minibatch((6,), 14, torch.float32)
    start, rows, losses = FlatModule(MLP((8,)).build((6,), 3)).read(), [], []
    for graph in (False, True):
        if graph:
            monkeypatch.setattr("phalanx.training.gradient.kernels_of", lambda module: None)
        trainer = Trainer(FlatModule(MLP((8,)).build((6,), 3)), recipe, 3)
        assert trainer._gradient.plain is not graph
        row = torch.full_like(start, math.nan)
        losses.append([trainer.train(LocalTask(1, turn, 0, start, row), Dataset(x, y, 3)) for turn in range(2)])
        rows.append(row)
    assert same_bits(*rows)
    assert losses[0] == losses[1]
    assert rows[0].abs().max() > 1e-3


@pytest.mark.parametrize(
    ("build", "shape", "labels"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Flatten(), nn.Linear(10, 3)), (2, 4), ()),
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.Dropout(0.5), nn.Conv2d(4, 3, 1)), (1, 6, 6), (6, 6)),
    ],
    ids=["rows of rows", "a label for each pixel"],
)
def test_random_numbers_go_on_where_autograd_left_them(build, shape, labels):
    """The comparison draws fewer, or none."""
    drawn = []
    for with_kernels in (True, False):
        model = FlatModule(build())
        gradient = Gradient(model, CLASSIFICATION)
        if not with_kernels:
            gradient._layers = None
        torch.manual_seed(3)
        for turn in range(2):
            x, _ = minibatch(shape, 5, torch.float32, turn)
            gradient(x, torch.zeros(5, *labels, dtype=torch.int64))
            drawn.append(torch.rand(1))
    assert drawn[:2] == drawn[2:]


def test_pooling_in_half_precision_is_left_to_autograd():
    build = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d([2, 2], stride=[2, 2]), nn.Flatten(), nn.Linear(18, 3))
    for dtype in (torch.bfloat16, torch.float32):
        gradient = Gradient(FlatModule(build.to(dtype)), CLASSIFICATION)
        assert gradient(torch.ones(2, 1, 8, 8, dtype=dtype), torch.zeros(2, dtype=torch.int64)).isfinite()
        assert gradient.plain is (dtype is torch.float32)
