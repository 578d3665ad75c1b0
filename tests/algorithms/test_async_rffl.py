"""Reputations by arrival: by hand, and by what they are for."""

import math

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import AsyncRFFL, PerLayer, async_rffl
from phalanx.attacks import RandomFreeRider, SignFlip
from phalanx.core import InfeasibleError
from phalanx.fairness import detection
from phalanx.models import MLP
from phalanx.rng import generator
from phalanx.simulation import Lognormal
from toys import close, updates

HAND = AsyncRFFL(clip=None, fade=0.5, warmup=0)


def begin(algorithm, m=3, d=2):
    return algorithm.init(torch.zeros(d), dict.fromkeys(range(m), 10))


def arrive(algorithm, state, client, row):
    return algorithm.step(state, updates([row], clients=[client]))


def test_arrivals_by_hand():
    state, ready = begin(HAND)
    assert ready == {0, 1, 2}
    state, ready = arrive(HAND, state, 0, [1.0, 0.0])
    assert ready == {0}
    assert state.reputation == pytest.approx(dict.fromkeys(range(3), 1 / 3)), "nobody to compare with yet"
    assert state.accounts[0].judged == 0
    assert close(state.model, [1 / 3, 0.0])
    assert close(state.accounts[0].paid, [0.0, 0.0]), "all that was collected is its own"

    state, _ = arrive(HAND, state, 1, [1.0, 1.0])  # cosine sqrt(1/2) with client 0; the others have the mean: all alike
    assert state.accounts[1].average == pytest.approx(0.5 * math.sqrt(0.5))
    assert state.reputation == pytest.approx(dict.fromkeys(range(3), 1 / 3))
    assert close(state.accounts[1].paid, [1 / 3, 0.0]), "what client 0 brought"

    state, _ = arrive(HAND, state, 0, [2.0, 0.0])  # the same cosine with client 1
    assert state.reputation == pytest.approx(dict.fromkeys(range(3), 1 / 3))
    assert close(state.accounts[0].paid, [1 / 3, 1 / 3]), "what client 1 brought"


def test_an_average_is_divided_by_the_weight_that_it_has_had():
    state, _ = begin(HAND)
    state, _ = arrive(HAND, state, 0, [1.0, 0.0])
    state, _ = arrive(HAND, state, 1, [1.0, 0.0])  # cosine 1
    state, _ = arrive(HAND, state, 0, [1.0, 0.0])  # cosine 1
    state, _ = arrive(HAND, state, 1, [0.6, 0.8])  # cosine 0.6
    assert state.accounts[1].average == pytest.approx(0.5 * 0.5 + 0.5 * 0.6)
    corrected = (0.5 * 0.5 + 0.5 * 0.6) / (1 - 0.5**2)
    r = [1.0, corrected, (1 + corrected) / 2]
    assert state.reputation == pytest.approx({i: r[i] / sum(r) for i in range(3)})


def test_a_part_keeps_its_accounts_and_the_ratios_of_its_reputations():
    state, _ = begin(HAND)
    state = state._replace(reputation={0: 0.5, 1: 0.3, 2: 0.0}, model=torch.tensor([1.0, 2.0]))
    part, ready = HAND.part(state, {0: 10, 2: 10})
    assert part.reputation == {0: 1.0, 2: 0.0}
    part, ready = HAND.part(state, {0: 10, 1: 10})
    assert (part.reputation, ready) == (pytest.approx({0: 0.625, 1: 0.375}), {0, 1})
    assert part.accounts == {i: state.accounts[i] for i in (0, 1)}
    assert part.threshold == HAND.threshold / 2
    assert close(part.model, [1.0, 2.0])
    with pytest.raises(InfeasibleError, match="None of 1 client has a reputation"):
        HAND.part(state, {2: 10})


def test_who_points_away_leaves_before_its_update_is_used():
    state, _ = begin(HAND)
    state, _ = arrive(HAND, state, 0, [1.0, 0.0])
    state, _ = arrive(HAND, state, 1, [1.0, 0.0])
    after, ready = arrive(HAND, state, 2, [-1.0, 0.0])
    assert ready == set()
    assert torch.equal(after.model, state.model)
    assert after.version == 3
    verdict = after.verdicts[2]
    assert (verdict.accepted, verdict.weight, verdict.final) == (False, 0.0, True)
    assert verdict.reason == "reputation 0.0000 < 0.1111, excluded"
    assert after.reputation == pytest.approx({0: 0.5, 1: 0.5})
    assert torch.equal(HAND.download(after, 2), torch.zeros(2)), "it keeps what it has"
    later, ready = arrive(HAND, after, 2, [1.0, 0.0])
    assert (ready, later.version, later.verdicts) == (set(), 3, {}), "and has no say any more"


def test_the_warm_up_counts_the_cosines_of_each():
    algorithm = AsyncRFFL(clip=None, fade=0.5, warmup=2)
    state, _ = begin(algorithm)
    state, _ = arrive(algorithm, state, 0, [1.0, 0.0])
    state, _ = arrive(algorithm, state, 1, [1.0, 0.0])
    for expected in ({2}, {2}, set()):
        state, ready = arrive(algorithm, state, 2, [-1.0, 0.0])
        assert ready == expected


def test_lengths_are_those_of_the_median():
    state, _ = begin(AsyncRFFL())
    state, _ = arrive(AsyncRFFL(), state, 0, [1.0, 0.0])
    state, _ = arrive(AsyncRFFL(), state, 1, [1.0, 0.0])
    before = state.model
    state, _ = arrive(AsyncRFFL(), state, 2, [300.0, 400.0])
    assert close((state.model - before) / state.reputation[2], [0.6, 0.8])
    fixed = AsyncRFFL(clip=0.5)
    state, _ = begin(fixed)
    state, _ = arrive(fixed, state, 2, [300.0, 400.0])
    assert close(state.model, [0.1, 0.4 / 3])


