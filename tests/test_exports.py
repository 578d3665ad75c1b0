"""The names of `phalanx`: imported when they are first used, and the same as in their modules."""

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import phalanx

TREE = ast.parse(Path(phalanx.__file__).read_text())
CHECKED = {  # what a type checker sees, by name
    alias.name: node.module
    for block in TREE.body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def test_a_type_checker_sees_what_is_there():
    assert CHECKED.keys() == set(phalanx.__all__)
    assert {name: module for name, module in CHECKED.items() if module != "phalanx.core"} == phalanx.HOMES


@pytest.mark.parametrize("name", phalanx.__all__)
def test_a_name_is_that_of_its_module(name):
    assert getattr(phalanx, name) is getattr(import_module(CHECKED[name]), name)
    assert name in dir(phalanx)


def test_all_names_can_be_imported_at_once():
    names = {}
    exec("from phalanx import *", names)
    assert names.keys() >= set(phalanx.__all__)


@pytest.mark.slow
def test_modules_are_there_without_an_import_of_their_own():
    code = "import phalanx; print(phalanx.aggregators.Median(), phalanx.__version__)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == f"Median() {phalanx.__version__}\n"


def test_other_names_are_not_there():
    for name in ("nosuch", "_nosuch", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"module 'phalanx' has no attribute '{name}'"):
            getattr(phalanx, name)


def test_exported_functions_and_values_can_be_pickled():
    for value in (phalanx.run, phalanx.simulate, phalanx.Run(), phalanx.Guard):
        assert pickle.loads(pickle.dumps(value)) == value
