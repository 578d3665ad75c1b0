"""Algorithm 5 of Sattler et al. 2019, by hand, and by its claims."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch
from incongruent import Divided

from phalanx.aggregators import Krum, Median
from phalanx.algorithms import ClusteredFL, FedAvg, Relative
from phalanx.attacks import SignFlip
from phalanx.clustering import bipartition
from phalanx.core import InfeasibleError, Verdict
from phalanx.data import PermutedLabels
from phalanx.runs.schema import plain
from phalanx.weighting import AsReported, Truncate
from toys import close, updates

AT_ONCE = ClusteredFL(eps1=0.5, eps2=1.0, min_round=0)
OPPOSED = [[2.0, 0.1], [2.0, -0.1], [-2.0, 0.1], [-2.0, -0.1]]  # their mean is zero


def begin(algorithm, m, sizes=None, d=2):
    return algorithm.init(torch.zeros(d), sizes or dict.fromkeys(range(m), 10))


def once(algorithm, rows, **fields):
    state, _ = begin(algorithm, len(rows), d=len(rows[0]))
    return algorithm.step(state, updates(rows, **fields))


def test_a_split_by_hand():
    """Clients 0, 1 go right by 2, clients 2, 3 go left by 2, with a common drift of 0.3 upwards.

    The mean is (0, 0.3): its norm 0.3 is below eps1.  Each update has the norm sqrt(4.09), above eps2.  The cosine
    within a group is 1, across it is (0.09 - 4) / 4.09.
    """
    state, ready = once(AT_ONCE, [[2.0, 0.3], [2.0, 0.3], [-2.0, 0.3], [-2.0, 0.3]])
    assert ready == {0, 1, 2, 3}
    assert state.clusters == {1: (0, 1), 2: (2, 3)}
    check = state.checks[0]
    assert check.mean_norm == pytest.approx(0.3)
    assert check.max_norm == pytest.approx(math.sqrt(4.09))
    assert check.alpha_cross == pytest.approx((0.09 - 4) / 4.09)
    assert check.gap == pytest.approx(1 - (0.09 - 4) / 4.09)
    assert close(state.model, [0.0, 0.0]), "the root keeps what the updates started from"
    assert [close(AT_ONCE.download(state, i), [0.0, 0.3]) for i in range(4)] == [True] * 4, "children start averaged"
    assert state.aggregates.keys() == {1, 2}, "both go on from what the rule returned last"
    assert all(close(last, [0.0, 0.3]) for last in state.aggregates.values())
    assert state.parents == {0: None, 1: 0, 2: 0}
    assert state.born == {0: 0, 1: 1, 2: 1}
    assert state.verdicts[3].accepted
    assert state.verdicts[3].weight == 0.25
    assert state.verdicts[3].reason == (
        "cluster 0 of 4 clients; split in 2 and 2 clients, alpha_cross -0.956; now in cluster 2"
    )


def test_after_a_split_each_cluster_goes_its_own_way():
    state, _ = once(AT_ONCE, OPPOSED)
    state, _ = AT_ONCE.step(state, updates([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [0.0, 7.0]]))
    assert close(AT_ONCE.download(state, 0), [2.0, 0.0])
    assert close(AT_ONCE.download(state, 2), [0.0, 6.0])
    assert state.verdicts[1].weight == 0.5, "the share of its own cluster's average"
    assert state.verdicts[1].reason == "cluster 1 of 2 clients; not split: still moving, mean update 2, eps1 0.5"


def test_what_a_split_caches_belongs_to_the_edges_and_not_to_the_round():
    batch = updates(OPPOSED)
    state, _ = begin(AT_ONCE, 4)
    state, _ = AT_ONCE.step(state, batch)
    for leaf, rows in ((1, OPPOSED[:2]), (2, OPPOSED[2:])):
        node = state.tree.nodes[leaf]
        assert node.senders == state.clusters[leaf]
        assert close(node.updates, rows)
        assert node.updates.untyped_storage().data_ptr() != batch.deltas.untyped_storage().data_ptr()
    state, _ = once(ClusteredFL(eps1=0.5, eps2=1.0, min_round=0, cached=1), OPPOSED)
    assert [len(state.tree.nodes[leaf].senders) for leaf in (1, 2)] == [1, 1]


@pytest.mark.parametrize(
    ("options", "rows", "words"),
    [
        ({"min_round": 1}, OPPOSED, "only after round 1"),
        (
            {"eps1": 0.05},
            [[2.0, 0.1], [2.0, 0.1], [-2.0, 0.1], [-2.0, 0.1]],
            "still moving, mean update 0.1, eps1 0.05",
        ),
        ({"eps2": 3.0}, OPPOSED, "congruent, longest update 2, eps2 3"),
        ({"patience": 2}, OPPOSED, "lengths have asked for it in 1 of 2 rounds in a row"),
        ({"min_cluster_size": 5}, OPPOSED, "4 clients, min_cluster_size 5"),
        ({"min_part_size": 3}, OPPOSED, "a group would have 2 clients, min_part_size 3"),
        ({"aggregate": Krum(f=0), "eps1": 9.0}, OPPOSED, "with 2 clients, Krum.* needs at least"),
        # two pairs at right angles: alpha_cross = 0, sqrt(1/2) = 0.707
        ({"gamma_max": 0.71, "eps1": 9.0}, [[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]], "= 0.707, gamma_max 0.71"),
        # a cross: the pairs within a group are at right angles too
        ({}, [[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]], "no groups, gap 0.000, min_gap 0.3"),
    ],
)
def test_no_split_without_each_condition_and_the_verdicts_say_which(options, rows, words):
    algorithm = ClusteredFL(**{"eps1": 0.5, "eps2": 1.0, "min_round": 0, **options})
    state, _ = once(algorithm, rows)
    assert len(state.clusters) == 1
    assert re.search(words, state.verdicts[0].reason), state.verdicts[0].reason


def test_patience_counts_rounds_in_a_row():
    """Long, long, short, long, long, long: with a patience of three the last one splits, and nothing before it."""
    patient = dataclasses.replace(AT_ONCE, patience=3)
    short = [[0.2, 0.0], [0.2, 0.0], [-0.2, 0.0], [-0.2, 0.0]]
    state, _ = begin(patient, 4)
    asked, clusters = [], []
    for rows in (OPPOSED, OPPOSED, short, OPPOSED, OPPOSED, OPPOSED):
        state, _ = patient.step(state, updates(rows))
        asked.append(state.checks[0].asked)
        clusters.append(len(state.clusters))
    assert asked == [1, 2, 0, 1, 2, 3]
    assert clusters == [1, 1, 1, 1, 1, 2]
    state, _ = patient.step(state, updates(OPPOSED))
    assert {v: check.asked for v, check in state.checks.items()} == {1: 0, 2: 0}, "clusters start again"


def test_the_conditions_hold_when_left_out():
    cross = [[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0], [0.0, -2.0]]
    state, _ = once(ClusteredFL(eps1=0.5, eps2=1.0, min_round=0, min_gap=0.0), cross)
    assert len(state.clusters) == 2


def test_a_client_that_is_alone_can_be_split_off():
    state, _ = once(AT_ONCE, [[1.0, 0.0], [1.0, 0.0], [-2.0, 0.0]])
    assert state.clusters == {1: (0, 1), 2: (2,)}


def test_split_only_when_every_member_reported():
    paper = dataclasses.replace(AT_ONCE, memory=None)
    state, _ = begin(paper, 5)
    state, _ = paper.step(state, updates(OPPOSED))
    assert len(state.clusters) == 1
    assert state.verdicts[0].reason.endswith("not split: 1 of 5 clients did not report")
    assert state.similarity == {}
    state, _ = AT_ONCE.step(state, updates([*OPPOSED, [0.1, 0.0]]))
    assert len(state.clusters) == 2


def test_a_cluster_of_which_nobody_reported_stays_as_it_is():
    state, _ = once(AT_ONCE, OPPOSED)
    state, ready = AT_ONCE.step(state, updates([[1.0, 0.0]], clients=[1]))
    assert close(AT_ONCE.download(state, 0), [1.0, 0.0])
    assert close(AT_ONCE.download(state, 3), [0.0, 0.0])
    assert state.norms.keys() == {1}
    assert ready == {0, 1, 2, 3}


def test_fixed_rounds_split_one_cluster_each_the_one_that_is_farthest_apart():
    algorithm = ClusteredFL(split_rounds=(2, 3, 4))
    degrees = 30, 25, -25, -30, 145, 150, 210, 215  # right and left: 115 apart; within the left: 60; the right: 50
    rows = [[math.cos(math.radians(angle)), math.sin(math.radians(angle))] for angle in degrees]
    state, _ = once(algorithm, rows)
    assert "1 is not one of split_rounds" in state.verdicts[0].reason
    seen = []
    for _ in range(4):
        state, _ = algorithm.step(state, updates(rows))
        seen.append(sorted(state.clusters.values()))
    assert seen[0] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert seen[1] == [(0, 1, 2, 3), (4, 5), (6, 7)]
    assert seen[2] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert seen[3] == seen[2]


def test_fixed_rounds_say_who_was_not_chosen():
    algorithm = ClusteredFL(split_rounds=(1, 2), min_gap=0.0)
    rows = [[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [-1.0, 0.0], [-1.0, 0.9], [-1.0, 1.0]]
    state, _ = once(algorithm, rows)
    assert state.clusters == {1: (0, 1, 2), 2: (3, 4, 5)}
    state, _ = algorithm.step(state, updates(rows))
    assert state.clusters == {1: (0, 1, 2), 3: (3,), 4: (4, 5)}
    assert state.verdicts[0].reason.endswith("not split: cluster 2 is farther apart")


def test_relative_thresholds_follow_the_largest_median_norm():
    algorithm = ClusteredFL(eps1=Relative(0.1), eps2=Relative(0.5), min_round=0)
    state, _ = once(algorithm, [[1.0, 0.0], [3.0, 0.0], [500.0, 0.0]])
    assert state.scale == 3.0
    assert state.norms[0]["epsilon1"] == pytest.approx(0.3)
    state, _ = algorithm.step(state, updates([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))
    assert state.scale == 3.0, "never shrinks"
    assert state.norms[0]["epsilon2"] == pytest.approx(1.5)


def test_one_client_that_reports_alone_does_not_move_relative_thresholds():
    algorithm = ClusteredFL(min_round=0)
    rows = [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0], [5.0, 0.0]]
    state, _ = begin(algorithm, 5)
    state, _ = algorithm.step(state, updates([[1e6, 0.0]], clients=[4]))
    assert state.scale == 0.0, "of most nobody knows anything"
    assert len(state.clusters) == 1
    state, _ = algorithm.step(state, updates(rows))
    state, _ = algorithm.step(state, updates([[1e6, 0.0]], clients=[4]))
    assert state.scale == 3.0
    state, _ = algorithm.step(state, updates([[9.0, 0.0], [9.0, 0.0]], clients=[0, 1]))
    assert state.scale == 9.0, "9, 9 and a million are half of five"


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_the_default_does_not_depend_on_the_unit_of_updates(factor):
    algorithm = ClusteredFL(min_round=1)
    state, _ = once(algorithm, (torch.tensor(OPPOSED) * factor).tolist())
    assert len(state.clusters) == 1
    state, _ = algorithm.step(state, updates((torch.tensor(OPPOSED) * factor).tolist()))
    assert state.clusters == {1: (0, 1), 2: (2, 3)}


@pytest.mark.filterwarnings("ignore:Truncate:UserWarning")
def test_weights_are_those_of_the_preprocessor():
    sizes = {0: 1, 1: 3, 2: 4}
    reported = ClusteredFL(preprocess=AsReported())
    state, _ = begin(reported, 3, sizes, d=1)
    state, _ = reported.step(state, updates([[8.0], [0.0], [0.0]]))
    assert close(state.model, [1.0])
    assert state.norms[0]["mean"] == pytest.approx(1.0)
    truncated = ClusteredFL(preprocess=Truncate(0.1, 0.5))
    sizes = {**dict.fromkeys(range(9), 10), 9: 10**6}
    state, _ = begin(truncated, 10, sizes, d=1)
    state, _ = truncated.step(state, updates([[0.0]] * 9 + [[1.0]]))
    assert state.verdicts[9].weight <= 0.5


@pytest.mark.filterwarnings("ignore:Truncate:UserWarning")
def test_truncation_is_by_the_sizes_of_each_cluster():
    """Twelve clients in two groups; the liar's is of four.

    Of all twelve, two are to hold at most 0.45: sizes up to 45 count, and 45 of the 75 in the small group would be the
    liar's.  Of its four, one is to hold as much: 3 U* / 0.55 >= 10 ...: 45 % of 30 + U is U = 24.
    """
    sizes = {**dict.fromkeys(range(8), 10), **dict.fromkeys((8, 9, 10), 10), 11: 10**6}
    algorithm = dataclasses.replace(AT_ONCE, preprocess=Truncate.as_published(0.15, 0.45))
    rows = [[2.0, 0.0]] * 8 + [[-2.0, 0.0]] * 4
    state, _ = begin(dataclasses.replace(algorithm, eps1=3.0), 12, sizes)
    state, _ = dataclasses.replace(algorithm, eps1=3.0).step(state, updates(rows))
    assert state.clusters == {1: tuple(range(8)), 2: (8, 9, 10, 11)}
    state, _ = algorithm.step(state, updates(rows))
    assert state.verdicts[11].weight == pytest.approx(24 / 54)
    assert state.verdicts[8].weight == pytest.approx(10 / 54)


def test_a_cluster_is_not_split_where_truncation_could_not_serve_a_part():
    algorithm = dataclasses.replace(AT_ONCE, preprocess=Truncate(0.25, 0.3), aggregate=Median())
    state, _ = begin(algorithm, 4)
    state, _ = algorithm.step(state, updates(OPPOSED))
    assert state.clusters == {0: (0, 1, 2, 3)}
    assert "not split: with 2 clients, " in state.verdicts[0].reason


def test_a_cluster_of_which_too_few_report_stays_as_it_is_and_the_others_go_on():
    algorithm = ClusteredFL(split_rounds=(1,), min_gap=0.0, aggregate=Krum(f=1))
    rows = [[2.0, 0.1 * k] for k in range(5)] + [[-2.0, 0.1 * k] for k in range(5)]
    state, _ = once(algorithm, rows)
    assert state.clusters == {1: (0, 1, 2, 3, 4), 2: (5, 6, 7, 8, 9)}
    before = algorithm.download(state, 9)
    after, ready = algorithm.step(state, updates([*rows[:5], rows[9]], clients=[0, 1, 2, 3, 4, 9]))
    assert ready == set(range(10))
    assert torch.equal(algorithm.download(after, 9), before)
    assert not torch.equal(algorithm.download(after, 0), algorithm.download(state, 0))
    verdict = after.verdicts[9]
    assert (verdict.accepted, verdict.weight) == (False, 0.0)
    assert verdict.reason.startswith("cluster 2 stays as it is: Krum(f=1, neighbours='n-f-2') needs at least")
    with pytest.raises(InfeasibleError, match=r"No cluster can go on\. Of cluster 2: Krum"):
        algorithm.step(state, updates([rows[9]], clients=[9]))
    with pytest.raises(InfeasibleError, match=r"^Krum"):
        once(algorithm, rows[:2])


def test_zero_updates_and_one_client():
    state, _ = once(AT_ONCE, [[0.0, 0.0]] * 4)
    assert len(state.clusters) == 1
    state, _ = once(AT_ONCE, [[1.0, 2.0]])
    assert close(state.model, [1.0, 2.0])


def test_a_robust_rule_within_clusters():
    """Two groups of four; one attacker in the second.  Its group's median goes on undisturbed."""
    algorithm = ClusteredFL(eps1=0.5, eps2=1.0, min_round=0, aggregate=Median())
    right, left = [[2.0, 0.1 * k] for k in range(4)], [[-2.0, 0.1 * k] for k in range(4)]
    state, _ = once(algorithm, right + left)
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    before = AT_ONCE.download(state, 4)
    state, _ = algorithm.step(state, updates([*right, [-1.0, 0.0], [-1.0, 0.0], [-1.2, 0.0], [1e9, 1e9]]))
    assert close(AT_ONCE.download(state, 4) - before, [-1.0, 0.0], 0.2)


