"""Error messages of the command line that say what would have been right.

They name what was given, which options or classes there are, and which one was probably meant.
"""

import dataclasses
import difflib
import inspect
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from phalanx import wording
from phalanx.fields import PLAIN, members
from phalanx.runs.canonical import configurable

LIKE = 0.7  # how near a name must be to be suggested, from 0 to 1
KNOWN_AS = {  # names in the literature, in lower case
    "arc": "AdaptiveClip",
    "cclip": "CenteredClipping",
    "dba": "DistributedBackdoor",
    "dpsgd": "PrivateSGD",
    "fang": "FangTrimmedMean",
    "foe": "InnerProduct",
    "ipm": "InnerProduct",
    "lie": "ALIE",
    "modelreplacement": "ConstrainAndScale",
    "nnm": "NearestNeighborMixing",
    "pgd": "ProjectedTraining",
    "rfa": "GeometricMedian",
}
OTHERS = (Any, object, Path, dict, list, tuple, set, frozenset)  # types that nobody derives choices from


def unknown_option(given: str, shown: Sequence[str], further: Iterable[str] = ()) -> str:
    """Return what to say of an option that a command does not have.

    Args:
        given: as the user wrote it.
        shown: all options of the command, with their dashes.
        further: names of options that belong to the default classes of others, without dashes.
    """
    given = wording.shown(given)
    if not given.startswith("-"):
        return f"Nothing can be made of {given}: values follow an option, whose name begins with --."
    prefix = given.rsplit(".", 1)[0] + "." if "." in given else "--"
    near = sorted(o for o in shown if o.startswith(prefix))
    listed = near or sorted(o for o in shown if "." not in o)
    known = {o.removeprefix("--") for o in shown} | set(further)
    return f"There is no option {given}.{_meant_option(given.lstrip('-'), known)} There are: {', '.join(listed)}."


def _meant_option(given: str, known: Iterable[str]) -> str:
    """Return a question for the option of nearly that name, or for those whose last part has nearly that name."""
    if close := near(given, known):
        return f" Did you mean --{close}?"
    ends = dict[str, list[str]]()
    for name in sorted(known):
        ends.setdefault(name.rpartition(".")[2], []).append(f"--{name}")
    close = near(given.rpartition(".")[2], ends)
    return f" Did you mean {' or '.join(ends[close])}?" if close else ""


def unknown_command(given: str, known: Sequence[str]) -> str:
    """Return what to say of a command that there is not."""
    given = wording.shown(given) or "''"
    return f"There is no command {given}.{meant(given, known)} There are: {', '.join(known)}."


def unknown_field(given: str, path: str, owner: str, known: Sequence[str]) -> str:
    """Return what to say of an option that a class does not have."""
    given = wording.shown(given)
    has = f"It has: {', '.join(known)}." if known else "It has none."
    return f"{path + ': ' if path else ''}{owner} has no option {given!r}.{meant(given, known)} {has}"


def meant(given: str, names: Iterable[str]) -> str:
    """Return a question for the name that was probably meant; empty if there is none, or if an import path was."""
    close = near(given, names)
    return f" Did you mean {close}?" if close and "." not in given else ""


def near(given: str, names: Iterable[str]) -> str:
    """Return the name that is meant by one of the literature, or is most like the given one; empty if none is."""
    lower = {name.lower(): name for name in names}
    known = KNOWN_AS.get(given.lower(), "")
    if known.lower() in lower and given.lower() not in lower:
        return lower[known.lower()]
    close = difflib.get_close_matches(given.lower(), lower, n=1, cutoff=LIKE)
    return lower[close[0]] if close else ""


def described(kind: Any) -> str:
    """Return in words what an option of that type can be."""
    return ", or ".join(_described(member) for member in members(kind))


def _described(kind: Any) -> str:
    origin, name = typing.get_origin(kind), getattr(kind, "__name__", str(kind))
    if kind in PLAIN or kind is Path:
        words = "a path" if kind is Path else PLAIN[kind][1]
    elif origin is Literal:
        words = "one of " + ", ".join(map(str, typing.get_args(kind)))
    elif origin in (tuple, list, set, frozenset):
        words = "a list, such as [1, 2]"
    elif dataclasses.is_dataclass(kind):
        fields = ", ".join(f.name for f in dataclasses.fields(kind))
        words = f"given by its options ({fields}) or by a file that holds them"
    else:
        names = choices(kind)
        words = f"one of {', '.join(names)}, or the import path of your own {name}" if names else name
    return words


def choices(kind: Any) -> list[str]:
    """Return the names of the classes that a user can choose where `kind` is declared."""
    return sorted({c.__name__ for base in bases(kind) for c in classes(base)})


def bases(kind: Any) -> list[type]:
    """Return the classes of a type that others can take the place of: not plain values, not plain dataclasses."""
    return [
        k
        for k in members(kind)
        if isinstance(k, type) and k not in (*PLAIN, *OTHERS) and not dataclasses.is_dataclass(k)
    ]


def classes(base: type) -> list[type]:
    """Return the subclasses that can be made from a configuration."""
    return [c for c in subclasses(base) if not (inspect.isabstract(c) or _hidden(c)) and configurable(c)]


def _hidden(kind: type) -> bool:
    """Return whether a class is not to be chosen by its name: of the program that runs, or private."""
    return kind.__module__ == "__main__" or kind.__name__.startswith("_")


def subclasses(base: type) -> Iterator[type]:
    """Yield all subclasses."""
    children: list[type] = base.__subclasses__()
    for child in children:
        yield child
        yield from subclasses(child)
