import copy
import pickle
import sys
from pathlib import Path

import jaxtyping
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

from commandline import chosen
from exported import lacking
from phalanx import models
from phalanx.models import (
    MLP,
    CausalTransformer,
    CharLSTM,
    CoxCNN,
    GivenModule,
    KimCNN,
    LeNet,
    LoRA,
    Model,
    PartlyTrained,
    ResNet18,
    SattlerCifarCNN,
    SattlerCNN,
    SattlerVGG,
    TorchModule,
    WordLSTM,
    XuLyuCifarCNN,
    XuLyuMnistCNN,
)
from phalanx.models.model import relu_and_pool
from phalanx.rng import borrowed, generator

Shape = tuple[int, ...]

MNIST, PADDED, CIFAR = (1, 28, 28), (1, 32, 32), (3, 32, 32)

# Counts that are printed in the papers, or follow from the sizes in their authors' code.
PUBLISHED: list[tuple[Model, Shape, int, int]] = [
    (MLP(), MNIST, 10, 50_890),
    (MLP((64,), dropout=0.2), MNIST, 10, 50_890),
    (MLP((64,)), (784,), 10, 50_890),
    (MLP((128, 64)), PADDED, 10, 140_106),
    (MLP(()), MNIST, 10, 7_850),
    (LeNet(), MNIST, 62, 18_506),
    (LeNet(), MNIST, 10, 5_142),
    (LeNet(), CIFAR, 10, 6_882),
    (SattlerCNN(), MNIST, 10, 234_090),
    (SattlerCNN(), PADDED, 10, 234_090),
    (SattlerVGG(), CIFAR, 10, 865_482),
    (SattlerCifarCNN(), CIFAR, 10, 188_810),  # 3*32*9+32 + 32*64*9+64 + 64*64*9+64 + 1024*128+128 + 128*10+10
    (XuLyuMnistCNN(), MNIST, 10, 104_242),
    (XuLyuMnistCNN(), PADDED, 10, 104_242),
    (XuLyuCifarCNN(), CIFAR, 10, 122_570),
    (CoxCNN(), MNIST, 10, 21_840),
]
ELSEWHERE = {CausalTransformer, CharLSTM, KimCNN, ResNet18, WordLSTM}  # of words, or with buffers
WITHIN = {GivenModule, LoRA, PartlyTrained, TorchModule}  # their parameters are those of another network
KNOWN = {type(model) for model, *_ in PUBLISHED}
ALL = [*(model for model, *_ in PUBLISHED), *(make(6, 0) for _, make in lacking(Model, KNOWN))]

every_model = pytest.mark.parametrize(("model", "shape", "classes", "count"), PUBLISHED, ids=str)


def built(model: Model, shape: Shape, classes: int = 10) -> nn.Module:
    with borrowed(0, "test", "build"):
        return model.build(shape, classes)


def batch(size: int, shape: Shape) -> torch.Tensor:
    return torch.randn(size, *shape, generator=generator(0, "test", "batch"))


@every_model
def test_has_as_many_parameters_as_the_paper_says(model: Model, shape: Shape, classes: int, count: int) -> None:
    assert sum(parameter.numel() for parameter in built(model, shape, classes).parameters()) == count


def test_every_model_has_a_count() -> None:
    assert [kind for kind, _ in lacking(Model, KNOWN | ELSEWHERE | WITHIN)] == []


@every_model
def test_maps_a_batch_to_finite_logits_of_either_sign(model: Model, shape: Shape, classes: int, count: int) -> None:
    logits = built(model, shape, classes)(batch(2, shape))
    assert logits.shape == (2, classes)
    assert logits.isfinite().all()
    assert (logits < 0).any()  # neither a ReLU nor a softmax at the end
    assert (logits > 0).any()


@every_model
def test_gradients_reach_every_parameter(model: Model, shape: Shape, classes: int, count: int) -> None:
    module = built(model, shape, classes).eval()
    names, parameters = zip(*module.named_parameters(), strict=True)
    loss = cross_entropy(module(batch(16, shape)), torch.arange(16) % classes)
    for name, gradient in zip(names, torch.autograd.grad(loss, parameters), strict=True):
        assert gradient.isfinite().all(), name
        assert gradient.abs().sum() > 0, name


