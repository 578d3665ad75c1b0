"""FLAME's filter against HDBSCAN, medians and means."""

import numpy as np
import pytest
import torch
from sklearn.cluster import HDBSCAN

from phalanx.aggregators.flame import DensestMajority, FLAMEFilter, angular_distances
from phalanx.aggregators.points import Points
from phalanx.clustering import densest_majority


def noise(m, d, seed):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(rows):
    unit = rows / rows.norm(dim=1, keepdim=True)
    distances = (1 - unit @ unit.T).clamp_min(0).fill_diagonal_(0)
    distances = (distances + distances.T) / 2
    model = HDBSCAN(
        min_cluster_size=len(rows) // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
    )
    admitted = rows[model.fit(distances.numpy()).labels_ == 0]
    limit = float(np.median(rows.norm(dim=1).numpy()))
    return (admitted * (limit / admitted.norm(dim=1, keepdim=True)).clamp(max=1)).mean(0)


@pytest.mark.parametrize("m", [3, 4, 9, 10, 31])
def test_equals_its_definition(m):
    for seed in range(5):
        rows = noise(m, 12, seed) + 1
        rows[: (m - 1) // 3] *= -3
        torch.testing.assert_close(FLAMEFilter()(rows), by_definition(rows))


def test_by_hand():
    rows = torch.tensor([[4.0, 0.0], [2.0, 0.0], [0.0, 9.0]])
    vector, choice = FLAMEFilter().explained(rows)
    assert vector.tolist() == [3.0, 0.0]  # the median norm is 4
    assert choice.reasons == ["", "", "outside the cosine cluster of 2"]
    vector, choice = FLAMEFilter().explained(rows, torch.tensor([1.0, 2.0, 1.0]))
    assert vector.tolist() == pytest.approx([7 / 3, 0.0])  # one half is not a majority: row 0 joins row 1
    assert choice.shares.tolist() == pytest.approx([1 / 4, 2 / 3, 0.0])
    assert choice.reasons[0] == "norm 4 clipped to 3"  # between 2 and 4


def test_tells_who_is_clipped():
    rows = torch.tensor([[8.0, 0.0], [2.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.0, -1.0]])
    choice = FLAMEFilter().choose(Points.of(rows))
    assert choice.reasons[0] == "norm 8 clipped to 2"
    assert choice.reasons[3:] == ["outside the cosine cluster of 3"] * 2
    assert choice.shares.tolist() == pytest.approx([1 / 12, 1 / 3, 1 / 3 * 2 / 2.0025, 0, 0], abs=1e-4)
    assert choice.scores == pytest.approx([1, 1, 0.99875, 0.05, 0], abs=1e-3)


def test_zero_updates():
    assert FLAMEFilter(noise=0.1)(torch.zeros(4, 3)).tolist() == [0.0] * 3
    mixed = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [5.0, 0.0]])
    assert FLAMEFilter()(mixed).tolist() == [0.0, 0.0]


def test_attackers_in_another_direction_do_not_count():
    rows = 1 + 0.3 * noise(11, 50, 0)
    rows[:5] = -1e6
    choice = FLAMEFilter().choose(Points.of(rows))
    assert choice.shares[:5].tolist() == [0.0] * 5
    assert bool((choice.shares[5:] > 0).all())


def test_noise_is_as_large_as_it_says_and_drawn_by_turn():
    rows = 3 + noise(5, 20_000, 1)
    quiet, rule = FLAMEFilter()(rows), FLAMEFilter(noise=0.01, seed=4)
    limit = float(rows.norm(dim=1).median())
    added = rule(rows, turn=1) - quiet
    assert float(added.std()) == pytest.approx(0.01 * limit, rel=0.03)
    assert abs(float(added.mean())) < 0.03 * 0.01 * limit
    assert torch.equal(rule(rows, turn=1), rule(rows, turn=1))
    assert torch.equal(rule.explained(rows, turn=1)[0], rule(rows, turn=1))
    others = [rule(rows, turn=2), FLAMEFilter(noise=0.01, seed=5)(rows, turn=1)]
    assert not any(torch.allclose(rule(rows, turn=1), other) for other in others)


@pytest.mark.parametrize("noise", [-0.1, float("inf"), float("nan")])
def test_refuses_what_is_no_noise(noise):
    with pytest.raises(ValueError, match="noise must be at least 0 and finite"):
        FLAMEFilter(noise=noise)


@pytest.mark.parametrize("size", [1e-2, 1e-3, 1e-4, 1e-5])
def test_models_that_hardly_differ_are_clustered_as_in_float64(size):
    """Models are a common vector and a small change; 1 minus the cosine in float32 is rounding only."""
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        base, common = torch.randn(2, 2000, generator=rng)
        rows = base + size * (0.5 * common + torch.randn(20, 2000, generator=rng))
        unit = rows.double() / rows.double().norm(dim=1, keepdim=True)
        exact = (unit[:, None] - unit).square().sum(2) / 2
        close = angular_distances(Points.of(rows))
        off = ~torch.eye(20, dtype=torch.bool)
        assert ((close - exact).abs() / exact)[off].max() < 1e-3
        admitted = DensestMajority().choose(Points.of(rows)).shares.nonzero().flatten().tolist()
        assert tuple(admitted) == densest_majority(exact)


def test_angles_that_are_not_small_keep_their_bits():
    rows = noise(8, 30, 3).float()
    assert torch.equal(angular_distances(Points.of(rows)), (1 - Points.of(rows).cosines).clamp_min(0))


def test_copies_are_at_distance_zero_and_zero_rows_have_no_direction():
    rows = torch.cat([noise(1, 500, 0).float().repeat(3, 1), noise(1, 500, 1).float(), torch.zeros(2, 500)])
    far = angular_distances(Points.of(rows))
    assert far[:3, :3].tolist() == [[0.0] * 3] * 3
    assert far[4:, 4:].tolist() == [[0.0] * 2] * 2
    assert far[4, :4].tolist() == [1.0] * 4
