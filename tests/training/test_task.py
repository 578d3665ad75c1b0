"""Tasks: losses and metrics by hand, and whole runs without classes, with several inputs, and with images of labels."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.attacks import LabelFlip
from phalanx.cli.terminal import results
from phalanx.data import NO_LABEL, Dataset, Dirichlet, InMemory
from phalanx.models import MLP, Model
from phalanx.report.page import render
from phalanx.training import Classification, FlatModule, MultiLabel, NextToken, Regression
from phalanx.training.evaluation import evaluate

RNG = torch.Generator().manual_seed(5)
X = torch.randn(120, 4, generator=RNG)
TARGETS = X @ torch.randn(4, 2, generator=RNG)
OUTPUTS, NUMBERS = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([[0.0, 0.0], [0.5, 0.0]])


@pytest.mark.parametrize(
    ("task", "outputs", "y", "loss", "count"),
    [
        (Regression(), OUTPUTS, NUMBERS, (1 + 0 + 0.25 + 9) / 4, 4),
        (Regression("absolute"), OUTPUTS, NUMBERS, (1 + 0 + 0.5 + 3) / 4, 4),
        (Regression("huber"), OUTPUTS, NUMBERS, (0.5 + 0 + 0.125 + 2.5) / 4, 4),
        (Regression(), torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 1.0], dtype=torch.float64), 2.5, 2),
        (MultiLabel(), torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), math.log(2), 2),
        (MultiLabel(), torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 1.0]]),
         (math.log1p(math.exp(-1)) + math.log1p(math.exp(2))) / 2, 2),
        (Classification(), torch.tensor([[0.0, math.log(3)]]), torch.tensor([1]), math.log(4 / 3), 1),
        (Classification(), torch.zeros(1, 4, 2, 2), torch.tensor([[[0, 3], [NO_LABEL, 1]]]), math.log(4), 3),
        (NextToken(), torch.tensor([[[0.0, math.log(3)], [9.0, 9.0]]]), torch.tensor([[1, NO_LABEL]]),
         math.log(4 / 3), 1),
    ],
)  # fmt: skip
def test_losses_by_hand(task, outputs, y, loss, count):
    assert task.loss(outputs, y).item() == pytest.approx(loss)
    assert task.count(y) == count
    assert task.total(outputs, y).item() == pytest.approx(loss * count)


def linear(targets=2, bias=False):
    return FlatModule(nn.Linear(4, targets, bias=bias))


def test_metrics_of_torchmetrics_over_several_batches(monkeypatch):
    monkeypatch.setattr("phalanx.training.evaluation.BATCH", 50)
    model, data = linear(), Dataset(X, TARGETS)
    score = evaluate(model, model.read(), data, Regression(metrics=("MeanAbsoluteError", "torchmetrics.R2Score")))
    with torch.no_grad():
        off = model.module(X) - TARGETS
    assert score.loss == pytest.approx(off.square().mean().item(), rel=1e-5)
    assert score.extra["MeanAbsoluteError"] == pytest.approx(off.abs().mean().item(), rel=1e-5)
    spread = (TARGETS - TARGETS.mean(0)).square().sum(0)
    assert score.extra["torchmetrics.R2Score"] == pytest.approx(
        (1 - off.square().sum(0) / spread).mean().item(), rel=1e-4
    )
    assert math.isnan(score.accuracy)


def test_f1_is_the_mean_over_classes():
    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.scale * x

    x, y = torch.eye(3)[[0, 0, 1, 0]], torch.tensor([0, 0, 1, 1])
    score = evaluate(FlatModule(Given()), torch.ones(1), Dataset(x, y, 3), Classification(metrics=("F1Score",)))
    # Class 0: precision 2/3, recall 1; class 1: precision 1, recall 1/2; class 2 does not occur.
    assert score.extra["F1Score"] == pytest.approx((0.8 + 2 / 3) / 2)
    assert score.accuracy == 0.75


def test_a_model_of_nan_has_no_metrics_and_ends_nothing():
    model = linear()
    nan = torch.full_like(model.read(), math.nan)
    score = evaluate(model, nan, Dataset(X, (TARGETS > 0).float()), MultiLabel(metrics=("AUROC",)))
    assert math.isnan(score.extra["AUROC"])


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("Nonsense", "torchmetrics has no metric 'Nonsense'"),
        ("os.system", "os.system is no class of metrics"),
        ("functional", "functional is no class of metrics"),
        ("no.such.Metric", "cannot be imported"),
        ("Metric", "'Metric' cannot be made"),
    ],
)
def test_refuses_metrics_that_there_are_not(metric, message):
    with pytest.raises(ValueError, match=message):
        evaluate(linear(), torch.zeros(8), Dataset(X, TARGETS), Regression(metrics=(metric,)))


# --- whole runs


def source(data):
    return InMemory(data.of(torch.arange(90)), data.of(torch.arange(90, 120)))


REGRESSION = Run(
    data=source(Dataset(X, TARGETS)), task=Regression(metrics=("MeanAbsoluteError",)), clients=3, model=MLP(()),
    training=LocalSGD(lr=0.1, batch_size=5), until=Until(10),
)  # fmt: skip


def test_a_regression_has_a_loss_and_no_accuracy(tmp_path):
    record = simulate(REGRESSION, folder=tmp_path)
    first, last = record.history[0].metrics, record.history[-1].metrics
    assert last.loss < 0.01 * first.loss
    assert last.extra["MeanAbsoluteError"] < 0.1 * first.extra["MeanAbsoluteError"]
    assert (last.accuracy, last.worst_client_accuracy) == (None, None)
    assert not last.received_accuracy
    assert not last.client_accuracy
    assert record.summary.final.loss == last.loss
    assert record.summary.clients[0].classes == ()
    assert f"loss {last.loss:.3g} at the end" in render([record], "Regression")
    assert [column.header for column in results([record]).columns][-3:] == ["loss", "MeanAbsoluteError", "time"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": Classification()}, "Classification needs labels of classes"),
        ({"partition": Dirichlet()}, "Dirichlet partitions by label, and each of these examples has targets"),
        ({"attack": LabelFlip(), "byzantine": 1}, "needs examples with labels of classes"),
        ({"task": MultiLabel()}, r"MultiLabel needs targets in 0\.\.1"),
    ],
)
def test_refuses_parts_that_need_classes_before_the_run(changes, message):
    with pytest.raises(ValueError, match=message):
        simulate(replace(REGRESSION, **changes))


def test_refuses_classes_for_a_regression():
    with pytest.raises(ValueError, match="Regression needs targets"):
        simulate(Run(task=Regression()))


def test_several_labels_at_once():
    data = source(Dataset(X, (TARGETS > 0).float()))
    record = simulate(replace(REGRESSION, data=data, task=MultiLabel(metrics=("F1Score", "AUROC"))))
    assert record.history[-1].metrics.extra["AUROC"] > 0.9
    assert record.history[-1].metrics.loss < 0.8 * record.history[0].metrics.loss


class Masked(nn.Module):
    """The sum of the features that a mask lets through, by a linear layer; one score per class and position."""

    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(4, classes)

    def forward(self, *, features, mask):
        return self.linear(features * mask)


@dataclass(frozen=True)
class MaskedModel(Model):
    def build(self, shape, classes):
        assert shape == (4,)
        return Masked(classes)


def test_several_inputs_by_name():
    mask = (torch.rand(120, 4, generator=RNG) < 0.8).float()
    y = ((X * mask) @ torch.tensor([1.0, -1.0, 1.0, 0.5]) > 0).long()
    data = source(Dataset({"mask": mask, "features": X}, y, 2))
    record = simulate(replace(REGRESSION, data=data, task=Classification(), model=MaskedModel(), validation=0.1))
    assert record.summary.final.accuracy > 0.85
    with pytest.raises(ValueError, match="cannot take examples"):
        simulate(replace(REGRESSION, data=data, task=Classification()))


@dataclass(frozen=True)
class Pixelwise(Model):
    def build(self, shape, classes):
        return nn.Conv2d(shape[0], classes, 1)


def test_a_class_for_each_pixel():
    x = torch.randn(120, 1, 3, 3, generator=RNG)
    y = (x[:, 0] > 0).long().masked_fill(torch.rand(120, 3, 3, generator=RNG) < 0.2, NO_LABEL)
    y[:, 0, 0] = (x[:, 0, 0, 0] > 0).long()
    run = replace(REGRESSION, data=source(Dataset(x, y, 2)), task=Classification(), model=Pixelwise())
    record = simulate(run)
    assert record.summary.final.accuracy > 0.9
    assert record.summary.final.perplexity is None


def test_next_token_takes_scores_in_the_last_dimension():
    @dataclass(frozen=True)
    class Tokens(Model):
        def build(self, shape, classes):
            return nn.Embedding(classes, classes)

    x = torch.randint(3, (120, 5), generator=RNG)
    run = replace(REGRESSION, data=source(Dataset(x, (x + 1) % 3, 3)), task=NextToken(), model=Tokens())
    record = simulate(replace(run, training=LocalSGD(lr=2.0, batch_size=5)))
    last = record.history[-1].metrics
    assert last.accuracy == 1.0
    assert last.extra["perplexity"] == pytest.approx(math.exp(last.loss))
    assert last.loss < math.log(3)
