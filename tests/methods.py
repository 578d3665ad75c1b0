"""The options on the pages of docs/methods/, from the fields and docstrings of the algorithms.

python tests/methods.py      writes them
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

from generated import COMMAND
from phalanx import algorithms
from phalanx.cli.help import documentation, sentence

FOLDER = Path(__file__).parents[1] / "docs" / "methods"
OPTIONS = re.compile(r"(\n## Options\n\n\| option \| default \| \|\n\| --- \| --- \| --- \|\n)((?:\|.*\n)*)")


def kinds(text: str) -> list[type]:
    """Return the algorithms that a page's title names."""
    names = text.partition("\n")[0].removeprefix("# ").split(", ")
    assert {*names} <= {*algorithms.__all__}, f"{names} are not exported: {COMMAND}"
    return [getattr(algorithms, name) for name in names]


def rows(described: list[type]) -> list[str]:
    """Return a row for each option; where algorithms differ in it, one for each form of it, with their names."""
    forms = dict[tuple[str, str, str], list[str]]()
    for kind in described:
        texts = documentation(kind)[1]
        for field in dataclasses.fields(kind):
            words = sentence(texts[field.name].replace("|", "\\|"))
            forms.setdefault((field.name, default(field), words), []).append(kind.__name__)
    return [
        f"| `{name}`{'' if len(of) == len(described) else ' of ' + ', '.join(of)} | {value} | {words} |"
        for (name, value, words), of in forms.items()
    ]


def default(field: dataclasses.Field[Any]) -> str:
    """Return the default of a field in words."""
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "to be given"
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if dataclasses.is_dataclass(value):
        plain = value == type(value)() if not required(type(value)) else False
        return f"`{type(value).__name__}()`" if plain else f"`{value!r}`"
    match value:
        case None | bool():
            return {None: "none", True: "yes", False: "no"}[value]
        case float():
            return f"{value:g}"
        case str():
            return f'"{value}"'
    return str(value)


def required(kind: type) -> bool:
    """Return whether a dataclass has a field without a default."""
    missing = dataclasses.MISSING
    return any(f.default is missing and f.default_factory is missing for f in dataclasses.fields(kind))


def written(text: str) -> str:
    """Return the page with the options of today."""
    table = "".join(f"{row}\n" for row in rows(kinds(text)))
    return OPTIONS.sub(lambda found: found[1] + table, text)


if __name__ == "__main__":
    for page in FOLDER.glob("*.md"):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
