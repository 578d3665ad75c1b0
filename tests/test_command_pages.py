"""The pages of commands: every command has one, with all its options and an example."""

import json
import sys
from pathlib import Path

import pytest

from phalanx.cli.main import COMMANDS, FLOWER, SCHEMA

sys.path.append(str(Path(__file__).parents[1] / "docs" / "assets"))
import command_pages

NAMES = [*COMMANDS, *(f"flower {name}" for name in FLOWER), *(f"schema {name}" for name in SCHEMA)]


@pytest.fixture
def pages(monkeypatch):
    shown = {name: f"$ phalanx {name}\nits output" for name in NAMES}
    monkeypatch.setattr(command_pages, "kept", lambda *_: shown)
    return command_pages.pages()


def test_every_command_has_an_example():
    examples = command_pages.examples()
    assert [*filter(lambda name: name not in examples, NAMES)] == []
    assert examples.keys() <= {*NAMES}
    for name, lines in examples.items():
        assert lines[-1].startswith((f"phalanx {name}", "see ../")), name


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_all_options(name, pages):
    group = name.partition(" ")[0]
    page = pages[f"commands/{group}.md"]
    assert f"# phalanx {name}\n" in page
    assert f"$ phalanx {name}\nits output" in page
    section = page.partition(f"# phalanx {name}\n")[2].partition("\n## ")[0]
    (parser,) = (parser for at, _, parser in command_pages.parsers() if at == name)
    for entry in parser.page["entries"]:
        assert f"- `{', '.join(entry['names'])}" in section, entry["names"]
    assert f"(commands/{group}.md)" in pages["commands/README.md"].replace("](", "](commands/")


def test_help_is_text_and_no_markup():
    assert command_pages.plain("of `a_b` by *c* <d>, [e]") == r"of `a_b` by \*c\* \<d\>, \[e\]"


def test_outputs_are_kept_until_a_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("api_examples.CACHE", tmp_path / "examples.json")
    file, made = tmp_path / "examples.txt", []

    def make():
        made.append(1)
        return {"run": "shown"}

    for text in ("a", "a", "b"):
        file.write_text(text)
        assert command_pages.kept("commands", make, file) == {"run": "shown"}
    assert len(made) == 2
    assert json.loads((tmp_path / "commands.json").read_text())["shown"] == {"run": "shown"}
