import math

import pytest
import torch

from phalanx.attacks import AllLabelsTo, Attack, Gaussian, NoiseInputs, NonFinite, Rescale, SignFlip, Update
from phalanx.data import Dataset
from phalanx.rng import generator

DELTA = torch.tensor([1.0, -2.0, 0.0])
UPDATE = Update(3, 0, torch.zeros(3), DELTA)


def rng(seed=0):
    return generator(seed, "attack")


def data(n=1000):
    draw = generator(5, "data")
    return Dataset(torch.rand(n, 2, generator=draw), torch.randint(0, 4, (n,), generator=draw), 4)


@pytest.mark.parametrize(
    ("attack", "sent"),
    [
        (Attack(), [1.0, -2.0, 0.0]),
        (SignFlip(), [-1.0, 2.0, 0.0]),
        (Rescale(-10.0), [-10.0, 20.0, 0.0]),
        (Rescale(100.0), [100.0, -200.0, 0.0]),
        (NonFinite("inf"), [math.inf] * 3),
    ],
)
def test_what_is_sent_by_hand(attack, sent):
    assert attack.forge(UPDATE, None, rng()).tolist() == sent


def test_nan_sender():
    assert NonFinite().forge(UPDATE, None, rng()).isnan().all()


def test_gaussian_has_the_moments_asked_for_and_its_own_stream():
    update = UPDATE._replace(delta=torch.full((100_000,), 3.0))
    noise = Gaussian(std=2.0).forge(update, None, rng())
    assert abs(noise.mean()) < 0.03
    assert noise.std().item() == pytest.approx(2.0, rel=0.01)
    assert Gaussian(std=2.0, add=True).forge(update, None, rng()).mean().item() == pytest.approx(3.0, abs=0.03)
    assert torch.equal(noise, Gaussian(std=2.0).forge(update, None, rng()))
    assert not torch.equal(noise, Gaussian(std=2.0).forge(update, None, rng(1)))


def test_all_labels_to_one_class_and_its_goal():
    honest = data()
    poisoned = AllLabelsTo(2).poison(honest, rng())
    assert poisoned.y.unique().tolist() == [2]
    assert torch.equal(poisoned.x, honest.x)
    goal = AllLabelsTo(2).goal(honest)
    assert len(goal) == (honest.y != 2).sum()
    assert goal.y.unique().tolist() == [2]
    with pytest.raises(ValueError, match="one of the 4 classes, 0 to 3, got 4"):
        AllLabelsTo(4).poison(honest, rng())


def test_noise_inputs_keep_labels_and_cover_the_range():
    honest = data()
    noisy = NoiseInputs().poison(honest, rng())
    assert torch.equal(noisy.y, honest.y)
    assert noisy.x.shape == honest.x.shape
    assert noisy.x.min() < -9
    assert noisy.x.max() > 9
    assert abs(noisy.x.mean()) < 0.5
    assert noisy.x.abs().max() <= 10


@pytest.mark.parametrize("attack", [Attack(), Gaussian(), SignFlip(), Rescale(), NoiseInputs(), NonFinite()])
def test_attacks_leave_alone_what_they_do_not_attack(attack):
    assert attack.declare(7) == 7
    assert attack.goal(data()) is None
    if not isinstance(attack, NoiseInputs):
        honest = data()
        assert attack.poison(honest, rng()) is honest


@pytest.mark.parametrize(
    "make",
    [
        lambda: Gaussian(std=0),
        lambda: Rescale(math.inf),
        lambda: AllLabelsTo(-1),
        lambda: NoiseInputs(1.0, 1.0),
        lambda: NoiseInputs(0.0, math.inf),
    ],
)
def test_out_of_range(make):
    with pytest.raises(ValueError, match="must be"):
        make()
