"""Every rule through the same properties, and each against an exact definition of itself."""

import itertools
from fractions import Fraction

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from phalanx.aggregators import Mean, Median, TrimmedMean, columns, trimmed_mean

RULES = [Mean(), Median(), *(TrimmedMean(beta) for beta in (0.0, 0.1, 0.2, 0.25, 0.4))]
TOLERATED = {rule: getattr(rule, "beta", 0.0) for rule in RULES}  # share of the weight; the median's is open at 1/2
BETAS = [rule for rule in RULES if isinstance(rule, TrimmedMean)]

every_rule = pytest.mark.parametrize("rule", RULES, ids=str)
few = settings(max_examples=40, deadline=None)

# Entries are multiples of 1/8 and so are shifts and scales by powers of two: what is exact stays exact.
entries = st.integers(-400, 400).map(lambda k: k / 8)
counts = st.integers(0, 6)


@st.composite
def calls(draw, most=7, weight=counts):
    """A small matrix in float64 and weights that are counts, at least one positive."""
    m, d = draw(st.integers(1, most)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(entries, min_size=d, max_size=d), min_size=m, max_size=m))
    weights = draw(st.lists(weight, min_size=m, max_size=m).filter(any))
    return torch.tensor(rows, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)


def close(got, expected, tolerance=1e-11):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


# --- exact definitions, column by column, in fractions


def exact_median(values, weights):
    pairs = sorted((Fraction(v), Fraction(w)) for v, w in zip(values, weights, strict=True) if w > 0)
    half = sum(w for _, w in pairs) / 2
    reached = Fraction(0)
    for k, (value, weight) in enumerate(pairs):
        reached += weight
        if reached > half:
            return value
        if reached == half:
            return (value + pairs[k + 1][0]) / 2
    raise AssertionError("unreachable: all the weight exceeds half of it")


def exact_trimmed_mean(values, weights, beta):
    """Lays the entries in order on a line, each as long as its weight, and averages what lies in the middle."""
    total = sum(map(Fraction, weights))
    low, high = beta * total, (1 - beta) * total
    start, mass = Fraction(0), Fraction(0)
    for value, weight in sorted((Fraction(v), Fraction(w)) for v, w in zip(values, weights, strict=True)):
        stop = start + weight
        mass += value * max(Fraction(0), min(stop, high) - max(start, low))
        start = stop
    return mass / (high - low)


def exact(rule, rows, weights):
    by_column = rows.T.tolist()
    if isinstance(rule, Median):
        return [exact_median(column, weights) for column in by_column]
    beta = Fraction(str(getattr(rule, "beta", 0.0)))  # 0.1 is one tenth here
    return [exact_trimmed_mean(column, weights, beta) for column in by_column]


@every_rule
@few
@given(call=calls())
def test_equals_its_definition_in_fractions(rule, call):
    rows, weights = call
    expected = [float(x) for x in exact(rule, rows, weights.tolist())]
    close(rule(rows, weights), torch.tensor(expected, dtype=torch.float64))


@few
@given(call=calls())
def test_median_is_the_exact_median_to_the_bit(call):
    rows, weights = call
    assert Median()(rows, weights).tolist() == [float(x) for x in exact(Median(), rows, weights.tolist())]


