"""The readers of what comes from outside: valid inputs, the stored corpus, and some changes of both."""

import random

import pytest

from reliability.fuzz import mutated, stored
from reliability.targets import LAKH, TARGETS, Refused

every_target = pytest.mark.parametrize("name", TARGETS)


def outcome(name, data):
    """Whether a reader takes an input; an exception that is not its documented error fails the test."""
    try:
        TARGETS[name].check(data)
    except Refused:
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
    for _ in range(250 if TARGETS[name].executions >= LAKH else 25):
        outcome(name, mutated(inputs, rng))
