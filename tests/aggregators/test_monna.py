"""The mean of the nearest to a trusted row."""

import pytest
import torch

from phalanx.aggregators.monna import MoNNA, lowest
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError


def noise(m, d, seed):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("column", "weights", "f", "reference", "expected"),
    [
        ([0.0, 4.0, 100.0], None, 1, 0, 2.0),
        ([100.0, 0.0, 4.0], None, 1, 1, 2.0),
        ([0.0, -1.0, 1.0], None, 1, 0, 0.0),  # both are as near: one half of each
        ([0.0, -1.0, 2.0], None, 1, 0, -0.5),
        ([0.0, 1.0, 9.0], [1.0, 4.0, 1.0], 1, 0, 0.75),  # 4 of 6: one, and three of the four
        ([0.0, 1.0, 9.0], [5.0, 1.0, 3.0], 1, 0, 1 / 6),  # 6 of 9
        ([0.0, 1.0, 9.0], [1.0, 0.0, 1.0], 0, 2, 4.5),  # row 2, though row 1 is not there
        ([3.0], None, 0, 0, 3.0),
    ],
)
def test_by_hand(column, weights, f, reference, expected):
    w = None if weights is None else torch.tensor(weights)
    rows = torch.tensor(column)[:, None]
    assert MoNNA(f, reference)(rows, w).tolist() == pytest.approx([expected])
    assert MoNNA(f, reference).explained(rows, w)[0].tolist() == pytest.approx([expected])


@pytest.mark.parametrize("m", range(3, 10))
def test_equals_its_definition(m):
    for f in range((m - 1) // 2 + 1):
        rows = noise(m, 4, 10 * m + f)
        nearest = (rows - rows[m // 2]).norm(dim=1).argsort()[: m - f]
        torch.testing.assert_close(MoNNA(f, reference=m // 2)(rows), rows[nearest].mean(0))


def test_stays_as_near_to_the_trusted_row_as_the_honest_are():
    rows = noise(9, 4, 0)
    rows[5:] = rows[0] + 0.9 * noise(4, 4, 1)
    farthest = (rows[:5] - rows[0]).norm(dim=1).max()
    assert (MoNNA(f=4)(rows) - rows[0]).norm() <= farthest


def test_tells_who_is_left_out_and_why():
    choice = MoNNA(f=1).choose(Points.of(torch.tensor([[0.0], [2.0], [100.0]])))
    assert choice.reasons == ["", "", "100 from the trusted row, beyond 2"]
    assert choice.scores == [0, 2, 100]


def test_refuses_a_trusted_row_that_is_not_there():
    with pytest.raises(InfeasibleError, match=r"trusts row 1, which has weight 0"):
        MoNNA(f=0, reference=1)(torch.ones(3, 2), torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(InfeasibleError, match=r"trusts row 3, but there are 3 rows\. Give an index below 3"):
        MoNNA(f=1, reference=3)(torch.ones(3, 2))
    with pytest.raises(ValueError, match="reference must be at least 0, got -1"):
        MoNNA(f=1, reference=-1)


@pytest.mark.parametrize(
    ("scores", "weights", "budget", "expected"),
    [
        ([3.0, 1.0, 2.0], [1.0, 1.0, 1.0], 2.0, [0.0, 1.0, 1.0]),
        ([3.0, 1.0, 2.0], [1.0, 1.0, 1.0], 1.5, [0.0, 1.0, 0.5]),
        ([2.0, 1.0, 2.0], [1.0, 1.0, 3.0], 3.0, [0.5, 1.0, 1.5]),
        ([0.0, 0.0, 0.0], [1.0, 2.0, 1.0], 2.0, [0.5, 1.0, 0.5]),
        ([1.0, 1.0 + 1e-12, 1e24], [1.0, 1.0, 1.0], 1.0, [0.5, 0.5, 0.0]),
        ([1.0, 2.0, 3.0], [0.1, 0.2, 0.3], 0.1 + 0.2, [0.1, 0.2, 0.0]),
        ([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], 3.0, [1.0, 1.0, 1.0]),
    ],
)
def test_a_budget_is_filled_with_the_lowest(scores, weights, budget, expected):
    got = lowest(*(torch.tensor(x, dtype=torch.float64) for x in (scores, weights)), budget)
    assert got.tolist() == pytest.approx(expected)
    assert [g == 0 for g in got.tolist()] == [e == 0 for e in expected]
