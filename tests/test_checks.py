"""Headline claims, computed again by scripts that import nothing of the library."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parents[1] / "checks"
HELPER = "mnist"
SCRIPTS = sorted(path.stem for path in CHECKS.glob("*.py") if path.stem != HELPER)
QUICK = {"catalyst_round_times"}
SMALLER = {"rffl_images": ("4", "3")}  # 4 participants and 3 rounds in place of 10 and 5
LINES, COUNT = 150, 10


def imported(script):
    """The packages that a script imports."""
    nodes = ast.walk(ast.parse((CHECKS / f"{script}.py").read_text()))
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    nodes = ast.walk(ast.parse((CHECKS / f"{script}.py").read_text()))
    return {name.split(".")[0] for name in (*names, *(n.module for n in nodes if isinstance(n, ast.ImportFrom)))}


def test_scripts_are_short_and_independent():
    assert len(SCRIPTS) == COUNT
    for script in (*SCRIPTS, HELPER):
        assert len((CHECKS / f"{script}.py").read_text().splitlines()) < LINES, script
        assert imported(script) <= {"numpy", "torch", "scipy", HELPER, *sys.stdlib_module_names}, script


@pytest.mark.parametrize("script", [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in SCRIPTS])
def test_a_claim_comes_out_again(script):
    if HELPER in imported(script) and "PHALANX_DATA" not in os.environ:
        pytest.skip("PHALANX_DATA names no folder with MNIST")
    command = [sys.executable, f"{script}.py", *SMALLER.get(script, ())]
    done = subprocess.run(command, cwd=CHECKS, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