@dataclasses.dataclass(frozen=True)
class OtherwiseUnaudited(Median):
    """A median in calls that are audited; in others what it is given, or no result if that is None."""

    value: float | None = None

    def __call__(self, deltas, weights=None, **options):
        if self.value is None:
            raise InfeasibleError("no result")
        return torch.full_like(deltas[0], self.value)


def test_what_is_called_without_an_audit_moves_no_model_and_gives_no_weight():
    """The length of a mean and a trial of each part: they decide when a cluster is split, and nothing else."""

    def run(rule, **options):
        algorithm = ClusteredFL(aggregate=rule, **options)
        state, _ = begin(algorithm, 8)
        states = []
        for t in range(5):
            rows = [[2.0 if i < 4 else -2.0, 0.1 * i + 0.01 * t] for i in range(8)]
            state, _ = algorithm.step(state, updates(rows))
            states.append(state)
        return states

    def moved(states):
        models = [[node.model.tolist() for node in state.tree.nodes] for state in states]
        weights = [{i: (one.accepted, one.weight) for i, one in state.verdicts.items()} for state in states]
        return models, weights, [state.clusters for state in states]

    fixed = {"split_rounds": (2,)}
    assert len(run(Median(), **fixed)[-1].clusters) == 2
    assert moved(run(OtherwiseUnaudited(value=1e9), **fixed)) == moved(run(Median(), **fixed))

    by_length = {"eps1": 0.5, "eps2": 1.0, "min_round": 1}
    splits = [len(run(rule, **by_length)[-1].clusters) for rule in (Median(), OtherwiseUnaudited(value=1e9))]
    assert splits == [2, 1], "it decides that"
    trial = {**fixed, "memory": None}  # the length is that of the step then
    assert moved(run(OtherwiseUnaudited(), **trial)) == moved(run(Median(), split_rounds=(99,), memory=None))


