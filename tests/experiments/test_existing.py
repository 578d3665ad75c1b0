"""Axes that are found in runs that exist."""

from dataclasses import replace

import pytest

from phalanx import Run
from phalanx.aggregators import Krum, Mean
from phalanx.algorithms import FedAvg
from phalanx.attacks import SignFlip
from phalanx.core import InfeasibleError
from phalanx.experiments.existing import compared
from phalanx.experiments.trace import Trace


def made(*plans):
    return compared([Trace.of_failure(plan, "It was never carried out.") for plan in plans], "x")


def test_axes_are_the_settings_that_differ_as_deep_as_the_classes_are_the_same():
    plans = [Run(FedAvg(rule), seed=seed) for rule in (Mean(), Krum(f=2), Krum(f=3)) for seed in (0, 1)]
    assert made(*plans).axes == {"algorithm.aggregate": ("Mean", "Krum(f=2)", "Krum(f=3)")}


def test_what_follows_from_another_setting_is_no_axis():
    attacked = Run(attack=SignFlip(), byzantine=4)
    assert made(attacked, Run(), replace(attacked, seed=1)).axes == {"attack": ("SignFlip", "none")}
    both = made(attacked, Run(), replace(attacked, byzantine=6))
    assert both.axes == {"byzantine": ("4", "0", "6")}, "the attack follows from the number of attackers"


def test_runs_that_differ_in_their_seed_only_are_compared_by_name():
    found = made(Run(), Run(seed=1), Run())
    assert len(found.rows) == 2, "the third is the first"
    assert list(found.axes) == ["run"]


def test_without_runs_there_is_nothing_to_compare():
    with pytest.raises(InfeasibleError, match="There are no runs to compare"):
        made()
