"""Error messages of the command line that say what would have been right.

jsonargparse reports where a value does not fit, in terms of types.  `advice` turns its report into a sentence in the
words of the user: what was given, which options or classes there are, which one was probably meant.
"""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal

PLAIN = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "null"}


def advice(message: str, root: type, options: Sequence[str] = ()) -> str:
    """Rewrites an error message of jsonargparse; returns it as it is if it says something unforeseen.

    Args:
        message: as it comes.
        root: the dataclass that the command line makes.
        options: all options of the command, with their dashes.
    """
    if found := re.search(r"unrecognized arguments: (.+)", message):
        return _unknown_option(found[1].split()[0].split("=")[0], options)
    if found := re.search(r"Subcommand '\w+' does not accept option '([\w.]+)'", message):
        return _unknown_field(found[1], root, "")
    steps = re.findall(r"Parser key \"([\w.]+)\"|class_path '([\w.]+)'", message)
    steps = [step for k, step in enumerate(steps) if k == 0 or step != steps[k - 1]]  # some reports say it twice
    path = ".".join(key for key, _ in steps if key)
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        classes = [class_path for _, class_path in steps if class_path]
        return _unknown_field(found[1], _imported(classes[-1]) if classes else root, path)
    found = (
        re.search(r"(?:Got value: |Given value: NestedArg\(.*val=')([^'\n)]*)", message)
        or re.search(r"Expected a dot import path string: (.*)", message)
        or re.search(r"Given value: (.*)", message)
        or re.search(r"Import path (\S+) does not correspond", message)
        or re.search(r"Unable to load config '(.*)'", message)
        or re.search(r"class_path '([\w.]+)':\s+(?:No module|module )", message)
    )
    if not found or not path:
        return message
    if (kind := _declared(root, steps)) is None:
        expected = re.findall(r"Expected an? <class '(\w+)'>", message)
        words = " or ".join(word for kind, word in PLAIN.items() if kind.__name__ in expected)
        return f"{path} must be {words}, got {found[1]}." if words else message
    value, names = found[1], [c.__name__ for c in _choices(kind)]
    why = re.search(
        r"(No module named .*|module .* has no attribute .*|does not correspond to a subclass of \w+)", message
    )
    reason = f" ({why[1]})" if why else ""
    return f"{path} must be {_described(kind)}, got {value}{reason}.{_meant(value, names)}"


def _unknown_option(given: str, options: Sequence[str]) -> str:
    prefix = given.rsplit(".", 1)[0] + "." if "." in given else "--"
    near = sorted(o for o in options if o.startswith(prefix) and not o.endswith(".help"))
    listed = near or sorted(o for o in options if "." not in o)
    return f"There is no option {given}.{_meant(given, options)} There are: {', '.join(listed)}."


def _unknown_field(given: str, owner: type | None, path: str) -> str:
    if owner is not None and not dataclasses.is_dataclass(owner):
        return f"{path}.{given} is an option of a class: choose the class first, {path} is {_described(owner)}."
    fields = [f.name for f in dataclasses.fields(owner) if f.init] if owner is not None else []
    name = owner.__name__ if owner else path
    has = f"It has: {', '.join(fields)}." if fields else "It has none."
    where = f"{path}: " if path else ""
    return f"{where}{name} has no option {given!r}.{_meant(given, fields)} {has}"


def _declared(root: Any, steps: Iterable[tuple[str, str]]) -> Any:
    """The type of the field at the end of the path; None if it cannot be told."""
    owner: Any = root
    kind: Any = None
    for key, class_path in steps:
        owner = (_imported(class_path) if class_path else None) or owner
        for name in key.split(".") if key else ():
            hints = typing.get_type_hints(owner) if isinstance(owner, type) else {}
            kind = hints.get(name)
            owner = next(iter(_members(kind)), None)
    return kind


def _members(kind: Any) -> list[Any]:
    """The types of a union, or the type alone."""
    return list(typing.get_args(kind)) if typing.get_origin(kind) in (typing.Union, types.UnionType) else [kind]


def _choices(kind: Any) -> list[type]:
    """The classes that a user can name where `kind` is declared."""
    bases = [k for k in _members(kind) if isinstance(k, type) and k not in PLAIN and not dataclasses.is_dataclass(k)]
    known = {c for base in bases for c in _subclasses(base) if not inspect.isabstract(c) and c.__module__ != "__main__"}
    return sorted(known, key=lambda c: c.__name__)


def _subclasses(base: type) -> Iterable[type]:
    children: list[type] = base.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)


def _described(kind: Any) -> str:
    words = []
    for member in _members(kind):
        if member in PLAIN:
            words.append(PLAIN[member])
        elif typing.get_origin(member) is Literal:
            words.append("one of " + ", ".join(map(str, typing.get_args(member))))
        elif names := [c.__name__ for c in _choices(member)]:
            words.append(f"one of {', '.join(names)}, or the import path of your own {member.__name__}")
        elif typing.get_origin(member) in (tuple, list):
            words.append("a list, such as [1, 2]")
        elif dataclasses.is_dataclass(member):
            fields = ", ".join(f.name for f in dataclasses.fields(member))
            words.append(f"given by its options ({fields}) or by a file that holds them")
        else:
            words.append(getattr(member, "__name__", str(member)))
    return ", or ".join(words)


def _meant(given: str, names: Iterable[str]) -> str:
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), lower, n=1)
    own = "." in given and not given.startswith("-")  # the import path of something that we do not know
    return f" Did you mean {lower[close[0]]}?" if close and not own else ""


def _imported(class_path: str) -> type | None:
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(__import__(module, fromlist=[name]), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if isinstance(found, type) else None
