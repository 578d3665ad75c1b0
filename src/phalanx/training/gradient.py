"""The gradient of a minibatch: by autograd, or for a chain of common layers by the same kernels without a graph.

Autograd's graph and its thread cost more than the arithmetic of a small network.  For a chain of linear layers,
convolutions, 2x2 pooling, ReLU, tanh, dropout and `Flatten` this calls the kernels that autograd calls, on tensors of
the same shape and layout, so that the bits are the same.  Pooling alone has kernels of its own, which take half of the
time and choose the same pixels.  The bits are compared at the first minibatch of each size; if they differ, autograd
goes on.  It also does while torch has hooks of all modules, which the kernels would not call.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from typing_extensions import override

from phalanx.data.dataset import Inputs
from phalanx.training import pooling_kernels as kernels
from phalanx.training.network import NoChainError, layers_of
from phalanx.training.task import Classification, Task
from phalanx.training.vector import FlatModule

KINDS = (torch.float32, torch.float64)  # of the kernels
MEAN, NO_CLASS = 1, -100  # torch's numbers of the reduction "mean", and of the class that its losses ignore
aten = torch.ops.aten


class Gradient:
    """A function that writes the gradient of the mean loss of a minibatch to `model.gradient`.

    Args:
        model: the module, bound to its vector.
        task: the task, which defines the loss.
        half: whether products are computed in bfloat16, where torch's autocast does so.
    """

    def __init__(self, model: FlatModule, task: Task, *, half: bool = False) -> None:
        self.model, self.task, self._half = model, task, half
        if half and model.dtype != torch.float32:
            raise ValueError(f"The model is in {model.dtype}, and precision bfloat16 is for models in torch.float32.")
        plain = not half and type(task) is Classification and model.device.type == "cpu" and model.dtype in KINDS
        self._layers = kernels_of(model.module) if plain else None
        trained = [number for number, layer in enumerate(self._layers or ()) if isinstance(layer, Linear | Convolution)]
        self._first = min(trained, default=0)  # no gradient before it
        self._compared = set[int]()  # sizes of minibatches
        self._one = torch.ones((), dtype=model.dtype, device=model.device)

    @property
    def plain(self) -> bool:
        """Whether the module draws no random numbers, and is the same in training and evaluation."""
        return self._layers is not None and not any(isinstance(layer, Dropout) for layer in self._layers)

    @property
    def chain(self) -> bool:
        """Whether the module is a chain of common layers."""
        return self._layers is not None

    def __call__(self, x: Inputs, y: Tensor) -> Tensor:
        """Write the gradient, and return the mean loss."""
        layers = None if _has_any_global_hook() else self._layers  # type: ignore[no-untyped-call]
        if layers is not None and len(y) in self._compared:
            self.model.gradient.zero_()
            return self._add(layers, x, y)
        before = None if layers is None or self.plain else torch.get_rng_state()
        with torch.autocast(self.model.device.type, torch.bfloat16) if self._half else nullcontext():
            loss = self.task.loss(self.model.outputs(x), y)
        self.model.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if layers is not None:
            after = torch.get_rng_state()
            if before is not None:  # the same dropout
                torch.set_rng_state(before)
            self._compare(layers, x, y, loss.detach())
            torch.set_rng_state(after)  # where autograd left it, whatever the kernels drew
        return loss.detach()

    def _compare(self, layers: Sequence["Layer"], x: Inputs, y: Tensor, loss: Tensor) -> None:
        """Note whether minibatches of this size have the bits of autograd, which has written its gradient."""
        by_graph = self.model.gradient.clone()
        self.model.gradient.zero_()
        usual = isinstance(x, Tensor) and y.ndim == 1 and fits(layers, x.ndim)
        found = self._add(layers, x, y) if usual else torch.full_like(loss, torch.nan)
        if same_bits(found, loss) and same_bits(self.model.gradient, by_graph):
            self._compared.add(len(y))
        else:
            self._layers = None
            self.model.gradient.copy_(by_graph)

    @torch.no_grad()
    def _add(self, layers: Sequence["Layer"], x: Inputs, y: Tensor) -> Tensor:
        """Add the gradient to that of each parameter, and return the mean loss."""
        assert isinstance(x, Tensor)
        held = list[Tensor]()  # of each layer, what its gradient needs
        for layer in layers:
            x, needed = layer.forward(x)
            held.append(needed)
        scores = x.log_softmax(1)
        loss: Tensor
        loss, weight = aten.nll_loss_forward.default(scores, y, None, MEAN, NO_CLASS)
        g = aten.nll_loss_backward.default(self._one, scores, y, None, MEAN, NO_CLASS, weight)
        g = aten._log_softmax_backward_data.default(g, scores, 1, scores.dtype)
        for number in range(len(layers) - 1, self._first - 1, -1):
            g = layers[number].backward(g, held[number], further=number > self._first)
        return loss


class Layer:
    """A layer without parameters: `Flatten`."""

    dimensions: int | None = None  # of its inputs; None: any

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs, and what the gradient needs."""
        return x.flatten(1), x

    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        """Return the gradient by the inputs (if it is needed further on), and add that by the parameters to theirs."""
        return g.view(held.shape) if further else g


