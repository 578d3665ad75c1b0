"""Examples with a sequence of labels: by hand through training, evaluation and attacks, and in whole runs."""

import dataclasses
import json
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (the name that everyone knows)
from torch import nn

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.attacks import (
    AllLabelsTo,
    Backdoor,
    LabelFlip,
    LabelPermutation,
    LabelShift,
    LabelSwap,
    NoiseInputs,
)
from phalanx.cli.terminal import results
from phalanx.data import NO_LABEL, Dataset, InMemory, Natural, Shards
from phalanx.models import MLP, CharLSTM, TorchModule
from phalanx.report.client_ledger import ClientLedger
from phalanx.report.page_tables import columns, comparison
from phalanx.rng import generator
from phalanx.runs.federation import Federation
from phalanx.training import evaluation
from phalanx.training.evaluation import Evaluation, evaluate
from phalanx.training.local import LocalTask
from phalanx.training.sgd import Trainer
from phalanx.training.vector import FlatModule

N = NO_LABEL


class Table(nn.Module):
    """The scores of the next sign are a column of a table: that of the sign before it."""

    def __init__(self, classes=3):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(classes, classes))  # [next, before]

    def forward(self, x):
        return self.table[:, x].transpose(0, 1)  # (B, classes, t)


def dataset(x, y, classes=3, owners=None):
    return Dataset(torch.tensor(x), torch.tensor(y), classes, owners)


def table(rows):
    return torch.tensor(rows, dtype=torch.float32).flatten()


def trained(data, recipe, start, module=None):
    model = FlatModule(module or Table(data.classes))
    out = torch.full_like(start, torch.nan)
    loss = Trainer(model, recipe, 0).train(LocalTask(0, 0, 0, start, out), data)
    return out, loss


# --- training


def test_one_step_by_hand():
    """From zero every probability is 1/3; three labels, so each pulls its column by (p - one-hot) / 3."""
    data = dataset([[0, 1, 0], [2, 0, 0]], [[1, 1, N], [2, N, N]])
    change, loss = trained(data, LocalSGD(batch_size=2, lr=0.9), torch.zeros(9))
    pull = 0.9 / 3
    expected = -pull * (torch.full((3, 3), 1 / 3) - torch.tensor([[0, 0, 0], [1, 1, 0], [0, 0, 1.0]]))
    torch.testing.assert_close(change, expected.flatten())
    assert loss == pytest.approx(math.log(3))


def test_the_loss_counts_every_label_alike():
    """Minibatches of one example, with one and with three labels, each in a column that the other does not change."""
    data = dataset([[0, 0, 0], [1, 1, 1]], [[1, N, N], [0, 0, 2]])
    start = table([[0, 1, 0], [2, 0, 0], [0, 0, 0]])
    of_0, of_1 = torch.tensor([0.0, 2, 0]).log_softmax(0), torch.tensor([1.0, 0, 0]).log_softmax(0)
    expected = -(of_0[1] + 2 * of_1[0] + of_1[2]) / 4
    _, loss = trained(data, LocalSGD(batch_size=1, lr=0.5), start)
    assert loss == pytest.approx(float(expected), rel=1e-6)


def test_positions_without_a_label_teach_nothing():
    """A longer padding, and other signs under it, leave the same change and the same loss."""
    short = dataset([[0, 1], [2, 0]], [[1, 2], [2, N]])
    long = dataset([[0, 1, 2, 1], [2, 0, 1, 1]], [[1, 2, N, N], [2, N, N, N]])
    start = table([[0.1, 0.2, 0.3], [0.5, 0.1, -0.2], [0, 0.7, 0]])
    recipe = LocalSGD(batch_size=1, epochs=3, momentum=0.5)
    (one, loss), (two, same) = trained(short, recipe, start), trained(long, recipe, start)
    torch.testing.assert_close(one, two)
    assert loss == pytest.approx(same)