def test_who_is_first_does_not_set_the_length():
    """Who is silent counts with length zero: two of five who are fast and long change nothing, and judge nobody."""
    algorithm = AsyncRFFL()
    state, _ = begin(algorithm, 5)
    for client in (0, 1, 0, 1):
        state, _ = arrive(algorithm, state, client, [1e12, 0.0])
        assert close(state.model, [0.0, 0.0])
        assert close(algorithm.download(state, client), [0.0, 0.0])
        verdict = state.verdicts[client]
        assert (verdict.accepted, verdict.weight, verdict.final) == (False, 0.0, False)
        assert verdict.reason == "only recorded: the median norm of all participants is zero so far"
        assert state.accounts[client].judged == 0
    for client in (2, 3, 4):
        state, _ = arrive(algorithm, state, client, [0.0, 1.0])
        assert state.verdicts[client].weight == pytest.approx(state.reputation[client])
    before = state.model
    state, _ = arrive(algorithm, state, 0, [1e12, 0.0])
    assert torch.linalg.vector_norm(state.model - before) <= 1.0


def test_what_is_compared_with_can_be_any_rule():
    rows = [[1.0, 0.0], [1.0, 0.1], [-50.0, 0.0]]
    cosines = {}
    for name, algorithm in {"mean": HAND, "median": AsyncRFFL(clip=None, fade=0.5, aggregate=Median())}.items():
        state, _ = begin(algorithm, 4)
        state = state._replace(
            accounts={i: a._replace(latest=torch.tensor(rows[i])) if i < 3 else a for i, a in state.accounts.items()}
        )
        state, _ = arrive(algorithm, state, 3, [1.0, 0.0])
        cosines[name] = state.accounts[3].average / 0.5
    assert cosines["mean"] < -0.9
    assert cosines["median"] > 0.99


@pytest.mark.parametrize(
    ("own", "expected"), [("subtracted", [0.0, 1 / 3]), ("kept", [1 / 3, 1 / 3]), ("replaced", [1 / 3 - 1, 1 / 3])]
)
def test_what_becomes_of_ones_own_update(own, expected):
    algorithm = AsyncRFFL(clip=None, own=own)
    state, _ = begin(algorithm)
    state, _ = arrive(algorithm, state, 1, [0.0, 1.0])
    state, _ = arrive(algorithm, state, 0, [1.0, 0.0])
    assert close(state.model, [1 / 3, 1 / 3])
    assert close(state.accounts[0].paid, expected)


def test_over_one_turn_of_everybody_as_much_is_paid_as_by_a_round():
    rows = torch.ones(4, 6) + 0.1 * torch.randn(4, 6, generator=generator(0, "rows"))
    algorithm = AsyncRFFL(clip=None, own="kept", threshold=0.0, fade=0.0)
    state, _ = begin(algorithm, 4, 6)
    for i in range(4):
        state, _ = arrive(algorithm, state, i, rows[i].tolist())
    before = state.accounts[0].paid
    state, _ = arrive(algorithm, state, 0, rows[0].tolist())
    quota = state.reputation[0] / max(state.reputation.values())
    paid = state.accounts[0].paid - before
    taken = paid != 0
    assert int(taken.sum()) == math.ceil(6 * quota - 1e-9)
    assert torch.allclose(paid[taken], rows.mean(0)[taken], atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"fade": 1.0}, "fade must lie in \\[0, 1\\), got 1.0: at 1 reputations would never leave zero"),
        ({"warmup": -1}, "warmup must be at least 0, got"),
        ({"threshold": 1.5}, "it is a share of 1 / |R|"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"clip": math.inf}, "clip must be positive and finite, got inf"),
    ],
)
def test_hyper_parameters_out_of_range(arguments, says):
    with pytest.raises(ValueError, match=says.replace("|", r"\|")):
        AsyncRFFL(**arguments)


def test_layers_that_are_not_the_models():
    with pytest.raises(InfeasibleError, match="5 entries together, and the model has 2"):
        begin(AsyncRFFL(allocation=PerLayer((2, 3))))


@pytest.mark.parametrize("attack", [RandomFreeRider(), SignFlip()], ids=str)
def test_attackers_leave_and_the_honest_stay(attack):
    record = simulate(
        Run(
            algorithm=AsyncRFFL(),
            clients=8,
            model=MLP((16,)),
            training=LocalSGD(batch_size=16, lr=0.1),
            attack=attack,
            additional_byzantine=2,
            latency=Lognormal(sigma=0.5, each_turn=True),
            until=Until(120),
        )
    )
    found = detection(record)
    assert found.excluded == 1.0
    assert found.honest == {}
    assert record.summary.final.accuracy > 0.78


def test_an_arrival_adds_up_reputations_a_fixed_number_of_times(monkeypatch):
    """It was once for each participant: 20 of 34 ms of an arrival at 1,000 of them."""

    def sums(m):
        algorithm = AsyncRFFL(clip=None)
        state, _ = begin(algorithm, m)
        for client in range(3):
            state, _ = arrive(algorithm, state, client, [1.0, client])
        calls = []
        monkeypatch.setattr(async_rffl, "sum", lambda values: (calls.append(None), sum(values))[1], raising=False)
        arrive(algorithm, state, 0, [1.0, 1.0])
        monkeypatch.undo()
        return len(calls)

    assert sums(40) == sums(5) > 0
