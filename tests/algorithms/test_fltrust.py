import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.algorithms import FLTrust
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError
from phalanx.models import MLP
from phalanx.training.evaluation import Evaluation
from toys import close, updates


def judged(rows, reference, model=(0.0, 0.0), **options):
    algorithm = FLTrust(**options)
    state, _ = algorithm.init(torch.tensor(model), dict.fromkeys(range(len(rows)), 1))
    state, ready = algorithm.step(state, updates(rows, reference=torch.tensor(reference)))
    assert ready == set(range(len(rows)))
    return state


def test_a_round_by_hand():
    """Own change (2, 0): cosines 1, 3/5 and -1; at length 2, weighted 1 to 0.6."""
    state = judged([[5.0, 0.0], [3.0, 4.0], [-7.0, 0.0]], [2.0, 0.0], (1.0, 1.0), server_lr=0.5)
    mean = [(1 * 2 + 0.6 * 1.2) / 1.6, 0.6 * 1.6 / 1.6]
    assert close(state.model, [1 + 0.5 * mean[0], 1 + 0.5 * mean[1]])
    assert [v.weight for v in state.verdicts.values()] == pytest.approx([1 / 1.6, 0.6 / 1.6, 0])
    assert [v.score for v in state.verdicts.values()] == pytest.approx([1, 0.6, -1])
    assert state.verdicts[2].reason == "cosine -1 with the server's own change, not above 0"
    assert [v.accepted for v in state.verdicts.values()] == [True, True, False]


def test_against_the_plain_formula():
    rng = torch.Generator().manual_seed(0)
    rows, g_0 = torch.randn(8, 50, generator=rng), torch.randn(50, generator=rng)
    algorithm = FLTrust()
    state, _ = algorithm.init(torch.zeros(50), dict.fromkeys(range(8), 1))
    state, _ = algorithm.step(state, updates(rows.tolist(), reference=g_0))
    total, top = torch.zeros(50, dtype=torch.float64), 0.0
    for g in rows.double():
        trust = max(0.0, float(g @ g_0.double()) / float(g.norm() * g_0.double().norm()))
        total, top = total + trust * float(g_0.norm() / g.norm()) * g, top + trust
    assert torch.allclose(state.model.double(), total / top, atol=1e-6)


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-9, 9), min_size=2, max_size=2), min_size=1, max_size=6))
def test_the_step_is_no_longer_than_the_server_s_own_and_goes_its_way(rows):
    state = judged(rows, [1.0, 0.0])
    assert float(state.model.norm()) <= 1 + 1e-5
    assert float(state.model[0]) >= -1e-6
    assert math.isfinite(float(state.model.sum()))


def test_length_does_not_help_an_attacker():
    assert close(judged([[1.0, 0.0], [0.0, 1e9]], [1.0, 0.0]).model, [1.0, 0.0])


@pytest.mark.parametrize(
    ("row", "reference", "why"),
    [
        ([0.0, 0.0], [1.0, 0.0], "its change is zero, and has no direction"),
        ([1e-45, 0.0], [1.0, 0.0], "its change is next to zero, and has no direction"),
        ([1.0, 0.0], [0.0, 0.0], "the server's own change is zero, and has no direction"),
        ([-1.0, 0.0], [1.0, 0.0], "cosine -1 with the server's own change, not above 0"),
    ],
)
def test_where_nobody_is_trusted_the_model_stays(row, reference, why):
    state = judged([row], reference, (3.0, 4.0))
    assert state.model.tolist() == [3.0, 4.0]
    assert state.version == 1
    assert (state.verdicts[0].accepted, state.verdicts[0].reason) == (False, why)


def test_without_a_reference():
    algorithm = FLTrust()
    state, _ = algorithm.init(torch.zeros(1), {0: 1})
    with pytest.raises(InfeasibleError, match="FLTrust needs the server's own training"):
        algorithm.step(state, updates([[1.0]]))
    assert algorithm.join(state, 4, 1).clients == {0, 4}


@pytest.mark.parametrize("options", [{"server_lr": 0.0}, {"server_lr": float("inf")}, {"reference_every": 0}])
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must be"):
        FLTrust(**options)


@pytest.mark.slow
def test_learns_with_a_majority_of_attackers():
    plan = Run(
        FLTrust(),
        model=MLP((64,)),
        training=LocalSGD(lr=0.1),
        attack=Rescale(-10.0),
        byzantine=12,
        server_examples=100,
        until=Until(30),
        evaluation=Evaluation(every=30),
    )
    assert simulate(plan).summary.final.accuracy > 0.7
