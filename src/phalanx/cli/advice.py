"""Error messages of the command line that say what would have been right.

jsonargparse reports where a value does not fit, in terms of types.  `advice` turns its report into a sentence in the
words of the user: what was given, which options or classes there are, which one was probably meant.
"""

import dataclasses
import difflib
import inspect
import math
import re
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from phalanx.runs.canonical import PLAIN, configurable, members

LIKE = 0.7  # how near a name must be to be suggested, from 0 to 1
NEEDED = {"report.runs": "Name the folder of at least one run, such as runs/NAME."}  # by argument that has no default


def advice(message: str, root: type, options: Sequence[str] = ()) -> str:
    """Rewrites an error message of jsonargparse; returns it as it is if it says something unforeseen.

    Args:
        message: as it comes.
        root: the dataclass that the command line makes.
        options: all options of the command, with their dashes.
    """
    if found := re.search(r"unrecognized arguments: (.+)", message):
        return _unknown_option(found[1].split()[0].split("=")[0], options, root)
    if found := re.search(r"Subcommand '\w+' does not accept option '([\w.]+)'", message):
        path, _, name = found[1].rpartition(".")
        return _unknown_field(name, _declared(root, [(path, "")]) if path else root, path)
    steps = re.findall(r"Parser key \"([\w.]+)\"|class_path '([\w.]+)'", message)
    steps = [step for k, step in enumerate(steps) if k == 0 or step != steps[k - 1]]  # some reports say it twice
    path, classes = ".".join(key for key, _ in steps if key), [class_path for _, class_path in steps if class_path]
    if found := re.search(r"following arguments are required: (.*)", message):
        return _missing(found[1].split(", "), classes, path) or message
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        return _unknown_field(found[1], imported(classes[-1]) if classes else root, path)
    if found := re.search(r"is abstract[^$]*NestedArg\(key='(\w+)'", message):
        return _unknown_field(found[1], _declared(root, steps), path)
    return _wrong_value(message, root, steps, path) if path else _command_wanted(message)


def _command_wanted(message: str) -> str:
    """Which commands there are, where none was given, or one that there is not."""
    if found := re.search(r'expected "[\w.]+" to be one of \{(.+?)(, \.\.\.)?\}, but it was not provided', message):
        return f"Say what is to be done: {found[1].replace(',', ', ')}{', or another command' if found[2] else ''}."
    if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
        known = re.findall(r"'([\w-]+)'", found[2])
        return f"There is no command {found[1]}.{_meant(found[1], known)} There are: {', '.join(known)}."
    return message


def _wrong_value(message: str, root: type, steps: Sequence[tuple[str, str]], path: str) -> str:
    found = (
        re.search(r"(?:Got value: |Given value: NestedArg\(.*val=')([^'\n)]*)", message)
        or re.search(r"Expected a dot import path string: (.*)", message)
        or re.search(r"Given value: (.*)", message)
        or re.search(r"Import path (\S+) does not correspond", message)
        or re.search(r"Unable to load config '(.*)'", message)
        or re.search(r"class_path '([\w.]+)':\s+(?:No module|module )", message)
    )
    if not found:
        return message
    if (kind := _declared(root, steps)) is None:
        expected = re.findall(r"Expected an? <class '(\w+)'>", message)
        words = " or ".join(word for kind, (_, word) in PLAIN.items() if kind.__name__ in expected)
        return f"{path} must be {words}, got {found[1]}." if words else message
    value, names = found[1], [c.__name__ for c in _choices(kind)]
    if (limits := _limits(_owner(root, steps), path.rpartition(".")[2], kind, value)) is not None:
        return limits
    why = re.search(
        r"(No module named .*|module .* has no attribute .*|does not correspond to a subclass of \w+)", message
    )
    reason = f" ({why[1]})" if why else ""
    meant = _meant(value, names) or _meant_further_in(value, root, path)
    return f"{path} must be {_described(kind)}, got {value}{reason}.{meant}"


def _unknown_option(given: str, options: Sequence[str], root: type) -> str:
    if not given.startswith("-"):
        return f"Nothing can be made of {given}: values follow an option, whose name begins with --."
    prefix = given.rsplit(".", 1)[0] + "." if "." in given else "--"
    near = sorted(o for o in options if o.startswith(prefix) and not o.endswith(".help"))
    listed = near or sorted(o for o in options if "." not in o)
    known = {o.removeprefix("--") for o in options if not o.endswith(".help")}
    if "algorithm" in known:
        known |= _defaults(root).keys()
    return f"There is no option {given}.{_meant_option(given.lstrip('-'), known)} There are: {', '.join(listed)}."


def _meant_option(given: str, known: Iterable[str]) -> str:
    """The option of nearly that name, or those of which the last part has nearly that name."""
    if close := _near(given, known):
        return f" Did you mean --{close}?"
    ends = dict[str, list[str]]()
    for name in sorted(known):
        ends.setdefault(name.rpartition(".")[2], []).append(f"--{name}")
    close = _near(given.rpartition(".")[2], ends)
    return f" Did you mean {' or '.join(ends[close])}?" if close else ""


