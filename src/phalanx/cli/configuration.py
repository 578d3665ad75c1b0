"""Values from options and configuration files: the way back from `phalanx.runs.canonical`.

A `Draft` starts from the defaults of dataclasses, takes one option or file after the other, and makes the values at
the end.  A class is chosen by its name or its import path.  Another class takes nothing over from the one before it:
`--algorithm ByzantineCFL` has the defaults of ByzantineCFL, whatever the run's default algorithm or a file says of
fields of the same name.
"""

import dataclasses
import inspect
import json
import math
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phalanx.cli import advice
from phalanx.fields import PLAIN, declared, in_order, members
from phalanx.reading import contents, decoded, load, table_reader
from phalanx.runs.canonical import configurable, configuration, import_path
from phalanx.trust import UntrustedError, is_closed, named
from phalanx.version import URL
from phalanx.wording import is_path, shown

SEQUENCES: dict[Any, type] = {tuple: tuple, list: list, set: set, frozenset: frozenset}
CLASS, FIELDS = "class_path", "init_args"  # the keys of a class in a file
FILE = 1_000_000  # bytes of a configuration file, at most
PATH = 300  # characters of a path that a message shows
SINGLE = 3.4028234663852886e38  # the largest number in single precision, in which models compute
LARGEST = 10**18  # no integer of a run reaches it; 64 bits hold it


class ConfigurationError(ValueError):
    """An option or a configuration file holds what it cannot hold.  The message says what it can."""


class Text(str):
    """A value as it was typed on the command line, to be read as YAML."""

    __slots__ = ()


class Parameter(NamedTuple):
    """A parameter of a class; `declared` are its types, with ranges."""

    kind: Any
    default: Any = inspect.Parameter.empty
    declared: Sequence[Any] = ()


@dataclass(frozen=True)
class ChosenClass:
    """A class with values for its parameters; `values` lacks those that have no default and were not given."""

    kind: type
    values: Mapping[str, Any]


class Draft:
    """Values in the making, one for each of some dataclasses.

    Args:
        roots: the dataclasses. Their fields are options, of different names.
    """

    def __init__(self, *roots: type) -> None:
        self.parts = {root: by_default(root) for root in roots}

    def set(self, path: str, value: Any) -> None:
        """Set an option, such as `training.lr`.

        Raises:
            ConfigurationError: there is no such option, or it cannot hold the value.
        """
        first, _, rest = path.partition(".")
        for root, part in self.parts.items():
            if first in parameters(root):
                self.parts[root] = _changed(part, first, rest.split(".") if rest else [], value, "")
                return
        raise ConfigurationError(advice.unknown_field(first, "", next(iter(self.parts)).__name__, self.names))

    def load(self, path: Path) -> None:
        """Set what a configuration file holds.  An empty one changes nothing.

        Raises:
            ConfigurationError: the file cannot be read, is no mapping, or an option cannot hold what it says.
        """
        for name, value in from_file(path).items():
            self.set(str(name), value)

    def at(self, path: str) -> tuple[Any, Any]:
        """Return the declared type of an option, and its value until now.

        Raises:
            ConfigurationError: there is no such option.
        """
        first, *rest = path.split(".")
        for root, part in self.parts.items():
            if first in (taken := parameters(root)):
                return _found(taken[first].kind, part.values.get(first), rest, first)
        raise ConfigurationError(advice.unknown_field(first, "", next(iter(self.parts)).__name__, self.names))

    @property
    def names(self) -> list[str]:
        """The names of the options, without those of groups and classes."""
        return [name for root in self.parts for name in parameters(root)]

    def check(self) -> None:
        """Raise `ConfigurationError` if a chosen class lacks a value that it needs."""
        for root, part in self.parts.items():
            for name, value in part.values.items():
                _check(value, name)
            if lacking := [name for name in parameters(root) if name not in part.values]:
                raise ConfigurationError(f"Give --{lacking[0]} VALUE as well.")

    def config(self) -> dict[str, Any]:
        """Return the content of a configuration file that says the same."""
        out = dict[str, Any]()
        for root, part in self.parts.items():
            out |= {name: _written(value, parameters(root)[name].kind) for name, value in part.values.items()}
        return out

    def make(self, root: type) -> Any:
        """Return the value of a dataclass; raises whatever the classes in it raise."""
        value = made(self.parts[root])
        try:
            getattr(value, "identity", None)  # a run with a class of a user's own may have none
        except TypeError as error:
            raise ConfigurationError(str(error)) from error
        return value


