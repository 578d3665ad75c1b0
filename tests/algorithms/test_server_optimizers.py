"""Optimisers of the server: by hand, against torch's, and around robust rules."""

import dataclasses

import numpy as np
import pytest
import torch

from phalanx import Run, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import (
    IFCA,
    RFFL,
    ClusteredFL,
    FedAdagrad,
    FedAdam,
    FedAsync,
    FedAvg,
    FedAvgM,
    FedYogi,
    PerCluster,
    Permuted,
    Quorum,
    Standalone,
)
from phalanx.attacks import SignFlip
from phalanx.core import InfeasibleError, Setting, Until
from phalanx.promises import promise
from phalanx.rng import numpy_generator
from phalanx.training import ExponentialLR
from phalanx.weighting import Ignore, Truncate
from phalanx.wording import at_most
from toys import close, updates

KINDS = [FedAvgM, FedAdagrad, FedAdam, FedYogi]


def carried(algorithm, rounds, d=2):
    """The states after each of some rounds, given by their deltas."""
    state, _ = algorithm.init(torch.zeros(d), dict.fromkeys(range(len(rounds[0])), 10))
    states = []
    for rows in rounds:
        state, _ = algorithm.step(state, updates(rows))
        states.append(state)
    return states


def test_momentum_by_hand():
    """Means (1, 2) and (3, 0): m = (1, 2), then 0.5 (1, 2) + (3, 0) = (3.5, 1)."""
    first, second = carried(
        FedAvgM(FedAvg(), server_lr=2.0, momentum=0.5), [[[0.0, 2.0], [2.0, 2.0]], [[3.0, 0.0]] * 2]
    )
    assert close(first.model, [2.0, 4.0])
    assert close(second.model, [9.0, 6.0])


@pytest.mark.parametrize(
    ("algorithm", "squares"),
    [  # tau = 1, so v begins at 1; deltas 2 and -1
        (FedAdagrad(FedAvg(), server_lr=1.0, beta1=0.5, tau=1.0), [5.0, 6.0]),
        (FedAdam(FedAvg(), server_lr=1.0, beta1=0.5, tau=1.0, beta2=0.75), [1.75, 1.5625]),
        (FedYogi(FedAvg(), server_lr=1.0, beta1=0.5, tau=1.0, beta2=0.75), [2.0, 1.75]),
    ],
    ids=["FedAdagrad", "FedAdam", "FedYogi"],
)
def test_adaptive_steps_by_hand(algorithm, squares):
    """m is 1, then 0.5 - 0.5 = 0; a third round of 2 moves by 1 over the root of the third square, plus one."""
    first, second = carried(algorithm, [[[2.0, 2.0]], [[-1.0, -1.0]]])
    assert close(first.v, [squares[0]] * 2)
    assert close(first.model, [1 / (squares[0] ** 0.5 + 1)] * 2)
    assert close(second.v, [squares[1]] * 2)
    assert torch.equal(second.model, first.model), "the momentum is zero"


@pytest.mark.parametrize("beta2", [0.0, 0.5, 0.99])
def test_yogi_is_adam_or_adagrad_where_the_signs_say_so(beta2):
    """With v above the square, v falls by (1 - beta2) of the square; below it, it grows by as much."""
    small, large = FedYogi(FedAvg(), tau=10.0, beta2=beta2), FedYogi(FedAvg(), tau=0.1, beta2=beta2)
    assert close(carried(small, [[[2.0, 1.0]]])[0].v, [100 - (1 - beta2) * 4, 100 - (1 - beta2)], 1e-4)
    assert close(carried(large, [[[2.0, 1.0]]])[0].v, [0.01 + (1 - beta2) * 4, 0.01 + (1 - beta2)])


def gradients(rounds, d=7):
    rng = torch.Generator().manual_seed(3)
    return [torch.randn(4, d, generator=rng).tolist() for _ in range(rounds)]


def follow(optimizer, parameter, rounds):
    """The parameter after torch's optimiser has taken the negative mean of each round for its gradient."""
    for rows in rounds:
        parameter.grad = -torch.tensor(rows).mean(0)
        optimizer.step()
    return parameter.detach().tolist()