def test_history_holds_all_that_figures_need():
    state, _ = once(AT_ONCE, OPPOSED)
    shown = json.loads(json.dumps(plain({name: getattr(state, name) for name in AT_ONCE.traits.observed})))
    assert shown["clusters"] == {"1": [0, 1], "2": [2, 3]}
    assert shown["parents"] == {"0": None, "1": 0, "2": 0}
    assert shown["born"] == {"0": 0, "1": 1, "2": 1}
    assert shown["norms"]["0"] == pytest.approx(
        {"mean": 0.0, "max": 2.0025, "epsilon1": 0.5, "epsilon2": 1.0}, abs=1e-4
    )
    assert shown["separation"]["0"]["parts"] == [[0, 1], [2, 3]]
    assert shown["separation"]["0"]["alpha_cross"] == pytest.approx(-0.995, abs=1e-3)
    assert shown["separation"]["0"]["gap"] == pytest.approx(1.99, abs=1e-3)
    assert shown["similarity"]["0"]["clients"] == [0, 1, 2, 3]
    assert torch.tensor(shown["similarity"]["0"]["alpha"]).shape == (4, 4)


def test_the_similarities_of_many_clients_are_shown_when_they_are_split():
    rows = [[1.0 if k < 40 else -1.0, 0.0] for k in range(80)]
    algorithm = ClusteredFL(eps1=0.5, eps2=0.5, min_round=1)
    state, _ = once(algorithm, rows)
    assert state.similarity == {}
    assert state.separation[0]["alpha_cross"] == -1.0
    state, _ = algorithm.step(state, updates(rows))
    assert len(state.similarity[0]["alpha"]) == 80


