"""Algorithm 1 of Sattler et al. 2020 with lines 15 to 18 together, by hand, and against attackers of the criterion."""

import math

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import BenignClusters, ClusteredFL, IfUnlike
from phalanx.algorithms.benign_clusters import nth_similarity
from phalanx.attacks import Gaussian
from phalanx.core import InfeasibleError, Setting, Updates
from phalanx.data import PermutedLabels
from phalanx.models import MLP
from phalanx.weighting import AsReported
from toys import close, updates

AT_ONCE = ClusteredFL(eps1=0.5, eps2=1.0, min_round=0)  # splits whenever the average is short and some update long
RIGHT, LEFT, UP = [2.0, 0.2, 0.0], [-2.0, 0.2, 0.0], [0.0, 0.0, 2.0]
TWO_GROUPS = [RIGHT, RIGHT, RIGHT, LEFT, LEFT, LEFT]


def small(**fields):
    return BenignClusters(**{"f": 1, "regular": AT_ONCE, "threshold": 0.5, **fields})


def begin(algorithm, m, d=3):
    with pytest.warns(UserWarning, match="attackers that send noise may stay"):
        return algorithm.init(torch.zeros(d), dict.fromkeys(range(m), 10))[0]


def test_a_client_without_peers_is_excluded_and_the_groups_are_split_in_the_same_round():
    algorithm = small()
    state = begin(algorithm, 7)
    state, ready = algorithm.step(state, updates([*TWO_GROUPS, UP]))
    assert ready == {0, 1, 2, 3, 4, 5}
    assert state.clusters == {1: (0, 1, 2), 2: (3, 4, 5)}
    assert state.excluded == {6: 1}
    assert state.verdicts[6].final
    assert state.verdicts[6].reason == "fewer than 1 peers, cosine 0.000, gap 1.000: excluded"
    assert state.verdicts[0].weight == pytest.approx(1 / 6)
    assert close(algorithm.download(state, 0), [0.0, 0.2, 0.0]), "both start from the average of the six"
    state, _ = algorithm.step(state, updates([*TWO_GROUPS, UP]))
    assert close(algorithm.download(state, 0), [2.0, 0.4, 0.0])
    assert close(algorithm.download(state, 4), [-2.0, 0.4, 0.0])
    assert 6 not in state.verdicts


def test_two_that_are_alike_are_excluded_if_there_may_be_two_attackers():
    for f, gone in ((1, set()), (2, {6, 7})):
        algorithm = small(f=f)
        state, _ = algorithm.step(begin(algorithm, 8), updates([*TWO_GROUPS, UP, UP]))
        assert state.excluded.keys() == gone


def test_nobody_is_judged_by_a_report_of_which_attackers_may_be_half():
    algorithm = small(f=2)
    state, _ = algorithm.step(begin(algorithm, 8), updates([RIGHT, RIGHT, RIGHT, UP], clients=[0, 1, 2, 6]))
    assert not state.excluded
    state, _ = algorithm.step(begin(algorithm, 8), updates([RIGHT, RIGHT, RIGHT, RIGHT, UP], clients=[0, 1, 2, 3, 6]))
    assert state.excluded.keys() == {6}


def test_one_strange_round_leaves_a_client_out_and_it_goes_on_in_the_cluster_of_its_own_kind():
    """Client 6 belongs to the right; in the round of the split it sends something else, and is compared with both."""
    algorithm = small(regular=ClusteredFL(eps1=0.5, eps2=1.0, min_round=1))
    state, _ = algorithm.step(begin(algorithm, 7), updates([*TWO_GROUPS, RIGHT]))
    before = state.model
    state, ready = algorithm.step(state, updates([*TWO_GROUPS, [0.4, 0.0, 2.0]]))
    assert 6 in ready
    assert state.clusters == {1: (0, 1, 2, 6), 2: (3, 4, 5)}
    assert close(algorithm.download(state, 6) - before, [0.0, 0.2, 0.0])
    assert not state.verdicts[6].final
    assert state.verdicts[6].weight == 0
    state, _ = algorithm.step(state, updates([*TWO_GROUPS, RIGHT]))
    assert state.verdicts[6].weight == pytest.approx(1 / 4)


def test_who_has_no_peers_in_round_after_round_is_excluded():
    algorithm = small(exclusion=IfUnlike(memory=2), regular=ClusteredFL())
    state = begin(algorithm, 7)
    for sent in (RIGHT, UP):
        state, ready = algorithm.step(state, updates([*TWO_GROUPS, sent]))
        assert 6 in ready
    state, ready = algorithm.step(state, updates([*TWO_GROUPS, UP]))
    assert 6 not in ready
    assert state.excluded == {6: 3}


def test_a_group_that_attackers_could_form_is_excluded_instead_of_split_off():
    """Client 5 has peers at a cosine of 0.6, so it is no stranger; but the rest has converged, and it has not."""
    rest = [0.05, 0.0, 0.0]
    rows = [rest] * 5 + [[1.2, 0.0, 1.6]]
    for f, gone in ((1, {5}), (2, {5})):
        algorithm = small(f=f, regular=ClusteredFL(eps1=0.5, eps2=1.0, min_round=0))
        state, ready = algorithm.step(begin(algorithm, 6), updates(rows))
        assert set(range(6)) - ready == gone
        assert state.verdicts[5].weight == pytest.approx(1 / 6), "it was in the average of this round"
        assert "excluded: a benign cluster has more than" in state.verdicts[5].reason
        assert state.clusters == {0: (0, 1, 2, 3, 4)}
    undivided = ClusteredFL(eps1=0.5, eps2=1.0, min_round=0)
    plain, _ = undivided.step(undivided.init(torch.zeros(3), dict.fromkeys(range(6), 10))[0], updates(rows))
    assert plain.clusters == {1: (0, 1, 2, 3, 4), 2: (5,)}


