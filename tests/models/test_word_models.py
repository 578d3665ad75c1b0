"""The networks for words: sizes, what they compute, and that they learn."""

import copy
import pickle

import pytest
import torch
from torch.nn.functional import cross_entropy

from commandline import chosen
from phalanx import models
from phalanx.data import Dataset
from phalanx.models import KimCNN, Model, WordLSTM
from phalanx.rng import borrowed, generator
from phalanx.training.local import LocalTask
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule

SMALL_LSTM = WordLSTM(embedding=6, hidden=8)
SMALL_CNN = KimCNN(vocabulary=12, embedding=6, filters=4, widths=(2, 3), dropout=0.0)


def built(model, t=6, classes=7):
    with borrowed(0, "test", "build"):
        return model.build((t,), classes)


def texts(n=4, t=6, words=7):
    return torch.randint(words, (n, t), generator=generator(0, "test", "texts"))


@pytest.mark.parametrize(
    ("model", "t", "classes", "count"),
    [
        # V*100 + 4*256*(100+256+2) + 4*256*(256+256+2) + 257*V
        (WordLSTM(), 128, 23_654, 9_337_406),
        (WordLSTM(), 50, 10_000, 4_462_928),
        (WordLSTM(embedding=64, hidden=128), 50, 2_000, 617_424),
        # V*300 + (3+4+5)*300*100 + 3*100 + 301*classes
        (KimCNN(), 60, 2, 6_360_902),
        (KimCNN(), 60, 5, 6_361_805),
        (KimCNN(filters=128, widths=(3, 3, 3)), 60, 2, 6_346_754),
        (KimCNN(vocabulary=5_000, embedding=50, filters=50), 40, 2, 280_452),
    ],
    ids=repr,
)
def test_has_so_many_parameters(model, t, classes, count):
    module = FlatModule(built(model, t, classes))
    assert module.size == module.trainable == count
    assert module.module.training


@pytest.mark.parametrize("model", [SMALL_LSTM, SMALL_CNN], ids=repr)
def test_is_a_value(model):
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), eval(repr(model), vars(models).copy())):
        assert same == model
        assert hash(same) == hash(model)


# --- next words


def test_next_words_are_scored_at_every_position_by_what_came_before():
    module, x = built(SMALL_LSTM), texts()
    assert module(x).shape == (4, 7, 6)
    changed = x.clone()
    changed[:, 3] = (x[:, 3] + 1) % 7
    differs = (module(changed) - module(x)).abs().amax((0, 1)) > 0
    assert differs.tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_acts_in_training_only(layers):
    module = built(WordLSTM(embedding=6, hidden=8, layers=layers, dropout=0.5))
    without = built(WordLSTM(embedding=6, hidden=8, layers=layers))
    with borrowed(0, "test", "dropout"):
        assert not torch.equal(module(texts()), module(texts()))
        assert torch.equal(module.eval()(texts()), without(texts()))


# --- sentences


def test_a_sentence_is_scored_by_its_strongest_phrases():
    """The layers written out for one sentence: the largest product of a filter with neighbouring words."""
    module = built(SMALL_CNN, classes=3).eval()
    x = torch.tensor([[5, 3, 8, 0, 0, 0]])
    words, found = module.embed.weight[x[0]], []
    for filters in module.filters:
        width = filters.kernel_size[0]
        phrases = torch.stack([words[k : k + width].T for k in range(6 - width + 1)])  # (positions, embedding, width)
        found.append((torch.einsum("pew,few->pf", phrases, filters.weight) + filters.bias).relu().amax(0))
    expected = module.score.weight @ torch.cat(found) + module.score.bias
    torch.testing.assert_close(module(x)[0], expected)


def test_padding_starts_at_zero_and_stays_there():
    module = FlatModule(built(SMALL_CNN, classes=2))
    embed = module.module.embed.weight
    assert not embed[0].any()
    assert 0.2 < embed.abs().max() <= 0.25
    x = texts(32, words=12)
    x[:, 3:] = 0
    start, change = module.read(), torch.empty(module.size)
    recipe = LocalSGD(epochs=3, batch_size=8, weight_decay=0.1)
    Trainer(module, recipe, 0).train(LocalTask(0, 0, 0, start, change), Dataset(x, x[:, 0] % 2, 2))
    assert change.any()
    assert not module.module.embed.weight[0].any()


def test_words_beyond_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match=r"A word must be in 0\.\.11, got 3 to 12\. Set its vocabulary"):
        built(SMALL_CNN)(torch.tensor([[3, 12, 4]]))


def test_learns_which_word_tells_the_class():
    """The class is whether the word 7 occurs, wherever it stands."""
    x = texts(256, t=8, words=12)
    data = Dataset(x, (x == 7).any(1).long(), 2)
    module = FlatModule(built(SMALL_CNN, t=8, classes=2))
    start, change = module.read(), torch.empty(module.size)
    recipe = LocalSGD(epochs=60, batch_size=16, lr=0.5)
    Trainer(module, recipe, 0).train(LocalTask(0, 0, 0, start, change), data)
    module.load(start + change)
    module.module.eval()
    with torch.no_grad():
        assert (module.module(x).argmax(1) == data.y).float().mean() > 0.98


def test_learns_the_next_word():
    """Each word is followed by the next number."""
    x = (torch.arange(64)[:, None] + torch.arange(6)) % 7
    data = Dataset(x, (x + 1) % 7, 7)
    module = FlatModule(built(SMALL_LSTM))
    start, change = module.read(), torch.empty(module.size)
    recipe = LocalSGD(epochs=40, batch_size=8, lr=1.0)
    Trainer(module, recipe, 0).train(LocalTask(0, 0, 0, start, change), data)
    module.load(start + change)
    with torch.no_grad():
        assert cross_entropy(module.module(x), data.y) < 0.1


# --- configuration and errors


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        (["--model=WordLSTM", "--model.hidden=128", "--model.dropout=0.2"], WordLSTM(hidden=128, dropout=0.2)),
        (["--model=KimCNN", "--model.widths=[3,3,3]", "--model.filters=128"], KimCNN(filters=128, widths=(3, 3, 3))),
    ],
)
def test_can_be_chosen_on_a_command_line(arguments, model):
    assert chosen("model", Model, arguments) == model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WordLSTM(hidden=0), "hidden must be at least 1, got 0"),
        (lambda: WordLSTM(dropout=1.0), r"dropout must lie in \[0, 1\), got 1\.0"),
        (lambda: KimCNN(vocabulary=0), "vocabulary must be at least 1, got 0"),
        (lambda: KimCNN(widths=()), r"widths must hold at least 1, got \(\)"),
        (lambda: KimCNN(widths=(3, 0)), r"widths\[1\] must be an integer of at least 1, got 0"),
        (lambda: KimCNN(dropout=-0.1), r"dropout must lie in \[0, 1\), got -0\.1"),
        (
            lambda: KimCNN().build((4,), 2),
            r"needs sentences of at least 5 words, got sentences of 4\. Pad them \(data\.sequence\)",
        ),
        (lambda: KimCNN().build((1, 28, 28), 2), r"takes sequences of words of shape \(t,\), got shape \(1, 28, 28\)"),
        (lambda: KimCNN().build((60,), 0), "needs at least 1 output"),
        (lambda: WordLSTM().build((1, 28, 28), 10), r"takes sequences of words of .* such as WikiText2, or MLP"),
    ],
)
def test_refuses_in_words(make, message):
    with pytest.raises(ValueError, match=message):
        make()
