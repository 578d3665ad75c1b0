"""FoolsGold with its memory: by hand, against the loops of its definition, and by its claim."""

import dataclasses
import math

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import FoolsGoldWeights
from phalanx.algorithms import FedAvg, FoolsGold
from phalanx.attacks import LabelFlip
from phalanx.core import InfeasibleError, Verdict
from phalanx.data import Shards
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation
from toys import close, updates

HALF = math.log(0.5 / 0.5) + 0.5  # of kappa = 1


def begin(algorithm, m, d=2):
    return algorithm.init(torch.zeros(d), dict.fromkeys(range(m), 10))[0]


def test_by_hand():
    """Two copies and one that is orthogonal: the copies count for nothing."""
    algorithm = FoolsGold()
    state, ready = algorithm.step(begin(algorithm, 3), updates([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]))
    assert state.alphas == {0: 0.0, 1: 0.0, 2: 1.0}
    assert close(state.model, [0.0, 2.0])
    assert set(ready) == {0, 1, 2}
    assert (state.verdicts[0].accepted, state.verdicts[0].reason) == (False, "cosine 1.000 with client 1")
    assert state.verdicts[2] == Verdict(True, 1.0, 1.0)


def test_a_cosine_of_one_half_counts_for_one_half():
    """cs = 1/2 between 0 and 1, 0 with client 2: alpha = 1/2, 1/2, 1; logit(1/2) + 0.5 = 1/2."""
    rows = [[1.0, 0.0, 0.0], [0.5, math.sqrt(3) / 2, 0.0], [0.0, 0.0, 1.0]]
    mean, total = FoolsGold(), FoolsGold(step_length="sum")
    state, _ = mean.step(begin(mean, 3, 3), updates(rows))
    assert list(state.alphas.values()) == pytest.approx([HALF, HALF, 1.0])
    summed = torch.tensor(rows).T @ torch.tensor([0.5, 0.5, 1.0])
    assert close(state.model, (summed / 2).tolist())
    state, _ = total.step(begin(total, 3, 3), updates(rows))
    assert close(state.model, summed.tolist())
    assert sum(v.weight for v in state.verdicts.values()) == pytest.approx(1)


def test_the_first_round_is_the_rule_of_that_name():
    rows = torch.randn(6, 50, generator=torch.Generator().manual_seed(2)) + 0.3
    algorithm = FoolsGold()
    state, _ = algorithm.step(begin(algorithm, 6, 50), updates(rows.tolist()))
    assert torch.allclose(state.model, FoolsGoldWeights()(rows), atol=1e-6)


def test_memory_finds_sybils_that_look_different_in_every_round():
    """Clients 2 and 3 push to the right, each with noise that is undone in the next round."""
    algorithm = FoolsGold()
    noise = torch.tensor([0.0, 8.0, 0.0, 0.0])
    right = torch.tensor([1.0, 0.0, 0.0, 0.0])
    honest = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    state = begin(algorithm, 4, 4)
    state, _ = algorithm.step(state, updates([*honest.tolist(), (right + noise).tolist(), (right - noise).tolist()]))
    assert state.verdicts[2].accepted, "opposed to each other so far"
    state, _ = algorithm.step(state, updates([*honest.tolist(), (right - noise).tolist(), (right + noise).tolist()]))
    assert state.alphas == {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}
    assert torch.equal(state.sums[2], 2 * right)


def test_sybils_that_take_turns_are_compared_all_the_same():
    algorithm = FoolsGold()
    state = begin(algorithm, 4, 3)
    state, _ = algorithm.step(state, updates([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], clients=[0, 2]))
    state, _ = algorithm.step(state, updates([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], clients=[1, 3]))
    assert state.alphas == {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}
    assert close(state.model, [0.5, 1.0, 0.5])


def test_a_round_of_nothing_but_sybils_is_lost_and_says_so():
    algorithm = FoolsGold()
    state, ready = algorithm.step(begin(algorithm, 3), updates([[1.0, 1.0]] * 3))
    assert (state.version, state.model.tolist(), set(ready)) == (1, [0.0, 0.0], {0, 1, 2})
    assert all(not v.accepted and v.weight == 0 and v.reason for v in state.verdicts.values())


def test_only_the_last_parameters_are_compared_and_kept():
    algorithm = FoolsGold(last=1)
    state, _ = algorithm.step(begin(algorithm, 3), updates([[1.0, 5.0], [-7.0, 1.0], [1.0, -1.0]]))
    assert state.alphas == {0: 0.0, 1: 0.0, 2: 1.0}
    assert [len(v) for v in state.sums.values()] == [1, 1, 1]
    with pytest.raises(InfeasibleError, match="compare the last 3 parameters, and the model has 2"):
        begin(FoolsGold(last=3), 3)


def test_confidence_by_hand():
    rows = [[1.0, 0.0, 0.0], [0.5, math.sqrt(3) / 2, 0.0], [0.0, 0.0, 1.0]]
    algorithm = FoolsGold(confidence=1.6)
    state, _ = algorithm.step(begin(algorithm, 3, 3), updates(rows))
    assert list(state.alphas.values()) == pytest.approx([0.8, 0.8, 1.0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FoolsGold(confidence=0.0), "confidence must be positive and finite, got 0"),
        (lambda: FoolsGold(last=0), "last must be at least 1, got 0"),
        (lambda: FoolsGold(server_lr=0.0), "server_lr must be positive and finite, got 0"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_who_joins_later_has_no_past():
    algorithm = FoolsGold()
    state, _ = algorithm.step(begin(algorithm, 2), updates([[1.0, 0.0], [0.0, 1.0]]))
    state = algorithm.join(state, 2, 5)
    assert algorithm.step(state, updates([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))[0].alphas[2] == 1.0


DIFFERENT = Run(
    algorithm=FoolsGold(),
    clients=10,
    partition=Shards(1),
    model=MLP((32,)),
    training=LocalSGD(lr=0.05, batch_size=16),
    attack=LabelFlip(1, 7),
    additional_byzantine=10,
    until=Until(15),
    evaluation=Evaluation(every=15),
)


@pytest.mark.slow
def test_sybils_are_the_majority_and_fail_where_the_honest_differ():
    """The setting of the paper: honest clients of one class each, as many Sybils as of those, who call 1 a 7."""
    guarded = simulate(DIFFERENT)
    plain = simulate(dataclasses.replace(DIFFERENT, algorithm=FedAvg()))
    assert guarded.summary.filtered.byzantine > 0.9
    assert guarded.summary.filtered.honest < 0.3
    assert guarded.summary.final.attack_success < 0.1 < plain.summary.final.attack_success
