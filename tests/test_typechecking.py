"""The tests check types and shapes at each call: of this library, and of a small package here."""

import importlib
import sys

import pytest
import torch
from jaxtyping import TypeCheckError, config

from phalanx import LocalSGD
from phalanx.aggregators import Median
from typechecking import CheckedFinder, check

SOURCE = '''
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, no_type_check

from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from nowhere import Unknown


def product(A: Float[Tensor, "m k"], B: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    return half(A) @ B


def half(A: Float[Tensor, "k m"]) -> Float[Tensor, "k m"]:
    return A / 2


def wrong_result(A: Float[Tensor, "m k"]) -> Float[Tensor, "k m"]:
    return A


def number(x: float) -> str:
    return x


def later(x: "Point") -> "Unknown":
    return x


def at_rest(x: "tuple.of[int]") -> None:
    pass


def drawn(rows: list[Float[Tensor, "m"]]) -> Iterator[Float[Tensor, "m"]]:
    yield from rows


@no_type_check
def unchecked(x: int) -> int:
    return x


def outer():
    def inner(x: int) -> int:
        return x

    return inner


@dataclass(frozen=True)
class Point:
    """A point."""

    x: float
    y: float = 0

    @property
    def wrong(self) -> str:
        return self.x

    @classmethod
    def at(cls, x: float) -> "Point":
        return cls(x)


class Near(Point):
    """Another."""
'''


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    (folder / "checked_here").mkdir()
    (folder / "checked_here" / "__init__.py").write_text(SOURCE)
    sys.path.insert(0, str(folder))
    check("checked_here")
    yield importlib.import_module("checked_here")
    sys.path.remove(str(folder))
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "package", None) != "checked_here"]


def test_the_library_is_checked():
    with pytest.raises(TypeCheckError, match="epochs"):
        LocalSGD(epochs="two")
    with pytest.raises(TypeCheckError):
        Median().influence(torch.ones(2, 2, 2))


def test_letters_of_shapes_have_one_value_in_a_call(small):
    A, B = torch.ones(2, 3), torch.ones(3, 4)
    assert small.product(A, B).shape == (2, 4), "in a call from there they have others"
    with pytest.raises(TypeCheckError, match="B"):
        small.product(A, A)
    assert small.wrong_result(torch.ones(2, 2)).shape == (2, 2)
    with pytest.raises(TypeCheckError, match="return"):
        small.wrong_result(A)


def test_types_of_arguments_and_results(small):
    with pytest.raises(TypeCheckError, match="x"):
        small.number("1")
    with pytest.raises(TypeCheckError, match="return"):
        small.number(1)
    with pytest.raises(TypeCheckError):
        small.outer()("1")
    assert small.unchecked("1") == "1"


def test_dataclasses_their_methods_and_subclasses(small):
    assert small.Point(1) == small.Point.at(1.0), "an integer is a float"
    for made in (small.Point, small.Point.at, small.Near):
        with pytest.raises(TypeCheckError, match="x"):
            made("1")
    with pytest.raises(TypeCheckError, match="return"):
        small.Point(1.0).wrong  # noqa: B018


def test_names_that_come_later_are_checked_and_names_for_static_checkers_are_not(small):
    assert small.later(small.Point(1)) == small.Point(1)
    with pytest.raises(TypeCheckError, match="x"):
        small.later(1)
    assert small.at_rest("anything") is None


def test_generators(small):
    first, second = small.drawn([torch.ones(2)]), small.drawn([torch.ones(3)])
    assert [len(next(first)), len(next(second))] == [2, 3]
    with pytest.raises(TypeCheckError):
        small.drawn([1])


def test_checks_can_be_switched_off(small, monkeypatch):
    monkeypatch.setattr(config, "jaxtyping_disable", True)
    assert small.number(1) == 1


def test_compiled_modules_are_kept_apart_from_those_without_checks(small, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "apart.py").write_text("def number(x: int) -> int:\n    return x\n")
    finder = CheckedFinder("apart")
    for _ in range(2):  # the second time from the file
        spec = finder.find_spec("apart", [str(tmp_path)])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with pytest.raises(TypeCheckError):
            module.number("1")
    (kept,) = (tmp_path / "__pycache__").iterdir()
    assert kept.name.endswith(".checked-1.pyc")


def test_a_package_is_checked_once_and_not_after_its_import():
    before = [*sys.meta_path]
    check("phalanx")
    assert sys.meta_path == before
    with pytest.raises(RuntimeError, match="torch is imported already"):
        check("torch")
