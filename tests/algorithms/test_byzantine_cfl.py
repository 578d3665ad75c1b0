"""Algorithm 1 of Sattler et al. 2020, by hand, and by its claims."""

import math
import re

import pytest
import torch

from phalanx.aggregators import Median
from phalanx.algorithms import AboveNoise, AtOnce, ByzantineCFL, IfUnlike, Quorum
from phalanx.algorithms.byzantine_cfl import noise_floor
from phalanx.core import InfeasibleError, Setting, Updates, Verdict
from phalanx.weighting import AsReported
from toys import close, updates

few_parameters = pytest.mark.filterwarnings("ignore:threshold")


def begin(algorithm, m, d=2):
    return algorithm.init(torch.zeros(d), dict.fromkeys(range(m), 10))


@few_parameters
def test_the_opposite_direction_is_removed_before_it_is_averaged():
    algorithm = ByzantineCFL.as_published()
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
    algorithm = ByzantineCFL.as_published()
    state, _ = begin(algorithm, 3)
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [-5.0, 0.0], [3.0, 0.0]]))
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [100.0, 0.0], [1.0, 0.0]]))
    assert close(state.model, [3.0, 0.0])
    assert state.verdicts.keys() == {0, 2}
    assert algorithm.weights(state, [0, 1, 2]) == {0: 1.0, 1: 0.0, 2: 1.0}


@few_parameters
def test_no_split_at_or_above_the_threshold():
    algorithm = ByzantineCFL(threshold=0.0, exclusion=AtOnce())
    state, _ = begin(algorithm, 3)
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    assert state.alpha_cross == 0.0, "equal to the threshold, not below"
    assert state.benign == {0, 1, 2}


@few_parameters
def test_one_split_a_round_or_until_stable():
    rows = [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [1.0, 0.2, 0.0], [1.0, 0.3, 0.0], [-0.1, 0.0, 1.0], [-0.1, 0.0, -1.0]]
    once, all_at_once = ByzantineCFL.as_published(), ByzantineCFL(exclusion=AtOnce(), until_stable=True)
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
    algorithm = ByzantineCFL(exclusion=AtOnce(), until_stable=until_stable)
    state, _ = begin(algorithm, 4)
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]))
    assert state.benign == {0, 1, 2, 3}
    assert state.verdicts[0].accepted
    assert "no majority: alpha_cross -1.000 separates 2 from 2" in state.verdicts[0].reason


@few_parameters
def test_never_leaves_half_of_the_enrolled_clients_or_fewer():
    algorithm = ByzantineCFL(exclusion=AtOnce(), until_stable=True)
    state, _ = begin(algorithm, 5, 5)
    for _ in range(5):
        state, _ = algorithm.step(state, updates(torch.eye(5).tolist()))
    assert len(state.benign) == 3


