import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Krum, Mean, Median
from phalanx.algorithms import FLHC
from phalanx.algorithms.flhc import distances
from phalanx.core import Verdict
from phalanx.data import PermutedLabels
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation
from phalanx.weighting import Truncate
from toys import close, updates

GROUPS = [[3.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, -3.0]]


def begin(algorithm, clients=4):
    return algorithm.init(torch.zeros(2), dict.fromkeys(range(clients), 10))[0]


def round_of(algorithm, state, rows, clients=None, version=None):
    clients = list(range(len(rows))) if clients is None else clients
    versions = (state.version if version is None else version,) * len(rows)
    return algorithm.step(state, updates(rows, clients, versions=versions))


def test_the_algorithm_by_hand():
    """One joint round, the clustering, and rounds within the clusters."""
    algorithm = FLHC(rounds=1, clusters=2)
    state, ready = round_of(algorithm, begin(algorithm), [[1.0, 1.0]] * 4)
    assert close(state.model, [1.0, 1.0])
    assert (state.clustered, ready) == (False, {0, 1, 2, 3})
    state, ready = round_of(algorithm, state, GROUPS)
    assert state.clusters == {1: (0, 1), 2: (2, 3)}
    assert close(state.models[1], [1.0 + 2.0, 1.0])
    assert close(state.models[2], [1.0, 1.0 - 2.0])
    assert close(state.model, [1.0, 1.0]), "the joint model rests"
    assert (state.parents, state.born) == ({0: None, 1: 0, 2: 0}, {0: 0, 1: 2, 2: 2})
    assert state.verdicts[0].reason == "cluster 1 of 2 clients"
    assert algorithm.download(state, 3) is state.models[2]
    assert list(algorithm.candidate_models(state, 3)) == [0, 2]
    state, ready = round_of(algorithm, state, [[1.0, 0.0], [1.0, 0.0], [0.0, 5.0], [0.0, 7.0]])
    assert close(state.models[1], [4.0, 1.0])
    assert close(state.models[2], [1.0, 5.0])
    assert ready == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("options", "clusters"),
    [
        ({"max_distance": 1.0}, {1: (0, 1, 2, 3)}),  # orthogonal: 1 minus the cosine is 1
        ({"max_distance": 0.99}, {1: (0, 1), 2: (2, 3)}),
        ({"distance": "euclidean", "max_distance": 2.0}, {1: (0,), 2: (1, 2), 3: (3,)}),
        ({"distance": "euclidean", "linkage": "single", "max_distance": 1.5}, {1: (0,), 2: (1, 2), 3: (3,)}),
        ({"distance": "manhattan", "linkage": "single", "max_distance": 1.9}, {1: (0,), 2: (1,), 3: (2,), 4: (3,)}),
        ({"distance": "euclidean", "linkage": "ward", "clusters": 3}, {1: (0,), 2: (1, 2), 3: (3,)}),
    ],
)
def test_how_far_clusters_are_apart(options, clusters):
    algorithm = FLHC(rounds=0, **options)
    state, _ = round_of(algorithm, begin(algorithm), GROUPS)
    assert state.clusters == clusters


def test_distances_by_hand():
    rows = torch.tensor([[3.0, 0.0], [0.0, -4.0], [0.0, 0.0]])
    assert distances("euclidean", rows).tolist() == [[0, 5, 3], [5, 0, 4], [3, 4, 0]]
    assert distances("manhattan", rows).tolist() == [[0, 7, 3], [7, 0, 4], [3, 4, 0]]
    assert distances("cosine", rows).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_the_joint_model_rests_until_all_have_answered_it():
    algorithm = FLHC(rounds=0, clusters=2)
    start = begin(algorithm)
    state, ready = round_of(algorithm, start, [GROUPS[0], GROUPS[2]], [0, 2])
    assert (state.clustered, ready) == (False, {1, 3})
    assert state.model is start.model
    assert state.verdicts[2] == Verdict(True, 0.0, None, "waits for the clustering, 2 of 4 clients", waits=True)
    state, ready = round_of(algorithm, state, [GROUPS[1], GROUPS[3]], [1, 3])
    assert state.clusters == {1: (0, 1), 2: (2, 3)}
    assert close(state.models[1], [2.0, 0.0]), "what waited is used as well"
    assert state.verdicts.keys() == {0, 1, 2, 3}


def test_an_answer_to_an_older_joint_model_is_asked_again():
    algorithm = FLHC(rounds=1, clusters=2)
    state, _ = round_of(algorithm, begin(algorithm), [[1.0, 1.0]] * 3, [0, 1, 2])
    state, ready = round_of(algorithm, state, GROUPS[3:], [3], version=0)
    assert not state.verdicts[3].accepted
    assert ready == {0, 1, 2, 3}


