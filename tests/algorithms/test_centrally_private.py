"""Noise of the server: by hand, in distribution, what it guarantees, and what Byzantine clients can do."""

import dataclasses
import math

import dp_accounting
import pytest
import torch
from scipy.stats import kstest

from algorithms.test_private import of_one_gaussian
from phalanx import Run, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import (
    ByzantineCFL,
    CentrallyPrivate,
    FedAdam,
    FedAvg,
    PerCluster,
    Permuted,
    Private,
    QFedAvg,
    Quorum,
    Rewarded,
)
from phalanx.algorithms.private import secretly
from phalanx.core import InfeasibleError, Until
from phalanx.runs.accounting import central_epsilon
from phalanx.weighting import Ignore, Truncate
from toys import close, updates

MEAN = FedAvg(preprocess=Ignore())
D = 20_000


def begin(algorithm, n, d=2, sizes=None):
    return algorithm.init(torch.zeros(d), sizes or dict.fromkeys(range(n), 10))[0]


def test_clipping_and_the_norm_by_hand():
    """Norms 5, 0.5 and 1 at C = 1: two of three are short, so that C becomes exp(-0.3 (2/3 - 1/2))."""
    algorithm = CentrallyPrivate(MEAN, clip=1.0, noise_multiplier=0.0, clip_rate=0.3)
    state, ready = algorithm.step(begin(algorithm, 3), updates([[3.0, 4.0], [0.5, 0.0], [0.0, 1.0]]))
    assert close(state.model, [(0.6 + 0.5) / 3, (0.8 + 1.0) / 3])
    assert state.norm == pytest.approx(math.exp(-0.3 / 6))
    assert set(ready) == {0, 1, 2}
    assert all(v.accepted and v.weight == pytest.approx(1 / 3) and not v.reason for v in state.verdicts.values())
    fixed = dataclasses.replace(algorithm, quantile=None)
    state, _ = fixed.step(begin(fixed, 3), updates([[3.0, 4.0], [0.5, 0.0], [0.0, 1.0]]))
    assert state.norm == 1.0


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_norm_finds_the_quantile(quantile):
    """Norms 0.05, 0.15, ..., 9.95: the quantile gamma of them is 10 gamma, from far below."""
    algorithm = CentrallyPrivate(MEAN, clip=0.01, noise_multiplier=0.0, quantile=quantile)
    rows = [[0.05 + 0.1 * i, 0.0] for i in range(100)]
    state = begin(algorithm, 100)
    for _ in range(300):
        state, _ = algorithm.step(state, updates(rows))
    assert state.norm == pytest.approx(10 * quantile, abs=0.2)


@pytest.mark.parametrize("seed", [0, None], ids=["stream", "system"])
@pytest.mark.parametrize("quantile", [None, 0.5])
def test_the_noise_on_the_mean_has_the_deviation_of_the_formula(seed, quantile):
    """With z = 1.2 and sigma_b = 0.5 * 4 = 2: z_Delta = (1/1.44 - 1/16)^(-1/2)."""
    algorithm = CentrallyPrivate(MEAN, clip=3.0, noise_multiplier=1.2, quantile=quantile, count_noise=0.5, seed=seed)
    state, _ = algorithm.step(begin(algorithm, 4, D), updates([[0.0] * D] * 4))
    multiplier = 1.2 if quantile is None else (1.2**-2 - (2 * 0.5 * 4) ** -2) ** -0.5
    assert kstest(state.model.double().numpy() / (multiplier * 3.0 / 4), "norm").pvalue > 1e-6


def test_the_noise_on_the_count_has_its_deviation():
    """All are short and gamma = 1: log C = -eta * count_noise * normal."""
    algorithm = CentrallyPrivate(MEAN, 1.0, noise_multiplier=0.5, quantile=1.0, clip_rate=0.1, count_noise=0.7)
    logs = []
    for seed in range(400):
        one = dataclasses.replace(algorithm, seed=seed)
        state, _ = one.step(begin(one, 2), updates([[0.0, 0.0]] * 2))
        logs.append(math.log(state.norm) / 0.07)
    assert kstest(logs, "norm").pvalue > 1e-6


def test_noise_is_the_same_for_the_same_round_and_another_for_another():
    algorithm = CentrallyPrivate(MEAN, clip=1.0, noise_multiplier=1.0, quantile=None)
    state, rows = begin(algorithm, 3, 50), [[0.0] * 50] * 3
    once, again = (algorithm.step(state, updates(rows))[0].model for _ in range(2))
    assert torch.equal(once, again)
    later = algorithm.step(algorithm.step(state, updates(rows))[0], updates(rows))[0].model - once
    fewer = algorithm.step(state, updates(rows[:2]))[0].model * 2 / 3
    seeded = dataclasses.replace(algorithm, seed=1)
    other = seeded.step(begin(seeded, 3, 50), updates(rows))[0].model
    assert all(float((once - x).abs().max()) > 0.1 for x in (later, fewer, other))


def test_unequal_weights_have_noise_for_the_largest():
    """Truncated to weights of 1/2, 1/4 and 1/4 of all, with the noise of a mean of two."""
    sizes = {0: 20, 1: 10, 2: 10}
    algorithm = CentrallyPrivate(FedAvg(preprocess=Truncate(0.0, 0.5)), 1.0, noise_multiplier=1.0, quantile=None)
    state = begin(algorithm, 3, D, sizes)
    weights = algorithm.weights(state, sizes)
    share = max(weights.values()) / sum(weights.values())
    state, _ = algorithm.step(state, updates([[0.0] * D] * 3))
    assert kstest(state.model.double().numpy() / share, "norm").pvalue > 1e-6


