"""Values taken apart and made again: the same types, the same bits, the same sharing, and nothing else."""

import collections
import enum
import inspect
import json
import struct
import types
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import phalanx.algorithms
from algorithms.test_common import ALGORITHMS, one_of_each_class, some_updates, start
from phalanx.core import Local, Verdict
from phalanx.runs.packing import ALIGNMENT, UnpackableError, pack, unpack


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = 0
    total: Any = field(init=False, default=None)

    def __post_init__(self):
        object.__setattr__(self, "total", "computed")


@dataclass
class Changeable:
    x: int


class Colour(enum.IntEnum):
    RED = 1


def pieces_of(packed):
    """The memory, as a file would give it back."""
    out = []
    for piece in packed.pieces:
        before, held, after = piece.read()
        memory = torch.empty(piece.size, dtype=torch.uint8)
        memory[:] = torch.tensor(list(before) + held.tolist() + list(after), dtype=torch.uint8)
        out.append(memory)
    return out


def again(value):
    packed = pack(value)
    return unpack(json.loads(json.dumps(packed.form)), pieces_of(packed))


def same(a, b):  # noqa: PLR0911
    """Whether two values are equal in types and bits, however deep."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        alike = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        raw = [t.contiguous().flatten().view(torch.uint8) if t.numel() else t for t in (a, b)]
        return alike and torch.equal(*raw)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, (dict, types.MappingProxyType)):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return a == b


# --- round trips


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    tensor = torch.arange(1.0, 1 + max(1, int(np.prod(shape)))).to(draw(st.sampled_from(DTYPES)))
    tensor = tensor[: int(np.prod(shape))].reshape(shape)
    look = draw(st.sampled_from(["whole", "transposed", "part", "expanded"]))
    if look == "transposed":
        return tensor.T if tensor.ndim == 2 else tensor
    if look == "part":
        return tensor[1:] if tensor.ndim and len(tensor) else tensor
    return tensor[None].expand(3, *tensor.shape) if look == "expanded" else tensor


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.recursive(plain, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)


def nested(inner):
    return st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4).map(types.MappingProxyType),
        st.builds(Pair, inner, inner),
        st.builds(Point, inner, inner),
    )


values = st.recursive(
    plain | tensors() | st.sets(plain, max_size=4) | st.frozensets(keys, max_size=4) | st.just(float("nan")),
    nested,
    max_leaves=20,
)


@settings(deadline=None)
@given(values)
def test_whatever_is_nested_comes_back_with_types_and_bits(value):
    assert same(again(value), value)


@pytest.mark.parametrize("algorithm", one_of_each_class(ALGORITHMS))
@pytest.mark.filterwarnings("ignore:threshold")
def test_every_state_comes_back(algorithm):
    state, ready = start(algorithm)
    for seed in range(3):
        assert same(again((state, frozenset(ready))), (state, frozenset(ready)))
        state, ready = algorithm.step(state, some_updates(algorithm, state, seed).of(set(ready)))
    assert state.verdicts


def test_the_list_of_algorithms_has_every_state_of_the_library():
    modules = [m for m in vars(phalanx.algorithms).values() if inspect.ismodule(m)]
    states = {
        k
        for m in modules
        for k in vars(m).values()
        if inspect.isclass(k) and {"version", "verdicts"} <= {*getattr(k, "_fields", ())}
    }
    assert states
    assert states <= {type(start(algorithm)[0]) for algorithm in ALGORITHMS}


@pytest.mark.parametrize(
    "value",
    [
        Verdict(True, 0.1, float("nan"), "Łódź \ud800", final=True),
        Local(torch.ones(2), torch.zeros(2)),
        {1: "int", "1": "text", 1.5: "float", None: "none", (1, "a"): "tuple"},
        -0.0,
        float("-inf"),
        10**40,
        np.float32(0.1),
        np.float64(0.1),
        np.int16(-3),
        np.bool_(True),
    ],
    ids=repr,
)
def test_by_hand(value):
    assert same(again(value), value)


def test_a_dataclass_is_filled_without_its_constructor():
    point = Point(1, 2)
    object.__setattr__(point, "total", 3)
    assert again(point).total == 3


# --- memory


def test_what_is_shared_is_shared_again_and_kept_once():
    model = torch.randn(1000)
    packed = pack({"a": model, "b": (model, model[10:20]), "c": model.view(10, 100)})
    assert sum(piece.size for piece in packed.pieces) == 4032
    back = unpack(packed.form, pieces_of(packed))
    assert back["a"] is back["b"][0]
    assert back["b"][1].data_ptr() == back["a"].data_ptr() + 40
    assert back["c"].data_ptr() == back["a"].data_ptr()


def test_of_a_matrix_only_the_rows_in_use_are_kept_each_in_its_place_between_borders():
    rows = torch.randn(50, 37)
    used = {k: rows[k] for k in (3, 4, 30)}
    packed = pack(used)
    assert len(packed.pieces) == 2, "rows 3 and 4 touch"
    assert sum(piece.size for piece in packed.pieces) < 3 * 37 * 4 + 4 * ALIGNMENT
    back = unpack(packed.form, pieces_of(packed))
    assert all(back[k].data_ptr() % ALIGNMENT == rows[k].data_ptr() % ALIGNMENT for k in used)
    assert back[4].data_ptr() == back[3].data_ptr() + 37 * 4
    assert same(back, used)


def test_equal_tensors_in_different_memory_stay_apart():
    back = again((torch.ones(3), torch.ones(3)))
    assert back[0].data_ptr() != back[1].data_ptr()


def test_packing_copies_nothing_and_sees_who_writes():
    mine, other = torch.zeros(3), torch.zeros(3)
    packed = pack(Pair(mine, other))
    assert packed.unchanged
    mine[0] = 1.0
    assert not packed.unchanged
    with torch.inference_mode():
        uncounted = torch.zeros(3)
    assert not pack(uncounted).unchanged, "torch does not count who writes to it"


# --- what is not kept


class Inner:
    class State(NamedTuple):
        x: int


def test_a_class_in_a_class_is_found():
    assert type(again(Inner.State(3))) is Inner.State


def local_class():
    class Hidden(NamedTuple):
        x: int

    return Hidden(3)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), r"The value is a object\. Kept are numbers, text, None, tensors"),
        ({"state": [1, {2: Pair(0, {1, 2}.pop)}]}, r"\['state'\]\[1\]\[2\]\.second is a builtin_function_or_method"),
        (Pair(Changeable(3), 0), r"first is a Changeable"),
        (Pair({}.keys(), 0), r"first is a dict_keys"),
        (collections.OrderedDict(a=1), r"is a OrderedDict"),
        (Colour.RED, r"is a Colour"),
        (b"bytes", r"is a bytes"),
        (torch.float32, r"is a dtype"),
        (np.zeros(3), r"is a ndarray"),
        (np.complex64(1), r"is a complex64"),
        (torch.nn.Parameter(torch.zeros(2)), r"is a Parameter"),
        (torch.ones(2, requires_grad=True), r"with a gradient or a lazy conjugate\. Give its content: t\.detach"),
        (torch.ones(2, dtype=torch.complex64).conj(), r"lazy conjugate"),
        (torch.eye(2).to_sparse(), r"sparse, quantized or without content"),
        (torch.empty(2, device="meta"), r"without content"),
        (
            local_class(),
            r"cannot be imported as test_packing:local_class.<locals>.Hidden. Define it at the top",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_what_is_not_kept_is_named_with_its_place(value, says):
    with pytest.raises(UnpackableError, match=says):
        pack(value)


def test_what_contains_itself_is_no_value():
    loop = []
    loop.append(loop)
    with pytest.raises(UnpackableError, match="nested too deeply, or contains itself"):
        pack(loop)


class Grown(NamedTuple):
    x: int
    since: tuple[int, ...] = (7,)


@dataclass(frozen=True)
class GrownClass:
    x: int
    since: dict[str, int] = field(default_factory=dict)
    later: int = 3


@pytest.mark.parametrize("made", [Grown(1), GrownClass(1)], ids=["NamedTuple", "dataclass"])
def test_fields_that_a_class_was_given_since_have_their_defaults(made):
    form = pack(made).form
    (path, names), tree = form["classes"][0], form["tree"]
    older = form | {"classes": [[path, names[:1]]], "tree": tree[:3]}
    assert unpack(older, []) == made
    with pytest.raises(ValueError, match="has not the fields"):  # x has no default
        unpack(form | {"classes": [[path, []]], "tree": tree[:2]}, [])
    with pytest.raises(ValueError, match="has not the fields since"):
        unpack(form | {"classes": [[path, ["since"]]]}, [])


class Trap(NamedTuple):
    x: int


class Pickled:
    def __reduce__(self):
        return print, ("code was run",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"classes": [["os:system", ["x"]]]}, "there is no NamedTuple or frozen dataclass os:system"),
        ({"classes": [["test_packing:Pickled", ["x"]]]}, "there is no NamedTuple or frozen dataclass"),
        ({"classes": [["antigravity:Trap", ["x"]]]}, "in the modules that are loaded"),
        ({"classes": [["test_packing:Trap", ["x", "y"]]]}, "has not the fields x, y"),
        ({"tree": ["record", 0, 1, 2]}, "is longer than"),
        ({"tree": ["call", 0]}, "there is nothing called 'call'"),
        ({"tree": ["tensor", 7]}, "IndexError"),
        ({"tensors": [[0, 0, "float32", [100], [1]]], "pieces": [[64, True]]}, "out of bounds"),
        ({"tensors": [[0, 2, "float32", [1], [1]]], "pieces": [[64, True]]}, "cannot begin at byte 2"),
        ({"tensors": [[0, 0, "system", [1], [1]]], "pieces": [[64, True]]}, "AttributeError"),
        ({"tensors": [[0, 0, "quint8", [1], [1]]], "pieces": [[64, True]]}, "a tensor of quint8 is not kept"),
        ({"tree": ["numpy", "(,)", 1]}, "KeyError"),  # NumPy reads this as Python, and raised a SyntaxError
        ({"tree": ["numpy", "void", 1 << 30]}, "KeyError"),  # so many bytes were allocated
    ],
    ids=str,
)
def test_a_form_that_nobody_packed_is_an_error_and_runs_no_code(change, says):
    form = pack(Trap(1)).form | change
    memory = [torch.zeros(64, dtype=torch.uint8) for _ in form["pieces"]]
    with pytest.raises(ValueError, match=says):
        unpack(form, memory)
