"""Attacks on the training data."""

import pytest
import torch
from federations import rng

from phalanx.attacks import (
    AllLabelsTo,
    Backdoor,
    LabelFlip,
    LabelPermutation,
    LabelShift,
    LabelSwap,
    NoiseInputs,
)
from phalanx.data import Dataset
from phalanx.rng import generator


def data(n=1000, shape=(2,), classes=4):
    draw = generator(5, "data")
    return Dataset(torch.rand(n, *shape, generator=draw), torch.randint(0, classes, (n,), generator=draw), classes)


def labelled(y, classes):
    return Dataset(torch.zeros(len(y), 1), torch.tensor(y), classes)


@pytest.mark.parametrize(
    ("attack", "classes", "y"),
    [
        (AllLabelsTo(2), 4, [2, 2, 2, 2]),
        (LabelFlip(1, 3), 4, [0, 3, 2, 3]),
        (LabelSwap(1, 3), 4, [0, 3, 2, 1]),
        (LabelShift(), 4, [3, 2, 1, 0]),
        (LabelShift(), 10, [9, 8, 7, 6]),
        (LabelShift(), 5, [4, 3, 2, 1]),
    ],
)
def test_labels_by_hand(attack, classes, y):
    honest = labelled([0, 1, 2, 3], classes)
    poisoned = attack.poison(honest, rng())
    assert poisoned.y.tolist() == y
    assert poisoned.x is honest.x
    assert honest.y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("attack", "examples", "y"),
    [
        (AllLabelsTo(2), [0, 1, 3], [2, 2, 2]),
        (LabelFlip(1, 3), [1], [3]),
        (LabelSwap(1, 3), [1, 3], [3, 1]),
    ],
)
def test_goals_by_hand(attack, examples, y):
    test = Dataset(torch.arange(4.0)[:, None], torch.arange(4), 4)
    goal = attack.goal(test)
    assert goal.x.flatten().tolist() == examples
    assert goal.y.tolist() == y


def test_untargeted_attacks_have_no_goal():
    assert LabelShift().goal(data()) is None
    assert LabelPermutation().goal(data()) is None
    assert NoiseInputs().goal(data()) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_permutation_moves_every_label_and_is_shared(seed):
    honest = labelled(list(range(10)), 10)
    poisoned = LabelPermutation(seed).poison(honest, rng(1))
    assert sorted(poisoned.y.tolist()) == list(range(10))
    assert (poisoned.y != honest.y).all()
    assert torch.equal(poisoned.y, LabelPermutation(seed).poison(honest, rng(2)).y), "all attackers agree"
    assert not torch.equal(poisoned.y, LabelPermutation(seed + 5).poison(honest, rng(1)).y)
    assert LabelPermutation(seed).poison(labelled([0, 1, 1], 2), rng()).y.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (AllLabelsTo(4), "target must be one of the 4 classes, 0 to 3, got 4"),
        (LabelFlip(1, 7), "target must be one of the 4 classes"),
        (LabelFlip(7, 1), "source must be one of the 4 classes"),
        (LabelSwap(0, 4), "b must be one of the 4 classes"),
        (Backdoor(target=9), "target must be one of the 4 classes"),
        (Backdoor(target=0, source=9), "source must be one of the 4 classes"),
    ],
)
def test_classes_that_are_not_there(attack, message):
    with pytest.raises(ValueError, match=message):
        attack.poison(data(shape=(1, 8, 8)), rng())
    with pytest.raises(ValueError, match=r"one of the 4 classes|no example"):
        attack.goal(data(shape=(1, 8, 8)))


def test_a_goal_that_no_test_example_is_about():
    with pytest.raises(ValueError, match="no example of the classes of the attack"):
        LabelFlip(3, 1).goal(labelled([0, 1, 2], 4))


def test_noise_inputs_keep_labels_and_cover_the_range():
    honest = data()
    noisy = NoiseInputs().poison(honest, rng())
    assert torch.equal(noisy.y, honest.y)
    assert noisy.x.shape == honest.x.shape
    assert noisy.x.min() < -9
    assert noisy.x.max() > 9
    assert abs(noisy.x.mean()) < 0.5
    assert noisy.x.abs().max() <= 10
    assert torch.equal(noisy.x, NoiseInputs().poison(honest, rng()).x)
    assert not torch.equal(noisy.x, NoiseInputs().poison(honest, rng(1)).x)


# The backdoor


def test_the_trigger_is_four_pixels_in_the_corner():
    black = Dataset(torch.zeros(1, 1, 6, 6), torch.tensor([1]), 2)
    (image,) = Backdoor(target=0, share=1.0).poison(black, rng()).x[0]
    assert image.tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 1, 0, 1, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    coloured = Dataset(torch.zeros(1, 3, 4, 4), torch.tensor([1]), 2)
    x = Backdoor(target=0, share=1.0, value=2.5, margin=0).poison(coloured, rng()).x
    assert (x == 2.5).sum() == 3 * 4
    assert x[0, :, -1, -1].tolist() == [2.5] * 3
    assert black.x.sum() == 0, "the data of others is untouched"


def test_a_share_is_poisoned_and_the_rest_left_alone():
    honest = data(shape=(1, 8, 8))
    poisoned = Backdoor(target=2, share=0.25).poison(honest, rng())
    changed = (poisoned.x != honest.x).flatten(1).any(1)
    others = int((honest.y != 2).sum())
    assert int(changed.sum()) == round(0.25 * others)
    assert (poisoned.y[changed] == 2).all()
    assert (honest.y[changed] != 2).all()
    assert torch.equal(poisoned.y[~changed], honest.y[~changed])
    again = Backdoor(target=2, share=0.25).poison(honest, rng())
    assert torch.equal(poisoned.x, again.x)
    assert not torch.equal(poisoned.x, Backdoor(target=2, share=0.25).poison(honest, rng(1)).x)


def test_a_backdoor_of_one_class():
    honest = data(shape=(1, 8, 8))
    poisoned = Backdoor(target=1, source=3, share=1.0).poison(honest, rng())
    assert torch.equal(poisoned.y == 1, (honest.y == 1) | (honest.y == 3))
    goal = Backdoor(target=1, source=3).goal(honest)
    assert len(goal) == int((honest.y == 3).sum())
    assert goal.y.unique().tolist() == [1]
    assert (goal.x[:, 0, -2, -2] == 1).all()
    nothing = Backdoor(target=1, source=3).poison(labelled_images([0, 1]), rng())
    assert nothing.y.tolist() == [0, 1]


def labelled_images(y):
    return Dataset(torch.zeros(len(y), 1, 8, 8), torch.tensor(y), 4)


@pytest.mark.parametrize("shape", [(64,), (3, 8), (1, 8, 3)])
def test_a_backdoor_needs_images(shape):
    with pytest.raises(ValueError, match="needs images of at least 4 x 4"):
        Backdoor().poison(data(shape=shape), rng())
