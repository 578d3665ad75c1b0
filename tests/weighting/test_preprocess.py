"""What reported sizes count for."""

import warnings

import pytest
import torch

from phalanx.aggregators import FLAMEFilter, GeometricMedian, Krum, Mean, Median, MultiKrum, TrimmedMean
from phalanx.algorithms import ByzantineCFL, FedAvg
from phalanx.core import InfeasibleError
from phalanx.weighting import AsReported, Ignore, Truncate, mwp
from toys import close, remarks, updates


@pytest.mark.parametrize(
    ("preprocess", "expected"),
    [
        (AsReported(), {3: 10.0, 1: 1.0, 7: 5e8}),
        (Ignore(), {3: 1.0, 1: 1.0, 7: 1.0}),
        (Truncate(alpha=0.1, alpha_star=0.5), {3: 10.0, 1: 1.0, 7: 11.0}),
    ],
)
def test_weights_by_client(preprocess, expected):
    sizes = {3: 10, 1: 1, 7: 500_000_000}
    weights = preprocess(sizes)
    assert weights == expected
    assert list(weights) == list(sizes)
    assert all(isinstance(weight, float) for weight in weights.values())
    assert sizes == {3: 10, 1: 1, 7: 500_000_000}


@pytest.mark.parametrize("kind", [AsReported, Ignore, Truncate])
def test_equal_values(kind):
    assert kind() == kind()
    assert hash(kind()) == hash(kind())
    assert AsReported() != Ignore()


def test_no_lie_gets_more_than_alpha_star():
    honest = {i: 1 + i for i in range(18)}
    for lie in (1, 100, 10**6, 10**9):
        weights = Truncate(alpha=0.1, alpha_star=0.3)({**honest, 98: lie, 99: lie})
        assert (weights[98] + weights[99]) / sum(weights.values()) <= 0.3
        assert mwp(weights, 0.1) <= 0.3


def test_settings_out_of_range():
    with pytest.raises(ValueError, match="alpha must lie in"):
        Truncate(alpha=1.0)
    with pytest.raises(ValueError, match="alpha_star must lie in"):
        Truncate(alpha_star=0.0)
    for scope in ("Population", "round", ""):
        misspelt = Truncate()
        object.__setattr__(misspelt, "scope", scope)  # types are checked in tests, and not where users call
        with pytest.raises(
            ValueError, match=f"scope must be one of 'population', 'cohort', 'subset' or null, got {scope!r}"
        ):
            misspelt.__post_init__()
    with pytest.raises(InfeasibleError, match=r"largest feasible alpha is 0\.3 "):
        Truncate(alpha=0.4)({0: 5, 1: 5, 2: 5})


RULES = [Mean(), Median(), TrimmedMean(0.2), GeometricMedian(), Krum(f=1), MultiKrum(f=1), FLAMEFilter()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.title)
@pytest.mark.parametrize("algorithm", [FedAvg, ByzantineCFL])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_composes_with_every_rule_and_algorithm_that_weighs(algorithm, rule):
    """A liar's weight after truncation is what the rule gets: the model is that of honest declarations of U*."""
    rows = (torch.randn(7, 5, generator=torch.Generator().manual_seed(3)) / 10 + 1).tolist()
    reported, true = dict.fromkeys(range(6), 10) | {6: 10**9}, dict.fromkeys(range(6), 10) | {6: 60}
    models = []
    for sizes, preprocess in ((reported, Truncate(0.1, 0.5)), (true, AsReported())):
        state, _ = algorithm(aggregate=rule, preprocess=preprocess).init(torch.zeros(5), sizes)
        state, _ = algorithm(aggregate=rule, preprocess=preprocess).step(state, updates(rows))
        models.append(state.model)
    assert torch.equal(*models)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("algorithm", [FedAvg, ByzantineCFL])
def test_the_scope_of_a_cohort_by_hand(algorithm):
    """Of (1, 1, 1, 9) no quarter may hold more than half: U* = 3. Of the cohort (1, 1, 9): U* = 2."""
    sizes, rows = {0: 1, 1: 1, 2: 1, 3: 9}, [[1.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    arrived = updates(rows, clients=[0, 1, 3])
    moved = {}
    for scope in ("population", "cohort"):
        chosen = algorithm(preprocess=Truncate(0.25, 0.5, scope=scope))
        state, _ = chosen.init(torch.zeros(2), sizes)
        state, _ = chosen.step(state, arrived)
        moved[scope] = state.model
    assert close(moved["population"], [(1 + 1 + 3 * 2) / 5, 0])
    assert close(moved["cohort"], [(1 + 1 + 2 * 2) / 4, 0])


@pytest.mark.filterwarnings("ignore:Truncate:UserWarning")
def test_a_cohort_that_is_too_small_ends_the_run_in_words():
    algorithm = FedAvg(preprocess=Truncate(0.1, 0.5, scope="cohort"))
    state, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 1})
    with pytest.raises(InfeasibleError, match="No alpha is feasible with fewer than 2 clients"):
        algorithm.step(state, updates([[1.0]]))


def test_with_one_half_of_the_weight_a_median_is_lost():
    """One of ten lies: one half exactly is what truncation leaves it, and the median goes to the middle."""
    sizes, rows = {**dict.fromkeys(range(9), 5), 9: 10**7}, [[1.0]] * 9 + [[-99.0]]
    moved = {}
    for alpha_star in (0.5, 0.49):
        algorithm = FedAvg(Median(), Truncate(0.1, alpha_star))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state, _ = algorithm.init(torch.zeros(1), sizes)
        moved[alpha_star] = float(algorithm.step(state, updates(rows))[0].model)
    assert moved == {0.5: -49.0, 0.49: 1.0}


@pytest.mark.parametrize(
    ("rule", "alpha_star", "warned"),
    [
        (TrimmedMean(0.1), 0.5, "tolerates no more than 0.1"),
        (TrimmedMean(0.1), 0.1, ""),
        (Median(), 0.6, "Median() tolerates less than one half"),
        (Median(), 0.5, "Set alpha_star to 0.49, say."),
        (Median(), 0.49, ""),
        (GeometricMedian(), 0.5, "tolerates less than one half"),
        (TrimmedMean(0.1, form="strict"), 0.1, "tolerates no share by any proof"),
        (Mean(), 0.1, "Take a rule that tolerates attackers, such as Median."),
        (Krum(f=2), 0.5, ""),
    ],
    ids=str,
)
def test_says_which_rules_tolerate_less_than_truncation_leaves(rule, alpha_star, warned):
    found = remarks(FedAvg(aggregate=rule, preprocess=Truncate(0.1, alpha_star)), dict.fromkeys(range(10), 3))
    assert [warned in remark for remark in found] == ([True] if warned else [])