@pytest.mark.parametrize("m", range(1, 12))
def test_median_equals_numpy_with_equal_weights(m):
    rows = torch.randn(m, 50, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    expected = torch.from_numpy(np.median(rows.numpy(), axis=0))
    close(Median()(rows), expected, 1e-15)
    close(Median()(rows, torch.full((m,), 0.3)), expected, 1e-15)


@pytest.mark.parametrize(("beta", "m"), [(0.1, 10), (0.1, 30), (0.2, 5), (0.2, 15), (0.25, 4), (0.25, 12), (0.4, 5)])
def test_trimmed_mean_drops_rows_where_they_are_whole(beta, m):
    rows = torch.randn(m, 50, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    cut = round(beta * m)
    close(TrimmedMean(beta)(rows), rows.sort(0).values[cut : m - cut].mean(0))
    close(TrimmedMean(beta)(rows), torch.from_numpy(stats.trim_mean(rows.numpy(), (cut + 0.01) / m, axis=0)))


@pytest.mark.parametrize("rule", [Mean(), TrimmedMean(0.0)], ids=str)
@few
@given(call=calls())
def test_the_mean_is_the_average_of_numpy(rule, call):
    rows, weights = call
    close(rule(rows, weights), torch.from_numpy(np.average(rows.numpy(), axis=0, weights=weights.numpy())))


# --- by hand


@pytest.mark.parametrize(
    ("rule", "column", "weights", "expected"),
    [
        (Mean(), [0.0, 4.0], [3.0, 1.0], 1.0),
        (Median(), [1.0, 2.0, 9.0], None, 2.0),
        (Median(), [9.0, 1.0, 2.0, 4.0], None, 3.0),
        (Median(), [0.0, 1.0, 100.0], [2.0, 1.0, 1.0], 0.5),  # half is reached at 0: between 0 and 1
        (Median(), [0.0, 1.0, 100.0], [2.0, 0.0, 2.0], 50.0),  # between 0 and 100: the row of weight 0 is not there
        (Median(), [0.0, 1.0, 100.0], [1.0, 1.0, 3.0], 100.0),
        (TrimmedMean(0.25), [-100.0, 1.0, 3.0, 100.0], None, 2.0),
        (TrimmedMean(0.25), [0.0, 1.0], None, 0.5),  # half of each row is left
        (TrimmedMean(0.25), [0.0, 4.0], [3.0, 1.0], 0.0),  # the second row is all that is cut on the right
        (TrimmedMean(0.1), [0.0, 10.0, 20.0], [2.0, 6.0, 2.0], 10.0),  # one of each two is left beside the six
        (TrimmedMean(0.2), [0.0, 8.0, 80.0], [1.0, 1.0, 2.0], 104 / 2.4),  # of 4: 0.2, 1.0 and 1.2 are left
    ],
)
def test_by_hand(rule, column, weights, expected):
    got = rule(torch.tensor(column)[:, None], None if weights is None else torch.tensor(weights))
    assert got.tolist() == pytest.approx([expected])


# --- equivariance and weights


@every_rule
@few
@given(call=calls(), shift=st.integers(-64, 64), power=st.integers(-8, 8))
def test_translation_and_positive_scaling(rule, call, shift, power):
    rows, weights = call
    close(rule(2.0**power * rows + shift, weights), 2.0**power * rule(rows, weights) + shift)


@every_rule
@few
@given(call=calls(weight=st.floats(0, 10)), data=st.data())
def test_the_order_of_clients_does_not_matter(rule, call, data):
    rows, weights = call
    order = torch.tensor(data.draw(st.permutations(range(len(rows)))))
    one, other = rule(rows, weights), rule(rows[order], weights[order])
    if isinstance(rule, Median):
        assert torch.equal(one, other)
    close(one, other)


@every_rule
@few
@given(call=calls())
def test_a_weight_is_a_number_of_copies(rule, call):
    rows, weights = call
    copies = rows.repeat_interleave(weights.long(), dim=0)
    close(rule(rows, weights), rule(copies))


@every_rule
@few
@given(call=calls(), absent=st.lists(entries, min_size=4, max_size=4), at=st.integers(0, 7))
def test_a_row_without_weight_is_not_there(rule, call, absent, at):
    rows, weights = call
    at = min(at, len(rows))
    row = 1e30 * torch.tensor([absent[: rows.shape[1]]], dtype=torch.float64)
    more = torch.cat([rows[:at], row, rows[at:]])
    with_zero = torch.cat([weights[:at], torch.zeros(1, dtype=torch.float64), weights[at:]])
    close(rule(more, with_zero), rule(rows, weights))


@every_rule
@few
@given(call=calls(), scale=st.sampled_from([0.1, 1 / 3, 7.0, 1e-9, 1e12]))
def test_only_ratios_of_weights_matter(rule, call, scale):
    rows, weights = call
    close(rule(rows, scale * weights), rule(rows, weights))


SHARES = [(1, 2, 3, 4), (3, 1, 4, 2), (1, 1, 1, 3), (2, 3, 4, 1), (1, 9, 5, 5), (1, 1, 4, 24), (7, 7, 7, 21)]


@every_rule
@pytest.mark.parametrize("counts", SHARES, ids=str)
def test_normalised_weights_are_their_counts(rule, counts):
    """0.1 + 0.4 and 0.2 + 0.3 are one half here, whatever binary fractions make of them."""
    rows = torch.tensor([[5.0, -1.0], [1.0, 0.5], [2.0, 100.0], [-7.0, 3.0]], dtype=torch.float64)
    for order in itertools.permutations(range(4)):
        whole = torch.tensor([float(counts[i]) for i in order], dtype=torch.float64)
        close(rule(rows, whole / sum(counts)), rule(rows, whole), 1e-10)


@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule, Median)], ids=str)
@pytest.mark.parametrize("counts", SHARES, ids=str)
def test_weights_normalised_in_float32_are_nearly_their_counts(rule, counts):
    rows = torch.tensor([[5.0, -1.0], [1.0, 0.5], [2.0, 100.0], [-7.0, 3.0]])
    whole = torch.tensor([float(c) for c in counts])
    close(rule(rows, whole / sum(counts)), rule(rows, whole), 2e-5)


