"""FoolsGold's weights against the loops of its definition."""

import math

import numpy as np
import pytest
import torch

from phalanx.aggregators.foolsgold import FoolsGoldWeights
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError


def noise(m, d, seed):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(rows):
    """Entry by entry."""
    x = rows.numpy()
    m = len(x)
    cosine = [[float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for b in x] for a in x]
    largest = [max(0.0, *(cosine[i][j] for j in range(m) if j != i)) for i in range(m)]
    alpha = []
    for i in range(m):
        pardoned = [0.0]
        for j in range(m):
            if j != i:
                pardoned.append(cosine[i][j] * (largest[i] / largest[j] if largest[j] > largest[i] else 1))
        alpha.append(min(1.0, max(0.0, 1 - max(pardoned))))
    parts = []
    for a in alpha:
        share = a / max(alpha)
        share = 0.99 if share == 1 else share
        parts.append(min(1.0, max(0.0, math.log(share / (1 - share)) + 0.5)) if share > 0 else 0.0)
    return torch.tensor(parts, dtype=torch.float64)


@pytest.mark.parametrize("m", [2, 3, 5, 12])
@pytest.mark.parametrize("d", [2, 5, 100])
def test_equals_its_definition(m, d):
    for seed in range(4):
        rows = noise(m, d, seed) + seed / 2
        weights = noise(m, 1, seed)[:, 0].abs() + 0.1
        shares = by_definition(rows)
        torch.testing.assert_close(FoolsGoldWeights()(rows), shares @ rows / shares.sum())
        shares = shares * weights
        torch.testing.assert_close(FoolsGoldWeights()(rows, weights), shares @ rows / shares.sum())


def test_sybils_are_left_out():
    rng = torch.Generator().manual_seed(0)
    honest = torch.randn(6, 200, generator=rng)
    sybils = 50 * torch.randn(1, 200, generator=rng) + torch.randn(20, 200, generator=rng)
    choice = FoolsGoldWeights().choose(Points.of(torch.cat([honest, sybils])))
    assert choice.shares[6:].tolist() == [0.0] * 20
    assert choice.scores[:6] == [1.0] * 6
    assert choice.reasons[:6] == [""] * 6
    assert all(reason == "cosine 1.000 with another update" for reason in choice.reasons[6:])


def test_the_honest_who_resemble_a_sybil_a_little_are_pardoned():
    """Cosine 0.6 with two copies: without pardoning the honest row's alpha would be 0.4, with it it is 0.64."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
    assert FoolsGoldWeights()(rows).tolist() == pytest.approx([0.6, 0.8])


def test_opposite_and_orthogonal_rows_count_in_full():
    for rows in (torch.eye(4), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])):
        assert FoolsGoldWeights().choose(Points.of(rows)).scores == [1.0] * len(rows)


def test_one_row_is_the_result():
    row = torch.tensor([[1.0, -2.0]])
    assert torch.equal(FoolsGoldWeights()(row), row[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_but_sybils_is_an_error_in_words(dtype):
    row = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0), dtype=dtype)
    for sizes in ([1.0, 1.0], [1.0, 0.3, 7.0], [0.1] * 9):
        with pytest.raises(
            InfeasibleError, match=f"each of the {len(sizes)} rows points in the direction of another one"
        ):
            FoolsGoldWeights()(torch.tensor(sizes, dtype=dtype)[:, None] * row)