def _meant(path: Path) -> str:
    """Return a hint at the file that was probably meant by the path of one that is not there; empty without one."""
    with suppress(OSError):
        names = [other.name for other in path.parent.iterdir() if other.suffix in (".yaml", ".yml") and other.is_file()]
        if close := advice.near(path.name, names):
            return f" Did you mean {shown(str(path.with_name(close)), PATH)}?"
    return f" The examples are in the repository: git clone {URL}." if path.parts[:1] == ("examples",) else ""


def from_file(path: Path) -> dict[Any, Any]:
    """Return what a YAML file holds; nothing if it is empty.

    Raises:
        ConfigurationError: it cannot be read, or is no mapping.
    """
    name = shown(str(path), PATH)
    try:
        content = decoded(contents(path, FILE, own=True), name)
    except FileNotFoundError:
        raise ConfigurationError(f"The configuration file {name} does not exist.{_meant(path)}") from None
    except OSError as error:
        raise ConfigurationError(f"The configuration file {name} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    try:
        loaded = load(content)
    except ValueError as error:
        raise ConfigurationError(f"{name} is not valid YAML: {error}.") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        start = next(line for line in content.splitlines() if line.strip() and not line.startswith("#")).strip()
        raise ConfigurationError(
            f"A configuration file must be a mapping of options to values, as `clients: 10`, got `{shown(start)}`."
        )
    return loaded


# --- classes


def parameters(kind: type) -> dict[str, Parameter]:
    """Return what a class takes: the fields of a dataclass, or the arguments of `__init__`."""
    hints = _hints(kind)
    if dataclasses.is_dataclass(kind):
        full = declared(kind)
        return {
            f.name: Parameter(hints.get(f.name, Any), _default(f), full.get(f.name, (Any,)))
            for f in in_order(kind)
            if f.init
        }
    signature, named = (
        inspect.signature(kind),
        (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY),
    )
    return {
        name: Parameter(hints.get(name, Any), p.default) for name, p in signature.parameters.items() if p.kind in named
    }


@cache
def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind if dataclasses.is_dataclass(kind) else vars(kind).get("__init__", kind))
    except NameError:  # names that a class of the user's own imports for type checkers only
        return {}


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return inspect.Parameter.empty if field.default_factory is dataclasses.MISSING else field.default_factory()


def by_default(kind: type) -> ChosenClass:
    """Return a class with its defaults."""
    taken = parameters(kind).items()
    return ChosenClass(kind, {name: _draft(p.default) for name, p in taken if p.default is not inspect.Parameter.empty})


