"""Every public name has an example on its page of the API, and every example runs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx

pytest.importorskip("griffe")

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs" / "assets"))
import api_examples as examples  # noqa: E402  (files of the site)
import fields  # noqa: E402


def lacking():
    return [path for path, code in examples.sources().items() if not code]


@pytest.mark.exports
def test_every_name_of_every_package_has_an_example():
    assert sum(map(len, examples.public().values())) > 400
    assert lacking() == [], "give the docstring an example, or write one in docs/assets/api_examples.txt"


def test_a_name_without_an_example_is_found(monkeypatch):
    new = type("New", (), {"__doc__": "A class of no family.", "__module__": "phalanx.aggregators"})
    monkeypatch.setattr(phalanx.aggregators, "New", new, raising=False)
    named = {**examples.public(), "phalanx.aggregators": [*phalanx.aggregators.__all__, "New"]}
    monkeypatch.setattr(examples, "public", lambda: named)
    assert lacking() == ["phalanx.aggregators.New"]


def test_examples_are_of_names_that_exist():
    names = {f"{package}.{name}" for package, members in examples.public().items() for name in members}
    assert examples.own().keys() <= names


def test_errors_are_those_that_code_raises_with_what_they_say():
    body = ast.parse("if x:\n    raise ValueError(f'x must be 0, got {x}. ' 'Give 0.')\nraise ValueError(text)")
    assert [*fields.errors(body)] == [("ValueError", "x must be 0, got .... Give 0.")]


def test_links_of_the_api_lead_to_pages():
    docs, found = ROOT / "docs", fields.pages()
    assert {"Median", "FedYogi", "RFFL", "ALIE"} <= found.keys()
    for place in {*found.values()}:
        page, _, anchor = place.partition("#")
        text = (docs / page).read_text()
        titles = {line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")}
        assert not anchor or anchor in titles, place


def test_an_example_that_raises_stops_the_site():
    with pytest.raises(ZeroDivisionError):
        examples.performed("x = 1\nx / 0")
    assert examples.performed("x = 1\nx + 1") == ">>> x = 1\n>>> x + 1\n2"


@pytest.mark.slow
def test_every_example_runs(tmp_path):
    code = "import api_examples as a, pathlib, sys; a.CACHE = pathlib.Path(sys.argv[1]); a.shown()"
    kept = tmp_path / "examples.json"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "docs" / "assets"), *sys.path])}
    (tmp_path / "run.py").write_text(f"if __name__ == '__main__':\n    {code}\n")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run.py"), str(kept)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shown = json.loads(kept.read_text())["shown"]
    assert len(shown) > 300
    assert [name for name, text in shown.items() if "\n>>> " not in text] == []
