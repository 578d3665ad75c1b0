"""ResNet-18: its size, its shape, what it computes, and what becomes of its running statistics."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from commandline import chosen
from phalanx import LocalSGD, Run, Until, simulate
from phalanx.data import Dataset, InMemory
from phalanx.models import Model, ResNet18
from phalanx.models.resnet import _Residual
from phalanx.rng import borrowed, generator
from phalanx.training.vector import FlatModule

CIFAR = (3, 32, 32)


def built(model=ResNet18(), shape=CIFAR, classes=10):  # noqa: B008  (a value)
    with borrowed(0, "test", "build"):
        return model.build(shape, classes)


def images(n=2, shape=CIFAR):
    return torch.rand(n, *shape, generator=generator(0, "test", "images"))


@pytest.mark.parametrize("normalisation", ["batch", "group"])
def test_has_as_many_parameters_as_for_cifar(normalisation):
    """11,173,962 = 10*513 + the convolutions, written out, + two for each channel that is normalised."""
    convolutions = 3 * 64 * 9 + 4 * 64 * 64 * 9
    for inputs, outputs in ((64, 128), (128, 256), (256, 512)):
        convolutions += inputs * outputs * (9 + 1) + 3 * outputs * outputs * 9
    normalised = 5 * 64 + 5 * (128 + 256 + 512)
    assert convolutions + 2 * normalised + 5130 == 11_173_962
    module = built(ResNet18(normalisation))
    assert sum(parameter.numel() for parameter in module.parameters()) == 11_173_962
    running = sum(buffer.numel() for name, buffer in module.named_buffers() if "running" in name)
    assert running == (2 * normalised if normalisation == "batch" else 0) == (9_600 if normalisation == "batch" else 0)


def test_resolution_halves_three_times_before_the_mean():
    module, sizes = built(), []
    for layer in module:
        layer.register_forward_hook(lambda layer, _, y: sizes.append(tuple(y.shape[1:])))
    logits = module(images())
    stages = [size for layer, size in zip(module, sizes, strict=True) if isinstance(layer, _Residual)]
    assert stages == [(c, s, s) for c, s in ((64, 32), (128, 16), (256, 8), (512, 4)) for _ in range(2)]
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()


def test_a_block_adds_what_goes_around_it():
    block = next(layer for layer in built(ResNet18("group")) if isinstance(layer, _Residual))
    x = images(2, (64, 4, 4)) - 0.5
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    torch.testing.assert_close(block(x), x.relu())


@pytest.mark.parametrize("normalisation", ["batch", "group"])
def test_gradients_reach_every_parameter(normalisation):
    module = built(ResNet18(normalisation))
    parameters = list(module.parameters())
    loss = cross_entropy(module(images(4)), torch.arange(4))
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(loss, parameters))


@pytest.mark.slow
def test_a_run_wants_to_know_what_becomes_of_running_statistics():
    data = Dataset(images(8, (1, 8, 8)), torch.arange(8) % 2, 2)
    source = InMemory(data, data)

    def plan(model, **options):
        return Run(
            data=source, clients=2, model=model, until=Until(steps=1), training=LocalSGD(batch_size=4), **options
        )

    with pytest.raises(ValueError, match="buffers"):
        simulate(plan(ResNet18()))
    assert simulate(plan(ResNet18(), buffers="average")).summary.status == "finished"
    assert simulate(plan(ResNet18("group"))).summary.status == "finished"


def test_running_statistics_travel_with_the_average():
    module = built(shape=(1, 8, 8), classes=2)
    flat = FlatModule(module, "average")
    assert flat.size - flat.trainable == 9_600
    before = flat.read()
    flat.module(images(4, (1, 8, 8)))
    assert not torch.equal(flat.read()[flat.trainable :], before[flat.trainable :])
    assert torch.equal(flat.read()[: flat.trainable], before[: flat.trainable])


@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [
        ((784,), 10, r"takes images of shape \(channels, height, width\), both sides at least 8 pixels, got \(784,\)"),
        ((3, 7, 32), 10, r"at least 8 pixels, got \(3, 7, 32\)"),
        (CIFAR, 0, "needs at least 1 output"),
    ],
)
def test_refuses_other_examples(shape, classes, message):
    with pytest.raises(ValueError, match=message):
        ResNet18().build(shape, classes)


def test_can_be_chosen_on_a_command_line():
    assert chosen("model", Model, ["--model=ResNet18", "--model.normalisation=group"]) == ResNet18("group")
