"""The influence of liars: by hand, against brute force, and against attacks, for every rule that has it."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from phalanx.aggregators import (
    CTMA,
    MDA,
    Bucketing,
    CenteredClipping,
    Clip,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NearestNeighborMixing,
    SignMajority,
    TrimmedMean,
)
from phalanx.aggregators.influence import Chosen, audited, spectral
from phalanx.numerics.influence_kernels import longest_sum
from phalanx.weighting import Truncate

HUGE = 1e9  # a lie that no rule here can tell from an infinite one
BY_COLUMN = [Median(), TrimmedMean(0.4), TrimmedMean(0.33), SignMajority()]
BY_DISTANCE = [
    CenteredClipping(1.0),
    CenteredClipping(1.0, 3),
    GeometricMedian(),
    Krum(2),
    MultiKrum(2),
    CTMA(0.4),
    CTMA(0.4, GeometricMedian()),
    Clip(1.0) >> Mean(),
    Clip(1.0) >> Median(),
    Bucketing(2) >> Median(),
]


def column(*entries, dtype=torch.float64):
    return torch.tensor(entries, dtype=dtype)[:, None]


def drawn(seed, m, d, *, whole=False):
    rng = np.random.default_rng([seed, m, d])
    rows = rng.integers(-3, 4, (m, d)).astype(float) if whole else rng.standard_normal((m, d))
    return torch.from_numpy(rows), torch.from_numpy(rng.integers(1, 6, m).astype(float)), rng


def worst(rule, rows, weights, f, turn=0):
    """The largest change by any f liars who send the largest or the smallest number, in each coordinate."""
    before, far = rule(rows, weights, turn=turn), torch.zeros(rows.shape[1], dtype=rows.dtype)
    for liars in combinations(range(len(rows)), f):
        for lie in (HUGE, -HUGE):
            lying = rows.clone()
            lying[list(liars)] = lie
            far = torch.maximum(far, (rule(lying, weights, turn=turn) - before).abs())
    return far


# By hand


@pytest.mark.parametrize(
    ("rule", "rows", "f", "value", "kind"),
    [
        (Median(), column(0, 1, 2, 5, 6), 1, 3, "exact"),  # 0 becomes 9: the median of 1, 2, 5, 6, 9 is 5
        (Median(), column(0, 1, 2, 5, 6), 2, 4, "exact"),
        (Median(), column(0, 1, 2, 5, 6), 3, math.inf, "unbounded"),
        (Median(), column(0, 2, 3, 9), 1, 3.5, "exact"),  # from 2.5 to (3 + 9) / 2
        (Median(), column(0, 2, 3, 9), 2, math.inf, "unbounded"),  # one end of the mid-point is a lie
        (TrimmedMean(0.2), column(0, 1, 2, 5, 6), 1, 5 / 3, "exact"),  # from 8 / 3 to 13 / 3
        (TrimmedMean(0.2), column(0, 1, 2, 5, 6), 2, math.inf, "unbounded"),
        (TrimmedMean(0.4, form="strict"), column(0, 1, 2, 5, 6), 1, None, "unknown"),
        (SignMajority(), column(1, 1, 1, -1), 1, 1, "exact"),  # 3 to 1 becomes 2 to 2
        (SignMajority(), column(1, 1, -1), 1, 2, "exact"),
        (SignMajority(), column(1, 1, 1, 1, -1), 1, 0, "exact"),
        (SignMajority(), column(1, 0, -1), 1, 1, "exact"),
        (Mean(), column(0, 1), 1, math.inf, "unbounded"),
        (CenteredClipping(1.0), column(0.5, 0.5, -9, 0), 1, 0.5, "bound"),  # -9, clipped to -1, becomes 1
        (Clip(1.0) >> Mean(), column(0.5, 0.5, -9, 0), 1, 0.5, "bound"),
        (Krum(1), column(0, 1, 1.1, 1.3, 9), 3, math.inf, "unbounded"),  # three at one point have the score 0
        # Of 5 e_1 to 5 e_4, two become -9 (e_1 + e_2): from a quarter of e_1 + e_2 to minus one half of its direction.
        (CenteredClipping(1.0), 5 * torch.eye(4), 2, 0.5 + 0.25 * math.sqrt(2), "bound"),
        (CTMA(0.25), column(1, 2, 3, 90), 2, math.inf, "unbounded"),
        (Bucketing(1) >> Median(), column(0, 1, 2, 5, 6), 1, 3, "exact"),
        (Clip(1.0) >> MDA(1), column(0, 1, 2, 5, 6), 1, None, "unknown"),
        (Clip(100.0) >> Median(), column(0, 1, 2, 5, 6), 1, 3, "bound"),
        (Clip(100.0) >> Median(), column(0, 1, 2, 5, 6), 3, None, "unknown"),  # no lie is longer than 100
        (NearestNeighborMixing(1) >> Median(), column(0, 1, 2, 5, 6), 1, None, "unknown"),
        (MDA(1), column(0, 1, 2, 5, 6), 1, None, "unknown"),
    ],
)
def test_by_hand(rule, rows, f, value, kind):
    found = rule.influence(rows, f=f)
    assert found.kind == kind
    assert found.value == (None if value is None else pytest.approx(value))
    assert found.length == pytest.approx(float(rule(rows).norm()))


@pytest.mark.parametrize(
    "rule", [Mean(), Median(), TrimmedMean(0.2), CTMA(0.2), GeometricMedian(), MultiKrum(1), CenteredClipping(1.0)]
)
def test_no_liars_change_nothing(rule):
    assert rule.influence(column(0, 1, 2, 5, 6), f=0).value == 0
    with pytest.raises(ValueError, match="f must be at least 0, got -1"):
        Mean().influence(column(0, 1), f=-1)


def test_the_heaviest_after_truncation_are_the_liars_to_fear():
    rows, sizes = column(0, 1, 2, 5, 6), {0: 1, 1: 1, 2: 1, 3: 1, 4: 100}
    as_reported = torch.tensor([*sizes.values()], dtype=torch.float64)
    truncated = torch.tensor([*Truncate(alpha=0.2, alpha_star=0.4)(sizes).values()], dtype=torch.float64)
    assert truncated.tolist() == [1, 1, 1, 1, 2]
    assert Median().influence(rows, as_reported).kind == "unbounded"
    # Of the weights 1, 1, 1, 1, 2 the median is (2 + 5) / 2. A liar of weight 2 moves the middle from 3 to 1 or 5.
    assert Median().influence(rows, truncated).value == pytest.approx(3.0)  # to (0 + 1) / 2; up, to 6, it is less
    assert worst(Median(), rows, truncated, 1) == 3.0


# Against all liars


@pytest.mark.parametrize("rule", BY_COLUMN, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_with_equal_weights_it_is_exact_in_each_coordinate(rule, dtype):
    for m, f in ((5, 1), (6, 2), (7, 2), (8, 2)):
        rows, _, _ = drawn(0, m, 8, whole=True)
        rows = rows.to(dtype)
        if rule.influence(rows, f=f).kind == "unbounded":
            assert worst(rule, rows.double(), None, f).max() > HUGE / 1000
            continue
        each = [rule.influence(rows[:, [j]], f=f) for j in range(8)]
        assert {found.kind for found in each} == {"exact"}
        expected = worst(rule, rows.double(), None, f)
        assert [found.value for found in each] == pytest.approx(
            expected.tolist(), abs=1e-14 if dtype == torch.float64 else 2e-3
        )
        together = rule.influence(rows, f=f)
        assert (together.kind, together.value) == ("bound", pytest.approx(float(expected.norm()), rel=2e-3))


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.45), SignMajority()], ids=str)
def test_with_weights_no_liars_reach_beyond_it(rule):
    reached = 0
    for seed in range(6):
        rows, weights, _ = drawn(seed, 7, 6, whole=seed % 2 == 0)
        weights = weights + 2  # so that no two rows have a share of 0.45
        if seed > 3:
            weights = weights / 7  # kernels move counts and other weights in different ways
        for f in (1, 2):
            found = rule.influence(rows, weights, f=f)
            if found.kind == "bound":
                by_brute_force = float(worst(rule, rows, weights, f).norm())
                assert by_brute_force <= found.value * (1 + 1e-9)
                reached += by_brute_force > found.value / 2
    assert reached >= 6


def test_liars_who_hold_most_and_are_all_on_one_side_reach_the_bound():
    rows, weights = column(-3, 0, 1, 2, 5, 6), torch.tensor([4.0, 1, 1, 1, 1, 1])
    for rule in (Median(), TrimmedMean(0.45)):
        assert worst(rule, rows, weights, 1).item() == pytest.approx(rule.influence(rows, weights).value)


# Against attacks


def attacks(rows, f, rng, count):
    """Lies at random, near the others, and opposite to those whom the liars replace."""
    m, d = rows.shape
    size = float((rows - rows.mean(0)).norm(dim=1).median())
    for k in range(count):
        liars = rng.choice(m, f, replace=False)
        rest = np.setdiff1d(np.arange(m), liars)
        random = torch.from_numpy(rng.standard_normal(d))
        away = rows[rest].mean(0) - rows[liars].mean(0)
        step = (random, away, away + 0.3 * random)[k % 3]
        near = rows[rng.choice(rest, rng.integers(1, len(rest)), replace=False)].mean(0)
        lying = rows.clone()
        lying[liars] = near + step / step.norm() * size * 10.0 ** rng.uniform(-1.5, 3)
        yield lying


@pytest.mark.parametrize("rule", [*BY_COLUMN, *BY_DISTANCE], ids=str)
@pytest.mark.parametrize("d", [2, 40])
def test_no_attack_exceeds_it(rule, d):
    for weighted in (False, True):
        rows, weights, rng = drawn(1, 11, d)
        weights = weights.clamp(max=3) if weighted else None
        for f in (1, 2):
            found = rule.influence(rows, weights, f=f)
            if found.value is None or math.isinf(found.value):
                continue
            before = rule(rows, weights)
            far = max(float((rule(lying, weights) - before).norm()) for lying in attacks(rows, f, rng, 8))
            assert far <= found.value * (1 + 1e-6)
            assert far >= found.value / 15  # the bound is of use


@pytest.mark.parametrize("f", [1, 4])
def test_with_several_iterations_the_bound_is_within_twice_of_an_attack(f):
    rng = np.random.default_rng(f)
    rows = torch.from_numpy((rng.standard_normal((20, 200)) + 0.5 * rng.standard_normal(200)) / 200**0.5)
    rule = CenteredClipping(1.0, 3)
    before, best = rule(rows), 0.0
    for _ in range(20):  # liars pull from far away, opposite to what they sent
        liars, lying = rng.choice(20, f, replace=False), rows.clone()
        lying[liars] = -1e4 * (rows[liars].mean(0) - before)
        best = max(best, float((rule(lying) - before).norm()))
    found = rule.influence(rows, f=f).value
    assert best <= found < 2 * best


def test_a_sum_of_vectors_is_no_longer_than_its_bound():
    for seed in range(5):
        rows, _, rng = drawn(seed, 7, 3)
        rows = rows + rng.choice([0.0, 2.0])
        for f in range(1, 8):
            exact = max(float(rows[list(some)].sum(0).norm()) for some in combinations(range(7), f))
            assert exact <= longest_sum((rows @ rows.T).numpy(), f) * (1 + 1e-12)
    assert longest_sum(np.eye(5), 3) == pytest.approx(math.sqrt(3))  # orthogonal: it is exact


def test_the_largest_eigenvalue_has_a_bound_that_is_near():
    for m in (1, 20, 100):
        rows = np.random.default_rng(m).standard_normal((m, 30))
        products = rows @ rows.T
        exact = np.linalg.eigvalsh(products)[-1]
        assert exact * (1 - 1e-12) <= spectral(products) <= exact * m ** (1 / 32) * (1 + 1e-12)
    assert spectral(np.zeros((3, 3))) == 0


def test_rows_that_leave_and_rows_that_come_are_counted_once():
    # 14 of 20 rows are chosen, 4 liars are among the next 14.  So 10 rows stay at most, or as many leave and come.
    share, shares = torch.full((20,), 1 / 20, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    shares[:14] = 1 / 14
    orthogonal, equal = (Chosen(share, shares, products, 0.7) for products in (np.eye(20), np.ones((20, 20))))
    everywhere = np.ones(20, dtype=bool)
    assert orthogonal.influence(4, 3.0, everywhere).value == pytest.approx((12 + math.sqrt(10)) / 14, rel=0.02)
    assert equal.influence(4, 3.0, everywhere).value == pytest.approx((12 + 10) / 14)


@pytest.mark.parametrize("rule", [Krum(5), MultiKrum(5), GeometricMedian(), CTMA(0.3)], ids=str)
def test_rows_far_away_do_not_make_the_bound_useless(rule):
    rows, _, _ = drawn(2, 15, 30)
    calm = rule.influence(rows, f=2).value
    rows[:2] = 1e6
    assert rule.influence(rows, f=2).value < 100 * calm


def test_units_do_not_matter():
    rows, weights, _ = drawn(3, 11, 20)
    for rule in (Median(), TrimmedMean(0.4), GeometricMedian(), Krum(1), MultiKrum(1), CTMA(0.3)):
        for w in (None, weights.clamp(max=2)):
            one, thousand = rule.influence(rows, w), rule.influence(1000 * rows + 7, w)
            assert one.kind == thousand.kind
            assert thousand.value == (None if one.value is None else pytest.approx(1000 * one.value, rel=1e-3))


# Along with the aggregate


@pytest.mark.parametrize("rule", [*BY_COLUMN, *BY_DISTANCE], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_measuring_changes_no_bit(rule, dtype):
    rows, weights, _ = drawn(4, 13, 700)
    rows = (rows * torch.logspace(-6, 6, 13, dtype=torch.float64)[:, None]).to(dtype)
    for w in (None, weights, weights / 7):
        plain, choice = rule.explained(rows, w)
        with audited(2) as found:
            vector, measured = rule.explained(rows, w)
            assert torch.equal(rule(rows, w), rule(rows, w))
        assert torch.equal(plain, vector)
        assert len(found) == 3
        assert (choice is None) == (measured is None)
        assert choice is None or torch.equal(choice.shares, measured.shares)


def test_parts_of_the_columns_add_up():
    rows, _, _ = drawn(5, 9, 5000)
    found = [Median().influence(part, f=2).value for part in (rows, rows[:, :1234], rows[:, 1234:])]
    assert found[0] == pytest.approx(math.hypot(found[1], found[2]))


def test_rules_that_a_rule_calls_are_not_measured():
    rows, _, _ = drawn(6, 9, 5)
    with audited(1) as found:
        CTMA(0.2)(rows)
        with audited(None):
            Median()(rows)
    assert [influence.kind for influence in found] == ["bound"]
    assert Median()(rows) is not None
    assert len(found) == 1
