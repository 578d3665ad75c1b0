"""Values as JSON and bytes, and back: the state of a run between steps, without pickle.

`pack` converts any value of numbers, text, None, tensors, lists, tuples, sets, mappings, NamedTuples and frozen
dataclasses, at any depth; `unpack` makes an equal value of the same types.  Three properties are kept that a plain copy
loses: tensors that share memory share it again; memory is kept once, and only the parts that some tensor uses; and each
tensor begins at its old distance from a 64-byte border, on which the last bits of a product can depend.

Unpacking runs no foreign code: a class is looked up among the modules that are loaded already, must be a NamedTuple or
a frozen dataclass, and is filled without its constructor.  Fields that were appended to it since, with defaults, have
these.
"""

import dataclasses
import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from typing_extensions import override

ALIGNMENT = 64  # bytes; all memory that torch allocates begins at a multiple
PLAIN = (type(None), bool, int, float, str)
COLLECTIONS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
MAPPINGS: dict[str, type] = {"dict": dict, "mappingproxy": MappingProxyType}
WIDTHS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64)}  # in bits
NUMBERS = {"bool": np.bool_} | {name: getattr(np, name) for k, n in WIDTHS.items() for name in (f"{k}{w}" for w in n)}
TAGS = {kind: tag for tag, kind in (COLLECTIONS | MAPPINGS).items()}
KEPT = "Kept are numbers, text, None, tensors, lists, tuples, sets, mappings, NamedTuples and frozen dataclasses"


class UnpackableError(TypeError):
    """A value cannot be kept.  The message says where it is, what it is, and the remedy."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why, self.path = why, ""

    @override
    def __str__(self) -> str:
        return f"{self.path.removeprefix('.') or 'The value'} {self.why}"


class Piece(NamedTuple):
    """A range of memory that tensors use."""

    memory: UInt8[Tensor, "bytes"]  # all that was allocated together
    start: int  # in bytes
    stop: int  # in bytes

    @property
    def lead(self) -> int:
        """Number of bytes between the last border and the beginning."""
        return (self.memory.data_ptr() + self.start) % ALIGNMENT

    @property
    def size(self) -> int:
        """Number of bytes from border to border."""
        return -(-(self.lead + self.stop - self.start) // ALIGNMENT) * ALIGNMENT

    def read(self) -> tuple[bytes, UInt8[Tensor, "held"], bytes]:
        """Return the bytes between the borders, in the CPU's memory: zeros, the content, zeros."""
        held = self.stop - self.start
        return bytes(self.lead), self.memory[self.start : self.stop].cpu(), bytes(self.size - self.lead - held)


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """A packed value; its tensors are not copied.

    Args:
        form: all but the content of tensors, as JSON.
        pieces: the content of tensors.
        tensors: the distinct ones.
        writes: number of writes to each so far; None if torch does not count them.
    """

    form: dict[str, Any]
    pieces: tuple[Piece, ...]
    tensors: tuple[Tensor, ...]
    writes: tuple[int | None, ...]

    @property
    def size(self) -> int:
        """Number of bytes of the tensors' content."""
        return sum(piece.size for piece in self.pieces)

    @property
    def unchanged(self) -> bool:
        """Whether the tensors are known to be unchanged since they were packed."""
        pairs = zip(self.tensors, self.writes, strict=True)
        return all(writes is not None and tensor._version == writes for tensor, writes in pairs)


def pack(value: object) -> Packed:
    """Pack a value.

    An unpacked set is equal, but its order of iteration may differ.

    Raises:
        UnpackableError: something in it is of a kind that is not kept.
    """
    packer = _Packer()
    try:
        tree = packer.visit(value)
    except RecursionError:
        raise UnpackableError("is nested too deeply, or contains itself.") from None
    tensors = tuple(packer.tensors.values())
    pieces, places = _pieces(tensors)
    form = {
        "tree": tree,
        "classes": [[_path(kind), list(_fields(kind) or ())] for kind in packer.classes],
        "tensors": [_described(tensor, *place) for tensor, place in zip(tensors, places, strict=True)],
        "pieces": [[piece.size, piece.memory.device.type == "cpu"] for piece in pieces],
    }
    return Packed(form, pieces, tensors, tuple(None if t.is_inference() else t._version for t in tensors))