@every_model
def test_has_no_buffers_and_starts_in_training_mode(model: Model, shape: Shape, classes: int, count: int) -> None:
    module = built(model, shape, classes)
    assert list(module.buffers()) == []
    assert module.training


@every_model
def test_a_borrowed_stream_decides_the_start(model: Model, shape: Shape, classes: int, count: int) -> None:
    one, two = built(model, shape, classes), built(model, shape, classes)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a is not b


@pytest.mark.parametrize("model", ALL, ids=str)
def test_is_a_value(model: Model) -> None:
    written = [] if isinstance(model, GivenModule) else [eval(repr(model), vars(models).copy())]  # it holds a module
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), *written):
        assert same == model
        assert hash(same) == hash(model)


def test_values_differ_where_fields_do() -> None:
    assert len({MLP(), MLP((64,)), MLP((32,)), MLP(dropout=0.2), LeNet(), CoxCNN(), CoxCNN(dropout=0.1)}) == 6
    assert repr(MLP((128, 64), 0.2)) == "MLP(hidden=(128, 64), dropout=0.2, start='torch')"
    with pytest.raises(AttributeError, match="cannot assign"):
        MLP().dropout = 0.5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "model"),
    [
        (["--model=LeNet"], LeNet()),
        (["--model=MLP", "--model.hidden=[128,64]", "--model.dropout=0.2"], MLP((128, 64), 0.2)),
        (["--model=CoxCNN", "--model.channel_dropout=0"], CoxCNN(channel_dropout=0.0)),
        (
            ["--model=TorchModule", "--model.path=torch.nn.Linear", "--model.arguments={in_features: 4}"],
            TorchModule("torch.nn.Linear", {"in_features": 4}),
        ),
    ],
)
def test_can_be_chosen_on_a_command_line(arguments: list[str], model: Model) -> None:
    assert chosen("model", Model, arguments) == model


def test_everything_public_is_a_model_and_documented() -> None:
    for name in models.__all__:
        value = getattr(models, name)
        assert issubclass(value, Model)
        assert value.__doc__
        assert not value.__doc__.startswith(f"{name}(")  # not dataclass's own


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (MLP(), (), r"MLP\(.*\) takes examples with at least one feature, got shape \(\)\. Check the data"),
        (MLP(), (1, 0, 28), r"at least one feature, got shape \(1, 0, 28\)"),
        (LeNet(), (784,), r"LeNet\(\) takes images .* at least 16 pixels, got \(784,\)\. Resize or pad"),
        (LeNet(), (1, 28, 15), r"at least 16 pixels, got \(1, 28, 15\)"),
        (SattlerCNN(), CIFAR, r"SattlerCNN\(\) takes .* \(1, 28, 28\) or \(1, 32, 32\), got \(3, 32, 32\)\. Resize"),
        (SattlerCNN(), (1, 30, 30), r"got \(1, 30, 30\)"),
        (SattlerCNN(), (28, 28), r"got \(28, 28\)"),
        (SattlerVGG(), MNIST, r"SattlerVGG\(\) takes examples of shape \(3, 32, 32\), got \(1, 28, 28\)"),
        (XuLyuMnistCNN(), CIFAR, r"shape \(1, 28, 28\) or \(1, 32, 32\), got \(3, 32, 32\)"),
        (XuLyuCifarCNN(), MNIST, r"shape \(3, 32, 32\), got \(1, 28, 28\)"),
        (CoxCNN(), PADDED, r"shape \(1, 28, 28\), got \(1, 32, 32\)"),
    ],
    ids=str,
)
def test_refuses_examples_of_another_shape(model: Model, shape: Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.build(shape, 10)


@every_model
def test_refuses_to_have_no_output(model: Model, shape: Shape, classes: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"needs at least 1 output, got 0\. Check the labels"):
        model.build(shape, 0)


def test_refuses_widths_and_rates_that_make_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"hidden\[1\] must be an integer of at least 1, got 0"):
        MLP((64, 0))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as in a user's program
    with pytest.raises(TypeError, match=r"hidden must be a sequence such as \(64,\), .* at least 1, got 64 \(int\)"):
        MLP(64)  # type: ignore[arg-type]
    for rate in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match=rf"^dropout must lie in \[0, 1\), got {rate}"):
            MLP(dropout=rate)
        with pytest.raises(ValueError, match=rf"^dropout must lie in \[0, 1\), got {rate}"):
            CoxCNN(dropout=rate)
        with pytest.raises(ValueError, match=rf"^channel_dropout must lie in \[0, 1\), got {rate}"):
            CoxCNN(channel_dropout=rate)


