import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Krum, Mean, Median, TrimmedMean
from phalanx.algorithms import BASGD, FedBuff
from phalanx.algorithms.staleness import Undiscounted
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError, Verdict
from phalanx.runs.packing import pack
from phalanx.training.evaluation import Evaluation
from phalanx.weighting import AsReported
from rivals import accuracy
from toys import close, updates


def begin(algorithm, clients=4, d=1):
    return algorithm.init(torch.zeros(d), dict.fromkeys(range(clients), 1))[0]


def feed(algorithm, state, arrivals):
    """The states after each arrival (client, version, delta)."""
    states = []
    for client, version, *delta in arrivals:
        state, ready = algorithm.step(state, updates([delta], clients=[client], versions=(version,)))
        assert ready == {client}, "who has sent something is sent the present model at once"
        states.append(state)
    return states


def test_the_paper_s_loop_by_hand():
    """Three buffers: clients 0 and 3, client 1, client 2."""
    algorithm = BASGD(buffers=3, aggregate=Median(), server_lr=0.5)
    start = begin(algorithm)
    assert start.assigned == {0: 0, 1: 1, 2: 2, 3: 0}
    states = feed(algorithm, start, [(0, 0, 2.0), (3, 0, 6.0), (0, 0, 10.0), (1, 0, 1.0), (2, 0, -9.0)])
    assert [float(s.buffers[0].mean) for s in states[:4]] == [2.0, 4.0, 6.0, 6.0]  # running means
    assert [s.buffers[0].counts for s in states[:4]] == [{0: 1}, {0: 1, 3: 1}, {0: 2, 3: 1}, {0: 2, 3: 1}]
    assert [s.filled for s in states] == [1, 1, 1, 2, 0]
    assert [s.version for s in states] == [0, 0, 0, 0, 1]
    assert [s.model.tolist() for s in states[:4]] == [[0.0]] * 4
    assert states[1].verdicts == {
        3: Verdict(True, 0.0, 0.0, "waits in buffer 0 with 1 other; 1 of 3 buffers have some", waits=True)
    }
    last = states[-1]
    assert close(last.model, [0.5 * 1.0])  # the median of 6, 1 and -9
    assert all(buffer == (None, {}, None, 0.0) for buffer in last.buffers)
    shares = {i: v.weight for i, v in last.verdicts.items()}
    assert shares == pytest.approx({0: 2 / 9, 3: 1 / 9, 1: 1 / 3, 2: 1 / 3})
    assert last.verdicts[3].reason == "mean of 3 in buffer 0"


def test_a_stale_gradient_counts_like_any_other():
    algorithm = BASGD(buffers=1)
    _, last = feed(algorithm, begin(algorithm), [(0, 0, 1.0), (1, 0, 1.0)])
    assert close(last.model, [2.0])
    assert last.verdicts[1].reason == "mean of 1 in buffer 0"


def test_one_buffer_is_asynchronous_sgd():
    """By the plain loop, and to the bit what FedBuff with a buffer of one gives."""
    rng = torch.Generator().manual_seed(0)
    deltas = torch.randn(20, 3, generator=rng)
    algorithm, other = BASGD(buffers=1, server_lr=0.3), FedBuff(size=1, staleness=Undiscounted(), server_lr=0.3)
    state, twin, w = begin(algorithm, d=3), begin(other, d=3), torch.zeros(3)
    for t, delta in enumerate(deltas):
        batch = updates([delta.tolist()], clients=[t % 4], versions=(max(0, t - 3),))
        state, _ = algorithm.step(state, batch)
        twin, _ = other.step(twin, batch)
        w = w + 0.3 * delta
        assert torch.equal(state.model, twin.model)
        assert torch.allclose(state.model, w)
        assert state.version == t + 1


