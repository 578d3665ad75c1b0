"""Extension of griffe: the comment after a field, or what its type says, is its description on the pages of the API."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import griffe


class Fields(griffe.Extension):
    """Describes the fields of classes that have no docstring: those of a `NamedTuple`, and class variables."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the comment of a field as its docstring."""
        owner = attr.parent
        if attr.docstring is not None or owner is None or not owner.is_class or attr.endlineno is None:
            return
        comment = _lines(attr.filepath)[attr.endlineno - 1].partition("  # ")[2].strip()
        if comment or any("NamedTuple" in str(base) for base in owner.bases):
            text = comment or f"A field of type {attr.annotation}."
            attr.docstring = griffe.Docstring(f"{text[0].upper()}{text[1:]}", parent=attr)


@lru_cache
def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()