@few
@given(rows=st.lists(entries, min_size=2, max_size=7), weights=st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_median_of_weights_normalised_in_float32_is_the_median_or_an_end_of_its_midpoint(rows, weights):
    """float32 does not know which sums are one half: 0.1 + 0.4 < 0.2 + 0.3.  Nothing beyond that may change."""
    whole = torch.tensor([float(w) for w in weights[: len(rows)]])
    below, above = whole.clone(), whole.clone()
    below[min(range(len(rows)), key=rows.__getitem__)] += 1e-3
    above[max(range(len(rows)), key=rows.__getitem__)] += 1e-3
    column = torch.tensor(rows)[:, None]
    candidates = [float(Median()(column, w)) for w in (whole, below, above)]
    assert float(Median()(column, whole / whole.sum())) in candidates


@every_rule
def test_equal_weights_are_no_weights(rule):
    rows = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rule(rows), rule(rows, torch.ones(6)))
    for weight in (0.1, 1 / 6, 7.0):
        close(rule(rows), rule(rows, torch.full((6,), weight)), 1e-6)


# --- shapes, precision, blocks


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_keeps_dtype_and_arguments(rule, dtype, weighted):
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=dtype)
    weights = torch.tensor([1.0, 2.0, 0.0, 4.0, 1.0]) if weighted else None
    before = rows.clone(), None if weights is None else weights.clone()
    result = rule(rows, weights)
    assert (result.dtype, result.shape) == (dtype, (3,))
    assert torch.equal(rows, before[0])
    assert weights is None or torch.equal(weights, before[1])


@every_rule
def test_one_row_is_the_result(rule):
    row = torch.tensor([[1.0, -2.5, 3e30, 1e-30]])
    close(rule(row), row[0], 1e-6)
    close(rule(row, torch.tensor([0.3])), row[0], 1e-6)


@every_rule
@pytest.mark.parametrize("m", [2, 3, 5, 10])
def test_equal_rows_are_the_result(rule, m):
    row = torch.randn(20, generator=torch.Generator().manual_seed(m))
    close(rule(row.expand(m, 20)), row, 1e-6)
    close(rule(row.expand(m, 20), torch.arange(1.0, m + 1)), row, 1e-6)


@every_rule
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_columns_fit_together(rule, weighted, monkeypatch):
    rows = torch.randn(5, 103, generator=torch.Generator().manual_seed(2))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0]) if weighted else None
    whole = rule(rows, weights)
    for block in (1, 5, 35, 5 * 103):  # 1, 1, 7 and 103 columns
        monkeypatch.setattr(columns, "BLOCK", block)
        assert torch.equal(rule(rows, weights), whole)


@every_rule
def test_rows_need_not_be_contiguous(rule):
    rows = torch.randn(14, 6, generator=torch.Generator().manual_seed(3))
    close(rule(rows.T[:, ::2]), rule(rows.T[:, ::2].contiguous()), 1e-6)


@every_rule
def test_entries_near_the_largest_number_do_not_overflow(rule):
    largest = torch.finfo(torch.float32).max
    rows = torch.tensor([[0.9, -0.9, 0.9], [0.8, -0.8, -0.9], [0.7, -0.9, 0.8], [0.9, -0.8, -0.8]]) * largest
    for weights in (None, torch.tensor([1.0, 2.0, 1.0, 1.0])):
        result = rule(rows, weights)
        assert torch.isfinite(result).all()
        assert bool((result >= rows.amin(0)).all())
        assert bool((result <= rows.amax(0)).all())


