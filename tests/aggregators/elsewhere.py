"""A device that is not the CPU, for machines without one: its tensors mix with no others, and have no `numpy`.

What is computed there is computed by torch on the CPU.  So it shows that a rule finds its way on another device, not
how exact that device is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")  # the name of one that every build of torch knows
MOVES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
INDEXED = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}  # by indices that may lie on the CPU


class Elsewhere(Tensor):
    """A tensor there."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Elsewhere":
        there: Elsewhere = Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device=DEVICE
        )
        there.held = held
        return there

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(function, args, kwargs or {})

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("This tensor is not on the CPU.")


class _Elsewhere(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(function, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Has numbers from Python brought along, which torch leaves behind for the device of this name."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.tensor and kwargs.get("device") == DEVICE:
            return torch.tensor(*args, **{**kwargs, "device": "cpu"}).to(DEVICE)
        if function in (Tensor.__getitem__, Tensor.__setitem__):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            places = tuple(torch.tensor(place) if isinstance(place, list) else place for place in places)
            args = (args[0], places, *args[2:])
        return function(*args, **kwargs)


@contextmanager
def another_device() -> Iterator[Callable[[Tensor], Tensor]]:
    """Has the device exist; what is given moves a tensor there."""
    with _Elsewhere(), _Made():
        yield lambda tensor: tensor.to(DEVICE)


def _compute(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    here = [tensor for tensor in tensors if not isinstance(tensor, Elsewhere) and tensor.ndim]
    if there and here and function not in MOVES and not (function in INDEXED and isinstance(args[0], Elsewhere)):
        raise RuntimeError(f"Expected all tensors of {function} to be on the same device.")
    wanted = kwargs.get("device")
    goes_there = wanted == DEVICE if wanted is not None else bool(there)
    if function is torch.ops.aten.copy_.default:
        goes_there = isinstance(args[0], Elsewhere)
    kwargs = {**kwargs, "device": torch.device("cpu")} if wanted is not None else kwargs
    owners = {id(tensor.held): tensor for tensor in there}
    inner = tree_map(lambda value: value.held if isinstance(value, Elsewhere) else value, (args, dict(kwargs)))
    result = function(*inner[0], **inner[1])
    if not goes_there:
        return result
    return tree_map(
        lambda r: owners[id(r)] if id(r) in owners else Elsewhere(r) if isinstance(r, Tensor) else r, result
    )
