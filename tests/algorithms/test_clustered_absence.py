"""ClusteredFL where clients are absent, late or hostile: by hand, by its properties, and on the digits."""

import dataclasses
import random

import pytest
import torch
from test_clustered_fl import AT_ONCE, OPPOSED, begin

from phalanx.aggregators import Krum, Mean, Median
from phalanx.algorithms import ClusteredFL, Quorum
from phalanx.attacks import ALIE, Gaussian, LabelShift, MinMax, ReportSize, SignFlip, Together
from phalanx.clustering import Memory, Peel
from phalanx.core import InfeasibleError, Until
from phalanx.data import PermutedLabels
from phalanx.models import MLP
from phalanx.runs.plan import Run
from phalanx.runs.session import simulate
from phalanx.simulation import Deadline, Lognormal, Silent
from phalanx.training.sgd import LocalSGD
from phalanx.weighting import Truncate
from toys import close, updates

SOME = dataclasses.replace(AT_ONCE, memory=None, min_reported=0.8)


def stepped(algorithm, state, rows, clients=None):
    return algorithm.step(state, updates(rows, clients=clients))[0]


# Whoever reported is split


def test_four_of_five_are_split_and_the_fifth_goes_down_the_tree_when_it_comes_back():
    state, _ = begin(SOME, 5)
    state = stepped(SOME, state, OPPOSED)
    assert state.clusters == {1: (0, 1), 2: (2, 3)}
    assert state.newcomers == {4: 0}
    assert torch.equal(SOME.download(state, 4), state.model), "it trains what the others' updates started from"
    assert state.verdicts[0].reason == (
        "cluster 0, 4 of 5 clients reported; split in 2 and 2 clients, alpha_cross -0.995; 1 client to follow; "
        "now in cluster 1"
    )
    state = stepped(SOME, state, [[1.0, 0.0]] * 4)
    assert state.newcomers == {4: 0}
    state = stepped(SOME, state, [*OPPOSED, [-1.9, 0.0]])
    assert state.clusters == {1: (0, 1), 2: (2, 3, 4)}
    assert state.verdicts[4].reason.startswith("new client joins cluster 2: cosine 0.99")


def test_nobody_is_to_follow_where_those_who_left_are_remembered():
    """Client 3 has left after one round of silence, and its update is remembered and split off with that of 2."""
    algorithm = dataclasses.replace(AT_ONCE, min_round=1, leave_after=1, memory=Memory(rounds=5))
    state, _ = begin(algorithm, 4)
    state = stepped(algorithm, state, OPPOSED)
    state = stepped(algorithm, state, OPPOSED[:3], [0, 1, 2])
    assert state.verdicts[0].reason.endswith("split in 2 and 2 clients, alpha_cross -0.995; now in cluster 1")


def test_fewer_than_the_share_are_not_split_and_the_verdicts_say_how_many_there_were():
    state, _ = begin(SOME, 6)
    state = stepped(SOME, state, OPPOSED)
    assert state.clusters == {0: (0, 1, 2, 3, 4, 5)}
    assert state.verdicts[0].reason == (
        "cluster 0, 4 of 6 clients reported; not split: 2 of 6 clients did not report, min_reported 0.8"
    )
    assert (state.checks[0].reported, state.checks[0].covered, state.checks[0].present) == (4, 4, 6)


@pytest.mark.parametrize(("share", "clients", "enough"), [(0.8, 5, True), (0.8, 6, False), (2 / 3, 6, True)])
def test_the_share_is_exact_at_its_border(share, clients, enough):
    algorithm = dataclasses.replace(AT_ONCE, memory=None, min_reported=share)
    state, _ = begin(algorithm, clients)
    assert (len(stepped(algorithm, state, OPPOSED).clusters) == 2) == enough


def test_who_left_is_not_waited_for_and_returns_by_algorithm_4():
    """Client 4 reports in round 1 only.  After three rounds without it the others are split; it comes back to 0."""
    algorithm = dataclasses.replace(AT_ONCE, memory=None, leave_after=3)
    state, _ = begin(algorithm, 5)
    state = stepped(algorithm, state, [[0.1, 0.0]] * 5)
    assert state.heard == dict.fromkeys(range(5), 1)
    seen = []
    for _ in range(3):
        state = stepped(algorithm, state, OPPOSED)
        seen.append((len(state.clusters), state.checks[0].present))
    assert seen == [(1, 5), (1, 5), (2, 4)]
    assert state.newcomers == {4: 0}
    state = stepped(algorithm, state, [[3.0, 0.0]], [4])
    assert state.clusters == {1: (0, 1, 4), 2: (2, 3)}


