"""The majority of signs against a count in fractions."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.aggregators import sign_majority
from phalanx.aggregators.sign_majority import SignMajority


def sign(x):
    return (x > 0) - (x < 0)


@pytest.mark.parametrize(
    ("column", "weights", "expected"),
    [
        ([3.0, -1.0, -2.0], None, -1.0),
        ([3.0, -1.0], None, 0.0),
        ([3.0, -1.0], [2.0, 1.0], 1.0),
        ([0.0, 0.0, -1e-30], None, -1.0),  # a zero votes for nobody
        ([0.0, -0.0], None, 0.0),
        ([1e30, -1e-30, -1e-30], None, -1.0),
        ([1.0, 1.0, -1.0], [0.1, 0.2, 0.3], 0.0),  # 0.1 + 0.2 is 0.3 here
        ([5.0], None, 1.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_by_hand(column, weights, expected, dtype):
    w = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    assert SignMajority()(torch.tensor(column, dtype=dtype)[:, None], w).tolist() == [expected]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), m=st.integers(1, 7), d=st.integers(1, 4))
def test_equals_the_count(data, m, d):
    entry = st.integers(-2, 2).map(float)
    rows = data.draw(st.lists(st.lists(entry, min_size=d, max_size=d), min_size=m, max_size=m))
    weights = data.draw(st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.5]), min_size=m, max_size=m))
    exact = [sum(Fraction(str(w)) * sign(row[k]) for row, w in zip(rows, weights, strict=True)) for k in range(d)]
    got = SignMajority()(torch.tensor(rows), torch.tensor(weights, dtype=torch.float64))
    assert got.tolist() == [sign(total) for total in exact]


def test_the_size_of_a_row_does_not_matter():
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(7, 30, generator=rng)
    sizes = torch.tensor([1e-20, 1.0, 3.0, 1e20, 5.0, 1e-3, 1e6])[:, None]
    assert torch.equal(SignMajority()(sizes * rows), SignMajority()(rows))


def test_blocks_of_columns_fit_together(monkeypatch):
    rows = torch.randn(5, 103, generator=torch.Generator().manual_seed(2))
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0])
    expected = [SignMajority()(rows), SignMajority()(rows, weights)]
    for block in (1, 35, 5 * 103):
        monkeypatch.setattr(sign_majority, "BLOCK", block)
        assert torch.equal(SignMajority()(rows), expected[0])
        assert torch.equal(SignMajority()(rows, weights), expected[1])
