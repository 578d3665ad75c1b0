"""Layers of stacked clients: several clients' networks side by side, with hand-written gradients and no graph.

Every tensor has a first dimension for the clients, C; activations are (C, B, *shape) for minibatches of B examples.
`stack_of` turns a chain of torch's layers into a chain of these.  A layer's parameters are views of the rows of a
matrix (C, d), one row a client, in the order of `phalanx.training.vector.FlatModule`.
"""

from abc import ABC
from collections.abc import Sequence

import torch
from torch import Tensor, nn

BIASED = "a convolution or a linear layer without a bias"


class Layer(ABC):
    """A layer without parameters; a subclass overrides what it does."""

    size = 0  # number of parameters of a client

    def bind(self, values: Tensor, targets: Tensor) -> None:
        """Use parameters, and write gradients to targets; both are (C, size), and may be the same memory.

        If they are the same, the gradient is subtracted where it would be written: a step of gradient descent.
        """

    def load(self, start: Tensor, row: int) -> None:
        """Set the parameters of one client from its row-major vector (size,)."""

    def read(self, out: Tensor, row: int) -> None:
        """Write the parameters of one client to a row-major vector (size,)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for the first len(x) clients, and keep what the gradient needs."""
        return x

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """Return the gradient by the inputs (if it is needed further on), and write that by the parameters."""
        return g


class Flatten(Layer):
    """Each example as one row of numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`."""
        self._shape = x.shape
        return x.reshape(*x.shape[:2], -1)

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        return g.view(self._shape) if further else g


class ReLU(Layer):
    """The positive part."""

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`; x is overwritten, since the gradient of the layer before needs only its inputs."""
        self._y = x.relu_()
        return self._y

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        return torch.ops.aten.threshold_backward(g, self._y, 0)


class Tanh(Layer):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`; x is overwritten."""
        self._y = x.tanh_()
        return self._y

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        return torch.ops.aten.tanh_backward(g, self._y)


class Dropout(Layer):
    """Zeros at random, each client's from its own stream, in the numbers and the order of torch's layer.

    Args:
        rate: probability of a zero.
        channels: whether whole channels (B, channels) are dropped together.
    """

    def __init__(self, rate: float, *, channels: bool) -> None:
        self.rate, self.channels = rate, channels
        self.streams: Sequence[torch.Generator] = ()  # one for each client
        self.counts: Sequence[int] = ()  # examples of each client's minibatch; the others are padding

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`."""
        shape = (*x.shape[:3], *(1 for _ in x.shape[3:])) if self.channels else x.shape
        self._noise = x.new_zeros(shape)
        for noise, count, rng in zip(self._noise, self.counts, self.streams, strict=False):
            noise[:count].bernoulli_(1 - self.rate, generator=rng)
        self._noise.div_(1 - self.rate)
        return x * self._noise

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        return g * self._noise