def unpack(form: dict[str, Any], pieces: Sequence[UInt8[Tensor, "_"]], device: torch.device | str = "cpu") -> Any:
    """Return the value of a packed form.

    Args:
        form: as packed.
        pieces: from border to border, each at the beginning of memory of its own.
        device: takes the tensors that were not in the CPU's memory.

    Raises:
        ValueError: the form is not one that `pack` made, or a class is missing, or has changed.
    """
    try:
        places = [p if on_cpu else p.to(device) for p, (_, on_cpu) in zip(pieces, form["pieces"], strict=True)]
        tensors = [_tensor(places[k], *described) for k, *described in form["tensors"]]
        classes = [_class(path, fields) for path, fields in form["classes"]]
        return _Unpacker(tensors, classes).visit(form["tree"])
    except (LookupError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"it does not describe a value ({type(error).__name__}: {error})") from error


# Trees


class _Packer:
    def __init__(self) -> None:
        self.tensors = dict[tuple[Any, ...], Tensor]()
        self.classes = dict[type, int]()
        self._numbers = dict[tuple[Any, ...], int]()

    def visit(self, value: Any) -> Any:
        """Return the value as JSON: a plain one as itself, others as a list that begins with a tag."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is Tensor:
            return ["tensor", self._tensor(value)]
        if kind in COLLECTIONS.values():
            return [TAGS[kind], *(self._within("[{}]", k, item) for k, item in enumerate(value))]
        if kind in MAPPINGS.values():
            return [TAGS[kind], *([self.visit(k), self._within("[{!r}]", k, item)] for k, item in value.items())]
        if isinstance(value, np.generic) and value.dtype.name in NUMBERS:
            return ["numpy", value.dtype.name, value.item()]
        if (fields := _fields(kind)) is not None:
            return ["record", self._class(kind), *(self._within(".{}", name, getattr(value, name)) for name in fields)]
        raise UnpackableError(f"is a {kind.__name__}. {KEPT}.")

    def _within(self, step: str, key: object, value: object) -> Any:
        try:
            return self.visit(value)
        except UnpackableError as error:
            error.path = step.format(key) + error.path
            raise

    def _tensor(self, tensor: Tensor) -> int:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise UnpackableError("is a tensor that is sparse, quantized or without content. Make it a dense one.")
        if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
            raise UnpackableError(
                "is a tensor with a gradient or a lazy conjugate. Give its content: t.detach().clone()."
            )
        memory = tensor.untyped_storage().data_ptr(), tensor.device
        key = (*memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        self.tensors.setdefault(key, tensor)
        return self._numbers.setdefault(key, len(self._numbers))

    def _class(self, kind: type) -> int:
        if kind not in self.classes and _found(_path(kind)) is not kind:
            raise UnpackableError(
                f"is a {kind.__name__}, which cannot be imported as {_path(kind)}. Define it at the top of a module."
            )
        return self.classes.setdefault(kind, len(self.classes))


class _Unpacker(NamedTuple):
    tensors: Sequence[Tensor]
    classes: Sequence[type]

    def visit(self, tree: Any) -> Any:
        """Return the value of a tree."""
        if not isinstance(tree, list):
            return tree
        tag, *items = tree
        if tag in COLLECTIONS:
            return COLLECTIONS[tag](map(self.visit, items))
        if tag in MAPPINGS:
            return MAPPINGS[tag]({self.visit(key): self.visit(item) for key, item in items})
        if tag == "record":
            return _filled(self.classes[items[0]], [self.visit(item) for item in items[1:]])
        if tag == "tensor":
            return self.tensors[items[0]]
        if tag == "numpy":
            return NUMBERS[items[0]](items[1])
        raise ValueError(f"it does not describe a value (there is nothing called {tag!r})")


# Classes


def _fields(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a NamedTuple or a frozen dataclass; None for other classes."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple(kind._fields)
    if dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return tuple(f.name for f in dataclasses.fields(kind))
    return None


def _filled(kind: type, values: Sequence[object]) -> Any:
    """Return a record of that class; fields that it did not have when it was packed have their defaults."""
    names = _fields(kind) or ()
    if len(values) < len(names):
        defaults = _defaults(kind)
        values = [*values, *(defaults[name] for name in names[len(values) :])]
    named = list(zip(names, values, strict=True))
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values)
    made = object.__new__(kind)
    for name, value in named:
        object.__setattr__(made, name, value)
    return made


def _defaults(kind: Any) -> dict[str, Any]:
    """Return the defaults of those fields of a NamedTuple or a frozen dataclass that have one."""
    if issubclass(kind, tuple):
        return dict(kind._field_defaults)
    made = {f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}
    factories = {f.name: f.default_factory for f in dataclasses.fields(kind)}
    return made | {name: make() for name, make in factories.items() if make is not dataclasses.MISSING}


def _path(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _found(path: str) -> object:
    """Return the object at a path in the loaded modules; None if there is none."""
    module, _, name = path.partition(":")
    place: Any = sys.modules.get(module)
    for part in name.split("."):
        place = vars(place).get(part) if hasattr(place, "__dict__") else None
    return place


def _class(path: str, fields: list[str]) -> type:
    kind = _found(path)
    if not isinstance(kind, type) or _fields(kind) is None:
        raise ValueError(f"there is no NamedTuple or frozen dataclass {path} in the modules that are loaded")
    names = list(_fields(kind) or ())
    if names[: len(fields)] != fields or not _defaults(kind).keys() >= set(names[len(fields) :]):
        raise ValueError(f"{path} has not the fields {', '.join(fields)}")
    return kind


# Tensors


def _pieces(tensors: Sequence[Tensor]) -> tuple[tuple[Piece, ...], list[tuple[int, int]]]:
    """Return the memory that tensors use, and the place of each in it: the number of the piece, and its offset."""
    spans = sorted((t.untyped_storage().data_ptr(), str(t.device), *_span(t), k) for k, t in enumerate(tensors))
    pieces, places = list[Piece](), dict[int, tuple[int, int]]()
    last: tuple[int, str] | None = None
    for address, device, start, stop, k in spans:
        if last == (address, device) and start <= pieces[-1].stop:
            pieces[-1] = pieces[-1]._replace(stop=max(stop, pieces[-1].stop))
        else:
            pieces.append(Piece(_memory(tensors[k]), start, stop))
        last = address, device
        places[k] = len(pieces) - 1, pieces[-1].lead + start - pieces[-1].start
    return tuple(pieces), [places[k] for k in range(len(tensors))]


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the range of bytes of its memory that a tensor uses."""
    start = int(tensor.storage_offset()) * tensor.itemsize
    reach = 1 + sum((int(n) - 1) * int(step) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (reach * tensor.itemsize if tensor.numel() else 0)


def _memory(tensor: Tensor) -> UInt8[Tensor, "_"]:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _described(tensor: Tensor, piece: int, offset: int) -> list[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    return [piece, offset, name, list(tensor.shape), list(tensor.stride())]


def _tensor(piece: UInt8[Tensor, "_"], offset: int, name: str, shape: list[int], stride: list[int]) -> Tensor:
    dtype = getattr(torch, name)
    if name.startswith(("q", "bits")):
        raise ValueError(f"a tensor of {name} is not kept")
    if offset % dtype.itemsize:
        raise ValueError(f"a tensor of {name} cannot begin at byte {offset}")
    return piece.view(dtype).as_strided(shape, stride, offset // dtype.itemsize)