def _draft(value: Any) -> Any:
    """Return a default value such that options can change parts of it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and configurable(type(value)):
        return ChosenClass(type(value), {name: _draft(getattr(value, name)) for name in parameters(type(value))})
    return type(value)(map(_draft, value)) if type(value) in (tuple, list) else value


def only_class(kind: Any) -> type | None:
    """Return the dataclass that a type can only mean, such as that of a group of options; None if there is none."""
    found = [
        k for k in members(kind) if isinstance(k, type) and dataclasses.is_dataclass(k) and not inspect.isabstract(k)
    ]
    return found[0] if len(found) == 1 else None


def is_group(kind: Any) -> bool:
    """Return whether a type is a dataclass alone, whose fields are options like those of the dataclass around it."""
    return isinstance(kind, type) and only_class(kind) is kind


def has_class(kind: Any) -> bool:
    """Return whether a value of that type can be an object with options of its own."""
    return only_class(kind) is not None or bool(advice.bases(kind))


def resolved(name: str, kind: Any) -> type:
    """Return the class of that name or import path where `kind` is declared.

    Raises:
        LookupError: there is none. The message says why where that helps, and is empty otherwise.
        ConfigurationError: its module cannot be imported.
    """
    allowed = [k for k in members(kind) if isinstance(k, type) and k in (*advice.bases(kind), only_class(kind))]
    if "." not in name:
        known = [c for base in allowed for c in (base, *advice.subclasses(base)) if c.__name__ == name]
        if not known or inspect.isabstract(known[0]):
            raise LookupError
        return known[0]
    if not all(part.isidentifier() for part in name.split(".")):
        raise LookupError
    module = name.rpartition(".")[0]
    try:
        found = named(name)
    except UntrustedError as error:
        raise ConfigurationError(str(error)) from error
    except (ImportError, AttributeError, ValueError) as error:
        raise LookupError(str(error)) from None
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{module} cannot be imported: {type(error).__name__}: {error}.") from error
    if not (isinstance(found, type) and issubclass(found, tuple(allowed))):
        raise LookupError(f"it is no subclass of {' or '.join(base.__name__ for base in allowed)}")
    if inspect.isabstract(found):
        raise LookupError("it is abstract")
    return found


# --- values


class _UnfitError(Exception):
    """A value is not of a type; the message says why where that helps."""


def _changed(part: ChosenClass, name: str, steps: Sequence[str], value: Any, path: str) -> ChosenClass:
    """Return a class with another value for a parameter, or for something further in."""
    taken, here = parameters(part.kind), f"{path}.{name}" if path else name
    if not configurable(part.kind):
        raise _not_configurable(part.kind, path)
    if name not in taken:
        raise ConfigurationError(advice.unknown_field(name, path, part.kind.__name__, list(taken)))
    kind, before = taken[name].kind, part.values.get(name)
    now = _further(kind, before, steps, value, here) if steps else _read(kind, before, value, here)
    return ChosenClass(
        part.kind, {n: now if n == name else part.values[n] for n in taken if n == name or n in part.values}
    )


def _further(kind: Any, before: Any, steps: Sequence[str], value: Any, path: str) -> Any:
    """Return the value at a path, with another value further in."""
    first, *rest = steps
    if isinstance(before, Mapping) or any(typing.get_origin(k) in (Mapping, dict) for k in members(kind)):
        old = dict(before or {})
        return old | {first: _further(Any, old.get(first), rest, value, f"{path}.{first}") if rest else _loaded(value)}
    if not isinstance(before, ChosenClass):
        if (only := only_class(kind)) is None:
            raise ConfigurationError(
                f"{path}.{first} is an option of a class: choose the class first, {path} is {advice.described(kind)}."
            )
        before = by_default(only)
    return _changed(before, first, rest, value, path)


def _read(kind: Any, before: Any, value: Any, path: str) -> Any:
    """Return a value as one of a declared type; raise `ConfigurationError` if it is none."""
    reasons = list[str]()
    for member in sorted(members(kind), key=lambda member: member is str):
        try:
            return _as(member, kind, before, value, path)
        except _UnfitError as unfit:
            reasons.append(str(unfit))
    if isinstance(value, Text) and _is_single(value):  # one value of a list
        for member in filter(_is_repeated, members(kind)):
            with suppress(_UnfitError, ConfigurationError):
                return _sequence(member, [value], path)
    name = value.get(CLASS, value) if isinstance(value, dict) else value
    given = shown(name if isinstance(name, str) else json.dumps(name, default=str)) or "nothing"
    if is_group(kind) and not isinstance(value, Text):
        fields = ", ".join(parameters(kind))
        raise ConfigurationError(f"{path} must be a mapping of its options ({fields}), got {given}.")
    reason = "".join(f" ({why})" for why in dict.fromkeys(reasons) if why)
    meant = advice.meant(given, advice.choices(kind)) or _meant_further_in(given, before, path)
    if path.rpartition(".")[2] == "data" and (table := table_reader(given)):
        raise ConfigurationError(f"{path} is a class, and {given} a file. Give --{path} {table} --{path}.path {given}.")
    raise ConfigurationError(f"{path} must be {advice.described(kind)}, got {given}{reason}.{meant}")


def _meant_further_in(given: str, before: Any, path: str) -> str:
    """Return a question for the option of the class at that place whose value has nearly the given name."""
    if "." in given or not isinstance(before, ChosenClass):
        return ""
    for name, (kind, _, _) in parameters(before.kind).items():
        if close := advice.near(given, advice.choices(kind)):
            return f" Did you mean --{path}.{name} {close}?"
        if found := _meant_further_in(given, before.values.get(name), f"{path}.{name}"):
            return found
    return ""


def _as(member: Any, kind: Any, before: Any, value: Any, path: str) -> Any:
    """Return a value as one of one type of a union `kind`; raise `_UnfitError` if it is none."""
    origin, given = typing.get_origin(member), _loaded(value)
    if origin is Literal:
        return _literal(typing.get_args(member), value, given)
    if origin in SEQUENCES:
        return _sequence(member, given, path)
    if member in PLAIN or member is Path:
        return _plain(member, value, given)
    if member in (Any, object) or (isinstance(given, dict) and (origin or member) in (dict, Mapping)):
        return given
    if isinstance(member, type) and origin is None:
        return _object(member, kind, before, given, path)
    raise _UnfitError


def _literal(allowed: Sequence[Any], value: Any, given: Any) -> Any:
    """Return the one of some values that was meant, as it was typed or as YAML reads it."""
    for choice in allowed:
        if choice in (value, given):
            return choice
    raise _UnfitError


def _plain(member: type, value: Any, given: Any) -> Any:
    """Return a number, a truth value, text, a path or null."""
    if member is float:
        return _number(given)
    if member is Path and not (isinstance(value, str) and is_path(value)):
        raise _UnfitError
    if member in (str, Path) and isinstance(value, str):
        return member(value)
    if member is int and type(given) is int and abs(given) >= LARGEST:
        raise _UnfitError(f"it has more than {len(str(LARGEST)) - 1} digits")
    null = given is None and isinstance(value, Text) and value != "null"  # YAML also reads ~ and nothing as null
    if member in (str, Path) or type(given) is not member or null:
        raise _UnfitError
    return given


def _loaded(value: Any) -> Any:
    """Return what was typed, as YAML reads it; other values as they are."""
    if not isinstance(value, Text):
        return value
    try:
        return load(value)
    except ValueError:
        return str(value)


def _number(given: Any) -> float:
    """Return a number as a float; `inf` and `nan` may be written without a dot."""
    if isinstance(given, str) and given.lower().lstrip("+-") in ("nan", "inf", ".nan", ".inf"):
        return float(given.lower().replace(".", ""))
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise _UnfitError
    if SINGLE < abs(given) < math.inf:
        raise _UnfitError(f"it is above {SINGLE:.2g}, the largest number in single precision")
    return float(given)


def _is_single(value: Text) -> bool:
    """Return whether what was typed may be one value of a list: no list itself, and nothing else of YAML's."""
    plain = len(value) == 1 or not value.startswith(("[", "{", "&", "*", "!"))
    return plain and "\n" not in value and _loaded(value) is not None