class MaxPool2d(Layer):
    """The maximum over windows of images.

    Args:
        pool: torch's layer.
    """

    def __init__(self, pool: nn.MaxPool2d) -> None:
        self._settings = [_pair(p) for p in (pool.kernel_size, pool.stride, pool.padding, pool.dilation)]
        self._settings = [*self._settings, pool.ceil_mode]

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`."""
        self._x = x.flatten(0, 1)
        y, self._where = torch.ops.aten.max_pool2d_with_indices(self._x, *self._settings)
        return y.unflatten(0, x.shape[:2])

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        gx = torch.ops.aten.max_pool2d_with_indices_backward(g.flatten(0, 1), self._x, *self._settings, self._where)
        return gx.unflatten(0, g.shape[:2])


class Linear(Layer):
    """A fully connected layer.

    Args:
        inputs: number of inputs.
        outputs: number of outputs.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.size = inputs * outputs + outputs

    def bind(self, values: Tensor, targets: Tensor) -> None:
        """See `Layer`."""
        self._weight, self._bias = self._views(values)
        self._to = self._views(targets)
        self._scale = {"beta": 1, "alpha": -1} if values.data_ptr() == targets.data_ptr() else {"beta": 0, "alpha": 1}
        self._values = values

    def _views(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        cut = self.inputs * self.outputs
        return rows[:, :cut].unflatten(1, (self.outputs, self.inputs)), rows[:, None, cut:]

    def load(self, start: Tensor, row: int) -> None:
        """See `Layer`."""
        self._values[row].copy_(start)

    def read(self, out: Tensor, row: int) -> None:
        """See `Layer`."""
        out.copy_(self._values[row])

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`."""
        n, self._x = len(x), x
        return torch.baddbmm(self._bias[:n], x, self._weight[:n].mT)

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        n, (weight, bias) = len(g), self._to
        gx = torch.bmm(g, self._weight[:n]) if further else g
        weight[:n].baddbmm_(g.mT, self._x, **self._scale)
        if self._scale["beta"]:
            bias[:n] -= g.sum(1, keepdim=True)
        else:
            torch.sum(g, 1, keepdim=True, out=bias[:n])
        return gx


class Conv2d(Layer):
    """A convolution of images, one client after the other: grouped convolutions are slower on CPUs.

    Args:
        layer: torch's layer.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        self._shape = layer.weight.shape
        self._settings = (layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups)
        self.size = layer.weight.numel() + len(layer.weight)

    def bind(self, values: Tensor, targets: Tensor) -> None:
        """See `Layer`."""
        self._weights, self._biases = self._views(values)
        self._to = self._views(targets)
        self._descends = values.data_ptr() == targets.data_ptr()

    def _views(self, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the clients' weights, channels last in memory, the fastest layout, and their biases."""
        o, i, h, w = self._shape
        cut = o * i * h * w
        return [row[:cut].view(o, h, w, i).permute(0, 3, 1, 2) for row in rows], [row[cut:] for row in rows]

    def load(self, start: Tensor, row: int) -> None:
        """See `Layer`."""
        cut = self.size - self._shape[0]
        self._weights[row].copy_(start[:cut].view(self._shape))
        self._biases[row].copy_(start[cut:])

    def read(self, out: Tensor, row: int) -> None:
        """See `Layer`."""
        cut = self.size - self._shape[0]
        out[:cut].view(self._shape).copy_(self._weights[row])
        out[cut:].copy_(self._biases[row])

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`."""
        self._x = x
        made = [
            torch.ops.aten.convolution(images, weight, bias, *self._settings)
            for images, weight, bias in zip(x, self._weights, self._biases, strict=False)
        ]
        return made[0][None] if len(made) == 1 else torch.stack(made)

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        made = []
        needed = (further, True, True)
        for row, (images, back) in enumerate(zip(self._x, g, strict=True)):
            gx, gw, gb = torch.ops.aten.convolution_backward(
                back, images, self._weights[row], [self._shape[0]], *self._settings, needed
            )
            for to, gradient in ((self._to[0][row], gw), (self._to[1][row], gb)):
                to.sub_(gradient) if self._descends else to.copy_(gradient)
            made.append(gx)
        if not further:
            return g
        return made[0][None] if len(made) == 1 else torch.stack(made)


def stack_of(module: nn.Module) -> list[Layer] | str:
    """Return the stacked form of a network, or why there is none, as the end of a sentence.

    It takes chains (`nn.Sequential`) of linear layers, convolutions, maximum pooling, ReLU, tanh, dropout and `Flatten`.
    """
    if type(module) is not nn.Sequential:
        return f"{type(module).__name__} is no chain of layers"
    found = list[Layer]()
    for part in module:
        made = stack_of(part) if type(part) is nn.Sequential else _layer(part)
        if isinstance(made, str):
            return made
        found += made
    return found


def _layer(part: nn.Module) -> list[Layer] | str:
    kind = type(part)
    if isinstance(part, (nn.Linear, nn.Conv2d)) and (part.bias is None or not part.weight.requires_grad):
        return f"it has {BIASED}"
    if kind is nn.Linear:
        return [Linear(part.in_features, part.out_features)]
    if kind is nn.Conv2d and part.padding_mode == "zeros" and not isinstance(part.padding, str):
        return [Conv2d(part)]
    if kind is nn.MaxPool2d:
        return [MaxPool2d(part)]
    if kind in (nn.Dropout, nn.Dropout2d):
        return [Dropout(part.p, channels=kind is nn.Dropout2d)] if part.p else []
    if kind is nn.Flatten and part.start_dim == 1 and part.end_dim == -1:
        return [Flatten()]
    plain: dict[type, type[Layer]] = {nn.ReLU: ReLU, nn.Tanh: Tanh}
    return [plain[kind]()] if kind in plain else f"{kind.__name__} has no hand-written gradient"


def _pair(value: int | tuple[int, ...]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)
