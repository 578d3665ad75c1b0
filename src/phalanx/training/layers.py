"""Layers of stacked clients: several clients' networks side by side, with hand-written gradients and no graph.

Every tensor has a first dimension for the clients, C; activations are (C, B, *shape) for minibatches of B examples.
`stack_of` turns a chain of torch's layers into a chain of these.  A layer's parameters are views of the rows of a
matrix (C, d), one row a client, in the order of `phalanx.training.vector.FlatModule`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phalanx.training.gradient import hooked


class Layer:
    """A layer without parameters; a subclass overrides what it does."""

    size = 0  # number of parameters of a client

    def bind(self, values: Tensor, targets: Tensor) -> None:
        """Use parameters, and write gradients to targets; both are (C, size), and may be the same memory.

        If they are the same, the gradient is subtracted where it would be written: a step of gradient descent.
        """

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
        """See `Layer`."""
        self._y = x.relu()
        return self._y

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        made: Tensor = torch.ops.aten.threshold_backward(g, self._y, 0)
        return made


class Tanh(Layer):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`."""
        self._y = x.tanh()
        return self._y

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        made: Tensor = torch.ops.aten.tanh_backward(g, self._y)
        return made


class Dropout(Layer):
    """Zeros at random, each client's from its own stream, in the numbers and the order of torch's layer.

    Args:
        rate: probability of a zero.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.streams: Sequence[torch.Generator] = ()  # one for each client
        self.counts: Sequence[int] = ()  # examples of each client's minibatch; the others are padding

    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`."""
        self._noise = torch.zeros_like(x)
        for noise, count, rng in zip(self._noise, self.counts, self.streams, strict=False):
            noise[:count].bernoulli_(1 - self.rate, generator=rng)
        self._noise.div_(1 - self.rate)
        return x * self._noise

    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        return g * self._noise


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

    def _views(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        cut = self.inputs * self.outputs
        return rows[:, :cut].view(len(rows), self.outputs, self.inputs), rows[:, None, cut:]

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


def stack_of(module: nn.Module) -> list[Layer] | str:
    """Return the stacked form of a network, or why there is none, as the end of a sentence.

    It takes chains (`nn.Sequential`) of linear layers, ReLU, tanh, dropout and `Flatten`.  Convolutions gain nothing:
    their arithmetic takes the time, one client at a time as well.
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
    if hooked(part):
        return f"a {kind.__name__} has hooks"
    if isinstance(part, nn.Linear) and kind is nn.Linear and all(p.requires_grad for p in part.parameters()):
        outputs, inputs = part.weight.shape  # not its attributes, which may say otherwise
        return "a linear layer has no bias" if part.bias is None else [Linear(inputs, outputs)]
    if isinstance(part, nn.Dropout) and kind is nn.Dropout:
        return [Dropout(part.p)] if part.p else []
    if isinstance(part, nn.Flatten) and kind is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
        return [Flatten()]
    plain: dict[type, type[Layer]] = {nn.ReLU: ReLU, nn.Tanh: Tanh}
    return [plain[kind]()] if kind in plain else f"a {kind.__name__} has no gradient written by hand"