def test_as_many_buffers_as_clients_is_a_round_for_all():
    algorithm = BASGD(buffers=3, aggregate=Mean())
    *_, last = feed(algorithm, begin(algorithm, 3), [(2, 0, 3.0), (0, 0, 6.0), (1, 0, 9.0)])
    assert close(last.model, [6.0])


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.4)])
def test_two_fast_attackers_spoil_two_buffers_of_five_and_no_more(rule):
    """However often they send, the step stays among the means of honest buffers."""
    algorithm = BASGD(buffers=5, aggregate=rule)
    flood = [(i, 0, -1e6) for i in (0, 1)] * 50
    *_, last = feed(algorithm, begin(algorithm, 7), [*flood, (2, 0, 1.0), (3, 0, 1.2), (5, 0, 1.1), (4, 0, 1.4)])
    assert last.version == 1
    assert 1.0 <= float(last.model) <= 1.4


def test_a_rule_s_choice_of_a_buffer_is_that_of_its_clients():
    algorithm = BASGD(buffers=5, aggregate=Krum(f=1))
    arrivals = [(0, 0, 1.0), (5, 0, 1.2), (1, 0, 1.0), (2, 0, 1.3), (3, 0, 1.2), (4, 0, 50.0)]
    *_, last = feed(algorithm, begin(algorithm, 6), arrivals)
    accepted = [i for i, v in last.verdicts.items() if v.accepted]
    rows = {(0, 5): 1.1, (1,): 1.0, (2,): 1.3, (3,): 1.2}  # which of these are nearest together is Krum's affair
    assert close(last.model, [rows[tuple(accepted)]])
    assert sum(v.weight for v in last.verdicts.values()) == pytest.approx(1)
    assert not last.verdicts[4].accepted
    assert last.verdicts[4].reason.startswith("mean of 1 in buffer 4: ")


def test_a_buffer_that_stays_empty_deals_the_clients_out_anew():
    """Clients 1 and 3 are silent, and they are all of buffer 1."""
    algorithm = BASGD(buffers=2, reassign_after=3, aggregate=Mean())
    states = feed(algorithm, begin(algorithm), [(0, 0, 1.0), (2, 0, 1.0), (0, 0, 1.0), (2, 0, 8.0), (0, 0, 2.0)])
    assert states[1].assigned == {0: 0, 1: 1, 2: 0, 3: 1}
    dealt = states[2]
    assert dealt.assigned == {0: 0, 2: 1, 1: 0, 3: 1}
    assert (dealt.filled, dealt.arrivals, dealt.senders) == (0, 0, frozenset())
    assert all(buffer.mean is None for buffer in dealt.buffers), "nobody has a part in two buffers"
    assert dealt.verdicts.keys() == {0, 2}
    why = "buffer 1 stayed empty for 3 arrivals: all were emptied, clients reassigned"
    assert dealt.verdicts[0] == Verdict(False, 0.0, None, why, False, False)
    assert close(states[4].model, [(8 + 2) / 2])


def test_a_lost_round_starts_the_count_of_arrivals_again():
    """Two arrivals are lost; the third after them is the one that reassigns the clients."""
    algorithm = BASGD(buffers=2, reassign_after=3, aggregate=Mean())
    before = feed(algorithm, begin(algorithm), [(0, 0, 1.0), (2, 0, 1.0)])[-1]
    lost, ready = algorithm.lose_round(before, updates([[1.0]], clients=[2]), "no step")
    assert (lost.filled, lost.arrivals, ready) == (0, 0, {2})
    states = feed(algorithm, lost, [(0, 0, 1.0), (2, 0, 1.0), (0, 0, 1.0)])
    assert [state.assigned == before.assigned for state in states] == [True, True, False]


def test_a_few_fast_clients_cannot_have_the_others_dealt_out_anew():
    algorithm = BASGD(buffers=3, reassign_after=3)
    states = feed(algorithm, begin(algorithm, 6), [(i, 0, 1.0) for i in (0, 1, 0, 1, 0, 1, 0)])
    assert all(s.assigned == states[0].assigned for s in states)
    assert states[-1].buffers[0].counts == {0: 4}


