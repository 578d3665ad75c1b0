import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from phalanx.algorithms import ZenoPlusPlus
from phalanx.attacks import Gaussian, Rescale
from phalanx.core import InfeasibleError
from rivals import accuracy, run
from toys import close, updates


def judged(algorithm, delta, reference, model=(0.0, 0.0)):
    """The state after the arrival of one update."""
    state, _ = algorithm.init(torch.tensor(model), {0: 1})
    state, ready = algorithm.step(state, updates([delta], reference=torch.tensor(reference)))
    assert ready == {0}
    return state


def test_a_candidate_by_hand():
    """v = (-2, 0); the client's (-3, -4) is brought to length 2: g = (-1.2, -1.6)."""
    algorithm = ZenoPlusPlus(server_lr=0.5, rho=0.1)
    state = judged(algorithm, [3.0, 4.0], [2.0, 0.0], (1.0, 1.0))
    assert close(state.model, [1 + 0.5 * 1.2, 1 + 0.5 * 1.6])
    assert state.version == 1
    verdict = state.verdicts[0]
    assert verdict.accepted
    assert verdict.score == pytest.approx(0.5 * 2.4 - 0.1 * 4)  # gamma <v, g> - rho |g|^2


def test_what_points_away_is_dropped_whatever_its_length():
    for length in (1e-3, 1.0, 1e6):
        state = judged(ZenoPlusPlus(), [-length, 0.0], [2.0, 0.0], (1.0, 1.0))
        assert (state.version, state.model.tolist()) == (0, [1.0, 1.0])
        verdict = state.verdicts[0]
        assert (verdict.accepted, verdict.weight, verdict.score) == (False, 0.0, pytest.approx(0.2 * -4 - 0.002 * 4))
        assert state.verdicts[0].reason == "descent -0.808 < -0, cosine -1 to the server's own"


@given(st.floats(-3.1, 3.1), st.floats(0.01, 1.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.floats(0.1, 10.0))
def test_it_is_a_test_on_the_cosine(angle, gamma, rho, epsilon, length):
    assume(epsilon or rho <= gamma)
    least = rho / gamma - epsilon / length**2
    direction = torch.tensor([angle]).cos().item(), torch.tensor([angle]).sin().item()
    state = judged(ZenoPlusPlus(gamma, rho, epsilon), list(direction), [length, 0.0])
    if abs(direction[0] - least) > 1e-4:
        assert state.verdicts[0].accepted == (direction[0] > least)


@pytest.mark.parametrize(
    ("delta", "reference", "why"),
    [([0.0, 0.0], [1.0, 0.0], "its change is zero"), ([1.0, 0.0], [0.0, 0.0], "the server's own change is zero")],
)
def test_what_has_no_direction_is_not_used(delta, reference, why):
    state = judged(ZenoPlusPlus(epsilon=1.0), delta, reference)
    assert (state.version, state.verdicts[0].accepted) == (0, False)
    assert state.verdicts[0].reason == f"{why}, and has no direction"


def test_one_step_on_two_arrivals_is_two_steps_on_one():
    algorithm, own = ZenoPlusPlus(), torch.tensor([1.0, 1.0])
    start, _ = algorithm.init(torch.zeros(2), {0: 1, 1: 1, 2: 1})
    rows = [[1.0, 0.0], [-1.0, 0.5], [0.0, 2.0]]
    together, ready = algorithm.step(start, updates(rows, reference=own))
    state = start
    for i, row in enumerate(rows):
        state, _ = algorithm.step(state, updates([row], clients=[i], reference=own))
    assert torch.equal(together.model, state.model)
    assert (together.version, state.version, ready) == (2, 2, {0, 1, 2})


def test_without_a_reference():
    algorithm = ZenoPlusPlus()
    state, _ = algorithm.init(torch.zeros(1), {0: 1})
    with pytest.raises(InfeasibleError, match="needs the server's own training, and was given none"):
        algorithm.step(state, updates([[1.0]]))
    assert algorithm.join(state, 3, 1) is state


@pytest.mark.parametrize(
    "options", [{"server_lr": 0.0}, {"rho": -0.1}, {"epsilon": -1.0}, {"reference_every": 0}, {"rho": 0.3}]
)
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must be"):
        ZenoPlusPlus(**options)


@pytest.mark.slow
def test_stands_gradient_inversion_on_the_digits():
    record = run(ZenoPlusPlus(), Rescale(-10.0))
    assert record.summary.final.accuracy > 0.75
    assert record.summary.filtered.byzantine > 2 * record.summary.filtered.honest


@pytest.mark.slow
def test_learns_the_digits():
    assert accuracy(ZenoPlusPlus()) > 0.75


@pytest.mark.slow
def test_noise_has_the_right_sign_half_of_the_time_and_no_more_length_than_the_server():
    record = run(ZenoPlusPlus(), Gaussian(100.0))
    assert record.summary.final.accuracy > 0.7
    assert 0.3 < record.summary.filtered.byzantine < 0.95
