"""The frontier of a consortium: errors by hand, caps that hold, and the picture."""

import itertools
import math
from fractions import Fraction

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.aggregators import Mean, TrimmedMean
from phalanx.cli import weights_files
from phalanx.core import InfeasibleError
from phalanx.promises.frontier import DIRECTIONS, LARGEST, _falsely_weighed, _updates, frontier
from phalanx.promises.frontier_picture import plot_frontier
from phalanx.weighting import mwp, truncation_bound

HOSPITALS = [[4747, 11836, 1251], [5337, 740, 56], [3571, 2, 35], [1911, 1244, 293], [1678, 42, 58], [904, 120, 96],
             [4, 126, 221], [159, 0, 31]]  # fmt: skip
SIZES = [sum(row) for row in HOSPITALS]


@pytest.fixture(scope="module")
def found():
    return frontier(SIZES, HOSPITALS)


def test_the_hospitals_are_as_published(found):
    """MediSwarm: a weighted mean has 0.023 clean, 518 if Aachen sends -1,000 times the target, 5.52 if Barcelona does;
    a trimmed mean with a cap of 0.45 has 0.088 clean.
    """
    rows, target = _updates(np.asarray(SIZES), HOSPITALS)
    for site, error in ((0, 518), (7, 5.52)):
        sent = rows.clone()
        sent[site] = -1000 * target
        moved = (Mean()(sent, torch.tensor(SIZES).double()) - target).norm() / target.norm()
        assert float(moved) == pytest.approx(error, rel=0.004)
    at = next(point.weighing for point in found.points if point.cap == Fraction(9, 20))
    assert found.reported.clean == pytest.approx(0.023, abs=0.002)
    assert at.clean == pytest.approx(0.088, abs=0.002)
    assert at.worst < 1
    assert set(found.reported.errors.values()) == {math.inf}


def test_what_is_useful_holds_for_trained_models(found):
    """benchmarks/consortium.py: each liar leaves 79.3 % or more at caps of 0.125, 0.2 and 0.3, of a clean 92.0 to 94.4,
    where a constant answer has 53.2; at 0.44 Aachen leaves 54.1 of 95.4.
    """
    useful = {float(point.cap) for point in found.useful}
    assert useful >= {0.125, 0.2, 0.3}
    assert not useful & {0.36, 0.4, 0.44}
    assert float(found.best.cap) == 0.3 == max(useful)


def test_a_useful_cap_leaves_half_of_the_descent(found):
    """On f(x) = |x - target|^2 / 2, where the descent lemma is exact: worst step against clean step, both from 0."""
    for point in found.points:
        clean, worst = point.weighing.clean, point.weighing.worst
        descent = [0.5 - error**2 / 2 for error in (worst, clean)]  # of f, over |target|^2
        assert point.weighing.left == pytest.approx(descent[0] / descent[1])
        assert (point in found.useful) == (descent[0] >= descent[1] / 2 and clean <= found.cost)


def test_a_site_of_most_of_the_examples_leaves_no_useful_cap():
    """benchmarks/consortium_sizes.py, "60 % and 7 equal", seed 0: the largest leaves 45.7 % where the mean has 88.9."""
    counts = [[70, 103, 85, 77, 47, 94, 111, 68, 103, 106], [3, 7, 3, 2, 36, 8, 7, 16, 0, 0],
              [4, 8, 1, 3, 16, 9, 5, 23, 10, 3], [13, 3, 5, 20, 6, 13, 6, 5, 5, 6], [30, 0, 2, 16, 2, 4, 9, 3, 7, 9],
              [10, 6, 26, 9, 7, 2, 1, 10, 4, 7], [8, 6, 18, 3, 13, 13, 4, 11, 1, 5],
              [4, 13, 2, 16, 18, 3, 2, 7, 9, 8]]  # fmt: skip
    found = frontier([sum(row) for row in counts], counts)
    assert (found.useful, found.best) == ((), None)
    assert found.affordable
    assert found.nearest == max(found.affordable, key=lambda point: point.weighing.left)
    assert 0 < found.nearest.weighing.left < 0.5


LIES = (-1.0, 1.0, 3.0, -1e3, 1e3, -1e6, 1e6)  # times the target


