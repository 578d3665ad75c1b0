"""The Separation Theorem: its bounds against gradients that do their worst, and the noise that it bears."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.clustering import (
    bipartition,
    correct,
    cross_bound,
    cross_similarity,
    guaranteed,
    intra_bound,
    intra_similarity,
    max_noise_for_correct_clustering,
    max_noise_for_split,
    noise_ratios,
    separation_gap,
    similarity_under_noise,
)
from phalanx.numerics.linalg import cosine_similarity

ROUNDING = 1e-9


def gradients(k, d, rng):
    """v_1, ..., v_k, of which positive multiples sum to zero."""
    v = rng.standard_normal((k, d)) * rng.uniform(0.1, 10, (k, 1))
    if rng.random() < 0.5:
        v[:, 2:] *= 0.01  # nearly in a plane, which is the hard case
    shares = rng.uniform(0.1, 1, k)
    v[-1] = -(shares[:-1] @ v[:-1]) / shares[-1]
    return v


def turned(v, gamma, towards):
    """v + X with |X| = gamma |v|, X orthogonal to v + X: as far in direction `towards` as such noise can turn v."""
    length = np.linalg.norm(v)
    aside = towards - (towards @ v) / length**2 * v
    aside /= np.linalg.norm(aside)
    angle = math.asin(gamma)
    return length * math.cos(angle) * (math.cos(angle) * v / length + math.sin(angle) * aside)


def noisy(v, gamma, towards, rng):
    """An empirical gradient: noise that does its worst, or a random direction."""
    if rng.random() < 0.7:
        return turned(v, gamma, towards)
    x = rng.standard_normal(len(v))
    return v + gamma * np.linalg.norm(v) / np.linalg.norm(x) * x


def drawn(k, d, highest, rng):
    """Clients of k distributions: their gradients, gammas, and groups."""
    v = gradients(k, d, rng)
    owners = np.concatenate([np.arange(k), rng.integers(k, size=rng.integers(0, 2 * k + 1))])
    gammas = highest * np.where(rng.random(len(owners)) < 0.5, 1.0, rng.random(len(owners)))
    aims = [v[rng.integers(k)] if k > 2 else rng.standard_normal(d) for _ in owners]
    aims = [aim + 1e-3 * rng.standard_normal(d) for aim in aims]
    rows = [noisy(v[i], gamma, aim, rng) for i, gamma, aim in zip(owners, gammas, aims, strict=True)]
    groups = [np.flatnonzero(owners == i).tolist() for i in range(k)]
    return torch.from_numpy(np.array(rows)), torch.from_numpy(gammas), groups


def measured(rows, groups):
    alpha = cosine_similarity(rows)
    split = bipartition(alpha)
    return alpha, split, intra_similarity(alpha, groups), cross_similarity(alpha, split)


# H


def test_h_by_hand():
    assert similarity_under_noise(0, 0) == 1
    assert similarity_under_noise(0.6, 0) == pytest.approx(0.8)
    assert similarity_under_noise(0.6, 0.8) == pytest.approx(0)
    assert similarity_under_noise(math.sqrt(0.5), math.sqrt(0.5)) == pytest.approx(0)


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_h_is_equation_20(a, b):
    expected = -a * b + math.sqrt(1 - a**2) * math.sqrt(1 - b**2)
    assert similarity_under_noise(a, b) == pytest.approx(expected, abs=1e-7)
    assert similarity_under_noise(a, b) == similarity_under_noise(b, a)


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.3), (0.9, 0.2), (0.99, 0.99)])
def test_h_is_reached(a, b):
    """Lemma 2 with equality: both turned as far as can be, in opposite directions."""
    v, aside = np.array([2.0, 0.0]), np.array([0.0, 1.0])
    rows = torch.from_numpy(np.array([turned(v, a, aside), turned(v, b, -aside)]))
    assert torch.linalg.vector_norm(rows - torch.from_numpy(v), dim=1).tolist() == pytest.approx([2 * a, 2 * b])
    assert float(cosine_similarity(rows)[0, 1]) == pytest.approx(similarity_under_noise(a, b))


# The bounds of the theorem


def test_bounds_by_hand():
    groups = [[0, 1], [2, 3]]
    gammas = torch.tensor([0.0, 0.6, 0.0, 0.0], dtype=torch.float64)
    assert intra_bound(gammas, groups) == pytest.approx(0.8)
    assert cross_bound(gammas, groups) == pytest.approx(-0.8)  # Remark 1: -H
    assert intra_bound(gammas, [[0], [1], [2], [3]]) == 1
    assert cross_bound(gammas, [[0], [1], [2], [3]]) == pytest.approx(math.cos(math.pi / 3 - math.asin(0.6)))
    assert cross_bound(torch.full((4,), 0.9), [[0], [1], [2], [3]]) == 1


@settings(deadline=None)
@given(st.data(), st.integers(2, 6))
def test_bounds_are_equations_19_and_21(data, k):
    owners = [*range(k), *data.draw(st.lists(st.integers(0, k - 1), max_size=6))]
    gammas = data.draw(st.lists(st.floats(0, 0.99), min_size=len(owners), max_size=len(owners)))
    groups = [[i for i, owner in enumerate(owners) if owner == name] for name in range(k)]
    h = {(i, j): similarity_under_noise(gammas[i], gammas[j]) for i, j in itertools.combinations(range(len(owners)), 2)}
    c, s = math.cos(math.pi / (k - 1)), math.sin(math.pi / (k - 1))
    above = [
        c * value + s * math.sqrt(max(0.0, 1 - value**2)) if value >= c else 1.0
        for (i, j), value in h.items()
        if owners[i] != owners[j]
    ]
    below = [value for (i, j), value in h.items() if owners[i] == owners[j]]
    given_noise = torch.tensor(gammas, dtype=torch.float64)
    assert cross_bound(given_noise, groups) == pytest.approx(max(above), abs=1e-7)
    assert intra_bound(given_noise, groups) == pytest.approx(min(below, default=1.0), abs=1e-7)


@pytest.mark.parametrize("k", [2, 3, 4, 7])
@pytest.mark.parametrize("d", [2, 3, 20])
@pytest.mark.parametrize("highest", [0.0, 0.1, 0.3, 0.7, 0.999])
def test_the_theorem_holds(k, d, highest):
    rng = np.random.default_rng([k, d, int(1000 * highest)])
    for _ in range(20):
        rows, gammas, groups = drawn(k, d, highest, rng)
        alpha, split, intra, cross = measured(rows, groups)
        assert intra >= intra_bound(gammas, groups) - ROUNDING
        assert cross <= cross_bound(gammas, groups) + ROUNDING
        if guaranteed(gammas, groups):
            assert separation_gap(alpha, groups) > 0
            assert correct(split, groups)


@pytest.mark.parametrize("k", [2, 3, 4, 7])
def test_split_is_correct_below_the_noise_that_is_borne(k):
    rng = np.random.default_rng(k)
    for d in (2, 3, 50):
        for _ in range(100):
            rows, gammas, groups = drawn(k, d, 0.999 * max_noise_for_correct_clustering(k), rng)
            assert guaranteed(gammas, groups)
            assert correct(bipartition(cosine_similarity(rows)), groups)


# The worst case


def fan(k, gamma, slack=1e-4):
    """k gradients, a little more than pi / (k - 1) from one to the next; each has a client turned to either side."""
    between = math.pi if k == 2 else math.pi / (k - 1) + slack
    v = [np.array([math.cos(i * between), math.sin(i * between)]) for i in range(k)]
    aside = [np.array([-y, x]) for x, y in v]
    rows = [turned(v[i], gamma, side * aside[i]) for i in range(k) for side in (1, -1)]
    return np.array(v), torch.from_numpy(np.array(rows)), [[2 * i, 2 * i + 1] for i in range(k)]


@pytest.mark.parametrize("k", [2, 3, 4, 7])
def test_the_worst_case_satisfies_the_assumptions_and_reaches_the_bounds(k):
    gamma = 0.9 * max_noise_for_correct_clustering(k)
    v, rows, groups = fan(k, gamma)
    if k > 2:  # zero is a positive combination: no half-plane holds all of them
        gaps = np.diff(np.sort(np.arctan2(v[:, 1], v[:, 0])))
        assert max(gaps.max(), 2 * math.pi - gaps.sum()) < math.pi
    gammas = torch.full((2 * k,), gamma, dtype=torch.float64)
    _, _, intra, cross = measured(rows, groups)
    assert intra == pytest.approx(intra_bound(gammas, groups))
    assert cross_bound(gammas, groups) - 2e-4 < cross <= cross_bound(gammas, groups) + ROUNDING


@pytest.mark.parametrize("k", [2, 3, 4, 7])
def test_no_more_noise_is_borne(k):
    most = max_noise_for_correct_clustering(k)
    for factor, fine in ((0.999, True), (1.001, False)):
        _, rows, groups = fan(k, factor * most, slack=1e-6)
        assert correct(bipartition(cosine_similarity(rows)), groups) is fine
        assert guaranteed(torch.full((2 * k,), factor * most, dtype=torch.float64), groups) is fine


def test_most_noise_by_hand():
    expected = {2: 0.7071067812, 3: 0.3826834324, 4: 0.2588190451}
    assert {k: max_noise_for_correct_clustering(k) for k in expected} == pytest.approx(expected)


@pytest.mark.parametrize("k", [2, 3, 5, 12])
def test_most_noise_is_where_the_bounds_meet(k):
    groups = [[2 * i, 2 * i + 1] for i in range(k)]
    gammas = torch.full((2 * k,), max_noise_for_correct_clustering(k), dtype=torch.float64)
    assert intra_bound(gammas, groups) == pytest.approx(cross_bound(gammas, groups))


# A split that was measured


@pytest.mark.parametrize(("alpha_cross", "most"), [(-1, 1), (0, math.sqrt(0.5)), (0.5, 0.5), (1, 0)])
def test_noise_for_a_split_by_hand(alpha_cross, most):
    assert max_noise_for_split(alpha_cross) == pytest.approx(most)
    if most < 1:
        assert similarity_under_noise(most, most) == pytest.approx(alpha_cross)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_a_split_with_less_noise_is_correct_for_any_k(k):
    rng, held = np.random.default_rng(k), 0
    for _ in range(300):
        rows, gammas, groups = drawn(k, 10, rng.uniform(0, 0.8), rng)
        _, split, _, cross = measured(rows, groups)
        if float(gammas.max()) < max_noise_for_split(cross):
            held += 1
            assert correct(split, groups)
    assert held > 50


# Noise from data


def test_noise_by_hand():
    updates = torch.tensor([[3.0, 1.0], [3.0, -1.0], [0.0, 5.0], [0.0, 5.0]])
    # g = (3, 0), |u - g|^2 = 1, s = 2: numerator 2 / 1 * 1, denominator 9 - 2 / 2
    assert noise_ratios(updates, [[0, 1], [2, 3]]).tolist() == pytest.approx([0.5, 0.5, 0, 0])
    order = torch.tensor([2, 0, 3, 1])
    assert noise_ratios(updates[order], [{0, 2}, {3, 1}]).tolist() == pytest.approx([0, 0.5, 0, 0.5])


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("gamma", [0.1, 0.7, 1.5])
def test_noise_is_right_on_average(n, gamma):
    """Noise as long as the gradient and longer, in many dimensions, where little is left to chance."""
    rng = np.random.default_rng([n, int(10 * gamma)])
    v, d = 3.0 * np.eye(2000)[0], 2000
    found = []
    for _ in range(10):
        noise = rng.standard_normal((n, d)) * gamma * 3 / math.sqrt(d)
        found.append(noise_ratios(torch.from_numpy(v + noise), [range(n)]).mean())
    assert float(torch.stack(found).mean()) == pytest.approx(gamma, rel=0.06)


def test_groups_that_are_mixed_look_noisy():
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert noise_ratios(rows, [[0, 1], [2, 3]]).tolist() == [0, 0, 0, 0]
    assert (noise_ratios(rows, [[0, 1, 2, 3]]) > 1).all()


def test_no_gradient_is_infinite_noise():
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert noise_ratios(rows, [[0, 1], [2, 3]]).tolist() == [math.inf] * 4


def test_noise_in_every_precision():
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)) + 1
    expected = noise_ratios(rows.double(), [[0, 1, 2], [3, 4, 5]])
    assert torch.allclose(noise_ratios(rows, [[0, 1, 2], [3, 4, 5]]), expected, rtol=1e-5)
    assert torch.allclose(noise_ratios(rows.bfloat16(), [[0, 1, 2], [3, 4, 5]]), expected, rtol=0.05)


# Refusals


@pytest.mark.parametrize("gamma", [-0.1, 1.0, 2.0, math.nan, math.inf])
def test_refuses_noise_that_the_theorem_excludes(gamma):
    with pytest.raises(ValueError, match=r"noise as a share of the gradient, must lie in \[0, 1\), got"):
        similarity_under_noise(0.1, gamma)
    for bound in (intra_bound, cross_bound, guaranteed):
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
            bound(torch.tensor([0.1, gamma]), [[0], [1]])


@pytest.mark.parametrize("k", [1, 0, -3])
def test_refuses_fewer_than_two_distributions(k):
    with pytest.raises(ValueError, match=f"two distributions or more to tell apart, got k = {k}"):
        max_noise_for_correct_clustering(k)


def test_refuses_one_group_where_two_are_compared():
    with pytest.raises(ValueError, match="two distributions or more to tell apart, got k = 1"):
        cross_bound(torch.zeros(3), [[0, 1, 2]])


def test_refuses_groups_that_do_not_fit():
    with pytest.raises(ValueError, match="hold each index from 0 to 2 once"):
        intra_bound(torch.zeros(3), [[0, 1]])
    with pytest.raises(ValueError, match=r"Each group must have at least two clients to estimate noise, got \[2\]"):
        noise_ratios(torch.ones(3, 2), [[0, 1], [2]])


@pytest.mark.parametrize("alpha_cross", [-1.1, 1.1, math.nan])
def test_refuses_what_is_no_cosine(alpha_cross):
    with pytest.raises(ValueError, match="alpha_cross must be a cosine"):
        max_noise_for_split(alpha_cross)
