import statistics

import pytest

from phalanx.simulation import Constant, Lognormal, Normal

MANY = range(4000)


def test_constant():
    assert Constant(2.5).seconds(3, 7, seed=0) == 2.5


def test_normal_is_drawn_once_per_client_with_the_moments_asked_for():
    latency = Normal(100, 20)
    draws = [latency.seconds(i, 0, seed=1) for i in MANY]
    assert statistics.mean(draws) == pytest.approx(100, abs=1.5)
    assert statistics.stdev(draws) == pytest.approx(20, abs=1)
    assert draws[:10] == [latency.seconds(i, 5, seed=1) for i in range(10)]
    assert draws[:10] != [latency.seconds(i, 0, seed=2) for i in range(10)]


def test_normal_is_folded_and_positive():
    assert min(Normal(0.1, 10).seconds(i, 0, seed=0) for i in MANY) > 0


def test_lognormal_median_and_redraw():
    latency = Lognormal(2.0, 1.0, each_turn=True)
    draws = [latency.seconds(0, turn, seed=1) for turn in MANY]
    assert statistics.median(draws) == pytest.approx(2.0, rel=0.06)
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(0),
        lambda: Constant(float("inf")),
        lambda: Normal(0, 1),
        lambda: Normal(1, -1),
        lambda: Lognormal(1, -1),
    ],
)
def test_out_of_range(make):
    with pytest.raises(ValueError, match="must be"):
        make()
