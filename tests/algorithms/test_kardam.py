import math
import random
from collections import Counter
from itertools import product

import jaxtyping
import numpy as np
import pytest
import torch

from phalanx.algorithms import Kardam
from phalanx.algorithms.kardam import ClientGradients, KardamGradient, exchanged, interpolated
from phalanx.algorithms.staleness import Exponential, Polynomial, Undiscounted
from phalanx.attacks import Rescale
from phalanx.core import InfeasibleError, Verdict
from phalanx.weighting import AsReported, Truncate
from rivals import accuracy, run
from toys import close, updates


def begin(algorithm, clients=4):
    return algorithm.init(torch.zeros(1), dict.fromkeys(range(clients), 1))[0]


def feed(algorithm, state, arrivals):
    """The states after each arrival (client, version, base, gradient)."""
    states = []
    for client, version, base, gradient in arrivals:
        batch = updates([[-gradient]], clients=[client], versions=(version,), bases=(torch.tensor([float(base)]),))
        state, ready = algorithm.step(state, batch)
        assert ready == {client}, "who was rejected is asked again"
        states.append(state)
    return states


@pytest.fixture
def _as_a_user_sees_it():
    """Without the checks of types that only tests have."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


PLAIN = {"dampening": Undiscounted(), "server_lr": 1.0}


def test_the_filters_by_hand():
    states = feed(
        Kardam(f=1, **PLAIN),
        begin(Kardam(f=1)),
        [
            (0, 0, 0, 1.0),  # nothing is known: used unseen, x = -1
            (1, 0, 0, 1.0),  # the same, x = -2
            (0, 1, -1, 2.0),  # one of the last two used; its coefficient is |2 - 1| / |-1 - 0| = 1
            (1, 2, -2, 1.0),  # the same, with 0; of {0, 1}, the second largest is K = 0
            (2, 0, 0, 5.0),  # at the model of all that was used: nothing to compare with
            (2, 2, -2, 5.5),  # |5.5 - 1| / 2 = 2.25; its own coefficient 0.25 makes K = 0.25, of {0, 0.25, 1}
            (3, 2, -2, 1.25),  # |1.25 - 1| / 2 = 0.125: used, x = -3.25
            (0, 2, -2, 1.5),  # at the model of the last one used, so compared with the one before: |1.5 - 1| / 2
        ],
    )
    assert [s.version for s in states] == [1, 2, 2, 2, 2, 2, 3, 4]
    assert [s.model.item() for s in states] == [-1, -2, -2, -2, -2, -2, -3.25, -4.75]
    assert [s.threshold for s in states] == [None, None, None, 0.0, 0.0, 0.25, 0.25, 0.25]
    assert [s.rejections for s in states] == [0, 0, 0, 0, 1, 2, 0, 0]
    assert [s.recent for s in states[1::2]] == [(0, 1), (0, 1), (0, 1), (3, 0)]
    told = [next(iter(s.verdicts.values())) for s in states]
    assert [v.accepted for v in told] == [True, True, False, False, False, False, True, True]
    assert [v.score for v in told] == [None, None, 1.0, 0.0, None, 2.25, 0.125, 0.25]
    assert [v.reason for v in told] == [
        "used unchecked, as no more than 1 client can be compared yet",
        "used unchecked, as no more than 1 client can be compared yet; 1 update old",
        "computed 1 of the last 2 gradients used, allowed: 0",
        "computed 1 of the last 2 gradients used, allowed: 0",
        "nothing to compare it with, only recorded to compare the next one with",
        "Lipschitz coefficient 2.25 > 0.25",
        "",
        "1 update old",
    ]


def test_dampening_by_hand():
    """With f = 0 the largest coefficient of all is K, and there is no frequency filter."""
    algorithm = Kardam(f=0, dampening=Polynomial(1.0), server_lr=0.5)
    states = feed(algorithm, begin(algorithm), [(0, 0, 0, 2.0), (1, 0, 0, 2.0), (2, 0, 0, 3.0)])
    assert close(torch.cat([s.model for s in states]), [-1, -1 - 0.5, -1 - 0.5 - 0.5])  # 1/2, 1/4 and 1/6 of them
    assert [next(iter(s.verdicts.values())).weight for s in states] == pytest.approx([1, 1 / 2, 1 / 3])
    assert states[0].recent == ()


def known(*coefficients):
    """What the state keeps of these, one client after the other."""
    ordered = ()
    for k in coefficients:
        ordered = exchanged(ordered, None, k)
    return ordered


def remembered(n):
    """Of n clients a gradient of zero, at zero, and the coefficient 0.1."""
    record = ClientGradients(KardamGradient(torch.zeros(1), torch.zeros(1)), (0.1,))
    return {"records": dict.fromkeys(range(n), record), "largest": (0.1,) * n}


def test_no_f_clients_can_raise_the_threshold_above_all_honest_coefficients():
    algorithm, n = Kardam(f=3), 10
    for m in range(4, n + 1):
        honest = [1.0 + 0.1 * i for i in range(m - 3)]
        assert algorithm._threshold(known(*honest, 1e30, 1e30, 1e30), n) == max(honest)
        assert algorithm._threshold(known(*honest, 0.0, 0.0, 0.0), n) <= max(honest)
    assert algorithm._threshold(known(1e30, 1e30, 1e30), n) is None


def test_interpolation_lets_an_attacker_s_coefficient_in():
    honest = [1.0, 2.0, 3.0]
    assert Kardam(f=1)._threshold(known(*honest, 1e9), 4) == 3.0
    assert Kardam(f=1, interpolate=True)._threshold(known(*honest, 1e9), 4) == pytest.approx(3 + (1e9 - 3) / 4)
    assert Kardam(f=0, interpolate=True)._threshold(known(*honest, 7.0), 4) == 7, "without attackers, the largest"


def test_memory_keeps_the_largest_of_a_client_s_coefficients():
    algorithm = Kardam(f=0, memory=2)
    where = KardamGradient(torch.zeros(1), torch.zeros(1))
    assert (ClientGradients(where, (5.0, 1.0)).largest, ClientGradients(where).largest) == (5.0, None)
    arrivals = [(0, 0, 0, 0.0), (0, 1, 1, 4.0), (0, 2, 2, 6.0), (0, 3, 3, 7.0)]
    *_, last = feed(algorithm, begin(algorithm), arrivals)
    assert last.records[0].coefficients == (2.0, 1.0)
    assert last.largest == (2.0,), "one for each client"


@pytest.mark.parametrize("memory", [1, 3])
def test_coefficients_are_in_order_and_the_largest_of_each_client(memory):
    draw, algorithm = random.Random(memory), Kardam(f=1, memory=memory, **PLAIN)
    state = begin(algorithm, 7)
    for _ in range(60):
        client, at, gradient = draw.randrange(7), draw.choice([0.0, 1.0, 2.5]), draw.choice([0.0, 1.0, 3.0])
        (state,) = feed(algorithm, state, [(client, state.version, at, gradient)])
        found = [max(record.coefficients) for record in state.records.values() if record.coefficients]
        assert state.largest == tuple(sorted(found))
    assert len(set(state.largest)) > 1


def test_an_exchange_of_numbers_that_are_in_order():
    assert exchanged((), None, 2.0) == (2.0,)
    assert exchanged((1.0, 2.0, 2.0, 4.0), 2.0, 3.0) == (1.0, 2.0, 3.0, 4.0)
    assert exchanged((1.0, 2.0), 2.0, 2.0) == exchanged((1.0, 2.0), None, None) == (1.0, 2.0)
    assert exchanged((1.0, 2.0), 1.0, math.inf) == (2.0, math.inf)


def test_the_interpolated_quantile_has_the_bits_of_numpy_s():
    draw = random.Random(0)
    for m in [*range(1, 30), 200] * 5:
        numbers = sorted(draw.expovariate(1.0) ** 9 for _ in range(m))
        for share in (0.0, 1.0, draw.random(), (m - 1) / m, 2 / 3):
            assert interpolated(numbers, share) == float(np.quantile(numbers, share))


def test_a_coefficient_that_overflows_is_infinite():
    far = KardamGradient(torch.tensor([math.inf]), torch.tensor([math.inf]))
    assert far.coefficient(KardamGradient(torch.zeros(1), torch.zeros(1))) == math.inf


def test_a_client_that_is_sent_the_same_model_again_keeps_its_coefficient():
    """The quotient would be infinite; its first gradient there stays the one on record."""
    *_, last = feed(Kardam(f=1), begin(Kardam(f=1)), [(0, 0, 0, 1.0), (0, 1, 2, 2.0), (0, 1, 2, 9.0)])
    assert last.records[0].coefficients == (0.5,)
    assert last.records[0].last.g.item() == 2.0


@pytest.mark.parametrize("f", [1, 2, 3])
def test_the_promise_of_the_frequency_filter_is_that_all_are_distinct(f):
    """Of 2f + 1 gradients in a row, any f clients have computed at most f: then no client has computed two."""
    for clients in product(range(f + 2), repeat=2 * f + 1) if f < 3 else [(0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4, 5, 5)]:
        counts = sorted(Counter(clients).values(), reverse=True)
        assert (sum(counts[:f]) <= f) == (max(counts) == 1)


def test_no_client_is_used_twice_among_2f_plus_1():
    used = []
    algorithm = Kardam(f=2)
    state = begin(algorithm, 7)
    for t, client in enumerate([0, 0, 1, 0, 1, 2, 3, 0, 1, 4, 0, 5, 5, 2, 0] * 4):
        (state,) = feed(algorithm, state, [(client, state.version, float(t), 0.0)])
        used += [client] if state.verdicts[client].accepted else []
    assert len(used) > 10
    assert all(len(set(used[k : k + 5])) == 5 for k in range(len(used) - 4))


def test_a_cap_for_each_client_lets_two_attackers_take_turns():
    """f = 2: clients 0 and 1 are used four times of five, and the paper's filter would have had each once."""
    accepted = {}
    for frequency in ("each", "distinct"):
        algorithm = Kardam(f=2, frequency=frequency)
        state, used = begin(algorithm, 7), 0
        for t in range(4):
            (state,) = feed(algorithm, state, [(t % 2, state.version, float(t), 0.0)])
            used += state.verdicts[t % 2].accepted
        accepted[frequency] = used
        assert state.recent == ((0, 1, 0, 1) if frequency == "each" else (0, 1))
    assert accepted == {"each": 4, "distinct": 2}
    (state,) = feed(
        Kardam(f=2, frequency="each"), begin(Kardam(f=2), 7)._replace(recent=(0, 1, 0, 1)), [(0, 0, 0, 0.0)]
    )
    assert state.verdicts[0].reason == "computed 2 of the last 4 gradients used, allowed: 1"
    assert (state.verdicts[0].accepted, state.verdicts[0].weight) == (False, 0.0)


