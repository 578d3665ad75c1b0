"""Values as configuration, and configuration as identity.

A frozen dataclass has two forms in JSON.  Its *configuration* is a file that makes it again: every field, and the
import path of every class.  Its *canonical form* is what identifies it: fields at their default are left out, and a
class goes by its public name.  So a new field with a default, a module that moves and a private class that gets another
name change no identity.  A field that names a file is the SHA-256 of the file, if the property `file_digests` of its
class says so.  A changed default would change what an identity means: `tests/runs/test_defaults.py` holds all of them
against a stored list, and whoever changes one raises `FORM`, or names the old one in the metadata of the field, by
`LEFT_OUT`: it is what is left out then, and the new default is written; by `NULL_IS`, a new default of null is left
out as well.  A field that changes no number of a run is in no identity, by `UNIDENTIFIED`.

Two runs with one canonical form are the same run, as long as the source of the classes that they name is the same:
`source` tells.
"""

import ast
import dataclasses
import hashlib
import importlib
import json
import math
import sys
import typing
import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Generic, TypeVar

from phalanx.fields import LEFT_OUT, NULL_IS, UNIDENTIFIED, in_order
from phalanx.trust import imported, reads_files

T = TypeVar("T")
FORM = 3  # version of the canonical form; part of every identity

PUBLIC_NAME = "public_name"  # a class variable that names a class which no package exports
FIELD_NAME = "canonical_name"  # in the metadata of a field: its name here, the one it had before it was renamed
DEFAULT_OF = "default_of"  # a class variable: fields of this type do not name the class, as when it was their type


def configuration(value: Any, declared: Any = None) -> Any:
    """Return the value as a configuration file holds it: every field, classes by their import paths.

    Args:
        value: a dataclass, a container, or a plain value.
        declared: the type that the field has. A dataclass of exactly this type needs no name.

    Raises:
        TypeError: something in it has no form in JSON, so that it could not be distinguished from another value.
    """
    return _form(value, declared, import_path, _all_fields)


def canonical(value: Any, declared: Any = None) -> Any:
    """Return the canonical form: fields at their default left out, classes by their public names, files by content.

    Numbers that are not finite are text, as YAML writes them.  Arguments and errors as for `configuration`.  Forms of
    several values can share parts, so do not change them.
    """
    return _form(value, declared, public_name, _identifying_fields)


def compact(value: Any) -> Any:
    """Return the canonical form with the paths of files, for readers."""
    return _form(value, None, public_name, _fields_not_at_default)


def _by_default(value: Any, declared: Any) -> bool:
    """Return whether the class of a value is the one that fields of the declared type do not name."""
    return declared is not None and vars(type(value)).get(DEFAULT_OF) is declared


Fields = Callable[[Any, Callable[[Any, Any], Any]], dict[str, Any]]  # of a dataclass: the forms of its fields


class OfValues(Generic[T]):
    """What was computed of constant values, as long as these exist: many runs share their parts.

    Kept by the identity of a value, as equal ones such as 1, 1.0 and True have different forms.
    """

    def __init__(self) -> None:
        self._found = dict[int, tuple[weakref.ref[Any], T]]()

    def __contains__(self, value: Any) -> bool:
        kept = self._found.get(id(value))
        return kept is not None and kept[0]() is value

    def of(self, value: Any, compute: Callable[[], T]) -> T:
        """Return what was kept of a value, or compute it, and keep it if the value is constant."""
        place = id(value)
        if value in self:
            return self._found[place][1]
        found = compute()
        if _constant(value):
            with suppress(TypeError):  # a class with slots, to which there are no weak references
                self._found[place] = weakref.ref(value, lambda _: self._found.pop(place, None)), found
        return found


def _constant(value: Any) -> bool:
    """Return whether a value has the same canonical form and the same modules as long as it exists."""
    if value is None or isinstance(value, (bool, str, Real)) or value in _forms:
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(map(_constant, value))
    kind: Any = type(value)
    return _of_constants(kind) and all(_constant(getattr(value, f.name)) for f in dataclasses.fields(value))


@cache
def _of_constants(kind: Any) -> bool:
    """Return whether the instances of a class are constant if their fields are: none depends on a file or a tensor."""
    if any(hasattr(kind, name) for name in ("canonical", "file_digests", "source_modules")):
        return False
    return hasattr(kind, "__dataclass_params__") and bool(kind.__dataclass_params__.frozen)


_forms, _modules = OfValues[dict[str, Any]](), OfValues[frozenset[str]]()