@few_parameters
def test_zero_updates_leave_and_all_zero_is_no_disagreement():
    algorithm = ByzantineCFL.as_published()
    state, _ = begin(algorithm, 4)
    after, _ = algorithm.step(state, updates([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
    assert after.benign == {0, 1, 2}
    after, _ = algorithm.step(state, updates([[0.0, 0.0]] * 4))
    assert after.benign == {0, 1, 2, 3}


@few_parameters
def test_scale_does_not_matter():
    algorithm = ByzantineCFL.as_published()
    state, _ = begin(algorithm, 3)
    for scale in (1e-20, 1.0, 1e12):
        rows = [[1.0, 0.0], [-1.0 * scale, 0.0], [3.0, 0.0]]
        assert algorithm.step(state, updates(rows))[0].benign == {0, 2}


@few_parameters
def test_a_single_client_and_a_robust_rule_inside():
    algorithm = ByzantineCFL.as_published()
    state, _ = begin(algorithm, 1)
    state, _ = algorithm.step(state, updates([[1.0, 2.0]]))
    assert (state.alpha_cross, state.model.tolist()) == (None, [1.0, 2.0])
    robust = ByzantineCFL(exclusion=AtOnce(), aggregate=Median())
    state, _ = begin(robust, 3, 1)
    state, _ = robust.step(state, updates([[1.0], [2.0], [1000.0]]))
    assert state.model.tolist() == [2.0]


@pytest.mark.parametrize("seed", range(3))
def test_removes_all_random_attackers_a_few_per_round_and_no_honest_client(seed):
    """Section 4, the Byzantine scenario: each attacker, with updates from N(0, I), is a cluster of its own."""
    d, honest, byzantine = 30_000, 14, 6
    algorithm = ByzantineCFL.as_published()
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
        begin(ByzantineCFL.as_published(), m, 5000)
    begin(ByzantineCFL.as_published(), m, 24_000)  # no warning: it would be an error here
    assert noise_floor(100, 234_090) == pytest.approx(0.00627, abs=1e-4)
    assert noise_floor(2, 50) == noise_floor(1, 50) == pytest.approx((2 * 0.693147 / 50) ** 0.5)
    with pytest.warns(UserWarning, match="Take a larger model"):
        begin(ByzantineCFL.as_published(), m, 5)


@pytest.mark.parametrize("threshold", [-1.1, 1.0, 2.0])
def test_threshold_is_a_cosine(threshold):
    with pytest.raises(ValueError, match="threshold must lie in"):
        ByzantineCFL(threshold=threshold)


@pytest.mark.parametrize(("m", "fine"), [(3, False), (4, True), (7, True)])
def test_rounds_without_a_majority_are_refused_beforehand(m, fine):
    (pool,) = ByzantineCFL.as_published().pools(Setting(7, drawn=m))
    assert (pool.refused == "") is fine
    if fine:
        return
    assert re.search(r"a round of 3 of 7 can show no such majority: .* Have more than half", pool.refused)
    with pytest.raises(InfeasibleError, match=r"k = 3 is too small: ByzantineCFL excludes nobody unless"):
        begin(Quorum(ByzantineCFL.as_published(), k=m), 7)


@few_parameters
def test_a_small_sample_removes_nobody():
    """Two of three that report are no majority of seven: they may be the attackers."""
    algorithm = ByzantineCFL.as_published()
    state, _ = begin(algorithm, 7)
    few = updates([[-1.0, 0.0], [-1.0, 0.1], [1.0, 0.0]], clients=[1, 4, 6])
    state, ready = algorithm.step(state, few)
    assert ready == set(range(7))
    assert "no majority" in state.verdicts[6].reason
    alike, _ = algorithm.step(state, updates([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2]], clients=[1, 4, 6]))
    told = "nobody can be excluded: 3 of 7 enrolled clients reported, no majority"
    assert {verdict.reason for verdict in alike.verdicts.values()} == {told}
    most = updates([[1.0, 0.1 * k] for k in range(4)] + [[-1.0, 0.0]], clients=[0, 2, 3, 5, 6])
    _, ready = algorithm.step(state, most)
    assert ready == set(range(6))


@pytest.mark.filterwarnings("ignore:threshold:UserWarning")
def test_those_who_stay_keep_their_own_weights():
    """Client 0 leaves; of the others, which report 1, 2 and 5, the mean is (1 + 2 * 2 + 5 * 4) / 8."""
    algorithm = ByzantineCFL(exclusion=AtOnce(), preprocess=AsReported())
    state, _ = algorithm.init(torch.zeros(2), {0: 100, 1: 1, 2: 2, 3: 5})
    state, ready = algorithm.step(state, updates([[-1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0]]))
    assert set(ready) == {1, 2, 3}
    assert close(state.model, [25 / 8, 0.0])


# Clients that are tested again, and clients that come late

GOOD, BAD = [1.0, 0.0], [-1.0, 0.0]


def rounds(algorithm, state, *batches):
    """The state, and who is ready, after each of some rounds in which only those report who were ready."""
    ready, out = set(state.benign), []
    for rows in batches:
        sent = updates([rows[i] for i in sorted(ready)], clients=sorted(ready))
        state, ready = algorithm.step(state, sent)
        out.append((state, set(ready)))
    return out


@few_parameters
def test_a_removed_client_is_asked_again_and_comes_back_if_it_is_similar():
    """Removed in round 1, asked after two more, and tested in round 4: what it sends then counts for nothing."""
    algorithm = ByzantineCFL(exclusion=AtOnce(), retest_after=2)
    state, _ = begin(algorithm, 3)
    good = [GOOD, [9.0, 0.0], GOOD]
    found = rounds(algorithm, state, [GOOD, BAD, GOOD], good, good, good, good)
    assert [ready for _, ready in found] == [{0, 2}, {0, 2}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}]
    tested, after = found[3][0], found[4][0]
    assert tested.verdicts[1] == Verdict(
        False, 0.0, 1.0, "tested again: cosine 1.000 to the closest benign client, takes part from the next round on"
    )
    assert [s.model[0].item() for s, _ in found] == pytest.approx([1, 2, 3, 4, 4 + 11 / 3])
    assert after.verdicts[1].accepted
    assert after.removed == {}


@few_parameters
def test_who_is_still_dissimilar_stays_removed_and_is_asked_after_as_many_rounds():
    algorithm = ByzantineCFL(exclusion=AtOnce(), retest_after=1)
    state, _ = begin(algorithm, 3)
    bad = [GOOD, BAD, GOOD]
    found = rounds(algorithm, state, bad, bad, bad, bad)
    assert [1 in ready for _, ready in found] == [False, True, False, True]
    assert [s.removed for s, _ in found] == [{1: 1}, {1: 1}, {1: 3}, {1: 3}]
    told = found[2][0].verdicts[1]
    assert told.final
    assert told.reason == "tested again: cosine -1.000 to the closest benign client, stays excluded"
    assert found[3][0].model[0] == 4.0, "an update that is tested is not averaged"


@few_parameters
def test_without_a_benign_client_nothing_is_learned_or_tested():
    algorithm = ByzantineCFL(exclusion=AtOnce(), retest_after=1)
    state, _ = begin(algorithm, 3)
    state, ready = rounds(algorithm, state, [GOOD, BAD, GOOD], [GOOD, BAD, GOOD])[-1]
    assert ready == {0, 1, 2}
    after, ready = algorithm.step(state, updates([GOOD], clients=[1]))
    assert (after.version, after.model.tolist(), ready) == (3, state.model.tolist(), {0, 1, 2})
    assert after.verdicts[1].reason == "not tested: no benign client reported"


@few_parameters
def test_a_late_client_takes_part_at_once_and_is_compared_before_it_is_averaged():
    algorithm = ByzantineCFL(exclusion=AtOnce(), preprocess=AsReported())
    state, _ = begin(algorithm, 3)
    state = algorithm.join(algorithm.join(state, 7, 10), 8, 30)
    assert state.benign == {0, 1, 2, 7, 8}
    state, ready = algorithm.step(state, updates([GOOD, GOOD, GOOD, BAD, GOOD], clients=[0, 1, 2, 7, 8]))
    assert ready == {0, 1, 2, 8}
    assert [state.verdicts[i].weight for i in (0, 8)] == pytest.approx([1 / 6, 1 / 2])


@few_parameters
def test_those_who_come_late_count_for_the_majority():
    """Two of four agree after one has come: they are no majority any more."""
    algorithm = ByzantineCFL.as_published()
    state, _ = begin(algorithm, 3)
    state = algorithm.join(state, 3, 10)
    state, ready = algorithm.step(state, updates([GOOD, GOOD, BAD, BAD]))
    assert ready == {0, 1, 2, 3}


def test_a_threshold_above_what_chance_makes():
    m, d = 100, 5000
    algorithm = ByzantineCFL(threshold=AboveNoise(margin=0.05, factor=3.0), exclusion=AtOnce())
    state, _ = begin(algorithm, m, d)  # no warning: it would be an error here
    assert state.threshold == pytest.approx(0.05 + 3 * math.sqrt(2 * math.log(m) / d))
    late = algorithm.join(state, m, 10)
    assert late.threshold == pytest.approx(0.05 + 3 * math.sqrt(2 * math.log(m + 1) / d))
    with pytest.raises(InfeasibleError, match="no threshold below 1"):
        begin(algorithm, m, 50)


def test_noise_leaves_a_small_model_with_the_threshold_for_its_dimension_only():
    """5,000 parameters: noise is as similar as the paper's constant allows, and not as the other one does."""
    d, honest, byzantine = 5_000, 14, 6
    rng = torch.Generator().manual_seed(0)
    direction = torch.randn(d, generator=rng)
    rows = torch.cat([direction + torch.randn(honest, d, generator=rng), torch.randn(byzantine, d, generator=rng)])
    state, _ = begin(ByzantineCFL(threshold=AboveNoise(), exclusion=AtOnce(), until_stable=True), 20, d)
    state, _ = ByzantineCFL(threshold=AboveNoise(), exclusion=AtOnce(), until_stable=True).step(
        state, updates(rows.tolist())
    )
    assert state.benign == set(range(honest))


@pytest.mark.parametrize("wrong", [{"margin": -0.1}, {"margin": 1.0}, {"factor": 0.5}, {"factor": math.inf}])
def test_above_noise_says_what_it_takes(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must"):
        AboveNoise(**wrong)


def test_retest_after_is_at_least_a_round():
    with pytest.raises(ValueError, match="retest_after must be at least 1, got"):
        ByzantineCFL(exclusion=AtOnce(), retest_after=0)


# Who of the separated is excluded

CAREFUL = IfUnlike(gap=0.4, memory=2, deficit=0.2)
ALIKE = [[1.0, 0.1, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.1], [1.0, 0.1, 0.1]]
ELSEWHERE = [0.0, 0.0, -1.0]


def careful(m=5, d=3, **fields):
    algorithm = ByzantineCFL(exclusion=CAREFUL, **fields)
    return algorithm, begin(algorithm, m, d)[0]


@few_parameters
def test_the_papers_form_excludes_at_once():
    algorithm = ByzantineCFL.as_published()
    state, _ = begin(algorithm, 5, 3)
    state, _ = algorithm.step(state, updates([*ALIKE, ALIKE[0]]))
    state, ready = algorithm.step(state, updates([*ALIKE, ELSEWHERE]))
    assert ready == {0, 1, 2, 3}
    assert state.deficits == {}


@few_parameters
def test_one_strange_round_leaves_a_client_out_of_the_average_and_nothing_else():
    """Client 4 was like the others; in round 2 its cosines are 0, 0, -0.0995 and -0.0990."""
    algorithm, state = careful()
    state, _ = algorithm.step(state, updates([*ALIKE, ALIKE[0]]))
    before = state.model
    state, ready = algorithm.step(state, updates([*ALIKE, ELSEWHERE]))
    assert ready == state.benign == {0, 1, 2, 3, 4}
    assert close(state.model - before, [1.0, 0.05, 0.05])
    told = state.verdicts[4]
    assert (told.accepted, told.weight, told.final, told.score) == (False, 0.0, False, 0.0)
    assert told.reason.endswith("deficit 0.000 before: left out of this round")
    state, _ = algorithm.step(state, updates([*ALIKE, ALIKE[0]]))
    assert state.verdicts[4].weight == pytest.approx(0.2)


@few_parameters
def test_who_goes_on_like_that_is_excluded_once_its_deficit_was_large_enough():
    """Deficits of client 4: 0, then nearly 1 in each round: (0 + 1) / 2 is above 0.2, 0 / 1 is not."""
    algorithm, state = careful()
    state, _ = algorithm.step(state, updates([*ALIKE, ALIKE[1]]))
    state, ready = algorithm.step(state, updates([*ALIKE, ELSEWHERE]))
    assert 4 in ready
    # Its typical cosine is -0.0990, the lower one of the middle two; that of the median client, 0, is 1 / 1.01.
    assert state.deficits[4] == pytest.approx((0.0, 1 / 1.01 + 0.1 / math.sqrt(1.02)))
    state, ready = algorithm.step(state, updates([*ALIKE, ELSEWHERE]))
    assert ready == {0, 1, 2, 3}
    assert state.removed == {4: 3}
    assert state.verdicts[4].final


@few_parameters
def test_in_its_first_round_the_gap_alone_decides():
    algorithm, state = careful()
    state, ready = algorithm.step(state, updates([*ALIKE, ELSEWHERE]))
    assert ready == {0, 1, 2, 3}
    assert state.verdicts[4].reason == "cosine cluster of 1, alpha_cross 0.000, gap 0.995, first round: excluded"
    algorithm, state = careful()
    scattered = [[1.0, 0.0, 0.0], [0.3, 1.0, 0.0], [0.3, 0.0, 1.0], [0.3, 0.0, -1.0], [-0.1, -1.0, 0.0]]
    state, ready = algorithm.step(state, updates(scattered))
    assert ready == {0, 1, 2, 3, 4}, "the others are no closer to each other than 0.287"
    assert "gap" in state.verdicts[4].reason
    assert not state.verdicts[4].final


@few_parameters
def test_nobody_is_left_out_where_half_of_the_enrolled_clients_would_remain():
    """Four of six report; without the strange one three are left, which are no majority of six, but one of five."""
    for enrolled, left_out in ((5, True), (6, False)):
        algorithm, state = careful(enrolled)
        state, ready = algorithm.step(state, updates([*ALIKE[1:], ELSEWHERE]))
        assert (state.verdicts[3].weight == 0) is left_out
        assert ready == state.benign == set(range(enrolled)) - ({3} if left_out else set())


@few_parameters
def test_a_late_client_that_is_strange_is_excluded_and_one_that_stayed_away_is_remembered():
    algorithm, state = careful()
    state, _ = algorithm.step(state, updates([*ALIKE, ALIKE[0]]))
    state = algorithm.join(state, 5, 10)
    state, ready = algorithm.step(state, updates([*ALIKE, ELSEWHERE], clients=[0, 1, 2, 3, 5]))
    assert ready == {0, 1, 2, 3, 4}
    assert len(state.deficits[4]) == 1
    state, ready = algorithm.step(state, updates([*ALIKE, ELSEWHERE]))
    assert 4 in ready, "it was like the others when it reported"


def test_clients_that_send_noise_only_stay_all_of_them():
    """What is left late in training; the paper's form removes four of ten."""
    m, d, rng = 10, 30_000, torch.Generator().manual_seed(0)
    found = {}
    for exclusion in (AtOnce(), IfUnlike()):
        algorithm = ByzantineCFL(exclusion=exclusion)
        state, _ = begin(algorithm, m, d)
        for _ in range(6):
            rows = torch.randn(m, d, generator=rng)
            state, _ = algorithm.step(state, updates(rows.tolist()).of(state.benign))
        found[type(exclusion)] = len(state.benign)
    assert found == {AtOnce: 6, IfUnlike: 10}


def around(direction, count, noise, rng):
    d = len(direction)
    return direction + noise * torch.randn(count, d, generator=rng) / math.sqrt(d)


def federation(exclusion, send, *, m=10, f=3, turns=12, d=24_000, noise=0.5, seed=0):
    """The last state after `turns` rounds in which attackers 0 to f - 1 send what `send(turn, honest, rng)` returns."""
    rng = torch.Generator().manual_seed(seed)
    algorithm = ByzantineCFL(exclusion=exclusion)
    state, _ = begin(algorithm, m, d)
    direction = torch.randn(d, generator=rng) / math.sqrt(d)
    for turn in range(turns):
        honest = around(direction, m - f, noise(turn) if callable(noise) else noise, rng)
        sent = Updates(
            tuple(range(m)),
            (turn,) * m,
            (state.model,) * m,
            torch.cat([send(turn, honest, rng), honest]),
            torch.ones(m),
        )
        state, _ = algorithm.step(state, sent.of(state.benign))
    return state


def noise_attack(turn, honest, rng):
    return torch.randn(3, honest.shape[1], generator=rng)


def flip_with_twins(turn, honest, rng):
    return -honest.mean(0).expand(3, -1)


def imitator(turn, honest, rng):
    """One sends an honest client's update, the others noise."""
    return torch.cat([honest[:1], torch.randn(2, honest.shape[1], generator=rng)])


def bridge(turn, honest, rng):
    """One lies between honest clients and two that push against them."""
    h = honest.mean(0) / honest.mean(0).norm()
    w = torch.randn(len(h), generator=rng)
    w = w - (w @ h) * h
    w /= w.norm()
    against = 5 * (-0.6 * h + 0.8 * w)
    return torch.stack([0.5 * h + 0.87 * w, against, against])


@pytest.mark.parametrize(
    ("send", "gone"),
    [(noise_attack, {0, 1, 2}), (flip_with_twins, {0, 1, 2}), (imitator, {1, 2}), (bridge, {1, 2})],
)
@pytest.mark.parametrize("seed", range(2))
def test_attackers_cannot_keep_each_other(send, gone, seed):
    state = federation(IfUnlike(), send, turns=1, seed=seed)
    assert state.removed == dict.fromkeys(gone, 1)


def test_a_bridge_keeps_attackers_in_the_papers_form():
    assert federation(AtOnce(), bridge, turns=5).removed == {}


def test_a_sleeper_has_no_weight_from_its_first_attack_on_and_is_excluded_soon():
    def sleeper(turn, honest, rng):
        rows = around(honest.mean(0), 3, 0.5, rng)
        return rows if turn < 10 else -5 * rows

    at = {turns: federation(IfUnlike(), sleeper, turns=turns) for turns in (10, 11, 20)}
    assert at[10].removed == at[11].removed == {}
    assert all(at[11].verdicts[i].weight == 0 for i in range(3))
    assert at[20].removed.keys() == {0, 1, 2}


@pytest.mark.parametrize("seed", range(3))
def test_attackers_who_copy_honest_clients_get_nobody_excluded(seed):
    """Four of ten make all but two honest clients look close to somebody, while honest cosines decay to 1 / 50."""

    def copies(turn, honest, rng):
        return honest[:4].clone()

    state = federation(IfUnlike(), copies, f=4, turns=25, noise=lambda turn: 0.5 if turn < 5 else 7.0, seed=seed)
    assert state.removed == {}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"gap": 0.0}, "gap must"),
        ({"deficit": 2.0}, "deficit must"),
        ({"memory": 0}, "memory must be at least 1, got"),
    ],
)
def test_if_unlike_says_what_it_takes(wrong, told):
    with pytest.raises(ValueError, match=told):
        IfUnlike(**wrong)