def test_no_lie_does_more(found):
    """Neither multiples of the target, nor signs in each entry, nor directions that are learned for the cap."""
    N = np.asarray(SIZES)
    rows, target = _updates(N, HOSPITALS)
    for cap in (Fraction(1, 8), Fraction(3, 10), Fraction(11, 25)):
        at = next(point.weighing for point in found.points if point.cap == cap)
        weights = torch.tensor(np.minimum(N, at.bound), dtype=torch.float64)

        def error(sent, rule=at.rule, weights=weights):
            return float((rule(sent, weights) - target).norm() / target.norm())

        for site in (0, 3, 7):
            lies = [lie * target for lie in LIES] + [1e6 * torch.randn(DIRECTIONS).sign().double() for _ in range(20)]
            ends = torch.stack([at.rule(rows.index_fill(0, torch.tensor([site]), end), weights) for end in (-1e9, 1e9)])
            lies.append(torch.where((ends[0] - target).abs() > (ends[1] - target).abs(), -1e12, 1e12))
            errors = [error(torch.cat([rows[:site], lie[None], rows[site + 1 :]])) for lie in lies]
            assert max(errors) == pytest.approx(at.errors_with_own_sizes[site])
            assert errors.index(max(errors)) == len(errors) - 1, (
                "the search must find the worst, and multiples must not"
            )
        assert at.clean == pytest.approx(error(rows))