def _form(value: Any, declared: Any, name: Callable[[type], str], fields: Fields) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    again = partial(_form, name=name, fields=fields)
    own = getattr(value, "canonical", None)
    if own is not None and not isinstance(value, type):
        return {"class_path": name(type(value)), "init_args": again(own, None)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = fields(value, again)
        return (
            found
            if type(value) is declared or _by_default(value, declared)
            else {"class_path": name(type(value)), "init_args": found}
        )
    if isinstance(value, Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        return _number(number, typing.get_args(declared) or (declared,))
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [again(item, None) for item in value]
        return sorted(items) if isinstance(value, (set, frozenset)) else items
    if isinstance(value, Mapping):
        return {str(key): again(item, None) for key, item in value.items()}
    raise TypeError(
        f"A value of the class {type(value).__name__} has no canonical form, so a run with it has no identity. "
        "Make its class a frozen dataclass of plain values, or give it a property `canonical`."
    )


def _all_fields(value: Any, form: Callable[[Any, Any], Any]) -> dict[str, Any]:
    kind: Any = type(value)
    return {name: form(getattr(value, name), hint) for name, _, hint in _init_fields(kind)}


def _fields_not_at_default(value: Any, form: Callable[[Any, Any], Any]) -> dict[str, Any]:
    kind: Any = type(value)
    standard, nulls = defaults(kind), _nulls(kind)
    forms = {own: form(getattr(value, name), hint) for name, own, hint in _init_fields(kind)}
    said = {name: found for name, found in forms.items() if found is not None or name not in nulls}
    return {name: found for name, found in said.items() if name not in standard or found != standard[name]}


def _identifying_fields(value: Any, form: Callable[[Any, Any], Any]) -> dict[str, Any]:
    def found() -> dict[str, Any]:
        others = {field_name(f) for f in dataclasses.fields(value) if UNIDENTIFIED in f.metadata}
        own = {name: found for name, found in _fields_not_at_default(value, form).items() if name not in others}
        return own | (getattr(value, "file_digests", {}) if reads_files() else {})

    return _forms.of(value, found)


@cache
def _init_fields(kind: Any) -> tuple[tuple[str, str, Any], ...]:
    """Return the name, the name in canonical forms and the type of each field with which a dataclass is made."""
    hints = typing.get_type_hints(kind)
    return tuple((f.name, field_name(f), hints[f.name]) for f in in_order(kind) if f.init)


@cache
def defaults(kind: Any) -> dict[str, Any]:
    """Return the canonical forms of the fields of a dataclass that identities leave out: their defaults."""
    hints, found = {name: hint for name, _, hint in _init_fields(kind)}, dict[str, Any]()
    for f in dataclasses.fields(kind):
        if f.init and (named := f.metadata.keys() & {LEFT_OUT, NULL_IS}):
            found[field_name(f)] = canonical(f.metadata[named.pop()], hints[f.name])
        elif f.init and f.default is not dataclasses.MISSING:
            found[field_name(f)] = canonical(f.default, hints[f.name])
        elif f.init and f.default_factory is not dataclasses.MISSING:
            found[field_name(f)] = canonical(f.default_factory(), hints[f.name])
    return found


@cache
def _nulls(kind: Any) -> frozenset[str]:
    """Return the names, in canonical forms, of the fields whose null stands for what identities leave out."""
    return frozenset(field_name(f) for f in dataclasses.fields(kind) if NULL_IS in f.metadata)


def field_name(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field in canonical forms."""
    return str(field.metadata.get(FIELD_NAME, field.name))


def _number(value: int | float, declared: tuple[Any, ...]) -> int | float | str:
    """Return one form for equal numbers: a declared float is one, and 3.0 is 3 where both are allowed."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if float in declared and int not in declared:
        return float(value)
    return int(value) if float(value).is_integer() and int in declared else value


def configurable(kind: type) -> bool:
    """Return whether a configuration file can make one: not if `canonical` replaces data that a file does not hold."""
    return not hasattr(kind, "canonical")


def identity(value: Any, declared: Any = None) -> str:
    """Return the SHA-256 that identifies a value, in hexadecimal; arguments as for `canonical`."""
    return identity_of(canonical(value, declared))


def identity_of(form: Any, version: int = FORM) -> str:
    """Return the identity of a value by its canonical form, of that version of the form."""
    return digest({"form": version, "value": form})


def digest(form: Any) -> str:
    """Return the SHA-256 of JSON, in hexadecimal; the same after it has been written and read."""
    try:
        read = json.loads(json.dumps(form))
    except RecursionError as error:
        raise ValueError("A configuration is nested too deeply to have an identity.") from error
    return hashlib.sha256(json.dumps(read, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def public_name(kind: type) -> str:
    """Return the name by which a class is identified: the one that it declares itself, or else its import path."""
    return str(vars(kind)[PUBLIC_NAME]) if PUBLIC_NAME in vars(kind) else import_path(kind)


@cache
def import_path(kind: type) -> str:
    """Return the shortest path from which a class can be imported: `phalanx.algorithms.FedAvg`, for any file in it."""
    parts = _home(kind).split(".")
    for length in range(1, len(parts) + 1):
        module = importlib.import_module(".".join(parts[:length]))
        if getattr(module, kind.__qualname__, None) is kind:
            return f"{'.'.join(parts[:length])}.{kind.__qualname__}"
    return f"{_home(kind)}.{kind.__qualname__}"


def _home(kind: Any) -> str:
    """Return the module of a class or function; "__main__" in the processes that a script starts, as in the script."""
    return "__main__" if kind.__module__ == "__mp_main__" else str(kind.__module__)


# The source of a value's classes

INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages
PAPERS = Path(__file__).parents[3] / "papers"  # of a checkout; `phalanx.runs.provenance` covers them, as the library


def source(value: Any) -> str | None:
    """Return the SHA-256 of the files that define the classes of a value from outside this library.

    A file includes those in its folder, or in its package, from which it imports, unless it is an installed one.
    None if all classes are this library's.
    """
    waiting = {name: _file(name) for name in modules(value) if _foreign(name)}
    found = dict[str, str]()
    while waiting:
        name, file = waiting.popitem()
        text = file.read_bytes() if file else b""
        found[name] = hashlib.sha256(text).hexdigest() if file else ""
        if file and not INSTALLED.intersection(file.parts):
            waiting |= {n: path for n, path in _beside(name, file, text).items() if n not in found}
    return digest(found) if found else None


def modules(value: Any) -> frozenset[str]:
    """Return the modules that define the classes of a value, and of all its parts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _modules.of(value, lambda: _modules_of_fields(value))
    found = frozenset(getattr(value, "source_modules", ()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return found.union(*map(modules, value))
    return found


def _modules_of_fields(value: Any) -> frozenset[str]:
    bases = (_home(base) for base in type(value).__mro__)
    parts = (modules(getattr(value, f.name)) for f in dataclasses.fields(value))
    return frozenset(getattr(value, "source_modules", ())).union(bases, *parts)


def _foreign(name: str) -> bool:
    """Return whether a module is neither Python's, nor the library's, nor of the papers in its repository."""
    package = name.partition(".")[0]
    if package == PAPERS.name:
        return (file := _file(package)) is None or file.parent != PAPERS
    return package != __name__.partition(".")[0] and package not in sys.stdlib_module_names


def _file(name: str) -> Path | None:
    """Return the file of a module; None if it has none, or cannot be imported, which others report."""
    try:
        path = getattr(sys.modules.get(name) or imported(name), "__file__", None)
    except ImportError:
        return None
    return Path(path) if path and Path(path).is_file() else None


def _beside(name: str, file: Path, text: bytes) -> dict[str, Path]:
    """Return the files of the modules in its folder or its package from which a module imports."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    if name == "__main__":
        package = getattr(sys.modules[name], "__package__", None) or ""
    own, depth = package.partition(".")[0], len(package.split(".")) if package else 0
    places = {n: Path(*file.parts[: -1 - depth], *n.split(".")) for n in _imports(text, package)}
    files = [(n, path) for n, at in places.items() for path in (at.with_suffix(".py"), at / "__init__.py")]
    near = [(n, path) for n, path in files if path.parent == file.parent or n.partition(".")[0] == own]
    return {n: path for n, path in near if path.is_file() and _foreign(n)}


@cache
def _imports(text: bytes, package: str) -> frozenset[str]:
    """Return the modules, and what may be modules, that a module of a package imports anywhere.

    They are those of its source: what is imported by now differs between a script and the processes that it starts.
    """
    found = set[str]()
    with suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):  # a compiled module
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = ".".join(package.split(".")[: 1 - node.level or None]) if node.level else ""
                module = ".".join(filter(None, (above, node.module)))
                found |= {module, *(f"{module}.{alias.name}" for alias in node.names)} - {""}
    return frozenset(found)