def test_liveness_is_a_rule_and_shows():
    """All are rejected, until as many in a row are as patience says; the next one is used, whatever it is."""
    algorithm = Kardam(f=1, patience=2, **PLAIN)
    state = begin(algorithm)._replace(
        **remembered(4), used=(KardamGradient(torch.zeros(1), torch.zeros(1)),), recent=(0, 1)
    )
    far = [(2, 0, 1, 5.0), (3, 0, 1, 6.0), (0, 0, 1, 7.0), (2, 0, 1, 8.0)]
    states = feed(algorithm, state, far)
    assert [s.rejections for s in states] == [1, 2, 2, 0], "the frequency filter still holds, and counts for nothing"
    assert [s.version for s in states] == [0, 0, 0, 1]
    assert states[-1].verdicts[2].reason == "used unchecked, as 2 in a row were filtered; Lipschitz coefficient 8 > 6"


def test_patience_is_the_number_of_clients_by_default():
    algorithm = Kardam(f=1)
    assert algorithm._lipschitz(1.0, 0.5) == ("Lipschitz coefficient 1 > 0.5", False)
    state = begin(algorithm, 5)._replace(
        **remembered(5), used=(KardamGradient(torch.zeros(1), torch.zeros(1)),), rejections=4
    )
    assert feed(algorithm, state, [(2, 0, 1, 5.0)])[0].rejections == 5
    assert feed(algorithm, state._replace(rejections=5), [(2, 0, 1, 5.0)])[0].version == 1


