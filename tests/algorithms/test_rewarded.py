"""Rewards in proportion to contribution, around any algorithm."""

import dataclasses

import pytest
import torch

from phalanx import Run, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, Catalyst, FedAsync, FedAvg, PerLayer, Quorum, Rewarded
from phalanx.attacks import SignFlip
from phalanx.core import Until
from phalanx.data import LinearRamp
from phalanx.fairness import collaborative_fairness
from phalanx.simulation import Lognormal
from phalanx.training import Evaluation
from phalanx.weighting import Ignore
from toys import close, updates


def begin(algorithm, n, d=4):
    return algorithm.init(torch.zeros(d), dict.fromkeys(range(n), 10))


def test_reputations_quotas_and_models_by_hand():
    """Directions x, x and y, used a third each: the others are (1, 1), (1, 1) and (2, 0), each over three."""
    algorithm = Rewarded(FedAvg(), challenge=None)
    state, _ = begin(algorithm, 3)
    rows = [[4.0, 0, 0, 0], [4.0, 0, 0, 0], [0, 3.0, 0, 0]]
    state, ready = algorithm.step(state, updates(rows))
    assert state.reputation == pytest.approx({0: 0.5**0.5, 1: 0.5**0.5, 2: 0.0})
    assert state.quota == pytest.approx({0: 1.0, 1: 1.0, 2: 0.0})
    assert ready == {0, 1, 2}
    assert close(state.model, [8 / 3, 1.0, 0.0, 0.0])
    assert torch.equal(algorithm.download(state, 0), state.model)
    assert close(algorithm.download(state, 2), [0.0, 3.0, 0.0, 0.0]), "its own, and nothing else"


def test_a_quota_is_a_share_of_the_entries_in_which_a_client_differs_most():
    """Directions (1, 0), (1, 0), (.6, .8): the others of 2 are (1, 0), of 0 (1.6, .8)."""
    algorithm = Rewarded(FedAvg(), challenge=None)
    state, _ = begin(algorithm, 3, d=10)
    state, _ = algorithm.step(state, updates([[5.0] + [0.0] * 9, [5.0] + [0.0] * 9, [3.0, 4.0] + [0.0] * 8]))
    best = 1.6 / (1.6**2 + 0.8**2) ** 0.5
    assert state.quota[2] == pytest.approx(0.6 / best)
    own, model = [3.0, 4.0] + [0.0] * 8, [13 / 3, 4 / 3] + [0.0] * 8
    assert close(algorithm.download(state, 2), model), "7 of 10 entries, of which two differ"
    sharp = dataclasses.replace(algorithm, sharpness=6.0)
    state, _ = sharp.step(begin(sharp, 3, d=10)[0], updates([[5.0] + [0.0] * 9, [5.0] + [0.0] * 9, own]))
    assert 0 < state.quota[2] <= 0.1
    assert close(sharp.download(state, 2), [own[0], *model[1:]]), "one: the second, by 8/3"


def test_reputation_is_a_moving_average_from_zero_over_its_weight():
    algorithm = Rewarded(FedAvg(), fade=0.5)
    state, _ = begin(algorithm, 3, d=2)
    for rows in ([[1.0, 0], [1.0, 0], [0.6, 0.8]], [[1.0, 0], [1.0, 0], [1.0, 0]]):
        state, _ = algorithm.step(state, updates(rows))
    assert state.reputation[2] == pytest.approx((0.5 * 0.5 * 0.6 + 0.5) / 0.75)


def test_who_sends_nothing_earns_nothing():
    algorithm = Rewarded(FedAvg())
    state, _ = begin(algorithm, 4)
    for _ in range(3):
        state, _ = algorithm.step(state, updates([[4.0, 1, 0, 0], [4.0, 0, 0, 0], [4.0, 0, 1, 0], [0.0] * 4]))
    assert state.quota[3] == 0.0
    assert min(state.quota[i] for i in range(3)) > 0.9


def test_who_sends_the_opposite_gets_nothing_and_keeps_what_it_has_itself():
    algorithm = Rewarded(FedAvg(), challenge=None)
    state, _ = begin(algorithm, 4, d=2)
    state, _ = algorithm.step(state, updates([[1.0, 0.5], [1.0, 0.5], [1.0, 0.5], [-1.0, -0.5]]))
    assert state.quota[3] == 0
    assert close(algorithm.download(state, 3), [-1.0, -0.5])
    assert close(algorithm.download(state, 0), state.model.tolist())


def test_a_long_update_is_one_voice():
    algorithm = Rewarded(FedAvg())
    state, _ = begin(algorithm, 4, d=2)
    state, _ = algorithm.step(state, updates([[1.0, 0.5], [1.0, 0.5], [1.0, 0.5], [0.0, 1e9]]))
    assert state.quota[3] < state.quota[0] == 1.0


