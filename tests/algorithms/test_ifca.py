import dataclasses

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Krum, Median
from phalanx.algorithms import IFCA, FedAvg
from phalanx.core import InfeasibleError, Verdict
from phalanx.data import PermutedLabels
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation
from phalanx.weighting import AsReported, Ignore
from toys import close, updates


def begin(algorithm, clients=4, model=(1.0, 2.0)):
    return algorithm.init(torch.tensor(model), {i: 10 + i for i in range(clients)})


def answer(algorithm, state, losses, deltas, clients=None):
    """A round: each client reports the loss of what it was sent, and a change to it."""
    clients = list(range(len(losses))) if clients is None else clients
    bases = tuple(algorithm.download(state, i) for i in clients)
    batch = updates(deltas, clients, losses=torch.tensor(losses), versions=(state.version,) * len(clients), bases=bases)
    return algorithm.step(state, batch)


def test_an_iteration_by_hand():
    """Two models; clients 0 and 1 fit the first better, 2 and 3 the second."""
    algorithm = IFCA(2)
    state, ready = begin(algorithm)
    first, second = state.models
    assert ready == {0, 1, 2, 3}
    assert first.tolist() == [1.0, 2.0]
    assert not torch.equal(first, second)
    assert bool(((second >= 0) & (second <= 2 * first)).all()), "each entry times a factor from 0 to 2"

    assert all(algorithm.download(state, i) is first for i in range(4))
    state, ready = answer(algorithm, state, [0.1, 0.2, 0.9, 0.8], [[1.0, 0.0], [3.0, 0.0], [9.0, 9.0], [9.0, 9.0]])
    assert ready == {0, 1, 2, 3}
    assert state.models == (first, second), "models rest until all losses are known"
    why = "loss 0.1 of model 0; has answered for 1 of 2 models"
    assert state.verdicts[0] == Verdict(True, 0.0, float(torch.tensor(0.1)), why, waits=True)

    assert all(algorithm.download(state, i) is second for i in range(4))
    state, ready = answer(algorithm, state, [0.5, 0.5, 0.3, 0.4], [[7.0, 7.0], [7.0, 7.0], [0.0, 2.0], [0.0, 4.0]])
    assert close(state.models[0], [1.0 + 2.0, 2.0]), "the mean of what 0 and 1 made of the first model"
    assert torch.allclose(state.models[1], second + torch.tensor([0.0, 3.0]))
    assert state.clusters == {0: (0, 1), 1: (2, 3)}
    assert (state.version, state.iteration, ready) == (2, 1, {0, 1, 2, 3})
    assert {i: v.weight for i, v in state.verdicts.items()} == dict.fromkeys(range(4), 0.5)
    assert state.verdicts[2].reason == "cluster 1 of 2 clients"
    assert algorithm.download(state, 3) is state.models[1], "the own model comes first in the next iteration"
    assert algorithm.order(state, 3) == [1, 0]


def test_the_choice_is_the_arg_min_of_all_losses():
    """Against the plain arg min, for random losses with ties."""
    rng = torch.Generator().manual_seed(0)
    for k in (1, 2, 3, 5):
        algorithm = IFCA(k)
        state, _ = begin(algorithm, 6)
        for _ in range(3):
            losses = torch.randint(0, 4, (6, k), generator=rng).float()
            orders = [algorithm.order(state, i) for i in range(6)]
            for turn in range(k):
                sent = [float(losses[i, orders[i][turn]]) for i in range(6)]
                state, _ = answer(algorithm, state, sent, [[0.1, 0.0]] * 6)
            assert [state.chosen[i] for i in range(6)] == [
                min(range(k), key=lambda j: row[j]) for row in losses.tolist()
            ]


def test_one_model_is_federated_averaging():
    algorithm, other = IFCA(1), FedAvg(preprocess=Ignore())
    state, _ = begin(algorithm)
    twin, _ = begin(other)
    rng = torch.Generator().manual_seed(1)
    for _ in range(3):
        rows = torch.randn(4, 2, generator=rng).tolist()
        state, _ = answer(algorithm, state, [1.0] * 4, rows)
        twin, _ = answer(other, twin, [1.0] * 4, rows)
        assert torch.equal(state.model, twin.model)


def test_a_model_that_nobody_chose_stays():
    algorithm = IFCA(2)
    state, _ = begin(algorithm, 2)
    second = state.models[1]
    state, _ = answer(algorithm, state, [0.1, 0.1], [[1.0, 1.0]] * 2)
    state, _ = answer(algorithm, state, [0.2, 0.2], [[1.0, 1.0]] * 2)
    assert state.models[1] is second
    assert state.clusters == {0: (0, 1), 1: ()}


def test_losses_that_are_no_numbers_are_the_worst():
    algorithm = IFCA(2)
    state, _ = begin(algorithm, 2)
    state, _ = answer(algorithm, state, [float("nan")] * 2, [[1.0, 1.0]] * 2)
    state, _ = answer(algorithm, state, [5.0, float("nan")], [[1.0, 1.0]] * 2)
    assert state.chosen == {0: 1, 1: 0}


