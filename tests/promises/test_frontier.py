"""The frontier of a consortium: errors by hand, caps that hold, and the picture."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.aggregators import Mean, TrimmedMean
from phalanx.core import InfeasibleError
from phalanx.promises.frontier import DIRECTIONS, LIES, _updates, frontier
from phalanx.promises.frontier_picture import plot_frontier
from phalanx.weighting import mwp, truncation_bound

HOSPITALS = [[4747, 11836, 1251], [5337, 740, 56], [3571, 2, 35], [1911, 1244, 293], [1678, 42, 58], [904, 120, 96],
             [4, 126, 221], [159, 0, 31]]  # fmt: skip
SIZES = [sum(row) for row in HOSPITALS]


@pytest.fixture(scope="module")
def found():
    return frontier(SIZES, HOSPITALS)


def test_the_hospitals_are_as_published(found):
    """MediSwarm: a weighted mean has 0.023 clean, 518 if Aachen lies, 5.52 if Barcelona does; a trimmed mean with a
    cap of 0.45 has 0.088 clean.
    """
    at = next(point.weighing for point in found.points if point.cap == Fraction(9, 20))
    assert found.reported.clean == pytest.approx(0.023, abs=0.002)
    assert found.reported.errors[0] == pytest.approx(518, abs=1)
    assert found.reported.errors[7] == pytest.approx(5.52, abs=0.02)
    assert at.clean == pytest.approx(0.088, abs=0.002)
    assert at.errors[7] == pytest.approx(0.088, abs=0.002)
    assert at.worst < 1 < found.reported.worst
    assert [float(point.cap) for point in found.useful] == [0.44, 0.45, 0.46, 0.47]
    assert found.best in found.useful


def test_an_error_is_that_of_the_rule(found):
    """Computed again with one liar and one lie at a time."""
    N = np.asarray(SIZES)
    rows, target = _updates(N, HOSPITALS)
    weights = torch.tensor(np.minimum(N, truncation_bound(N, 1 / 8, 0.3)), dtype=torch.float64)
    at = next(point.weighing for point in found.points if point.cap == Fraction(3, 10))
    for rule, weighing, given_ in ((TrimmedMean(0.3), at, weights), (Mean(), found.reported, torch.tensor(N).double())):
        for site in (0, 3, 7):
            errors = []
            for lie in LIES:
                sent = rows.clone()
                sent[site] = lie * target
                errors.append(float((rule(sent, given_) - target).norm() / target.norm()))
            assert weighing.errors[site] == pytest.approx(max(errors))
        assert weighing.clean == pytest.approx(float((rule(rows, given_) - target).norm() / target.norm()))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=3, max_size=9), st.integers(1, 3))
def test_every_cap_is_kept_and_tolerated(sizes, liars):
    if 2 * liars >= len(sizes):
        with pytest.raises((InfeasibleError, ValueError)):
            frontier(sizes, liars=liars)
        return
    found = frontier(sizes, liars=liars)
    assert [point.cap for point in found.points] == sorted({point.cap for point in found.points})
    for cap, weighing in found.points:
        held = mwp(np.minimum(sizes, weighing.bound), liars / len(sizes))
        assert held == pytest.approx(float(weighing.share))
        assert weighing.share <= cap < Fraction(1, 2)
        assert weighing.rule.tolerates(len(sizes)).allows(weighing.share)
        assert np.isfinite(weighing.worst)
    assert found.uniform.shares == pytest.approx([1 / len(sizes)] * len(sizes))
    assert found.reported.shares == pytest.approx([size / sum(sizes) for size in sizes])
    if found.reported.share < Fraction(1, 2):  # then the last cap truncates nothing
        assert found.points[-1].weighing.shares == pytest.approx(found.reported.shares)


def test_sizes_that_are_alike_need_no_cap():
    found = frontier([100] * 5)
    assert [point.cap for point in found.points] == [Fraction(1, 5)]
    assert found.points[0].weighing.clean < 0.5


def test_there_is_no_useful_band_if_nothing_is_cheap_enough(found):
    strict = frontier(SIZES, HOSPITALS, cost=0.05)
    assert (strict.useful, strict.best) == ((), None)
    assert strict.cheapest.weighing.clean == found.cheapest.weighing.clean > 0.05


def test_the_same_file_gives_the_same_bits(found):
    assert frontier(SIZES, HOSPITALS) == found


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (([5, 6, 7], [[5], [6], [8]]), "sum to its size"),
        (([5, 6, 7], [[5], [6]]), "a row for each site"),
        (([5, 6, 7], [[6, -1], [6, 0], [7, 0]]), "numbers from 0"),
        (([1] * 301,), "at most 300 sites"),
        (([5, 0, 7],), "at least 1"),
    ],
)
def test_arguments_are_checked(arguments, why):
    with pytest.raises(ValueError, match=why):
        frontier(*arguments)
    with pytest.raises(ValueError, match="cost must be above 0"):
        frontier([5, 6, 7], cost=0)
    with pytest.raises(InfeasibleError, match="hold half of the weight"):
        frontier([5, 6])


def test_the_picture_shows_what_was_computed(found, tmp_path):
    names = ["Aachen $x$", *map(str, range(1, 8))]
    figure = plot_frontier(found, names)
    curve, bars = figure.axes
    worst, clean = curve.lines[:2]
    assert list(clean.get_ydata()) == [point.weighing.clean for point in found.points]
    assert list(worst.get_ydata()) == [point.weighing.worst for point in found.points]
    widths = [round(bar.get_width(), 6) for bar in bars.patches]
    assert widths[0] == round(SIZES[0] / sum(SIZES), 6)
    assert bars.get_yticklabels()[0].get_text() == names[0]
    assert any("44 %" in text.get_text() for text in curve.texts)
    figure.savefig(tmp_path / "a.png", dpi=100)
    figure.savefig(tmp_path / "a.svg")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="names must be of 8 sites"):
        plot_frontier(found, ["one"])


def test_directions_are_enough():
    """The mean's clean error and its noise are known: their square is the sum of w_i^2 9 / n_i over |p|^2."""
    N = np.asarray(SIZES)
    p = np.asarray(HOSPITALS).sum(0) / N.sum()
    noise = (9 / N.sum()) ** 0.5 / np.linalg.norm(p)
    assert frontier(SIZES, HOSPITALS).reported.clean == pytest.approx(noise, rel=4 / DIRECTIONS**0.5)
