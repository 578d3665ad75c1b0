"""The compiled columns against torch's own sort, which other devices and other types use."""

import math

import pytest
import torch

from phalanx.aggregators import MeaMed, Median, TrimmedMean, mean_around_median, median, trimmed_mean
from phalanx.numerics.sorting_network import SHAPES, comparisons, sorting_network

RULES = [Median(), TrimmedMean(0.2), TrimmedMean(0.17), TrimmedMean(0.0), MeaMed(2), MeaMed(0)]


@pytest.mark.parametrize("m", [5, 6, 9, 16, 33])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_agree(rule, m, weighted, dtype, monkeypatch):
    draw = torch.Generator().manual_seed(m)
    rows = torch.randn(m, 1500, generator=draw, dtype=dtype).round(decimals=1)  # with ties
    weights = torch.randint(1, 9, (m,), generator=draw).double() if weighted else None
    compiled = rule(rows, weights)
    for module in (median, trimmed_mean, mean_around_median):
        monkeypatch.setattr(module, "has_kernel", lambda rows: False)
    torch.testing.assert_close(rule(rows, weights), compiled, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("m", [1, 2, 3, 8, 9, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_weights_need_not_travel_along(m, dtype, monkeypatch):
    """The kernel for them gives the bits of the one that carries weights: ties, and medians far from any entry."""
    draw = torch.Generator().manual_seed(m)
    rows = torch.randn(m, 700, generator=draw, dtype=dtype).round(decimals=1)
    rows[:, 500:] = torch.randn(m, 200, generator=draw, dtype=dtype).exp()
    for f in {0, (m - 1) // 4, (m - 1) // 2}:
        alone = MeaMed(f)(rows)
        with monkeypatch.context() as patch:
            patch.setattr(mean_around_median, "equal", lambda weights: False)
            assert torch.equal(MeaMed(f)(rows), alone)
        torch.testing.assert_close(MeaMed(f)(rows, torch.full((m,), 2.5)), alone)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_half_precision(rule, dtype):
    rows = torch.randn(9, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    result = rule(rows)
    assert result.dtype == dtype
    torch.testing.assert_close(result.double(), rule(rows.double()), rtol=1e-2, atol=1e-2)


def pairs(network):
    """The comparisons of a network's steps, one after the other."""
    return [(int(rows[a]), int(rows[b])) for shape, *rows in network for a, b in SHAPES[shape]]


@pytest.mark.parametrize("m", range(1, 12))
def test_the_network_sorts_every_sequence_of_zeros_and_ones(m):
    """And so every sequence of anything (the zero-one principle)."""
    entries = torch.tensor([[(k >> i) & 1 for k in range(2**m)] for i in range(m)])
    for i, j in pairs(sorting_network(m)):
        entries[i], entries[j] = torch.minimum(entries[i], entries[j]), torch.maximum(entries[i], entries[j])
    assert bool((entries.diff(dim=0) >= 0).all())


@pytest.mark.parametrize("m", range(3, 12))
def test_a_pruned_network_puts_the_ranks_that_count_in_their_places(m):
    entries = torch.tensor([[(k >> i) & 1 for k in range(2**m)] for i in range(m)])
    ordered = entries.sort(0).values
    low, high = m // 4, m - 1 - m // 4
    inner = frozenset(range(low + 1, high))
    network = sorting_network(m, frozenset({low, high}), inner)
    assert len(pairs(network)) <= len(pairs(sorting_network(m)))
    for i, j in pairs(network):
        entries[i], entries[j] = torch.minimum(entries[i], entries[j]), torch.maximum(entries[i], entries[j])
    assert torch.equal(entries[[low, high]], ordered[[low, high]])
    assert torch.equal(entries[sorted(inner)].sum(0), ordered[sorted(inner)].sum(0))


@pytest.mark.parametrize("m", [1, 2, 3, 16, 50, 129])
def test_steps_hold_every_comparison_and_each_entry_meets_the_others_in_the_same_order(m):
    one_by_one, taken = comparisons(m), pairs(sorting_network(m))
    assert sorted(taken) == sorted(one_by_one)
    for entry in range(m):
        assert [pair for pair in taken if entry in pair] == [pair for pair in one_by_one if entry in pair]
    assert len(sorting_network(m)) <= max(len(one_by_one) * 0.45, 3)  # else rows are stored once for each comparison


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("columns", [1, 63, 64, 65, 4095, 4096, 4097, 4161, 9000])
@pytest.mark.parametrize("m", [1, 2, 5, 33])
def test_each_column_is_read_whatever_the_shape(m, columns, threads):
    rows = torch.randn(m, columns, generator=torch.Generator().manual_seed(columns))
    weights = torch.randint(1, 9, (m,), generator=torch.Generator().manual_seed(m)).double()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plain, weighted = Median()(rows), Median()(rows, weights)
    finally:
        torch.set_num_threads(before)
    copies = rows.repeat_interleave(weights.long(), dim=0).sort(0).values
    for result, ordered in ((plain, rows.sort(0).values), (weighted, copies)):
        n = len(ordered)
        assert torch.equal(result, (ordered[(n - 1) // 2].double() / 2 + ordered[n // 2].double() / 2).float())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 63, 64, 4095, 4096, 8190, 8192, 8999])
def test_no_column_is_overlooked_that_is_not_finite(value, column):
    rows = torch.zeros(5, 9000)
    rows[1, column] = value
    for rule in RULES:
        with pytest.raises(ValueError, match=r"Rows \[1\] hold"):
            rule(rows)
