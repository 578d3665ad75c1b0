"""All that is written from the classes of the library and stored, but for docs/compositions.md, which takes minutes.

A public class that its package does not export is exported first. A page that an overview does not link gets a row
there, of the cells of its own table; rows that are there stay as they are.

python tests/generated.py       writes it (make generated)
"""

import inspect
import re
import runpy
import subprocess
import sys
from importlib import reload
from pathlib import Path
from types import ModuleType

from exported import unexported
from phalanx import aggregators

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OVERVIEW = DOCS / "README.md"
COMMAND = "make generated"
CELLS = {"keeps": "a weight is", "assumption on attackers": "tolerates", "assumption": "tolerates"}  # rows of pages


def export(package: ModuleType, kinds: list[type]) -> None:
    """Write these classes into the `__init__.py` of their package."""
    path = Path(str(package.__file__))
    text = path.read_text(encoding="utf-8")
    for kind in kinds:
        new = f'from {kind.__module__} import {kind.__name__}\n\n__all__ = [\n    "{kind.__name__}",\n'
        text = text.replace("\n__all__ = [\n", new)
    path.write_text(text, encoding="utf-8")
    for order in (["check", "--fix", "--select", "I,RUF022"], ["format"]):
        subprocess.run([sys.executable, "-m", "ruff", *order, "--quiet", str(path)], check=True)
    reload(package)


def listed(overview: str, page: Path) -> str:
    """Return an overview with a row for a page, before the first group of the table or at its end, unless it has one.

    Raises:
        ValueError: the page lacks a row that the overview needs.
    """
    link = f"{page.parent.name}/{page.name}"
    if f"]({link}" in overview:
        return overview
    text = page.read_text(encoding="utf-8")
    own = dict(re.findall(r"^\| ([^|]+) \| (.*) \|$", text, re.MULTILINE))
    title, first = text.removeprefix("# ").split("\n\n")[:2]
    if page.parent.name == "methods":
        place, arguments = "## By arrivals\n" if own["steps"].startswith("arrivals") else "## By rounds\n", ""
    else:
        place = "\n| before a rule |" if first.startswith("Before a rule: ") else "\n| rule |"
        given = inspect.signature(getattr(aggregators, title)).parameters.values()
        needed = ", ".join(parameter.name for parameter in given if parameter.default is parameter.empty)
        arguments = f"`({needed})`" if needed else ""
        own |= {"does": first.removeprefix("Before a rule: ").rstrip("."), "bounded then": "-"}
    table = re.compile(r"(^\|.*\n)+", re.MULTILINE).search(overview, overview.index(place))
    assert table
    columns = table[0].partition("\n")[0].strip("| ").split(" | ")[1:]
    needs = [CELLS.get(column, column) for column in columns]
    if lacking := [name for name in needs if name not in own]:
        raise ValueError(f"docs/{link} needs the row `| {lacking[0]} | ... |`, for the overview.")
    row = " | ".join([f"| [{title}]({link}){arguments}", *(own[name] for name in needs)]) + " |\n"
    before, group, rest = table[0].partition("| *")
    return overview.replace(table[0], before + row + group + rest)


def counted(text: str) -> str:
    """Return the overview with the numbers of rules, attacks and pages of methods that there are."""
    rules, before, _ = (DOCS / "rules.md").read_text(encoding="utf-8").partition("\n| before a rule |")
    attacks = (DOCS / "attacks.md").read_text(encoding="utf-8")
    assert before
    for what, number in (
        (r"(?<=\| Rules \| )\d+", len(re.findall(r"^\| \[\w+\]\(rules/", rules, re.MULTILINE))),
        (r"(?<=\| Attacks \| )\d+", len(re.findall(r"^### \w+$", attacks, re.MULTILINE))),
        (r"\d+(?= pages of other \[methods\])", len([*(DOCS / "methods").glob("*.md")])),
    ):
        text, found = re.subn(what, str(number), text)
        assert found == 1, what
    return text


if __name__ == "__main__":
    for package, kinds in unexported().items():
        export(package, kinds)
    for folder in ("rules", "methods"):
        overview = DOCS / f"{folder}.md"
        text = overview.read_text(encoding="utf-8")
        for page in sorted((DOCS / folder).glob("*.md")):
            text = listed(text, page)
        overview.write_text(text, encoding="utf-8")
    OVERVIEW.write_text(counted(OVERVIEW.read_text(encoding="utf-8")), encoding="utf-8")
    runpy.run_module("phalanx.cli.help_pages", run_name="__main__")
    for program in ("tests/tolerances.py", "tests/methods.py", "tests/runs/test_defaults.py"):
        runpy.run_path(str(ROOT / program), run_name="__main__")