def test_compared_with_its_own_last_gradient():
    algorithm = Kardam(f=1, compared="own", **PLAIN)
    arrivals = [(0, 0, 0, 1.0), (1, 0, 0, 9.0), (2, 0, 0, 5.0), (0, 1, 1, 1.5), (1, 1, 1, 9.1), (2, 1, 1, 8.0)]
    states = feed(algorithm, begin(algorithm)._replace(recent=()), arrivals)
    scores = [next(iter(s.verdicts.values())).score for s in states]
    assert scores[:3] == [None] * 3
    assert scores[3:] == pytest.approx([0.5, 0.1, 3.0], rel=1e-5)
    late = algorithm.join(states[-1], 9, 1)
    (late,) = feed(algorithm, late, [(9, 3, 2, 1.0)])
    assert late.verdicts[9] == Verdict(
        False, 0.0, None, "nothing to compare it with, only recorded to compare the next one with"
    )
    assert late.clients == {0, 1, 2, 3, 9}


def test_mixing_moves_towards_the_client_s_model():
    algorithm = Kardam(f=0, dampening=Undiscounted(), server_lr=0.25, mixing=True)
    state = begin(algorithm)._replace(model=torch.tensor([8.0]))
    (state,) = feed(algorithm, state, [(0, 0, 2.0, -2.0)])
    assert close(state.model, [0.75 * 8 + 0.25 * (2 + 2)])