def test_sequences_of_one_label_train_like_single_labels():
    class Flat(Table):
        def forward(self, x):
            return super().forward(x).squeeze(2)

    x = torch.randint(3, (11, 1), generator=generator(0, "x"))
    y = torch.randint(3, (11,), generator=generator(0, "y"))
    recipe, start = LocalSGD(epochs=2, batch_size=4, momentum=0.9, weight_decay=0.01), torch.zeros(9)
    one, loss = trained(Dataset(x, y, 3), recipe, start, Flat())
    two, same = trained(Dataset(x, y[:, None], 3), recipe, start)
    torch.testing.assert_close(one, two)
    assert loss == pytest.approx(same)


def test_no_examples_train_nothing():
    data = Dataset(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int64), 3)
    change, loss = trained(data, LocalSGD(), torch.ones(9))
    assert not change.any()
    assert math.isnan(loss)


# --- evaluation

TESTS = dataset([[0, 1, 2], [2, 1, 0]], [[1, 2, 0], [0, 1, N]])
AFTER = table([[0, 0, 3], [2, 0, 0], [0, 1, 0]])  # after 0 comes 1, after 1 comes 2, after 2 comes 0


def test_evaluation_by_hand():
    score = evaluate(FlatModule(Table()), AFTER, TESTS)
    e = math.exp
    losses = [math.log(e(2) + 2) - 2, math.log(e(1) + 2) - 1, math.log(e(3) + 2) - 3]
    losses += [losses[2], math.log(e(1) + 2)]  # 2 -> 0 again; 1 -> 1, which was thought to be 2
    assert score.accuracy == pytest.approx(4 / 5)
    assert score.loss == pytest.approx(sum(losses) / 5, rel=1e-6)
    assert score.by_class.tolist() == pytest.approx([1.0, 1 / 2, 1.0])


def test_the_exponential_of_the_loss_is_the_perplexity():
    """Who knows nothing is as perplexed as by a die with as many sides as there are classes."""
    assert math.exp(evaluate(FlatModule(Table()), torch.zeros(9), TESTS).loss) == pytest.approx(3)


@pytest.mark.parametrize("scores", [1, 9, 10**9])
def test_many_scores_are_computed_in_parts(scores, monkeypatch):
    whole, seen = evaluate(FlatModule(Table()), AFTER, TESTS), []
    monkeypatch.setattr(evaluation, "SCORES", scores)
    model = FlatModule(Table())
    model.module.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    parts = evaluate(model, AFTER, TESTS)
    assert seen == ([2] if scores == 10**9 else [1, 1])
    assert (parts.accuracy, parts.by_class.tolist()) == (whole.accuracy, whole.by_class.tolist())
    assert parts.loss == pytest.approx(whole.loss)


# --- attacks

SIGNS = dataset([[0, 1, 2, 3], [3, 2, 1, 0]], [[1, 2, 3, N], [N, N, 3, 0]], 4)


@pytest.mark.parametrize(
    ("attack", "y"),
    [
        (AllLabelsTo(2), [[2, 2, 2, N], [N, N, 2, 2]]),
        (LabelFlip(1, 3), [[3, 2, 3, N], [N, N, 3, 0]]),
        (LabelSwap(1, 3), [[3, 2, 1, N], [N, N, 1, 0]]),
        (LabelShift(), [[2, 1, 0, N], [N, N, 0, 3]]),
    ],
)
def test_attacks_change_every_label_and_leave_the_rest(attack, y):
    before = SIGNS.y.clone()
    poisoned = attack.poison(SIGNS, generator(0, "poison"))
    assert poisoned.y.tolist() == y
    assert poisoned.x is SIGNS.x
    assert torch.equal(SIGNS.y, before)


def test_a_permutation_renames_every_label():
    poisoned = LabelPermutation().poison(SIGNS, generator(0, "poison"))
    single = LabelPermutation().poison(Dataset(torch.zeros(4), torch.arange(4), 4), generator(0, "poison")).y
    assert torch.equal(poisoned.y == N, SIGNS.y == N)
    assert poisoned.labels.tolist() == [int(single[label]) for label in SIGNS.labels]
    assert (poisoned.labels != SIGNS.labels).all()


