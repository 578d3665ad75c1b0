"""Every range that a field of the library declares: both ends, just inside, just outside, and what is no number."""

import ast
import importlib
import inspect
import math
import pkgutil
import re
import typing
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated

import jaxtyping
import pytest
from msgspec import Meta

import phalanx
from phalanx import Run, Study
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg, PerLayer, Quorum
from phalanx.attacks import Attack, SignFlip
from phalanx.core import Algorithm
from phalanx.data import Digits, Source
from phalanx.experiments.worst import WorstOf
from phalanx.fields import INFINITE, CheckedFields, PositiveFloat, bare, declared, range_of
from phalanx.flower.kit import Consortium, Site
from phalanx.models import MLP, LoRA, Model
from phalanx.weighting import Ignore

EXAMPLES = {  # of types that a field requires
    Algorithm: FedAvg(preprocess=Ignore()),
    Attack: SignFlip(),
    Source: Digits(),
    Model: MLP(),
    str: "a.name",
}
NEEDED = {  # by classes that not every example suits
    LoRA: {"model": MLP(), "layers": ("0",)},
    Quorum: {"algorithm": FedAvg(aggregate=Median())},
    Study: {"base": Run(), "grid": {}},
    WorstOf: {"attacks": {"flip": SignFlip()}},
    Consortium: {"sites": (Site("Lyon"), Site("Ulm"), Site("Bern")), "schema": Path("schema.json")},
}


def walked():
    """All classes with checked fields that the library defines."""
    for module in pkgutil.walk_packages(phalanx.__path__, "phalanx."):
        if not module.name.startswith(("phalanx.ray", "phalanx.conformance.")):
            importlib.import_module(module.name)
    waiting, found = [CheckedFields], set()
    while waiting:
        below = type.__subclasses__(waiting.pop())
        waiting += below
        found |= {k for k in below if is_dataclass(k) and not inspect.isabstract(k) and k.__module__.startswith("phal")}
    return sorted(found, key=lambda k: k.__qualname__)


def ranged(kind):
    """The range of each field of a class, with its type."""
    for name, kinds in declared(kind).items():
        found = [k for k in kinds if range_of(k) and bare(k) in (int, float)]
        if len(found) == 1:
            yield name, found[0]


CASES = [(kind, name, declared_) for kind in walked() for name, declared_ in ranged(kind)]


def inside(kind):
    meta = range_of(kind)
    low = next((end for end in (meta.ge, meta.gt) if end is not None), None)
    high = next((end for end in (meta.le, meta.lt) if end is not None), None)
    if bare(kind) is int:
        return (low or 0) + (meta.gt is not None)
    return 0.5 if low is None else (low + high) / 2 if high is not None else low + 1.0


def example(kind):
    """An instance of a class, with examples for what it requires."""
    if kind in EXAMPLES:
        return EXAMPLES[kind]
    hints, taken = declared(kind), dict(NEEDED.get(kind, {}))
    for f in fields(kind):
        if f.init and f.default is f.default_factory and f.name not in taken:
            needed = hints[f.name][0]
            base = bare(needed)
            taken[f.name] = (
                inside(needed)
                if range_of(needed)
                else EXAMPLES.get(base, next((e for k, e in EXAMPLES.items() if k in getattr(base, "__mro__", ())), 1))
            )
    return kind(**taken)


def refusal(value, name, given):
    """What is said of a value for a field; None if it is taken."""
    try:
        replace(value, **{name: given})
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def refused(value, name, given):
    """Whether a value is out of the range of a field; other conditions, on several fields, do not count."""
    said = refusal(value, name, given) or ""
    return bool(re.search(rf"\b{name} must (lie in|be (at least|above|pos|fin|a multiple of \d)).*, got", said))


def problems(kind, name, declared_):
    """The values that a field takes although they are out of its range, or refuses although they are in it."""
    value, meta, step = example(kind), range_of(declared_), 1 if bare(declared_) is int else 1e-9
    wanted = {inside(declared_): False, math.nan: True}
    for end, out, included in (
        (meta.ge, -1, True),
        (meta.gt, -1, False),
        (meta.le, 1, True),
        (meta.lt, 1, False),
    ):
        if end is not None:
            beyond = step * max(1.0, abs(end)) if step < 1 else step * (meta.multiple_of or 1)
            wanted |= {end: not included, end + out * beyond: True, end + 100 * out: True}
    if bare(declared_) is int:
        wanted = {given: out for given, out in wanted.items() if given == given}  # noqa: PLR0124  (not NaN)
    else:
        closed = meta.le is not None or meta.lt is not None
        wanted[math.inf] = closed or INFINITE not in typing.get_args(declared_)
    return {given: out for given, out in wanted.items() if refused(value, name, given) is not out}


