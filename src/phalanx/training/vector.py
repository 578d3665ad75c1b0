"""Modules as flat vectors.

A model is sent as one `(d,)` tensor: its trainable parameters in the order of `module.parameters()`, each in row-major
order, one after the other.  `FlatModule` binds a module to such vectors without rebuilding it: its parameters and their
gradients are views of two flat tensors, so loading a model is a copy, and a step of gradient descent is one addition.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from phalanx.core import Served, Vector
from phalanx.models import Model
from phalanx.numerics.allocation import check_fits, room
from phalanx.wording import shown

BufferPolicy = Literal["refuse", "average", "freeze"]
# Torch 2.13 computes wrong gradients of instance normalisation of one image where images lie channels last, and crashes
# in group normalisation of such images that need no gradient.
INSTANCES = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
COPIES = 3  # of a model, at least, that training takes: parameters, gradient, and what the server holds


def check_size(model: Model, shape: tuple[int, ...], classes: int) -> None:
    """Raise `InfeasibleError` if a network takes more memory than this machine has; nothing is allocated for that.

    A network that cannot be built without content is not checked.
    """
    try:
        with warnings.catch_warnings(action="ignore"), torch.device("meta"):
            module = model.build(shape, classes)
    except Exception:  # whatever is wrong, building it with content says so
        return
    held = [*module.parameters(), *module.buffers()]
    count, size = sum(t.numel() for t in held), sum(t.numel() * t.itemsize for t in held)
    check_fits(COPIES * size, f"Training {shown(str(model))} with its {count:,} parameters")


def rows_as_matrix(rows: Sequence[Vector]) -> Tensor:
    """Return the rows as an `(m, d)` tensor, without a copy if they are adjacent in one storage."""
    if len(rows) == 1 and rows[0].is_contiguous():
        return rows[0][None]  # the single update of an asynchronous step
    first, d = rows[0], rows[0].numel()
    origin, storage = first.storage_offset(), first.untyped_storage().data_ptr()
    adjacent = all(
        row.is_contiguous() and row.untyped_storage().data_ptr() == storage and row.storage_offset() == origin + k * d
        for k, row in enumerate(rows)
    )
    if adjacent:
        return first.as_strided((len(rows), d), (d, 1), origin)
    return torch.stack([row.detach() for row in rows], out=room((len(rows), d), first.dtype, first.device))


def scores_of(outputs: Any) -> Any:
    """Return the tensor in the outputs of a module that gives more than one.

    Of outputs with `logits`, as models of the `transformers` library and networks with auxiliary classifiers give them,
    these are returned; of a tuple or list, its first tensor if it begins with it.  Others are returned as they are.
    """
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        return outputs.get("logits", outputs)
    first = outputs[0] if isinstance(outputs, tuple | list) and outputs else outputs
    return getattr(outputs, "logits", first if isinstance(first, Tensor) else outputs)


class FlatModule:
    """A module whose parameters are views of one flat vector.

    Args:
        module: the module, which is changed: its parameters are moved into one flat tensor.
        buffers: policy for buffers, such as the running statistics of batch normalisation. "refuse": a module with
            buffers is an error. "average": floating-point buffers are sent after the parameters and aggregated like
            them; the others keep their current values. "freeze": all keep their current values.
        device: device for the computations.
        personal: returns, of the names of the trainable parameters, those that stay at a client. They are not sent;
            vectors that have them have them at the end.

    Raises:
        ValueError: if the module has no trainable parameters, several dtypes, or buffers and no policy for them.
    """

    def __init__(
        self,
        module: nn.Module,
        buffers: BufferPolicy = "refuse",
        device: torch.device | str = "cpu",
        personal: Callable[[Sequence[str]], Collection[str]] = lambda names: (),
    ) -> None:
        self.module = module.to(device)
        tensors = sent_tensors(self.module, buffers)
        parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        names = personal([*parameters])
        shared, own = ([p for n, p in parameters.items() if (n in names) is kept] for kept in (False, True))
        travelling = tensors[len(parameters) :]
        self.size = sum(t.numel() for t in [*shared, *travelling])
        self.trainable = sum(p.numel() for p in parameters.values())
        self.dtype, self.device = tensors[0].dtype, tensors[0].device
        self.convolutional = any(p.ndim == 4 for p in parameters.values())
        self.separable = dict[int, bool]()  # by size of a batch: whether outputs in parts have the bits of the whole
        self.values = torch.empty(sum(t.numel() for t in tensors), dtype=self.dtype, device=self.device)
        self.gradient = torch.zeros(self.trainable, dtype=self.dtype, device=self.device)
        kinds = [type(part) for part in self.module.modules()]
        self._in_rows = any(issubclass(kind, INSTANCES) for kind in kinds)
        self._watched = any(issubclass(kind, nn.GroupNorm) for kind in kinds)
        self.layout = "rows" if self._in_rows else "last"  # of images in the module: channels last, or row-major
        views = _bind([*shared, *own, *travelling], self.values, self.gradient, last=not self._in_rows)
        self._entries = _numbered([*views[: len(shared)], *views[len(parameters) :], *views[len(shared) :][: len(own)]])
        self._own = torch.cat([self.values[:0], *(p.detach().flatten() for p in own)])
        self._plain = not own and (
            self._in_rows or all(t.ndim != 4 for t in tensors)
        )  # the values lie as in a sent vector
        self._frozen = [
            (b, b.clone()) for b in self.module.buffers() if buffers == "freeze" or not b.is_floating_point()
        ]

    def outputs(self, x: Tensor | Mapping[str, Tensor]) -> Any:
        """Return the outputs for a batch; several inputs are keyword arguments.

        See `scores_of` for outputs that are no tensor.
        """
        if isinstance(x, Tensor):
            found = self.module(self._arranged_input(x))
        else:
            found = self.module(**{name: self._arranged_input(part) for name, part in x.items()})
        return scores_of(found)

    def _arranged_input(self, x: Tensor) -> Tensor:
        if self._in_rows:
            return x.contiguous().flatten().view(x.shape)  # with the strides of rows, also of one channel
        return x.detach().requires_grad_() if self._watched and x.is_floating_point() and torch.is_grad_enabled() else x

    def load(self, vector: Served) -> None:
        """Set all parameters, and reset the buffers that are not part of the vector.

        Personal parameters that the vector does not have get their initial values.
        """
        if len(vector) < len(self.values):
            vector = self.whole(vector)
        with torch.no_grad():
            if self._plain:
                self.values.copy_(vector)
            else:
                for view, (start, stop) in self._entries:
                    view.copy_(vector[start:stop].view(view.shape))
            for buffer, value in self._frozen:
                buffer.copy_(value)

    def read(self, out: Served | None = None) -> Served:
        """Return all parameters as a vector, in `out` if it is given; personal ones only if it has room for them."""
        out = torch.empty(self.size, dtype=self.dtype, device=self.device) if out is None else out
        if self._plain:
            return out.copy_(self.values)
        with torch.no_grad():
            for view, (start, stop) in self._entries:
                if stop <= len(out):
                    out[start:stop].view(view.shape).copy_(view)
        return out

    def whole(self, vector: Served, own: Served | None = None) -> Served:
        """Return a sent vector with personal parameters, the initial ones if they are not given."""
        return torch.cat((vector, self._own if own is None else own))

    def arranged(self, vector: Served) -> Vector:
        """Return the entries of a vector that belong to trainable parameters, in the order of `gradient`."""
        if self._plain:
            return vector[: self.trainable]
        vector = self.whole(vector) if len(vector) < len(self.values) else vector
        out = torch.empty_like(self.gradient)
        for view, (start, stop) in self._entries:
            if (at := view.storage_offset()) < self.trainable:
                target = out[at : at + view.numel()].as_strided(view.shape, view.stride())
                target.copy_(vector[start:stop].view(view.shape))
        return out

    def write_change(self, start: Served, out: Served) -> None:
        """Write the parameters minus `start` to `out`."""
        if self._plain:
            torch.sub(self.values, start, out=out)
        else:
            self.read(out).sub_(start)


def sent_tensors(module: nn.Module, buffers: BufferPolicy = "refuse") -> list[Tensor]:
    """Return the tensors of a module that are sent: its trainable parameters, and buffers by their policy.

    Raises:
        ValueError: as for `FlatModule`.
    """
    parameters: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no trainable parameters.")
    tensors = parameters + _travelling_buffers(module, buffers)
    if len(dtypes := {p.dtype for p in tensors}) > 1:
        names = ", ".join(sorted(map(str, dtypes)))
        raise ValueError(
            f"A model is sent as one vector of one dtype, got {names}. Convert it, e.g. by module.float()."
        )
    return tensors


def _travelling_buffers(module: nn.Module, policy: BufferPolicy) -> list[Tensor]:
    buffers = dict(module.named_buffers())
    if buffers and policy == "refuse":
        some = ", ".join(list(buffers)[:3])
        raise ValueError(
            f"{type(module).__name__} has {len(buffers)} buffers ({some}, ...), which gradient descent does not train. "
            'Set buffers="average" to aggregate them, or buffers="freeze" to keep their values.'
        )
    return [b for b in buffers.values() if b.is_floating_point()] if policy == "average" else []


class Reached:
    """Which parameters of a module a gradient reaches, as autograd computes it.

    A parameter that it does not reach has a gradient of zeros here, and none in plain torch, whose optimizers leave it
    as it is: also its weight does not decay.

    Args:
        module: the module, bound to its vector.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._found = set[int]()
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, reached: Tensor) -> None:
        self._found.add(id(reached))

    def missing(self) -> list[nn.Parameter]:
        """Return the parameters that no gradient has reached since the last call."""
        found, self._found = self._found, set()
        return [] if len(found) == len(self._parameters) else [p for p in self._parameters if id(p) not in found]