def _is_repeated(member: Any) -> bool:
    """Return whether a type is a sequence of any length, whose items are all of one type."""
    kinds = typing.get_args(member)
    return typing.get_origin(member) in SEQUENCES and len(kinds) - (kinds[-1] is Ellipsis) == 1


def _sequence(member: Any, given: Any, path: str) -> Any:
    """Return a list as the declared kind of sequence."""
    kinds, kept, repeated = typing.get_args(member), SEQUENCES[typing.get_origin(member)], _is_repeated(member)
    if not isinstance(given, (list, tuple)) or not (repeated or len(kinds) == len(given)):
        raise _UnfitError
    pairs = zip([kinds[0]] * len(given) if repeated else kinds, given, strict=True)
    return kept(_read(kind, None, item, f"{path}[{k}]") for k, (kind, item) in enumerate(pairs))


def _object(member: type, kind: Any, before: Any, given: Any, path: str) -> Any:
    """Return a class with values: from its name, or from a mapping, of its fields or of class_path and init_args."""
    only = only_class(kind)
    if isinstance(given, str):
        is_named = only is not None or Path(given).suffix in (".yaml", ".yml")
        if is_named and not is_closed() and _is_file(given):
            given = from_file(Path(given))
        else:
            return _selected(given, member, before)
    if not isinstance(given, dict):
        raise _UnfitError
    wrapped = CLASS in given or set(given) == {FIELDS}
    if CLASS in given:
        chosen = _selected(str(given[CLASS]), member, before)
    elif isinstance(before, ChosenClass):
        chosen = before
    elif only is not None:
        chosen = by_default(only)
    elif given:
        raise ConfigurationError(
            f"{path}.{next(iter(given))} is an option of a class: choose the class first, by {CLASS}; "
            f"{path} is {advice.described(kind)}."
        )
    else:
        raise _UnfitError
    if wrapped and (others := sorted(map(str, set(given) - {CLASS, FIELDS}))):
        raise ConfigurationError(f"{path} has {others[0]} next to {CLASS}. Put the options of a class under {FIELDS}.")
    fields = (given.get(FIELDS) or {}) if wrapped else given
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{path}.{FIELDS} must be a mapping of options to values, got {shown(str(fields))}.")
    for name, value in fields.items():
        first, *rest = str(name).split(".")
        chosen = _changed(chosen, first, rest, value, path)
    return chosen


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # the name is too long, or a folder on the way may not be entered
        return False


