"""DP-SGD: clipping by hand, the noise, the account, whole runs, and the models that it refuses."""

import math
from dataclasses import replace

import pytest
import torch
from opacus.accountants import PRVAccountant
from scipy.stats import kstest, norm
from torch import nn

from flower.federations import KEYS, examples
from phalanx import Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import SCAFFOLD, FedAvg, QFedAvg
from phalanx.attacks import Backdoor, Gaussian, Neurotoxin, Together
from phalanx.core import InfeasibleError
from phalanx.data import Dataset, InMemory
from phalanx.flower import Participant
from phalanx.flower.client import ClientWorker
from phalanx.models import MLP, CausalTransformer, LoRA, ResNet18
from phalanx.rng import borrowed, generator, numpy_generator
from phalanx.runs.accounting import example_epsilon
from phalanx.training import Classification, FedPer, LocalSGD, NextToken, PrivateSGD
from phalanx.training.local import LocalTask
from phalanx.training.sgd import SERVER, Trainer
from phalanx.training.vector import FlatModule
from phalanx.weighting import Truncate

DRAW = generator(3, "data")
DATA = Dataset(torch.rand(30, 5, generator=DRAW), torch.randint(0, 3, (30,), generator=DRAW), 3)
SMALL = Run(model=MLP((8,)), clients=4, until=Until(3), training=PrivateSGD(LocalSGD(batch_size=50, lr=0.5)))


def model():
    with borrowed(0, "model"):
        return FlatModule(MLP((6,)).build((5,), 3))


def trained(training, data=DATA, *, client=1, turn=0, flat=None):
    """The update of one task."""
    flat = flat or model()
    out = torch.empty(flat.size)
    training.trainer(flat, Classification(), 0).train(LocalTask(client, turn, 0, flat.read(), out), data)
    return out


def by_hand(flat, data, clip):
    """The sum of the clipped gradients of the examples."""
    total = torch.zeros(flat.size)
    for x, y in zip(data.tensor.split(1), data.y.split(1), strict=True):
        flat.gradient.zero_()
        nn.functional.cross_entropy(flat.module(x), y).backward()
        total += flat.gradient / max(1.0, float(flat.gradient.norm()) / clip)
    return total


@pytest.mark.parametrize("clip", [0.3, 0.7, 100.0])
def test_a_step_by_hand(clip):
    """Some gradients are longer than the first two bounds; the third clips none."""
    settings = PrivateSGD(LocalSGD(batch_size=12, steps=1, lr=0.5), clip=clip, noise_multiplier=0.0)
    taken = numpy_generator(0, "batches", 1, 0).random(30) < 12 / 30
    assert 0 < taken.sum() != 12
    expected = -0.5 * by_hand(model(), DATA.of(torch.from_numpy(taken).nonzero()[:, 0]), clip) / 12
    assert torch.allclose(trained(settings), expected, atol=1e-6)


def test_all_examples_without_noise_are_gradient_descent_with_its_momentum():
    recipe = LocalSGD(batch_size=30, steps=3, lr=0.3, momentum=0.5, weight_decay=0.1, proximal=0.2)
    settings = PrivateSGD(recipe, clip=1e6, noise_multiplier=0.0)
    assert torch.allclose(trained(settings), trained(recipe), atol=1e-6)


def test_the_noise_is_gaussian_of_the_deviation_that_was_set():
    """Of data without gradients: a step is noise of deviation lr z C / (q n)."""
    flat = FlatModule(nn.Linear(100, 60))
    empty = Dataset(torch.zeros(20, 100), torch.zeros(20, dtype=torch.int64), 60)
    settings = PrivateSGD(LocalSGD(batch_size=4, steps=1, lr=0.5), clip=1e-9, noise_multiplier=3e9)
    out = trained(settings, empty, flat=flat)
    assert kstest(out.numpy() / (0.5 * 3 / 4), "norm").pvalue > 0.01
    assert not torch.equal(out, trained(settings, empty, flat=flat, turn=1))
    assert not torch.equal(out, trained(settings.secretly(), empty, flat=flat))
    secret = [trained(settings.secretly(), empty, flat=flat) for _ in range(2)]
    assert not torch.equal(*secret)


def test_one_example_changes_the_sum_by_the_bound_at_most():
    """However large its inputs are, and also if its gradient is not finite."""
    settings = PrivateSGD(LocalSGD(batch_size=30, steps=1, lr=1.0), clip=0.5, noise_multiplier=0.0)
    before = trained(settings)
    for value in (1e4, 1e38):  # the second gives infinite and undefined numbers on the way
        x = DATA.tensor.clone()
        x[7] = value
        moved = trained(settings, replace(DATA, x=x)) - before
        assert moved.isfinite().all()
        assert 0 < moved.norm() * 30 <= 2 * 0.5 + 1e-5