def test_without_strangers_it_is_clustered_federated_learning():
    algorithm, plain = small(f=2), AT_ONCE
    state, bare = begin(algorithm, 6), plain.init(torch.zeros(3), dict.fromkeys(range(6), 10))[0]
    for scale in (1.0, 0.8, 0.1):
        sent = updates([[scale * x for x in row] for row in TWO_GROUPS])
        state, bare = algorithm.step(state, sent)[0], plain.step(bare, sent)[0]
        assert state.clusters == bare.clusters
        assert all(torch.equal(algorithm.download(state, i), plain.download(bare, i)) for i in range(6))
        assert state.verdicts == bare.verdicts


def test_rule_weights_models_and_late_clients_are_those_of_the_algorithm_within():
    within = ClusteredFL(eps1=0.5, eps2=1.0, min_round=0, aggregate=Median(), preprocess=AsReported())
    algorithm = small(regular=within)
    assert algorithm.rule == Median()
    state, _ = algorithm.step(begin(algorithm, 7), updates([*TWO_GROUPS, UP]))
    assert algorithm.weights(state, [0, 6]) == {0: 10, 6: 0.0}
    assert algorithm.candidate_models(state, 0).keys() == {0, 1}
    assert algorithm.candidate_models(state, 6).keys() == {0}
    assert torch.equal(algorithm.download(state, 6), state.model)
    state = algorithm.join(state, 7, 30)
    state, ready = algorithm.step(state, updates([*TWO_GROUPS, RIGHT], clients=[0, 1, 2, 3, 4, 5, 7]))
    assert ready == {0, 1, 2, 3, 4, 5, 7}
    assert state.clusters[1] == (0, 1, 2, 7)


def test_too_few_clients_for_f_are_refused():
    with pytest.raises(InfeasibleError, match=r"2 attackers can be half of 4 clients\. Lower f"):
        BenignClusters(f=2).init(torch.zeros(50_000), dict.fromkeys(range(4), 1))
    assert "can be half" in BenignClusters(f=2).pools(Setting(10, drawn=4))[0].refused
    with pytest.raises(ValueError, match="f must be at least 1, got"):
        BenignClusters(f=0)
    with pytest.raises(ValueError, match="threshold must lie in"):
        BenignClusters(threshold=1.0)


def test_clusters_in_which_few_report_are_not_judged():
    """Two of which one is an attacker: nobody knows which."""
    algorithm = small()
    state, ready = algorithm.step(begin(algorithm, 7), updates([RIGHT, UP], clients=[0, 6]))
    assert ready == set(range(7))
    assert state.verdicts[6].accepted


def test_answers_of_excluded_clients_change_nothing():
    algorithm = small()
    state, _ = algorithm.step(begin(algorithm, 7), updates([*TWO_GROUPS, UP]))
    after, ready = algorithm.step(state, updates([UP], clients=[6]))
    assert ready == set(range(6))
    assert after.version == 2
    assert after.verdicts == {}
    assert all(torch.equal(algorithm.download(after, i), algorithm.download(state, i)) for i in range(7))


def test_nth_similarity_is_that_of_sorted_rows():
    rng = torch.Generator().manual_seed(0)
    alpha = torch.rand(6, 6, generator=rng)
    for n in range(1, 6):
        by_hand = [sorted((float(alpha[i, j]) for j in range(6) if j != i), reverse=True)[n - 1] for i in range(6)]
        assert nth_similarity(alpha, n).tolist() == pytest.approx(by_hand)


# Attackers of the criterion itself: two among two groups of seven


def noise(honest, rng):
    return torch.randn(2, honest.shape[1], generator=rng)


def twins(honest, rng):
    return torch.randn(1, honest.shape[1], generator=rng).expand(2, -1)


def bridge(honest, rng):
    """The first is similar to honest clients and to the second, which is not."""
    h = honest[:7].mean(0)
    w = torch.randn(len(h), generator=rng)
    w *= h.norm() / w.norm()
    return torch.stack([0.5 * h + 0.87 * w, -0.6 * h + 0.8 * w])


@pytest.mark.parametrize(("send", "gone"), [(noise, {0, 1}), (twins, {0, 1}), (bridge, {1})])
@pytest.mark.parametrize("seed", range(3))
def test_attackers_cannot_be_each_others_peers(send, gone, seed):
    d, rng = 20_000, torch.Generator().manual_seed(seed)
    algorithm = BenignClusters(f=2)
    state, _ = algorithm.init(torch.zeros(d), dict.fromkeys(range(16), 10))
    centres = torch.randn(2, d, generator=rng) / math.sqrt(d)
    honest = centres.repeat_interleave(7, 0) + 0.5 * torch.randn(14, d, generator=rng) / math.sqrt(d)
    sent = Updates(
        tuple(range(16)), (0,) * 16, (state.model,) * 16, torch.cat([send(honest, rng), honest]), torch.ones(16)
    )
    state, _ = algorithm.step(state, sent)
    assert state.excluded.keys() == gone


def test_two_groups_and_two_attackers_on_the_digits():
    run = Run(
        algorithm=BenignClusters(),
        clients=16,
        groups=PermutedLabels(2),
        model=MLP((64,)),
        training=LocalSGD(epochs=3),
        attack=Gaussian(std=1.0),
        byzantine=2,
        until=Until(steps=22),
    )
    history = simulate(run).history
    found = [set(members) for members in history[-1].state["clusters"].values()]
    assert found == [set(range(8)) - run.attackers(), set(range(8, 16)) - run.attackers()]
    assert history[-1].state["excluded"].keys() == run.attackers()