@pytest.mark.parametrize(
    ("attack", "examples", "y"),
    [
        (AllLabelsTo(3), [0, 1], [[3, 3, N, N], [N, N, N, 3]]),
        (AllLabelsTo(0), [0, 1], [[0, 0, 0, N], [N, N, 0, N]]),
        (LabelFlip(2, 0), [0], [[N, 0, N, N]]),
        (LabelSwap(0, 3), [0, 1], [[N, N, 0, N], [N, N, 0, 3]]),
    ],
)
def test_goals_are_the_labels_that_the_attack_is_about(attack, examples, y):
    goal = attack.goal(SIGNS)
    assert goal.y.tolist() == y
    assert torch.equal(goal.x, SIGNS.x[examples])


def test_a_goal_that_no_label_is_about():
    with pytest.raises(ValueError, match="no example of the classes of the attack"):
        LabelFlip(1, 2).goal(dataset([[0, 1]], [[0, N]]))


def test_success_is_measured_on_those_labels():
    """Of the labels that are not 0 (three 1s and 2s), the table takes none for 0; all after 2 are 0."""
    assert evaluate(FlatModule(Table()), AFTER, AllLabelsTo(0).goal(TESTS)).accuracy == 0.0
    assert evaluate(FlatModule(Table()), AFTER, LabelFlip(0, 1).goal(TESTS)).accuracy == 0.0
    assert evaluate(FlatModule(Table()), AFTER, LabelFlip(1, 2).goal(TESTS)).accuracy == 1 / 2


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (Backdoor(), "Backdoor needs images with one label each, got sequences of 4 labels"),
        (NoiseInputs(), r"NoiseInputs replaces floating-point inputs, got torch\.int64"),
    ],
)
def test_attacks_on_pictures_say_that_they_are(attack, message):
    with pytest.raises(ValueError, match=message):
        attack.poison(SIGNS, generator(0, "poison"))


# --- whole runs


def counting(n, seed, owners=8, classes=5, t=12):
    """Each sign is followed by the next one, from a random start; the ends of some texts are padding."""
    draw = generator(seed, "counting")
    whole = (torch.randint(classes, (n, 1), generator=draw) + torch.arange(t + 1)) % classes
    x, y = whole[:, :-1].contiguous(), whole[:, 1:].clone()
    y[torch.arange(t) >= torch.randint(3, t + 1, (n, 1), generator=draw)] = N
    return Dataset(x, y, classes, torch.arange(n) % owners)


COUNTING = InMemory(counting(160, 0), counting(40, 1))
PLAN = Run(
    data=COUNTING,
    clients=6,
    partition=Natural(),
    model=CharLSTM(embedding=4, hidden=16, layers=1),
    training=LocalSGD(batch_size=4, lr=1.0, epochs=2),
    until=Until(8),
)


def test_a_federation_learns_what_comes_next():
    record = simulate(PLAN)
    accuracies = [line.accuracy for line in record.history]
    assert accuracies[0] < 0.5
    assert accuracies[-1] > 0.95
    clients = record.summary.clients
    assert [client.size for client in clients.values()] == [20] * 6
    assert all(20 * 3 <= sum(client.classes) <= 20 * 12 for client in clients.values()), "labels, not examples"
    assert simulate(PLAN).history == record.history
    final = record.summary.final
    assert final.perplexity == math.exp(final.loss)
    table = results([record])
    assert "perplexity" in [column.header for column in table.columns]
    assert f"{final.perplexity:.3g}" in list(table.columns[-2].cells)
    told = comparison(ClientLedger(record))
    assert told["perplexity"].text == f"{final.perplexity:.3g}"
    assert "perplexity" in columns([told], "virtual time")


def test_images_have_no_perplexity():
    record = simulate(Run(until=Until(1)))
    assert record.summary.final.perplexity is None
    assert "perplexity" not in [column.header for column in results([record]).columns]
    assert "perplexity" not in columns([comparison(ClientLedger(record))], "virtual time")


def test_a_label_shift_does_harm():
    clean, poisoned = (
        simulate(dataclasses.replace(PLAN, attack=attack, byzantine=byzantine, evaluation=Evaluation(every=8)))
        for attack, byzantine in ((None, 0), (LabelShift(), 4))
    )
    assert poisoned.summary.final.accuracy < clean.summary.final.accuracy - 0.3


