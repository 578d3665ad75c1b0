import pytest
import torch

from phalanx.aggregators import Bucketing, Krum, Mean, Median
from phalanx.algorithms import DeMoA, FedAvg
from phalanx.core import InfeasibleError, Verdict
from phalanx.weighting import AsReported, Ignore
from toys import close, updates


def begin(algorithm, clients=5):
    return algorithm.init(torch.zeros(1), {i: i + 1 for i in range(clients)})[0]


def test_the_momentum_of_a_client_by_hand():
    algorithm = DeMoA(momentum=0.75)
    first, memory = algorithm.upload(torch.tensor([4.0]), None)
    assert first.tolist() == [1.0]
    second, memory = algorithm.upload(torch.tensor([4.0]), memory)
    assert second.tolist() == [0.75 + 1.0]
    assert algorithm.traits.remembers
    assert DeMoA(momentum=0.0).upload(torch.tensor([4.0]), memory)[0].tolist() == [4.0]


def test_a_step_uses_what_absent_clients_sent_last_and_zero_for_the_silent():
    algorithm = DeMoA(aggregate=Mean(), server_lr=0.5)
    state, ready = algorithm.step(begin(algorithm), updates([[5.0], [10.0]], clients=[0, 1]))
    assert ready == set(range(5))
    assert close(state.model, [0.5 * 15 / 5])
    assert state.verdicts == {0: Verdict(True, 0.2), 1: Verdict(True, 0.2)}
    state, _ = algorithm.step(state, updates([[20.0], [1.0]], clients=[1, 4]))
    assert close(state.model, [1.5 + 0.5 * (5 + 20 + 1) / 5])


def test_a_median_does_not_move_before_half_of_the_clients_have_answered():
    algorithm = DeMoA()
    state = begin(algorithm)
    for i, model in enumerate([0.0, 0.0, 2.0]):
        state, _ = algorithm.step(state, updates([[2.0]], clients=[i]))
        assert close(state.model, [model])


def test_attackers_who_are_most_of_a_round_are_a_minority_of_all():
    """Of five clients two attack; every later round is theirs alone."""
    algorithm, plain = DeMoA(), FedAvg(aggregate=Median(), preprocess=Ignore())
    state, _ = algorithm.step(begin(algorithm), updates([[1.0], [1.1], [0.9], [-9.0], [-9.0]]))
    twin, _ = plain.step(begin(plain), updates([[1.0], [1.1], [0.9], [-9.0], [-9.0]]))
    for _ in range(4):
        bad = updates([[-1e6], [-1e6]], clients=[3, 4])
        before = float(state.model)
        state, twin = algorithm.step(state, bad)[0], plain.step(twin, bad)[0]
        assert 0.899 <= float(state.model) - before <= 1.101
    assert float(twin.model) < -1e5


def test_with_all_clients_and_no_momentum_it_is_the_rule_in_rounds():
    algorithm, other = DeMoA(momentum=0.0), FedAvg(aggregate=Median(), preprocess=Ignore())
    state, twin = begin(algorithm), begin(other)
    rng = torch.Generator().manual_seed(0)
    for _ in range(4):
        batch = updates(torch.randn(5, 1, generator=rng).tolist())
        state, twin = algorithm.step(state, batch)[0], other.step(twin, batch)[0]
        assert torch.equal(state.model, twin.model)
        assert {i: v.weight for i, v in state.verdicts.items()} == {i: v.weight for i, v in twin.verdicts.items()}


def test_weights_are_those_of_all_clients():
    algorithm = DeMoA(aggregate=Mean(), preprocess=AsReported())
    state, _ = algorithm.step(begin(algorithm), updates([[15.0]], clients=[4]))
    assert close(state.model, [15 * 5 / 15])


def test_a_rule_that_chooses_explains_itself():
    algorithm = DeMoA(aggregate=Krum(f=1))
    state, _ = algorithm.step(begin(algorithm), updates([[1.0], [1.0], [1.0], [1.0], [9.0]]))
    assert not state.verdicts[4].accepted
    assert state.verdicts[4].reason


def test_a_client_whose_bucket_is_not_chosen_has_no_share():
    """Krum chooses one of five pairs."""
    algorithm = DeMoA(aggregate=Bucketing(s=2) >> Krum(f=1))
    state, _ = algorithm.step(begin(algorithm, 10), updates([[float(i)] for i in range(10)]))
    reasons = {0.5: "", 0.0: "no share in the rule"}
    assert sorted(v.weight for v in state.verdicts.values()) == [0.0] * 8 + [0.5] * 2
    assert all(v.reason == reasons[v.weight] for v in state.verdicts.values())


def test_later_steps_do_not_change_what_is_cached():
    algorithm, batch = DeMoA(), updates([[1.0], [2.0]], clients=[0, 1])
    state, _ = algorithm.step(begin(algorithm), batch)
    batch.deltas.fill_(99.0)
    assert state.momenta[1].tolist() == [2.0]
    assert algorithm.join(state, 9, 4).weights.keys() == {0, 1, 2, 3, 4, 9}


@pytest.mark.parametrize("options", [{"momentum": 1.0}, {"momentum": -0.1}, {"server_lr": 0.0}])
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must"):
        DeMoA(**options)


def test_too_few_clients_for_the_rule():
    with pytest.raises(InfeasibleError, match="clients = 4 is too small"):
        begin(DeMoA(aggregate=Krum(f=1)), 4)
