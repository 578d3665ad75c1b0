"""Layers of stacked clients: several clients' networks side by side, with hand-written gradients and no graph.

Every tensor has a first dimension for the clients, C; activations are (C, B, *shape) for minibatches of B examples.
`stack_of` turns a network of torch's layers into a chain of these.  A layer's parameters are (C, *shape), views of the
rows of a matrix (C, d), one row a client.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from phalanx.models.parts import Joined, Largest, Sum, Transposed, chain_of
from phalanx.training import gradient as plain
from phalanx.training.vector import channels_last

aten = torch.ops.aten


class Layer(ABC):
    """A layer without parameters; a subclass overrides what it does."""

    parameters: Sequence[Tensor] = ()  # torch's, whose shapes those of each client have
    dimensions: int | None = None  # of the inputs of one client; None: any
    inplace = False  # whether torch's changes its inputs
    made = 0  # numbers within it, of the last minibatches

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for the first len(x) clients, and keep what the gradient needs."""

    @abstractmethod
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """Return the gradient by the inputs (if it is needed further on), and write that by the parameters."""

    def parts(self) -> "Iterator[Layer]":
        """Yield the layers that it consists of, in their order; itself, if it is a single one."""
        yield self


class Trained(Layer):
    """A layer with parameters.

    Args:
        parameters: torch's; None for one that it does not have.
    """

    def __init__(self, *parameters: Tensor | None) -> None:
        self.parameters = [parameter for parameter in parameters if parameter is not None]

    def bind(self, values: Sequence[Tensor], targets: Sequence[Tensor], *, steps: bool) -> None:
        """Use parameters, and write gradients to targets.

        If it steps, they are the same memory, and a gradient is subtracted where it would be written: a step of
        gradient descent.
        """
        self.values, self.targets, self.steps = values, targets, steps

    def write(self, number: int, gradient: Tensor, first: int = 0) -> None:
        """Write the gradient by one of the parameters, of all clients from the first one on."""
        target = self.targets[number][first : first + len(gradient)]
        if self.steps:
            target -= gradient
        else:
            target.copy_(gradient)


