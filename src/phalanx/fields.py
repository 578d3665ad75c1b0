"""The declared types and ranges of fields, and the check of both.

A range is part of a type: `momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9`, with `Meta` of msgspec.  A number with
a `Meta` must be finite, unless `INFINITE` follows it, which allows infinity.  The description of a `Meta` is the reason
for the range; the message of an error gives it.  The command line shows ranges in its help.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta
from typing_extensions import is_protocol

R = TypeVar("R")
INFINITE = "infinite"  # after a `Meta`: infinity is in the range
LEFT_OUT = "left_out"  # in the metadata of a field: the value that identities leave out, where its default is another
NULL_IS = "null_is"  # in the metadata of a field: the value that null is in identities, which leave out both
UNIDENTIFIED = "unidentified"  # in the metadata of a field: that no identity has it, as it changes no number of a run

PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]  # finite, as the next two
NonNegativeFloat = Annotated[float, Meta(ge=0)]
FiniteFloat = Annotated[float, Meta()]

PLAIN: dict[Any, tuple[type, str]] = {
    int: (Integral, "an integer"),
    float: (Real, "a number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
    type(None): (type(None), "null"),
}
SEQUENCES = (tuple, list, Sequence)
NUMBERS, REMEMBERED = (int, float), 1000  # types of numbers, of which so many are remembered as right for a field


class CheckedFields:
    """A base for frozen dataclasses whose fields are checked when one is made.

    A subclass with checks of its own calls `super().__post_init__()` first.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check all fields.

        Raises:
            TypeError: a field holds another type than declared, or a class instead of an instance.
            ValueError: fields are out of their ranges; the message names all of them.
        """
        check_fields(self)


def check_fields(
    value: Any, remedies: Mapping[str, str] = types.MappingProxyType({}), base: type | None = None
) -> None:
    """Check that the fields of a dataclass have their declared types, and numbers their ranges.

    Args:
        value: the dataclass.
        remedies: for a field, what to do if it holds another type.
        base: a base of its class, whose fields alone are checked; None: all fields.

    Raises:
        TypeError: a field holds another type, or, at any depth, a class instead of an instance.
        ValueError: fields are out of their ranges, or none of the texts that are allowed.
    """
    wrong = list[str]()
    own: Any = base or type(value)
    for name, kinds, right in _checks(own):
        given = getattr(value, name)
        kind: Any = type(given)
        if kind in right or (kind in NUMBERS and (kind, given) in right):
            for inner in _inner(kind):
                _check_instance(getattr(given, inner, None), f"{name}.{inner}")
            continue
        _check_instance(given, name)
        if fitting := [kind for kind in kinds if _is_a(given, bare(kind))]:
            if not any(_in_range(given, kind) for kind in fitting):
                wrong.append(_message(name, given, fitting))
            wrong += _wrong_items(name, given, fitting)
            if not wrong and len(right) < REMEMBERED:
                right.update([kind] if _right(kind, kinds) else [(kind, given)] if kind in NUMBERS else [])
        else:
            text = isinstance(given, str) and any(typing.get_origin(kind) is Literal for kind in kinds)
            remedy = f" {remedies[name]}" if name in remedies else ""
            must = f"{name} must be {' or '.join(map(described, kinds))}, got {_short(given)}"
            raise ValueError(f"{must}.{remedy}") if text else TypeError(f"{must} ({type(given).__name__}).{remedy}")
    if wrong:
        raise ValueError("; ".join(wrong) + ".")


def _remembered(function: Callable[[Any], R]) -> Callable[[Any], R]:
    """Return a function that remembers what it returned, but for types without a hash, as their notes can make them."""
    remembering = cache(function)

    @wraps(function)
    def wrapped(kind: Any) -> R:
        try:
            return remembering(kind)
        except TypeError:
            return function(kind)

    return wrapped


@_remembered
def _checks(kind: Any) -> tuple[tuple[str, tuple[Any, ...], set[Any]], ...]:
    """Return the fields of a dataclass, the types that each can have, and what has been found right for it.

    That is a type, if all its values are, or a type and a number.
    """
    return tuple((name, kinds, set()) for name, kinds in declared(kind).items())


def _right(own: Any, kinds: tuple[Any, ...]) -> bool:
    """Return whether all values of a type are right for a field, but for what their own fields hold."""
    if own in kinds and own in (int, bool, str, type(None)):
        return True
    classes = [kind for kind in kinds if isinstance(kind, type) and kind not in PLAIN and not is_protocol(kind)]
    return bool(_inner(own)) and issubclass(own, tuple(classes))


@_remembered
def declared(kind: Any) -> dict[str, tuple[Any, ...]]:
    """Return the types that each field of a dataclass can have, with their ranges.

    Nothing if a type is not known at run time, such as one that is imported for type checkers only.
    """
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except NameError:
        return {}
    return {f.name: members(hints[f.name]) for f in dataclasses.fields(kind) if f.init}


def in_order(kind: Any) -> list["dataclasses.Field[Any]"]:
    """Return the fields of a dataclass in the order of its arguments: those that go by name alone come last."""
    return sorted(dataclasses.fields(kind), key=lambda field: field.kw_only is True)


@_remembered
def members(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type alone."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if union else (kind,)


@_remembered
def bare(kind: Any) -> Any:
    """Return a type without its range."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


