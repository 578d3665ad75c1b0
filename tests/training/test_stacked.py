"""Stacked clients against one client at a time, which is the oracle."""

import math
import random

import pytest
import torch
from torch import nn

from phalanx import InfeasibleError, Run, Until, simulate
from phalanx.data import Dataset
from phalanx.models import (
    MLP,
    CausalTransformer,
    CharLSTM,
    CoxCNN,
    KimCNN,
    LeNet,
    ResNet18,
    SattlerCifarCNN,
    SattlerCNN,
    SattlerVGG,
    WordLSTM,
    XuLyuCifarCNN,
    XuLyuMnistCNN,
    resnet,
)
from phalanx.models.parts import Joined, Largest, Sum, Transposed
from phalanx.rng import borrowed
from phalanx.training import LocalSGD, layers, stacked
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
WORDS = 11  # of texts, whose shapes have one dimension


class Branched(nn.Module):
    """A module of a user: two branches that are joined, and one that goes around them."""

    def __init__(self, around):
        super().__init__()
        self.around = around
        self.wide, self.narrow = nn.Conv1d(5, 2, 3, padding=1), nn.Conv1d(5, 3, 1)

    def forward(self, x):
        return torch.cat([self.wide(x), torch.tanh(self.narrow(x))], 1) + self.around(x)

    def as_chain(self):
        return nn.Sequential(Sum(Joined(self.wide, nn.Sequential(self.narrow, nn.Tanh())), self.around))


def classifier(shape, *parts):
    """Return layers that end in scores for 3 classes."""
    body, x = nn.Sequential(*parts, nn.Flatten()), torch.zeros(2, *shape)
    return nn.Sequential(body, nn.Linear(body(x if len(shape) > 1 else x.long()).shape[1], 3))


