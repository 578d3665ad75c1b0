"""The covariance-bound agnostic filter against its definition on the rows themselves."""

import numpy as np
import pytest
import torch

from phalanx.aggregators.caf import CAF, principal
from phalanx.aggregators.points import Points


def noise(m, d, seed):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(rows, weights, f):
    """The paper's loop, with the covariance written down."""
    x, c = rows.numpy(), weights.numpy().copy()
    limit = (1 - 2 * f / len(x)) * c.sum()
    best, least = c @ x / c.sum(), np.inf
    while c.sum() > limit * (1 + 1e-12):
        mean = c @ x / c.sum()
        centred = x - mean
        values, vectors = np.linalg.eigh((c[:, None] * centred).T @ centred / c.sum())
        if values[-1] < least:
            best, least = mean, values[-1]
        tau = (centred @ vectors[:, -1]) ** 2
        if (c > 0).sum() == 1:
            break
        c = c * np.clip(1 - tau / tau[c > 0].max(), 0, None)
        c[c < 1e-12] = 0
    return torch.from_numpy(best)


@pytest.mark.parametrize("m", range(3, 13))
@pytest.mark.parametrize("d", [2, 40])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_its_definition(m, d, weighted):
    for f in range((m - 1) // 2 + 1):
        rows = noise(m, d, 100 * m + f)
        rows[:f] *= 4
        weights = noise(m, 1, m)[:, 0].abs() + 0.2 if weighted else torch.ones(m, dtype=torch.float64)
        torch.testing.assert_close(CAF(f)(rows, weights), by_definition(rows, weights, f), rtol=1e-6, atol=1e-6)


def test_by_hand():
    """Mean 1: tau is 1, 1, 4, 4 at 0, 2, -1, 3, so that c is 3/4, 3/4, 0, 0 and too small to go on."""
    choice = CAF(f=1).choose(Points.of(torch.tensor([[0.0], [2.0], [-1.0], [3.0]])))
    assert choice.shares.tolist() == [0.25] * 4
    # Mean 3: tau is 9, 9, 9, 9, 36 x 2: c is 3/4 for the first four; the variance among them is 0.
    assert CAF(f=2)(torch.tensor([[0.0], [0.0], [0.0], [0.0], [9.0], [9.0]])).tolist() == [0.0]


def test_of_several_largest_eigenvalues_all_directions_count():
    """The corners of a square and its centre: no corner is special."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    value, tau = principal(Points.of(rows).squared_distances, torch.ones(5, dtype=torch.float64))
    assert value == pytest.approx(0.4)
    assert tau.tolist() == pytest.approx([1, 1, 1, 1, 0])


def test_principal_does_not_look_at_rows_without_weight():
    rows = noise(6, 3, 0)
    weights = torch.tensor([1.0, 2.0, 1.0, 3.0, 0.0, 0.0], dtype=torch.float64)
    far = rows.clone()
    far[4:] = 1e12
    one, other = (principal(Points.of(r).squared_distances, weights) for r in (rows, far))
    assert one[0] == pytest.approx(other[0], rel=1e-12)
    torch.testing.assert_close(one[1][:4], other[1][:4])


def test_copies_of_an_attacker_are_filtered_to_the_last_digit():
    rows = noise(9, 5, 3)
    rows[:4] = 1e12
    choice = CAF(f=4).choose(Points.of(rows))
    assert choice.shares[:4].tolist() == [0.0] * 4
    assert choice.reasons[:4] == ["filtered: far out in the direction of the largest variance"] * 4
    assert choice.scores[:4] == [0.0] * 4
    assert max(choice.scores) == 1.0