@pytest.mark.parametrize("shape", [(1, 16, 16), (2, 16, 40), (3, 17, 19)], ids=str)
def test_lenet_fits_its_last_layer_to_the_image(shape: Shape) -> None:
    assert built(LeNet(), shape)(batch(2, shape)).shape == (2, 10)


@pytest.mark.parametrize("model", [SattlerCNN(), XuLyuMnistCNN()], ids=str)
def test_small_images_are_padded_with_two_zeros_on_every_side(model: Model) -> None:
    small, large = built(model, MNIST), built(model, PADDED)
    large.load_state_dict(small.state_dict())
    images = batch(4, MNIST)
    torch.testing.assert_close(small(images), large(pad(images, (2, 2, 2, 2))))


@pytest.mark.parametrize(
    ("model", "bare"),
    [
        (MLP((64, 32), dropout=0.5), MLP((64, 32))),
        (CoxCNN(), CoxCNN(dropout=0.0, channel_dropout=0.0)),
        (CoxCNN(channel_dropout=0.0), CoxCNN(dropout=0.0, channel_dropout=0.0)),
        (CoxCNN(dropout=0.0), CoxCNN(dropout=0.0, channel_dropout=0.0)),
    ],
    ids=str,
)
def test_dropout_acts_in_training_only(model: Model, bare: Model) -> None:
    module, without = built(model, MNIST), built(bare, MNIST)  # the same stream, so the same parameters
    images = batch(8, MNIST)
    with borrowed(0, "test", "dropout"):
        assert not torch.equal(module(images), module(images))
        assert torch.equal(without(images), without(images))
        assert torch.equal(module.eval()(images), without(images))


def test_channel_dropout_drops_whole_channels() -> None:
    module = built(CoxCNN(dropout=0.0, channel_dropout=0.5), MNIST)
    assert isinstance(module, nn.Sequential)
    with borrowed(0, "test", "dropout"):
        dropped = module[:5](batch(8, MNIST)) == 0
    assert torch.equal(dropped.any((2, 3)), dropped.all((2, 3)))
    assert 0 < dropped.all((2, 3)).sum() < 8 * 20


def test_activations_are_those_of_the_papers() -> None:
    def kinds(model: Model, shape: Shape) -> str:
        return " ".join(type(layer).__name__ for layer in built(model, shape).children())

    assert kinds(MLP((8, 8), 0.2), MNIST) == "Flatten Linear ReLU Dropout Linear ReLU Dropout Linear"
    assert kinds(MLP(()), MNIST) == "Flatten Linear"
    assert kinds(LeNet(), MNIST) == "Conv2d MaxPool2d ReLU Conv2d MaxPool2d ReLU Flatten Linear"
    assert kinds(XuLyuMnistCNN(), MNIST) == "Conv2d Tanh MaxPool2d Conv2d Tanh MaxPool2d Flatten Linear Tanh Linear"
    vgg = kinds(SattlerVGG(), CIFAR)
    assert (vgg.count("Conv2d"), vgg.count("MaxPool2d"), vgg.count("Linear"), vgg.count("ReLU")) == (8, 5, 3, 10)
    assert vgg.endswith("MaxPool2d ReLU Flatten Linear ReLU Linear ReLU Linear")
    assert kinds(SattlerCifarCNN(), CIFAR) == "Conv2d MaxPool2d ReLU " * 3 + "Flatten Linear ReLU Linear"