MODULES = {  # with all recipes, and the shape of their examples
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (2, 3)),
    "perceptron": (lambda: MLP((5, 4), dropout=0.3).build((2, 3), 3), (2, 3)),
    "tanh": (
        lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.ReLU()), nn.Linear(8, 3)),
        (2, 3),
    ),
    "first a layer without parameters": (
        lambda: nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(6, 3)), (2, 3),
    ),
    "images": (
        lambda: classifier(
            (2, 7, 6), nn.Conv2d(2, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout2d(0.4), nn.Conv2d(6, 4, 2), nn.Dropout(0.2), nn.Tanh(),
        ),
        (2, 7, 6),
    ),
    "text": (lambda: KimCNN(vocabulary=WORDS, embedding=5, filters=3, widths=(2, 3)).build((6,), 3), (6,)),
}  # fmt: skip
PARTS = {  # layers with other options, and the shape of their examples
    "linear without bias": (lambda: [nn.Flatten(), nn.Linear(6, 5, bias=False), nn.Sigmoid()], (2, 3)),
    "linear of each row": (lambda: [nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 2, bias=False), nn.GELU()], (2, 4, 3)),
    "activations": (lambda: [nn.Linear(3, 4), nn.ELU(0.7), nn.Linear(4, 4), nn.LeakyReLU(0.2)], (2, 3)),
    "approximate": (lambda: [nn.Linear(3, 4), nn.GELU("tanh"), nn.Identity(), nn.ReLU(inplace=True)], (2, 3)),
    "one channel": (lambda: [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2)], (1, 6, 7)),
    "stride": (lambda: [nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2)), nn.ReLU()], (2, 6, 7)),
    "dilation": (lambda: [nn.Conv2d(2, 3, 2, dilation=(2, 3), bias=False)], (2, 6, 7)),
    "groups": (lambda: [nn.Conv2d(4, 6, 3, groups=2), nn.Tanh(), nn.Conv2d(6, 6, 2, groups=6)], (4, 6, 5)),
    "one pixel": (lambda: [nn.Conv2d(2, 6, 4), nn.GroupNorm(3, 6), nn.ReLU(), nn.Conv2d(6, 4, 1)], (2, 4, 4)),
    "sequence": (
        lambda: [nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), nn.Conv1d(6, 2, 1, bias=False)],
        (4, 9),
    ),
    "pooling": (lambda: [nn.Conv2d(2, 3, 2), nn.MaxPool2d(3, 2, 1, dilation=(1, 2)), nn.Conv2d(3, 2, 1)], (2, 8, 7)),
    "pooling of an odd side": (lambda: [nn.Conv2d(2, 3, 1), nn.MaxPool2d(2, ceil_mode=True)], (2, 5, 5)),
    "mean pooling": (lambda: [nn.Conv2d(2, 3, 2), nn.AvgPool2d(3, (2, 1), 1, count_include_pad=False)], (2, 6, 7)),
    "other mean": (lambda: [nn.Conv2d(2, 3, 2), nn.AvgPool2d((2, 3), divisor_override=5)], (2, 6, 7)),
    "pooled sequence": (
        lambda: [nn.Conv1d(3, 4, 2), nn.MaxPool1d(3, 2, 1), nn.Conv1d(4, 3, 1), nn.AvgPool1d(2, ceil_mode=True)],
        (3, 10),
    ),
    "mean of images": (lambda: [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1))], (2, 5, 6)),
    "mean of sequences": (lambda: [nn.Conv1d(2, 4, 3), nn.AdaptiveAvgPool1d(1)], (2, 6)),
    "channels of sequences": (lambda: [nn.Conv1d(2, 4, 3), nn.Dropout1d(0.5), nn.Conv1d(4, 3, 2)], (2, 6)),
    "dropped pixels": (lambda: [nn.Conv2d(2, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 3, 2), nn.Dropout(0.0)], (2, 5, 6)),
    "layer norm": (lambda: [nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2), nn.LayerNorm((5, 2))], (5, 3)),
    "layer norm first": (lambda: [nn.LayerNorm(6, bias=False), nn.Linear(6, 4), nn.LayerNorm(4)], (2, 6)),
    "layer norm without": (lambda: [nn.Linear(3, 4), nn.LayerNorm(4, elementwise_affine=False, eps=0.1)], (5, 3)),
    "group norm": (lambda: [nn.Conv2d(2, 6, 3), nn.GroupNorm(1, 6), nn.GroupNorm(6, 6, affine=False)], (2, 5, 6)),
    "group norm of rows": (lambda: [nn.Flatten(), nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 4)], (2, 3)),
    "group norm of sequences": (lambda: [nn.Conv1d(2, 6, 3), nn.GroupNorm(3, 6), nn.ReLU()], (2, 7)),
    "instance norm": (
        lambda: [nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3), nn.Conv2d(3, 4, 2), nn.InstanceNorm2d(4, affine=True)],
        (2, 5, 6),
    ),
    "instance norm of sequences": (lambda: [nn.Conv1d(2, 4, 2), nn.InstanceNorm1d(4, affine=True)], (2, 6)),
    "embedding": (lambda: [nn.Embedding(WORDS, 4), nn.Linear(4, 3), nn.Tanh()], (5,)),
    "embedding with padding": (lambda: [nn.Embedding(WORDS, 4, padding_idx=-3), nn.LayerNorm(4)], (5,)),
    "largest": (lambda: [nn.Embedding(WORDS, 3), Transposed(), nn.Conv1d(3, 4, 2), Largest()], (7,)),
    "equal ones": (lambda: [nn.Embedding(WORDS, 3), nn.ReLU(), Transposed(), Largest(), nn.Linear(3, 4)], (30,)),
    "branches": (lambda: [nn.Conv1d(2, 5, 2), Branched(nn.Identity()), nn.ReLU()], (2, 6)),
    "branches first": (lambda: [Branched(nn.Sequential(nn.Conv1d(5, 5, 1), nn.GELU()))], (5, 6)),
    "branches of images": (
        lambda: [Joined(nn.Conv2d(2, 3, 2), nn.Conv2d(2, 1, 2, bias=False)), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1)],
        (2, 5, 6),
    ),
    "branches without parameters": (
        lambda: [nn.Linear(3, 3), Sum(nn.Identity(), nn.Sequential(nn.Tanh(), nn.Dropout(0.3)), nn.Dropout(0.3))],
        (2, 3),
    ),
}  # fmt: skip
LIBRARY = (  # models with a stacked form, and the shape of their examples
    (MLP((30, 20), dropout=0.2, start="glorot"), (1, 8, 8)),
    (LeNet(), (1, 28, 28)),
    (LeNet(), (3, 32, 32)),
    (SattlerCNN(), (1, 28, 28)),
    (SattlerCNN(), (1, 32, 32)),
    (SattlerVGG(), (3, 32, 32)),
    (SattlerCifarCNN(), (3, 32, 32)),
    (XuLyuMnistCNN(), (1, 28, 28)),
    (XuLyuCifarCNN(), (3, 32, 32)),
    (CoxCNN(), (1, 28, 28)),
    (KimCNN(vocabulary=WORDS, embedding=5, filters=4), (9,)),
    (ResNet18(normalisation="group"), (3, 8, 8)),
)