def _selected(name: str, member: type, before: Any) -> ChosenClass:
    """Return the class of a name: as it is if it is the one that stood there, with its defaults if it is another."""
    try:
        kind = resolved(name, member)
    except LookupError as error:
        raise _UnfitError(*error.args) from None
    return before if isinstance(before, ChosenClass) and before.kind is kind else by_default(kind)


def _found(kind: Any, value: Any, steps: Sequence[str], path: str) -> tuple[Any, Any]:
    """Return the declared type and the value further in."""
    for name in steps:
        if not isinstance(value, ChosenClass) and (only := only_class(kind)) is not None:
            value = by_default(only)
        if not isinstance(value, ChosenClass):
            raise ConfigurationError(
                f"{path}.{name} is an option of a class: choose the class first, {path} is {advice.described(kind)}."
            )
        taken = parameters(value.kind)
        if name not in taken:
            raise ConfigurationError(advice.unknown_field(name, path, value.kind.__name__, list(taken)))
        kind, value, path = taken[name].kind, value.values.get(name), f"{path}.{name}"
    return kind, value


def _check(value: Any, path: str) -> None:
    """Raise `ConfigurationError` if a class lacks a value that it needs, however deep."""
    if isinstance(value, (list, tuple)):
        for k, item in enumerate(value):
            _check(item, f"{path}[{k}]")
    if not isinstance(value, ChosenClass):
        return
    name = value.kind.__name__
    if not configurable(value.kind):
        raise _not_configurable(value.kind, path)
    if lacking := [n for n in parameters(value.kind) if n not in value.values]:
        give = " ".join(f"--{path}.{n} VALUE" for n in lacking)
        raise ConfigurationError(f"{path}: {name} needs {', '.join(lacking)}. Give {give}.")
    for n, inner in value.values.items():
        _check(inner, f"{path}.{n}")


def _not_configurable(kind: type, path: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path}: {kind.__name__} is made of what no option can hold. Make the run in Python, or choose another."
    )


def made(value: Any) -> Any:
    """Return the object that a draft describes."""
    if isinstance(value, ChosenClass):
        values = {name: made(inner) for name, inner in value.values.items()}
        try:
            return value.kind(**values)
        except (TypeError, ArithmeticError, LookupError, AttributeError, RuntimeError, AssertionError) as error:
            raise ConfigurationError(f"{value.kind.__name__} cannot be made of these values: {error}.") from error
    return type(value)(map(made, value)) if type(value) in (tuple, list) else value


def _written(value: Any, declared: Any) -> Any:
    """Return a value as a configuration file holds it."""
    if isinstance(value, ChosenClass):
        taken = parameters(value.kind)
        fields = {name: _written(inner, taken[name].kind) for name, inner in value.values.items()}
        return fields if value.kind is declared else {CLASS: import_path(value.kind), FIELDS: fields}
    if isinstance(value, (list, tuple)):
        return [_written(item, None) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, float) and not math.isfinite(value) else configuration(value, declared)
