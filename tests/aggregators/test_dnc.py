"""Divide and conquer against its definition by singular vectors."""

import numpy as np
import pytest
import torch

from phalanx.aggregators.dnc import DnC
from phalanx.aggregators.points import Points
from phalanx.core import InfeasibleError
from phalanx.rng import numpy_generator


def noise(m, d, seed):
    return torch.randn(m, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(rows, rule, turn):
    """The paper's loop, on the rows."""
    x = rows.numpy()
    m, d = x.shape
    good = set(range(m))
    for iteration in range(rule.iterations):
        b = min(rule.coordinates, d)
        rng = numpy_generator(rule.seed, "dnc", turn, iteration)
        r = rng.choice(d, b, replace=False, shuffle=False) if b < d else np.arange(d)
        centred = x[:, r] - x[:, r].mean(0)
        scores = (centred @ np.linalg.svd(centred)[2][0]) ** 2
        good &= set(scores.argsort()[: m - round(rule.c * rule.f)].tolist())
    return rows[sorted(good)].mean(0) if good else None


@pytest.mark.parametrize("m", [3, 6, 9, 12])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"coordinates": 5},
        {"coordinates": 5, "iterations": 4},
        {"coordinates": 7, "iterations": 2, "c": 0.5, "seed": 3},
        {"iterations": 2, "c": 1.5},
    ],
    ids=str,
)
def test_equals_its_definition(m, settings):
    for f in range(0, (m - 1) // 2 + 1, 2):
        rule = DnC(f, **settings)
        for turn in (0, 7):
            rows = noise(m, 20, 10 * m + f)
            expected = by_definition(rows, rule, turn)
            if expected is not None:
                torch.testing.assert_close(rule(rows, turn=turn), expected)
            else:
                with pytest.raises(InfeasibleError, match="dropped every one of"):
                    rule(rows, turn=turn)


def test_by_hand():
    rows = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 1.0], [100.0, 1.0]])
    choice = DnC(f=1).choose(Points.of(rows))
    assert choice.shares.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert choice.reasons == ["", "", "", "far out in the direction of the largest variance"]
    assert choice.scores == pytest.approx([25.75**2, 23.75**2, 24.75**2, 74.25**2])
    weights = torch.tensor([1.0, 4.0, 2.0, 1.0])
    # A quarter of 8 goes: 100, whose weight is 1, and half of the weight of the next, 0, that is the whole row.
    assert DnC(f=1)(rows, weights).tolist() == pytest.approx([10 / 6, 1.0])


def test_the_same_turn_draws_the_same():
    rows, rule = noise(9, 50, 0), DnC(f=3, coordinates=3)
    assert torch.equal(rule(rows, turn=2), rule(rows, turn=2))
    assert len({tuple(rule(rows, turn=turn).tolist()) for turn in range(8)}) > 1
    assert len({tuple(DnC(f=3, coordinates=3, seed=seed)(rows).tolist()) for seed in range(8)}) > 1


def test_a_common_offset_does_not_hide_anything():
    rows = noise(8, 200, 1).float()
    rows[0] += 1
    shifted = (rows + 1000).float()
    one, other = (DnC(f=1, coordinates=50).choose(Points.of(x)) for x in (rows, shifted))
    assert [s == 0 for s in one.shares] == [s == 0 for s in other.shares]


def test_says_what_is_wrong():
    with pytest.raises(InfeasibleError, match=r"drops c f = 6 of 5 rows\. Lower c or f"):
        DnC(f=2, c=3.0)(noise(5, 3, 0))
    with pytest.raises(InfeasibleError, match=r"dropped every one of 5 rows in some iteration\. Lower c or iterations"):
        DnC(f=2, c=2.0, iterations=60, coordinates=1)(noise(5, 30, 0))
    for bad, message in [
        ({"c": 0.0}, "c must be positive and finite, got 0.0"),
        ({"c": float("inf")}, "c must be positive"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"coordinates": 0}, "coordinates must be at least 1, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            DnC(f=1, **bad)
