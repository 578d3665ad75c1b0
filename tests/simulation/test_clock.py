import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.simulation import Clock


def test_events_come_in_order_and_ties_in_order_of_scheduling():
    clock = Clock()
    for delay, event in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        clock.schedule(delay, event)
    assert len(clock) == 3
    assert [(clock.next(), clock.now) for _ in range(3)] == [("first", 1.0), ("second", 1.0), ("late", 2.0)]


@given(st.lists(st.tuples(st.floats(1e-3, 1e6), st.booleans()), min_size=1))
def test_time_never_goes_back(plan):
    clock, last = Clock(), 0.0
    for delay, take in plan:
        clock.schedule(delay, None)
        if take:
            clock.next()
            assert clock.now > last or clock.now == last > 0
            last = clock.now


@pytest.mark.parametrize("delay", [0.0, -1.0, float("nan"), float("inf")])
def test_a_delay_is_positive_and_finite(delay):
    with pytest.raises(ValueError, match="positive and finite"):
        Clock().schedule(delay, None)


def test_nothing_scheduled():
    with pytest.raises(IndexError):
        Clock().next()
