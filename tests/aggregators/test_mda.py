"""Minimum-diameter averaging against every subset there is."""

import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.aggregators import mda
from phalanx.aggregators.mda import MDA
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError


def subsets(m, size):
    return [list(s) for s in itertools.combinations(range(m), size)]


def squares(rows):
    return (rows[:, None] - rows).square().sum(2)


def diameter(distances, members):
    return float(distances[members][:, members].max())


def kept(rule, rows, weights=None):
    return torch.nonzero(rule.choose(Points.of(rows, weights)).shares).flatten().tolist()


def noise(m, d, seed):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("column", "f", "expected"),
    [
        ([0.0, 1.0, 3.0], 1, 0.5),
        ([0.0, 1.0, 2.0, 100.0], 1, 1.0),
        ([0.0, 1.0, 2.0], 1, 1.0),  # {0, 1} and {1, 2} are as good: the mean of 0.5 and 1.5
        ([0.0, 3.0, 4.0, 8.0, 9.0], 2, 7 / 3),  # {0, 3, 4} has diameter 4, {3, 4, 8} and {4, 8, 9} have 5
        ([0.0, 4.0, 5.0, 9.0, 10.0], 2, 17 / 3),  # {0, 4, 5}, {4, 5, 9}, {5, 9, 10}: as wide, and as spread
        ([0.0, 3.0, 5.0, 9.0, 10.0], 2, 8 / 3),  # of {0, 3, 5} and {5, 9, 10} the first is less spread: 38 against 42
        ([5.0, 5.0, 5.0, 5.0], 1, 5.0),
        ([-1e12, 1e12, 2.0, 4.0, 3.0], 2, 3.0),
    ],
)
def test_by_hand(column, f, expected):
    assert MDA(f)(torch.tensor(column, dtype=torch.float64)[:, None]).tolist() == pytest.approx([expected])


def test_among_the_smallest_the_one_with_the_smallest_variance():
    """The two ends decide the diameter; of the two rows in between, one may stay."""
    column = torch.tensor([0.0, 10.0, 1.0, 5.0, 12.0])
    assert MDA(f=1)(column[:, None]).tolist() == [4.0]  # 12 goes: 0, 1, 5, 10 are no wider than 10
    rows = torch.tensor([[0.0, 0.0], [10.0, 0.0], [5.0, 6.0], [5.0, -5.0], [4.0, -4.9]])
    assert kept(MDA(f=1), rows) == [0, 1, 3, 4]  # 2 and 3 are 11 apart: one of them goes


@pytest.mark.parametrize("m", range(3, 10))
@pytest.mark.parametrize("d", [1, 2, 30])
def test_equals_the_search_through_all_subsets(m, d):
    for f in range((m - 1) // 2 + 1):
        rows = noise(m, d, 100 * m + f)
        distances = squares(rows)
        smallest = min(diameter(distances, s) for s in subsets(m, m - f))
        best = [s for s in subsets(m, m - f) if diameter(distances, s) <= smallest * (1 + 1e-9)]
        chosen = min(best, key=lambda s: float(distances[s][:, s].sum()))
        assert kept(MDA(f), rows) == chosen
        torch.testing.assert_close(MDA(f)(rows), rows[chosen].mean(0))


@settings(max_examples=100, deadline=None)
@given(data=st.data(), m=st.integers(3, 8), d=st.integers(1, 2))
def test_ties_are_resolved_among_the_best(data, m, d):
    """On a grid the result is a mean of sets of the smallest diameter, or of parts of them."""
    entry = st.integers(-3, 3).map(float)
    rows = torch.tensor(
        data.draw(st.lists(st.lists(entry, min_size=d, max_size=d), min_size=m, max_size=m)), dtype=torch.float64
    )
    f = data.draw(st.integers(0, (m - 1) // 2))
    distances = squares(rows)
    smallest = min(diameter(distances, s) for s in subsets(m, m - f))
    best = [s for s in subsets(m, m - f) if diameter(distances, s) == smallest]
    choice = MDA(f).choose(Points.of(rows))
    assert set(torch.nonzero(choice.shares).flatten().tolist()) <= set().union(*best)
    assert float(choice.shares.max()) <= 1 / (m - f) + 1e-12
    means = torch.stack([rows[s].mean(0) for s in best])
    result = choice.shares @ rows
    assert bool(((result >= means.amin(0) - 1e-9) & (result <= means.amax(0) + 1e-9)).all())


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), m=st.integers(3, 8))
def test_with_weights_the_diameter_is_the_smallest_of_those_with_enough_weight(seed, m):
    rng = np.random.default_rng(seed)
    rows, f = noise(m, 3, seed), int(rng.integers(0, (m - 1) // 2 + 1))
    weights = torch.from_numpy(rng.choice([0.3, 1.0, 2.5, 4.0], m) * rng.uniform(0.9, 1.1, m))
    distances, least = squares(rows), (1 - f / m) * float(weights.sum())
    enough = [s for k in range(1, m + 1) for s in subsets(m, k) if float(weights[s].sum()) >= least - 1e-9]
    choice = MDA(f).choose(Points.of(rows, weights))
    members = torch.nonzero(choice.shares).flatten().tolist()
    smallest = min(diameter(distances, s) for s in enough)
    assert diameter(distances, members) == pytest.approx(smallest, rel=1e-6, abs=1e-12)
    assert float(weights[members].sum()) >= least - 1e-9
    # Nobody counts for more than the weight; and at most one row counts in part.
    part = choice.shares[members] * least / weights[members]
    assert bool((part <= 1 + 1e-9).all())
    assert int((part < 1 - 1e-9).sum()) <= 1


def test_a_row_that_need_not_go_is_dropped_in_part():
    column, weights = torch.tensor([0.0, 1.0, 2.0, 50.0]), torch.tensor([3.0, 3.0, 5.0, 1.0])
    # A quarter of 12 may go: 50, and of the others 2 of the weight of 0, which is farthest from the rest.
    assert MDA(f=1)(column[:, None], weights).tolist() == pytest.approx([(0 + 3 + 10) / 9])


def test_tells_who_is_left_out_and_why():
    choice = MDA(f=1).choose(Points.of(torch.tensor([[0.0], [2.0], [1.0], [100.0]])))
    assert choice.reasons == ["", "", "", "up to 100 from rows of a set with diameter 2"]
    assert choice.scores == pytest.approx([2, 2, 1, 100])


@pytest.mark.parametrize(("m", "f", "seconds"), [(30, 10, 0.2), (30, 14, 0.2), (60, 20, 1.0)])
@pytest.mark.parametrize("kind", ["noise", "attackers far", "attackers near"])
def test_fast(m, f, seconds, kind):
    rows = noise(m, 500, m)
    if kind != "noise":
        rows[:f] = 100.0 if kind == "attackers far" else rows[f:].mean(0) - rows[f:].std(0)
    points = Points.of(rows)
    assert len(points.squared_distances) == m
    begun = time.perf_counter()
    MDA(f).choose(points)
    assert time.perf_counter() - begun < seconds


def test_gives_up_in_words(monkeypatch):
    monkeypatch.setattr(mda, "STEPS", 20)
    with pytest.raises(InfeasibleError, match=r"gave up after 20 steps of its search among 20 rows.* MultiKrum"):
        MDA(f=7)(noise(20, 50, 0))