# --- breakdown


def outside(result, honest):
    """By how much of the honest range, or of 1, the result lies outside of it."""
    low, high = honest.amin(0), honest.amax(0)
    excess = torch.maximum(low - result, result - high).clamp(min=0)
    return float((excess / (high - low).clamp(min=1)).max())


def placements(m, attackers):
    """Each set of so many of m rows."""
    return itertools.combinations(range(m), attackers)


def tolerated(rule, m):
    """The largest number of m equal clients that the rule withstands."""
    return (m - 1) // 2 if isinstance(rule, Median) else int(TOLERATED[rule] * m + 1e-9)


ROBUST = [Median(), *BETAS]


@pytest.mark.parametrize("rule", ROBUST, ids=str)
@pytest.mark.parametrize("m", [3, 5, 8, 10])
@pytest.mark.parametrize("far", [1e12, -1e12, 1e30, -1e30])
def test_the_tolerated_number_of_attackers_stays_inside_the_honest_range(rule, m, far):
    honest = torch.randn(m, 3, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    for byzantine in placements(m, tolerated(rule, m)):
        rows = honest.clone()
        rows[list(byzantine)] = far
        rest = [i for i in range(m) if i not in byzantine]
        assert outside(rule(rows), honest[rest]) < 1e-9


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("m", [3, 5, 8, 10])
@pytest.mark.parametrize("far", [1e12, -1e12, 1e30, -1e30])
def test_one_attacker_more_breaks_it(rule, m, far):
    honest = torch.randn(m, 3, generator=torch.Generator().manual_seed(m), dtype=torch.float64)
    for byzantine in placements(m, tolerated(rule, m) + 1):
        rows = honest.clone()
        rows[list(byzantine)] = far
        rest = [i for i in range(m) if i not in byzantine]
        assert outside(rule(rows), honest[rest]) > 1e9


@pytest.mark.parametrize("rule", ROBUST, ids=str)
@pytest.mark.parametrize("far", [1e12, -1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@few
@given(
    honest=st.lists(entries, min_size=1, max_size=6),
    honest_weights=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    attackers=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    order=st.permutations(range(9)),
)
def test_the_tolerated_share_of_weight_stays_inside(rule, far, dtype, honest, honest_weights, attackers, order):
    """The attackers' weights are scaled to exactly the tolerated share; for the median, to just below one half."""
    ours = [Fraction(w) for w in honest_weights[: len(honest)]]
    share = Fraction(49, 100) if isinstance(rule, Median) else Fraction(str(rule.beta))
    theirs = [share / (1 - share) * sum(ours) * Fraction(a, sum(attackers)) for a in attackers]
    total = sum(ours) + sum(theirs)
    column = [*honest, *[far] * len(attackers)]
    weights = [float(w / total) for w in (*ours, *theirs)]  # rounded, as an average of sizes is
    at = [i for i in order if i < len(column)]
    rows = torch.tensor([[column[i]] for i in at], dtype=dtype)
    result = rule(rows, torch.tensor([weights[i] for i in at], dtype=torch.float64))
    assert outside(result, torch.tensor(honest, dtype=dtype)[:, None]) < 1e-6


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_little_more_weight_than_tolerated_breaks_it(rule):
    share = (0.5 if isinstance(rule, Median) else TOLERATED[rule]) + 1e-3
    for attackers in (1, 2, 3):
        column = [0.0, 1.0, 2.0, *[1e30] * attackers]
        weights = [*[(1 - share) / 3] * 3, *[share / attackers] * attackers]
        result = rule(torch.tensor(column)[:, None], torch.tensor(weights, dtype=torch.float64))
        assert float(result) > 1e20


# --- bad arguments, without the checker of shapes that guards these tests, as in a user's program


@pytest.fixture
def unchecked():
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.mark.usefixtures("unchecked")
@every_rule
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.tensor([[1.0], [torch.nan], [2.0], [torch.inf]]), r"Rows \[1, 3\] hold NaN or infinite"),
        (torch.tensor([[torch.inf], [-torch.inf]]), r"Rows \[0, 1\] hold NaN or infinite"),
        (torch.ones(3), r"row per client, got torch\.float32 of shape \(3,\)"),
        (torch.ones(3, 2, 1), r"row per client, got torch\.float32 of shape \(3, 2, 1\)"),
        (torch.ones(0, 2), r"row per client, got torch\.float32 of shape \(0, 2\)"),
        (torch.ones(2, 0), r"row per client, got torch\.float32 of shape \(2, 0\)"),
        (torch.ones(2, 2, dtype=torch.int64), r"row per client, got torch\.int64 of shape \(2, 2\)"),
    ],
)
def test_refuses_what_is_no_matrix(rule, rows, message):
    with pytest.raises(ValueError, match=message):
        rule(rows)


