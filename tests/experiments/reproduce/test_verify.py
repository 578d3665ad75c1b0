"""Records that are computed again, and compared."""

import math
from dataclasses import replace

import pytest

from experiments.reproduce.made import trace
from phalanx.experiments.papers.verify import conditions, differences, distance
from phalanx.experiments.trace import Excluded
from phalanx.runs.provenance import Provenance

STORED = trace([0.5, 0.75], loss=(2.0, None))


def test_equal_records_differ_in_nothing():
    again = replace(STORED, name="other", wall_seconds=9.0, error="other words", provenance=Provenance())
    assert differences(STORED, again) == {}


def test_the_largest_difference_of_each_figure():
    again = trace([0.5, 0.5], loss=(2.0 + 2**-20, None))
    assert differences(STORED, again) == {"accuracy": 0.25, "loss": 2**-20}


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        ({"curves": {"step": (0, 1), "seconds": (0.0, 10.0), "accuracy": (0.5, 0.75), "loss": (2.0, 1.0)}}, "loss"),
        ({"curves": {"step": (0, 1), "seconds": (0.0, 10.0), "accuracy": (0.5, 0.75)}}, "loss"),
        ({"status": "failed"}, "status"),
        ({"excluded": (Excluded(1, 2, "why"),)}, "excluded"),
        ({"data": {"fingerprint": {"train": "a"}}}, "data"),
    ],
)
def test_figures_that_cannot_be_subtracted_differ_without_bound(change, figure):
    assert differences(STORED, replace(STORED, **change)) == {figure: math.inf}


def test_a_client_that_is_excluded_in_another_step_is_a_difference_and_another_reason_is_none():
    one, other = replace(STORED, excluded=(Excluded(1, 2, "a"),)), replace(STORED, excluded=(Excluded(1, 5, "b"),))
    assert differences(one, other) == {"excluded": 3.0}
    assert differences(one, replace(one, excluded=(Excluded(1, 2, "c"),))) == {}


def test_what_an_older_record_lacks_is_not_compared():
    assert differences(STORED, replace(STORED, received_accuracy={0: 0.5})) == {}
    assert differences(replace(STORED, received_accuracy={0: 0.5}), STORED) == {"received_accuracy": math.inf}


@pytest.mark.parametrize(
    ("one", "other", "by"),
    [
        (1, 1.0, 0.0),
        (True, True, 0.0),
        ("a", "b", math.inf),
        ([1.0, 2.0], [1.0], math.inf),
        ({"a": [1, 4]}, {"a": [1, 2]}, 2.0),
    ],
)
def test_distances(one, other, by):
    assert distance(one, other) == by


def test_conditions_that_both_records_name_are_compared():
    one = replace(STORED, provenance=Provenance(torch="2.1", threads=1, numpy="2.0"))
    other = replace(STORED, provenance=Provenance(torch="2.2", threads=1, numba="0.6"))
    assert conditions(one, other) == ["torch 2.1, now 2.2"]
