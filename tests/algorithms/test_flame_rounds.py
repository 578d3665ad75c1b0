"""FLAME as rounds: by hand, against its rule, and under attack."""

import math

import pytest
import torch
from incongruent import Divided

from phalanx.aggregators import Clip, FLAMEFilter
from phalanx.aggregators.flame import DensestMajority
from phalanx.algorithms import FLAME, FedAvg
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError
from phalanx.weighting import AsReported, Ignore
from toys import close, updates


def start(algorithm, n=3, d=2, sizes=None):
    return algorithm.init(torch.zeros(d), sizes or dict.fromkeys(range(n), 10))[0]


def test_a_round_by_hand():
    algorithm = FLAME(f=1)
    state, ready = algorithm.step(start(algorithm), updates([[4.0, 0.0], [2.0, 0.0], [0.0, 9.0]]))
    assert state.model.tolist() == [3.0, 0.0], "the median length is 4, and the first two agree"
    assert state.bound == 4.0
    assert (state.version, set(ready)) == (1, {0, 1, 2})
    assert [v.weight for v in state.verdicts.values()] == [0.5, 0.5, 0.0]
    assert state.verdicts[2].reason == "outside the cosine cluster of 2"
    assert state.verdicts[2].score == 0.0
    state, _ = algorithm.step(state, updates([[0.0, 9.0], [0.0, 2.0], [1.0, 0.0]], versions=(1,) * 3))
    assert state.model.tolist() == [3.0, 2.0], "clipped to 2, the median of all three lengths"
    assert state.verdicts[0].reason == "norm 9 clipped to 2"


def test_the_median_is_over_all_who_sent_and_not_over_the_admitted():
    algorithm = FLAME()
    rows = [[9.0, 0.0], [8.0, 0.0], [7.0, 0.0], [0.0, 1.0], [0.0, 2.0]]
    state, _ = algorithm.step(start(algorithm, 5), updates(rows))
    assert state.bound == 7.0
    assert close(state.model, [7.0, 0.0])


def test_what_is_compared_by_hand():
    """From (10, 0), the models of 0 and 1 lie in one direction, and the updates of 0 and 2 nearly do."""
    rows, base = [[0.0, 1.0], [10.0, 2.0], [0.1, 1.5]], torch.tensor([10.0, 0.0])
    accepted = {}
    for compare in ("updates", "models"):
        algorithm = FLAME(compare=compare)
        state = start(algorithm)._replace(model=base)
        state, _ = algorithm.step(state, updates(rows, bases=(base,) * 3))
        accepted[compare] = {i for i, v in state.verdicts.items() if v.accepted}
        if compare == "models":
            S = 1.5033296
            assert close(state.model, [10 + S * 10 / 104**0.5 / 2, (1 + S * 2 / 104**0.5) / 2], 1e-5)
    assert accepted == {"updates": {0, 2}, "models": {0, 1}}


def test_models_that_started_from_different_bases_are_compared_as_they_are():
    algorithm = FLAME(compare="models")
    bases = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([5.0, 0.0])
    state, _ = algorithm.step(start(algorithm), updates([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], bases=bases))
    assert {i for i, v in state.verdicts.items() if v.accepted} == {0, 2}


def test_it_is_federated_averaging_with_the_filter_as_its_rule():
    rng = torch.Generator().manual_seed(0)
    one, other = FLAME(noise=0.01, seed=3), FedAvg(FLAMEFilter(noise=0.01, seed=3), Ignore())
    state, twin = start(one, 9, 50), start(other, 9, 50)
    for version in range(5):
        batch = updates((0.3 + torch.randn(9, 50, generator=rng)).tolist(), versions=(version,) * 9)
        (state, _), (twin, _) = one.step(state, batch), other.step(twin, batch)
        assert torch.allclose(state.model, twin.model, atol=1e-5)
        assert {i: v.accepted for i, v in state.verdicts.items()} == {i: v.accepted for i, v in twin.verdicts.items()}


def test_the_filter_alone_does_not_look_at_lengths():
    rows = torch.tensor([[400.0, 0.0], [2.0, 0.0], [0.0, 9.0]])
    vector, choice = DensestMajority().explained(rows)
    assert vector.tolist() == [201.0, 0.0]
    assert choice.reasons == ["", "", "outside the cosine cluster of 2"]
    assert torch.allclose((Clip(9.0) >> DensestMajority())(rows), FLAMEFilter()(rows))
    rows[0, 1] = 1.0
    weighed = DensestMajority()(rows, torch.tensor([1.0, 3.0, 1.0]))
    assert weighed.tolist() == [2.0, 0.0], "one of three fifths is a majority by itself"