def test_a_silent_client_does_not_hold_up_the_clustering_and_finds_its_place_later():
    algorithm = FLHC(rounds=0, clusters=2, patience=2)
    state, ready = round_of(algorithm, begin(algorithm), GROUPS[:3], [0, 1, 2])
    assert (state.clustered, ready) == (False, {3})
    state, _ = algorithm.step(state, updates([GROUPS[0]], [0], versions=(0,)))
    assert state.clusters == {0: (3,), 1: (0, 1), 2: (2,)}
    assert algorithm.download(state, 3) is state.model
    state, _ = round_of(algorithm, state, [[9.0, 0.0], GROUPS[3]], [0, 3])
    assert state.clusters == {1: (0, 1), 2: (2, 3)}
    assert state.verdicts[3] == Verdict(False, 0.0, 0.0, "joins cluster 2, the nearest, at distance 0.000")
    assert close(state.models[2], GROUPS[2]), "its first answer, to the joint model, is not added"


def test_fewer_than_half_are_not_clustered():
    algorithm = FLHC(rounds=0, clusters=2, patience=1)
    state = begin(algorithm)
    for _ in range(5):
        state, _ = round_of(algorithm, state, GROUPS[:1], [0])
    assert not state.clustered
    state, _ = round_of(algorithm, state, GROUPS[2:3], [2])
    assert state.clustered


def test_who_joins_is_sent_the_joint_model_first():
    algorithm = FLHC(rounds=0, clusters=2)
    state, _ = round_of(algorithm, begin(algorithm), GROUPS)
    state = algorithm.join(state, 9, 10)
    assert algorithm.download(state, 9) is state.model
    state, ready = round_of(algorithm, state, [[2.0, -0.1]], [9])
    assert state.clusters[1] == (0, 1, 9)
    assert ready == {0, 1, 2, 3, 9}


def test_who_finds_no_weights_in_the_nearest_cluster_stays_with_the_joint_model():
    """Attackers are at most 1 of 3 clients, and 2 of 4, who would hold half of the weight."""
    algorithm = FLHC(rounds=0, clusters=2, preprocess=Truncate.as_published(0.3, 0.4))
    state, _ = round_of(algorithm, begin(algorithm, 8), GROUPS[:1] * 3 + GROUPS[2:3] * 5)
    state = algorithm.join(state, 9, 10)
    state, _ = round_of(algorithm, state, [[2.0, -0.1]], [9])
    assert state.clusters[0] == (9,)
    assert state.verdicts[9].reason.startswith("stays with the joint model: ")
    assert (state.verdicts[9].accepted, state.verdicts[9].weight) == (False, 0.0)


def test_a_rule_and_weights_within_each_cluster():
    algorithm = FLHC(rounds=0, clusters=1, aggregate=Median())
    state, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 1, 2: 5})
    assert algorithm.weights(state, [0, 2]) == {0: 1.0, 2: 5.0}
    state, _ = round_of(algorithm, state, [[1.0], [2.0], [3.0]])
    assert close(state.models[1], [3.0])


def test_clusters_that_are_too_small_for_the_rule_are_merged_on():
    """Rounds in which no cluster can go on are lost, and a run of which ten in a row are lost ends."""
    directions = [[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4 + [[-1.0, -1.0]] * 2

    def clusters(rule):
        algorithm = FLHC(rounds=0, max_distance=0.5, aggregate=rule)
        state, _ = round_of(algorithm, begin(algorithm, 10), directions)
        return sorted(map(len, state.clusters.values()))

    assert clusters(Mean()) == [2, 4, 4]
    assert clusters(Krum(f=1)) == [10], "five rows at least, and 4 + 4 would leave 2"
    assert clusters(Median()) == [2, 4, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"rounds": -1},
        {"patience": 0},
        {"distance": "hamming"},
        {"linkage": "x"},
        {"linkage": "ward"},
        {"clusters": 0},
        {"max_distance": -0.5},
    ],
)
def test_out_of_range(options, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"must|needs"):
        FLHC(**options)


@pytest.mark.slow
@pytest.mark.parametrize(("participation", "clusters"), [(1.0, None), (0.25, 4)])
def test_finds_groups_with_different_labels(participation, clusters):
    plan = Run(
        FLHC(clusters=clusters),
        clients=12,
        groups=PermutedLabels(4),
        model=MLP((64,)),
        training=LocalSGD(epochs=5),
        until=Until(60),
        evaluation=Evaluation(every=60),
        participation=participation,
    )
    record = simulate(plan)
    found = record.history[-1].state["clusters"]
    assert sorted(map(tuple, found.values())) == [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]
    assert record.summary.final.accuracy > 0.8
