"""Smallest maximum eigenvalue averaging against the covariance of every subset."""

import itertools
import time
from math import comb

import numpy as np
import pytest
import torch

from phalanx.aggregators import smea
from phalanx.aggregators.points import Points
from phalanx.aggregators.smea import SMEA
from phalanx.core import InfeasibleError


def noise(m, d, seed):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def largest_eigenvalue(rows, weights=None):
    covariance = np.cov(rows.numpy().T, aweights=None if weights is None else weights, ddof=0)
    return float(np.linalg.eigvalsh(np.atleast_2d(covariance))[-1])


def test_by_hand():
    rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0], [100.0, 0.0]])
    assert SMEA(f=1)(rows).tolist() == pytest.approx([1.0, 1 / 3])
    # On a line the eigenvalue is the variance: {0, 1} and {3, 4} have the smallest, and the mean of both counts.
    assert SMEA(f=2)(torch.tensor([[0.0], [1.0], [1.0], [9.0], [9.0]])).tolist() == pytest.approx([2 / 3])
    assert SMEA(f=1)(torch.tensor([[0.0], [1.0], [2.0]])).tolist() == pytest.approx([1.0])


def test_it_is_not_the_variance_that_counts_but_the_largest_in_any_direction():
    line, cross = torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), torch.tensor([[0.0, -1.9], [0.0, 1.9], [0.0, 0.0]])
    rows = torch.cat([cross, line])
    choice = SMEA(f=1).choose(Points.of(rows))
    best = min(itertools.combinations(range(5), 4), key=lambda s: largest_eigenvalue(rows[list(s)]))
    assert set(torch.nonzero(choice.shares).flatten().tolist()) >= set(best)


@pytest.mark.parametrize("m", range(3, 10))
@pytest.mark.parametrize("d", [1, 2, 30])
def test_equals_the_search_through_all_covariances(m, d):
    for f in range((m - 1) // 2 + 1):
        rows = noise(m, d, 100 * m + f)
        best = list(min(itertools.combinations(range(m), m - f), key=lambda s: largest_eigenvalue(rows[list(s)])))
        torch.testing.assert_close(SMEA(f)(rows), rows[best].mean(0))


def parts(weights, budget):
    """All ways to take the budget from whole rows and a part of one."""
    m = len(weights)
    for size in range(m):
        for whole in itertools.combinations(range(m), size):
            left = budget - weights[list(whole)].sum()
            kept = weights.copy()
            kept[list(whole)] = 0
            if abs(left) < 1e-12:
                yield kept
            for row in set(range(m)) - set(whole):
                if 1e-12 < left < weights[row] - 1e-12:
                    part = kept.copy()
                    part[row] -= left
                    yield part


@pytest.mark.parametrize("m", [3, 4, 5, 6, 7])
def test_equals_the_search_with_weights(m):
    for seed, f in itertools.product(range(4), range((m - 1) // 2 + 1)):
        rows, rng = noise(m, 3, seed), np.random.default_rng(seed)
        weights = rng.integers(1, 9, m) / 8 if seed % 2 else rng.uniform(0.2, 3, m)
        ways = list(parts(weights, weights.sum() * f / m))
        best = min(
            ways, key=lambda kept: largest_eigenvalue(rows[kept > 0], kept[kept > 0]) if (kept > 0).sum() > 1 else 0
        )
        expected = torch.from_numpy(best @ rows.numpy() / best.sum())
        torch.testing.assert_close(SMEA(f)(rows, torch.from_numpy(weights)), expected)


def test_weights_that_hardly_differ_hardly_matter():
    rows = noise(8, 4, 1)
    weights = torch.ones(8, dtype=torch.float64) + 1e-7 * noise(8, 1, 2)[:, 0]
    torch.testing.assert_close(SMEA(f=3)(rows, weights), SMEA(f=3)(rows), rtol=1e-5, atol=1e-5)


def test_tells_who_is_left_out():
    choice = SMEA(f=1).choose(Points.of(torch.tensor([[0.0], [2.0], [1.0], [100.0]])))
    assert choice.reasons == ["", "", "", "outside the set of the smallest variance"]


@pytest.mark.parametrize("kind", ["noise", "attackers far", "attackers near"])
def test_fast(kind):
    rows = noise(16, 500, 0)
    if kind != "noise":
        rows[:5] = 100.0 if kind == "attackers far" else rows[5:].mean(0) - rows[5:].std(0)
    points = Points.of(rows)
    assert len(points.squared_distances) == 16
    begun = time.perf_counter()
    SMEA(f=5).choose(points)
    assert time.perf_counter() - begun < 1


def test_too_many_subsets_are_refused_before_they_are_counted():
    assert comb(40, 15) > 10**10
    with pytest.raises(InfeasibleError, match=r"drop f of 40 rows, and there are more than 200000.* CAF"):
        SMEA(f=15)(noise(40, 5, 0))


def test_too_many_subsets_of_weights_are_refused(monkeypatch):
    monkeypatch.setattr(smea, "SUBSETS", 50)
    with pytest.raises(InfeasibleError, match="more than 50"):
        SMEA(f=3)(noise(9, 5, 0), torch.arange(1.0, 10.0))