def test_who_left_does_not_hold_the_scale_down():
    """Two of five report, with updates of length 2; once the others have left, the median is that of the two."""
    algorithm = ClusteredFL(leave_after=2, memory=None)
    state, _ = begin(algorithm, 5)
    state = stepped(algorithm, state, OPPOSED[:2])
    assert state.scale == 0.0
    state = stepped(algorithm, state, OPPOSED[:2])
    assert state.scale == pytest.approx(4.01**0.5)


# Remembered updates


def test_clients_that_never_report_together_are_split():
    """Clients 0 and 2 report in odd rounds, 1 and 3 in even ones."""
    algorithm = dataclasses.replace(AT_ONCE, memory=Memory())
    state, _ = begin(algorithm, 4)
    state = stepped(algorithm, state, [OPPOSED[0], OPPOSED[2]], [0, 2])
    assert state.verdicts[0].reason.endswith("not split: updates of 2 of 4 clients remembered")
    state = stepped(algorithm, state, [OPPOSED[1], OPPOSED[3]], [1, 3])
    assert state.clusters == {1: (0, 1), 2: (2, 3)}
    assert state.memory == {}, "what was sent before a cluster was formed is not remembered of it"
    assert state.tree.nodes[1].senders == (0, 1)
    assert close(state.tree.nodes[1].updates, OPPOSED[:2])


def test_the_norms_are_those_of_all_that_is_remembered():
    """In the second round only the right reports, so that the step is long; over all four the mean is zero."""
    algorithm = dataclasses.replace(AT_ONCE, memory=Memory(reuse=0), min_round=9)
    state, _ = begin(algorithm, 4)
    state = stepped(algorithm, state, OPPOSED)
    state = stepped(algorithm, state, OPPOSED[:2], [0, 1])
    assert close(state.model, [2.0, 0.0])
    assert state.norms[0]["mean"] == pytest.approx(0.0)
    assert state.checks[0].clients == (0, 1, 2, 3)


def test_recent_updates_of_absent_clients_count_in_the_step():
    algorithm = dataclasses.replace(AT_ONCE, memory=Memory(reuse=1), min_round=9)
    state, _ = begin(algorithm, 4)
    state = stepped(algorithm, state, OPPOSED)
    state = stepped(algorithm, state, OPPOSED[:2], [0, 1])
    assert close(state.model, [0.0, 0.0]), "the left counts once more"
    assert {i: v.weight for i, v in state.verdicts.items()} == {0: 0.25, 1: 0.25}
    assert state.verdicts[0].reason.startswith(
        "cluster 0, 2 of 4 clients reported, averaged with 2 remembered updates; not split: only after round 9"
    )
    state = stepped(algorithm, state, OPPOSED[:2], [0, 1])
    assert close(state.model, [2.0, 0.0]), "and then no more"
    assert "remembered update" not in state.verdicts[0].reason


@pytest.mark.parametrize(("reuse", "rest", "mean"), [(0, 1 / 3, 1 / 6), (1, 0.0, 0.0)])
def test_a_cluster_comes_to_rest_where_all_are_content_not_where_those_are_that_report_often(reuse, rest, mean):
    """Optima at +1 and -1, two clients each; of the left one client reports in even rounds, the other in odd ones.

    With one left to two right in each round, the mean of the round is short at +1/3.
    """
    algorithm = ClusteredFL(memory=Memory(reuse=reuse), min_round=10**6)
    state, _ = begin(algorithm, 4, d=1)
    for t in range(60):
        optima = {0: 1.0, 1: 1.0, 2 + t % 2: -1.0}
        state = stepped(algorithm, state, [[0.5 * (x - float(state.model))] for x in optima.values()], [*optima])
    assert float(state.model) == pytest.approx(rest, abs=0.01)
    assert state.checks[0].mean_norm == pytest.approx(mean, abs=0.01)


def test_who_reports_now_and_then_moves_a_cluster_no_farther_than_who_always_does():
    """Four clients are content; the fifth sends the same update whenever it reports."""
    algorithm = ClusteredFL(memory=Memory(), min_round=10**6)
    ends = {}
    for every in (1, 2, 3, 4, 6, 12):
        state, _ = begin(algorithm, 5)
        for t in range(12):
            clients = [0, 1, 2, 3, 4] if t % every == 0 else [0, 1, 2, 3]
            state = stepped(algorithm, state, [[0.0, 0.0]] * 4 + [[1.0, 0.0]] * (len(clients) - 4), clients)
        ends[every] = float(state.model[0])
    assert ends[1] == pytest.approx(12 / 5)
    assert all(end <= ends[1] + 1e-6 for end in ends.values())


