"""The reader of networks for gradients written by hand: the layers of a chain, or why there is no such chain."""

from collections.abc import Callable
from typing import Any

from torch import nn

Trained = nn.Linear | nn.Conv2d  # layers with parameters
UNUSUAL = "a convolution has strides, groups, dilation or another padding than zeros on all sides alike"
KNOWN = "embeddings, convolutions, 2x2 pooling, linear layers, ReLU, tanh and dropout"


class NoChainError(ValueError):
    """A network is no chain of known layers.  The message says why, as the end of a sentence."""


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a network in their order, those of chains within it included; dropout of 0 is left out.

    Raises:
        NoChainError: the network is no chain of known layers, a layer is not trained, or something has hooks.
    """
    if hooked(module):
        raise NoChainError(f"a {type(module).__name__} has hooks")
    if type(module) is nn.Sequential:
        return [layer for part in module for layer in layers_of(part)]
    if type(module) not in LAYERS:
        raise misfit(module)
    LAYERS[type(module)](module)
    return [] if isinstance(module, nn.Dropout | nn.Dropout2d) and module.p == 0 else [module]


def misfit(module: nn.Module) -> NoChainError:
    """Return the error that a layer cannot stand where it does."""
    return NoChainError(f"it takes chains of {KNOWN}, and no {type(module).__name__} there")


def hooked(module: nn.Module) -> bool:
    """Return whether this module has hooks, of itself or its parameters, or a `forward` of its own.

    Gradients written by hand would leave them out, and not all of them change the first minibatch.
    """
    own = [held for name, held in vars(module).items() if name == "forward" or name.endswith("_hooks")]
    return any(own) or any(p._backward_hooks or p._post_accumulate_grad_hooks for p in module.parameters(recurse=False))


def _check_trained(part: Any) -> None:
    if part.bias is None or not all(p.requires_grad for p in part.parameters()):
        name = "a linear layer" if isinstance(part, nn.Linear) else "a convolution"
        raise NoChainError(f"{name} has no bias, or is not trained")


def _check_convolution(part: nn.Conv2d) -> None:
    _check_trained(part)
    if part.padding_mode != "zeros" or isinstance(part.padding, str):
        raise NoChainError(UNUSUAL)


def _check_embedding(part: Any) -> None:
    """Check that a layer looks up trained rows as they are, and at most adds them up."""
    usual = part.max_norm is None and not part.scale_grad_by_freq and not part.sparse
    if not usual or getattr(part, "mode", "sum") == "max" or getattr(part, "include_last_offset", False):
        raise misfit(part)
    if not part.weight.requires_grad:
        raise NoChainError("an embedding is not trained")


def _check_pooling(part: Any) -> None:
    """Check that a layer takes the maximum over 2x2 pixels that do not overlap."""
    sides = {(side, side) if isinstance(side, int) else tuple(side) for side in (part.kernel_size, part.stride)}
    usual = sides == {(2, 2)} and part.padding in (0, (0, 0)) and part.dilation in (1, (1, 1))
    if not usual or part.ceil_mode or part.return_indices:
        raise misfit(part)


def _check_dropout(part: Any) -> None:
    if not part.p < 1:
        raise misfit(part)


def _check_flatten(part: nn.Flatten) -> None:
    if (part.start_dim, part.end_dim) != (1, -1):
        raise misfit(part)


def _accept(_: nn.Module) -> None:
    return None


LAYERS: dict[type, Callable[[Any], None]] = {  # what each kind of layer must be
    nn.Linear: _check_trained,
    nn.Conv2d: _check_convolution,
    nn.Embedding: _check_embedding,
    nn.EmbeddingBag: _check_embedding,
    nn.MaxPool2d: _check_pooling,
    nn.Dropout: _check_dropout,
    nn.Dropout2d: _check_dropout,
    nn.Flatten: _check_flatten,
    nn.ReLU: _accept,
    nn.Tanh: _accept,
}
