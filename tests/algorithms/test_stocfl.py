import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg, StoCFL
from phalanx.core import Verdict
from phalanx.data import PermutedLabels
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation
from phalanx.weighting import AsReported, Ignore, Truncate
from toys import close, updates


def begin(algorithm, clients=4):
    return algorithm.init(torch.zeros(2), {i: i + 1 for i in range(clients)})[0]


def round_of(algorithm, state, rows, clients=None):
    clients = list(range(len(rows))) if clients is None else clients
    bases = tuple(algorithm.download(state, i) for i in clients)
    return algorithm.step(state, updates(rows, clients, versions=(state.version,) * len(rows), bases=bases))


def test_the_first_round_by_hand():
    """Directions right, right, up: two clusters; the anchor is every model, so that these updates train them."""
    algorithm = StoCFL(tau=0.5, pull=0.0)
    state, ready = round_of(algorithm, begin(algorithm), [[3.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    assert ready == {0, 1, 2, 3}
    assert state.clusters == {0: (0, 1), 2: (2,)}
    assert close(state.found[0].direction, [2.0, 0.0])
    assert close(state.found[0].model, [2.0, 0.0])
    assert close(state.found[2].model, [0.0, 2.0])
    assert close(state.model, [4 / 3, 2 / 3]), "the global model is the mean of all"
    assert state.verdicts[0] == Verdict(True, 0.5, None, "cluster 0 of 2 clients")
    assert algorithm.download(state, 3) is state.anchor


def test_a_first_answer_later_is_about_the_anchor_only():
    algorithm = StoCFL(tau=0.5, pull=0.0)
    state, _ = round_of(algorithm, begin(algorithm), [[3.0, 0.0], [0.0, 2.0]])
    state, _ = round_of(algorithm, state, [[1.0, 0.0], [5.0, 0.1]], [0, 3])
    assert state.clusters == {0: (0, 3), 1: (1,)}
    assert close(state.found[0].model, [4.0, 0.0]), "the second answer of 0, and nothing of 3"
    assert close(state.found[0].direction, [4.0, 0.05])
    assert state.verdicts[3] == Verdict(False, 0.0, None, "first answer, about the anchor: in cluster 0 of 2 clients")
    assert algorithm.download(state, 3) is state.found[0].model


def test_clusters_merge_only_in_a_round_with_clients_of_both():
    algorithm = StoCFL(tau=0.5, pull=0.0)
    state, _ = round_of(algorithm, begin(algorithm), [[1.0, 0.0]], [0])
    state, _ = round_of(algorithm, state, [[1.0, 0.1]], [1])
    assert state.clusters == {0: (0,), 1: (1,)}
    assert state.found[1].model is None
    assert algorithm.download(state, 1) is state.model, "no model of its own: the global one"
    state, _ = round_of(algorithm, state, [[2.0, 0.0], [4.0, 0.0]], [0, 1])
    assert state.clusters == {0: (0, 1)}
    assert close(state.found[0].model, [1.0 + 3.0, 0.0])


def test_merging_is_transitive_the_most_similar_first_and_keeps_the_larger_model():
    algorithm = StoCFL(tau=0.7, pull=0.0)
    state, _ = round_of(algorithm, begin(algorithm, 5), [[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]], [0, 1, 2])
    assert state.clusters == {0: (0,), 1: (1, 2)}
    larger = state.found[1].model
    state, _ = round_of(algorithm, state, [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]], [0, 1, 3])
    assert state.clusters == {0: (0, 1, 2, 3)}, "3 lies between, and brings both together"
    assert torch.equal(state.found[0].model, larger)


def test_below_tau_nothing_merges_and_zero_has_no_direction():
    algorithm = StoCFL(tau=0.8)
    rows = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert round_of(algorithm, begin(algorithm), rows)[0].clusters == {0: (0,), 1: (1,), 2: (2,)}
    assert round_of(StoCFL(tau=0.7), begin(algorithm), rows)[0].clusters == {0: (0, 1), 2: (2,)}


def test_one_cluster_without_a_pull_is_federated_averaging():
    algorithm, other = StoCFL(tau=-1, pull=0.0), FedAvg(preprocess=Ignore())
    state, twin = begin(algorithm), begin(other)
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        rows = torch.randn(4, 2, generator=rng).tolist()
        state, twin = round_of(algorithm, state, rows)[0], round_of(other, twin, rows)[0]
        assert torch.equal(state.found[0].model, twin.model)
        assert torch.allclose(state.model, twin.model, atol=1e-6)


def test_the_pull_by_hand():
    algorithm = StoCFL(tau=0.5, pull=0.25)
    state, _ = round_of(algorithm, begin(algorithm), [[4.0, 0.0], [0.0, 4.0]])
    assert close(state.model, [2.0, 2.0])
    assert close(state.found[0].model, [4.0 - 0.5, 0.5])


def test_a_rule_and_weights_within_each_cluster():
    algorithm = StoCFL(tau=0.5, pull=0.0, preprocess=AsReported())
    state, _ = round_of(algorithm, begin(algorithm), [[3.0, 0.0], [0.0, 1.0], [0.0, 4.0]])
    assert algorithm.weights(state, [1, 2, 3]) == {1: 2.0, 2: 3.0, 3: 0.0}
    assert close(state.found[1].model, [0.0, (2 * 1 + 3 * 4) / 5])
    robust = StoCFL(tau=0.0, pull=0.0, aggregate=Median())
    state, _ = round_of(robust, begin(robust), [[1.0, 0.0], [2.0, 0.0], [900.0, 0.0]])
    assert close(state.found[0].model, [2.0, 0.0])


def test_who_joins_starts_with_the_anchor():
    algorithm = StoCFL()
    state, _ = round_of(algorithm, begin(algorithm), [[1.0, 0.0]] * 4)
    state = algorithm.join(state, 9, 3)
    assert algorithm.download(state, 9) is state.anchor
    state, ready = round_of(algorithm, state, [[1.0, 0.0], [2.0, 0.1]], [0, 9])
    assert state.clusters == {0: (0, 1, 2, 3, 9)}
    assert ready == {0, 1, 2, 3, 9}


def test_a_round_in_which_no_cluster_is_large_enough_counts_for_the_clusters():
    """One of two clients holds a half at least, of three a third: two first answers wait for the third."""
    algorithm = StoCFL(tau=0.5, pull=0.0, preprocess=Truncate(0.25, 0.4))
    state, ready = round_of(algorithm, begin(algorithm), [[3.0, 0.0], [1.0, 0.0]], [0, 1])
    assert (state.version, state.clusters, ready) == (1, {0: (0, 1)}, {0, 1, 2, 3})
    assert "more than alpha_star = 0.4" in state.verdicts[0].reason
    assert not any(verdict.accepted for verdict in state.verdicts.values())
    assert torch.equal(algorithm.download(state, 0), state.anchor)
    state, _ = round_of(algorithm, state, [[1.0, 0.0], [2.0, 0.0]], [0, 2])
    assert state.clusters == {0: (0, 1, 2)}
    state, _ = round_of(algorithm, state, [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], [0, 1, 2])
    assert state.found[0].model[0] > 0


@pytest.mark.parametrize("options", [{"tau": 1.1}, {"tau": -1.1}, {"pull": 1.0}, {"pull": -0.1}])
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must lie"):
        StoCFL(**options)


@pytest.mark.slow
def test_finds_the_groups_though_a_quarter_of_the_clients_takes_part():
    plan = Run(
        StoCFL(),
        clients=12,
        groups=PermutedLabels(4),
        model=MLP((64,)),
        training=LocalSGD(epochs=5),
        until=Until(60),
        evaluation=Evaluation(every=60),
        participation=0.25,
    )
    record = simulate(plan)
    groups = [set(range(3 * g, 3 * g + 3)) for g in range(4)]
    for cluster in record.history[-1].state["clusters"].values():
        assert any(set(cluster) <= group for group in groups), "no cluster holds clients of two groups"
    assert record.summary.final.accuracy > 0.8
