"""The readers of what comes from outside: valid inputs, the stored corpus, and some changes of both."""

import random
import runpy
import sys
from pathlib import Path

import pytest

from reliability import fuzz
from reliability.fuzz import mutated, stored
from reliability.targets import LAKH, TARGETS, RefusedError

every_target = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if target.executions >= LAKH else pytest.mark.slow)
        for name, target in TARGETS.items()
    ],
)


def outcome(name, data):
    """Whether a reader takes an input; an exception that is not its documented error fails the test."""
    try:
        TARGETS[name].check(data)
    except RefusedError:
        return False
    return True


@every_target
def test_valid_inputs_are_taken_and_those_of_the_corpus_taken_or_refused(name):
    assert any(outcome(name, data) for data in TARGETS[name].seeds())
    for data in stored(name):
        outcome(name, data)


@every_target
def test_changed_inputs_are_taken_or_refused(name):
    rng = random.Random(name)
    inputs = [*TARGETS[name].seeds(), *stored(name)]
    for _ in range(250):
        outcome(name, mutated(inputs, rng))


def test_a_script_whose_package_is_missing_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cosmic_ray", None)
    with pytest.raises(SystemExit, match=r"pip install cosmic-ray==8\.7\.0"):
        runpy.run_path(str(Path(fuzz.__file__).with_name("mutation.py")))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("sys.argv", ["fuzz.py", "--targets", "codec"])
    with pytest.raises(SystemExit):
        fuzz.main()
    assert "pip install atheris; or give --plain" in capsys.readouterr().err