def test_torch_module_builds_what_the_path_names() -> None:
    module = TorchModule("torch.nn.Linear", {"in_features": 4, "out_features": 3}).build((4,), 3)
    assert isinstance(module, nn.Linear)
    assert module(batch(2, (4,))).shape == (2, 3)


def test_torch_module_calls_functions_of_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from torch import nn\n\ndef small(width=2) -> nn.Module:\n    layers = nn.Flatten(), nn.Linear(4, width)\n"
    )
    source += "    return nn.Sequential(*layers)\n"
    (tmp_path / "phalanx_test_networks.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "phalanx_test_networks", raising=False)
    assert TorchModule("phalanx_test_networks.small").build((4,), 2)(batch(2, (4,))).shape == (2, 2)
    assert TorchModule("phalanx_test_networks.small", {"width": 5}).build((4,), 5)(batch(2, (4,))).shape == (2, 5)


def test_torch_module_is_a_value() -> None:
    one, two = (TorchModule("torch.nn.Linear", {"in_features": 4, "out_features": [3]}) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != TorchModule("torch.nn.Linear")
    assert TorchModule("torch.nn.ReLU") != TorchModule("torch.nn.Tanh")
    assert repr(one) == "TorchModule(path='torch.nn.Linear', arguments={'in_features': 4, 'out_features': [3]})"
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize("path", ["", "Linear", ".nn.Linear", "torch..Linear", "torch.nn.", "torch/nn.Linear"])
def test_torch_module_refuses_what_is_no_import_path(path: str) -> None:
    with pytest.raises(ValueError, match=r"path must have the form package\.module\.name, like torch\.nn\.Linear, got"):
        TorchModule(path)


RUN = {"body": {"_code": "def forward(self): ..."}, "import_block": "raise SystemExit\n"}  # torch runs these texts


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TorchModule("no_such_package.Net"), r"from no_such_package\.Net: No module named 'no_such_package'.*install"),
        (TorchModule("torch.nn.Liner"), r"Nothing can be imported from torch\.nn\.Liner: .*no attribute 'Liner'"),
        (
            TorchModule("torch.nn.modules"),
            r"torch\.nn\.modules must be a subclass of .*, got a module\.",
        ),
        (TorchModule("os.system"), r"os\.system must be a subclass .*a function that is annotated.*got a builtin"),
        (TorchModule("torch.nn.init.zeros_"), r"or a function that is annotated to return one, got a function\."),
        (TorchModule("torch.fx.graph_module.reduce_graph_module", RUN), r"annotated to return one, got a function\."),
        (TorchModule("torch.nn.Linear"), r"does not take the arguments \{\}: TypeError: .*in_features"),
        (TorchModule("torch.nn.Linear", {"width": 3}), r"does not take the arguments \{'width': 3\}: TypeError"),
        (TorchModule("torch.nn.Linear", {"in_features": -1, "out_features": 3}), r"RuntimeError: .*negative"),
        (TorchModule("collections.OrderedDict"), r"must be a subclass of torch\.nn\.Module.*, got OrderedDict\."),
        (TorchModule("torch.nn.LazyLinear", {"out_features": 3}), r"got lazy parameters \['weight', 'bias'\]\. Give"),
    ],
    ids=str,
)
def test_torch_module_says_what_is_wrong(model: TorchModule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.build((4,), 3)


def test_pooling_before_relu_is_pooling_after_it():
    """To the bit, values and gradients; with entries that tie, at zero and above, and blocks without a positive one."""
    images = torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(3)).mul(2).round().div(2)
    weights = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(4))
    found = []
    for layers in (relu_and_pool(), (nn.ReLU(), nn.MaxPool2d(2))):
        x = images.clone().requires_grad_()
        out = nn.Sequential(*layers)(x)
        (out * weights).sum().backward()
        found.append((out.detach(), x.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert int((found[0][1] != 0).sum()) > 100
