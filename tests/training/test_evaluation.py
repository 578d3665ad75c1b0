"""What a model is worth, by hand."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from phalanx import LocalSGD, Record, Run, Until, simulate
from phalanx.algorithms import IFCA, RFFL, FedAvg, Standalone
from phalanx.attacks import AllLabelsTo, LabelFlip
from phalanx.data import NO_LABEL, Dataset, Dirichlet, InMemory, PermutedLabels, Shards
from phalanx.models import (
    MLP,
    CharLSTM,
    CoxCNN,
    LeNet,
    SattlerCifarCNN,
    SattlerCNN,
    SattlerVGG,
    XuLyuCifarCNN,
    XuLyuMnistCNN,
)
from phalanx.rng import stream
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.federation import Federation
from phalanx.training import Classification, FedPer, NextToken, Regression, evaluation
from phalanx.training.evaluation import Evaluation, Score, client_accuracy, evaluate, evaluate_each, metrics_of
from phalanx.training.local import LocalTask
from phalanx.training.sgd import Trainer
from phalanx.training.vector import FlatModule


class Scaled(nn.Module):
    """The example, times a factor, is the logits."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(0.9)

    def forward(self, x):
        return self.factor * self.dropout(x)


ONE = torch.ones(1)
LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 5.0]])
LABELS = torch.tensor([0, 1, 1, 1, 0])  # right, right, wrong, right, wrong; class 2 has no example


def score_of(accuracy, loss=0.0, by_class=(math.nan,)):
    return Score(accuracy, loss, torch.tensor(by_class, dtype=torch.float64))


def test_by_hand():
    score = evaluate(FlatModule(Scaled()), ONE, Dataset(LOGITS, LABELS, 3))
    e = math.exp
    losses = [
        math.log(e(2) + 2) - 2,
        math.log(e(3) + 2) - 3,
        math.log(e(1) + 2),
        math.log(e(1) + 2) - 1,
        math.log(e(5) + 2),
    ]
    assert score.accuracy == pytest.approx(3 / 5)
    assert score.loss == pytest.approx(sum(losses) / 5, rel=1e-6)
    assert score.by_class[:2].tolist() == pytest.approx([1 / 2, 2 / 3])
    assert math.isnan(float(score.by_class[2]))


def test_the_vector_is_what_is_evaluated():
    model, data = FlatModule(Scaled()), Dataset(LOGITS, LABELS, 3)
    negative = evaluate(model, -ONE, data)  # predicts 1, 0, 1, 0, 0: of equal logits the first
    assert negative.by_class[:2].tolist() == pytest.approx([1 / 2, 1 / 3])
    zero = evaluate(model, 0 * ONE, data)
    assert zero.accuracy == 2 / 5
    assert zero.loss == pytest.approx(math.log(3))
    assert evaluate(model, ONE, data).accuracy == 3 / 5


@pytest.mark.parametrize("batch", [1, 2, 4, 5, 6])
def test_batches_fit_together(batch, monkeypatch):
    data, model = Dataset(LOGITS, LABELS, 3), FlatModule(Scaled())
    whole = evaluate(model, ONE, data)
    monkeypatch.setattr(evaluation, "BATCH", batch)
    parts = evaluate(model, ONE, data)
    assert parts.accuracy == whole.accuracy
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert torch.equal(parts.by_class[:2], whole.by_class[:2])