def test_labels_of_one_example_do_not_scale_the_gradients_of_others():
    """In a mean over the labels of a minibatch they would."""
    tokens = generator(1, "tokens")
    x = torch.randint(0, 7, (2, 4), generator=tokens)
    y = torch.tensor([[1, 2, 3, 4], [5, -100, -100, -100]])
    flat = FlatModule(nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 7)))
    trainer = PrivateSGD(LocalSGD(batch_size=2)).trainer(flat, NextToken(), 0)
    with trainer._hooked():
        _, both = trainer._by_example(x, y)
        _, one = trainer._by_example(x[:1], y[:1])
    for each, alone in zip(both, one, strict=True):
        assert torch.allclose(each[:1], alone, atol=1e-7)


def test_large_minibatches_are_computed_in_parts(monkeypatch):
    settings = PrivateSGD(LocalSGD(batch_size=20, steps=2))
    whole = trained(settings)
    monkeypatch.setattr("phalanx.training.private_sgd.ROOM", 3 * model().size)
    assert torch.allclose(trained(settings), whole, atol=1e-6)


def test_the_account_agrees_with_another_one_and_with_the_published_bound():
    """MNIST in TensorFlow Privacy's tutorial: batches of 250 of 60,000, noise 1.1, 60 epochs: epsilon 3.01 at 1e-5."""
    settings = PrivateSGD(LocalSGD(epochs=60, batch_size=250), noise_multiplier=1.1)
    found = example_epsilon(settings, 60_000, 1)
    other = PRVAccountant()
    other.history = [(1.1, 250 / 60_000, 60 * 240)]
    assert found == pytest.approx(other.get_epsilon(1e-5), rel=0.01)
    assert 2.2 < found < 3.01
    assert example_epsilon(replace(settings, training=LocalSGD(epochs=6, batch_size=250)), 60_000, 10) == found
    assert example_epsilon(settings, 60_000, 0) == 0.0
    assert example_epsilon(replace(settings, noise_multiplier=0.0), 60_000, 1) == math.inf


def test_a_step_of_all_examples_is_a_gaussian_mechanism():
    """Balle and Wang 2018, Theorem 8: its delta at an epsilon."""
    settings = PrivateSGD(LocalSGD(steps=1, batch_size=10), noise_multiplier=2.0, delta=1e-5)
    e, z = example_epsilon(settings, 10, 1), 2.0
    normal = torch.distributions.Normal(torch.tensor(0.0, dtype=torch.float64), 1.0).cdf
    a, b = (float(normal(torch.tensor(s / (2 * z) - e * z, dtype=torch.float64))) for s in (1, -1))
    assert a - math.exp(e) * b == pytest.approx(1e-5, rel=0.05)


def test_little_noise_has_a_coarser_account_in_little_time():
    """In the limit, the privacy loss of a step of all examples is normal, of mean 1 / (2 z^2) and deviation 1 / z."""
    for z in (0.05, 0.01):
        everything = PrivateSGD(LocalSGD(steps=4, batch_size=30), noise_multiplier=z)
        exact = 4 / (2 * z**2) + 2 / z * norm.isf(1e-5)
        assert exact * 0.999 < example_epsilon(everything, 30, 1) < exact * 1.01
    none = PrivateSGD(LocalSGD(steps=1), noise_multiplier=1e-6)
    assert example_epsilon(none, 30, 1) == math.inf
    record = simulate(replace(SMALL, training=none, until=Until(1)))
    assert {client.epsilon for client in record.summary.clients.values()} == {None}


def test_a_run_has_the_epsilon_of_each_honest_client():
    record = simulate(replace(SMALL, attack=Together(Backdoor(), Gaussian()), byzantine=1, algorithm=FedAvg(Median())))
    for client in record.summary.clients.values():
        assert client.epsilon == (None if client.byzantine else example_epsilon(SMALL.training, client.size, 3))
    assert simulate(replace(SMALL, training=LocalSGD())).summary.clients[0].epsilon is None


def test_clients_with_layers_of_their_own_have_an_epsilon():
    record = simulate(replace(SMALL, training=FedPer(("1.*",), SMALL.training), until=Until(1)))
    assert record.summary.clients[0].epsilon > 0


def test_attacks_by_training_and_corrections_work():
    attacked = replace(SMALL, attack=Together(Backdoor(), Neurotoxin()), byzantine=1, algorithm=SCAFFOLD())
    assert simulate(attacked).summary.status == "finished"


def test_the_server_trains_without_noise():
    settings = PrivateSGD(LocalSGD(steps=3))
    assert torch.equal(trained(settings, client=SERVER), trained(settings.training, client=SERVER))


