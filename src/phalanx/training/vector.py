"""Modules as flat vectors.

A model travels as one `(d,)` tensor: its trainable parameters in the order of `module.parameters()`, each in row-major
order, one after the other.  `FlatModule` binds a module to such vectors without rebuilding it: its parameters and their
gradients are views of two flat tensors, so that loading a model is a copy, and a step of gradient descent one addition.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from phalanx.core import Vector
from phalanx.numerics.memory import room

BufferPolicy = Literal["refuse", "average", "freeze"]


def rows_as_matrix(rows: Sequence[Vector]) -> Tensor:
    """The rows as an `(m, d)` tensor: without a copy where they already lie one behind the other in one storage."""
    if len(rows) == 1 and rows[0].is_contiguous():
        return rows[0][None]  # an arrival: nothing to look at
    first, d = rows[0], rows[0].numel()
    origin, storage = first.storage_offset(), first.untyped_storage().data_ptr()
    adjacent = all(
        row.is_contiguous() and row.untyped_storage().data_ptr() == storage and row.storage_offset() == origin + k * d
        for k, row in enumerate(rows)
    )
    if adjacent:
        return first.as_strided((len(rows), d), (d, 1), origin)
    return torch.stack([row.detach() for row in rows], out=room((len(rows), d), first.dtype, first.device))


class FlatModule:
    """A module and the vectors that it reads and writes.

    Args:
        module: taken over: its parameters are moved into one flat tensor.
        buffers: what becomes of buffers, such as the running statistics of batch normalisation.  "refuse": a module
            with buffers is an error; "average": floating-point buffers travel behind the parameters, and are aggregated
            like them, the others keep the values that they have now; "freeze": all keep the values that they have now.
        device: where it computes.

    Raises:
        ValueError: nothing to train, parameters of several dtypes, or buffers without a policy.
    """

    def __init__(self, module: nn.Module, buffers: BufferPolicy = "refuse", device: torch.device | str = "cpu") -> None:
        self.module = module.to(device)
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        travelling = parameters + _travelling_buffers(self.module, buffers)
        if not parameters:
            raise ValueError(f"{type(module).__name__} has no trainable parameters.")
        if len(dtypes := {p.dtype for p in travelling}) > 1:
            names = ", ".join(sorted(map(str, dtypes)))
            raise ValueError(
                f"A model travels as one vector of one dtype, got {names}. Convert it, e.g. by module.float()."
            )
        self.size = sum(p.numel() for p in travelling)
        self.trainable = sum(p.numel() for p in parameters)
        self.dtype, self.device = parameters[0].dtype, parameters[0].device
        self.convolutional = any(p.ndim == 4 for p in parameters)
        self.values = torch.empty(self.size, dtype=self.dtype, device=self.device)
        self.gradient = torch.zeros(self.trainable, dtype=self.dtype, device=self.device)
        self._entries = _bind(travelling, self.values, self.gradient)
        self._frozen = [
            (b, b.clone()) for b in self.module.buffers() if buffers == "freeze" or not b.is_floating_point()
        ]

    def load(self, vector: Vector) -> None:
        """Sets all parameters."""
        with torch.no_grad():
            for view, (start, stop) in self._entries:
                view.copy_(vector[start:stop].view(view.shape))
            for buffer, value in self._frozen:
                buffer.copy_(value)

    def read(self, out: Vector | None = None) -> Vector:
        """All parameters as a vector, written to `out` if given."""
        out = torch.empty(self.size, dtype=self.dtype, device=self.device) if out is None else out
        with torch.no_grad():
            for view, (start, stop) in self._entries:
                out[start:stop].view(view.shape).copy_(view)
        return out


def _travelling_buffers(module: nn.Module, policy: BufferPolicy) -> list[Tensor]:
    buffers = dict(module.named_buffers())
    if buffers and policy == "refuse":
        some = ", ".join(list(buffers)[:3])
        raise ValueError(
            f"{type(module).__name__} has {len(buffers)} buffers ({some}, ...), which gradient descent does not train. "
            'Choose what becomes of them: buffers="average" or buffers="freeze".'
        )
    return [b for b in buffers.values() if b.is_floating_point()] if policy == "average" else []


def _bind(tensors: Iterable[Tensor], values: Tensor, gradient: Tensor) -> list[tuple[Tensor, tuple[int, int]]]:
    """Moves each tensor into its part of `values`, and the gradient of parameters into that of `gradient`.

    Convolution weights are laid out channels last inside their part, which is what convolutions are fastest with; the
    vectors that are loaded and read are row-major all the same.
    """
    entries, start = [], 0
    for tensor in tensors:
        stop = start + tensor.numel()
        view = _shaped(values[start:stop], tensor.shape)
        view.copy_(tensor.detach())
        tensor.data = view
        if isinstance(tensor, nn.Parameter):
            tensor.grad = _shaped(gradient[start:stop], tensor.shape)
        entries.append((view, (start, stop)))
        start = stop
    return entries


def _shaped(part: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) != 4:
        return part.view(shape)
    o, i, h, w = shape
    return part.view(o, h, w, i).permute(0, 3, 1, 2)