def test_attackers_who_come_when_few_others_do_meet_what_these_sent_before():
    """Two of five attack, and one other client reports with them: of the round alone they have the median."""
    ends = {}
    for reuse in (0, 2):
        algorithm = ClusteredFL(memory=Memory(reuse=reuse), min_round=10**6, aggregate=Median())
        state, _ = begin(algorithm, 5)
        state = stepped(algorithm, state, [[1.0, 0.0], [1.1, 0.0], [1.2, 0.0], [-9.0, 0.0], [-9.0, 0.0]])
        state = stepped(algorithm, state, [[1.0, 0.0], [-9.0, 0.0], [-9.0, 0.0]], [0, 3, 4])
        ends[reuse] = float(state.model[0])
    assert ends[0] < -7
    assert ends[2] == pytest.approx(2.0)


def test_memory_forgets_and_no_longer_waits():
    algorithm = dataclasses.replace(AT_ONCE, memory=Memory(rounds=2))
    state, _ = begin(algorithm, 5)
    state = stepped(algorithm, state, [[1.0, 0.0]], [4])
    state = stepped(algorithm, state, OPPOSED)
    assert len(state.clusters) == 2
    assert 4 in state.clusters[1], "it is remembered"
    algorithm = dataclasses.replace(AT_ONCE, memory=Memory(rounds=2), min_round=2)
    state, _ = begin(algorithm, 5)
    state = stepped(algorithm, state, [[1.0, 0.0]], [4])
    state = stepped(algorithm, state, OPPOSED)
    state = stepped(algorithm, state, OPPOSED)
    assert state.newcomers == {4: 0}, "after two rounds of silence it has left"


def test_memory_is_one_vector_a_client():
    algorithm = ClusteredFL(memory=Memory(rate=0.5))
    state, _ = begin(algorithm, 3, d=7)
    for _ in range(4):
        state = stepped(algorithm, state, torch.ones(3, 7).tolist())
    assert sum(e.update.untyped_storage().nbytes() for e in state.memory.values()) == 3 * 7 * 4


# Odd groups


def right_and_left(*others):
    return [*[[2.0, 0.1 * k, 0.0] for k in range(4)], *[[-2.0, 0.1 * k, 0.0] for k in range(4)], *map(list, others)]


PEELED = ClusteredFL(eps1=0.5, eps2=1.0, min_round=0, memory=None, peel=Peel(at_most=1, rounds=2))


def test_an_odd_update_hides_the_groups_and_is_peeled_off():
    """At right angles to both groups its cosine, zero, is the largest one across: no split without peeling."""
    rows = right_and_left((0.0, 0.0, 90.0))
    plain = dataclasses.replace(PEELED, peel=None, aggregate=Median())
    state, _ = begin(plain, 9, d=3)
    state = stepped(plain, state, rows)
    assert len({v for v, c in state.clusters.items() if set(c) - {8}}) == 1, "the groups stay together"

    waiting = dataclasses.replace(PEELED, min_round=5)
    state, _ = begin(waiting, 9, d=3)
    state = stepped(waiting, state, rows)
    verdict = state.verdicts[8]
    assert (verdict.accepted, verdict.weight, verdict.score) == (False, 0.0, pytest.approx(90.0))
    assert verdict.reason.startswith("filtered: odd, closest cosine 0.000 to the others is below 0.4")
    assert close(state.model, [0.0, 0.15, 0.0]), "it is not in the average"
    assert state.clusters == {0: tuple(range(9))}
    state = stepped(waiting, state, rows)
    assert state.clusters == {1: tuple(range(8)), 2: (8,)}
    assert state.isolated == {2}
    assert "peeled off 1 client, odd in 2 rounds" in state.verdicts[0].reason
    for _ in range(4):
        state = stepped(waiting, state, rows)
    assert sorted(state.clusters.values()) == [(0, 1, 2, 3), (4, 5, 6, 7), (8,)]


