"""Extension of griffe: what the pages of the API have besides docstrings.

Examples, the errors that a class or function raises itself, where its source and its page are, and comments of fields.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import griffe
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from api_examples import ROOT, imports, public, shown
from command_pages import plain


class Fields(griffe.Extension):
    """Describes the fields of classes that have no docstring: those of a `NamedTuple`, and class variables."""

    def on_class_instance(self, *, node: Any, cls: griffe.Class, **_: Any) -> None:
        """Add what a class raises, its example and its links."""
        hidden = [part for part in node.body if isinstance(part, ast.FunctionDef) and not ast.get_docstring(part)]
        _raise(cls, *hidden)
        _show(cls)
        _link(cls)

    def on_function_instance(self, *, node: Any, func: griffe.Function, **_: Any) -> None:
        """Add what a function raises, its example and its link."""
        _raise(func, node)
        _show(func)
        if func.parent is not None and func.parent.is_module:
            _link(func)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the comment of a field as its docstring."""
        owner = attr.parent
        if attr.docstring is not None or owner is None or not owner.is_class or attr.endlineno is None:
            return
        comment = _lines(attr.filepath)[attr.endlineno - 1].partition("  # ")[2].strip()
        if comment or any("NamedTuple" in str(base) for base in owner.bases):
            text = comment or f"A field of type {attr.annotation}."
            attr.docstring = griffe.Docstring(f"{text[0].upper()}{text[1:]}", parent=attr)


def _raise(member: griffe.Class | griffe.Function, *bodies: ast.AST) -> None:
    """Add the errors of functions to a docstring that names none: their kinds, and what they say."""
    found = dict.fromkeys(each for body in bodies for each in errors(body))
    if member.docstring and found and "Raises:" not in member.docstring.value:
        lines = "".join(f"    {kind}: {plain(message)}\n" for kind, message in found)
        member.docstring.value = f"{member.docstring.value.rstrip()}\n\nRaises:\n{lines}"


def errors(body: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield kind and message of each error that code raises itself; dots are in place of values."""
    for node in ast.walk(body):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = _message(node.exc.args[0])
            if re.search(r"\w{3}", message):
                yield ast.unparse(node.exc.func), message


def _message(text: ast.expr) -> str:
    if isinstance(text, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in text.values)
    if isinstance(text, ast.BinOp):
        return _message(text.left) + _message(text.right)
    return str(text.value) if isinstance(text, ast.Constant) else "..."


@lru_cache
def pages() -> dict[str, str]:
    """Return the place of the page on a rule, algorithm or attack, by its name, from docs/."""
    docs = ROOT / "docs"
    found = {page.stem: f"rules/{page.stem}.md" for page in (docs / "rules").glob("*.md")}
    for page in (docs / "methods").glob("*.md"):
        found |= dict.fromkeys(
            page.read_text().partition("\n")[0].removeprefix("# ").split(", "), f"methods/{page.stem}.md"
        )
    for line in re.findall(r"^\| \[`.*", (docs / "methods.md").read_text(), re.MULTILINE):
        found |= dict(re.findall(r"\[`(\w+)`\]\((\S+)\)", line.split(" | ")[0]))
    attacks = re.findall(r"^### (\w+)$", (docs / "attacks.md").read_text(), re.MULTILINE)
    return {name: f"attacks.md#{name.lower()}" for name in attacks} | found


def _link(member: griffe.Class | griffe.Function) -> None:
    """Add where the source of a class or function is, and its page if it has one."""
    if member.docstring and isinstance(member.filepath, Path):
        home = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["extra"]["repository"]
        file = member.filepath.resolve().relative_to(ROOT).as_posix()
        links = f"[Source]({home}/blob/main/{file}#L{member.lineno})"
        if member.name in pages():
            links = f"[What it promises, and its paper](../{pages()[member.name]}). {links}"
        member.docstring.value = f"{member.docstring.value.rstrip()}\n\n{links}.\n"


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