def test_who_has_not_answered_for_all_models_is_left_out_and_asked_first_things_first():
    algorithm = IFCA(2)
    state, _ = begin(algorithm, 3)
    state, ready = answer(algorithm, state, [0.1, 0.1], [[1.0, 0.0]] * 2, clients=[0, 1])
    assert ready == {0, 1, 2}
    assert algorithm.download(state, 2) is state.models[0], "it has answered for none yet"
    state, _ = answer(algorithm, state, [0.2, 0.3, 0.2], [[1.0, 0.0]] * 3)
    assert state.iteration == 1
    assert state.clusters[0] == (0, 1)
    assert state.verdicts[2] == Verdict(False, 0.0, None, "had answered for 1 of 2 models when the iteration ended")
    assert algorithm.download(state, 2) is state.models[0]


def test_patience_waits_for_those_who_are_behind():
    algorithm = IFCA(2, patience=1)
    state, _ = begin(algorithm, 3)
    state, _ = answer(algorithm, state, [0.1, 0.1], [[1.0, 0.0]] * 2, clients=[0, 1])
    state, ready = answer(algorithm, state, [0.2, 0.3, 0.2], [[1.0, 0.0]] * 3)
    assert (state.iteration, ready) == (0, {2}), "the others have answered for all"
    state, _ = answer(algorithm, state, [0.1], [[3.0, 0.0]], clients=[2])
    assert state.iteration == 1
    assert state.chosen == {0: 0, 1: 0, 2: 1}


def test_answers_for_models_of_the_last_iteration_are_not_used():
    algorithm = IFCA(1)
    state, _ = begin(algorithm, 2)
    state, _ = answer(algorithm, state, [1.0], [[1.0, 0.0]], clients=[0])
    state, _ = answer(algorithm, state, [1.0], [[1.0, 0.0]], clients=[0])
    old = updates([[9.0, 9.0]], clients=[1], versions=(0,))
    new, ready = algorithm.step(state, old)
    assert new.model is state.model
    assert new.verdicts[1] == Verdict(False, 0.0, None, "answers for a model of an earlier iteration")
    assert ready == {0, 1}


def test_a_share_of_the_clients_is_drawn_for_each_iteration():
    algorithm = IFCA(1, share=0.3, seed=5)
    state, cohort = algorithm.init(torch.zeros(2), dict.fromkeys(range(20), 1))
    seen = []
    for _ in range(20):
        seen.append(cohort)
        state, cohort = answer(algorithm, state, [1.0] * len(cohort), [[0.1, 0.0]] * len(cohort), sorted(cohort))
    assert {len(one) for one in seen} == {6}
    assert len(set(seen)) > 10
    assert frozenset().union(*seen) == set(range(20))


def test_a_rule_within_each_cluster_and_one_that_lacks_clients():
    algorithm = IFCA(2, aggregate=Median())
    state, _ = begin(algorithm, 5)
    state, _ = answer(
        algorithm, state, [0.1, 0.1, 0.1, 0.9, 0.9], [[1.0, 0.0], [2.0, 0.0], [-99.0, 0.0]] + [[0.0, 0.0]] * 2
    )
    state, _ = answer(algorithm, state, [0.5] * 5, [[4.0, 4.0]] * 5)
    assert close(state.models[0], [1.0 + 1.0, 2.0])

    strict = IFCA(2, aggregate=Krum(f=0))
    state, _ = begin(strict, 5)
    second = state.models[1]
    state, _ = answer(strict, state, [0.1, 0.1, 0.1, 0.1, 0.9], [[1.0, 0.0]] * 5)
    state, _ = answer(strict, state, [0.5] * 5, [[1.0, 0.0]] * 5)
    assert state.models[1] is second
    assert state.verdicts[4].reason.startswith("cluster 1 stays as it is: Krum")
    lonely = IFCA(1, aggregate=Krum(f=1))
    state, _ = begin(lonely, 5)
    with pytest.raises(InfeasibleError, match="No cluster can go on"):
        answer(lonely, state, [1.0, 1.0], [[1.0, 0.0]] * 2, clients=[0, 1])


def test_weights_are_of_the_sizes_within_a_cluster():
    algorithm = IFCA(1, preprocess=AsReported())
    state, _ = algorithm.init(torch.zeros(2), {0: 1, 1: 3})
    state, _ = answer(algorithm, state, [1.0, 1.0], [[4.0, 0.0], [0.0, 4.0]])
    assert close(state.model, [1.0, 3.0])
    assert algorithm.weights(state, [0, 1]) == {0: 1.0, 1: 3.0}
    joined = algorithm.join(state, 7, 5)
    assert 7 in joined.cohort
    assert joined.sizes[7] == 5


def test_candidates_are_all_models_and_end_with_what_is_sent():
    algorithm = IFCA(3)
    state, _ = begin(algorithm)
    state = state._replace(chosen={2: 1})
    offers = algorithm.candidate_models(state, 2)
    assert list(offers) == [0, 2, 1]
    assert offers[1] is algorithm.download(state, 2)
    assert all(offers[j] is state.models[j] for j in range(3))


@pytest.mark.parametrize("options", [{"k": 0}, {"share": 0.0}, {"share": 1.1}, {"patience": -1}, {"spread": 0.0}])
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must"):
        IFCA(**options)


@pytest.mark.slow
def test_finds_groups_with_different_labels_and_serves_each_its_model():
    plan = Run(
        IFCA(6),
        clients=12,
        groups=PermutedLabels(4),
        model=MLP((64,)),
        training=LocalSGD(epochs=5),
        until=Until(180),
        evaluation=Evaluation(every=180),
        seed=1,
    )
    record = simulate(plan)
    together = simulate(dataclasses.replace(plan, algorithm=FedAvg(), until=Until(30)))
    assert record.summary.final.accuracy > together.summary.final.accuracy + 0.3