def test_the_similarities_of_very_many_clients_are_never_shown():
    rows = [[1.0 if k < 600 else -1.0, 0.0] for k in range(1200)]
    state, _ = once(ClusteredFL(eps1=0.5, eps2=0.5, min_round=0), rows)
    assert len(state.clusters) == 2
    assert state.similarity == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eps1": 0.0}, "eps1 must be positive"),
        ({"eps2": -1.0}, "eps2 must be at least 0"),
        ({"gamma_max": 1.0}, "gamma_max must lie in"),
        ({"min_gap": 2.0}, "min_gap must lie in"),
        ({"min_round": -1}, "min_round must be at least 0"),
        ({"patience": 0}, "patience must be at least 1, got"),
        ({"min_cluster_size": 1}, "min_cluster_size must be at least 2"),
        ({"min_part_size": 0}, "min_part_size must be at least 1"),
        ({"split_rounds": (0, 3)}, "split_rounds.0. must be an integer of at least 1, got 0"),
        ({"cached": 0}, "cached must be at least 1"),
    ],
)
def test_parameters_out_of_range(options, words):
    with pytest.raises(ValueError, match=words):
        ClusteredFL(**options)
    with pytest.raises(ValueError, match="share must be positive"):
        Relative(0.0)


# New clients


def test_a_new_client_goes_down_the_tree_by_one_node_a_round():
    """Four groups on a square, split right from left, then upper from lower; client 9 is at the upper left."""
    algorithm = ClusteredFL(split_rounds=(1, 2, 3))
    corners = ((2.0, 1.0), (2.0, -1.0), (-2.0, 1.0), (-2.0, -1.0))
    rows = [list(corner) for corner in corners for _ in range(2)]
    state, _ = once(algorithm, rows)
    for _ in range(2):
        state, _ = algorithm.step(state, updates(rows))
    upper_left = next(v for v, c in state.clusters.items() if c == (4, 5))
    state = algorithm.join(state, 9, 10)
    met = []
    for _ in range(2):
        assert 9 not in {i for c in state.clusters.values() for i in c}
        v = state.newcomers[9]
        met.append(v)
        assert torch.equal(algorithm.download(state, 9), state.tree.nodes[v].model)
        leaf_model = algorithm.download(state, 4)
        state, ready = algorithm.step(state, updates([*rows, [-1.9, 1.1]], clients=[*range(8), 9]))
        assert 9 in ready
        assert not state.verdicts[9].accepted
        assert close(algorithm.download(state, 4) - leaf_model, corners[2]), "it counts for nothing on its way"
    assert tuple(met) == state.tree.path(upper_left)[:2]
    assert state.newcomers == {}
    assert state.clusters[upper_left] == (4, 5, 9)
    assert state.verdicts[9].reason.startswith(f"new client joins cluster {upper_left}: cosine 0.99")
    state, _ = algorithm.step(state, updates([*rows, [-1.9, 1.1]], clients=[*range(8), 9]))
    assert state.verdicts[9].weight == pytest.approx(1 / 3)
    assert list(state.candidate_models(9)) == list(state.tree.path(upper_left))


