"""Chameleon: the contrastive loss by brute force, the two stages, and whole runs."""

import math

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.attacks import AttackTask, Backdoor, Chameleon, Together
from phalanx.attacks.chameleon import contrastive_loss, last_layer
from phalanx.core import InfeasibleError
from phalanx.data import Dataset
from phalanx.models import MLP
from phalanx.rng import borrowed, generator
from phalanx.training import Regression
from phalanx.training.local import LocalTask
from phalanx.training.sgd import Trainer
from phalanx.training.vector import FlatModule

DRAW = generator(7, "data")
INPUTS = torch.rand(40, 5, generator=DRAW)
DATA = Dataset(INPUTS, INPUTS[:, :3].argmax(1), 3)
HEAD = 6 * 3 + 3  # entries of the last layer


def trainer(**recipe):
    with borrowed(0, "model"):
        model = FlatModule(MLP((6,)).build((5,), 3))
    return Trainer(model, LocalSGD(**{"batch_size": 10, "lr": 0.3, **recipe}), 0)


def features(honest, vector, x):
    honest.model.load(vector)
    return honest.model.module[:-1](x)


def test_the_contrastive_loss_by_brute_force():
    z = torch.randn(7, 4, generator=DRAW)
    y, t = torch.tensor([0, 1, 0, 2, 1, 0, 1]), 0.5
    unit, losses = z / z.norm(dim=1, keepdim=True), []
    for i in range(7):
        partners = [p for p in range(7) if p != i and y[p] == y[i]]
        whole = sum(math.exp(float(unit[i] @ unit[a]) / t) for a in range(7) if a != i)
        terms = [math.log(math.exp(float(unit[i] @ unit[p]) / t) / whole) for p in partners]
        losses += [-sum(terms) / len(terms)] if terms else []
    assert len(losses) == 6
    assert float(contrastive_loss(z, y, t)) == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_without_partners_the_loss_and_its_gradient_are_zero():
    for labels in ([2], [0, 1, 2]):
        z = torch.randn(len(labels), 4, requires_grad=True)
        loss = contrastive_loss(z, torch.tensor(labels), 0.1)
        loss.backward()
        assert loss == 0
        assert not z.grad.any()


def test_the_first_stage_draws_features_of_a_class_together_and_the_second_trains_the_last_layer():
    honest = trainer(batch_size=40)
    start = honest.model.read()
    out = torch.empty_like(start)
    job = AttackTask(LocalTask(1, 0, 0, start, out), DATA)
    loss = Chameleon(epochs=40, temperature=0.1).train(job, honest)
    before, after = (contrastive_loss(features(honest, v, DATA.x), DATA.y, 0.1) for v in (start, start + out))
    assert after < before - 0.2
    stages = Chameleon(temperature=0.5).trainer(honest, honest.recipe, job)
    row = torch.empty_like(start)
    with stages._observed():
        stages.first.train(job.task._replace(row=row), DATA)
    assert (row[-HEAD:] == 0).all()
    assert row[:-HEAD].any()
    stages.second.train(job.task._replace(row=row), DATA)
    assert (row[:-HEAD] == 0).all()
    assert row[-HEAD:].any()
    assert math.isfinite(loss)


def test_a_run_has_a_backdoor():
    run = Run(model=MLP((16,)), clients=5, byzantine=2, attack=Together(Backdoor(), Chameleon(2)), until=Until(4))
    record = simulate(run)
    assert record.summary.final.attack_success is not None
    assert record.summary.status == "finished"


def test_models_and_tasks_without_features_are_refused():
    single = Trainer(FlatModule(torch.nn.Linear(5, 3)), LocalSGD(), 0)
    with pytest.raises(InfeasibleError, match="a single layer or another task"):
        Chameleon().check_trainer(single)
    with pytest.raises(InfeasibleError, match="a single layer or another task"):
        Chameleon().check_trainer(Trainer(trainer().model, LocalSGD(), 0, Regression()))
    assert last_layer(trainer().model.module).out_features == 3
    with pytest.raises(ValueError, match="temperature"):
        Chameleon(temperature=0.0)
