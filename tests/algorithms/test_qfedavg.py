"""q-FedAvg by hand, against the formula as it is printed, and by its claim."""

import dataclasses

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Mean
from phalanx.algorithms import FedAvg, Permuted, QFedAvg
from phalanx.data import Shards
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from phalanx.training.evaluation import Evaluation, evaluate
from phalanx.training.sgd import ExponentialLR
from phalanx.weighting import AsReported, Ignore
from toys import close, updates


def begin(algorithm, m, d=2):
    return algorithm.init(torch.zeros(d), {i: i + 1 for i in range(m)})[0]


def lossy(rows, losses, **fields):
    return updates(rows, losses=torch.tensor(losses), **fields)


def test_by_hand():
    """L = 2, q = 1, F = (1, 3), w_k - w = (1, 0) and (0, 1).

    Delta w_k = -2 (w_k - w).  Delta = (-2, 0) and 3 (0, -2); h = 4 + 2 * 1 and 4 + 2 * 3; so w = (2, 6) / 16.
    """
    algorithm = QFedAvg(q=1.0, lr=0.5)
    state, ready = algorithm.step(begin(algorithm, 2), lossy([[1.0, 0.0], [0.0, 1.0]], [1.0, 3.0]))
    assert close(state.model, [2 / 16, 6 / 16])
    assert set(ready) == {0, 1}
    assert state.damping == pytest.approx((2 + 6) / 16)
    assert [v.weight for v in state.verdicts.values()] == pytest.approx([0.25, 0.75])
    assert [v.score for v in state.verdicts.values()] == [1.0, 3.0]
    assert state.losses == {0: 1.0, 1: 3.0}


def as_printed(w, rows, F, q, lr, p):
    """Algorithm 2, line by line, in float64."""
    L = 1 / lr
    numerator, denominator = torch.zeros_like(w), 0.0
    for row, f, weight in zip(rows, F, p, strict=True):
        dw = L * (w - (w + row))
        numerator += weight * f**q * dw
        denominator += weight * (q * f ** (q - 1) * float(dw @ dw) + L * f**q)
    return w - numerator / denominator


@pytest.mark.parametrize("q", [0.0, 0.1, 1.0, 2.5])
@pytest.mark.parametrize("preprocess", [Ignore(), AsReported()])
def test_equals_the_printed_formula(q, preprocess):
    rng = torch.Generator().manual_seed(3)
    rows, losses = torch.randn(5, 40, generator=rng), 0.1 + torch.rand(5, generator=rng)
    algorithm = QFedAvg(q=q, lr=0.3, preprocess=preprocess)
    state, _ = algorithm.step(begin(algorithm, 5, 40), lossy(rows.tolist(), losses.tolist()))
    p = [1.0] * 5 if preprocess == Ignore() else [1.0, 2.0, 3.0, 4.0, 5.0]
    expected = as_printed(torch.zeros(40, dtype=torch.float64), rows.double(), losses.double().tolist(), q, 0.3, p)
    assert torch.allclose(state.model.double(), expected, atol=1e-6)


def test_q_0_is_unweighted_fedavg():
    rng = torch.Generator().manual_seed(1)
    batch = lossy(torch.randn(4, 30, generator=rng).tolist(), [0.1, 5.0, 2.0, 0.0])
    fair, plain = QFedAvg(q=0.0), FedAvg(aggregate=Mean(), preprocess=Ignore())
    state, other = fair.step(begin(fair, 4, 30), batch)[0], plain.step(begin(plain, 4, 30), batch)[0]
    assert torch.equal(state.model, other.model)
    assert state.damping == 1.0
    assert {i: v.weight for i, v in state.verdicts.items()} == {i: v.weight for i, v in other.verdicts.items()}


def test_extreme_losses_neither_overflow_nor_divide_by_zero():
    algorithm = QFedAvg(q=50.0)
    state, _ = algorithm.step(begin(algorithm, 3), lossy([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]], [0.0, 1e30, 0.0]))
    assert close(state.model, [0.0, 1.0]), "whoever claims an enormous loss has the model to itself"
    state, _ = algorithm.step(begin(algorithm, 2), lossy([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]))
    assert bool(state.model.isfinite().all())
    assert 0 < state.damping < 1e-9, "nothing is left to learn: hardly a step"


