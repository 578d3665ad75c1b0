from itertools import pairwise

import pytest
import torch

from phalanx.aggregators import CTMA, Krum, Mean
from phalanx.algorithms import AsyncMomentum
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError
from rivals import accuracy
from toys import close, updates


def begin(algorithm, clients=4):
    return algorithm.init(torch.zeros(1), dict.fromkeys(range(clients), 1))[0]


def feed(algorithm, state, arrivals):
    states = []
    for client, delta in arrivals:
        state, ready = algorithm.step(state, updates([[delta]], clients=[client], versions=(state.version,)))
        assert ready == {client}
        states.append(state)
    return states


def test_the_loop_by_hand():
    """Mean of the last momenta, weighted 1, 2, 1, by the number of answers."""
    algorithm = AsyncMomentum(aggregate=Mean(), server_lr=0.5, start=2)
    a, b, c, d = feed(algorithm, begin(algorithm), [(0, 4.0), (1, 8.0), (1, 2.0), (3, 6.0)])
    assert (a.version, a.model.tolist()) == (0, [0.0])
    why = "kept; the first step is taken when 2 clients have answered, 1 have"
    assert a.verdicts[0].reason == why
    assert close(b.model, [0.5 * 6])
    assert close(c.model, [3 + 0.5 * (4 + 2 * 2) / 3])
    assert close(d.model, [3 + 4 / 3 + 0.5 * (4 + 2 * 2 + 6) / 4])
    assert [s.version for s in (b, c, d)] == [1, 2, 3]
    assert d.answers == {0: 1, 1: 2, 3: 1}
    assert (b.verdicts[1].weight, c.verdicts[1].weight, d.verdicts[3].weight) == pytest.approx((1 / 2, 2 / 3, 1 / 4))


def test_the_momentum_begins_with_the_first_change():
    algorithm = AsyncMomentum(momentum=0.75)
    first, memory = algorithm.upload(torch.tensor([4.0]), None)
    second, _ = algorithm.upload(torch.tensor([8.0]), memory)
    assert (first.tolist(), second.tolist()) == ([4.0], [0.75 * 4 + 0.25 * 8])
    assert algorithm.traits.remembers
    plain = AsyncMomentum(momentum=0.0)
    assert not plain.traits.remembers
    assert plain.upload(torch.tensor([4.0]), None)[1] is None


@pytest.mark.parametrize(("by", "fooled"), [("answers", True), ("clients", False)])
def test_a_fast_attacker_gains_weight_by_its_answers_and_none_by_its_number(by, fooled):
    algorithm = AsyncMomentum(weight_by=by)
    arrivals = [(0, 1.0), (1, 1.0), (2, 1.0)] + [(3, -90.0)] * 9
    last = feed(algorithm, begin(algorithm), arrivals)[-1]
    assert (float(last.model) < 0) is fooled
    assert algorithm.weights(last, [0, 3]) == ({0: 1.0, 3: 9.0} if by == "answers" else {0: 1.0, 3: 1.0})


def test_a_minority_of_the_answers_does_not_lead_the_median_astray():
    algorithm = AsyncMomentum(server_lr=1.0)
    states = feed(algorithm, begin(algorithm, 5), [(i, 1.0 + i / 10 if i < 3 else -1e9) for i in range(5)] * 3)
    assert states[5].verdicts[0].weight == pytest.approx(2 / 6), "its two answers of six"
    steps = [float(b.model) - float(a.model) for a, b in pairwise(states[4:])]
    assert all(1.0 <= step <= 1.2 for step in steps[:1])
    assert all(step <= 1.2 for step in steps)


def test_ages_are_told_and_one_step_on_two_arrivals_is_two_steps_on_one():
    algorithm = AsyncMomentum(aggregate=Mean(), start=1)
    start = begin(algorithm)
    together, ready = algorithm.step(start, updates([[1.0], [5.0]], clients=[0, 1]))
    *_, second = feed(algorithm, start, [(0, 1.0), (1, 5.0)])
    assert torch.equal(together.model, second.model)
    assert ready == {0, 1}
    assert together.verdicts[1].reason == "1 update old"
    assert algorithm.join(together, 9, 1).clients == {0, 1, 2, 3, 9}


def test_with_the_meta_aggregator_and_a_rule_that_chooses():
    algorithm = AsyncMomentum(aggregate=CTMA(0.25), start=4)
    last = feed(algorithm, begin(algorithm), [(0, 1.0), (1, 2.0), (2, 3.0), (3, 90.0)])[-1]
    assert close(last.model, [0.1 * 2.0])
    assert not last.verdicts[3].accepted
    assert last.verdicts[3].reason == "distance 87.5 from the centre, among the farthest"


@pytest.mark.parametrize("options", [{"momentum": 1.0}, {"server_lr": 0.0}, {"start": 0}])
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must"):
        AsyncMomentum(**options)


def test_too_few_clients():
    with pytest.raises(InfeasibleError, match=r"start = 5 clients must have answered .* there are 4"):
        begin(AsyncMomentum(start=5))
    with pytest.raises(InfeasibleError, match="start = 3 is too small: Krum"):
        begin(AsyncMomentum(aggregate=Krum(f=1)))


@pytest.mark.slow
def test_tolerates_an_inversion_on_the_digits():
    assert accuracy(AsyncMomentum()) > 0.7
    assert accuracy(AsyncMomentum(), Rescale(-10.0)) > 0.6


def test_a_client_remembers_a_momentum_only_if_it_sends_one():
    assert AsyncMomentum(momentum=0.9).traits.remembers
    assert not AsyncMomentum(momentum=0.0).traits.remembers
