"""What `make generated` writes for a new class: its export, and the row of its page in an overview."""

import re
import sys
from importlib import import_module

import pytest

from generated import DOCS, export, listed

PAGE = "# {name}\n\n{does}\n\n| | |\n| --- | --- |\n| steps | {steps} |\n| honest clients that differ | all |\n"
PAGE += "| tolerates | some |\n| a weight is | kept |\n| old updates | scaled down |\n"


def test_a_class_is_exported_in_order(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "some_rules"
    folder.mkdir()
    (folder / "first.py").write_text("class Alpha: ...\nclass Beta: ...\n")
    before = '"""Rules."""\n\nfrom some_rules.first import Beta\n\n__all__ = [\n    "Beta",\n]\n'
    (folder / "__init__.py").write_text(before)
    package = import_module("some_rules")
    export(package, [import_module("some_rules.first").Alpha])
    now = (folder / "__init__.py").read_text()
    assert now == before.replace("import Beta", "import Alpha, Beta").replace('    "Beta"', '    "Alpha",\n    "Beta"')
    assert package.Alpha is sys.modules["some_rules.first"].Alpha


@pytest.mark.parametrize(
    ("path", "does", "steps", "extra", "row", "around"),
    [
        ("rules/SMEA", "Does it.", "", "", "`(f)` | some | - | all |", ("all are used |", "| *entry by entry*")),
        ("rules/Clip", "Before a rule: does it.", "", "", " | does it | kept |", ("for clients that differ |", "\n")),
        ("methods/New", "", "rounds", "the server needs", " | memory | some |", ("examples | none |", "\n")),
        ("methods/New", "", "arrivals", "updates not used", " | some | scaled down | memory |", ("cluster |", "\n")),
    ],
)
def test_a_page_gets_a_row_once(tmp_path, path, does, steps, extra, row, around):
    folder, name = path.split("/")
    (tmp_path / folder).mkdir()
    page = tmp_path / f"{path}.md"
    page.write_text(PAGE.format(name=name, does=does, steps=steps) + f"| {extra} | memory |\n")
    text = re.sub(rf"^.*{path}\.md.*\n", "", (DOCS / f"{folder}.md").read_text(), flags=re.MULTILINE)
    once = listed(text, page)
    before, after = around
    assert f"{before}\n| [{name}]({path}.md){row}\n{after}" in once
    assert once.replace(f"| [{name}]({path}.md){row}\n", "") == text
    assert listed(once, page) == once


def test_a_page_without_a_cell_is_named(tmp_path):
    (tmp_path / "methods").mkdir()
    page = tmp_path / "methods" / "New.md"
    page.write_text(PAGE.format(name="New", does="Does it.", steps="arrivals"))
    with pytest.raises(ValueError, match=r"docs/methods/New.md needs the row `\| updates not used \| ... \|`"):
        listed((DOCS / "methods.md").read_text(), page)
