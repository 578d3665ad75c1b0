"""All that is written from the classes of the library and stored, but for docs/compositions.md, which takes a minute.

python tests/generated.py       writes it (make generated)
"""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OVERVIEW = DOCS / "README.md"
COMMAND = "python tests/generated.py"


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
    OVERVIEW.write_text(counted(OVERVIEW.read_text(encoding="utf-8")), encoding="utf-8")
    runpy.run_module("phalanx.cli.help_pages", run_name="__main__")
    for program in ("tests/tolerances.py", "tests/methods.py", "tests/runs/test_defaults.py"):
        runpy.run_path(str(ROOT / program), run_name="__main__")
