"""Certificates: Theorem 3.1 by hand, and what a sample can and cannot show."""

import math

import numpy as np
import pytest

from phalanx.weighting import certify, mwp


def by_hand(X: list[int], U: int, alpha: float, delta: float) -> float:
    """The left side of Equation 6, with ln(3 / delta), written down from the paper."""
    X, k = sorted(min(x, U) for x in X), len(X)
    e1 = math.sqrt(math.log(3 / delta) / (2 * k))
    first = math.ceil((1 - (alpha - e1)) * k)  # index, counted from 1
    largest = X[first - 1 :]
    e2 = U * math.sqrt(math.log(3 / delta) / (2 * (math.floor(k * (alpha - e1)) + 1)))
    e3 = U * math.sqrt(math.log(3 / delta) / (2 * k))
    return alpha * (sum(largest) / (k - first + 1) + e2) / (sum(X) / k - e3)


@pytest.mark.parametrize("seed", range(5))
def test_the_ceiling_is_equation_6(seed):
    X = np.random.default_rng(seed).lognormal(2, 1, 3000).astype(int) + 1
    certificate = certify(X.tolist(), 20, 0.2, 0.9, 0.1)
    assert certificate.ceiling == pytest.approx(by_hand(X.tolist(), 20, 0.2, 0.1), rel=1e-9)
    sample = dict(enumerate(X.clip(max=20).tolist()))
    assert certificate.estimate == pytest.approx(mwp(sample, 0.2), rel=1e-3)
    assert certify(sample, 20, 0.2, 0.9, 0.1) == certificate


def test_decides_says_how_many_would_do_and_those_do():
    X = (np.random.default_rng(0).lognormal(2, 1, 400).astype(int) + 1).tolist()
    few = certify(X, 20, 0.2, 0.5, 0.05)
    assert not few.holds
    assert few.needed is not None
    assert "samples like these would do" in few.reason
    times = math.ceil(few.needed / len(X))
    enough = certify(X * times, 20, 0.2, 0.5, 0.05)
    assert enough.holds
    assert enough.needed == len(X) * times
    assert enough.reason == f"holds: the largest share is at most {enough.ceiling:.3f}, allowed is 0.5"
    assert not certify(X * (times // 2), 20, 0.2, 0.5, 0.05).holds


def test_too_few_samples_show_nothing():
    """For alpha = 0.1 and delta = 0.05, epsilon_1 is below alpha from 205 samples on."""
    assert certify([5] * 204, 5, 0.1, 0.5).ceiling == math.inf
    assert "204 samples show nothing" in certify([5] * 204, 5, 0.1, 0.5).reason
    assert certify([5] * 206, 5, 0.1, 0.5).ceiling < math.inf


def test_a_bound_that_the_sample_itself_breaks_is_beyond_any_number():
    X = [1] * 900 + [1000] * 100
    certificate = certify(X, 1000, 0.1, 0.5)
    assert not certificate.holds
    assert certificate.needed is None
    assert certificate.estimate == pytest.approx(0.991, abs=1e-3)
    assert "choose a smaller bound" in certificate.reason


def test_a_small_population_counts_whole_clients():
    """0.1 of 15 clients are 2: a third more weight than 0.1 says."""
    X = [1] * 100_000
    assert certify(X, 1, 0.1, 0.5).estimate == pytest.approx(0.1, rel=1e-6)
    assert certify(X, 1, 0.1, 0.5, clients=15).estimate == pytest.approx(2 / 15, rel=1e-6)
    assert certify(X, 1, 0.1, 0.13).holds
    assert not certify(X, 1, 0.1, 0.13, clients=15).holds


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sample": []}, "at least one of them"),
        ({"sample": [3, 0]}, "sizes of at least 1"),
        ({"sample": [3, math.nan]}, "sizes of at least 1"),
        ({"bound": 0}, "bound must be at least 1"),
        ({"alpha": 0.0}, "alpha must be positive, got 0"),
        ({"clients": 0}, "The population must have at least 1 client, got 0"),
        ({"delta": 0.0}, r"delta must lie in \(0, 1\)"),
        ({"alpha_star": 1.0}, "alpha_star must lie in"),
    ],
)
def test_impossible_arguments(changed, message):
    arguments = {"sample": [1, 2, 3], "bound": 3, "alpha": 0.1, "alpha_star": 0.5} | changed
    with pytest.raises(ValueError, match=message):
        certify(**arguments)