@_remembered
def range_of(kind: Any) -> Meta | None:
    """Return the range that a type declares; None if it has none."""
    found = typing.get_args(kind)[1:] if typing.get_origin(kind) is Annotated else ()
    return next((each for each in found if isinstance(each, Meta)), None)


def described(kind: Any) -> str:
    """Return in words what a type allows: "a number in [0, 1)", "an Aggregator"."""
    if typing.get_origin(kind) is Literal:
        listed = ", ".join(map(repr, typing.get_args(kind)))
        return f"one of {listed}" if len(typing.get_args(kind)) > 1 else listed
    noun = bare(kind)
    if noun in PLAIN:
        meta = range_of(kind)
        return _noun(kind, meta) if meta else PLAIN[noun][1]
    if typing.get_origin(noun) in SEQUENCES:
        item = _item(noun)
        return f"a sequence such as (64,), each {described(item)}" if item else "a sequence"
    name = getattr(noun, "__name__", str(noun))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _check_instance(value: Any, path: str) -> None:
    """Raise TypeError if a class is given instead of an instance, in a value or in its fields."""
    if isinstance(value, type):
        name = value.__name__
        raise TypeError(f"{path} must be a value, got the class {name}. Write {name}(), with its arguments if any.")
    kind: Any = type(value)
    for name in _inner(kind):
        _check_instance(getattr(value, name, None), f"{path}.{name}")


@cache
def _inner(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that can hold other values; none of a type that is none."""
    if not dataclasses.is_dataclass(kind) or hasattr(kind, "canonical"):
        return ()
    return tuple(f.name for f in dataclasses.fields(kind))


def _is_a(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if typing.get_origin(kind) in SEQUENCES:
        return isinstance(value, (tuple, list, range) if typing.get_origin(kind) is Sequence else (tuple, list))
    if kind in PLAIN:
        return isinstance(value, PLAIN[kind][0]) and (kind is bool or not isinstance(value, bool))
    return not isinstance(kind, type) or kind is Any or is_protocol(kind) or isinstance(value, kind)


def _in_range(value: Any, kind: Any) -> bool:
    if (meta := range_of(kind)) is None:
        return True
    if isinstance(value, Sequence):
        return meta.min_length is None or len(value) >= meta.min_length
    low = -math.inf if meta.ge is None else meta.ge
    high = math.inf if meta.le is None else meta.le
    inside = low <= value <= high and not (meta.gt is not None and value <= meta.gt)
    inside = inside and not (meta.lt is not None and value >= meta.lt)
    finite = abs(value) < math.inf or INFINITE in typing.get_args(kind)
    return bool(inside and finite) and (meta.multiple_of is None or value % meta.multiple_of == 0)


def _wrong_items(name: str, value: Any, kinds: Sequence[Any]) -> Iterator[str]:
    """Yield what is wrong with the numbers in a sequence whose type declares their range."""
    for kind in kinds:
        if (item := _item(bare(kind))) is not None and isinstance(value, (tuple, list)):
            for place, each in enumerate(value):
                if not _is_a(each, bare(item)) or not _in_range(each, item):
                    yield f"{name}[{place}] must be {described(item)}, got {_short(each)}"


@_remembered
def _item(kind: Any) -> Any:
    """Return the type, with a range, of the items of a sequence; None if they have no range."""
    return next((each for each in typing.get_args(kind) if range_of(each)), None)


def _message(name: str, value: Any, kinds: Sequence[Any]) -> str:
    """Return what is wrong with a value of the right type that lies in none of the ranges."""
    if isinstance(value, Sequence):
        return f"{name} must hold at least {range_of(kinds[0]).min_length}, got {_short(value)}"  # type: ignore[union-attr]
    ranges = [(kind, meta) for kind in kinds if (meta := range_of(kind))]
    allowed = ", or ".join(_must(kind, meta) for kind, meta in ranges)
    reason = next((f": {meta.description}" for _, meta in ranges if meta.description), "")
    return f"{name} must {allowed}, got {_short(value)}{reason}"


def _must(kind: Any, meta: Meta) -> str:
    """Return the predicate of a range: "be at least 1", "lie in [0, 1)"."""
    low, high = (meta.ge if meta.gt is None else meta.gt), (meta.le if meta.lt is None else meta.lt)
    if meta.multiple_of is not None:
        return f"be a multiple of {meta.multiple_of}" + (f", at least {low}" if low is not None else "")
    if low is not None and high is not None:
        return f"lie in {'[' if meta.gt is None else '('}{low:g}, {high:g}{']' if meta.lt is None else ')'}"
    finite = "" if bare(kind) is int or INFINITE in typing.get_args(kind) else " and finite"
    if high is not None:
        return f"be {'at most' if meta.lt is None else 'below'} {high:g}{finite}"
    if low is None:
        return "be finite"
    if meta.gt is None:
        return f"be at least {low:g}{finite}"
    return f"be {'positive' if low == 0 else f'above {low:g}'}{finite}"


def _noun(kind: Any, meta: Meta) -> str:
    """Return in words the numbers of a range: "an integer of at least 1", "a positive number"."""
    noun, words = PLAIN[bare(kind)][1], _must(kind, meta).removesuffix(" and finite")
    if words.startswith("lie in "):
        return f"{noun} {words.removeprefix('lie ')}"
    if words in ("be positive", "be finite"):
        return f"a {words.removeprefix('be ')} {noun.split()[1]}"
    return f"{noun}{' of' if words.startswith('be at ') else ','} {words.removeprefix('be ')}"


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
