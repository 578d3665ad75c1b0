"""The readers of what comes from outside: valid inputs, the stored corpus, and some changes of both."""

import random

import pytest

from reliability.fuzz import ODD, stored
from reliability.targets import TARGETS, Refused

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
    for _ in range(250):
        data = bytearray(rng.choice(inputs))
        for _ in range(rng.randint(1, 4)):
            at, kind = rng.randrange(len(data) + 1), rng.randrange(4)
            if kind == 0:
                data[at : at + 1] = rng.randbytes(1)
            elif kind == 1:
                del data[at : at + rng.randint(1, 8)]
            elif kind == 2:
                data[at:at] = rng.choice(ODD).encode()
            else:
                data[at:at] = rng.choice(inputs)[:20]
        outcome(name, bytes(data))