@pytest.fixture(autouse=True)
def _as_in_a_program(monkeypatch):
    """Without the checker of types that looks at calls during tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def test_ranges_are_found():
    assert len(CASES) > 150


@pytest.mark.parametrize(("kind", "name", "declared_"), CASES, ids=lambda v: getattr(v, "__name__", str(v))[:20])
def test_a_field_has_the_range_that_it_declares(kind, name, declared_):
    assert problems(kind, name, declared_) == {}
    value = example(kind)
    for given in ("1", True, [1.0], int):
        assert refusal(value, name, given).startswith(("TypeError", "ValueError")), given


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in CASES}, key=lambda k: k.__qualname__))
def test_a_docstring_names_no_other_range(kind):
    ranges = {name: range_of(declared_) for name, declared_ in ranged(kind)}
    for name, text in re.findall(r"^ {8}(\w+): ((?:.*\n)(?: {9,}.*\n)*)", kind.__doc__ or "", re.MULTILINE):
        for left, low, high, right in re.findall(r"([\[(])(-?[\d.]+), (-?[\d.]+)([\])])", text):
            if (meta := ranges.get(name)) and meta != Meta():
                stated = (meta.ge if left == "[" else meta.gt, meta.le if right == "]" else meta.lt)
                assert stated == (float(low), float(high)), name


def by_hand(tree):
    """Comparisons of one field with a number in `__post_init__`, which belong into its type."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            for compared in (n for n in ast.walk(node) if isinstance(n, ast.Compare)):
                sides = [ast.unparse(side) for side in (compared.left, *compared.comparators)]
                ordered = any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in compared.ops)
                if ordered and all(re.fullmatch(r"self\.\w+|-?[\d.]+", side) for side in sides):
                    yield [side.removeprefix("self.") for side in sides if side.startswith("self.")]


HAND_MADE = {  # with other values or another error than a range gives
    "batch_size": "a whole number of any type, or a share",
    "server_lr": "a second limit, if models are mixed",
    "participation": "a condition on the algorithm",
}


def test_no_range_of_a_field_is_checked_by_hand():
    files = [ast.parse(path.read_text()) for path in Path(phalanx.__file__).parent.rglob("*.py")]
    found = {names[0] for tree in files for names in by_hand(tree) if len(names) == 1}
    assert found == HAND_MADE.keys()


def test_a_class_that_forgets_its_base_is_found():
    @dataclass(frozen=True)
    class Forgetful(CheckedFields):
        rate: PositiveFloat = 1.0

        def __post_init__(self):
            """Check nothing."""

    assert -1e-9 in problems(Forgetful, "rate", PositiveFloat)


def test_a_sequence_is_checked_item_by_item():
    with pytest.raises(ValueError, match=r"sizes\[1\] must be an integer of at least 1, got 0"):
        PerLayer((3, 0))
    with pytest.raises(ValueError, match=r"sizes must hold at least 1, got \(\)"):
        PerLayer(())


def test_a_type_that_is_not_known_at_run_time_is_not_checked():
    @dataclass(frozen=True)
    class Unknown(CheckedFields):
        rate: "OnlyForTypeCheckers" = -1.0

    assert Unknown().rate == -1.0


def test_all_that_is_wrong_is_said_at_once():
    @dataclass(frozen=True)
    class Two(CheckedFields):
        rate: Annotated[float, Meta(ge=0, lt=1, description="it is a share")] = 0.0
        count: Annotated[int, Meta(ge=2, le=4)] | None = None

    with pytest.raises(
        ValueError, match=r"^rate must lie in \[0, 1\), got 1: it is a share; count must lie in \[2, 4\]"
    ):
        Two(1, 5)


@dataclass(frozen=True)
class Noted(CheckedFields):
    """A field with a note that has no hash, as other libraries may write one."""

    share: Annotated[float, ["of all"], Meta(ge=0, le=1)] = 0.5


def test_a_note_without_a_hash_beside_a_range_does_no_harm():
    assert Noted(0.25).share == 0.25
    with pytest.raises(ValueError, match=r"share must lie in \[0, 1\], got 2"):
        Noted(2.0)
