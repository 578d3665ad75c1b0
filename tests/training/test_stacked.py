"""Stacked clients against one client at a time, which is the oracle."""

import math

import pytest
import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.data import Dataset
from phalanx.models import MLP
from phalanx.rng import borrowed
from phalanx.training import LocalSGD
from phalanx.training.local import LocalTask
from phalanx.training.sgd import ExponentialLR, Trainer
from phalanx.training.stacked import StackedTrainer
from phalanx.training.task import CLASSIFICATION, Regression
from phalanx.training.vector import FlatModule

SIZES = (7, 0, 20, 1, 20, 13)
RECIPES = (
    LocalSGD(batch_size=4, lr=0.2),
    LocalSGD(batch_size=100),
    LocalSGD(epochs=3, batch_size=0.3, momentum=0.9),
    LocalSGD(steps=7, batch_size=5, weight_decay=0.1),
    LocalSGD(epochs=2, batch_size=6, clip_norm=0.05),
    LocalSGD(epochs=2, batch_size=6, proximal=0.5, momentum=0.5, weight_decay=0.01, clip_norm=0.3),
    LocalSGD(batch_size=4, lr=ExponentialLR(0.5, 0.5)),
)
MODULES = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)),
    "perceptron": lambda: MLP((5, 4), dropout=0.3).build((2, 3), 3),
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.ReLU()), nn.Linear(8, 3)),
    "first a layer without parameters": lambda: nn.Sequential(
        nn.Tanh(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 3)
    ),
}


def clients(sizes=SIZES):
    rng = torch.Generator().manual_seed(5)
    return {
        i: Dataset(torch.randn(n, 2, 3, generator=rng).double(), torch.randint(0, 3, (n,), generator=rng), 3)
        for i, n in enumerate(sizes)
    }


def tasks(size, count, rows, *, apart=False):
    rng = torch.Generator().manual_seed(8)
    starts = [torch.randn(size, generator=rng).double() for _ in range(count)]
    return [LocalTask(i, i % 2, 1 + i % 3, starts[i if apart else 0], rows[i]) for i in range(count)]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("name", MODULES)
def test_it_learns_what_one_client_at_a_time_learns(name, recipe, apart):
    with borrowed(0, "model"):
        model, data = FlatModule(MODULES[name]().double()), clients()
    one, other = (torch.full((len(SIZES), model.size), math.nan).double() for _ in range(2))
    stacked = StackedTrainer(model, recipe, 3, CLASSIFICATION)
    losses = stacked.train_together(tasks(model.size, len(SIZES), other, apart=apart), data)
    alone = Trainer(model, recipe, 3)
    expected = alone.train_together(tasks(model.size, len(SIZES), one, apart=apart), data)
    assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
    assert losses == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert one.abs().max() > 1e-3, "something is learnt"
    again = torch.zeros(model.size).double()
    task = tasks(model.size, len(SIZES), other, apart=apart)[2]
    stacked.train(LocalTask(2, task.turn, task.version, task.start, again), data[2])
    assert torch.allclose(again, one[2], rtol=1e-9, atol=1e-12)


def more_than_layers():
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_parameter("more", nn.Parameter(torch.ones(2)))
    return module


def hooked():
    module = nn.Sequential(nn.Linear(3, 2))
    module[0].register_forward_hook(lambda layer, x, y: 2 * y)
    return module


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), "a Conv2d has no gradient"),
        (nn.Sequential(nn.Linear(3, 2, bias=False)), "a linear layer has no bias"),
        (nn.Bilinear(2, 2, 2), "Bilinear is no chain of layers"),
        (nn.Sequential(*[nn.Linear(2, 2)] * 2), "or layers that share some"),
        (more_than_layers(), "it has parameters or buffers outside of its linear layers"),
        (hooked(), "a Linear has hooks"),
        (nn.Sequential(type("Scaled", (nn.Flatten,), {})(), nn.Linear(3, 2)), "a Scaled has no gradient"),
    ],
)
def test_what_cannot_be_stacked_is_refused(module, why):
    with pytest.raises(ValueError, match=f"{why}.*Set training.stacked to false"):
        StackedTrainer(FlatModule(module), LocalSGD(), 0, CLASSIFICATION)


def test_another_task_is_refused():
    with pytest.raises(ValueError, match="the task has other losses"):
        StackedTrainer(FlatModule(nn.Sequential(nn.Linear(3, 1))), LocalSGD(), 0, Regression())


def test_a_run_with_stacked_clients_has_another_identity_and_nearly_the_same_result():
    recipes = LocalSGD(), LocalSGD(stacked=True)
    plans = [Run(clients=15, model=MLP((16,), dropout=0.1), training=recipe, until=Until(4)) for recipe in recipes]
    loop, stacked = (simulate(plan).history[-1].metrics for plan in plans)
    assert plans[0].identity != plans[1].identity
    assert stacked.loss == pytest.approx(loop.loss, rel=1e-4)


# --- a device that is not the processor: torch's "meta", which has shapes only, so that whatever waits for it fails


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("count", [2, 9])
def test_on_another_device_only_the_losses_are_read_once_for_all_clients(count, recipe, monkeypatch):
    reads = []
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tensor) or [1.0] * len(tensor))
    data = clients(range(9, 9 + count))
    for held in data.values():  # in place, since a new one would look at its values
        object.__setattr__(held, "x", held.x.float().to("meta"))
        object.__setattr__(held, "y", held.y.to("meta"))
    with torch.device("meta"):
        model = FlatModule(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), device="meta")
        work = [LocalTask(i, 0, 1, torch.zeros(model.size), torch.zeros(model.size)) for i in range(count)]
    losses = StackedTrainer(model, recipe, 0, CLASSIFICATION).train_together(work, data)
    assert len(losses) == count
    assert [(read.device.type, len(read)) for read in reads] == [("meta", count)]
