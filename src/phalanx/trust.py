"""Names of code in files: which of them may be imported.

`named` is the only way from a name in a configuration, a record or an option to what it names.  There are two levels of
trust.  A program or a file of one's own may name anything: that is imported, and `announcing` says so before.  What is
`reading` may be somebody else's: it may name the public classes of Phalanx, as its packages export them, and nothing
else.
"""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

from phalanx.wording import shown

LIBRARY = __name__.partition(".")[0]


class UntrustedError(ValueError):
    """A file that is only read names code that is not Phalanx's own."""


class _Policy(NamedTuple):
    closed: bool
    allowed: frozenset[str] = frozenset()  # modules that may be imported all the same
    own_folder: bool = False  # whether modules in the current folder are found
    say: Callable[[str], None] | None = None
    files: bool = True  # whether files that values name are read for their identity


OPEN = _Policy(closed=False)  # of a program that says itself what it imports
_policy: ContextVar[_Policy] = ContextVar("trust")
_said = set[str]()  # modules that were announced


@contextmanager
def reading(*, trust: bool = False, allowed: frozenset[str] = frozenset(), files: bool = True) -> Iterator[None]:
    """Let names in this context be those of Phalanx's public classes only.

    Args:
        trust: whether they may be any; a warning, or what `announcing` was given, says what is imported.
        allowed: modules that may be imported all the same, such as those that the caller's own run names.
        files: whether identities are also of the files that values name, which are read for it.
    """
    before = _policy.get(OPEN)
    opened = trust and not before.closed
    say = before.say or warnings.warn
    token = _policy.set(before._replace(closed=not opened, allowed=allowed, say=say, files=files))
    try:
        yield
    finally:
        _policy.reset(token)


@contextmanager
def announcing(say: Callable[[str], None]) -> Iterator[None]:
    """Say, in a sentence, which modules from elsewhere are imported, before they are.

    Modules in the current folder are found as well, after everything that is installed.
    """
    token = _policy.set(_Policy(closed=False, own_folder=True, say=say))
    _said.clear()
    try:
        yield
    finally:
        _policy.reset(token)


def find_own() -> None:
    """Have modules in the current folder found, after everything that is installed."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)


def is_closed() -> bool:
    """Return whether only the public classes of Phalanx may be named."""
    return _policy.get(OPEN).closed


def reads_files() -> bool:
    """Return whether a file that a value names may be read for its identity."""
    return _policy.get(OPEN).files


def named(path: str, home: str = "") -> object:
    """Return what an import path names; the module is imported.

    Args:
        path: of the form package.module.name.
        home: where a name without a module is looked for, such as "torch.optim".

    Raises:
        UntrustedError: it is not to be imported; see `reading`.
        ImportError: there is no such module.
        AttributeError: there is no such name in it.
        ValueError: the path has no module, or an empty one.
    """
    module, _, name = path.rpartition(".")
    policy = _policy.get(OPEN)
    if home and module in ("", home):
        return getattr(import_module(home), name)
    if _is_public(module, name):
        return getattr(import_module(module), name)
    if policy.closed and module not in policy.allowed:
        raise _untrusted(path, module)
    return getattr(imported(module), name)


def imported(module: str) -> ModuleType:
    """Return a module, from wherever it is, after it has been said that it is imported.

    Args:
        module: its import path.

    Raises:
        UntrustedError: it is not to be imported; see `reading`.
        ImportError: there is none.
    """
    policy = _policy.get(OPEN)
    if policy.closed and module not in policy.allowed:
        raise _untrusted(module, module)
    if policy.say is not None and module not in _said and module.partition(".")[0] != LIBRARY:
        _said.add(module)
        policy.say(f"The module {shown(module)} is imported, which runs its code.")
    if policy.own_folder:
        find_own()
    return import_module(module)


def _untrusted(path: str, module: str) -> UntrustedError:
    return UntrustedError(
        f"{shown(path)} is no public class of Phalanx. What is read may be somebody else's, so nothing else is "
        f"imported. If you trust whoever wrote it as you would trust their program, let {shown(module)} be "
        "imported: --trust, or trust=True."
    )


def _is_public(module: str, name: str) -> bool:
    """Return whether Phalanx exports a class of that name from that package."""
    package, *further = module.split(".")
    if package != LIBRARY or len(further) > 1 or not all(part.isidentifier() for part in further):
        return False
    if (spec := find_spec(module)) is None or spec.submodule_search_locations is None:  # a file, not a package
        return False
    found = import_module(module)
    return name in getattr(found, "__all__", ()) and isinstance(getattr(found, name), type)