def test_a_new_client_joins_the_only_cluster_at_once_and_weights_are_made_anew():
    algorithm = ClusteredFL(preprocess=AsReported())
    state, _ = begin(algorithm, 2)
    state = algorithm.join(state, 5, 20)
    assert state.clusters == {0: (0, 1, 5)}
    state, _ = algorithm.step(state, updates([[0.0, 0.0], [0.0, 0.0], [4.0, 0.0]], clients=[0, 1, 5]))
    assert close(state.model, [2.0, 0.0])


def test_a_new_client_without_a_direction_stays_where_it_is():
    algorithm = ClusteredFL(split_rounds=(1,))
    rows = [[2.0, 0.0], [2.0, 0.0], [-2.0, 0.0], [-2.0, 0.0]]
    state, _ = once(algorithm, rows)
    state = algorithm.join(state, 9, 10)
    state, _ = algorithm.step(state, updates([*rows, [0.0, 0.0]], clients=[0, 1, 2, 3, 9]))
    assert state.newcomers == {9: 0}
    assert state.verdicts[9] == Verdict(
        False, 0.0, None, "new client stays at cluster 0: a zero update has no direction"
    )
    state, _ = algorithm.step(state, updates([*rows, [-0.1, 0.0]], clients=[0, 1, 2, 3, 9]))
    assert state.clusters == {1: (0, 1), 2: (2, 3, 9)}


