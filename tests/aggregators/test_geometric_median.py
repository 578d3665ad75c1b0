"""The geometric median where attackers choose lengths and places: one row of any length, and rows that slow it down."""

import math
import time

import pytest
import torch

from phalanx.aggregators import Bucketing, GeometricMedian
from phalanx.rng import generator

LENGTHS = [1.0, 1e3, 1e8, 1e12, 1e13, 1e14, 9e14]


def honest(m=8, d=20, seed=0):
    rows = torch.randn(m, d, dtype=torch.float64, generator=generator(seed, "rows"))
    return 0.33 * rows / rows.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_row_of_any_length_moves_the_median_no_more_than_its_direction_does(length, dtype):
    good = honest().to(dtype)
    direction = torch.nn.functional.normalize(torch.ones(20, dtype=dtype), dim=0)
    limit = GeometricMedian()(torch.cat([good, 1e6 * direction[None]]))
    found = GeometricMedian()(torch.cat([good, length * direction[None]]))
    bound = 2 * (1 - 1 / 9) / (1 - 2 / 9) * 0.33
    assert float(found.norm()) <= bound
    if length >= 1e8:
        assert float((found - limit).norm()) <= 1e-5 * 0.33


@pytest.mark.parametrize("length", LENGTHS)
def test_the_bound_holds_after_bucketing(length):
    good, bad = honest(16), length * torch.ones(2, 20, dtype=torch.float64)
    for turn in range(5):
        found = (Bucketing(2) >> GeometricMedian())(torch.cat([good, bad]), turn=turn)
        assert float(found.norm()) <= 2 * (1 - 2 / 9) / (1 - 4 / 9) * 0.33, "two of nine buckets hold an attacker"


@pytest.mark.parametrize("m", [3, 4, 8, 9, 12])
@pytest.mark.parametrize("offset", [1e-2, 1e-4, 1e-6, 1e-8, 1e-10])
def test_a_row_close_to_the_median_does_not_hold_it_up(m, offset):
    """Weiszfeld's steps become as short as one attacker likes: hundreds of thousands of them for one row of nine."""
    for seed in range(6):
        rows = torch.randn(m, 2, dtype=torch.float64, generator=generator(seed, "near", m))
        median = GeometricMedian()(rows)
        away = torch.randn(2, dtype=torch.float64, generator=generator(seed, "away", m))
        rows[0] = median + offset * away
        begun = time.process_time()
        found = GeometricMedian()(rows)
        assert time.process_time() - begun < 1.0
        turns = torch.arange(360, dtype=torch.float64).deg2rad()
        around = found + 1e-4 * torch.stack([turns.cos(), turns.sin()], dim=1)
        mean, least = float((rows - found).norm(dim=1).mean()), float(torch.cdist(around, rows).mean(1).min())
        assert mean <= least + 1e-8 * mean, "sums of distances are convex: no better point is far"


def test_there_is_a_result_where_weiszfeld_may_take_one_step_only():
    rows = honest(9)
    full, one = GeometricMedian()(rows), GeometricMedian(iterations=1)(rows)
    assert float((full - one).norm()) <= 1e-5 * 0.33
    assert math.isfinite(float(one.norm()))


@pytest.mark.parametrize("exponent", [-430, -490, -510, -700, -1000])  # 2^-490 is 3e-148, whose square underflows
def test_rows_whose_squares_underflow_have_the_median_of_the_rows_that_they_are_multiples_of(exponent):
    rows = torch.randn(7, 5, generator=generator(0, "faint"), dtype=torch.float64) + 3
    rule, scale = GeometricMedian(), 2.0**exponent
    assert torch.equal(rule(rows * scale), rule(rows) * scale)
    zeros = torch.zeros(3, 2, dtype=torch.float64)
    assert torch.equal(rule(zeros), zeros[0])