class Chain(Layer):
    """Layers, one after the other.

    Args:
        layers: theirs.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        trained = [number for number, layer in enumerate(layers) if layer.parameters]
        self._first = min(trained, default=len(layers))  # no gradient before it
        self.parameters = [parameter for layer in layers for parameter in layer.parameters]

    @override
    def forward(self, x: Tensor) -> Tensor:
        self.made = 0
        for layer in self.layers:
            if layer.dimensions not in (None, x.ndim - 1):
                kind = type(layer).__name__.lower()
                raise ValueError(f"a {kind} takes minibatches of {layer.dimensions} dimensions, got {x.ndim - 1}")
            x = layer.forward(x)
            self.made += x.numel() + layer.made
        return x

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        for number in range(len(self.layers) - 1, -1 if further else self._first - 1, -1):
            g = self.layers[number].backward(g, further=further or number > self._first)
        return g

    @override
    def parts(self) -> Iterator[Layer]:
        for layer in self.layers:
            yield from layer.parts()


class Branches(Layer):
    """The sum of what chains make of the same inputs, or their channels next to each other.

    Args:
        chains: theirs.
        joined: whether the channels are joined.
    """

    def __init__(self, chains: Sequence[Chain], *, joined: bool) -> None:
        self.chains, self._joined = chains, joined
        self.parameters = [parameter for chain in chains for parameter in chain.parameters]

    @override
    def forward(self, x: Tensor) -> Tensor:
        made = [chain.forward(x) for chain in self.chains]
        self.made = sum(chain.made for chain in self.chains)
        self._channels = [part.shape[2] for part in made]
        return torch.cat(made, 2) if self._joined else reduce(torch.add, made)

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        each = torch.split(g, self._channels, 2) if self._joined else [g] * len(self.chains)
        made = [chain.backward(part, further=further) for chain, part in zip(self.chains, each, strict=True)]
        return reduce(torch.add, made) if further else g

    @override
    def parts(self) -> Iterator[Layer]:
        for chain in self.chains:
            yield from chain.parts()


class Flatten(Layer):
    """Each example as one row of numbers."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        return x.reshape(*x.shape[:2], -1)

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`: the gradient lies in memory as the inputs, which the layers before are fastest with."""
        return torch.empty_like(self._x).copy_(g.reshape(self._x.shape)) if further else g


class Exchange(Layer):
    """`Transposed`: examples with their first two dimensions exchanged."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(2, 3)

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        return g.transpose(2, 3)


class Maximum(Layer):
    """`Largest`: the maximum over the last dimension."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        self._x, self._y = x, x.amax(-1, keepdim=True)
        return self._y[..., 0]

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        largest = self._x == self._y
        return g[..., None] * largest / largest.sum(-1, keepdim=True)


class Activation(Layer):
    """A function of each number.

    Args:
        function: y of x.
        gradient: that by x, of the gradient by y, and of x and y.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], gradient: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        self._function, self._gradient = function, gradient

    @override
    def forward(self, x: Tensor) -> Tensor:
        self._x, self._y = x, self._function(x)
        return self._y

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        made: Tensor = self._gradient(g, self._x, self._y)
        return made


class Dropout(Layer):
    """Zeros at random, each client's from its own stream, in the numbers and the order of torch's layer.

    Args:
        rate: probability of a zero.
        dimensions: of minibatches of which whole channels are dropped; None: single numbers are.
    """

    def __init__(self, rate: float, dimensions: int | None = None) -> None:
        self.rate, self.dimensions = rate, dimensions
        self.layout = "last"  # how images lie in torch's network; see `note_layouts`
        self.streams: Sequence[torch.Generator] = ()  # one for each client; without them nothing is dropped
        self.counts: Sequence[int] = ()  # examples of each client's minibatch; the others are padding

    @override
    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 5 and self.dimensions is None and self.layout == "unknown":
            raise ValueError("dropout of single pixels draws its numbers in an order that is not known there")
        if not self.streams:
            return x
        if self.dimensions is not None:
            self._noise = x.new_zeros(*x.shape[:3], *(1 for _ in x.shape[3:]))
        elif x.ndim == 5 and self.layout == "last":  # numbers are drawn in the order of torch's memory
            self._noise = torch.zeros_like(x.movedim(2, 4), memory_format=torch.contiguous_format).movedim(4, 2)
        else:
            self._noise = torch.zeros_like(x, memory_format=torch.contiguous_format)
        for noise, count, rng in zip(self._noise, self.counts, self.streams, strict=False):
            noise[:count].bernoulli_(1 - self.rate, generator=rng)
        self._noise.div_(1 - self.rate)
        return x * self._noise

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        return g * self._noise


class Linear(Trained):
    """A fully connected layer.

    Args:
        part: torch's.
    """

    def __init__(self, part: nn.Linear) -> None:
        super().__init__(part.weight, part.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        n, shape = len(x), x.shape
        self._x = x = x if x.ndim == 3 else x.reshape(n, -1, shape[-1])
        weight, *bias = (value[:n] for value in self.values)
        y = torch.baddbmm(bias[0][:, None], x, weight.mT) if bias else torch.bmm(x, weight.mT)
        return y if len(shape) == 3 else y.view(*shape[:-1], -1)

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        n, shape = len(g), g.shape
        g = g if g.ndim == 3 else g.reshape(n, -1, shape[-1])
        gx = torch.bmm(g, self.values[0][:n]) if further else g
        self.targets[0][:n].baddbmm_(g.mT, self._x, beta=int(self.steps), alpha=-1 if self.steps else 1)
        if len(self.targets) > 1:
            self.write(1, g.sum(1))
        return gx if len(shape) == 3 or not further else gx.view(*shape[:-1], -1)


class Embedding(Trained):
    """The vectors of numbers, such as those of words.

    Args:
        part: torch's.
    """

    def __init__(self, part: nn.Embedding) -> None:
        super().__init__(part.weight)
        self._padding = part.padding_idx

    @override
    def forward(self, x: Tensor) -> Tensor:
        """See `Layer`.

        Raises:
            ValueError: if a number is not below the vocabulary; on a GPU torch raises its own error.
        """
        self._x, (weight,) = x, self.values
        y = weight.new_empty(*x.shape, weight.shape[2])
        try:
            for vectors, numbers, table in zip(y, x, weight, strict=False):
                torch.index_select(table, 0, numbers.flatten(), out=vectors.view(-1, weight.shape[2]))
        except IndexError as error:
            most = weight.shape[1] - 1
            raise ValueError(
                f"A number must be in 0..{most}, got {int(x.min())} to {int(x.max())}. Set the vocabulary of the model "
                "to that of the data, at least."
            ) from error
        return y

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        """See `Layer`: only vectors that the examples have are changed, since a vocabulary is long."""
        (target,) = self.targets
        if self._padding is not None:
            g = g.masked_fill((self._x == self._padding)[..., None], 0)
        if not self.steps:
            target[: len(g)].zero_()
        for table, numbers, vectors in zip(target, self._x, g, strict=False):
            table.index_add_(0, numbers.flatten(), vectors.flatten(0, -2), alpha=-1 if self.steps else 1)
        return g


class Normalisation(Trained):
    """A normalisation of each example by itself, followed by a factor and an addend if it has parameters."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        self._y = self.normalise(x)
        self._factors = [self.wide(value[: len(x)], x) for value in self.values]
        if not self._factors:
            return self._y
        factor, *addend = self._factors
        return torch.addcmul(addend[0], self._y, factor) if addend else self._y * factor

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        found = [each.sum_to_size(wide.shape) for each, wide in zip((g * self._y, g), self._factors, strict=False)]
        gx = g * self._factors[0] if further and found else g
        for number, gradient in enumerate(found):
            self.write(number, gradient.view(self.values[number][: len(g)].shape))
        return self.undo(gx) if further else g

    @abstractmethod
    def normalise(self, x: Tensor) -> Tensor:
        """Return the inputs with mean 0 and variance 1, and keep what the gradient needs."""

    @abstractmethod
    def undo(self, g: Tensor) -> Tensor:
        """Return the gradient by the inputs of `normalise`."""

    @abstractmethod
    def wide(self, value: Tensor, x: Tensor) -> Tensor:
        """Return a parameter (C, ...) with dimensions of size 1 where it is the same for all numbers of x."""


class LayerNorm(Normalisation):
    """A normalisation over the last dimensions.

    Args:
        part: torch's.
    """

    def __init__(self, part: nn.LayerNorm) -> None:
        super().__init__(part.weight, part.bias)
        self._shape, self._eps = part.normalized_shape, part.eps

    @override
    def normalise(self, x: Tensor) -> Tensor:
        y, *self._statistics = torch.native_layer_norm(x, self._shape, None, None, self._eps)
        self._x = x
        return y

    @override
    def undo(self, g: Tensor) -> Tensor:
        mask = [True, False, False]
        made: Tensor = aten.native_layer_norm_backward(g, self._x, self._shape, *self._statistics, None, None, mask)[0]
        return made

    @override
    def wide(self, value: Tensor, x: Tensor) -> Tensor:
        return value.view(len(value), *(1 for _ in x.shape[value.ndim :]), *value.shape[1:])


class GroupNorm(Normalisation):
    """A normalisation over groups of channels.

    Args:
        groups: their number; None: as many as channels.
        eps: added to the variance.
        parameters: torch's.
        dimensions: of minibatches; None: any.
    """

    def __init__(
        self, groups: int | None, eps: float, *parameters: Tensor | None, dimensions: int | None = None
    ) -> None:
        super().__init__(*parameters)
        self._groups, self._eps, self.dimensions = groups, eps, dimensions

    @override
    def normalise(self, x: Tensor) -> Tensor:
        images = self._images(x)
        examples, channels, *sides = images.shape
        if self._groups is None and prod(sides) == 1:
            raise ValueError("instance normalisation needs more than one pixel")
        groups = self._groups or x.shape[2]
        self._sizes = examples, channels, prod(sides), groups * channels // x.shape[2]
        y, *self._statistics = torch.native_group_norm(images, None, None, *self._sizes, self._eps)
        self._x = images
        return apart(y, len(x))

    @override
    def undo(self, g: Tensor) -> Tensor:
        mask = [True, False, False]
        made = aten.native_group_norm_backward(self._images(g), self._x, *self._statistics, None, *self._sizes, mask)
        return apart(made[0], len(g))

    def _images(self, x: Tensor) -> Tensor:
        images = together(x)
        return channels_last(images) if separate(x) and images.ndim == 4 else images.contiguous()

    @override
    def wide(self, value: Tensor, x: Tensor) -> Tensor:
        return value.view(len(value), 1, -1, *(1 for _ in x.shape[3:]))


class Convolution(Trained):
    """A convolution.

    Args:
        part: torch's.
    """

    def __init__(self, part: nn.Conv1d | nn.Conv2d) -> None:
        super().__init__(part.weight, part.bias)
        self.dimensions, self._groups = part.weight.ndim, part.groups
        self._form = part.stride, part.padding, part.dilation, False, [0] * len(part.stride)

    @override
    def forward(self, x: Tensor) -> Tensor:
        self._calls, made = _calls(x), []
        for at, images in self._calls:
            weight, *bias = self._filters(at)
            shape = *self._form, self._groups * (at.stop - at.start)
            made.append(aten.convolution(images, weight, bias[0] if bias else None, *shape))
        return apart(made[0] if len(made) == 1 else torch.cat(made), len(x))

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        made = []
        for (at, images), (_, gradient) in zip(self._calls, _calls(g), strict=True):
            weight, *bias = self._filters(at)
            count = at.stop - at.start
            mask = [further, True, bool(bias)]
            shape = [len(weight)] if bias else None, *self._form, self._groups * count
            gx, *found = aten.convolution_backward(gradient, images, weight, *shape, mask)
            made.append(gx)
            for number, by in enumerate(found[: len(self.values)]):
                self.write(number, by.view(count, -1, *by.shape[1:]), at.start)
        return apart(made[0] if len(made) == 1 else torch.cat(made), len(g)) if further else g

    def _filters(self, at: slice) -> list[Tensor]:
        return [value[at].flatten(0, 1) for value in self.values]


class Pooling(Layer):
    """The maximum or the mean over windows.

    Args:
        forward: torch's kernel, of images (N, c, h, w); the first output is theirs.
        backward: its gradient, of that by the outputs, the images, and the other outputs.
        dimensions: of minibatches; 3 for windows of sequences.
    """

    def __init__(self, forward: Callable[..., Any], backward: Callable[..., Any], dimensions: int) -> None:
        self._forward, self._backward, self.dimensions = forward, backward, dimensions

    @override
    def forward(self, x: Tensor) -> Tensor:
        self._x = self._images(x)
        y, *self._held = self._forward(self._x)
        return apart(y if self.dimensions == 4 else y.squeeze(2), len(x))

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        made = self._backward(self._images(g), self._x, *self._held)
        return apart(made if self.dimensions == 4 else made.squeeze(2), len(g))

    def _images(self, x: Tensor) -> Tensor:
        return together(x) if self.dimensions == 4 else together(x).unsqueeze(2)


class Mean(Layer):
    """The mean over an image or a sequence.

    Args:
        dimensions: of minibatches.
    """

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions

    @override
    def forward(self, x: Tensor) -> Tensor:
        self._x = x
        return x.mean(tuple(range(3, x.ndim)), keepdim=True)

    @override
    def backward(self, g: Tensor, *, further: bool) -> Tensor:
        return torch.empty_like(self._x).copy_(g / prod(self._x.shape[3:]))


def note_layouts(layers: Sequence[Layer], layout: str, of_convolutions: str) -> str:
    """Note for dropout how images lie in torch's network, whose order its numbers have, and return how they do at last.

    Args:
        layers: of a chain.
        layout: of their inputs: channels "last", in "rows", or "unknown".
        of_convolutions: of what they make.
    """
    for layer in layers:
        if isinstance(layer, Dropout):
            layer.layout = layout
        elif isinstance(layer, Convolution):
            layout = of_convolutions
        elif isinstance(layer, Linear | LayerNorm):
            layout = "rows"
        elif isinstance(layer, Exchange | Maximum):
            layout = "unknown"
        elif isinstance(layer, Branches):
            ends = {note_layouts(chain.layers, layout, of_convolutions) for chain in layer.chains}
            layout = ends.pop() if len(ends) == 1 else "unknown"
    return layout


def separate(x: Tensor) -> bool:
    """Return whether each client's images are convolved by a call of their own: grouped ones gain nothing on a CPU."""
    return x.device.type == "cpu"


def together(x: Tensor) -> Tensor:
    """Return the images of all clients as one minibatch, (C * B, c, ...), or for grouped calls (B, C * c, ...)."""
    return x.flatten(0, 1) if separate(x) else x.transpose(0, 1).flatten(1, 2)


def apart(y: Tensor, clients: int) -> Tensor:
    """Return what `together` joined, (C, B, c, ...)."""
    return (
        y.view(clients, -1, *y.shape[1:]) if separate(y) else y.view(len(y), clients, -1, *y.shape[2:]).transpose(0, 1)
    )


def _calls(x: Tensor) -> list[tuple[slice, Tensor]]:
    """Return the clients of each call of a convolution, and their images."""
    if not separate(x):
        return [(slice(0, len(x)), together(x))]
    return [(slice(i, i + 1), channels_last(images) if images.ndim == 4 else images) for i, images in enumerate(x)]


def stack_of(module: nn.Module) -> Chain:
    """Return the stacked form of a network.

    It takes torch's layers in `LAYERS`, chains (`nn.Sequential`) and branches of them, and modules that name such a
    form: see `phalanx.models.parts`.

    Raises:
        ValueError: there is none; the message is the end of a sentence.
    """
    return Chain(_layers(module))


def _layers(module: nn.Module) -> list[Layer]:
    kind = type(module)
    if plain.hooked(module):
        raise ValueError(f"a {kind.__name__} has hooks")
    if isinstance(module, nn.Sequential) and kind is nn.Sequential:
        return [layer for part in module for layer in _layers(part)]
    if isinstance(module, Sum | Joined):
        return [Branches([_branch(part) for part in module.branches], joined=isinstance(module, Joined))]
    if kind in LAYERS:
        if not all(parameter.requires_grad for parameter in module.parameters()):
            raise ValueError(f"a {kind.__name__} has parameters that are not trained")
        made = LAYERS[kind](module)
        for layer in made:
            layer.inplace = getattr(module, "inplace", False)
        return made
    if (chain := chain_of(module)) is not None:
        return _layers(chain)
    if isinstance(module, _BatchNorm):
        raise ValueError("batch normalisation depends on all examples of a minibatch, also those that pad it")
    unknown = [type(part) for part in module.modules() if not [*part.children()] and type(part) not in LAYERS]
    if unknown:
        raise ValueError(f"{unknown[0].__name__} has no gradient written by hand")
    raise ValueError(f"{kind.__name__} is no chain of layers, and does not say of which it could be made")


def _branch(module: nn.Module) -> Chain:
    """Return a branch.

    Raises:
        ValueError: its first layer changes the inputs in place, which other branches see.
    """
    chain = stack_of(module)
    if any(layer.inplace for layer in [each for each in chain.layers if not isinstance(each, Flatten | Exchange)][:1]):
        raise ValueError("a branch begins with a layer that changes its inputs in place")
    return chain


def _convolution(part: Any) -> list[Layer]:
    if part.padding_mode != "zeros" or isinstance(part.padding, str):
        raise ValueError("a convolution has another padding than zeros of a given number")
    return [Convolution(part)]


def _embedding(part: Any) -> list[Layer]:
    if part.max_norm is not None or part.sparse or part.scale_grad_by_freq:
        raise ValueError("an embedding has a largest norm, sparse gradients, or gradients by frequency")
    return [Embedding(part)]


def _dropout(part: Any, dimensions: int | None = None) -> list[Layer]:
    if part.p == 1:
        raise ValueError("dropout drops everything")
    return [Dropout(part.p, dimensions)] if part.p else []


def _instance_norm(part: Any, dimensions: int) -> list[Layer]:
    if part.track_running_stats:
        raise ValueError("an instance normalisation tracks statistics")
    return [GroupNorm(None, part.eps, part.weight, part.bias, dimensions=dimensions)]


def _flatten(part: Any) -> list[Layer]:
    if (part.start_dim, part.end_dim) != (1, -1):
        raise ValueError("a Flatten joins other dimensions than all of an example")
    return [Flatten()]


def _mean(part: Any, dimensions: int) -> list[Layer]:
    if part.output_size not in (1, (1,), (1, 1)):
        raise ValueError("adaptive pooling gives more than one number of a channel")
    return [Mean(dimensions)]


def _max_pooling(part: Any, dimensions: int) -> list[Layer]:
    if part.return_indices:
        raise ValueError("a pooling returns indices")
    sizes = [_sides(value, fill, dimensions) for value, fill in [*_windows(part), (part.dilation, 1)]]
    quick = plain.Pooling() if dimensions == 4 and plain.usual_pooling(part) else None

    def forward(x: Tensor) -> tuple[Tensor, ...]:
        if quick is not None and separate(x) and x.dtype in plain.KINDS:
            return quick.forward(x)
        found: tuple[Tensor, ...] = aten.max_pool2d_with_indices(x, *sizes, part.ceil_mode)
        return found

    def backward(g: Tensor, x: Tensor, chosen: Tensor) -> Tensor:
        if quick is not None and separate(x) and x.dtype in plain.KINDS:
            return quick.backward(g, chosen, further=True)
        gx: Tensor = aten.max_pool2d_with_indices_backward(g, x, *sizes, part.ceil_mode, chosen)
        return gx

    return [Pooling(forward, backward, dimensions)]


def _mean_pooling(part: Any, dimensions: int) -> list[Layer]:
    sizes = [_sides(value, fill, dimensions) for value, fill in _windows(part)]
    how = part.ceil_mode, part.count_include_pad, getattr(part, "divisor_override", None)
    return [
        Pooling(
            lambda x: (aten.avg_pool2d(x, *sizes, *how),),
            lambda g, x: aten.avg_pool2d_backward(g, x, *sizes, *how),
            dimensions,
        )
    ]


def _windows(part: Any) -> list[tuple[Any, int]]:
    """Return the sizes of pooling, each with what it is of a side of length 1."""
    return [(part.kernel_size, 1), (part.stride, 1), (part.padding, 0)]


def _sides(value: int | tuple[int, ...], fill: int, dimensions: int) -> list[int]:
    """Return a size for both sides of an image; a sequence, with minibatches of 3 dimensions, has height 1."""
    sides = [value] * (dimensions - 2) if isinstance(value, int) else [*value]
    return [fill] * (4 - dimensions) + sides


def _activation(function: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[[Any], list[Layer]]:
    """Return what makes the layer, of the same functions with torch's layer as another argument."""
    return lambda part: [Activation(lambda x: function(part, x), lambda g, x, y: gradient(part, g, x, y))]


LAYERS: dict[type, Callable[[Any], list[Layer]]] = {
    nn.Identity: lambda _: [],
    nn.Linear: lambda part: [Linear(part)],
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Embedding: _embedding,
    nn.LayerNorm: lambda part: [LayerNorm(part)],
    nn.GroupNorm: lambda part: [GroupNorm(part.num_groups, part.eps, part.weight, part.bias)],
    nn.InstanceNorm1d: lambda part: _instance_norm(part, 3),
    nn.InstanceNorm2d: lambda part: _instance_norm(part, 4),
    nn.MaxPool1d: lambda part: _max_pooling(part, 3),
    nn.MaxPool2d: lambda part: _max_pooling(part, 4),
    nn.AvgPool1d: lambda part: _mean_pooling(part, 3),
    nn.AvgPool2d: lambda part: _mean_pooling(part, 4),
    nn.AdaptiveAvgPool1d: lambda part: _mean(part, 3),
    nn.AdaptiveAvgPool2d: lambda part: _mean(part, 4),
    nn.Dropout: _dropout,
    nn.Dropout1d: lambda part: _dropout(part, 3),
    nn.Dropout2d: lambda part: _dropout(part, 4),
    nn.Flatten: _flatten,
    nn.ReLU: _activation(lambda _, x: aten.relu(x), lambda _, g, x, y: aten.threshold_backward(g, y, 0)),
    nn.Tanh: _activation(lambda _, x: aten.tanh(x), lambda _, g, x, y: aten.tanh_backward(g, y)),
    nn.Sigmoid: _activation(lambda _, x: aten.sigmoid(x), lambda _, g, x, y: aten.sigmoid_backward(g, y)),
    nn.SiLU: _activation(lambda _, x: aten.silu(x), lambda _, g, x, y: aten.silu_backward(g, x)),
    nn.GELU: _activation(
        lambda part, x: aten.gelu(x, approximate=part.approximate),
        lambda part, g, x, y: aten.gelu_backward(g, x, approximate=part.approximate),
    ),
    nn.LeakyReLU: _activation(
        lambda part, x: aten.leaky_relu(x, part.negative_slope),
        lambda part, g, x, y: aten.leaky_relu_backward(g, x, part.negative_slope, False),
    ),
    nn.ELU: _activation(
        lambda part, x: aten.elu(x, part.alpha),
        lambda part, g, x, y: aten.elu_backward(g, part.alpha, 1, 1, False, x),
    ),
    Transposed: lambda _: [Exchange()],
    Largest: lambda _: [Maximum()],
}