def test_nobody_is_peeled_off_in_a_round_of_which_too_few_report():
    algorithm, rows = dataclasses.replace(PEELED, min_round=5), right_and_left((0.0, 0.0, 90.0))
    state, _ = begin(algorithm, 9, d=3)
    state = stepped(algorithm, state, rows)
    state = stepped(algorithm, state, rows[1:], clients=[*range(1, 9)])
    assert (state.clusters, state.odd) == ({0: tuple(range(9))}, {8: 2})
    state = stepped(algorithm, state, rows)
    assert state.clusters == {1: tuple(range(8)), 2: (8,)}


def test_a_split_before_an_odd_client_is_peeled_leaves_it_to_algorithm_4():
    state, _ = begin(PEELED, 9, d=3)
    state = stepped(PEELED, state, right_and_left((0.0, 0.0, 90.0)))
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    assert state.newcomers == {8: 0}


def test_who_is_odd_now_and_then_is_filtered_then_and_stays():
    algorithm = dataclasses.replace(PEELED, min_round=99)
    state, _ = begin(algorithm, 9, d=3)
    weights = []
    for last in ((0.0, 0.0, 1.0), (2.0, 0.0, 0.0)) * 3:
        state = stepped(algorithm, state, right_and_left(last))
        weights.append(state.verdicts[8].weight > 0)
    assert weights == [False, True] * 3
    assert state.clusters == {0: tuple(range(9))}


def test_one_long_update_forces_no_split():
    """Eight congruent clients that have come to rest, and one whose update points their way and is a thousand long."""
    rows = [[0.2, 0.01 * k, 0.0] for k in range(8)]
    rows = [row if k % 2 else [-x for x in row] for k, row in enumerate(rows)]  # at rest: short, and in two directions
    long = [1000.0, 0.0, 0.0]
    paper = ClusteredFL(eps1=0.5, eps2=1.0, min_round=0, aggregate=Median())
    state, _ = begin(paper, 9, d=3)
    assert len(stepped(paper, state, [*rows, long]).clusters) == 2
    robust = dataclasses.replace(paper, peel=Peel(at_most=1))
    state, _ = begin(robust, 9, d=3)
    state = stepped(robust, state, [*rows, long])
    assert len(state.clusters) == 1
    assert "congruent, longest update 0.2" in state.verdicts[0].reason


def test_an_isolated_cluster_that_the_rule_cannot_serve_stays_as_it_is():
    algorithm = dataclasses.replace(PEELED, aggregate=Krum(f=1), min_round=99, preprocess=Truncate(0.1, 0.3))
    state, _ = begin(algorithm, 9, d=3)
    rows = right_and_left((0.0, 0.0, 9.0))
    for _ in range(3):
        state = stepped(algorithm, state, rows)
    assert state.clusters[2] == (8,)
    assert state.verdicts[8].reason.startswith("cluster 2 stays as it is: ")
    before = algorithm.download(state, 8)
    state = stepped(algorithm, state, [rows[8]], [8])
    assert torch.equal(algorithm.download(state, 8), before)
    assert algorithm.weights(state, range(9))[8] == 0.0
    assert algorithm.weights(state, range(9))[0] > 0.0


def test_a_round_of_odd_updates_only_moves_nothing():
    truncated = Truncate(0.1, 0.3)
    algorithm = dataclasses.replace(PEELED, memory=Memory(), min_round=99, aggregate=Median(), preprocess=truncated)
    state, _ = begin(algorithm, 9, d=3)
    state = stepped(algorithm, state, right_and_left((0.0, 0.0, 9.0)))
    after = stepped(algorithm, state, [[0.0, 0.0, 9.0]], [8])
    assert torch.equal(after.model, state.model)
    assert not after.verdicts[8].accepted


# Properties, on quadratic losses: each client's optimum is that of its group, and its updates are noisy