def _bind(tensors: Iterable[Tensor], values: Tensor, gradient: Tensor, *, last: bool) -> list[Tensor]:
    """Make each tensor a view of its part of `values`, and its gradient, if any, a view of its part of `gradient`.

    Args:
        tensors: the tensors.
        values: receives their values.
        gradient: receives their gradients.
        last: whether convolution weights are stored channels last inside their part, the fastest layout for
            convolutions; the vectors that are loaded and read are row-major nevertheless.
    """
    shaped = _shaped if last else torch.Tensor.view
    views, start = [], 0
    for tensor in tensors:
        stop = start + tensor.numel()
        view = shaped(values[start:stop], tensor.shape)
        view.copy_(tensor.detach())
        tensor.data = view
        if isinstance(tensor, nn.Parameter):
            tensor.grad = shaped(gradient[start:stop], tensor.shape)
        views.append(view)
        start = stop
    return views


def _numbered(views: Iterable[Tensor]) -> list[tuple[Tensor, tuple[int, int]]]:
    """Return each view with its range in a vector that holds them in this order."""
    entries, at = [], 0
    for view in views:
        entries.append((view, (at, at := at + view.numel())))
    return entries


def _shaped(part: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) != 4:
        return part.view(shape)
    o, i, h, w = shape
    return part.view(o, h, w, i).permute(0, 3, 1, 2)


def channels_last(x: Tensor) -> Tensor:
    """Return images (n, c, h, w) in the memory layout "channels last".

    Images of one channel have this layout already, and torch does not change their strides.  But convolution and
    pooling choose their kernels by the strides, and with those of "channels first" they choose kernels that are ten
    times slower.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    channels, height, width = x.shape[1:]
    return x.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))