def test_holdings_and_sizes_are_of_the_owners_that_were_drawn():
    federation = Federation(PLAN)
    for part, held in zip(federation.parts, federation.holdings, strict=True):
        own = COUNTING.train.of(part)
        assert len(own.owners.unique()) == 1
        assert held.tolist() == own.label_counts().tolist()
    assert json.dumps(federation.transport.reported) == json.dumps(dict.fromkeys(range(6), 20))


class Logits(nn.Module):
    """Zeros of a shape that begins with the batch."""

    def __init__(self, *shape, words=""):
        super().__init__()
        self.shape, self.words = shape, words
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.words or torch.zeros(len(x), *self.shape)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5,), r"must give 5 scores for each of 2 examples at each of 12 positions, so \(2, 5, 12\), gave \(2, 5\)\."),
        ((12, 5), r"so \(2, 5, 12\), gave \(2, 12, 5\)\."),
        ((5, 11), r"gave \(2, 5, 11\)\."),
    ],
)
def test_a_model_without_scores_at_every_position_is_refused(shape, message, monkeypatch):
    monkeypatch.setattr(CharLSTM, "build", lambda self, *_: Logits(*shape))
    with pytest.raises(ValueError, match=message):
        Federation(PLAN)


def test_a_model_with_scores_at_positions_that_have_no_label_is_refused(monkeypatch):
    monkeypatch.setattr(MLP, "build", lambda self, *_: Logits(10, 3))
    with pytest.raises(ValueError, match=r"must give 10 scores for each of 2 examples, gave \(2, 10, 3\)\."):
        Federation(Run())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": MLP()}, r"MLP\(.* cannot take examples of shape \(12,\): .*dtype"),
        (
            {"model": TorchModule("torch.nn.LSTM", {"input_size": 12, "hidden_size": 5})},
            r"cannot take examples of shape \(12,\): RNN",
        ),
        ({"partition": Shards()}, "Shards partitions by label, and each of these examples has a sequence of 12 labels"),
        ({"clients": 9}, "9 clients need as many owners, and these examples have 8"),
        ({"attack": Backdoor(), "byzantine": 1}, "Backdoor needs images"),
    ],
)
def test_what_does_not_go_with_sequences_is_refused_in_words(change, message):
    with pytest.raises(ValueError, match=message):
        simulate(dataclasses.replace(PLAN, **change))


def test_a_model_that_returns_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(CharLSTM, "build", lambda self, *_: Logits(words=("scores", "state")))
    with pytest.raises(ValueError, match="gave a tuple"):
        Federation(PLAN)


def test_signs_that_the_model_does_not_know_are_refused():
    data = Dataset(COUNTING.test.x + 5, COUNTING.test.y, 5)
    with pytest.raises(ValueError, match=r"cannot take examples of shape \(12,\): index out of range"):
        Federation(dataclasses.replace(PLAN, data=InMemory(COUNTING.train, data)))


def test_train_and_test_must_have_labels_of_one_shape():
    one = Dataset(COUNTING.test.x, COUNTING.test.y[:, 0].clamp(min=0), 5)
    with pytest.raises(ValueError, match="shape of labels"):
        InMemory(COUNTING.train, one)


def test_natural_needs_owners():
    bare = InMemory(*(Dataset(part.x, part.y, 5) for part in (COUNTING.train, COUNTING.test)))
    with pytest.raises(ValueError, match="these data have no owners"):
        Federation(dataclasses.replace(PLAN, data=bare))


def test_cross_entropy_is_what_it_is_taken_for():
    """torch leaves out what is -100, of a sum and of a mean: the definition of `NO_LABEL`."""
    logits, y = torch.randn(2, 3, 4, generator=generator(0, "logits")), torch.tensor([[0, 2, N, N], [1, N, N, 1]])
    by_hand = -torch.stack([logits.log_softmax(1)[b, y[b, t], t] for b, t in ((0, 0), (0, 1), (1, 0), (1, 3))])
    torch.testing.assert_close(F.cross_entropy(logits, y), by_hand.mean())
    torch.testing.assert_close(F.cross_entropy(logits, y, reduction="sum"), by_hand.sum())