@pytest.mark.usefixtures("unchecked")
@every_rule
@pytest.mark.parametrize(
    "weights",
    [
        torch.tensor([1.0, -1.0, 1.0]),
        torch.tensor([1.0, torch.nan, 1.0]),
        torch.tensor([1.0, torch.inf, 1.0]),
        torch.zeros(3),
        torch.ones(2),
        torch.ones(4),
        torch.ones(3, 1),
        torch.ones(1),
        torch.tensor(1.0),
    ],
    ids=str,
)
def test_refuses_what_are_no_weights(rule, weights):
    with pytest.raises(ValueError, match="Weights must be 3 finite non-negative numbers, at least one positive"):
        rule(torch.ones(3, 2), weights)


@pytest.mark.parametrize("beta", [-0.1, 0.5, 0.7, float("nan")])
def test_trimmed_mean_refuses_shares_that_leave_nothing(beta):
    with pytest.raises(ValueError, match=r"beta must lie in \[0, 0\.5\)"):
        TrimmedMean(beta)


def between_quantiles(x: np.ndarray, w: np.ndarray | None, beta: float) -> float:
    """The trimmed mean of the program of Portnoy et al. by its description, in exact arithmetic."""
    m, share = len(x), Fraction(repr(beta))
    order = np.argsort(x) if w is None else np.lexsort((w, x))
    values, weights = [Fraction(v) for v in x[order]], [Fraction(1 if w is None else w[k]) for k in order]
    place = [(sum(weights[:r]) + weights[r] / 2) / sum(weights) for r in range(m)]
    if w is None:  # numpy.quantile
        place = [Fraction(r, max(m - 1, 1)) for r in range(m)]

    def quantile(q: Fraction) -> Fraction:
        r = next((r for r in range(m) if place[r] >= q), m - 1)
        if r == 0 or place[r] <= q:
            return values[r]
        return values[r - 1] + (values[r] - values[r - 1]) * (q - place[r - 1]) / (place[r] - place[r - 1])

    low, high = quantile(share), quantile(1 - share)
    kept = [r for r in range(m) if low < values[r] < high]
    mass = sum(weights[r] for r in kept)
    return float(sum(weights[r] * values[r] for r in kept) / mass if kept else (low + high) / 2)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.25, 0.4])
def test_the_strict_trimmed_mean_lies_between_interpolated_quantiles(beta, kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(trimmed_mean, "has_kernel", lambda matrix: False)
    rng, rule = np.random.default_rng(7), TrimmedMean(beta, form="strict")
    for case in range(60):
        m = int(rng.integers(1, 12))
        x = rng.integers(-3, 4, (m, 5)).astype(float) if case % 2 else rng.normal(size=(m, 5))
        w = rng.permutation(np.arange(1.0, m + 1))
        close(rule(torch.tensor(x)), torch.tensor([between_quantiles(c, None, beta) for c in x.T], dtype=torch.float64))
        expected = [between_quantiles(c, w if m > 1 else None, beta) for c in x.T]
        close(rule(torch.tensor(x), torch.tensor(w)), torch.tensor(expected, dtype=torch.float64))


def test_the_strict_form_stands_or_falls_with_a_tie():
    """Attackers with 40 % of the weight who all send -1 remove themselves from it; with a little noise they stay."""
    honest, same = torch.linspace(0.9, 1.1, 6)[:, None], -torch.ones(4, 1)
    noisy = same + 1e-4 * torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    strict, proper = TrimmedMean(0.1, form="strict"), TrimmedMean(0.1)
    weights = torch.tensor([1.0, 1, 1, 1, 1, 1.001, 1, 1, 1, 1])
    assert strict(torch.cat([honest, same]), weights) > 0.9
    assert strict(torch.cat([honest, noisy]), weights) < 0.5
    assert proper(torch.cat([honest, same]), weights) < 0.5
