import pytest
import torch

from phalanx.aggregators import Krum, Median
from phalanx.algorithms import FedBuff
from phalanx.algorithms.staleness import Polynomial, Undiscounted
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError, Verdict
from phalanx.weighting import AsReported
from rivals import accuracy
from toys import close, updates


def feed(algorithm, state, arrivals):
    """The states after each arrival (client, version, delta)."""
    states = []
    for client, version, delta in arrivals:
        state, ready = algorithm.step(state, updates([delta], clients=[client], versions=(version,)))
        assert ready == {client}
        states.append(state)
    return states


def test_a_buffer_of_two_by_hand():
    algorithm = FedBuff(size=2, staleness=Polynomial(0.5), server_lr=3.0)
    start, ready = algorithm.init(torch.tensor([1.0]), {0: 1, 1: 1, 2: 1})
    assert set(ready) == {0, 1, 2}
    first, second, third, fourth = feed(algorithm, start, [(0, 0, [2.0]), (1, 0, [4.0]), (2, 0, [8.0]), (2, 1, [1.0])])
    assert (first.version, first.filled, first.model.tolist()) == (0, 1, [1.0])
    assert first.verdicts == {0: Verdict(True, 0.0, 0.0, "waits in the buffer, 1 of 2", waits=True)}
    assert (second.version, second.filled, second.buffer) == (1, 0, ())
    assert close(second.model, [1 + 3 * (2 + 4) / 2])
    assert second.verdicts == {0: Verdict(True, 0.5, 0.0, ""), 1: Verdict(True, 0.5, 0.0, "")}
    assert third.verdicts[2].reason == "waits in the buffer, 1 of 2; 1 update old"
    s = 2**-0.5  # of an update of age 1
    assert close(fourth.model, [10 + 3 * (s * 8 + 1) / 2])
    assert fourth.verdicts[2].weight == pytest.approx((s + 1) / 2), "a client that is in the buffer twice"
    assert fourth.version == 2


def test_the_age_is_that_at_arrival():
    """An update that waits in the buffer does not grow older: nothing is used in the meantime."""
    algorithm = FedBuff(size=3, staleness=Polynomial(1.0))
    start, _ = algorithm.init(torch.zeros(1), dict.fromkeys(range(3), 1))
    *_, last = feed(algorithm, start, [(0, 0, [3.0]), (1, 0, [3.0]), (2, 0, [3.0])])
    assert close(last.model, [3.0])
    *_, last = feed(algorithm, last, [(0, 0, [6.0]), (1, 0, [6.0]), (2, 1, [3.0])])
    assert close(last.model, [3 + (3 + 3 + 3) / 3])


def test_weights_are_shares_of_the_buffer():
    algorithm = FedBuff(size=2, staleness=Undiscounted(), preprocess=AsReported())
    start, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 3, 2: 96})
    *_, last = feed(algorithm, start, [(0, 0, [4.0]), (1, 0, [8.0])])
    assert close(last.model, [(1 * 4 + 3 * 8) / 4])
    assert last.verdicts[1].weight == pytest.approx(0.75)


def test_a_rule_in_place_of_the_mean():
    algorithm = FedBuff(size=3, aggregate=Median())
    start, _ = algorithm.init(torch.zeros(1), dict.fromkeys(range(3), 1))
    *_, last = feed(algorithm, start, [(0, 0, [1.0]), (1, 0, [2.0]), (2, 0, [-1e9])])
    assert close(last.model, [1.0])


def test_an_update_that_the_rule_leaves_out_is_filtered():
    algorithm = FedBuff(size=5, aggregate=Krum(f=1))
    start, _ = algorithm.init(torch.zeros(1), dict.fromkeys(range(5), 1))
    *_, last = feed(algorithm, start, [(i, 0, [value]) for i, value in enumerate((1.0, 1.5, 2.0, 2.75, 90.0))])
    assert close(last.model, [1.5]), "0.5 from each of its two neighbours"
    assert {i: (v.accepted, v.weight) for i, v in last.verdicts.items()} == {
        i: (i == 1, float(i == 1)) for i in range(5)
    }
    assert all(v.reason for i, v in last.verdicts.items() if i != 1)


def test_a_buffer_of_one_is_asynchronous_sgd():
    algorithm = FedBuff(size=1, staleness=Undiscounted(), server_lr=0.5)
    state, _ = algorithm.init(torch.zeros(2), {0: 1, 1: 1})
    states = feed(algorithm, state, [(0, 0, [2.0, 0.0]), (1, 0, [0.0, 4.0]), (0, 1, [2.0, 2.0])])
    assert [s.model.tolist() for s in states] == [[1.0, 0.0], [1.0, 2.0], [2.0, 3.0]]
    assert [s.version for s in states] == [1, 2, 3]


def test_one_step_on_two_arrivals_is_two_steps_on_one():
    algorithm = FedBuff(size=2)
    start, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 1, 2: 1})
    (start,) = feed(algorithm, start, [(2, 0, [5.0])])
    together, ready = algorithm.step(start, updates([[1.0], [2.0]]))
    first, second = feed(algorithm, start, [(0, 0, [1.0]), (1, 0, [2.0])])
    assert torch.equal(together.model, second.model)
    assert (together.version, together.filled, ready) == (second.version, second.filled, {0, 1}) == (1, 1, {0, 1})
    assert together.verdicts == {**first.verdicts, **second.verdicts}


def test_a_client_that_comes_late():
    algorithm = FedBuff(size=2, staleness=Undiscounted(), preprocess=AsReported())
    state, _ = algorithm.init(torch.zeros(1), {0: 1})
    state = algorithm.join(state, 7, 3)
    *_, last = feed(algorithm, state, [(0, 0, [4.0]), (7, 0, [8.0])])
    assert close(last.model, [7.0])


@pytest.mark.parametrize("options", [{"size": 0}, {"server_lr": 0.0}, {"server_lr": float("inf")}])
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must be"):
        FedBuff(**options)


@pytest.mark.slow
def test_one_attacker_in_five_ruins_the_mean():
    assert accuracy(FedBuff(), Rescale(-10.0)) < 0.3


@pytest.mark.slow
def test_learns_the_digits_and_with_the_median_under_attack_too():
    assert accuracy(FedBuff()) > 0.75
    assert accuracy(FedBuff(aggregate=Median()), Rescale(-10.0)) > 0.7


def test_a_buffer_that_is_too_small_for_its_rule_fails_at_once():
    with pytest.raises(
        InfeasibleError, match=r"^size = 4 is too small: Krum\(f=1.*\) needs .* 5 rows, got 4\. .* Or raise size"
    ):
        FedBuff(4, aggregate=Krum(f=1)).init(torch.zeros(2), {0: 1})
    FedBuff(5, aggregate=Krum(f=1)).init(torch.zeros(2), {0: 1})