def clients(sizes=SIZES, shape=(2, 3)):
    rng = torch.Generator().manual_seed(5)

    def examples(n):
        if len(shape) == 1:
            return torch.randint(0, WORDS, (n, *shape), generator=rng)
        return torch.randn(n, *shape, generator=rng).double()

    return {i: Dataset(examples(n), torch.randint(0, 3, (n,), generator=rng), 3) for i, n in enumerate(sizes)}


def tasks(model, count, rows, *, apart=False):
    rng, begun = torch.Generator().manual_seed(8), model.read()
    starts = [begun + 0.1 * torch.randn(model.size, generator=rng).double() for _ in range(count)]
    return [LocalTask(i, i % 2, 1 + i % 3, starts[i if apart else 0], rows[i]) for i in range(count)]


def check(module, recipe, data, *, apart=False):
    """Compare stacked clients with one at a time, and one stacked alone; return the changes."""
    model = FlatModule(module.double())
    one, other = (torch.full((len(data), model.size), math.nan).double() for _ in range(2))
    for_one, for_other = (tasks(model, len(data), rows, apart=apart) for rows in (one, other))
    trainer = StackedTrainer(model, recipe, 3, CLASSIFICATION)
    trainer.try_out(data[2])
    losses = trainer.train_together(for_other, data)
    expected = Trainer(model, recipe, 3).train_together(for_one, data)
    most = one.abs().max()
    assert (one - other).abs().max() < 1e-9 * most
    assert losses == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert most > 1e-3, "something is learnt"
    again = torch.zeros(model.size).double()
    trainer.train(for_other[2]._replace(row=again), data[2])
    assert (again - one[2]).abs().max() < 1e-9 * most
    return one


def built(module):
    with borrowed(0, "model"):
        return module()


@pytest.fixture(params=["each", "grouped"])
def calls(request, monkeypatch):
    """Convolutions of each client by itself, as on the CPU; and of all in one call, as on a GPU."""
    if request.param == "grouped":
        monkeypatch.setattr(layers, "separate", lambda _: False)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("name", MODULES)
def test_it_learns_what_one_client_at_a_time_learns(name, recipe, apart):
    module, shape = MODULES[name]
    check(built(module), recipe, clients(shape=shape), apart=apart)


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[5]], ids=["fused", "not fused"])
@pytest.mark.parametrize("name", PARTS)
def test_layers_learn_with_all_their_options(name, recipe):
    parts, shape = PARTS[name]
    check(built(lambda: classifier(shape, *parts())), recipe, clients((5, 0, 6, 1), shape), apart=True)


@pytest.fixture
def narrow(monkeypatch):
    """A ResNet18 of fewer channels."""
    monkeypatch.setattr(resnet, "STAGES", ((32, 1), (32, 2), (64, 2)))


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(("model", "shape"), LIBRARY, ids=repr)
def test_models_of_the_library_learn(model, shape):
    recipe = LocalSGD(batch_size=3, lr=0.02, momentum=0.5, clip_norm=1.0)
    check(built(lambda: model.build(shape, 3)), recipe, clients((4, 0, 2), shape))


def drawn(rnd):
    """Return a random network, and the shape of its examples."""
    shape = rnd.choice([(4, 9, 8), (1, 7, 6), (4, 12), (6,)])
    found, channels = ([nn.Embedding(WORDS, 4), Transposed()], 4) if len(shape) == 1 else ([], shape[0])
    of_images = nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d
    convolution, pooling, mean = of_images if len(shape) == 3 else (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d)
    for _ in range(rnd.randint(1, 3)):
        groups = rnd.choice((1, 1, 2, 4)) if channels % 4 == 0 else 1
        outputs, width, pad, stride = 4 * rnd.randint(1, 3), rnd.randint(1, 3), rnd.randint(1, 2), rnd.choice((1, 1, 2))
        made = convolution(channels, outputs, width, stride, pad, groups=groups, bias=rnd.random() < 0.7)
        after = [
            rnd.choice((nn.ReLU, nn.Tanh, nn.GELU, nn.ELU))(),
            rnd.choice((nn.Identity(), nn.GroupNorm(rnd.choice((1, 2, 4)), outputs), nn.Dropout(0.3))),
            rnd.choice((nn.Identity(), pooling(3, 1, padding=1), mean(2, 1, padding=1))),
        ]
        rnd.shuffle(after)
        around = rnd.choice((None, nn.Sequential(convolution(outputs, outputs, 1), nn.SiLU()), nn.Identity()))
        found += [made, *after, *([] if around is None else [Sum(around, nn.Identity())])]
        channels = outputs
    return classifier(shape, *found), shape


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize("seed", range(15))
def test_networks_drawn_at_random_learn(seed):
    rnd = random.Random(seed)
    with borrowed(seed, "model"):
        module, shape = drawn(rnd)
    recipe = LocalSGD(batch_size=rnd.choice((1, 3, 8)), lr=0.05, momentum=rnd.choice((0.0, 0.5)))
    check(module, recipe, clients((*rnd.choices((1, 2, 7, 9), k=2), 5), shape))