def test_the_three_quirks_of_the_catalyst_code():
    algorithm = BASGD.as_in_catalyst(f=1)
    assert algorithm == BASGD(3, Median(), fresh_only=True, first_only=True, forgets_first=True)
    states = feed(algorithm, begin(algorithm, 6), [(0, 0, 1.0), (0, 0, 9.0), (3, 0, 5.0), (1, 0, 7.0), (2, 0, 4.0)])
    assert states[1].verdicts[0] == Verdict(False, 0.0, 0.0, "a second update before the next step", False, False)
    assert float(states[2].buffers[0].mean) == 5.0, "the first of a buffer is forgotten when a second comes"
    assert close(states[-1].model, [5.0])
    assert states[-1].verdicts[0] == Verdict(False, 0.0, None, "mean of 2 in buffer 0, but for the first", False, False)
    assert states[-1].verdicts[3].weight == pytest.approx(1 / 3)
    (late,) = feed(algorithm, states[-1], [(4, 0, 3.0)])
    assert late.verdicts[4].reason == "1 update old, only fresh ones are used"
    assert late.filled == 0


def test_a_buffer_does_not_grow_with_what_waits_in_it():
    """One client floods while buffer 1 stays empty: the state keeps one mean, and a count."""
    algorithm = BASGD(buffers=2)
    *_, state = feed(algorithm, begin(algorithm, 2), [(0, 0, 3.0)] * 50)
    assert state.buffers[0].counts == {0: 50}
    assert pack(state).size == pack(feed(algorithm, begin(algorithm, 2), [(0, 0, 3.0)])[0]).size
    (last,) = feed(algorithm, state, [(1, 0, 1.0)])
    assert close(last.model, [2.0])
    assert last.verdicts[0].reason == "mean of 50 in buffer 0"


def test_means_of_fresh_models_are_the_model_and_means_of_changes():
    """So that code's median of models, in place of the model, needs no option."""
    rng = torch.Generator().manual_seed(3)
    deltas, base = torch.randn(5, 4, generator=rng).double(), torch.randn(4, generator=rng).double()
    assert torch.allclose(Median()(base + deltas), base + Median()(deltas))


def test_one_step_on_two_arrivals_is_two_steps_on_one():
    algorithm = BASGD(buffers=2)
    start = begin(algorithm)
    together, _ = algorithm.step(start, updates([[1.0], [5.0], [7.0]], clients=[0, 1, 2]))
    *_, second, third = feed(algorithm, start, [(0, 0, 1.0), (1, 0, 5.0), (2, 0, 7.0)])
    assert torch.equal(together.model, third.model)
    assert together.buffers == third.buffers
    assert together.verdicts == {**second.verdicts, **third.verdicts}


def test_ids_need_not_be_in_a_row_and_late_clients_take_the_next_rank():
    algorithm = BASGD(buffers=2)
    state, _ = algorithm.init(torch.zeros(1), {10: 1, 20: 1, 30: 1})
    assert state.assigned == {10: 0, 20: 1, 30: 0}
    assert algorithm.join(state, 5, 1).assigned[5] == 1
    wide = BASGD(buffers=5)
    state, _ = wide.init(torch.zeros(1), dict.fromkeys(range(6), 1))
    assert wide.join(wide.join(state, 9, 1), 8, 1).assigned == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 0, 9: 1, 8: 2}


def test_fewer_clients_than_buffers():
    with pytest.raises(InfeasibleError, match=r"5 buffers needs at least 5 clients, got 4: .* Lower buffers"):
        begin(BASGD(buffers=5))


@pytest.mark.parametrize(
    "options", [{"buffers": 0}, {"server_lr": 0.0}, {"server_lr": float("inf")}, {"reassign_after": 2}]
)
def test_out_of_range(options):
    with pytest.raises(ValueError, match="must be"):
        BASGD(**options)


@pytest.mark.slow
def test_stands_four_attackers_with_nine_buffers():
    assert accuracy(BASGD(9), Rescale(-10.0)) > 0.7


