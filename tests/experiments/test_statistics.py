"""Intervals, paired tests and Holm's correction, by hand and against scipy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from phalanx.experiments.statistics import Estimate, holm, paired

VALUES = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=8)


def test_the_interval_of_three_values_by_hand():
    found = Estimate.of([1.0, 2.0, 3.0])
    half = 4.302652729911275 * 1.0 / math.sqrt(3)  # t(0.975, 2 degrees of freedom), deviation 1
    assert (found.mean, found.n) == (2.0, 3)
    assert (found.low, found.high) == (pytest.approx(2 - half), pytest.approx(2 + half))


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert Estimate.of([0.5]) == Estimate(0.5, None, None, 1)
    assert Estimate.of([], failed=2).text() == "failed (2)"
    assert Estimate.of([0.841], 1).text(100.0) == "84.1 (n 1, 1 failed)"


@given(VALUES)
def test_a_paired_test_is_that_of_scipy(differences):
    if len(set(differences)) > 1:
        assert paired(differences) == pytest.approx(ttest_1samp(differences, 0.0).pvalue)


def test_without_spread_a_difference_is_certain_and_none_is_none():
    assert paired([0.0, 0.0]) == 1.0
    assert paired([0.25, 0.25]) == 0.0
    with pytest.raises(ValueError, match="at least 2 common seeds, got 1"):
        paired([0.1])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_rejects_what_the_step_down_procedure_rejects(ps):
    rejected, order = set(), sorted(range(len(ps)), key=lambda i: ps[i])
    for k, i in enumerate(order):
        if ps[i] * (len(ps) - k) > 0.05:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(holm(ps)) if p <= 0.05} == rejected