def test_a_new_client_stays_out_of_a_cluster_that_truncation_could_not_serve_with_it():
    """Of four clients one may be Byzantine and hold 0.3, by equal weights 0.25; of five it may be two, 0.4."""
    algorithm = ClusteredFL(split_rounds=(1,), preprocess=Truncate.as_published(0.25, 0.3), aggregate=Median())
    rows = [[2.0, 0.0]] * 4 + [[-2.0, 0.0]] * 4
    state, _ = once(algorithm, rows)
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    state = algorithm.join(state, 9, 10)
    state, _ = algorithm.step(state, updates([*rows, [-1.0, 0.0]], clients=[*range(8), 9]))
    assert state.newcomers == {9: 0}
    assert state.verdicts[9].reason.startswith("new client stays at cluster 0: with it in cluster 2, ")
    assert len(state.clusters[2]) == 4


def test_a_leaf_that_is_split_while_a_new_client_arrives():
    algorithm = ClusteredFL(split_rounds=(1, 2))
    rows = [[2.0, 1.0], [2.0, 1.0], [2.0, -2.0], [2.0, -2.0], [-2.0, 0.0], [-2.0, 0.0]]
    state, _ = once(algorithm, rows)
    parted = state.tree.leaf_of(0)
    state = algorithm.join(state, 9, 10)
    state, _ = algorithm.step(state, updates([*rows, [1.0, -1.0]], clients=[*range(6), 9]))
    assert state.tree.nodes[parted].children is not None
    assert state.newcomers == {9: parted}, "what it came to is a leaf no more"
    state, _ = algorithm.step(state, updates([*rows, [1.0, -1.0]], clients=[*range(6), 9]))
    assert 9 in state.clusters[state.tree.leaf_of(2)]