@pytest.mark.parametrize("batch", [1000, 4])
def test_several_models_are_evaluated_as_one_at_a_time(batch, monkeypatch):
    monkeypatch.setattr(evaluation, "BATCH", batch)
    rng = torch.Generator().manual_seed(2)
    data = Dataset(torch.randn(30, 6, generator=rng), torch.randint(3, (30,), generator=rng), 4)
    model = FlatModule(MLP((5,), dropout=0.5).build((6,), 4))
    vectors = [*torch.randn(3, model.size, generator=rng), torch.full((model.size,), math.nan)]
    found = evaluate_each(model, vectors, data)
    assert len({score.loss for score in found}) == 4
    for score, vector in zip(found, vectors, strict=True):
        alone = evaluate(model, vector, data)
        assert repr(score) == repr(alone)
        right = (score.by_class[:3] * data.label_counts()[:3]).sum()
        assert score.accuracy == pytest.approx(float(right) / 30, nan_ok=True)
        assert math.isnan(score.accuracy) == bool(vector.isnan().any())


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (CoxCNN(), (1, 28, 28)),
        (LeNet(), (1, 28, 28)),
        (SattlerCNN(), (1, 28, 28)),
        (SattlerCifarCNN(), (3, 32, 32)),
        (SattlerVGG(), (3, 32, 32)),
        (XuLyuMnistCNN(), (1, 28, 28)),
        (XuLyuCifarCNN(), (3, 32, 32)),
    ],
    ids=repr,
)
def test_images_in_parts_have_the_bits_of_all_together(model, shape, monkeypatch):
    """Also where a part of one or a few examples would be left, whose products torch computes in another order."""
    flat, seen = FlatModule(model.build(shape, 10)), list[int]()
    outputs, vector = flat.outputs, torch.randn(flat.size) / flat.size**0.5
    monkeypatch.setattr(flat, "outputs", lambda x: seen.append(len(x)) or outputs(x))
    for n in (3, 79, 80, 81, 3 * evaluation.PART + 2):
        data = Dataset(torch.randn(n, *shape), torch.randint(10, (n,)), 10)
        evaluate(flat, vector, data)
        seen.clear()
        parts = evaluate(flat, vector, data)
        assert seen == {80: [40, 40], 81: [40, 41], 122: [40, 40, 42]}.get(n, [n])
        with monkeypatch.context() as whole:
            whole.setattr(evaluation, "PART", n)
            together = evaluate(flat, vector, data)
        assert repr(parts.loss) == repr(together.loss)
        assert torch.equal(parts.by_class.nan_to_num(), together.by_class.nan_to_num())


class Conv(nn.Conv2d):
    """A convolution that returns something else than scores of each example by itself."""

    form: Callable[[torch.Tensor], Any]

    def forward(self, x):
        return self.form(super().forward(x).flatten(1))


