"""A broken property, and what the checks of all kinds share."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from phalanx.training.gradient import same_bits


class Breach(NamedTuple):
    """A property that does not hold."""

    property: str  # its name, such as "order"
    sentence: str  # what is wrong, and what was expected
    example: str  # for which it is wrong

    @override
    def __str__(self) -> str:
        return f"{self.property}: {self.sentence} {self.example}"


class UntriedError(Exception):
    """A property cannot be tried on this subject: the message says why."""


class Examined(NamedTuple):
    """What the properties of a kind were found to be on one of it."""

    broken: list[Breach]
    untried: dict[str, str]  # properties that could not be tried, each with the reason
    holding: list[str]  # those that were tried, and of which no counterexample was found
    remark: str = ""  # on how it was tried


Found = tuple[str, str] | None  # a counterexample: the sentence, and the example; None: one more case that holds
UNUSED = "phalanx_unused"  # a name that no field has
TRIED = None  # a case that holds; a property without any was not tried
Make = Callable[[int, int], Any]  # makes the subject for m clients, f of them Byzantine
Property = Callable[[Make], Iterator[Found]]


def examined(properties: Mapping[str, Property], make: Make) -> Examined:
    """Return the first counterexample to each property that a subject lacks; an error is one."""
    found = Examined([], {}, [])
    for name, holds in properties.items():
        tried = False
        try:
            for case in holds(make):
                if case is not TRIED:
                    found.broken.append(Breach(name, *case))
                    break
                tried = True
            else:
                if tried:
                    found.holding.append(name)
                else:
                    found.untried[name] = "none of the cases applies"
        except UntriedError as why:
            found.untried[name] = str(why)
        except Exception as error:
            found.broken.append(Breach(name, f"It raised {type(error).__name__}.", str(error) or "It gave no reason."))
    return found


def value(make: Make) -> Iterator[Found]:
    """Yield why a subject is no value that a run can hold: immutable, and equal to what has the same fields."""
    subject = make(8, 1)
    if not dataclasses.is_dataclass(subject) or isinstance(subject, type):
        yield "Its class must be a dataclass with `frozen=True`.", f"{type(subject).__name__} is none."
        return
    for name in (*(field.name for field in dataclasses.fields(subject)), UNUSED):
        with suppress(AttributeError):  # FrozenInstanceError is one; without frozen, slots have no place for new names
            setattr(subject, name, getattr(subject, name, None))
            said = "a name that is no field" if name == UNUSED else f"`{name}`"
            yield "It must be immutable: put `@dataclass(frozen=True)` before its class.", f"{said} could be set."
    yield TRIED
    if hasattr(subject, "canonical"):  # it says itself what identifies it
        return
    copy = dataclasses.replace(subject)
    try:
        equal = copy == subject and hash(copy) == hash(subject)
    except TypeError:  # a list, for example, has no hash
        equal = False
    if not equal:
        yield "A copy must be equal. Make the class a frozen dataclass of plain values.", repr(subject)


def drawing() -> tuple[Any, ...]:
    """Return the states of the global generators of NumPy and torch, to be compared by `same`.

    Not that of Python: type checkers draw from it.  Who draws from it gives something else the second time.
    """
    numbers: Any = np.random.get_state()  # noqa: NPY002  (nothing is drawn)
    return numbers[1].tobytes(), numbers[2], torch.get_rng_state()


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, and tensors within them to the bit."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return same(torch.from_numpy(one), torch.from_numpy(other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and same_bits(one.detach().contiguous(), other.detach().contiguous())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124  (two NaN)


def written(matrix: Tensor) -> str:
    """Return a small matrix or vector as text."""
    return str([[round(float(x), 3) for x in row] for row in matrix] if matrix.ndim > 1 else
               [round(float(x), 3) for x in matrix])  # fmt: skip