class Quadratic:
    """Clients with optima; attackers send what `forge` makes of their honest update."""

    def __init__(self, algorithm, groups, each, seed=0, attackers=(), forge=None, d=40):
        rng = torch.Generator().manual_seed(seed)
        self.algorithm, self.rng, self.forge, self.attackers = algorithm, rng, forge, frozenset(attackers)
        self.group = {i: i // each for i in range(groups * each)}
        self.optima = torch.randn(groups, d, generator=rng)
        self.state, _ = algorithm.init(torch.zeros(d), dict.fromkeys(self.group, 10))

    def round(self, clients):
        clients = sorted(clients)
        bases = [self.algorithm.download(self.state, i) for i in clients]
        rows = []
        for i, base in zip(clients, bases, strict=True):
            delta = 0.5 * (self.optima[self.group[i]] - base) + 0.2 * torch.randn(len(base), generator=self.rng) / 6
            rows.append(self.forge(delta, self.rng) if self.forge and i in self.attackers else delta)
        versions, losses = (self.state.version,) * len(clients), torch.ones(len(clients))
        batch = updates(torch.stack(rows).tolist(), clients, versions=versions, bases=tuple(bases), losses=losses)
        self.state, _ = self.algorithm.step(self.state, batch)

    def honest_groups(self):
        members = {frozenset(c) - self.attackers for c in self.state.clusters.values()}
        return {c for c in members if c}

    def true_groups(self):
        groups = {frozenset(i for i in self.group if self.group[i] == g) - self.attackers for g in self.group.values()}
        return {c for c in groups if c}

    def worst(self):
        """The largest distance of an honest client's model from its optimum."""
        honest = self.group.keys() - self.attackers
        return max(float((self.algorithm.download(self.state, i) - self.optima[self.group[i]]).norm()) for i in honest)


PRESENT = ClusteredFL(min_round=5, min_reported=0.75, aggregate=Median(), memory=None)


@pytest.mark.parametrize("share", [0.8, 0.9])
@pytest.mark.parametrize("memory", [None, Memory(), Memory(rate=0.5)], ids=str)
def test_groups_are_found_though_some_are_always_absent(share, memory):
    federation = Quadratic(dataclasses.replace(PRESENT, memory=memory), 3, 6)
    draw = random.Random(0)
    for _ in range(60):
        federation.round(draw.sample(range(18), round(share * 18)))
    assert federation.honest_groups() == federation.true_groups()
    assert federation.worst() < 0.5


def test_groups_are_found_where_a_round_is_a_fifth():
    algorithm = ClusteredFL(memory=Memory(rate=0.5), min_round=5, min_reported=0.9)
    federation = Quadratic(algorithm, 4, 10)
    draw = random.Random(1)
    for _ in range(150):
        federation.round(draw.sample(range(40), 8))
    assert federation.honest_groups() == federation.true_groups()


STAY_AWAY = {
    "never": lambda t: False,
    "not in rounds in which a split is due": lambda t: t <= 5,
    "every third round": lambda t: t % 3 == 0,
    "every other round": lambda t: t % 2 == 0,
    "only late": lambda t: t > 20,
    "always": lambda t: True,
}


@pytest.mark.parametrize("memory", [None, pytest.param(Memory(rounds=10), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("habit", STAY_AWAY)
def test_attackers_who_stay_away_gain_nothing(habit, memory):
    """Three of eighteen, one in each group, flip signs, and come when they please: the others' groups are exact.

    And no honest client's model ends farther from its optimum than noise and a median of six explain.
    """
    peel = Peel(at_most=2)
    algorithm = dataclasses.replace(PRESENT, memory=memory, peel=peel)
    federation = Quadratic(algorithm, 3, 6, attackers={0, 6, 12}, forge=lambda delta, _: -3.0 * delta)
    for t in range(1, 61):
        away = frozenset() if STAY_AWAY[habit](t) else federation.attackers
        federation.round(federation.group.keys() - away)
    assert federation.honest_groups() == federation.true_groups()
    assert federation.worst() < 0.5


def test_one_client_that_stays_away_denies_the_paper_s_splits_and_not_these():
    paper = Quadratic(dataclasses.replace(PRESENT, min_reported=1.0), 3, 6)
    some = Quadratic(PRESENT, 3, 6)
    left = Quadratic(dataclasses.replace(PRESENT, min_reported=1.0, leave_after=10), 3, 6)
    for _ in range(60):
        for federation in (paper, some, left):
            federation.round(range(1, 18))
    assert len(paper.state.clusters) == 1
    for federation in (some, left):
        assert federation.honest_groups() == {c - {0} for c in federation.true_groups()}


@pytest.mark.parametrize("seed", range(3))
def test_numbers_of_clients_do_not_matter(seed):
    """The same updates under other numbers give the same groups, models and filtered clients."""
    algorithm = ClusteredFL(
        eps1=5.0, eps2=0.1, min_round=2, min_reported=0.6, memory=Memory(rate=0.5), peel=Peel(2), min_gap=0.1
    )
    rng = torch.Generator().manual_seed(seed)
    centre = torch.randn(3, 12, generator=rng).repeat_interleave(5, 0)
    order = torch.randperm(15, generator=rng).tolist()
    one, other = begin(algorithm, 15, d=12)[0], begin(algorithm, 15, d=12)[0]
    for _ in range(8):
        rows = centre + 0.3 * torch.randn(15, 12, generator=rng)
        rows[14] = torch.randn(12, generator=rng)
        there = sorted(torch.randperm(15, generator=rng)[:10].tolist())
        one = stepped(algorithm, one, rows[there].tolist(), there)
        renamed = sorted((order[i], i) for i in there)
        other = stepped(algorithm, other, rows[[i for _, i in renamed]].tolist(), [name for name, _ in renamed])
    assert {frozenset(order[i] for i in c) for c in one.clusters.values()} == set(
        map(frozenset, other.clusters.values())
    )
    assert len(one.clusters) > 1
    assert {order[i] for i in one.newcomers} == other.newcomers.keys()
    for i in range(15):
        assert close(algorithm.download(one, i), algorithm.download(other, order[i]).tolist(), 1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_reported": 0.0}, "min_reported must lie in"),
        ({"min_reported": 1.5}, "min_reported must lie in"),
        ({"leave_after": 0}, "leave_after must be at least 1"),
        ({"compare": "norms"}, "compare"),
    ],
)
def test_options_out_of_range(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        ClusteredFL(**options)


def test_no_cluster_that_can_go_on_is_still_an_error():
    algorithm = ClusteredFL(aggregate=Krum(f=1), peel=Peel(1))
    state, _ = begin(algorithm, 9, d=3)
    with pytest.raises(InfeasibleError, match=r"^Krum"):
        stepped(algorithm, state, [[1.0, 0.0, 0.0]], [0])


# The settings of docs/clustered-fl.md

DIGITS = Run(
    clients=12,
    groups=PermutedLabels(),
    model=MLP((32,)),
    training=LocalSGD(epochs=3),
    until=Until(steps=30),
    algorithm=ClusteredFL(min_reported=0.75),
)
FULL = 77.6  # per cent, seed 0, everybody reports


def end(plan):
    """The accuracy, in per cent, and the last state."""
    states = []
    record = simulate(plan, observers=(lambda progress: states.append(progress.state),))
    return 100 * record.summary.final.accuracy, states[-1]


def groups_of(plan):
    number = plan.groups.of(plan.clients)
    return {frozenset(i for i in range(plan.clients) if number[i] == g) for g in set(number)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"participation": 0.9}, 0),
        (
            {
                "algorithm": Quorum(DIGITS.algorithm, k=10),
                "until": Until(steps=300),
                "latency": Lognormal(each_turn=True),
            },
            0,
        ),
        ({"availability": Silent(share=1 / 12), "deadline": Deadline(seconds=10.0)}, 1),
    ],
    ids=["participation .9", "quorum", "one silent client"],
)
def test_absent_clients_cost_little_on_the_digits(options, missing):
    plan = dataclasses.replace(DIGITS, **options)
    accuracy, state = end(plan)
    silent = set(state.newcomers)
    assert len(silent) == missing
    assert {frozenset(c) for c in state.clusters.values()} == {c - silent for c in groups_of(plan)}
    assert accuracy > FULL - 3 - missing * FULL / 12, "a client that never answers cannot be placed"


@pytest.mark.slow
def test_a_quorum_of_equally_fast_clients_is_split_in_time():
    """The seed of the latest splits: 74.4 % if everybody reports; without `reuse` two groups stay together."""
    quorum = dataclasses.replace(DIGITS, algorithm=Quorum(DIGITS.algorithm, k=10), until=Until(steps=300), seed=3)
    accuracy, state = end(quorum)
    assert {frozenset(c) for c in state.clusters.values()} == groups_of(quorum)
    assert accuracy > 74.4 - 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack",
    [
        Gaussian(),
        Together(SignFlip(), ReportSize(10**6)),
        LabelShift(),
        ALIE(z=1.5),
        MinMax(),
    ],
    ids=lambda attack: type(attack).__name__,
)
@pytest.mark.parametrize("rule", [Mean(), Median()], ids=str)
def test_attackers_are_isolated_on_the_digits(attack, rule):
    algorithm = ClusteredFL(aggregate=rule, peel=Peel(2))
    plan = dataclasses.replace(
        DIGITS, clients=16, groups=PermutedLabels(2), algorithm=algorithm, attack=attack, byzantine=2
    )
    _, state = end(plan)
    bad = plan.attackers()
    clusters = {frozenset(c) for c in state.clusters.values()}
    assert {c - bad for c in clusters if c - bad} == {c - bad for c in groups_of(plan)}
    assert all(c <= bad or not c & bad for c in clusters)
