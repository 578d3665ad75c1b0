"""The gradient of a minibatch: by autograd, or for a plain perceptron by the same kernels without a graph.

Autograd's graph and its thread cost more than the arithmetic of a small network.  For a chain of linear layers, ReLU,
tanh and `Flatten` this calls the kernels that autograd calls, on tensors of the same shape and layout, so that the bits
are the same.  They are compared at the first minibatch of each size; if they differ, autograd goes on.  It also does
while torch has hooks of all modules, which the kernels would not call.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from phalanx.data.dataset import Inputs
from phalanx.training.task import Classification, Task, apply
from phalanx.training.vector import FlatModule

MEAN, NO_CLASS = 1, -100  # torch's numbers of the reduction "mean", and of the class that its losses ignore
aten = torch.ops.aten


class Gradient:
    """A function that writes the gradient of the mean loss of a minibatch to `model.gradient`.

    Args:
        model: the module, bound to its vector.
        task: the task, which defines the loss.
    """

    def __init__(self, model: FlatModule, task: Task) -> None:
        self.model, self.task = model, task
        plain = type(task) is Classification and model.device.type == "cpu"
        self._layers = layers_of(model.module) if plain else None
        trained = [number for number, layer in enumerate(self._layers or ()) if isinstance(layer, Linear)]
        self._first = min(trained, default=0)  # no gradient before it
        self._compared = set[int]()  # sizes of minibatches
        self._one = torch.ones((), dtype=model.dtype, device=model.device)

    @property
    def plain(self) -> bool:
        """Whether the module draws no random numbers, and is the same in training and evaluation."""
        return self._layers is not None

    def __call__(self, x: Inputs, y: Tensor) -> Tensor:
        """Write the gradient, and return the mean loss."""
        layers = None if _has_any_global_hook() else self._layers
        if layers is not None and len(y) in self._compared:
            self.model.gradient.zero_()
            return self._add(layers, x, y)
        loss = self.task.loss(apply(self.model.module, x), y)
        self.model.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        if layers is not None:
            self._compare(layers, x, y, loss.detach())
        return loss.detach()

    def _compare(self, layers: Sequence["Layer"], x: Inputs, y: Tensor, loss: Tensor) -> None:
        """Note whether minibatches of this size have the bits of autograd, which has written its gradient."""
        by_graph = self.model.gradient.clone()
        self.model.gradient.zero_()
        flattened = any(type(layer) is Layer for layer in layers[: self._first])
        rows = isinstance(x, Tensor) and y.ndim == 1 and (x.ndim == 2 or flattened)  # as `Linear` takes them
        found = self._add(layers, x, y) if rows else torch.full_like(loss, torch.nan)
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

    def __init__(self, part: nn.Linear) -> None:
        assert part.weight.grad is not None
        assert part.bias.grad is not None
        self.weight, self.bias = part.weight.detach(), part.bias.detach()
        self.by_weight, self.by_bias = part.weight.grad, part.bias.grad

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `Layer`."""
        return F.linear(x, self.weight, self.bias), x

    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        self.by_weight.add_(torch.mm(g.t(), held))
        self.by_bias.add_(g.sum(0))
        return torch.mm(g, self.weight) if further else g


class ReLU(Layer):
    """The positive part."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `Layer`."""
        y = x.relu()
        return y, y

    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        made: Tensor = aten.threshold_backward.default(g, held, 0)
        return made


class Tanh(Layer):
    """The hyperbolic tangent."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `Layer`."""
        y = x.tanh()
        return y, y

    def backward(self, g: Tensor, held: Tensor, *, further: bool) -> Tensor:
        """See `Layer`."""
        made: Tensor = aten.tanh_backward.default(g, held)
        return made


def layers_of(module: nn.Module) -> list[Layer] | None:
    """Return the layers of a chain; None if it has others than those here, or hooks."""
    if type(module) is not nn.Sequential or hooked(module):
        return None
    made = [layers_of(part) if type(part) is nn.Sequential else _layer(part) for part in module]
    found = [layer for layers in made for layer in layers or ()]
    return None if any(layers is None for layers in made) else found


def _layer(part: nn.Module) -> list[Layer] | None:
    kind = type(part)
    if hooked(part):
        return None
    if isinstance(part, nn.Linear) and kind is nn.Linear and part.bias is not None:
        return [Linear(part)] if part.weight.grad is not None and part.bias.grad is not None else None
    if isinstance(part, nn.Flatten) and kind is nn.Flatten:
        return [Layer()] if (part.start_dim, part.end_dim) == (1, -1) else None
    plain: dict[type, type[Layer]] = {nn.ReLU: ReLU, nn.Tanh: Tanh}
    return [plain[kind]()] if kind in plain else None


def hooked(module: nn.Module) -> bool:
    """Return whether this module has hooks, of itself or its parameters, or a `forward` of its own.

    The kernels would leave them out, and not all of them change the first minibatch.
    """
    own = [held for name, held in vars(module).items() if name == "forward" or name.endswith("_hooks")]
    return any(own) or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in module.parameters(recurse=False))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, also of NaN and of zeros."""
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
