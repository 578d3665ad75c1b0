"""The remedies of promises and errors, which name fields as in Python, as options of a command line."""

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from phalanx.core import InfeasibleError
from phalanx.runs.plan import Run

VALUE = r"[A-Z]\w*\([^()]*\)|\"[^\"]*\"|\d+(?:\.\d+)?|null"
TO = rf"(?P<also>\band )?\b(?:or|(?P<name>[a-z_]+)) to (?P<value>{VALUE})"
RULE = r"\b(?:another rule|a rule [a-z ]+), such as (?P<rule>[A-Z]\w*)"
REMEDY = re.compile(rf"{TO}|\b(?:[Rr]aise|[Ll]ower) (?P<other>[a-z_]+)|{RULE}")


@contextmanager
def with_options(plan: Run) -> Iterator[None]:
    """Add to an error of a run which options its remedies are."""
    try:
        yield
    except InfeasibleError as error:
        if said := remedy_options(str(error), plan):
            error.add_note(said)
        raise


def remedy_options(text: str, plan: Run) -> str:
    """Return the remedies that a text names as options; "" if it names no field of the run.  `;` is between choices.

    Examples:
        >>> remedy_options("Set preprocess to Ignore(), or tolerate to 1.", Run())
        'On the command line: --algorithm.preprocess Ignore; --tolerate 1'
    """
    paths, name, found = dict(_paths(plan)), "", list[str]()
    for match in REMEDY.finditer(text):
        name = match["name"] or match["other"] or ("aggregate" if match["rule"] else name)
        if name in paths:
            options = " ".join(_options(paths[name], match["value"] or match["rule"] or name.upper()))
            found = [*found[:-1], f"{found[-1]} {options}"] if match["also"] and found else [*found, options]
    return f"On the command line: {'; '.join(dict.fromkeys(found))}" if found else ""


def _paths(plan: Run) -> Iterator[tuple[str, str]]:
    """Yield the fields of a run and those of its algorithm, the innermost last, each with its path."""
    yield from ((field.name, field.name) for field in dataclasses.fields(plan))
    yield from _within(plan.algorithm, "algorithm")


def _within(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name, f"{path}.{field.name}"
            yield from _within(getattr(value, field.name), f"{path}.{field.name}")


def _options(path: str, value: str) -> Iterator[str]:
    """Yield a field's option and its value; of a class also those of its arguments, in capitals where they are open."""
    called, _, arguments = value.rstrip(")").partition("(")
    yield f"--{path} {called.strip(chr(34))}"
    for argument in filter(None, arguments.split(", ")):
        name, _, given = argument.partition("=")
        yield f"--{path}.{name} {given.strip(chr(34)) or name.upper()}"