@pytest.mark.slow
def test_learns_the_digits_and_with_one_buffer_falls_to_an_attack():
    assert accuracy(BASGD(9)) > 0.75
    assert accuracy(BASGD(1), Rescale(-10.0)) < 0.3


def test_buffers_that_are_too_few_for_their_rule_fail_at_once():
    sizes = dict.fromkeys(range(9), 1)
    with pytest.raises(
        InfeasibleError, match=r"^buffers = 3 is too small: Krum\(f=1.*\) needs .* got 3\. .* Or raise buffers"
    ):
        BASGD(3, Krum(f=1)).init(torch.zeros(2), sizes)
    BASGD(5, Krum(f=1)).init(torch.zeros(2), sizes)


def test_the_momentum_of_a_client_begins_with_its_first_change():
    algorithm = BASGD(momentum=0.75)
    first, memory = algorithm.upload(torch.tensor([4.0]), None)
    second, memory = algorithm.upload(torch.tensor([8.0]), memory)
    assert (first.tolist(), second.tolist(), memory.tolist()) == ([4.0], [5.0], [5.0])
    assert algorithm.traits.remembers
    plain = BASGD()
    assert plain.upload(torch.tensor([4.0]), None) == (torch.tensor([4.0]), None)
    assert not plain.traits.remembers


def test_momentum_changes_a_run():

    def loss(algorithm):
        return simulate(Run(algorithm, clients=4, until=Until(12), evaluation=Evaluation(every=12))).summary.final.loss

    assert loss(BASGD(2, momentum=0.9)) > loss(BASGD(2)), "the first changes go on for longer"


def test_weights_within_a_buffer_and_none_between():
    """Buffer 0 holds clients 0 and 2, of sizes 1 and 3; buffer 1 client 1, of size 100."""
    algorithm = BASGD(buffers=2, aggregate=Mean(), preprocess=AsReported())
    state, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 100, 2: 3})
    *_, last = feed(algorithm, state, [(0, 0, 8.0), (2, 0, 4.0), (1, 0, 1.0)])
    assert close(last.model, [((1 * 8 + 3 * 4) / 4 + 1) / 2])
    assert {i: v.weight for i, v in last.verdicts.items()} == pytest.approx({0: 1 / 8, 2: 3 / 8, 1: 1 / 2})
    assert algorithm.weights(state, [0, 1]) == {0: 1.0, 1: 1.0}


def test_an_attacker_with_all_the_weight_spoils_one_buffer():
    algorithm = BASGD(buffers=3, preprocess=AsReported())
    state, _ = algorithm.init(torch.zeros(1), {0: 10**9, 1: 1, 2: 1, 3: 1})
    *_, last = feed(algorithm, state, [(3, 0, 1.0), (0, 0, -1e9), (1, 0, 1.0), (2, 0, 1.2)])
    assert 1.0 <= float(last.model) <= 1.2


def test_equal_weights_are_no_weights_to_the_bit():
    rng = torch.Generator().manual_seed(0)
    arrivals = [(k % 5, 0, float(x)) for k, x in enumerate(torch.randn(40, generator=rng))]
    one, other = BASGD(3), BASGD(3, preprocess=AsReported())
    *_, last = feed(one, begin(one, 5), arrivals)
    *_, twin = feed(other, begin(other, 5), arrivals)
    assert torch.equal(last.model, twin.model)
    assert last.verdicts == twin.verdicts


@pytest.mark.parametrize("momentum", [-0.1, 1.0])
def test_momentum_out_of_range(momentum):
    with pytest.raises(ValueError, match="momentum must lie"):
        BASGD(momentum=momentum)


def test_a_client_without_weight_is_not_taken_into_its_buffer():
    algorithm = BASGD(buffers=2)
    state = begin(algorithm)._replace(weights={0: 0.0, 1: 1.0, 2: 1.0, 3: 1.0})
    (state,) = feed(algorithm, state, [(0, 0, 5.0)])
    assert (state.filled, state.verdicts[0].reason) == (0, "its client has no weight")
