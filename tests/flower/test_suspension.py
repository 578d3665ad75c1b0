"""Strikes, misses and suspension, by hand."""

import math
from itertools import cycle

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


def suspended_after(pattern, rules=RULES, most=1000):
    """After how many answers (+) and misses (-), in a pattern that repeats, a client is suspended; None: never."""
    standing = Standing()
    for k, what in zip(range(1, most), cycle(pattern), strict=False):
        standing = rules.answered(standing) if what == "+" else rules.missed(standing, float(k), "silent")
        if standing.until:
            return k
    return None


def test_three_misses_suspend_and_a_valid_answer_makes_up_for_a_quarter_of_one():
    standing = RULES.missed(RULES.missed(Standing(), 1.0, "silent"), 2.0, "silent")
    assert (standing.misses, standing.until) == (2.0, 0.0)
    assert RULES.answered(standing).misses == 1.75
    third = RULES.missed(standing, 3.0, "silent")
    assert (third.misses, third.until, third.why) == (0.0, 103.0, "too many misses, the last: silent")
    assert RULES.answered(Standing()).misses == 0.0


def test_who_misses_more_than_one_task_in_five_is_suspended_in_the_end():
    """1, 2, 1.75, 2.75, and one more; and so on."""
    assert suspended_after("---") == 3
    assert suspended_after("--+") == 5
    assert suspended_after("-+") == 7  # 1, 0.75, 1.75, 1.5, 2.5, 2.25, 3.25
    assert suspended_after("-+++") is not None
    assert suspended_after("-++++") is None


def test_with_an_infinite_leak_only_consecutive_misses_count():
    rules = Suspension(misses=3, leak=math.inf)
    assert suspended_after("--+", rules) is None
    assert suspended_after("+---", rules) == 4


def test_a_client_has_its_last_chance_where_one_more_miss_suspends_it():
    assert not RULES.last_chance(Standing(misses=1.75))
    assert RULES.last_chance(Standing(misses=2.0))
    assert Suspension(misses=1).last_chance(Standing())


def test_a_sentence_can_be_for_ever():
    assert Suspension(strikes=1, sentence=math.inf).struck(Standing(), 5.0, "NaN").until == math.inf


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"strikes": 0}, "strikes must be at least 1, got 0"),
        ({"misses": 0}, "misses must be at least 1, got 0"),
        ({"leak": 0.0}, r"leak must be positive, got 0\.0"),
        ({"sentence": 0.0}, r"sentence must be positive, got 0\.0"),
        ({"interval": -1.0}, r"interval must be at least 0 and finite, got -1\.0"),
        ({"interval": math.inf}, "interval must be at least 0 and finite, got inf"),
    ],
)
def test_rules_that_cannot_be_are_refused(given, why):
    with pytest.raises(ValueError, match=why):
        Suspension(**given)