def test_a_false_size_gives_any_site_the_cap(found):
    """The smallest hospital does as much harm as one of 26,928 examples, and uniform weights ignore sizes."""
    N = np.asarray(SIZES)
    rows, target = _updates(N, HOSPITALS)
    at = next(point.weighing for point in found.points if point.cap == Fraction(11, 25))
    for site in (5, 6, 7):
        reported = N.copy()
        reported[site] = 10**9
        weights = torch.from_numpy(np.minimum(reported, truncation_bound(reported, 1 / 8, 0.44)).astype(float))
        assert float(weights[site] / weights.sum()) == pytest.approx(0.44, abs=1e-4)
        ends = torch.stack([at.rule(rows.index_fill(0, torch.tensor([site]), end), weights) for end in (-1e9, 1e9)])
        moved = float((ends - target).abs().amax(0).norm() / target.norm())
        assert at.errors[site] == pytest.approx(moved, rel=1e-3)
        assert at.errors[site] > 4 * at.errors_with_own_sizes[site]
    assert found.uniform.errors == found.uniform.errors_with_own_sizes


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_no_size_does_more(data):
    """On a grid of what up to three liars report: every honest site keeps its share, so the error is no larger.

    Sizes are in a billionth of an example, so that no bound is rounded down; in whole examples, a share may differ by
    one part in U*.
    """
    sizes = data.draw(st.lists(st.integers(1, 40) | st.integers(1, 5000), min_size=4, max_size=8))
    f = data.draw(st.integers(1, (len(sizes) - 1) // 2))
    cap = data.draw(st.sampled_from([Fraction(c, 100) for c in range(1, 50) if c * len(sizes) > 100 * f]))
    liars, N = tuple(data.draw(st.permutations(range(len(sizes))))[:f]), np.asarray(sizes)
    honest = [site for site in range(len(sizes)) if site not in liars]
    rows, target = _updates(N, None)
    updates, rule = rows.repeat(1, 2), TrimmedMean(float(cap))
    updates[list(liars)] = torch.cat([rows.amax(0) + 1, rows.amin(0) - 1])

    def error(weights):
        return float((rule(updates, weights).reshape(2, -1) - target).abs().amax(0).norm() / target.norm())

    worst = _falsely_weighed(N, liars, cap)
    assert worst[list(liars)].sum() / worst.sum() == pytest.approx(float(cap))
    most = error(torch.from_numpy(worst))
    grid = sorted({1, *sizes, *np.geomspace(1, 10 * N.sum(), {1: 150, 2: 16, 3: 6}[f]).astype(int).tolist()})
    for reported in itertools.combinations_with_replacement(grid, f):
        for unit in (1, 10**9):
            every = {site: unit * n for site, n in enumerate(sizes)}
            every |= {site: unit * n for site, n in zip(liars, reported, strict=True)}
            bound = truncation_bound(every, f / len(sizes), float(cap))
            weights = np.array([min(size, bound) / unit for size in every.values()])
            slack = unit / bound if unit == 1 else 1e-9
            shares = weights / weights.sum()
            assert (shares[honest] >= (worst / worst.sum())[honest] * (1 - slack) - 1e-12).all(), (reported, unit)
        assert error(torch.from_numpy(weights)) <= most * (1 + 1e-6), reported


def test_the_worst_pair_is_found_among_all():
    """Not always the heaviest two, nor a site with the heaviest other."""
    counts = [[50, 0], [8, 0], [0, 9], [0, 9], [9, 0]]
    sizes = [sum(row) for row in counts]
    found = frontier(sizes, counts, liars=2)
    rows, target = _updates(np.asarray(sizes), counts)
    at = found.points[0].weighing
    weights, errors = torch.tensor(np.minimum(sizes, at.bound)).double(), {}
    for pair in itertools.combinations(range(5), 2):  # all weigh alike, whatever they report
        ends = torch.stack([at.rule(rows.index_fill(0, torch.tensor(pair), end), weights) for end in (-1e9, 1e9)])
        errors[pair] = float((ends - target).abs().amax(0).norm() / target.norm())
    assert at.worst == pytest.approx(max(errors.values()))
    assert tuple(sorted(at.liars)) == max(errors, key=errors.get) != (0, 1)
    assert (at.tried, at.exact) == (10, True)
    for site in range(5):
        assert at.errors[site] == pytest.approx(max(error for pair, error in errors.items() if site in pair))


def test_a_worst_of_some_is_not_called_exact():
    found = frontier([30 + k for k in range(40)], liars=3)
    assert (found.uniform.tried, found.uniform.exact) == (40, False)
    assert not frontier([*range(1, 112)]).uniform.exact


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
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
        assert weighing.clean * (1 - 1e-9) <= weighing.worst < math.inf
    assert found.uniform.shares == pytest.approx([1 / len(sizes)] * len(sizes))
    assert found.reported.shares == pytest.approx([size / sum(sizes) for size in sizes])
    if found.reported.share < Fraction(1, 2):  # then the last cap truncates nothing
        assert found.points[-1].weighing.shares == pytest.approx(found.reported.shares)


def test_the_largest_sizes_do_not_overflow():
    assert LARGEST == weights_files.MOST
    assert frontier([LARGEST] * 300).reported.shares == pytest.approx([1 / 300] * 300)


def test_sizes_that_are_alike_need_no_cap():
    found = frontier([100] * 5)
    assert [point.cap for point in found.points] == [Fraction(1, 5)]
    assert found.points[0].weighing.clean < 0.5


def test_there_is_no_useful_band_if_nothing_is_cheap_enough(found):
    strict = frontier(SIZES, HOSPITALS, cost=0.05)
    assert (strict.useful, strict.best) == ((), None)
    assert strict.nearest.weighing.clean == found.cheapest.weighing.clean > 0.05


def test_the_same_file_gives_the_same_bits(found):
    assert frontier(SIZES, HOSPITALS) == found


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (([5, 6, 7], [[5], [6], [8]]), "sum to its size"),
        (([5, 6, 7], [[5], [6]]), "a row for each site"),
        (([5, 6, 7], [[6, -1], [6, 0], [7, 0]]), "numbers from 0"),
        (([5, 6, 7], [[4.5, 0.5], [6, 0], [7, 0]]), "whole numbers"),
        (([5, 6, 7], [[5], [6, 0], [7]]), "a row for each site"),
        (([5.5, 6, 7],), "integers of at least 1, got 5.5"),
        (([LARGEST + 1, 6, 7],), "at most"),
        (([2**62] * 3,), "at most"),
        (([1] * 301,), "at most 300 sites"),
        (([5],), "at least two sites, got 1"),
        (([5, 0, 7],), "at least 1"),
    ],
)
def test_arguments_are_checked(arguments, why, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as in a user's program
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
    assert any("30 %" in text.get_text() for text in curve.texts)
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