def test_what_a_client_says_of_itself_does_not_matter():
    """Loss is all that a client reports beside its update; the filter sees the update itself."""
    algorithm = Kardam(f=0)
    state = begin(algorithm)
    batch = updates([[-1.0]], losses=torch.tensor([0.0]))
    lie = updates([[-1.0]], losses=torch.tensor([1e30]))
    assert torch.equal(algorithm.step(state, batch)[0].model, algorithm.step(state, lie)[0].model)
    assert algorithm.step(state, batch)[0].verdicts == algorithm.step(state, lie)[0].verdicts


def test_one_step_on_two_arrivals_is_two_steps_on_one():
    algorithm = Kardam(f=1)
    start, *_ = feed(algorithm, begin(algorithm), [(3, 0, 0, 1.0)])
    together, ready = algorithm.step(start, updates([[-1.0], [-2.0], [4.0]]))
    states = feed(algorithm, start, [(0, 0, 0, 1.0), (1, 0, 0, 2.0), (2, 0, 0, -4.0)])
    assert torch.equal(together.model, states[-1].model)
    assert (together.recent, together.version, ready) == (states[-1].recent, states[-1].version, {0, 1, 2})
    assert together.verdicts == {k: v for s in states for k, v in s.verdicts.items()}


def test_the_catalyst_code_is_named_flags():
    algorithm = Kardam.as_in_catalyst(10)
    assert algorithm.server_lr * algorithm.dampening(4) == pytest.approx(float(Exponential(0.1)(5)))
    assert (algorithm.compared, algorithm.frequency, algorithm.interpolate, algorithm.mixing) == (
        "own", "each", True, True,
    )  # fmt: skip


def test_too_few_clients():
    with pytest.raises(InfeasibleError, match=r"f = 2 attackers needs at least 3f \+ 1 = 7 clients, got 6\. Lower f"):
        begin(Kardam(f=2), 6)


@pytest.mark.parametrize(
    "options",
    [
        {"f": -1},
        {"server_lr": 0.0},
        {"server_lr": float("inf")},
        {"server_lr": 1.5, "mixing": True},
        {"patience": 0},
        {"memory": 0},
    ],
)
def test_out_of_range(options):
    with pytest.raises(ValueError, match=r"must be (at least|at most|positive)"):
        Kardam(**options)


@pytest.mark.usefixtures("_as_a_user_sees_it")
@pytest.mark.parametrize("options", [{"compared": "x"}, {"frequency": "x"}])
def test_a_word_that_is_none_of_two(options):
    with pytest.raises(ValueError, match=r"must be one of .*, .*, got .x.\."):
        Kardam(**options)


@pytest.mark.slow
def test_rejects_gradient_inversion_on_the_digits_but_for_the_first_round():
    record = run(Kardam(f=4, compared="own"), Rescale(-10.0))
    assert record.summary.filtered.byzantine > 0.9
    assert record.summary.final.accuracy > 0.75
    byzantine = {i for i, told in record.summary.clients.items() if told.byzantine}
    used = [line.step for line in record.history[1:] for i, v in line.verdicts.items() if v.accepted and i in byzantine]
    assert used
    assert max(used) <= 30, "only before there is a threshold"


@pytest.mark.slow
def test_rejects_more_than_half_of_the_honest_as_well():
    record = run(Kardam(f=4))
    assert record.summary.filtered.honest > 0.5
    assert record.summary.final.accuracy > 0.7
    assert accuracy(Kardam(f=4), Rescale(-10.0)) > 0.7


BOOTSTRAP = {"bootstrap": True, **PLAIN}


