"""Inner products and cosines against float64."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.numerics import kernels, linalg
from phalanx.numerics.linalg import (
    cosine_similarity,
    gram,
    norms,
    product,
    shorten,
    shortened,
    squared_distances,
    squared_distances_to,
    sums_of_few,
)


def reference(rows):
    """Cosines by the book, in float64."""
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    return unit @ unit.T


def check(cosines):
    assert cosines.dtype == torch.float64
    assert torch.equal(cosines, cosines.T)
    assert bool((cosines.abs() <= 1).all())
    assert bool((cosines.diagonal() == 1).all())


def test_by_hand():
    rows = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [1.0, 1.0], [6.0, 8.0]])
    half = 0.5**0.5
    expected = [
        [1, 0, -1, half, 0.6],
        [0, 1, 0, half, 0.8],
        [-1, 0, 1, -half, -0.6],
        [half, half, -half, 1, 1.4 * half],
        [0.6, 0.8, -0.6, 1.4 * half, 1],
    ]
    torch.testing.assert_close(cosine_similarity(rows), torch.tensor(expected, dtype=torch.float64))


def test_zero_rows_are_orthogonal_to_others_and_equal_to_each_other():
    rows = torch.tensor([[0.0, 0.0], [1.0, -2.0], [0.0, 0.0], [-0.0, 0.0]])
    expected = torch.tensor([[1.0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 1, 1], [1, 0, 1, 1]], dtype=torch.float64)
    assert torch.equal(cosine_similarity(rows), expected)
    assert torch.equal(cosine_similarity(torch.zeros(3, 4)), torch.ones(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_float64(dtype):
    rows = torch.randn(7, 300, generator=torch.Generator().manual_seed(0), dtype=dtype)
    cosines = cosine_similarity(rows)
    check(cosines)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(cosines, reference(rows), rtol=0, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 5).flatmap(
        lambda d: st.lists(
            st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=d, max_size=d), min_size=1, max_size=6
        )
    )
)
def test_bounds_hold_for_anything_finite(rows):
    cosines = cosine_similarity(torch.tensor(rows, dtype=torch.float32))
    check(cosines)
    tiny = torch.tensor(rows, dtype=torch.float64)
    scale = tiny.abs().amax(1, keepdim=True)
    torch.testing.assert_close(cosines, cosine_similarity(tiny / torch.where(scale > 0, scale, 1.0)), rtol=0, atol=1e-6)


def test_parallel_rows_do_not_exceed_one():
    row = torch.randn(1, 999, generator=torch.Generator().manual_seed(1))
    rows = row * torch.tensor([1.0, 3.0, 0.1, -7.0, -1 / 3]).unsqueeze(1)
    cosines = cosine_similarity(rows)
    check(cosines)
    signs = torch.tensor([1.0, 1, 1, -1, -1], dtype=torch.float64)
    torch.testing.assert_close(cosines, signs.outer(signs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("scales", [(1e-30, 1e-30), (1e30, 1e30), (1e-30, 1e30), (1e-38, 3e37)])
def test_extreme_scales_neither_vanish_nor_overflow(scales):
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(2))
    factors = torch.tensor([scales[i % 2] for i in range(6)]).unsqueeze(1)
    cosines = cosine_similarity(factors * rows)
    check(cosines)
    torch.testing.assert_close(cosines, reference(rows), rtol=0, atol=1e-5)


def test_one_huge_entry_beside_ordinary_ones():
    rows = torch.tensor([[1e30, 1.0, -1.0], [1.0, 0.0, 0.0], [0.0, 1.0, -1.0]])
    torch.testing.assert_close(cosine_similarity(rows)[0], torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))


def test_an_update_is_not_changed():
    rows = torch.randn(4, 9, generator=torch.Generator().manual_seed(3))
    before = rows.clone()
    cosine_similarity(rows)
    gram(rows)
    assert torch.equal(rows, before)


def test_gram_by_hand():
    rows = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    assert gram(rows).tolist() == [[5.0, 1.0], [1.0, 10.0]]
    assert gram(rows).dtype == torch.float64


SHAPES = [
    *itertools.product(range(1, 2 * kernels.TILE + 2), (1, 7, 8, 9, 16, 33)),  # whole tiles and vectors, and parts
    *itertools.product((2, kernels.BAND, kernels.BAND + 7), (kernels.DEPTH - 1, kernels.DEPTH + 5)),
    (3, 70_001),  # several shares of columns
    (700, 40),  # several shares of rows
]


def whole_numbers(m, d, dtype=torch.float32, name=4):
    """Small ones, whose sums are exact in any order."""
    return torch.randint(-9, 10, (m, d), generator=torch.Generator().manual_seed(name)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_each_pair_and_each_column_counts_once(dtype):
    for m, d in SHAPES:
        rows = whole_numbers(m, d, dtype)
        assert torch.equal(gram(rows), rows.double() @ rows.double().T), (m, d)


def test_rows_that_lie_apart_are_taken_as_if_they_lay_together():
    rows = whole_numbers(14, 3000)
    for part in (rows[::2], rows[:, 5:2900], rows[:, ::3], rows.T[:20], rows[:1].expand(4, -1)):
        assert torch.equal(gram(part), part.double() @ part.double().T)
        assert torch.equal(norms(part).square().round(), part.double().square().sum(1))
        assert torch.equal(squared_distances_to(part, part[0]), (part - part[0]).double().square().sum(1))


def test_products_about_an_origin_in_several_parts(monkeypatch):
    rows, origin = whole_numbers(7, 5000), whole_numbers(1, 5000, name=5)[0]
    expected = (rows - origin).double() @ (rows - origin).double().T
    assert torch.equal(gram(rows, origin), expected)
    monkeypatch.setattr(linalg, "PRODUCTS", 1)
    assert torch.equal(gram(rows, origin), expected)


def test_torch_takes_the_same_products_elsewhere():
    for m, d in SHAPES:
        rows = whole_numbers(m, d)
        assert torch.equal(linalg._torch_products(rows), rows.double() @ rows.double().T), (m, d)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_of_rows(dtype):
    """Dense ones, and those of few rows, of none, and where they are to be written."""
    for (m, d), k in itertools.product(SHAPES, (1, kernels.TALL + 1)):
        rows = whole_numbers(m, d, dtype)
        left = whole_numbers(k, m, torch.float64, name=6)
        left[0, : m // 2] = 0
        left[-1] = 0
        expected = (left @ rows.double()).to(dtype)
        for made in (product(left.to(dtype), rows), sums_of_few(left, rows)):
            assert made.dtype == dtype
            assert torch.equal(made, expected), (m, d, k)
        out = torch.full_like(expected, float("nan"))
        assert sums_of_few(left, rows, out) is out
        assert torch.equal(out, expected)


STRANGE = [0.0, 1e-30, 1e-13, 1e18, 1e25]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("m", [3, 40])
def test_rows_are_shortened_as_they_are_read(m, dtype):
    """Few rows and many, tiny and huge ones, to a new matrix and in place, at once and by norms that are known."""
    rows = torch.randn(m, 3_000, generator=torch.Generator().manual_seed(10)) * torch.linspace(0.1, 3, m)[:, None]
    for k, scale in enumerate(STRANGE[:m]):
        rows[k * (m // min(m, len(STRANGE)))] *= scale
    rows = rows.to(dtype)
    lengths, radius = torch.linalg.vector_norm(rows.double(), dim=1), 20.0
    wanted = rows.double() * torch.where(lengths > radius, radius / lengths, 1.0)[:, None]
    made, place = shortened(rows, radius), rows.clone()
    found = shorten(place, radius, place)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(made.double(), wanted, rtol=tolerance, atol=0)
    torch.testing.assert_close(found, lengths, rtol=1e-6, atol=0)
    assert torch.equal(place, made)
    assert torch.equal(found, norms(rows))
    assert torch.equal(shortened(rows, radius, found), made)
    assert torch.equal(made[lengths < radius * 0.999], rows[lengths < radius * 0.999])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_left_as_it_is(value):
    rows = torch.ones(20, 100)
    rows[7, 3] = value
    before = rows[7].clone()
    lengths = shorten(rows, 2.0, rows)
    assert torch.equal(rows[7], before) or torch.isnan(before).any()
    assert not torch.isfinite(lengths[7])
    assert torch.equal(lengths[lengths.isfinite()], torch.full((19,), 10.0, dtype=torch.float64))


def test_results_do_not_depend_on_threads():
    rows = torch.randn(40, 50_000, generator=torch.Generator().manual_seed(8))
    left = torch.randn(5, 40, generator=torch.Generator().manual_seed(9))

    def found(threads):
        torch.set_num_threads(threads)
        sums = (product(left, rows), sums_of_few(left.double(), rows))
        return (
            gram(rows),
            gram(rows, rows[0]),
            norms(rows),
            squared_distances_to(rows, rows[0]),
            shortened(rows, 2.0),
            *sums,
        )

    before = torch.get_num_threads()
    try:
        one, *others = (found(threads) for threads in (1, 2, 3, 7))
    finally:
        torch.set_num_threads(before)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_many_columns_keep_their_digits():
    """A million columns whose products all have one sign, which is where float32 sums go wrong."""
    rows = torch.rand(4, 1_000_000, generator=torch.Generator().manual_seed(5)) + 0.1
    expected = rows.double() @ rows.double().T
    torch.testing.assert_close(gram(rows), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(cosine_similarity(rows), reference(rows), rtol=0, atol=1e-6)


def test_many_random_columns_are_nearly_orthogonal():
    rows = torch.randn(4, 1_000_000, generator=torch.Generator().manual_seed(6))
    torch.testing.assert_close(cosine_similarity(rows), reference(rows), rtol=0, atol=1e-6)


def test_norms():
    assert norms(torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 12.0]])).tolist() == [5.0, 0.0, 13.0]
    assert norms(torch.ones(2, 3)).dtype == torch.float64
    assert norms(torch.full((1, 4), 1e30)).tolist() == pytest.approx([2e30])


def offset(rows, norm):
    shift = torch.linspace(-1, 1, rows.shape[1])
    return rows + norm * shift / torch.linalg.vector_norm(shift)


def far(rows, *places):
    rows = rows.clone()
    for row, factor in places:
        rows[row] *= factor
    return rows


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows,
        lambda rows: offset(rows, 1e4),
        lambda rows: offset(0.01 * rows, 1e4),
        lambda rows: far(rows, (0, 1e12), (5, -1e12), (6, -1e12)),
        lambda rows: far(rows, (0, 1e30), (3, 1e12)),
        lambda rows: far(offset(rows, 1e4), (2, 1e6)),
        lambda rows: rows[[0, 1, 1, 2, 3, 3, 3, 4]],
        lambda rows: 1e-30 * rows,
        lambda rows: 1e30 * rows,
        lambda rows: torch.stack([rows[1] + rows[0] * 10.0**-k for k in range(12)]),
    ],
    ids=["plain", "offset", "tight", "far", "farther", "both", "copies", "tiny", "huge", "chain"],
)
def test_squared_distances_keep_their_digits(change):
    rows = change(torch.randn(20, 3000, generator=torch.Generator().manual_seed(7)))
    wide = rows.double()
    expected = (wide[:, None] - wide).square().sum(2)
    torch.testing.assert_close(squared_distances(rows), expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(squared_distances_to(rows, rows[4]), expected[4], rtol=1e-4, atol=0)


def test_rows_are_shortened_to_a_radius_and_none_is_lengthened():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(shortened(rows, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert torch.equal(shortened(rows, 1.0, norms(rows)), shortened(rows, 1.0))
    assert not shortened(rows, 0.0).any()
    assert torch.equal(rows[0], torch.tensor([3.0, 4.0])), "it is a copy"
