"""Parts of networks that are no chain of torch's layers, such as branches that are added or joined.

A module of any class takes part in stacked training (`phalanx.training.stacked`) if it can say which chain it is:
`as_chain` returns the same function of the same parameters as an `nn.Sequential` of torch's layers and of these parts,
in the order in which `forward` uses them.  `forward` itself stays as it is.

    def as_chain(self):
        return nn.Sequential(Sum(self.through, self.around), nn.ReLU())
"""

import torch
from torch import Tensor, nn
from typing_extensions import override


class Sum(nn.Module):
    """The sum of what branches make of the same inputs.

    Args:
        branches: one or more.
    """

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        first, *others = self.branches
        made: Tensor = first(x)
        for branch in others:
            made = made + branch(x)
        return made


class Joined(nn.Module):
    """What branches make of the same inputs, next to each other: (B, c, ...) of all their channels.

    Args:
        branches: one or more.
    """

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return the channels of all branches."""
        return torch.cat([branch(x) for branch in self.branches], 1)


class Transposed(nn.Module):
    """Examples with their first two dimensions exchanged: the channels of words, say, for a convolution over words."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return (B, c, t, ...) of (B, t, c, ...)."""
        return x.transpose(1, 2)


class Largest(nn.Module):
    """The maximum over the last dimension; its gradient is divided among equal ones."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return (B, ...) of (B, ..., t)."""
        return x.amax(-1)


def chain_of(module: nn.Module) -> nn.Module | None:
    """Return what `as_chain` of a module returns; None if it has none, or only that of another `forward`."""
    made = next((kind for kind in type(module).__mro__ if {"forward", "as_chain"} & vars(kind).keys()), nn.Module)
    if "as_chain" not in vars(made):
        return None
    chain = module.as_chain()  # type: ignore[operator]
    if not isinstance(chain, nn.Module):
        raise ValueError(f"`as_chain` of {type(module).__name__} returns no module")
    return chain
