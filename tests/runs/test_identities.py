"""Identities survive refactorings: a new field with a default, a moved module, a renamed private class."""

import importlib
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest

from phalanx import Run
from phalanx.attacks import Attack, Gaussian
from phalanx.runs.canonical import canonical, configuration, identity, public_name

ZERO = '''
from dataclasses import dataclass
from phalanx.attacks import Attack

@dataclass(frozen=True)
class Zero(Attack):
    """An update of nothing."""

    share: float = 1.0
'''


@dataclass(frozen=True)
class Before(Attack):
    """A private class as it was."""

    public_name: ClassVar[str] = "mine.Zero"
    share: float = 1.0


@dataclass(frozen=True)
class Renamed(Attack):
    """The same class by another name."""

    public_name: ClassVar[str] = "mine.Zero"
    share: float = 1.0


@dataclass(frozen=True)
class WithField(Attack):
    """The same class with a new field."""

    public_name: ClassVar[str] = "mine.Zero"
    share: float = 1.0
    rounds: int | None = None


def run(attack):
    return Run(attack=attack, byzantine=1, seed=3)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make a package that exports `Zero` from one of its modules; return the class."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "moved_package"
    folder.mkdir()

    def export(module):
        for name in [name for name in sys.modules if name.partition(".")[0] == "moved_package"]:
            del sys.modules[name]
        for old in folder.glob("*.py"):
            old.unlink()
        (folder / f"{module}.py").write_text(ZERO)
        (folder / "__init__.py").write_text(f"from moved_package.{module} import Zero\n")
        importlib.invalidate_caches()
        return importlib.import_module("moved_package").Zero

    yield export
    for name in [name for name in sys.modules if name.partition(".")[0] == "moved_package"]:
        del sys.modules[name]


def test_a_new_field_with_a_default_changes_no_identity():
    assert run(WithField()).identity == run(Before()).identity
    assert run(WithField(0.5)).identity == run(Before(0.5)).identity
    assert run(WithField(rounds=3)).identity != run(Before()).identity


def test_a_moved_module_changes_no_identity(package):
    here = package("attacks")
    before = run(here()).identity, run(here(0.5)).identity
    there = package("elsewhere")
    assert (here.__module__, there.__module__) == ("moved_package.attacks", "moved_package.elsewhere")
    assert (run(there()).identity, run(there(0.5)).identity) == before
    assert public_name(there) == "moved_package.Zero"


def test_a_renamed_private_class_changes_no_identity():
    assert run(Renamed()).identity == run(Before()).identity
    assert run(Renamed(0.5)).identity == run(Before(0.5)).identity != run(Before()).identity


def test_a_renamed_field_changes_no_identity():
    """`additional_byzantine` had another name when the first records were written."""
    later = Run(additional_byzantine=2, attack=Gaussian())
    assert canonical(later, Run)["byzantine_beside"] == 2
    assert configuration(later, Run)["additional_byzantine"] == 2
    assert later.identity == "81ee01779660d7e9878acdc67490d3bce53bbcbb90b54840fbc1236a233690a5"


def test_a_name_is_declared_for_one_class_and_not_for_those_derived_from_it():
    @dataclass(frozen=True)
    class Derived(Before):
        """Another class."""

    assert public_name(Derived) != public_name(Before)
    assert identity(Derived()) != identity(Before())


def test_an_identity_of_today_is_an_identity_of_tomorrow():
    assert Run().identity == "fd5c73d99fec4601023c2f8c30df9800e060dcfce17da9c61a58f87ca4337424"
    assert (
        Run(clients=7, seed=3, participation=0.5).identity
        == "945f57cf5b094b030792abbd71a593d4d0292c1a7115bb4489ac60f6cff1e60b"
    )
