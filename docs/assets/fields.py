"""Extension of griffe: examples, and the comments after fields, become docstrings on the pages of the API."""

import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from api_examples import imports, public, shown


class Fields(griffe.Extension):
    """Describes the fields of classes that have no docstring: those of a `NamedTuple`, and class variables."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the example of a class."""
        _show(cls)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        """Add the example of a function."""
        _show(func)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the comment of a field as its docstring."""
        owner = attr.parent
        if attr.docstring is not None or owner is None or not owner.is_class or attr.endlineno is None:
            return
        comment = _lines(attr.filepath)[attr.endlineno - 1].partition("  # ")[2].strip()
        if comment or any("NamedTuple" in str(base) for base in owner.bases):
            text = comment or f"A field of type {attr.annotation}."
            attr.docstring = griffe.Docstring(f"{text[0].upper()}{text[1:]}", parent=attr)


def _show(member: griffe.Class | griffe.Function) -> None:
    if (example := shown().get(member.path)) and member.docstring:
        lines = "\n".join(f"    {line}" for line in example.splitlines())
        member.docstring.value = f"{member.docstring.value.rstrip()}\n\nExamples:\n{lines}\n"
    elif member.docstring and (first := re.search(r"^( *)>>> ", member.docstring.value, re.MULTILINE)):
        text = member.docstring.value
        code = "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) ?(.*)$", text, re.MULTILINE))
        package = next((place for place, names in public().items() if member.name in names), "phalanx")
        lines = "".join(f"{first[1]}>>> {line}\n" for line in imports(code, package, member.module.path))
        member.docstring.value = text[: first.start()] + lines + text[first.start() :]


@lru_cache
def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()