def test_compiled_training_falls_back_and_says_so():
    settings = PrivateSGD(LocalSGD(steps=3, engine="compiled"))
    with pytest.warns(UserWarning, match=r"by Opacus: training.engine \(compiled\) has no effect"):
        assert isinstance(settings.trainer(model(), Classification(), 0), Trainer)


def tried(network, data, task):
    with borrowed(0, "model"):
        flat = FlatModule(network.build(data.shape, task.outputs(data)), "freeze")
    PrivateSGD().trainer(flat, task, 0).try_out(data)


IMAGES = Dataset(torch.rand(3, 3, 8, 8, generator=DRAW), torch.arange(3), 10)
TEXTS = Dataset(torch.randint(0, 9, (3, 3), generator=DRAW), torch.randint(0, 9, (3, 3), generator=DRAW), 9)


@pytest.mark.parametrize(
    ("network", "data", "task", "why"),
    [
        (ResNet18(), IMAGES, Classification(), "BatchNorm .* group normalisation"),
        (CausalTransformer(8, 1, 2), TEXTS, NextToken(), "the gradients of a minibatch .* positions"),
    ],
    ids=["batch norm", "positions"],
)
def test_models_that_combine_examples_are_refused_with_the_remedy(network, data, task, why):
    with pytest.raises(InfeasibleError, match=why):
        tried(network, data, task)


def test_models_that_keep_examples_apart_are_not():
    """Convolutions in memory that is channels last, tied weights' adapters, and inputs of integers."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())

    class Convolutions(MLP):
        def build(self, shape, classes):
            return nn.Sequential(*network, nn.Dropout(0.5), nn.Linear(64, classes))

    tried(Convolutions(), IMAGES, Classification())
    tried(LoRA(CausalTransformer(8, 1, 2), ("query",)), TEXTS, NextToken())


class Sums(nn.Module):
    """A layer whose buffer is the sum of its last minibatch. Opacus checks only layers with parameters for buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(5))

    def forward(self, x):
        if self.training:
            self.seen.copy_(x.sum(0))
        return x


def test_buffers_carry_no_examples_past_the_noise():
    """As they are averaged, or as they change the steps that follow."""
    network = nn.Sequential(Sums(), nn.Linear(5, 3))
    with pytest.raises(InfeasibleError, match=r"no noise to averaged buffers\. Set buffers to freeze"):
        PrivateSGD().trainer(FlatModule(network, "average"), Classification(), 0)
    with pytest.raises(InfeasibleError, match="training changes its buffers, without noise"):
        PrivateSGD().trainer(FlatModule(network, "freeze"), Classification(), 0).try_out(DATA.of(torch.arange(3)))


def test_a_parameter_of_one_number_is_trained():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.scale * x

    flat = FlatModule(nn.Sequential(Scaled(), nn.Linear(5, 3)))
    settings = PrivateSGD(LocalSGD(steps=1, lr=1.0, batch_size=30), clip=0.7, noise_multiplier=0.0)
    expected = -by_hand(flat, DATA, 0.7) / 30
    assert torch.allclose(trained(settings, flat=flat), expected, atol=1e-6)


def test_a_run_refuses_what_cannot_be_kept_private():
    with pytest.raises(InfeasibleError, match="exact loss of each client"):
        replace(SMALL, algorithm=QFedAvg())
    with pytest.raises(ValueError, match="a run could not be repeated"):
        replace(SMALL, training=PrivateSGD(noise="system"))
    with pytest.raises(ValueError, match="the account of PrivateSGD takes the number"):
        replace(SMALL, train_truncated=True, algorithm=FedAvg(preprocess=Truncate(0.1, 0.4)))
    with pytest.raises(ValueError, match=r"leave training\.clip_norm out"):
        PrivateSGD(LocalSGD(clip_norm=1.0))
    data = InMemory(IMAGES, IMAGES)
    with pytest.raises(InfeasibleError, match="BatchNorm"):
        simulate(replace(SMALL, data=data, model=ResNet18(), buffers="freeze", clients=1))


@pytest.mark.parametrize("bad", [{"clip": 0.0}, {"noise_multiplier": -1.0}, {"delta": 1.0}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        PrivateSGD(**bad)


def test_a_participant_takes_noise_that_nobody_can_compute():
    settings = PrivateSGD(LocalSGD(steps=1))
    participant = Participant(FedAvg(), nn.Linear(5, 2), settings, examples(4, 0), KEYS[0])
    assert participant.hides
    assert ClientWorker(participant).trainer.privacy.noise == "system"
    assert ClientWorker(replace(participant, noise="stream")).trainer.privacy.noise == "stream"
    with pytest.raises(InfeasibleError, match="reveals what the noise of Private or PrivateSGD hides"):
        replace(participant, held_out=examples(4, 0))
