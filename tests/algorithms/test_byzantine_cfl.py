"""Algorithm 1 of Sattler et al. 2020, by hand, and by its claims."""

import math

import pytest
import torch

from phalanx.aggregators import Median
from phalanx.algorithms import ByzantineCFL
from phalanx.algorithms.byzantine_cfl import noise_floor
from phalanx.core import Verdict
from phalanx.weighting import AsDeclared
from toys import close, updates

few_parameters = pytest.mark.filterwarnings("ignore:threshold")


def begin(algorithm, m, d=2):
    return algorithm.init(torch.zeros(d), dict.fromkeys(range(m), 10))


@few_parameters
def test_the_opposite_direction_is_removed_before_it_is_averaged():
    algorithm = ByzantineCFL()
    state, ready = begin(algorithm, 3)
    assert ready == {0, 1, 2}
    state, ready = algorithm.step(state, updates([[1.0, 0.0], [-5.0, 0.0], [3.0, 0.0]]))
    assert ready == state.benign == {0, 2}
    assert close(state.model, [2.0, 0.0])
    assert state.alpha_cross == -1.0
    assert state.verdicts[1] == Verdict(False, 0.0, -1.0, "cosine cluster of 1, benign cluster has 2", final=True)
    assert state.verdicts[0].weight == 0.5
    assert state.verdicts[0].score == pytest.approx(1.0)


@few_parameters
def test_removed_clients_are_ignored_for_good():
    algorithm = ByzantineCFL()
    state, _ = begin(algorithm, 3)
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [-5.0, 0.0], [3.0, 0.0]]))
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [100.0, 0.0], [1.0, 0.0]]))
    assert close(state.model, [3.0, 0.0])
    assert state.verdicts.keys() == {0, 2}


@few_parameters
def test_no_split_at_or_above_the_threshold():
    algorithm = ByzantineCFL(threshold=0.0)
    state, _ = begin(algorithm, 3)
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert state.alpha_cross == 0.0, "equal to the threshold, not below"
    assert state.benign == {0, 1, 2}


@few_parameters
def test_one_split_a_round_or_until_stable():
    rows = [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [1.0, 0.2, 0.0], [1.0, 0.3, 0.0], [-0.1, 0.0, 1.0], [-0.1, 0.0, -1.0]]
    once, all_at_once = ByzantineCFL(), ByzantineCFL(until_stable=True)
    state, _ = begin(once, 6, 3)
    state, _ = once.step(state, updates(rows))
    assert len(state.benign) == 5
    state, _ = once.step(state, updates(rows))
    assert state.benign == {0, 1, 2, 3}
    state, _ = begin(all_at_once, 6, 3)
    state, _ = all_at_once.step(state, updates(rows))
    assert state.benign == {0, 1, 2, 3}
    assert state.alpha_cross < 0.02


@few_parameters
@pytest.mark.parametrize("until_stable", [False, True])
def test_equal_halves_are_not_separated_and_the_verdicts_say_so(until_stable):
    algorithm = ByzantineCFL(until_stable=until_stable)
    state, _ = begin(algorithm, 4)
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]))
    assert state.benign == {0, 1, 2, 3}
    assert state.verdicts[0].accepted
    assert "no majority: alpha_cross -1.000 separates 2 from 2" in state.verdicts[0].reason


@few_parameters
def test_never_leaves_half_of_the_enrolled_clients_or_fewer():
    algorithm = ByzantineCFL(until_stable=True)
    state, _ = begin(algorithm, 5, 5)
    for _ in range(5):
        state, _ = algorithm.step(state, updates(torch.eye(5).tolist()))
    assert len(state.benign) == 3


