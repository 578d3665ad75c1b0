"""The programs in benchmarks/ are seldom run: that they still find what they import from here is tried each time."""

import ast
import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
MODULES = sorted(FOLDER.rglob("*.py"))
PEERS = ("byzfl", "byzpy", "flwr")  # have environments of their own


@pytest.fixture
def beside(monkeypatch):
    """Modules find those beside them, and leave nothing behind."""
    before = {*sys.modules}
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(FOLDER)):
            del sys.modules[name]


def named(path):
    return str(path.relative_to(FOLDER))


def test_there_are_some():
    assert {"flower.py", "rules.py", "contestants/ours.py"} <= {*map(named, MODULES)}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_benchmark_can_be_imported(path, beside):
    try:
        runpy.run_path(str(path), run_name=path.stem + " of a test")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PEERS:
            raise
        pytest.skip(f"{error.name} is not installed")


def imports(source: str) -> Iterator[tuple[str, str]]:
    """What a program imports from Phalanx, wherever in it, and what the programs import that it holds as text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "phalanx":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "phalanx")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "\nfrom phalanx" in node.value:
            yield from imports(node.value)


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_what_a_benchmark_imports_from_here_is_there(path):
    """Also in functions, and in programs that it starts."""
    for module, name in imports(path.read_text(encoding="utf-8")):
        if module.startswith("phalanx.ray"):
            pytest.importorskip("ray")
        try:
            found = importlib.import_module(module)
            if name and not hasattr(found, name):
                importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError as error:
            if error.name not in PEERS:  # which run where they are installed
                raise
            pytest.skip(f"{error.name} is not installed")


def test_imports_are_found_in_functions_and_in_text():
    source = 'def f():\n    from phalanx.a import b\nTEXT = """\nfrom phalanx.c import d\n"""\nimport phalanx, torch\n'
    assert {*imports(source)} == {("phalanx.a", "b"), ("phalanx.c", "d"), ("phalanx", "")}


def test_quotas_of_nobody_with_a_reputation_are_zero(beside):
    """They were a division by zero: when all are excluded, and when no reputation is above zero."""
    quotas = runpy.run_path(str(FOLDER / "free_riders.py"))["quotas"]
    steps = [SimpleNamespace(state={"reputation": found}) for found in ({}, {0: 0.0, 1: 0.0}, {0: 0.5, 1: 0.25})]
    assert quotas(SimpleNamespace(history=steps * 3, summary=SimpleNamespace(clients=(0, 1)))) == {0: 1 / 3, 1: 1 / 6}