class Linear(Layer):
    """A fully connected layer.

    Args:
        part: torch's layer, bound to the vectors of a `FlatModule`.
    """

    dimensions = 2

    def __init__(self, part: nn.Linear) -> None:
        assert part.weight.grad is not None
        assert part.bias.grad is not None
        self.weight, self.bias = part.weight.detach(), part.bias.detach()
        self.by_weight, self.by_bias = part.weight.grad, part.bias.grad

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, self.weight, self.bias), x

    @override
    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        self.by_weight.add_(torch.mm(g.t(), held))
        self.by_bias.add_(g.sum(0))
        return torch.mm(g, self.weight) if further else g


class Convolution(Layer):
    """A convolution of images.

    Args:
        part: torch's layer, bound to the vectors of a `FlatModule`.
    """

    dimensions = 4

    def __init__(self, part: nn.Conv2d) -> None:
        assert part.weight.grad is not None
        assert part.bias is not None
        assert part.bias.grad is not None
        self.weight, self.bias = part.weight.detach(), part.bias.detach()
        self.by_weight, self.by_bias = part.weight.grad, part.bias.grad
        assert not isinstance(part.padding, str)
        self._shape = part.stride, part.padding, part.dilation
        self._groups = part.groups

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.conv2d(x, self.weight, self.bias, *self._shape, self._groups), x

    @override
    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        mask = [further, True, True]
        gx, by_weight, by_bias = aten.convolution_backward.default(
            g, held, self.weight, self.bias.shape, *self._shape, False, (0, 0), self._groups, mask
        )
        self.by_weight.add_(by_weight)
        self.by_bias.add_(by_bias)
        return gx if further else g


class Pooling(Layer):
    """The maximum over 2x2 pixels, and the positive part of it if `positive`.

    Images lie channels last, as convolutions write them.
    """

    dimensions = 4

    def __init__(self) -> None:
        self.positive = False

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `Layer`; held is, in one tensor, which of the four pixels each output is, and the size of the images."""
        images = x.permute(0, 2, 3, 1).contiguous()
        examples, height, width, channels = images.shape
        y = images.new_empty(examples, height // 2, width // 2, channels)
        chosen = torch.empty(y.shape, dtype=torch.int32)
        kernels.pool(images.numpy(), self.positive, y.numpy(), chosen.numpy())
        self._sides = height, width
        return y.permute(0, 3, 1, 2), chosen

    @override
    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        g = g.permute(0, 2, 3, 1).contiguous()
        gx = g.new_empty(len(g), *self._sides, g.shape[3])
        kernels.unpool(g.numpy(), held.numpy(), gx.numpy())
        return gx.permute(0, 3, 1, 2)


class Dropout(Layer):
    """Zeros at random: of single entries, or of whole channels.

    Args:
        rate: probability of a zero.
        channels: whether whole channels are dropped.
    """

    def __init__(self, rate: float, *, channels: bool) -> None:
        self._rate, self._channels = rate, channels
        self.dimensions = 4 if channels else None

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        noise = x.new_empty(*x.shape[:2], *(1 for _ in x.shape[2:])) if self._channels else torch.empty_like(x)
        noise.bernoulli_(1 - self._rate).div_(1 - self._rate)
        return x * noise, noise

    @override
    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        return g * held


class ReLU(Layer):
    """The positive part."""

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.relu()
        return y, y

    @override
    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        made: Tensor = aten.threshold_backward.default(g, held, 0)
        return made


class Tanh(Layer):
    """The hyperbolic tangent."""

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.tanh()
        return y, y

    @override
    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        made: Tensor = aten.tanh_backward.default(g, held)
        return made


def fits(layers: Sequence[Layer], dimensions: int) -> bool:
    """Return whether layers take inputs of so many dimensions as kernels do; torch's take others as well."""
    for layer in layers:
        if layer.dimensions not in (None, dimensions):
            return False
        dimensions = 2 if type(layer) is Layer else dimensions
    return True


def kernels_of(module: nn.Module) -> list[Layer] | None:
    """Return the layers of a network with their gradients; None if it has others than those with kernels here."""
    try:
        parts = layers_of(module)
    except NoChainError:
        return None
    if not MADE.keys() >= {*map(type, parts)}:
        return None
    found = list[Layer]()
    for part in parts:
        if isinstance(part, nn.ReLU) and found and isinstance(found[-1], Pooling):
            found[-1].positive = True
        else:
            found.append(MADE[type(part)](part))
    return found


MADE: dict[type, Callable[[Any], Layer]] = {
    nn.Linear: Linear,
    nn.Conv2d: Convolution,
    nn.MaxPool2d: lambda _: Pooling(),
    nn.Dropout: lambda part: Dropout(part.p, channels=False),
    nn.Dropout2d: lambda part: Dropout(part.p, channels=True),
    nn.Flatten: lambda _: Layer(),
    nn.ReLU: lambda _: ReLU(),
    nn.Tanh: lambda _: Tanh(),
}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, also of NaN and of zeros."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