def test_what_an_optimiser_makes_of_the_mean_comes_after_the_noise():
    algorithm = CentrallyPrivate(MEAN, clip=1.0, noise_multiplier=1.0, quantile=None)
    around = dataclasses.replace(algorithm, algorithm=FedAdam(MEAN, server_lr=1.0, beta1=0.0))
    rows = updates([[0.3] * 20] * 3)
    plain, optimised = (one.step(begin(one, 3, 20), rows)[0].model for one in (algorithm, around))
    assert close(optimised, (plain / ((0.99e-6 + 0.01 * plain**2).sqrt() + 1e-3)).tolist(), 1e-5)


def test_a_round_that_is_too_small_for_the_noise_on_the_count_is_lost():
    algorithm = CentrallyPrivate(MEAN, clip=1.0, noise_multiplier=1.0)
    state = begin(algorithm, 30)
    with pytest.raises(InfeasibleError, match=r"of 5 updates: raise count_noise above 0\.1, or set quantile to null"):
        algorithm.step(state, updates([[0.0, 0.0]] * 5))
    lost, _ = algorithm.lose_round(state, updates([[0.0, 0.0]] * 5), "too few")
    assert (lost.norm, lost.version) == (1.0, 0)
    with pytest.raises(InfeasibleError, match="of 10 updates"):
        begin(algorithm, 10)


@pytest.mark.parametrize(("share", "stays"), [(0.3, True), (0.6, False)])
@pytest.mark.parametrize("length", [1e6, 0.0])
def test_attackers_move_the_norm_without_limit_only_if_they_are_most(share, stays, length):
    """Honest norms lie in [1, 2]; with gamma = 1/2 the norm stays among them against less than half."""
    algorithm = CentrallyPrivate(MEAN, clip=1.5, noise_multiplier=0.0)
    attackers = int(20 * share)
    rows = [[length, 0.0]] * attackers + [[0.0, 1 + i / 20] for i in range(20 - attackers)]
    state = begin(algorithm, 20)
    for _ in range(100):
        before, (state, _) = state, algorithm.step(state, updates(rows))
        assert float((state.model - before.model)[0]) <= attackers / 20 * before.norm * 1.001
    assert (0.9 < state.norm < 2.1) is stays


def test_on_a_deployment_the_noise_is_the_systems_and_a_run_needs_a_seed():
    algorithm = Quorum(CentrallyPrivate(FedAdam(MEAN), 1.0, 1.0, seed=3), k=30)
    assert secretly(algorithm).algorithm == CentrallyPrivate(FedAdam(MEAN), 1.0, 1.0, seed=None)
    with pytest.raises(ValueError, match=r"CentrallyPrivate has no seed, .* could not be repeated"):
        Run(algorithm=secretly(algorithm), clients=40)


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        (FedAvg(aggregate=Median(), preprocess=Ignore()), "reveals more of single updates"),
        (ByzantineCFL(preprocess=Ignore()), "reveals more of single updates"),
        (FedAdam(QFedAvg()), "reveals more of single updates"),
        (FedAvg(), "by AsReported one client can report any"),
        (Quorum(MEAN, k=2), "takes updates one at a time"),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_what_has_no_proof_is_refused(inner, why):
    with pytest.raises(InfeasibleError, match=why):
        CentrallyPrivate(inner, clip=1.0, noise_multiplier=1.0)


@pytest.mark.parametrize("kind", [Rewarded, PerCluster])
def test_models_that_follow_from_single_updates_are_not_made_around_it(kind):
    with pytest.raises(InfeasibleError, match=f"{kind.__name__} serves models that follow from single updates"):
        kind(Permuted(CentrallyPrivate(MEAN, clip=1.0, noise_multiplier=1.0)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip": 0.0},
        {"noise_multiplier": math.nan},
        {"quantile": 1.5},
        {"clip_rate": math.inf},
        {"count_noise": 0.0},
    ],
)
def test_parameters_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CentrallyPrivate(MEAN, **{"clip": 1.0, "noise_multiplier": 1.0, **wrong})


# --- what it guarantees


def test_without_sampling_the_account_is_one_gaussian_of_the_multiplier_over_the_root_of_the_rounds():
    assert central_epsilon(4.0, 20) == pytest.approx(of_one_gaussian(4.0 / math.sqrt(20), 1e-5), rel=1e-4)
    assert (central_epsilon(1.0, 0), central_epsilon(1.0, 0, 0.1), central_epsilon(0.0, 3, 0.1)) == (0, 0, math.inf)


@pytest.mark.slow
def test_with_sampling_the_account_agrees_with_renyi_divergences():
    """An accountant of another kind, whose bound is a little looser."""
    found = central_epsilon(1.0, 50, 0.1)
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    bound = dp_accounting.rdp.RdpAccountant().compose(event, 50).get_epsilon(1e-5)
    assert 0.8 * bound < found <= bound
    assert found < central_epsilon(1.0, 50)


@pytest.mark.parametrize("wrong", [(-1.0, 1), (1.0, -1), (1.0, 1, 0.0), (1.0, 1, 1.5), (1.0, 1, 0.1, 0.0)])
def test_an_account_of_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        central_epsilon(*wrong)


def test_the_history_has_the_norm_and_private_clients_may_send_to_it():
    inner = Private(MEAN, clip=5.0, noise_multiplier=0.0)
    plan = Run(
        algorithm=CentrallyPrivate(inner, clip=1.0, noise_multiplier=0.1, count_noise=0.1), clients=8, until=Until(3)
    )
    norms = [line.state["norm"] for line in simulate(plan).history if line.state]
    assert len(set(norms)) > 1