# Claims


@pytest.fixture(scope="module")
def permuted():
    """Twelve clients that name the digits in three ways, trained by FedAvg and by ClusteredFL."""
    federation = Divided(12, PermutedLabels(3))
    algorithms = FedAvg(), ClusteredFL(min_round=15)
    gaps = []

    def note(progress):
        check = progress.updates and progress.state.checks.get(0)
        if check:
            same = [[federation.group[i] == federation.group[j] for j in check.clients] for i in check.clients]
            gaps.append(float(check.similarity[torch.tensor(same)].min()) - check.alpha_cross)

    plain_state = federation.run(algorithms[0], until=40)
    common = federation.accuracies(algorithms[0], plain_state)
    state = federation.run(algorithms[1], until=40, observers=(note,))
    return federation, state, common, federation.accuracies(algorithms[1], state), gaps


def test_permuted_labels_stall_fedavg_and_are_found(permuted):
    """Section VI-C, Figure 8, on the digits: accuracy more than doubles once the groups are found."""
    federation, state, common, clustered, _ = permuted
    assert {frozenset(c) for c in state.clusters.values()} == federation.true_groups()
    mean = sum(common.values()) / 12
    assert mean < 0.45
    assert sum(clustered.values()) / 12 > max(2 * mean, 0.85)
    assert min(clustered.values()) > 0.8