def _missing(names: Sequence[str], classes: Sequence[str], path: str) -> str:
    """What to do if arguments without a default were not given; empty if it cannot be told."""
    if not classes:
        known = " ".join(NEEDED[name] for name in names if name in NEEDED)
        command, _, _ = names[0].replace(".", " ").rpartition(" ")
        given = " ".join(name.rpartition(".")[2].upper() for name in names)
        return known or (f"Give {given} as well, as in `phalanx {command} {given}`." if command else "")
    kind, name = imported(classes[-1]), classes[-1].rpartition(".")[2]
    if kind is not None and not configurable(kind):
        return f"{path}: {name} is made of what no option can hold. Make the run in Python, or choose another."
    return f"{path}: {name} needs {', '.join(names)}. Give {' '.join(f'--{path}.{n} VALUE' for n in names)}."


def _unknown_field(given: str, owner: Any, path: str) -> str:
    if owner is not None and not dataclasses.is_dataclass(owner):
        return f"{path}.{given} is an option of a class: choose the class first, {path} is {_described(owner)}."
    fields = [f.name for f in dataclasses.fields(owner) if f.init] if owner is not None else []
    name = getattr(owner, "__name__", path)
    has = f"It has: {', '.join(fields)}." if fields else "It has none."
    where = f"{path}: " if path else ""
    return f"{where}{name} has no option {given!r}.{_meant(given, fields)} {has}"


def _limits(owner: Any, name: str, kind: Any, value: str) -> str | None:
    """What the owner of a field says of a number that is not finite; None if it is something else."""
    numbers = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    if float not in members(kind) or value.lower() not in numbers or not isinstance(owner, type):
        return None
    try:
        owner(**{name: numbers[value.lower()]})
    except ValueError as error:
        return str(error)
    except TypeError:  # other fields have no default
        return f"{name} must be a finite number, got {value}."
    return f"{name} can be {value}, written .{value}." if not value.startswith("-") else f"Write {name} as -.inf."


def _defaults(root: type, before: str = "") -> dict[str, Any]:
    """The options of a dataclass, and of the classes that it holds if nothing else is chosen: name and type."""
    hints, out = typing.get_type_hints(root), dict[str, Any]()
    for f in dataclasses.fields(root):
        out[before + f.name] = hints[f.name]
        if dataclasses.is_dataclass(f.default):
            out |= _defaults(type(f.default), f"{before}{f.name}.")
    return out


def _meant_further_in(given: str, root: type, path: str) -> str:
    """Where a class of nearly that name could stand, within what stands at the path if nothing else is chosen."""
    for name, kind in _defaults(root).items():
        if name.startswith(f"{path}.") and (close := _near(given, [c.__name__ for c in _choices(kind)])):
            return f" Did you mean --{name} {close}?"
    return ""


def _owner(root: type, steps: Sequence[tuple[str, str]]) -> Any:
    """The class whose field is at the end of the path."""
    path, _, _ = steps[-1][0].rpartition(".")
    before = [*steps[:-1], (path, "")] if path else list(steps[:-1])
    if not before:
        return root
    return (imported(before[-1][1]) if before[-1][1] else None) or _declared(root, before)


def _declared(root: Any, steps: Iterable[tuple[str, str]]) -> Any:
    """The type of the field at the end of the path; None if it cannot be told."""
    owner: Any = root
    kind: Any = None
    for key, class_path in steps:
        owner = (imported(class_path) if class_path else None) or owner
        for name in key.split(".") if key else ():
            hints = typing.get_type_hints(owner) if isinstance(owner, type) else {}
            kind = hints.get(name)
            owner = next(iter(members(kind)), None)
    return kind


def _choices(kind: Any) -> list[type]:
    """The classes that a user can name where `kind` is declared."""
    bases = [k for k in members(kind) if isinstance(k, type) and k not in PLAIN and not dataclasses.is_dataclass(k)]
    known = {c for base in bases for c in _subclasses(base) if not inspect.isabstract(c) and c.__module__ != "__main__"}
    return sorted((c for c in known if configurable(c)), key=lambda c: c.__name__)


def _subclasses(base: type) -> Iterable[type]:
    children: list[type] = base.__subclasses__()
    for child in children:
        yield child
        yield from _subclasses(child)


def _described(kind: Any) -> str:
    words = []
    for member in members(kind):
        if member in PLAIN:
            words.append(PLAIN[member][1])
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
    own = "." in given  # the import path of something that we do not know
    close = _near(given, names)
    return f" Did you mean {close}?" if close and not own else ""


def _near(given: str, names: Iterable[str]) -> str:
    """The name that is most like the given one; empty if none is."""
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), lower, n=1, cutoff=LIKE)
    return lower[close[0]] if close else ""


def imported(class_path: str) -> type | None:
    """The class of that import path, if there is one."""
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(__import__(module, fromlist=[name]), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if isinstance(found, type) else None