def test_where_arrivals_are_used_one_by_one_none_is_compared_with_itself():
    algorithm = Rewarded(FedAsync())
    state, _ = begin(algorithm, 3, d=2)
    state, _ = algorithm.step(state, updates([[0.0, 1.0]], [0]))
    assert state.accounts[0].judged == 0, "there is nobody to compare it with"
    for i in (1, 0, 1, 2):
        row = [[0.0, -1.0]] if i == 2 else [[0.0, 1.0]]
        state, _ = algorithm.step(state, updates(row, [i]))
    assert state.quota == pytest.approx({0: 1.0, 1: 1.0, 2: 0.0}, abs=1e-6)


def test_sharpness_zero_serves_everybody_alike_to_the_bit():
    plan = Run(algorithm=Catalyst(1), clients=8, latency=Lognormal(), until=Until(40), evaluation=Evaluation(every=20))
    alone = simulate(plan)
    around = simulate(dataclasses.replace(plan, algorithm=Rewarded(Catalyst(1), sharpness=0.0)))
    assert [line.verdicts for line in alone.history] == [line.verdicts for line in around.history]
    assert alone.history[-1].metrics.loss == around.history[-1].metrics.loss


def test_an_update_that_waits_is_judged_by_the_step_that_decides_on_it():
    algorithm = Rewarded(Catalyst(0, quorum=2))
    state, _ = begin(algorithm, 3, d=2)
    state, ready = algorithm.step(state, updates([[1.0, 0.0]], [0]))
    assert (ready, state.accounts[0].judged) == (set(), 0)
    state, ready = algorithm.step(state, updates([[1.0, 0.0]], [1]))
    assert ready == {0, 1}
    assert {i: account.judged for i, account in state.accounts.items()} == {0: 1, 1: 1, 2: 0}
    assert state.reputation[2] == pytest.approx(1.0), "of whom nothing is known, the mean of the others"
    assert close(algorithm.download(state, 0), state.model.tolist())


def test_who_joins_is_served_as_much_as_the_mean():
    algorithm = Rewarded(FedAvg())
    state, _ = begin(algorithm, 4)
    state, _ = algorithm.step(state, updates([[4.0, 3.0, 2.0, 1.0]] * 3 + [[-1.0, 0.0, 0.0, 0.0]]))
    assert (state.quota[0], state.quota[3]) == (1.0, 0.0)
    state = algorithm.join(state, 4, 10)
    assert state.quota[4] == pytest.approx(0.75)
    model = state.model.tolist()
    assert close(algorithm.download(state, 4), [*model[:3], 0.0])


def test_layers_are_rewarded_one_by_one():
    algorithm = Rewarded(FedAvg(), allocation=PerLayer((2, 2)), challenge=None)
    state, _ = begin(algorithm, 2)
    state, _ = algorithm.step(state, updates([[9.0, 8.0, 1.0, 2.0], [-1.0, 0.0, 0.0, 0.0]]))
    state = dataclasses.replace(state, quota={0: 1.0, 1: 0.5})
    model = state.model.tolist()
    assert close(algorithm.download(state, 1), [model[0], 0.0, 0.0, model[3]]), "half of each, where it differs most"
    assert algorithm.traits.knows_layout


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(ValueError, match="RFFL lets clients keep models of their own"):
        Rewarded(RFFL())
    with pytest.raises(ValueError, match=r"fade must lie in \[0, 1\), got 1.0"):
        Rewarded(FedAvg(), fade=1.0)
    with pytest.raises(ValueError, match="sharpness must be at least 0"):
        Rewarded(FedAvg(), sharpness=-1.0)


@pytest.mark.parametrize("inner", [FedAvg(Median(), Ignore()), FedAsync(), Quorum(FedAvg(), k=4)], ids=str)
def test_contributors_are_served_better_and_attackers_least(inner):
    """Client 0 has the fewest examples, client 9 the most; two flip signs."""
    run = Run(
        algorithm=Rewarded(inner, sharpness=2.0),
        clients=10,
        partition=LinearRamp(20.0),
        attack=SignFlip(),
        byzantine=2,
        latency=Lognormal(),
        until=Until(30 if inner.traits.synchronous else 150),  # fewer prove nothing of the smallest client
        evaluation=Evaluation(every=1000),
        seed=1,
    )
    record = simulate(run)
    quota = record.history[-1].state["quota"]
    honest = sorted(set(range(10)) - run.attackers())
    assert max(quota[i] for i in run.attackers()) < min(quota[i] for i in honest)
    examples = {i: float(record.summary.clients[i].size) for i in honest}
    assert collaborative_fairness(examples, {i: quota[i] for i in honest}).coefficient > 0.5