def test_the_separation_gap_grows_before_the_split(permuted):
    """Section VI-A, Figure 6."""
    gaps = permuted[-1]
    assert gaps[-1] > 0.3
    assert gaps[-1] > gaps[0]


def test_new_clients_land_with_their_own_group(permuted):
    """Algorithm 4, on data that nobody has trained on: the test examples, as each group sees them."""
    federation, state, *_ = permuted
    for client, group in ((0, 0), (5, 1), (11, 2)):
        held, federation.data[client] = federation.data[client], federation.seen(client, federation.test)
        leaf = state.tree.assign(lambda model, client=client: federation.update(client, model))
        federation.data[client] = held
        assert {federation.group[i] for i in state.tree.nodes[leaf].clients} == {group}


def test_the_choice_by_validation_is_never_worse_than_the_root(permuted):
    federation, state, *_ = permuted
    for i in federation.data:
        models = state.candidate_models(i)
        best = state.tree.best(state.tree.leaf_of(i), lambda model, i=i: federation.accuracy(i, model))
        own = {v: federation.accuracy(i, model) for v, model in models.items()}
        assert own[best] == max(own.values()) >= own[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_congruent_clients_are_never_split(seed):
    state = Divided(12, seed=seed).run(ClusteredFL(min_round=5), until=50)
    assert len(state.clusters) == 1


@pytest.mark.slow
def test_a_robust_rule_within_clusters_withstands_an_attacker():
    """One attacker among eight clients of each group turns its updates round, ten times as long."""
    federation = Divided(16, PermutedLabels(2))
    worth = {}
    for rule in (Median(), None):
        algorithm = ClusteredFL(min_round=15, **({"aggregate": rule} if rule else {}))
        state = federation.run(algorithm, until=40, attack=SignFlip(), byzantine={3})
        own = federation.accuracies(algorithm, state)
        worth[rule] = min(own[i] for i in own if i != 3)
    assert worth[Median()] > 0.8


def test_the_optimal_bipartition_is_the_papers():
    """The groups of the first split are those of `bipartition` on the cosines, whatever else."""
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(3))
    rows -= rows.mean(0)
    algorithm = ClusteredFL(eps1=0.1, eps2=0.1, min_round=0, min_gap=0.0)
    state, _ = once(algorithm, rows.tolist())
    alpha = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=2)
    assert set(state.clusters.values()) == set(bipartition(alpha))


def test_the_defaults_on_the_page_are_those_of_the_code():
    page = Path(__file__).parents[2] / "docs" / "clustered-fl.md"
    told = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", page.read_text(), re.MULTILINE))
    defaults = {f.name: f.default for f in dataclasses.fields(ClusteredFL)}
    assert len(told) == 8
    for name, value in told.items():
        words = str(defaults[name]).replace("share=", "")
        assert words in (value, f"{value}.0"), name


def test_what_memory_costs_is_said_where_it_is_much():
    sizes, model = dict.fromkeys(range(2_000), 1), torch.zeros(10**6)
    with pytest.warns(UserWarning, match=r"each of 2000 clients: 8\.0 GB"):
        ClusteredFL().init(model, sizes)
    ClusteredFL(memory=None).init(model, sizes)  # a warning would be an error
    ClusteredFL().init(torch.zeros(10), sizes)
