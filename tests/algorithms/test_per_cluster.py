"""An algorithm of its own in every cluster."""

import dataclasses
import statistics
from pathlib import Path

import pytest
import torch

from phalanx import Run, simulate
from phalanx.aggregators import Krum, Median
from phalanx.algorithms import (
    RFFL,
    SCAFFOLD,
    AFLGuard,
    AsyncMomentum,
    AsyncRFFL,
    Catalyst,
    FedAsync,
    FedAvg,
    PerCluster,
    Quorum,
)
from phalanx.algorithms.byzantine_cfl import ByzantineCFL
from phalanx.cli.configuration import Draft
from phalanx.core import InfeasibleError, Setting, Until
from phalanx.data import PermutedLabels
from phalanx.fairness import received_accuracy
from phalanx.models import MLP
from phalanx.simulation import Lognormal
from phalanx.training import Evaluation, LocalSGD
from phalanx.weighting import Truncate
from toys import updates

EXAMPLE = Path(__file__).parents[2] / "examples" / "everything.yaml"
GROUPS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]  # the directions in which two groups go
N = 8  # clients, half of them in each


def begin(algorithm, n=N):
    return algorithm.init(torch.zeros(3), {i: 10 + i for i in range(n)})


def sent(state, clients, algorithm, rows=None):
    """Updates of these clients as the engine would have them, from what they were sent now."""
    rows = [GROUPS[i >= N // 2] for i in clients] if rows is None else rows
    bases = tuple(algorithm.download(state, i) for i in clients)
    return updates(rows, clients, versions=(state.version,) * len(clients), bases=bases)


def rounds(algorithm, count, clients=range(N)):
    state, ready = begin(algorithm)
    for _ in range(count):
        state, ready = algorithm.step(state, sent(state, list(clients), algorithm))
    return state, ready


TWO = PerCluster(FedAvg(), min_turns=2, min_part_size=2)


def test_two_groups_are_split_when_each_has_sent_enough_and_go_on_by_themselves():
    state, ready = rounds(TWO, 1)
    assert state.clusters == {0: tuple(range(8))}
    assert state.separation[0]["decision"] == "not split: 1 update of each client, min_turns 2"
    assert state.separation[0]["gap"] == pytest.approx(1.0)
    state, ready = TWO.step(state, sent(state, range(8), TWO))
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    assert (state.parents, state.born) == ({0: None, 1: 0, 2: 0}, {0: 0, 1: 2, 2: 2})
    assert ready == set(range(8))
    assert all("now in cluster" in verdict.reason for verdict in state.verdicts.values())
    middle = TWO.download(state, 0)
    assert torch.equal(middle, TWO.download(state, 7)), "both begin at their parent's model"
    state, _ = TWO.step(state, sent(state, range(8), TWO))
    assert torch.allclose(TWO.download(state, 0), middle + torch.tensor([1.0, 0, 0]))
    assert torch.allclose(TWO.download(state, 7), middle + torch.tensor([0.0, 1, 0]))
    assert torch.equal(state.model, middle), "the root's is kept, for those who come"


def test_versions_count_rounds_whatever_happens_in_how_many_clusters():
    """A round in which a cluster is split, and one in which two clusters step, are one version each."""
    state, _ = begin(TWO)
    for version in range(1, 6):
        state, _ = TWO.step(state, sent(state, range(8), TWO))
        assert state.version == version
        assert len(state.clusters) == (1 if version == 1 else 2)


@pytest.mark.parametrize("groups", [3, 4])
def test_several_groups_of_four_are_found_in_each_seed(groups):
    """The gap of two parts alone does not show them: one part holds two groups or more."""
    for seed in range(5):
        run = Run(
            algorithm=PerCluster(FedAvg(Median())), clients=4 * groups, groups=PermutedLabels(groups), model=MLP((64,)),
            training=LocalSGD(epochs=3), until=Until(40), evaluation=Evaluation(every=40), seed=seed,
        )  # fmt: skip
        found = {frozenset(members) for members in simulate(run).history[-1].state["clusters"].values()}
        of = PermutedLabels(groups).of(run.clients)
        assert found == {frozenset(i for i in range(run.clients) if of[i] == g) for g in range(groups)}, seed


def test_clients_of_one_group_stay_together():
    algorithm = dataclasses.replace(TWO, min_turns=1)
    state, _ = begin(algorithm)
    rng = torch.Generator().manual_seed(0)
    for _ in range(5):
        rows = (torch.tensor(GROUPS[0]) + 0.3 * torch.randn(N, 3, generator=rng)).tolist()
        state, _ = algorithm.step(state, sent(state, range(8), algorithm, rows))
    assert state.clusters == {0: tuple(range(8))}
    assert state.separation[0]["decision"].startswith("not split: no")


@pytest.mark.parametrize("inner", [FedAvg(), Catalyst(f=1), RFFL(), AsyncRFFL(), Quorum(FedAvg(), k=3)], ids=str)
def test_without_a_split_it_is_the_algorithm_within_to_the_bit(inner):
    plan = Run(algorithm=inner, clients=8, latency=Lognormal(), until=Until(24), evaluation=Evaluation(every=8))
    alone = simulate(plan)
    within = simulate(dataclasses.replace(plan, algorithm=PerCluster(inner, min_gap=1.99)))
    for a, b in zip(alone.history, within.history, strict=True):
        assert a.verdicts == b.verdicts
        assert (a.metrics and a.metrics.loss) == (b.metrics and b.metrics.loss)


def test_a_group_that_the_algorithm_cannot_serve_is_not_split_off():
    algorithm = PerCluster(FedAvg(aggregate=Krum(f=1)), min_turns=1, min_part_size=2)
    state, _ = rounds(PerCluster(Catalyst(f=2), min_turns=1, min_part_size=2), 3)
    assert state.clusters == {0: tuple(range(8))}
    assert "with 4 clients, Catalyst needs at least 2f + 1 = 5 clients" in state.separation[0]["decision"]
    assert algorithm.min_gap == 0.3


def test_a_group_that_the_rule_cannot_combine_is_not_split_off():
    """Its rounds would be lost from then on, and a run of which all are lost ends."""
    algorithm = PerCluster(FedAvg(Krum(f=1)), min_turns=2, min_part_size=2)
    assert rounds(algorithm, 3, range(8))[0].clusters == {0: tuple(range(8))}
    decision = rounds(algorithm, 3, range(8))[0].separation[0]["decision"]
    assert decision.startswith("not split: with 4 clients, Krum(f=1")
    assert "needs at least 2f + 3 = 5 rows, got 4" in decision


def test_a_fast_client_does_not_hasten_a_split():
    algorithm = PerCluster(FedAsync(), min_turns=2, min_part_size=2)
    state, _ = begin(algorithm)
    for i in [0, 4, *[1] * 30]:
        state, _ = algorithm.step(state, sent(state, [i], algorithm))
    assert not state.separation, "nobody has looked yet"
    for i in [2, 3, 5, 6, 7, 0, 2, 4, 5, 6]:
        state, _ = algorithm.step(state, sent(state, [i], algorithm))
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}, "six of eight have sent two"


def test_the_steps_in_which_a_late_answer_is_recognised_are_bounded(monkeypatch):
    monkeypatch.setattr("phalanx.algorithms.per_cluster.OLDEST", 3)
    algorithm = PerCluster(FedAsync(), min_turns=99)
    state, _ = begin(algorithm)
    for i in range(5):
        state, _ = algorithm.step(state, sent(state, [i], algorithm))
    assert state.trained[0].advanced == (3, 4, 5)


def test_who_stays_away_prevents_no_split_and_goes_down_the_tree_later():
    """A quarter never reports until the others have been split; then each finds its group by its own update."""
    state, _ = rounds(TWO, 2, clients=[0, 1, 2, 4, 5, 6])
    assert state.clusters == {1: (0, 1, 2), 2: (4, 5, 6)}
    assert state.newcomers == {3: 0, 7: 0}
    assert torch.equal(TWO.download(state, 3), state.model)
    state, ready = TWO.step(state, sent(state, range(8), TWO))
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    assert state.verdicts[3].weight == 0
    assert "new client goes to cluster 1: cosine 1.000" in state.verdicts[3].reason
    assert ready == set(range(8))


def test_more_than_the_rest_who_stay_away_do():
    state, _ = rounds(TWO, 5, clients=[0, 1, 4, 5, 6])
    assert state.clusters == {0: tuple(range(8))}


def test_nobody_is_left_behind_where_clients_cannot_be_taken_in_later():
    algorithm = PerCluster(RFFL(), min_turns=2, min_part_size=2)
    state, _ = rounds(algorithm, 3, clients=[0, 1, 2, 4, 5, 6])
    assert state.clusters == {0: tuple(range(8))}
    assert "nothing came of 2 clients yet, and RFFL cannot take in clients later" in state.separation[0]["decision"]


def test_an_update_from_before_the_split_is_not_used():
    algorithm = PerCluster(FedAsync(), min_turns=1, min_part_size=2)
    state, _ = begin(algorithm)
    old = sent(state, [7], algorithm)
    for i in range(7):
        state, _ = algorithm.step(state, sent(state, [i], algorithm))
    assert 7 in state.newcomers or 7 in state.clusters[2]
    state, ready = algorithm.step(state, sent(state, [6], algorithm))
    state, ready = algorithm.step(state, dataclasses.replace(old, clients=(6,)))
    assert state.verdicts[6].reason == "was trained before cluster 2 was split off"
    assert (state.verdicts[6].accepted, ready) == (False, {6})


def test_an_answer_is_judged_beside_those_of_its_cluster_and_version():
    """A step of cluster 1 makes no answer of cluster 2 late."""
    algorithm = PerCluster(Catalyst(f=0, quorum=2), min_turns=1, min_part_size=2)
    state, _ = begin(algorithm)
    for i in range(8):
        state, _ = algorithm.step(state, sent(state, [i], algorithm))
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    of_two = sent(state, [4], algorithm), sent(state, [5], algorithm)
    for i in (0, 1):
        state, _ = algorithm.step(state, sent(state, [i], algorithm))
    assert state.verdicts[1].weight > 0
    state, ready = algorithm.step(state, of_two[0])
    assert (state.verdicts[4].reason, ready) == ("waits for a quorum, 1 of 2", set())
    state, ready = algorithm.step(state, of_two[1])
    assert (ready, state.verdicts[5].weight) == ({4, 5}, 0.5)


def test_a_late_answer_is_as_late_as_its_own_cluster_has_gone_on():
    algorithm = PerCluster(Catalyst(f=0, quorum=2), min_turns=1, min_part_size=2)
    state, _ = begin(algorithm)
    for i in range(8):
        state, _ = algorithm.step(state, sent(state, [i], algorithm))
    late = sent(state, [6], algorithm)
    for i in (0, 1, 0, 1, 0, 1, 4, 5):  # three steps of cluster 1, one of cluster 2
        state, _ = algorithm.step(state, sent(state, [i], algorithm))
    state, _ = algorithm.step(state, late)
    assert state.verdicts[6].reason == "1 version late, waits for the next step"


def test_who_waits_for_a_quorum_is_asked_again_after_a_split():
    algorithm = PerCluster(Catalyst(f=1), min_turns=1, min_part_size=2)
    state, _ = begin(algorithm)
    asked = set[int]()
    for i in range(8):
        state, ready = algorithm.step(state, sent(state, [i], algorithm))
        asked |= ready
    if len(state.clusters) == 2:
        assert asked == set(range(8)) - state.idle - state.newcomers.keys() | (asked & state.newcomers.keys())
    assert not any(v.waits for v in state.verdicts.values()) or len(state.clusters) == 1


def test_truncation_is_that_of_a_cluster():
    algorithm = PerCluster(
        FedAvg(aggregate=Median(), preprocess=Truncate.as_published(0.25, 0.3)), min_turns=1, min_part_size=2
    )
    sizes = {**dict.fromkeys(range(4), 10), **dict.fromkeys(range(4, 7), 1000), 7: 10**6}
    state, _ = algorithm.init(torch.zeros(3), sizes)
    state, _ = algorithm.step(state, sent(state, range(8), algorithm))
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    weights = algorithm.weights(state, range(8))
    assert {weights[i] for i in range(4)} == {10.0}, "as large as they say: none is larger than the others"
    assert weights[7] / sum(weights[i] for i in range(4, 8)) <= 0.3


@pytest.mark.filterwarnings("ignore:threshold = 0.02")
def test_who_was_excluded_does_not_come_back_by_a_split():
    algorithm = PerCluster(ByzantineCFL(), min_turns=3, min_part_size=2)
    state, _ = begin(algorithm, n=9)
    rows = [GROUPS[0]] * 4 + [[0.9, 0.5, 0.0]] * 4 + [[-1.0, -1.0, 0.0]]
    for _ in range(4):
        clients = sorted(set(range(9)) - state.excluded)
        state, ready = algorithm.step(state, sent(state, clients, algorithm, [rows[i] for i in clients]))
        assert 8 not in ready
    assert state.excluded == {8}


def test_a_client_that_joins_finds_its_cluster():
    state, _ = rounds(TWO, 2)
    state = TWO.join(state, 8, 10)
    assert state.newcomers == {8: 0}
    state, ready = TWO.step(state, sent(state, [8], TWO, [[0.1, 1.0, 0.0]]))
    assert 8 in state.clusters[2]
    assert 8 in ready


def test_a_newcomer_gets_the_model_and_no_correction():
    algorithm = PerCluster(SCAFFOLD(), min_turns=2, min_part_size=2)
    state, _ = algorithm.init(torch.tensor([1.0, 2.0, 3.0]), dict.fromkeys(range(8), 10))
    state = state._replace(newcomers={7: 0})  # as one that waits at the root
    assert algorithm.download(state, 7).tolist() == [1.0, 2.0, 3.0, 0.0, 0.0, 0.0]


def test_a_zero_update_has_no_direction():
    state, _ = rounds(TWO, 2)
    state = TWO.join(state, 8, 10)
    state, _ = TWO.step(state, sent(state, [8], TWO, [[0.0, 0.0, 0.0]]))
    assert state.newcomers == {8: 0}
    assert 8 not in state.directions


def test_a_cluster_that_cannot_go_on_stays_as_it_is_while_others_do():
    algorithm = PerCluster(FedAvg(aggregate=Krum(f=0)), min_turns=1, min_part_size=2)
    state, _ = rounds(algorithm, 1)
    assert state.clusters == {1: (0, 1, 2, 3), 2: (4, 5, 6, 7)}
    before = algorithm.download(state, 7)
    state, ready = algorithm.step(state, sent(state, [0, 1, 2, 3, 7], algorithm))
    assert torch.equal(algorithm.download(state, 7), before)
    assert state.verdicts[7].reason.startswith("round lost: cluster 2: ")
    assert ready == set(range(8))
    with pytest.raises(InfeasibleError):
        algorithm.step(state, sent(state, [7], algorithm))


def test_the_smallest_set_is_that_of_a_smallest_cluster():
    def smallest(algorithm, **setting):
        pool = PerCluster(algorithm).pools(Setting(12, **setting))[0]
        return pool.smallest, pool.name

    assert smallest(FedAvg()) == (3, "cluster")
    assert smallest(FedAvg(), drawn=9) == smallest(FedAvg(), lossy=True) == (1, "cluster")
    assert smallest(Catalyst(2)) == (5, "quorum"), "no cluster is smaller"
    assert smallest(AsyncMomentum()) == (2, "cluster"), "more than half of three"


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(ValueError, match=r"min_gap must lie in \(0, 2\).*; min_reported must lie in"):
        PerCluster(FedAvg(), min_gap=0.0, min_reported=0.5)
    with pytest.raises(ValueError, match="AFLGuard needs a training of the server's own"):
        PerCluster(AFLGuard(radius=1.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The clients of a quorum of 7 weigh the same")
def test_byzantine_asynchronous_clustered_weighted_and_fair_at_once():
    """The example: two groups, delays, absent and silent clients, and three who flip signs and report a million."""
    draft = Draft(Run)
    draft.load(EXAMPLE)
    record = simulate(dataclasses.replace(draft.make(Run), seed=1))
    heard = {i for step in record.history for i in step.verdicts}
    group = {i: c.group for i, c in record.summary.clients.items() if not c.byzantine and i in heard}
    clusters = [step.state for step in record.history if "clusters" in step.state][-1]["clusters"]
    assert all(len({group[i] for i in members if i in group}) == 1 for members in clusters.values())
    received = received_accuracy(record)
    for g in (0, 1):
        assert statistics.fmean(received[i] for i in group if group[i] == g) > 0.78