def test_momentum_is_that_of_torch_over_many_rounds():
    rounds, parameter = gradients(12), torch.nn.Parameter(torch.zeros(7))
    wanted = follow(torch.optim.SGD([parameter], lr=0.3, momentum=0.9), parameter, rounds)
    assert close(carried(FedAvgM(FedAvg(), server_lr=0.3), rounds, 7)[-1].model, wanted, 1e-5)


def test_adagrad_is_that_of_torch_over_many_rounds():
    rounds, parameter = gradients(12), torch.nn.Parameter(torch.zeros(7))
    adagrad = torch.optim.Adagrad([parameter], lr=0.3, initial_accumulator_value=0.01, eps=0.1)
    wanted = follow(adagrad, parameter, rounds)
    assert close(carried(FedAdagrad(FedAvg(), server_lr=0.3, tau=0.1), rounds, 7)[-1].model, wanted, 1e-5)


def test_adam_is_that_of_torch_without_its_corrections():
    """Torch's Adam, with v begun at tau^2, whose corrections a rate and an epsilon for each round undo."""
    rounds, parameter = gradients(12), torch.nn.Parameter(torch.zeros(7))
    adam = torch.optim.Adam([parameter], lr=1.0, betas=(0.9, 0.99), eps=1.0)
    adam.state[parameter] = {
        "step": torch.tensor(0.0),
        "exp_avg": torch.zeros(7),
        "exp_avg_sq": torch.full((7,), 0.01),
    }
    for t, rows in enumerate(rounds, start=1):
        first, second = 1 - 0.9**t, (1 - 0.99**t) ** 0.5
        adam.param_groups[0].update(lr=0.3 * first / second, eps=0.1 / second)
        follow(adam, parameter, [rows])
    found = carried(FedAdam(FedAvg(), server_lr=0.3, tau=0.1), rounds, 7)[-1].model
    assert close(found, parameter.tolist(), 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_step_of_a_robust_rule_is_what_is_optimised(kind):
    """With all updates alike a median is a mean; with an outlier the median is as if it were not there."""
    alike = carried(kind(FedAvg(preprocess=Ignore())), [[[1.0, -2.0]] * 5] * 3)
    hostile = carried(kind(FedAvg(aggregate=Median())), [[[1.0, -2.0]] * 4 + [[1e6, 1e6]]] * 3)
    assert torch.equal(alike[-1].model, hostile[-1].model)


def test_a_schedule_is_by_version_and_the_algorithm_within_has_the_optimised_model():
    algorithm = FedAvgM(FedAvg(), server_lr=ExponentialLR(1.0, 0.5), momentum=0.0)
    first, second = carried(algorithm, [[[1.0, 1.0]]] * 2)
    assert close(first.model, [1.0, 1.0])
    assert close(second.model, [1.5, 1.5])
    assert torch.equal(algorithm.download(second, 0), second.model)
    assert second.version == 2


def test_a_lost_round_moves_nothing():
    algorithm = FedAdam(FedAvg(aggregate=Median(), preprocess=Truncate(0.2, 0.4, scope="subset")))
    state, _ = algorithm.init(torch.zeros(2), dict.fromkeys(range(5), 10))
    state, _ = algorithm.step(state, updates([[1.0, 1.0]] * 5))
    with pytest.raises(InfeasibleError) as error:
        algorithm.step(state, updates([[1.0, 1.0]]))
    lost, ready = algorithm.lose_round(state, updates([[1.0, 1.0]]), str(error.value))
    assert (ready, lost.version) == ({0}, 1)
    assert lost.verdicts[0].reason.startswith("round lost")
    assert all(torch.equal(getattr(lost, name), getattr(state, name)) for name in ("m", "v", "model"))


def test_joins_and_parts_keep_the_moments():
    algorithm = FedAdam(FedAvg(aggregate=Median()))
    state = carried(algorithm, [[[1.0, 2.0]] * 3])[0]
    joined = algorithm.join(state, 7, 90)
    assert algorithm.weights(joined, [0, 7]) == {0: 10, 7: 90}
    part, ready = algorithm.part(joined, {0: 10, 7: 90})
    assert set(ready) == {0, 7}
    for other in (joined, part):
        assert all(torch.equal(getattr(other, name), getattr(state, name)) for name in ("m", "v", "model"))


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (FedAsync(), "takes updates one at a time"),
        (Quorum(FedAvg(), k=2), "takes updates one at a time"),
        (ClusteredFL(), "serves several models"),
        (IFCA(2), "serves several models"),
        (RFFL(), "serves several models"),
        (Standalone(), "serves several models"),
        (PerCluster(FedAvg()), "serves several models"),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_several_models_and_arrivals_are_refused(inner, why):
    with pytest.raises(InfeasibleError, match=f"FedAdam needs rounds and one model .* {why}. Choose"):
        FedAdam(inner)


@pytest.mark.parametrize(
    "wrong", [{"server_lr": 0.0}, {"beta1": 1.0}, {"beta2": -0.1}, {"tau": 0.0}, {"tau": float("inf")}]
)
def test_parameters_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FedAdam(FedAvg(), **wrong)
    with pytest.raises(ValueError, match="momentum"):
        FedAvgM(FedAvg(), momentum=1.0)


def test_by_coordinate_the_order_does_not_matter():
    plan = Run(algorithm=FedYogi(FedAvg(aggregate=Median())), clients=6, until=Until(4))
    hidden = dataclasses.replace(plan, algorithm=FedYogi(Permuted(plan.algorithm.algorithm, seed=2)))
    assert [line.metrics for line in simulate(plan).history] == [line.metrics for line in simulate(hidden).history]


def test_a_run_with_attackers_learns_where_the_rule_is_robust():
    plan = Run(clients=10, byzantine=2, attack=SignFlip(), until=Until(10))
    robust = dataclasses.replace(plan, algorithm=FedAdam(FedAvg(aggregate=Median()), server_lr=0.03))
    assert simulate(robust).history[-1].metrics.accuracy > 0.8


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_no_entry_moves_farther_than_is_said_whatever_is_sent(kind):
    """10,000 columns of 40 deltas each: of both signs, drawn over six powers of ten; a hundred grow."""
    rng = numpy_generator(0, "moves", kind.__name__)
    for beta1, beta2 in ((0.0, 0.99), (0.9, 0.99), (0.5, 0.3), (0.2, 0.9), (0.0, 0.0), (0.9, 0.81)):
        given = {"beta1": beta1} | ({} if kind is FedAdagrad else {"beta2": beta2})
        algorithm = kind(FedAvg(Median(), Ignore()), server_lr=1.0, tau=1e-9, **given)
        exponents = rng.uniform(-3, 3, (40, 10_000)) * rng.integers(0, 2, 10_000)
        growth = rng.uniform(-1, 1, 100)
        growth[:10] = np.log10(beta1 / beta2) / 6 * -39 if 0 < beta1 < beta2 else 0
        exponents[:, :100] = np.linspace(0, 6, 40)[:, None] * growth
        deltas = torch.from_numpy(10**exponents * np.where(rng.random((40, 10_000)) < rng.random(10_000), 1, -1))
        m, v, longest = torch.zeros(10_000), torch.full((10_000,), algorithm.first_square), 0.0
        m, v = m.double(), v.double()
        for delta in deltas:
            m, v = algorithm.moments(m, v, delta)
            longest = max(longest, float(algorithm.direction(m, v).abs().max()))
        said = " ".join(promise(algorithm, Setting(12)).text)
        if algorithm.longest is None:
            assert "no entry of the model moves" not in said
            continue
        assert longest <= algorithm.longest * (1 + 1e-9)
        if kind is not FedYogi or beta2 > 0.9:
            assert longest > 0.75 * algorithm.longest, "near what can be reached"
        assert f"moves by more than {at_most(algorithm.longest)} H in H steps" in said or algorithm.longest == 1


def test_the_largest_step_of_the_default_adam():
    """Reached by deltas that shrink backwards as (beta1 / beta2)^k."""
    assert FedAdam(FedAvg(), server_lr=0.1).longest == pytest.approx(0.1 / (0.01 * (1 - 0.81 / 0.99)) ** 0.5)
    said = " ".join(promise(FedAdam(FedAvg(Median(), Ignore()), server_lr=0.1), Setting(12)).text)
    assert "no entry of the model moves by more than 0.235 H in H steps" in said