@pytest.mark.parametrize(
    "form",
    [
        lambda z: {"scores": z},
        torch.mean,
        lambda z: z[:1],
        lambda z: z @ z.T,
        lambda z: z - z.mean(0),
        lambda z: nn.functional.batch_norm(z, None, None, training=True),
    ],
    ids=["dict", "mean", "one", "pairs", "centred", "batch norm"],
)
def test_images_that_do_not_pass_one_by_one_are_evaluated_together(form):
    module, x = Conv(1, 3, 4), torch.randn(100, 1, 4, 4)
    module.form = form
    flat = FlatModule(module)
    for _ in range(2):
        found, wanted = evaluation._outputs(flat, x), flat.outputs(x)
        assert type(found) is type(wanted)
        pairs = zip(*(o.values() if isinstance(o, dict) else [o] for o in (found, wanted)), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    assert flat.separable == {100: False}


def test_a_model_of_nan_passes_in_parts():
    flat, x = FlatModule(LeNet().build((1, 28, 28), 10)), torch.randn(100, 1, 28, 28)
    flat.load(torch.full((flat.size,), math.nan))
    assert evaluation._outputs(flat, x).isnan().all()
    assert flat.separable == {100: True}


def test_no_models_have_no_scores():
    assert evaluate_each(FlatModule(Scaled()), [], Dataset(LOGITS, LABELS, 3)) == []


def test_more_examples_than_a_batch_holds():
    n = evaluation.BATCH + 1
    data = Dataset(torch.eye(2).repeat(n, 1)[:n], torch.zeros(n, dtype=torch.int64), 2)
    score = evaluate(FlatModule(Scaled()), ONE, data)
    assert score.accuracy == pytest.approx((n + 1) // 2 / n)
    assert score.loss == pytest.approx(math.log(1 + math.e) - (n + 1) // 2 / n, rel=1e-6)


def test_outputs_of_nan_are_no_predictions():
    """Also those of one example; the arg max of NaN would be the first class, which 2 of 5 have."""
    some = LOGITS.clone()
    some[3, 1] = 1e30
    for x, scale in ((LOGITS, math.nan), (some, 1e30)):
        score = evaluate(FlatModule(Scaled()), scale * ONE, Dataset(x, LABELS, 3, torch.tensor([0, 0, 1, 1, 1])))
        assert all(map(math.isnan, (score.accuracy, score.loss, *score.by_class.tolist(), *score.by_owner.values())))
        assert score.by_owner.keys() == {0, 1}


INFINITE = LOGITS.clone()
INFINITE[1:4, 0] = -1e30


def test_infinite_outputs_are_no_predictions():
    """Minus infinity and 0 would be right for class 1, with a loss of 0, also where no row has class 0."""
    for rows in ([0, 1, 2, 3], [1, 2, 3], [1]):
        x, y = INFINITE[rows], torch.tensor([0, 1, 1, 1])[rows]
        owned = Dataset(x, y, 3, torch.zeros(len(y), dtype=torch.int64))
        assert evaluate(FlatModule(Scaled()), ONE, owned).accuracy > 0.6
        score = evaluate(FlatModule(Scaled()), 1e30 * ONE, owned)
        assert all(map(math.isnan, (score.accuracy, score.loss, *score.by_class.tolist(), *score.by_owner.values())))
        numbers = evaluate(FlatModule(Scaled()), 1e30 * ONE, Dataset(x, torch.zeros(len(x), 3)), Regression())
        assert math.isnan(numbers.loss)


class Masked(nn.Module):
    """The example is the token at each position, (B, t), or the padding 9, whose logits are minus infinity."""

    def __init__(self, last):
        super().__init__()
        self.factor, self.last = nn.Parameter(torch.ones(1)), last

    def forward(self, x):
        logits = self.factor * nn.functional.one_hot(x.clamp(max=2), 3)
        logits = logits.masked_fill((x == 9)[..., None], -math.inf)
        return logits if self.last else logits.movedim(-1, 1)


@pytest.mark.parametrize("task", [NextToken(), Classification()], ids=str)
def test_infinite_outputs_at_positions_without_a_label_do_not_matter(task):
    x = torch.tensor([[0, 1, 2, 9], [2, 9, 9, 9]])
    model = FlatModule(Masked(isinstance(task, NextToken)))
    y = torch.where(x == 9, NO_LABEL, x)
    assert evaluate(model, ONE, Dataset(x, y, 3), task).accuracy == 1
    y[1, 1] = 0
    score = evaluate(model, ONE, Dataset(x, y, 3), task)
    assert (math.isnan(score.accuracy), math.isnan(score.loss)) == (True, True)


def test_finite_outputs_of_an_infinite_loss_are_predictions():
    """The loss overflows: of 1e38 and -3e38 in float32."""
    score = evaluate(FlatModule(Scaled()), ONE, Dataset(torch.tensor([[3e38, -3e38]]), torch.tensor([1]), 2))
    assert (score.accuracy, score.loss) == (0.0, math.inf)


def test_a_run_whose_outputs_become_infinite_is_recorded(tmp_path):
    """The figures of its steps are null, and those before them are known."""
    data = InMemory(*(Dataset(X[part], (X[part, 0] > 0).long(), 2) for part in (slice(60), slice(60, 90))))
    plan = Run(clients=3, data=data, model=MLP((8,) * 5), training=LocalSGD(lr=1e9, steps=1), until=Until(2))
    simulate(plan, folder=tmp_path / "run")
    steps = [one for one in Record.load(tmp_path / "run").history if one.metrics is not None]
    figures = [(one.metrics.accuracy is None, one.metrics.loss is None) for one in steps]
    assert figures[0] == (False, False)
    assert (True, True) in figures


def test_a_client_whose_model_gives_nan_leaves_the_worst_undefined():
    scores = {0: score_of(0.5, by_class=(0.5,)), 1: score_of(math.nan, math.nan)}
    found = metrics_of(scores, torch.ones(2, 1, dtype=torch.int64), None)
    assert math.isnan(found.worst_client_accuracy)
    assert math.isnan(found.accuracy)
    assert found.client_accuracy == {0: 0.5}


def test_evaluation_draws_nothing_and_drops_nothing():
    before, model = torch.get_rng_state(), FlatModule(Scaled())
    model.module.train()
    scores = [evaluate(model, ONE, Dataset(LOGITS, LABELS, 3)) for _ in range(2)]
    assert scores[0].accuracy == scores[1].accuracy == 3 / 5
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_can_be_trained_after_it_was_evaluated():
    model, data = FlatModule(Scaled()), Dataset(LOGITS, LABELS, 3)
    evaluate(model, ONE, data)
    model.module(data.x).sum().backward()
    assert bool(model.gradient.any())


def test_no_examples_are_an_error():
    empty = Dataset(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), 3)
    with pytest.raises(ValueError, match="no examples to evaluate on"):
        evaluate(FlatModule(Scaled()), ONE, empty)


# --- clients


def own_accuracy(by_class, holdings):
    return client_accuracy(torch.tensor([by_class], dtype=torch.float64), torch.tensor([holdings]))[0]


def one_at_a_time(by_class, holdings):
    """The accuracy under the distribution of one client, by the order of operations that stored histories have."""
    held = (holdings > 0) & ~by_class.isnan()
    shares = holdings[held].double() / holdings[held].sum()
    return float((shares * by_class[held]).sum()) if bool(held.any()) else math.nan


@pytest.mark.parametrize(
    ("holdings", "expected"),
    [([1, 0, 0], 0.5), ([0, 7, 0], 1.0), ([3, 1, 0], 0.625), ([10, 10, 20], 0.475), ([0, 0, 4], 0.2)],
)
def test_client_accuracy_weighs_classes_by_holdings(holdings, expected):
    assert own_accuracy((0.5, 1.0, 0.2), holdings) == pytest.approx(expected)


def test_a_class_that_nobody_can_test_does_not_matter_to_those_without_it():
    assert own_accuracy((0.5, 1.0, math.nan), [1, 1, 0]) == 0.75


def test_client_accuracy_on_the_test_distribution_is_the_accuracy():
    data = Dataset(LOGITS, LABELS, 3)
    score = evaluate(FlatModule(Scaled()), ONE, data)
    assert own_accuracy(score.by_class.tolist(), data.label_counts().tolist()) == pytest.approx(score.accuracy)


@pytest.mark.parametrize("classes", [1, 2, 7, 10, 62, 200])
def test_client_accuracy_of_many_clients_has_the_bits_of_one_at_a_time(classes):
    rng = torch.Generator().manual_seed(classes)
    by_class = torch.rand(50, classes, generator=rng, dtype=torch.float64)
    by_class[:, torch.rand(classes, generator=rng) < 0.1] = math.nan
    holdings = torch.randint(1, 1000, (50, classes), generator=rng)
    holdings *= torch.rand(50, classes, generator=rng) < torch.linspace(0, 1, 50)[:, None]  # from none to all
    found = client_accuracy(by_class, holdings)
    assert repr(found) == repr([one_at_a_time(*row) for row in zip(by_class, holdings, strict=True)])


def test_figures_by_hand():
    scores = {3: score_of(0.8, 1.0, (0.6, 1.0)), 5: score_of(0.4, 3.0, (0.2, 0.6)), 9: score_of(0.3, 5.0, (0.3, 0.3))}
    holdings = torch.ones(10, 2, dtype=torch.int64)
    holdings[[5, 9]] = torch.tensor([[4, 0], [0, 1]])
    found = metrics_of(scores, holdings, None)
    assert found.client_accuracy == pytest.approx({3: 0.8, 5: 0.2, 9: 0.3})
    assert found.received_accuracy == {3: 0.8, 5: 0.4, 9: 0.3}
    assert (found.accuracy, found.loss, found.worst_client_accuracy) == pytest.approx((0.5, 3.0, 0.2))


def test_clients_without_examples_and_classes_without_tests_do_not_count_as_worst():
    nan = float("nan")
    scores = dict.fromkeys(range(3), score_of(0.5, by_class=(0.5, nan)))
    holdings = torch.tensor([[0, 0], [2, 6], [0, 5]])
    found = metrics_of(scores, holdings, None)
    assert found.worst_client_accuracy == 0.5
    assert [math.isnan(a) for a in found.client_accuracy.values()] == [True, False, True]


def test_the_worst_client_may_share_a_good_model():
    score = score_of(0.9, by_class=(1.0, 0.1))
    holdings = torch.tensor([[9 - i, i] for i in range(4)])
    assert metrics_of(dict.fromkeys(range(4), score), holdings, None).worst_client_accuracy == pytest.approx(
        (6 * 1.0 + 3 * 0.1) / 9
    )


@pytest.mark.parametrize("success", [0.0, 0.25, 1.0])
def test_attack_success_is_there_if_there_is_an_attacker(success):
    scores, holdings = {0: score_of(0.5, by_class=(0.5,))}, torch.tensor([[1]])
    assert metrics_of(scores, holdings, success).attack_success == success
    assert metrics_of(scores, holdings, None).attack_success is None


def test_attack_success_is_the_accuracy_on_the_goal():
    """Of the three examples of class 1 one is taken for class 0."""
    goal = AllLabelsTo(0).goal(Dataset(LOGITS, LABELS, 3))
    assert len(goal) == 3
    assert evaluate(FlatModule(Scaled()), ONE, goal).accuracy == pytest.approx(1 / 3)


def test_how_often():
    assert Evaluation().every == 1
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        Evaluation(0)
    with pytest.raises(ValueError, match="local_epochs must be at least 0, got -1"):
        Evaluation(local_epochs=-1)


# --- whole runs, against the plain way

PLAIN = Run(clients=6, model=MLP((16,)), until=Until(3))
RNG = torch.Generator().manual_seed(4)
X = torch.randn(90, 4, generator=RNG)
NUMBERS = InMemory(Dataset(X[:60], X[:60, :2] - 1), Dataset(X[60:], X[60:, :2] - 1))
SIGNS = torch.randint(7, (90, 9), generator=RNG)
SIGNS[::3, 5:] = NO_LABEL
TEXTS = InMemory(*(Dataset(SIGNS[part, :-1].clamp(min=0), SIGNS[part, 1:], 8) for part in (slice(60), slice(60, 90))))
RUNS = {
    "FedAvg": {},
    "RFFL": {"algorithm": RFFL(), "partition": Shards(3)},
    "Standalone": {"algorithm": Standalone(), "partition": Dirichlet(0.1, allow_empty=True), "clients": 12},
    "FedPer": {"training": FedPer(("0.*", "1.*")), "partition": Shards(2)},
    "several models": {"algorithm": IFCA(2), "groups": PermutedLabels(2), "validation": 0.2},
    "a goal": {"algorithm": RFFL(), "attack": LabelFlip(), "byzantine": 2},
    "numbers": {"data": NUMBERS, "task": Regression(), "algorithm": Standalone()},
    "sequences": {"data": TEXTS, "model": CharLSTM(4, 8, 1), "algorithm": Standalone()},
}


def plainly(federation, state, enrolled):
    """The metrics of a state, one client after the other, each with a model, scores and sums of its own."""
    plan, clients = federation.plan, [i for i in federation.honest if i in enrolled]
    chosen = federation.chosen(state, clients)
    scores, success = {}, []
    for i in clients:
        models = plan.algorithm.candidate_models(state, i)
        vector = federation.transport.model_of(i, models[chosen.get(i, [*models][-1])])
        scores[i] = plain_score(federation.model, vector, federation.tests[federation.group[i]], plan.task)
        if (goal := federation.goals[federation.group[i]]) is not None:
            success.append(plain_score(federation.model, vector, goal, plan.task)[0])
    own = {
        i: one_at_a_time(by_class, federation.holdings[i])
        for i, (accuracy, _, by_class) in scores.items()
        if not math.isnan(accuracy)
    }
    return {
        "accuracy": sum(s[0] for s in scores.values()) / len(scores),
        "loss": sum(s[1] for s in scores.values()) / len(scores),
        "received_accuracy": {i: scores[i][0] for i in own},
        "client_accuracy": own,
        "worst_client_accuracy": min((a for a in own.values() if not math.isnan(a)), default=math.nan),
        "attack_success": sum(success) / len(success) if success else None,
        "chosen": chosen,
    }


def plain_score(model, vector, data, task):
    """The accuracy, the loss, and the accuracy on each class."""
    model.load(vector)
    model.module.eval()
    with torch.no_grad():
        outputs = model.module(data.x)
    loss = float(task.total(outputs, data.y)) / int(task.count(data.y))
    if not data.classes:
        return math.nan, loss, torch.empty(0)
    if math.isnan(loss):
        return math.nan, loss, torch.full((data.classes,), math.nan)
    right = (outputs.argmax(1) == data.y) & (data.y != NO_LABEL)
    counts = [torch.bincount(labels, minlength=data.classes).double() for labels in (data.y[right], data.labels)]
    return float(counts[0].sum()) / len(data.labels), loss, counts[0] / counts[1]


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_metrics_of_runs_have_the_bits_of_the_plain_way(changes, monkeypatch):
    evaluate, compared = Federation.evaluate, []

    def checked(self, state, enrolled):
        found = evaluate(self, state, enrolled)
        compared.append((repr(found), repr(msgspec.structs.replace(found, **plainly(self, state, enrolled)))))
        return found

    monkeypatch.setattr(Federation, "evaluate", checked)
    simulate(dataclasses.replace(PLAIN, **changes))
    assert len(compared) == 4
    assert len({found for found, _ in compared}) > 1
    for found, expected in compared:
        assert found == expected


def test_metrics_of_models_of_nan_have_the_bits_of_the_plain_way():
    federation = Federation(dataclasses.replace(PLAIN, partition=Shards(2)))
    state, _ = FedAvg().init(federation.start * math.nan, dict.fromkeys(range(6), 1))
    found = federation.evaluate(state, range(6))
    assert math.isnan(found.loss)
    assert repr(found) == repr(msgspec.structs.replace(found, **plainly(federation, state, range(6))))


# --- models that are trained a little further before they are tested

SMALL = Run(
    clients=4,
    partition=Shards(2),
    model=MLP((16,), dropout=0.2),
    training=LocalSGD(steps=2, momentum=0.5),
    until=Until(4),
    evaluation=Evaluation(every=2),
)
TUNED = dataclasses.replace(SMALL, evaluation=Evaluation(every=2, local_epochs=2))


def test_each_client_is_tested_on_its_model_after_so_many_local_epochs():
    federation = Federation(TUNED)
    state, _ = FedAvg().init(federation.start, dict.fromkeys(range(4), 1))
    state = state._replace(version=7)
    found = federation.evaluate(state, range(4)).received_accuracy
    recipe = dataclasses.replace(TUNED.training, epochs=2, steps=None)
    trainer = Trainer(federation.model, recipe, stream(TUNED.seed, "fine-tuning"))
    for i in range(4):
        change = torch.empty_like(federation.start)
        trainer.train(LocalTask(i, 7, 7, federation.start, change), federation.data[i])
        assert found[i] == evaluate(federation.model, federation.start + change, federation.test).accuracy
    assert len(set(found.values())) > 1
    plain = Federation(SMALL).evaluate(state, range(4)).received_accuracy
    assert len(set(plain.values())) == 1


@pytest.mark.parametrize("algorithm", [FedAvg(), Standalone()], ids=str)
def test_training_goes_on_as_if_nothing_had_been_tuned(algorithm):
    states = []
    for plan in (SMALL, TUNED, dataclasses.replace(TUNED, evaluation=Evaluation(every=1, local_epochs=1))):
        seen = []
        simulate(dataclasses.replace(plan, algorithm=algorithm), observers=[lambda p, seen=seen: seen.append(p)])
        states.append([(p.state.model, p.updates.losses) for p in seen if p.updates is not None])
    for line in zip(*states, strict=True):
        for model, losses in line[1:]:
            assert torch.equal(model, line[0][0])
            assert torch.equal(losses, line[0][1])


def test_a_client_without_examples_keeps_its_model():
    federation = Federation(TUNED)
    empty = federation.data[0].of(torch.zeros(0, dtype=torch.int64))
    assert federation.tuning(federation.start, empty, client=0, version=0) is federation.start


def test_tuned_models_are_measured_the_same_after_a_kill(tmp_path):
    whole = simulate(TUNED)

    def stop(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(TUNED, folder=tmp_path, observers=(stop,), checkpoint=Checkpoint(every_seconds=0))
    resumed = simulate(TUNED, folder=tmp_path, checkpoint=Checkpoint(every_seconds=0))
    assert resumed.history == whole.history