@few_parameters
def test_zero_updates_leave_and_all_zero_is_no_disagreement():
    algorithm = ByzantineCFL()
    state, _ = begin(algorithm, 4)
    after, _ = algorithm.step(state, updates([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
    assert after.benign == {0, 1, 2}
    after, _ = algorithm.step(state, updates([[0.0, 0.0]] * 4))
    assert after.benign == {0, 1, 2, 3}


@few_parameters
def test_scale_does_not_matter():
    algorithm = ByzantineCFL()
    state, _ = begin(algorithm, 3)
    for scale in (1e-20, 1.0, 1e12):
        rows = [[1.0, 0.0], [-1.0 * scale, 0.0], [3.0, 0.0]]
        assert algorithm.step(state, updates(rows))[0].benign == {0, 2}


@few_parameters
def test_a_single_client_and_a_robust_rule_inside():
    algorithm = ByzantineCFL()
    state, _ = begin(algorithm, 1)
    state, _ = algorithm.step(state, updates([[1.0, 2.0]]))
    assert (state.alpha_cross, state.model.tolist()) == (None, [1.0, 2.0])
    robust = ByzantineCFL(aggregate=Median())
    state, _ = begin(robust, 3, 1)
    state, _ = robust.step(state, updates([[1.0], [2.0], [1000.0]]))
    assert state.model.tolist() == [2.0]


@pytest.mark.parametrize("seed", range(3))
def test_removes_all_random_attackers_a_few_per_round_and_no_honest_client(seed):
    """Section 4, the Byzantine scenario: each attacker, with updates from N(0, I), is a cluster of its own."""
    d, honest, byzantine = 30_000, 14, 6
    algorithm = ByzantineCFL()
    rng = torch.Generator().manual_seed(seed)
    direction = torch.randn(d, generator=rng) / math.sqrt(d)
    state, _ = begin(algorithm, honest + byzantine, d)
    sizes = []
    for _ in range(8):
        good = direction + torch.randn(honest, d, generator=rng) / math.sqrt(d)
        rows = torch.cat([good, torch.randn(byzantine, d, generator=rng)])
        state, _ = algorithm.step(state, updates(rows.tolist()))
        sizes.append(len(state.benign))
    assert sizes[0] in (18, 19), "not all at once"
    assert sizes == sorted(sizes, reverse=True)
    assert state.benign == set(range(honest))


def test_warns_below_the_dimension_at_which_the_papers_threshold_works():
    m = 100
    with pytest.warns(UserWarning, match=r"threshold = 0.02 is not above 0.043.*Set threshold = 0.11"):
        begin(ByzantineCFL(), m, 5000)
    begin(ByzantineCFL(), m, 24_000)  # no warning: it would be an error here
    assert noise_floor(100, 234_090) == pytest.approx(0.00627, abs=1e-4)
    with pytest.warns(UserWarning, match="Take a larger model"):
        begin(ByzantineCFL(), m, 5)


@pytest.mark.parametrize("threshold", [-1.1, 1.0, 2.0])
def test_threshold_is_a_cosine(threshold):
    with pytest.raises(ValueError, match="threshold must lie in"):
        ByzantineCFL(threshold=threshold)


@few_parameters
def test_a_small_sample_removes_nobody():
    """Two of three that report are no majority of seven: they may be the attackers."""
    algorithm = ByzantineCFL()
    state, _ = begin(algorithm, 7)
    few = updates([[-1.0, 0.0], [-1.0, 0.1], [1.0, 0.0]], clients=[1, 4, 6])
    state, ready = algorithm.step(state, few)
    assert ready == set(range(7))
    assert "no majority" in state.verdicts[6].reason
    most = updates([[1.0, 0.1 * k] for k in range(4)] + [[-1.0, 0.0]], clients=[0, 2, 3, 5, 6])
    _, ready = algorithm.step(state, most)
    assert ready == set(range(6))


@pytest.mark.filterwarnings("ignore:threshold:UserWarning")
def test_those_who_stay_keep_their_own_weights():
    """Client 0 leaves; of the others, which declare 1, 2 and 5, the mean is (1 + 2 * 2 + 5 * 4) / 8."""
    algorithm = ByzantineCFL(preprocess=AsDeclared())
    state, _ = algorithm.init(torch.zeros(2), {0: 100, 1: 1, 2: 2, 3: 5})
    state, ready = algorithm.step(state, updates([[-1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0]]))
    assert set(ready) == {1, 2, 3}
    assert close(state.model, [25 / 8, 0.0])