def test_the_learning_rate_can_follow_a_schedule():
    constant, decaying = QFedAvg(q=1.0, lr=0.25), QFedAvg(q=1.0, lr=ExponentialLR(0.5, 0.5))
    batch = lossy([[1.0, 0.0], [0.0, 1.0]], [1.0, 3.0])
    later = begin(decaying, 2)._replace(version=1)
    assert torch.equal(decaying.step(later, batch)[0].model, constant.step(begin(constant, 2), batch)[0].model)


def test_the_order_of_losses_is_that_of_clients():
    algorithm = QFedAvg(q=1.0)
    state = algorithm.init(torch.zeros(1), {0: 1, 1: 1, 2: 1})[0]
    state, ready = algorithm.step(state, lossy([[1.0], [-1.0]], [9.0, 1.0], clients=[0, 2]))
    assert float(state.model) > 0
    assert set(ready) == {0, 1, 2}
    assert state.losses == {0: 9.0, 2: 1.0}


def test_who_joins_later_and_what_is_refused():
    algorithm = QFedAvg(preprocess=AsReported())
    state = algorithm.join(begin(algorithm, 2), 2, 30)
    assert state.weights == {0: 1.0, 1: 2.0, 2: 30.0}
    with pytest.raises(ValueError, match="q must be at least 0 and finite, got -1"):
        QFedAvg(q=-1.0)
    with pytest.raises(ValueError, match="lr must be positive and finite, got 0"):
        QFedAvg(lr=0.0)


UNEQUAL = Run(
    algorithm=QFedAvg(q=0.0),
    clients=10,
    partition=Shards(2),
    model=MLP(()),
    training=LocalSGD(steps=1, batch_size=1000, lr=0.2),
    until=Until(1500),
    evaluation=Evaluation(every=1500),
)


@pytest.mark.parametrize("hidden", [False, True])
def test_losses_are_of_the_received_model_on_all_examples(hidden):
    algorithm = Permuted(QFedAvg(), 1) if hidden else QFedAvg()
    plan = dataclasses.replace(UNEQUAL, training=LocalSGD())
    federation = Federation(dataclasses.replace(plan, algorithm=algorithm))
    download = algorithm.download(algorithm.init(federation.start, dict.fromkeys(range(10), 1))[0], 0)
    federation.transport.send({2: download}, 0)
    (reply,) = federation.transport.receive(every=True).replies
    assert reply.loss == evaluate(federation.model, federation.start, federation.data[2]).loss
    plain = Federation(dataclasses.replace(plan, algorithm=FedAvg()))
    plain.transport.send({2: plain.start}, 0)
    (other,) = plain.transport.receive(every=True).replies
    assert other.loss < reply.loss, "it has learnt something within the first epoch"
    if not hidden:
        assert torch.equal(other.delta, reply.delta), "measuring changes no training"


def test_a_step_leads_to_the_minimum_of_the_objective():
    """Three clients want 0, one wants 1, F_k(w) = (w - c_k)^2 / 2: with q = 1 that is 3 w^3 = (1 - w)^3.

    The odd one is better off than with the mean, 1/4, and losses differ less: the claim of the paper.
    """
    wanted, lr = torch.tensor([0.0, 0.0, 0.0, 1.0]), 0.1
    for q, expected in ((0.0, 1 / 4), (1.0, 1 / (1 + 3 ** (1 / 3)))):
        algorithm = QFedAvg(q=q, lr=lr)
        state = begin(algorithm, 4, 1)
        for _ in range(600):
            away = float(state.model) - wanted
            batch = lossy([[-lr * float(a)] for a in away], (away**2 / 2).tolist())
            state, _ = algorithm.step(state, batch)
        assert float(state.model) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
def test_a_larger_q_makes_losses_more_alike_on_the_digits():
    """A convex model and whole gradients, until hardly anything moves."""
    spread, largest = [], []
    for q in (0.0, 1.0):
        record = simulate(dataclasses.replace(UNEQUAL, algorithm=QFedAvg(q=q, lr=0.2)))
        losses = torch.tensor(list(record.history[-1].state["losses"].values()))
        spread.append(float(losses.std()))
        largest.append(float(losses.max()))
    assert spread[1] < 0.9 * spread[0]
    assert largest[1] < largest[0]