def test_words_that_no_example_has_and_padding_are_not_changed():
    module = classifier((4,), nn.Embedding(100, 3, padding_idx=1))
    changes = check(module, LocalSGD(batch_size=4, lr=0.5), clients(shape=(4,)))
    words = changes[:, :300].view(-1, 100, 3)
    assert not words[:, 1].any()
    assert not words[:, WORDS:].any()
    assert words[2, 2].any()


def test_a_word_beyond_the_vocabulary_is_refused():
    model = FlatModule(classifier((4,), nn.Embedding(5, 3)))
    trainer, few = StackedTrainer(model, LocalSGD(), 0, CLASSIFICATION), clients(shape=(4,))[2]
    with pytest.raises(ValueError, match=r"A number must be in 0\.\.4, got 0 to 10"):
        trainer.train(LocalTask(2, 0, 0, model.read(), model.read()), few)


def test_a_stack_has_no_more_clients_than_there_is_room_for(monkeypatch):
    seen = []
    plain = StackedTrainer._train
    monkeypatch.setattr(
        StackedTrainer, "_train", lambda self, some, held: seen.append(len(some)) or plain(self, some, held)
    )
    module, shape = MODULES["images"]
    check(built(module), RECIPES[0], clients(shape=shape))
    assert seen == [5, 1]
    monkeypatch.setattr(stacked, "MADE", 2 * 4 * 8 * 1015)  # bytes of two minibatches of 4, with 1015 numbers each
    check(built(module), RECIPES[0], clients(shape=shape))
    assert seen[2:] == [2, 2, 1, 1]


def more_than_layers():
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_parameter("more", nn.Parameter(torch.ones(2)))
    return module


def hooked(*, whole):
    module = nn.Sequential(nn.Linear(3, 2))
    (module if whole else module[0]).register_forward_hook(lambda layer, x, y: 2 * y)
    return module


def partly_trained():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    module[0].bias.requires_grad_(requires_grad=False)
    return module


