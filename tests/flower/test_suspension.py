"""Strikes, misses and suspension, by hand."""

import math

import pytest

from phalanx.flower import Standing, Suspension

RULES = Suspension(strikes=2, misses=3, sentence=100.0)


def test_strikes_add_up_and_are_not_forgiven():
    one = RULES.struck(Standing(), 10.0, "NaN")
    assert (one.strikes, one.until) == (1, 0.0)
    good = RULES.answered(one)
    assert good.strikes == 1
    two = RULES.struck(good, 20.0, "a matrix")
    assert (two.strikes, two.until, two.why) == (2, 120.0, "2 strikes, the last: a matrix")


def test_after_a_sentence_the_next_strike_suspends_anew():
    three = RULES.struck(Standing(strikes=2, until=120.0), 130.0, "NaN again")
    assert (three.strikes, three.until) == (3, 230.0)


def test_misses_count_in_a_row():
    standing = Standing()
    for now in (1.0, 2.0):
        standing = RULES.missed(standing, now, "silent")
    assert (standing.misses, standing.until) == (2, 0.0)
    assert RULES.answered(standing).misses == 0
    third = RULES.missed(standing, 3.0, "silent")
    assert (third.misses, third.until, third.why) == (0, 103.0, "3 misses in a row, the last: silent")


def test_a_sentence_can_be_for_ever():
    assert Suspension(strikes=1, sentence=math.inf).struck(Standing(), 5.0, "NaN").until == math.inf


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"strikes": 0}, "strikes must be at least 1, got 0"),
        ({"misses": 0}, "misses must be at least 1, got 0"),
        ({"sentence": 0.0}, r"sentence must be positive, got 0\.0"),
        ({"interval": -1.0}, r"interval must be at least 0 and finite, got -1\.0"),
        ({"interval": math.inf}, "interval must be at least 0 and finite, got inf"),
    ],
)
def test_rules_that_cannot_be_are_refused(given, why):
    with pytest.raises(ValueError, match=why):
        Suspension(**given)
