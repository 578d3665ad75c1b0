import math

import pytest
import torch

from phalanx.algorithms.fedasync import FedAsync
from phalanx.algorithms.staleness import Exponential, Hinge, Polynomial, Undiscounted
from phalanx.attacks import Gaussian, Rescale
from phalanx.weighting import AsReported, Truncate
from rivals import accuracy
from toys import close, updates


def test_mixes_by_hand():
    algorithm = FedAsync(mixing=0.5, staleness=Undiscounted())
    state, ready = algorithm.init(torch.tensor([1.0]), {0: 1, 1: 1})
    assert set(ready) == {0, 1}
    base = torch.tensor([1.0])
    state, ready = algorithm.step(state, updates([[2.0]], clients=[1], bases=(base,)))
    assert close(state.model, [0.5 * 1 + 0.5 * 3])
    assert ready == {1}
    state, ready = algorithm.step(state, updates([[4.0]], clients=[0], bases=(base,)))
    assert close(state.model, [0.5 * 2 + 0.5 * 5])
    assert state.version == 2
    assert state.verdicts[0].score == 1.0
    assert state.verdicts[0].reason == "1 update old"


def test_one_step_on_two_arrivals_is_two_steps_on_one():
    algorithm = FedAsync(mixing=0.7, staleness=Polynomial(0.5))
    start, _ = algorithm.init(torch.randn(5, generator=torch.Generator().manual_seed(0)), {0: 1, 1: 1})
    rows = torch.randn(2, 5, generator=torch.Generator().manual_seed(1)).tolist()
    together, ready = algorithm.step(start, updates(rows))
    first, _ = algorithm.step(start, updates(rows[:1], clients=[0]))
    second, _ = algorithm.step(first, updates(rows[1:], clients=[1]))
    assert torch.equal(together.model, second.model)
    assert together.version == second.version == 2
    assert ready == {0, 1}


def test_staleness_functions_by_hand():
    assert [Undiscounted()(age) for age in (0, 100)] == [1.0, 1.0]
    assert Polynomial(0.5)(0) == 1.0
    assert Polynomial(0.5)(3) == 0.5
    hinge = Hinge(a=10, b=4)
    assert [hinge(age) for age in (0, 4, 5, 6)] == [1.0, 1.0, 1 / 11, 1 / 21]
    assert [Exponential(0.5)(age) for age in (0, 3)] == [1.0, math.exp(-1.5)]
    assert Exponential(0.0)(9) == 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAsync(0.0),
        lambda: FedAsync(1.1),
        lambda: Polynomial(-1),
        lambda: Hinge(b=-1),
        lambda: Exponential(-1),
        lambda: Exponential(math.nan),
    ],
)
def test_out_of_range(make):
    with pytest.raises(ValueError, match="must"):
        make()


def test_a_client_that_comes_late_changes_nothing():
    algorithm = FedAsync()
    state, _ = algorithm.init(torch.zeros(1), {0: 1})
    joined = algorithm.join(state, 1, 10)
    assert joined == state._replace(sizes={0: 1, 1: 10}, weights={0: 1.0, 1: 1.0})


@pytest.mark.slow
def test_learns_the_digits():
    assert accuracy(FedAsync()) > 0.7


@pytest.mark.slow
def test_one_attacker_in_five_ruins_it():
    assert accuracy(FedAsync(), Rescale(-10.0)) < 0.2


@pytest.mark.slow
def test_noise_from_one_in_five_harms_it():
    assert accuracy(FedAsync(), Gaussian(1.0)) < accuracy(FedAsync()) - 0.2


def test_weights_are_parts_of_the_largest_by_hand():
    algorithm = FedAsync(mixing=0.5, staleness=Undiscounted(), preprocess=AsReported())
    state, _ = algorithm.init(torch.tensor([0.0]), {0: 1, 1: 4})
    state, _ = algorithm.step(state, updates([[8.0]], clients=[0]))
    assert close(state.model, [0.5 / 4 * 8])
    assert state.verdicts[0].weight == 0.125
    state, _ = algorithm.step(state, updates([[8.0]], clients=[1]))
    assert close(state.model, [0.5 * 1 + 0.5 * 8])


def test_a_client_that_joins_with_a_larger_size_is_the_new_measure():
    algorithm = FedAsync(mixing=0.5, preprocess=AsReported())
    state = algorithm.join(algorithm.init(torch.zeros(1), {0: 2})[0], 1, 8)
    state, _ = algorithm.step(state, updates([[4.0]], clients=[0]))
    assert close(state.model, [0.5 / 4 * 4])


def test_weights_of_a_cohort_of_one_are_refused():
    with pytest.raises(ValueError, match=r"FedAsync uses updates one at a time: .* Set scope to \"population\""):
        FedAsync(preprocess=Truncate(scope="cohort"))
