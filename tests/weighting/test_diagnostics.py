"""What weights do to a federation, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.weighting import concentration, objective_shift, weight_shift


def test_concentration_by_hand():
    equal = concentration(dict.fromkeys(range(20), 3.0))
    assert equal.largest == pytest.approx(0.05)
    assert equal.top_tenth == pytest.approx(0.1)
    assert equal.effective == pytest.approx(20)
    one = concentration({0: 9.0, 1: 1.0})
    assert one.largest == one.top_tenth == pytest.approx(0.9)
    assert one.effective == pytest.approx(100 / 82)


def test_weight_shift_by_hand():
    assert weight_shift({0: 1, 1: 1}, {0: 5, 1: 5}) == 0
    assert weight_shift({0: 1, 1: 3}, {0: 1, 1: 1}) == pytest.approx(0.25)
    assert weight_shift({0: 1, 1: 0}, {0: 0, 1: 1}) == 1
    with pytest.raises(ValueError, match="same clients"):
        weight_shift({0: 1}, {1: 1})
    with pytest.raises(ValueError, match="same clients"):
        weight_shift({0: 1}, {0: 1, 1: 1})


def test_objective_shift_by_hand():
    """Sizes (1, 3), U = 1: the objective goes from (F_0 + 3 F_1) / 4 to (F_0 + F_1) / 2."""
    told = objective_shift({0: 1, 1: 3}, 1, {0: 2.0, 1: 6.0})
    assert told.shift == pytest.approx(abs((2 + 18) / 4 - 4))
    assert told.printed_bound == pytest.approx(abs((3 / 4 - 1 / 2) * 6 + (1 / 4 - 1 / 2) * 1 * 2))
    assert told.safe_bound == pytest.approx(4 * 0.25)


def test_the_printed_bound_of_theorem_3_2_can_be_broken():
    told = objective_shift({0: 1, 1: 1, 2: 9}, 2, {0: 1.0, 1: 1.0, 2: 0.4})
    assert told.printed_bound < told.shift <= told.safe_bound


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 10)), min_size=1, max_size=8), st.integers(1, 60))
def test_the_safe_bound_is_never_broken(clients, bound):
    sizes, losses = ({i: pair[k] for i, pair in enumerate(clients)} for k in (0, 1))
    told = objective_shift(sizes, bound, losses)
    assert told.shift <= told.safe_bound + 1e-9
    if bound >= max(sizes.values()):
        assert told.shift == pytest.approx(0)


def test_impossible_arguments():
    with pytest.raises(ValueError, match="bound must be at least 1"):
        objective_shift({0: 1}, 0, {0: 1.0})
    with pytest.raises(ValueError, match="losses must be of the same clients"):
        objective_shift({0: 1}, 1, {1: 1.0})
    with pytest.raises(ValueError, match="for client 0"):
        objective_shift({0: 0}, 1, {0: 1.0})
