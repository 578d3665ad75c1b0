"""SignSGD with majority vote: by hand, and by its claims."""

import dataclasses

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.algorithms import FedAvg, SignSGD
from phalanx.attacks import Rescale, SignFlip
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation
from phalanx.training.sgd import ExponentialLR
from phalanx.weighting import AsReported
from toys import close, updates


def begin(algorithm, m, model=(0.0, 0.0, 0.0)):
    return algorithm.init(torch.tensor(model), {i: i + 1 for i in range(m)})[0]


def test_the_majority_decides_by_hand():
    algorithm = SignSGD(server_lr=0.5)
    rows = [[1.0, -1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, -1.0, 0.0]]
    state, ready = algorithm.step(begin(algorithm, 3), updates(rows))
    assert close(state.model, [0.5, -0.5, 0.0])
    assert set(ready) == {0, 1, 2}
    assert [v.weight for v in state.verdicts.values()] == pytest.approx([1 / 3] * 3)
    assert [v.score for v in state.verdicts.values()] == pytest.approx([2 / 3, 2 / 3, 2 / 3])
    loud = [rows[0], rows[1], [-1e9, -0.1, 0.0]]
    assert torch.equal(algorithm.step(begin(algorithm, 3), updates(loud))[0].model, state.model), "a vote is a vote"


def test_clients_send_the_signs_of_their_momentum():
    algorithm = SignSGD(momentum=0.75)
    sent, v = algorithm.upload(torch.tensor([4.0, -4.0, 0.0]), None)
    assert sent.tolist() == [1.0, -1.0, 0.0]
    assert v.tolist() == [1.0, -1.0, 0.0]
    sent, v = algorithm.upload(torch.tensor([-2.0, -4.0, 4.0]), v)
    assert v.tolist() == [0.25, -1.75, 1.0]
    assert sent.tolist() == [1.0, -1.0, 1.0], "the first coordinate goes on"


def test_weight_decay_shrinks_the_model():
    algorithm = SignSGD(server_lr=0.1, weight_decay=0.5)
    state, _ = algorithm.step(begin(algorithm, 2, (2.0, 0.0, -1.0)), updates([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]]))
    assert close(state.model, [2 + 0.1 * (1 - 0.5 * 2), 0.0, -1 + 0.1 * (1 + 0.5 * 1)])


def test_a_schedule_and_weights():
    algorithm = SignSGD(server_lr=ExponentialLR(1.0, 0.5), preprocess=AsReported())
    state, _ = algorithm.step(begin(algorithm, 3)._replace(version=2), updates([[1.0] * 3, [1.0] * 3, [-1.0] * 3]))
    assert close(state.model, [0.0] * 3), "1 + 2 votes against 3"
    state, _ = algorithm.step(begin(algorithm, 2)._replace(version=2), updates([[1.0] * 3, [-1.0] * 3]))
    assert close(state.model, [-0.25] * 3)
    assert [v.weight for v in state.verdicts.values()] == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SignSGD(server_lr=0.0), "server_lr must be positive and finite, got 0"),
        (lambda: SignSGD(momentum=1.0), r"momentum must lie in \[0, 1\), got 1"),
        (lambda: SignSGD(weight_decay=-1.0), "weight_decay must be at least 0 and finite, got -1"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_who_joins_later_has_a_vote():
    algorithm = SignSGD()
    state = algorithm.join(begin(algorithm, 2), 2, 5)
    assert state.weights == {0: 1.0, 1: 1.0, 2: 1.0}


DIGITS = Run(
    algorithm=SignSGD(server_lr=0.005),
    clients=11,
    model=MLP((32,)),
    training=LocalSGD(steps=1, batch_size=16),
    until=Until(100),
    evaluation=Evaluation(every=100),
)


def test_clients_remember_in_a_run():
    """One step of minibatch each: with momentum other signs are sent than without."""
    models = [
        simulate(dataclasses.replace(DIGITS, algorithm=SignSGD(0.005, momentum=b), until=Until(5))).summary.final.loss
        for b in (0.0, 0.9)
    ]
    assert models[0] != models[1]


@pytest.mark.slow
@pytest.mark.parametrize("attack", [Rescale(-100.0), SignFlip()])
def test_three_of_eleven_attackers_do_not_stop_it(attack):
    """The claim of the paper: convergence with less than half of the votes adversarial, whatever they send."""
    clean = simulate(DIGITS).summary.final.accuracy
    attacked = dataclasses.replace(DIGITS, attack=attack, byzantine=3)
    signs = simulate(attacked).summary.final.accuracy
    assert clean > 0.85
    assert signs > 0.8
    if attack == Rescale(-100.0):
        mean = dataclasses.replace(attacked, algorithm=FedAvg())
        assert simulate(mean).summary.final.accuracy < 0.5