def test_noise_is_a_part_of_the_median_length_and_of_the_round():
    rows = (torch.ones(3, 20_000)).tolist()
    quiet, _ = FLAME().step(start(FLAME(), 3, 20_000), updates(rows))
    noisy = FLAME(noise=0.01, seed=1)
    before = start(noisy, 3, 20_000)
    first, _ = noisy.step(before, updates(rows))
    assert float((first.model - quiet.model).std()) == pytest.approx(0.01 * 20_000**0.5, rel=0.03)
    assert torch.equal(noisy.step(before, updates(rows))[0].model, first.model)
    later, _ = noisy.step(before._replace(version=1), updates(rows))
    assert not torch.equal(later.model, first.model)


def test_weights_are_like_copies():
    rows, sizes = [[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]], {0: 1, 1: 1, 2: 5}
    weighed, plain = FLAME(preprocess=AsReported()), FLAME()
    assert set(weighed.step(start(weighed, sizes=sizes), updates(rows))[0].verdicts) == {0, 1, 2}
    state, _ = weighed.step(start(weighed, sizes=sizes), updates(rows))
    assert [v.accepted for v in state.verdicts.values()] == [False, False, True]
    state, _ = plain.step(start(plain, sizes=sizes), updates(rows))
    assert [v.accepted for v in state.verdicts.values()] == [True, True, False]


def test_too_few_are_refused():
    with pytest.raises(InfeasibleError, match=r"FLAME needs at least 2f \+ 1 = 5 clients in a round, got 4\. Lower f"):
        FLAME(f=2).init(torch.zeros(2), dict.fromkeys(range(4), 1))
    algorithm = FLAME(f=2)
    with pytest.raises(InfeasibleError, match=r"2f \+ 1 = 5 clients in a round, got 3"):
        algorithm.step(start(algorithm, 5), updates([[1.0, 0.0]] * 3))


def test_zero_updates_move_nothing():
    algorithm = FLAME(f=1, noise=0.1)
    state, _ = algorithm.step(start(algorithm), updates([[0.0, 0.0], [0.0, 0.0], [5.0, 5.0]]))
    assert state.model.tolist() == [0.0, 0.0]


def test_who_comes_late_is_weighed_with_the_others():
    algorithm = FLAME()
    state = algorithm.join(start(algorithm), 7, 20)
    assert state.sizes[7] == 20
    assert algorithm.step(state, updates([[1.0, 0.0]] * 4, clients=[0, 1, 2, 7]))[0].verdicts.keys() == {0, 1, 2, 7}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"f": -1}, "f must be at least 0"),
        ({"noise": -0.1}, "noise must be at least 0"),
    ],
)
def test_what_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        FLAME(**options)


def test_only_updates_and_models_can_be_compared(monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(ValueError, match="compare must be one of 'updates', 'models', got 'both'"):
        FLAME(compare="both")


def test_gradient_inversion_breaks_the_mean_and_not_flame():
    federation = Divided(10)
    attacked = {"attack": Rescale(-10.0), "byzantine": {0, 3, 6}}
    accuracy = {}
    for algorithm in (FedAvg(), FLAME(f=3)):
        state = federation.run(algorithm, 12, **attacked)
        accuracy[type(algorithm)] = federation.accuracy(1, state.model)
    assert accuracy[FedAvg] < 0.3
    assert accuracy[FLAME] > 0.8
    assert not any(state.verdicts[i].accepted for i in (0, 3, 6))


def test_lambda_by_the_paper_s_formula():
    """sqrt(2 ln(1.25 / delta)) / epsilon; 0.001 for (3705, 0.001), to three digits."""
    assert FLAME(epsilon=3705, delta=0.001).sigma == pytest.approx(0.00102, abs=5e-6)
    assert FLAME(epsilon=2.0, delta=1.25 / math.e**2).sigma == pytest.approx(1.0)
    assert (FLAME().sigma, FLAME(noise=0.3).sigma) == (0.0, 0.3)


def test_epsilon_gives_the_noise_of_a_round():
    private = FLAME(epsilon=2.0, delta=1.25 / math.e**2, seed=4)
    plain = FLAME(noise=private.sigma, seed=4)
    rows = updates([[1.0, 0.0], [1.0, 0.1], [0.0, 5.0]])
    one, other = (a.step(start(a), rows)[0].model for a in (private, plain))
    assert torch.equal(one, other)
    assert not torch.equal(one, FLAME().step(start(FLAME()), rows)[0].model)
    assert private.rule.noise == private.sigma


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta must lie in"),
        ({"epsilon": 1.0, "noise": 0.1}, "Give noise or epsilon"),
    ],
)
def test_privacy_out_of_range(options, says):
    with pytest.raises(ValueError, match=says):
        FLAME(**options)