class Doubled(Branched):
    """A subclass with another function than that of `as_chain`."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (nn.Bilinear(2, 2, 2), "Bilinear has no gradient written by hand"),
        (nn.Sequential(nn.Conv3d(2, 2, 2)), "Conv3d has no gradient written by hand"),
        (nn.Sequential(nn.LSTM(2, 2)), "LSTM has no gradient written by hand"),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "batch normalisation depends on all examples"),
        (nn.Sequential(*[nn.Linear(2, 2)] * 2), "or layers that share some"),
        (more_than_layers(), "it has parameters or buffers outside of its layers"),
        (hooked(whole=False), "a Linear has hooks"),
        (hooked(whole=True), "a Sequential has hooks"),
        (partly_trained(), "a Linear has parameters that are not trained"),
        (nn.Sequential(type("Scaled", (nn.Flatten,), {})(), nn.Linear(3, 2)), "Scaled has no gradient"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding="same")), "another padding than zeros"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")), "another padding than zeros"),
        (nn.Sequential(nn.Embedding(3, 2, max_norm=1.0)), "an embedding has a largest norm"),
        (nn.Sequential(nn.Embedding(3, 2, sparse=True)), "an embedding has a largest norm, sparse gradients"),
        (nn.Sequential(nn.Embedding(3, 2, scale_grad_by_freq=True)), "gradients by frequency"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(1.0)), "dropout drops everything"),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten(2)), "a Flatten joins other dimensions"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d((1, 2))), "more than one number of a channel"),
        (nn.Sequential(nn.Conv1d(1, 2, 3), nn.MaxPool1d(2, return_indices=True)), "returns indices"),
        (nn.Sequential(nn.Conv1d(1, 2, 3), nn.InstanceNorm1d(2, track_running_stats=True)), "tracks statistics"),
        (nn.Sequential(nn.Linear(2, 2), Sum(nn.ReLU(inplace=True), nn.Identity())), "changes its inputs in place"),
        (Doubled(nn.Identity()), "Doubled is no chain of layers, and does not say of which it could be made"),
        (CharLSTM().build((9,), 5), "LSTM has no gradient written by hand"),
        (WordLSTM().build((9,), 30), "LSTM has no gradient written by hand"),
        (CausalTransformer().build((9,), 30), "is no chain of layers, and does not say"),
        (ResNet18().build((3, 8, 8), 3), "batch normalisation depends on all examples of a minibatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_stacked_is_refused(module, why):
    with pytest.raises(ValueError, match=f"Clients cannot be stacked: .*{why}.*Set training.stacked to false"):
        StackedTrainer(FlatModule(module, buffers="freeze"), LocalSGD(), 0, CLASSIFICATION)


def test_another_task_is_refused():
    with pytest.raises(ValueError, match="the task has other losses"):
        StackedTrainer(FlatModule(nn.Sequential(nn.Linear(3, 1))), LocalSGD(), 0, Regression())


def test_examples_that_do_not_fit_and_false_chains_are_refused():
    x, y = torch.randn(3, 5, 6), torch.zeros(3, dtype=torch.int64)
    right = nn.Sequential(Branched(nn.Identity()), Largest())
    StackedTrainer(FlatModule(right), LocalSGD(), 0, CLASSIFICATION).try_out(Dataset(x, y, 5))
    halved = type("Halved", (Branched,), {"forward": lambda _, x: x / 2, "as_chain": Branched.as_chain})
    for module, data, why in (
        (nn.Sequential(halved(nn.Identity()), Largest()), Dataset(x, y, 5), "its `as_chain` have other outputs"),
        (right, Dataset({"x": x}, y, 5), "an example is several tensors"),
        (right, Dataset(x, torch.zeros(3, 6, dtype=torch.int64), 5), "an example has several labels"),
        (
            nn.Sequential(nn.MaxPool1d(2), nn.Linear(3, 5)),
            Dataset(x[:, 0], y, 5),
            "a pooling takes minibatches of 3 dimensions, got 2",
        ),
    ):
        trainer = StackedTrainer(FlatModule(module), LocalSGD(), 0, CLASSIFICATION)
        with pytest.raises(InfeasibleError, match=f"{why}.*Set training.stacked to false"):
            trainer.try_out(data)


def check_equal(one, other):
    assert torch.equal(one, other)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("model", [KimCNN(vocabulary=WORDS, embedding=5, filters=4), ResNet18(normalisation="group")])
def test_chains_of_models_have_the_same_parameters_and_outputs(model):
    shape = (9,) if isinstance(model, KimCNN) else (3, 8, 8)
    module, data = built(lambda: model.build(shape, 3)).double().eval(), clients((4,), shape)[0]
    for part in [part for part in module.modules() if hasattr(part, "as_chain")]:
        part.register_forward_hook(
            lambda part, x, y: torch.testing.assert_close(part.as_chain()(*x), y, rtol=0, atol=0)
        )
        assert {*map(id, part.as_chain().parameters())} == {*map(id, part.parameters())}
    module(data.x)


def test_a_run_with_stacked_clients_has_another_identity_and_nearly_the_same_result():
    recipes = LocalSGD(), LocalSGD(stacked=True)
    plans = [Run(clients=15, model=MLP((16,), dropout=0.1), training=recipe, until=Until(4)) for recipe in recipes]
    loop, stacked = (simulate(plan).history[-1].metrics for plan in plans)
    assert plans[0].identity != plans[1].identity
    assert stacked.loss == pytest.approx(loop.loss, rel=1e-4)


# --- a device that is not the processor: torch's "meta", which has shapes only, so that whatever waits for it fails


@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize(("name", "count"), [("perceptron", 2), ("perceptron", 9), ("images", 9), ("text", 9)])
def test_on_another_device_only_the_losses_are_read_once_for_all_clients(name, count, recipe, monkeypatch):
    reads = []
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: reads.append(tensor) or [1.0] * len(tensor))
    monkeypatch.setattr(stacked, "generator", lambda *_, device="cpu": torch.Generator())  # there is none of "meta"
    module, shape = MODULES[name]
    data = clients(range(9, 9 + count), shape)
    for held in data.values():  # in place, since a new one would look at its values
        object.__setattr__(held, "x", (held.x.float() if held.x.is_floating_point() else held.x).to("meta"))
        object.__setattr__(held, "y", held.y.to("meta"))
    with torch.device("meta"):
        model = FlatModule(module(), device="meta")
        work = [LocalTask(i, 0, 1, torch.zeros(model.size), torch.zeros(model.size)) for i in range(count)]
    losses = StackedTrainer(model, recipe, 0, CLASSIFICATION).train_together(work, data)
    assert len(losses) == count
    assert [(read.device.type, len(read)) for read in reads] == [("meta", count)]


class Rows(nn.Module):
    """A network whose chain is what a test says."""

    def __init__(self, chain):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 3))
        self.chain = chain

    def forward(self, x):
        return self.inner(x)

    def as_chain(self):
        return self.chain(self.inner)


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        (list, "`as_chain` of Rows returns no module"),
        (lambda inner: nn.Sequential(inner[0], inner[1], inner[3]), "its chain has other dropout"),
        (lambda inner: nn.Sequential(inner[0], inner[2], inner[3]), "Clients cannot be stacked: "),  # shapes do not fit
    ],
)
def test_chains_that_are_not_the_module_are_refused(chain, why):
    with pytest.raises(ValueError, match=f"{why}.*Set training.stacked to false"):
        StackedTrainer(FlatModule(Rows(chain).double()), LocalSGD(), 0, CLASSIFICATION).try_out(
            clients((4,), (1, 4, 4))[0]
        )


class Added(nn.Module):
    """The sum of a normalisation and a convolution of images."""

    def __init__(self):
        super().__init__()
        self.norm, self.filters = nn.LayerNorm(4), nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x):
        return self.filters(x) + self.norm(x)

    def as_chain(self):
        return Sum(self.filters, self.norm)


DROPPED = {  # networks with group or instance normalisation, linear layers of images, or branches
    "rows": lambda: [nn.GroupNorm(1, 2), nn.Dropout(0.5)],
    "first": lambda: [nn.Dropout(0.5), nn.GroupNorm(1, 2)],
    "convolved": lambda: [nn.GroupNorm(1, 2), nn.Conv2d(2, 3, 2), nn.Dropout(0.5)],
    "instances": lambda: [nn.Conv2d(2, 3, 2), nn.InstanceNorm2d(3), nn.Dropout(0.5)],
    "layers": lambda: [nn.Conv2d(2, 3, 2), nn.LayerNorm(3), nn.Dropout(0.5)],
    "linear": lambda: [nn.Conv2d(2, 3, 2), nn.Linear(3, 4), nn.Dropout(0.5)],
    "sum": lambda: [Added(), nn.Dropout(0.5)],
}


@pytest.mark.parametrize("name", DROPPED)
def test_single_pixels_are_dropped_in_the_order_of_torch_or_refused(name):
    module, held = built(lambda: classifier((2, 4, 4), *DROPPED[name]())), clients((5, 3, 4), (2, 4, 4))
    if name == "sum":
        with pytest.raises(
            ValueError, match="dropout of single pixels draws its numbers in an order that is not known"
        ):
            check(module, RECIPES[0], held)
    else:
        check(module, RECIPES[0], held)


def test_instance_normalisation_of_one_pixel_is_refused():
    module = nn.Sequential(nn.Conv2d(2, 3, 4), nn.InstanceNorm2d(3), nn.Flatten(), nn.Linear(3, 3)).double()
    trainer = StackedTrainer(FlatModule(module), LocalSGD(), 0, CLASSIFICATION)
    start = trainer.model.read()
    with pytest.raises(ValueError, match="needs more than one pixel"):
        trainer.train(LocalTask(0, 0, 0, start, torch.zeros_like(start)), clients((3,), (2, 4, 4))[0])


def test_hooks_of_all_modules_and_examples_of_several_shapes_are_refused():
    model = FlatModule(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double())
    trainer, rows = StackedTrainer(model, LocalSGD(), 0, CLASSIFICATION), torch.zeros(2, model.size).double()
    work, fine = [LocalTask(i, 0, 0, model.read(), row) for i, row in enumerate(rows)], clients((4, 4))
    other = Dataset(fine[1].x.reshape(4, 3, 2), fine[1].y, 3)
    with pytest.raises(ValueError, match=r"one shape and type, got \(2, 3\) in .* and \(3, 2\) in"):
        trainer.train_together(work, {0: fine[0], 1: other})
    hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(ValueError, match="hooks of all modules"):
            trainer.train_together(work, fine)
    finally:
        hook.remove()
