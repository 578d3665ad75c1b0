from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.algorithms import AsyncFilter, Quorum
from phalanx.algorithms.async_filter import farthest
from phalanx.attacks import Rescale
from phalanx.weighting import AsReported
from rivals import accuracy
from toys import close, updates


def begin(algorithm, clients=6):
    return algorithm.init(torch.zeros(1), {i: i + 1 for i in range(clients)})[0]


def test_a_round_by_hand():
    """Mean 3.5; distances 2.5, 1.5, 0.5, 4.5: three clusters, the last is alone in the largest."""
    algorithm = AsyncFilter()
    state, ready = algorithm.step(begin(algorithm), updates([[1.0], [2.0], [3.0], [8.0]]))
    assert ready == set(range(6))
    assert close(state.averages[0].mean, [3.5])
    assert [v.score for v in state.verdicts.values()] == pytest.approx([2.5 / 9, 1.5 / 9, 0.5 / 9, 4.5 / 9])
    assert [v.accepted for v in state.verdicts.values()] == [True, True, True, False]
    assert state.verdicts[3].reason == "distance 0.5 of the sum of 4 updates of its age, among the farthest"
    assert close(state.model, [2.0])


def test_updates_are_compared_with_those_of_their_age_and_averages_move():
    algorithm = AsyncFilter()
    state, _ = algorithm.step(begin(algorithm), updates([[1.0], [1.0], [4.0]], clients=[0, 1, 2]))
    assert (state.averages[0].mean.tolist(), state.averages[0].total) == ([2.0], 3)
    assert [v.accepted for v in state.verdicts.values()] == [True, True, False]
    old = updates([[10.0], [10.0], [20.0], [9.0]], clients=[0, 3, 4, 5], versions=(1, 0, 0, 0))
    state, _ = algorithm.step(state, old)
    assert close(state.averages[0].mean, [(3 * 2 + 39) / 6])
    assert 1 not in state.averages, "one update of version 1: too few to look at"
    assert [v.accepted for v in state.verdicts.values()] == [True, True, False, True]
    assert close(state.model, [1.0 + 29 / 3])


def test_small_groups_pass_unseen():
    algorithm = AsyncFilter()
    state, _ = algorithm.step(begin(algorithm), updates([[1.0], [99.0]]))
    assert close(state.model, [50.0])
    assert not state.averages


def test_old_averages_are_forgotten():
    algorithm = AsyncFilter(window=2)
    state = begin(algorithm)
    for t in range(4):
        state, _ = algorithm.step(state, updates([[1.0], [2.0], [3.0]], versions=(t,) * 3))
    assert sorted(state.averages) == [2, 3]


def test_weights_are_those_of_the_clients_that_are_kept():
    algorithm = AsyncFilter(preprocess=AsReported())
    state, _ = algorithm.step(begin(algorithm), updates([[1.0], [2.0], [9.0]]))
    assert close(state.model, [(1 * 1 + 2 * 2) / 3])


def by_brute_force(numbers):
    """The best three clusters among all assignments, by the sum of squares."""

    def cost(labels):
        groups = [[x for x, at in zip(numbers, labels, strict=True) if at == k] for k in set(labels)]
        return sum(sum((x - sum(g) / len(g)) ** 2 for x in g) for g in groups)

    return min(cost(labels) for labels in product(range(3), repeat=len(numbers)) if len(set(labels)) == 3)


@settings(deadline=None)
@given(st.lists(st.integers(0, 20).map(float), min_size=3, max_size=7))
def test_the_farthest_are_a_cluster_of_the_best_three(numbers):
    far = farthest(numbers)
    if len(set(numbers)) == 1:
        assert not far
        return
    assert 0 < len(far) < len(numbers)
    high, low = [numbers[i] for i in far], [x for i, x in enumerate(numbers) if i not in far]
    assert min(high) > max(low)
    if len(set(numbers)) >= 3:

        def spread(group):
            return sum((x - sum(group) / len(group)) ** 2 for x in group)

        two = min(spread(sorted(low)[:k]) + spread(sorted(low)[k:]) for k in range(1, len(low)))
        assert spread(high) + two == pytest.approx(by_brute_force(numbers), abs=1e-9)


@pytest.mark.parametrize(
    ("numbers", "far"), [([1.0, 1.0, 1.0], set()), ([0.0, 5.0, 5.0], {1, 2}), ([1.0, 2.0, 2.1, 9.0, 9.2], {3, 4})]
)
def test_the_farthest_by_hand(numbers, far):
    assert farthest(numbers) == far


def test_equal_updates_are_all_used():
    algorithm = AsyncFilter()
    state, _ = algorithm.step(begin(algorithm), updates([[2.0]] * 4))
    assert close(state.model, [2.0])


@pytest.mark.parametrize("options", [{"window": 0}, {"server_lr": 0.0}])
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must be"):
        AsyncFilter(**options)


@pytest.mark.slow
def test_in_a_quorum_it_learns_and_falls_to_attackers_in_small_groups():
    """Of ten arrivals of several ages, attackers in groups of one or two pass unseen."""
    assert accuracy(Quorum(AsyncFilter(), 10)) > 0.7
    assert accuracy(Quorum(AsyncFilter(), 10), Rescale(-10.0)) < 0.3
