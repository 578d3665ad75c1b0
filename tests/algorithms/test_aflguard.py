import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.algorithms import AFLGuard
from phalanx.attacks import Gaussian, Rescale
from phalanx.core import InfeasibleError, Verdict
from rivals import accuracy, run
from toys import close, updates


def judged(algorithm, delta, reference, model=(0.0, 0.0)):
    """The state after the arrival of one update."""
    state, _ = algorithm.init(torch.tensor(model), {0: 1})
    state, ready = algorithm.step(state, updates([delta], reference=torch.tensor(reference)))
    assert ready == {0}
    return state


def test_what_is_near_the_server_s_own_is_added_by_hand():
    state = judged(AFLGuard(radius=1.5, server_lr=0.5), [2.0, 3.0], [2.0, 0.0], (1.0, 1.0))
    assert state.verdicts[0].score == 3 / 2  # on the border
    assert close(state.model, [1 + 0.5 * 2, 1 + 0.5 * 3])
    assert state.version == 1


@pytest.mark.parametrize(("delta", "distance"), [([2.0, 3.1], 1.55), ([-2.0, 0.0], 2.0), ([20.0, 0.0], 9.0)])
def test_direction_and_length_must_fit(delta, distance):
    state = judged(AFLGuard(), delta, [2.0, 0.0], (1.0, 1.0))
    assert (state.version, state.model.tolist()) == (0, [1.0, 1.0])
    verdict = state.verdicts[0]
    assert verdict.score == pytest.approx(distance)
    assert verdict.reason == f"{distance:.3g} lengths from the server's own change, allowed are 1.5"


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0.1, 3.0))
def test_what_is_accepted_goes_up_by_no_more_than_the_docstring_says(x, y, radius):
    state = judged(AFLGuard(radius=radius), [x, y], [1.0, 0.0])
    if state.verdicts[0].accepted:
        assert x >= 1 - radius - 1e-5


def test_a_server_that_stands_still_accepts_nothing():
    state = judged(AFLGuard(), [1.0, 0.0], [0.0, 0.0])
    assert state.verdicts[0] == Verdict(False, 0.0, None, "the server's own change is zero", False, False)


def test_a_zero_update_changes_nothing():
    state = judged(AFLGuard(), [0.0, 0.0], [1.0, 0.0], (1.0, 2.0))
    assert state.verdicts[0].accepted
    assert state.model.tolist() == [1.0, 2.0]


def test_one_step_on_two_arrivals_is_two_steps_on_one():
    algorithm, own = AFLGuard(), torch.tensor([1.0, 1.0])
    start, _ = algorithm.init(torch.zeros(2), {0: 1, 1: 1, 2: 1})
    rows = [[1.0, 0.0], [-9.0, 0.5], [0.0, 2.0]]
    together, ready = algorithm.step(start, updates(rows, reference=own))
    state = start
    for i, row in enumerate(rows):
        state, _ = algorithm.step(state, updates([row], clients=[i], reference=own))
    assert torch.equal(together.model, state.model)
    assert (together.version, state.version, ready) == (2, 2, {0, 1, 2})


def test_without_a_reference():
    algorithm = AFLGuard()
    state, _ = algorithm.init(torch.zeros(1), {0: 1})
    with pytest.raises(InfeasibleError, match=r"AFLGuard needs the server.s own training, and was given none"):
        algorithm.step(state, updates([[1.0]]))
    assert algorithm.join(state, 3, 1) is state


@pytest.mark.parametrize(
    "options", [{"radius": 0.0}, {"radius": float("inf")}, {"server_lr": 0.0}, {"reference_every": 0}]
)
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must be"):
        AFLGuard(**options)


@pytest.mark.parametrize("attack", [Rescale(-10.0), pytest.param(Gaussian(1.0), marks=pytest.mark.slow)])
def test_rejects_every_such_attack_on_the_digits(attack):
    record = run(AFLGuard(), attack)
    assert record.summary.filtered.byzantine == 1.0
    assert record.summary.final.accuracy > 0.75


@pytest.mark.slow
def test_learns_without_attack_and_rejects_many_honest_updates_that_are_stale():
    record = run(AFLGuard())
    assert record.summary.final.accuracy > 0.75
    assert record.summary.filtered.honest > 0.1
    assert accuracy(AFLGuard(radius=2.0)) > 0.75