def test_the_bootstrap_by_hand():
    """f = 1: medians of three clients' gradients at x = 0 and at x = -1; then the filter, with K of three clients."""
    states = feed(
        Kardam(f=1, **BOOTSTRAP),
        begin(Kardam(f=1)),
        [
            (0, 0, 0, -90.0),
            (0, 0, 0, -99.0),  # the same client again: in place of its first
            (1, 0, 0, 1.0),
            (2, 0, 0, 3.0),  # median of -99, 1, 3: x = -1
            (3, 0, 0, 5.0),  # of the model before: recorded only
            (1, 1, -1, 0.5),
            (2, 1, -1, 2.0),
            (0, 1, -1, 7.0),  # median of 0.5, 2, 7: x = -3; coefficients 0.5, 1, 97: K = 1
            (3, 2, -3, 4.0),  # |4 - 2| / 2 = 1: passes
        ],
    )
    assert [s.version for s in states] == [0, 0, 0, 1, 1, 1, 1, 2, 3]
    assert [float(s.model) for s in states] == [0, 0, 0, -1, -1, -1, -1, -3, -7]
    assert states[2].verdicts == {
        1: Verdict(True, 0.0, None, "waits for the bootstrap, 2 of 3 clients", waits=True),
    }
    assert states[3].verdicts == {i: Verdict(True, 1 / 3, None, "median of the bootstrap") for i in (0, 1, 2)}
    assert states[4].verdicts[3].reason.startswith("of an older model than those of the bootstrap")
    assert states[7].largest == (0.5, 1.0, 97.0)
    assert states[8].threshold == 1.0
    assert states[8].verdicts[3] == Verdict(True, 1.0, 1.0)
    assert not states[7].gathered


def test_one_fast_attacker_has_one_place_of_three_in_the_bootstrap_and_is_used_unseen_without_it():
    flood = [(0, 0, 0, -1e6)] * 30
    honest = [(i, 0, 0, 1.0 + i / 10) for i in (1, 2)]
    plain = feed(Kardam(f=1, **PLAIN), begin(Kardam(f=1)), [*flood, *honest])[-1]
    wary = feed(Kardam(f=1, **BOOTSTRAP), begin(Kardam(f=1)), [*flood, *honest])[-1]
    assert float(plain.model) > 9e5
    assert close(wary.model, [-1.1])


@pytest.mark.parametrize("f", [0, 1, 2])
def test_f_silent_clients_do_not_hold_up_the_bootstrap(f):
    algorithm, n = Kardam(f=f, **BOOTSTRAP), 3 * f + 1
    state, x = begin(algorithm, n), 0.0
    for version in range(2):
        *_, state = feed(algorithm, state, [(i, version, x, 1.0 + 0.1 * version) for i in range(f, n)][: 2 * f + 1])
        x = float(state.model)
    assert state.version == 2
    assert len(state.largest) == 2 * f + 1


def test_weights_by_hand():
    algorithm = Kardam(f=0, preprocess=AsReported(), **PLAIN)
    state, _ = algorithm.init(torch.zeros(1), {0: 1, 1: 4})
    (state,) = feed(algorithm, state, [(0, 0, 0, 8.0)])
    assert close(state.model, [-2.0])
    assert state.verdicts[0].weight == 0.25


@pytest.mark.parametrize(("largest", "fine"), [(3, True), (4, True), (5, False)])
def test_weights_with_which_f_clients_could_outweigh_f_plus_one_are_refused(largest, fine):
    """f = 2 of 7: the two largest against the three smallest, of sizes 2, 3 and 3."""
    sizes = {0: 2, 1: 3, 2: 3, 3: 3, 4: 3, 5: largest, 6: 3}
    algorithm = Kardam(f=2, preprocess=AsReported())
    if fine:
        algorithm.init(torch.zeros(1), sizes)
        return
    with pytest.raises(InfeasibleError, match=r"f \+ 1 = 3 of any 2f \+ 1 .* 8 and 8\. Truncate sizes further"):
        algorithm.init(torch.zeros(1), sizes)


def test_weights_are_refused_where_a_client_has_several_places_and_where_a_step_has_one_client():
    sizes = dict.fromkeys(range(7), 3) | {0: 2}
    algorithm = Kardam(f=2, frequency="each", preprocess=AsReported())
    with pytest.raises(InfeasibleError, match='Set frequency to "distinct"'):
        algorithm.init(torch.zeros(1), sizes)
    with pytest.raises(ValueError, match="Kardam uses updates one at a time"):
        Kardam(preprocess=Truncate(scope="cohort"))
    late, _ = Kardam(f=1, preprocess=AsReported()).init(torch.zeros(1), dict.fromkeys(range(4), 1))
    with pytest.raises(InfeasibleError, match="weigh as much"):
        Kardam(f=1, preprocess=AsReported()).join(late, 9, 50)
