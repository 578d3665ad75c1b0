"""Algorithm 1 of Xu and Lyu 2020, by hand, against the pseudo-code, and by its claims."""

import dataclasses
import math

import jaxtyping
import pytest
import torch

import phalanx
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, MedianNorm, PerLayer, Whole
from phalanx.algorithms.reputation import cos_sim, largest, places
from phalanx.algorithms.rffl import coherence_of, renewed
from phalanx.core import InfeasibleError, Local, Until
from phalanx.engine import LoopSettings
from phalanx.models import MLP, XuLyuMnistCNN
from phalanx.numerics.linalg import shortened
from phalanx.rng import generator
from phalanx.weighting import AsReported
from toys import Scripted, close, updates

AXES = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]  # their equal mean is (2/3, 1/3), with cosines 2, 2 and 1 over sqrt(5)
HAND = dataclasses.replace(RFFL.as_published(), clip=None, fade=0.0)


def begin(algorithm, m, d=2):
    return algorithm.init(torch.zeros(d), dict.fromkeys(range(m), 10))


def of(deltas, clients=None):
    """Updates with these deltas, of any type and width."""
    m, d = deltas.shape
    blank = updates([[0.0] * d] * m, clients)
    return dataclasses.replace(blank, deltas=deltas, bases=(deltas.new_zeros(d),) * m)


def one_round(algorithm, rows, m=None, **fields):
    state, _ = begin(algorithm, m or len(rows), len(rows[0]))
    return algorithm.step(state, updates(rows, **fields))


# --- by hand


def test_a_round_by_hand():
    state, ready = one_round(HAND, AXES)
    assert ready == {0, 1, 2}
    assert close(state.model, [2 / 3, 1 / 3])
    assert state.reputation == pytest.approx({0: 0.4, 1: 0.4, 2: 0.2})
    assert state.threshold == pytest.approx(1 / 9)
    assert state.quota == pytest.approx({0: 1.0, 1: 1.0, 2: 0.5})
    assert close(state.paid[0], [2 / 3 - 1 / 3, 1 / 3])
    assert close(state.paid[2], [2 / 3, -1 / 3]), (
        "half of two entries is the larger one; a third of its own is taken off"
    )
    assert [state.verdicts[i].weight for i in range(3)] == pytest.approx([1 / 3] * 3)
    assert state.verdicts[2].score == pytest.approx(0.2)


def test_the_past_counts_alpha():
    state, _ = one_round(dataclasses.replace(HAND, fade=0.8), AXES)
    r = [0.8 / 3 + 0.2 * c / math.sqrt(5) for c in (2, 2, 1)]
    assert state.reputation == pytest.approx({i: r[i] / sum(r) for i in range(3)})


def test_the_second_round_weighs_by_reputation():
    state, _ = one_round(HAND, AXES)
    state, _ = HAND.step(state, updates(AXES))
    assert close(state.aggregate, [0.8, 0.2])
    assert close(state.model, [2 / 3 + 0.8, 1 / 3 + 0.2])


@pytest.mark.parametrize(
    ("own", "first", "last"),
    [
        ("subtracted", [1 / 3, 1 / 3], [2 / 3, -1 / 3]),
        ("kept", [2 / 3, 1 / 3], [2 / 3, 0.0]),
        ("replaced", [2 / 3 - 1, 1 / 3], [2 / 3, 0.0]),  # the last is paid in the first entry, where its own is zero
    ],
)
def test_what_becomes_of_ones_own_update(own, first, last):
    state, _ = one_round(dataclasses.replace(HAND, own=own), AXES)
    assert close(state.paid[0], first)
    assert close(state.paid[2], last)


def test_replaced_in_full_is_the_servers_model():
    algorithm = dataclasses.replace(HAND, own="replaced")
    state, _ = one_round(algorithm, AXES)
    _, memory = algorithm.upload(torch.tensor(AXES[0]), None)
    local = Local(torch.zeros(2), torch.tensor(AXES[0]), memory)
    assert torch.allclose(algorithm.integrate(local, algorithm.download(state, 0)), state.model)


def test_who_points_away_is_removed_and_its_last_update_counted():
    state, ready = one_round(HAND, [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert ready == {0, 1}
    assert state.reputation == pytest.approx({0: 0.5, 1: 0.5})
    assert close(state.model, [1 / 3, 0.0]), "line 'aggregation' comes before the removal"
    verdict = state.verdicts[2]
    assert (verdict.accepted, verdict.final) == (True, True)
    assert verdict.weight == pytest.approx(1 / 3)
    assert verdict.reason == "reputation 0.0000 < 0.1111, excluded"
    assert torch.equal(state.paid[2], torch.zeros(2)), "and paid nothing"


def test_who_is_removed_has_no_say_any_more():
    state, _ = one_round(HAND, [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    after, _ = HAND.step(state, updates([[0.0, 1.0], [0.0, 1.0], [9.0, 9.0]]))
    assert close(after.aggregate, [0.0, 1.0])
    assert after.verdicts.keys() == {0, 1}
    assert torch.equal(after.paid[2], state.paid[2])


def test_the_warm_up_removes_nobody():
    algorithm = dataclasses.replace(HAND, warmup=2)
    rows = updates([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    state, ready = one_round(algorithm, rows.deltas.tolist())
    assert state.verdicts[2].reason == "reputation 0.0000 < 0.1111, in the warm-up"
    state, ready = algorithm.step(state, rows)
    assert ready == {0, 1, 2}
    state, ready = algorithm.step(state, rows)
    assert ready == {0, 1}


def test_declared_sizes_begin_where_the_authors_do():
    algorithm = dataclasses.replace(HAND, preprocess=AsReported())
    state, _ = algorithm.init(torch.zeros(2), {0: 10, 1: 10, 2: 60})
    assert state.reputation == pytest.approx({0: 0.125, 1: 0.125, 2: 0.75})
    state, _ = algorithm.step(state, updates(AXES))
    assert close(state.aggregate, [0.25, 0.75])


def test_the_preset_of_the_authors():
    layers = PerLayer((2, 2))
    assert RFFL.authors(layers) == RFFL(
        fade=0.95,
        warmup=10,
        clip=0.5,
        allocation=layers,
        own="kept",
        preprocess=AsReported(),
        min_coherence=0.0,
        challenge=None,
    )


# --- against the pseudo-code


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def literally(rows_by_round, alpha, c, own, d):
    """Algorithm 1, one participant after the other, with models that are moved round by round."""
    m = len(rows_by_round[0])
    R, r, w = list(range(m)), dict.fromkeys(range(m), 1 / m), {i: [0.0] * d for i in range(m)}
    for rows in rows_by_round:
        dw_g = [sum(r[i] * rows[i][e] for i in R) for e in range(d)]
        cosines = {i: cosine(dw_g, rows[i]) for i in R}
        new = {i: max(r[i] * alpha + cosines[i] * (1 - alpha), 0.0) for i in R}
        new = {i: value / sum(new.values()) for i, value in new.items()}
        stay = [i for i in R if new[i] >= c / len(R)]
        for i in R:
            w[i] = [a + b for a, b in zip(w[i], rows[i], strict=True)]
        for i in stay:
            count = math.ceil(new[i] / max(new.values()) * d - 1e-9)
            chosen = sorted(range(d), key=lambda e: -abs(dw_g[e]))[:count]
            for e in range(d):
                paid = dw_g[e] if e in chosen else 0.0
                w[i][e] += paid - (r[i] * rows[i][e] if own == "subtracted" else 0.0)
        R, r = stay, {i: new[i] / sum(new[j] for j in stay) for i in stay}
    return w, r


@pytest.mark.parametrize("own", ["subtracted", "kept"])
@pytest.mark.parametrize("seed", range(5))
def test_equal_to_the_pseudo_code(seed, own):
    m, d, rounds = 5, 12, 4
    drawn = torch.randn(rounds, m, d, generator=generator(seed, "pseudo-code"), dtype=torch.float64)
    drawn += torch.tensor([1.0, 1.0, 0.6, 0.3, 0.0], dtype=torch.float64)[:, None]
    algorithm = dataclasses.replace(RFFL.as_published(), clip=None, own=own)
    state, ready = algorithm.init(torch.zeros(d, dtype=torch.float64), dict.fromkeys(range(m), 1))
    memories = dict.fromkeys(range(m))
    for rows in drawn:
        sent = {}
        for i in sorted(ready):
            sent[i], memories[i] = algorithm.upload(rows[i], memories[i])
        state, ready = algorithm.step(state, of(torch.stack(list(sent.values())), sorted(sent)))
    w, r = literally(drawn.tolist(), 0.8, 1 / 3, own, d)
    assert state.reputation == pytest.approx(r)
    for i in r:
        model = algorithm.integrate(Local(drawn[0, 0], drawn[0, 0], memories[i]), algorithm.download(state, i))
        assert close(model, w[i])
    assert len(r) < m or seed, "some seed removes somebody"


# --- clipping


def test_gamma_is_applied_by_both_sides():
    algorithm = RFFL(clip=0.5, fade=0.0)
    sent, memory = algorithm.upload(torch.tensor([3.0, 4.0]), None)
    assert close(sent, [0.3, 0.4])
    assert torch.equal(memory, sent)
    state, _ = one_round(algorithm, [[1.0, 0.0], [1.0, 0.0], [0.0, 100.0]])
    assert close(state.aggregate, [1 / 3, 0.5 / 3])


def test_the_median_norm_needs_no_search():
    state, _ = one_round(RFFL(fade=0.0), [[1.0, 0.0], [2.0, 0.0], [0.0, 100.0]])
    assert close(state.aggregate, [1.0, 2 / 3]), "the longest is as long as the second"
    longer, _ = one_round(RFFL(clip=MedianNorm(10.0)), [[1.0, 0.0], [2.0, 0.0], [0.0, 100.0]])
    assert close(longer.aggregate, [1.0, 20 / 3])
    sent, _ = RFFL().upload(torch.tensor([3.0, 4.0]), None)
    assert close(sent, [3.0, 4.0]), "a client does not know the median"


def test_who_is_on_probation_has_no_part_in_the_median_norm():
    """Otherwise one long update decides how long the others may be."""
    algorithm = RFFL(fade=0.0)
    begun, _ = begin(algorithm, 4)
    rows = [[1.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 1000.0]]
    state, _ = algorithm.step(begun._replace(probation={3: 0}), updates(rows))
    assert close(state.aggregate, [1.0, 2 / 3]), "1, 2 and 2 along their axes: the median of 1, 2 and 3 is 2"


def crowd(seed, honest=10, riders=2, d=2_000):
    """Honest updates with a common direction, and vectors from U[-1, 1], which are some twenty times as long."""
    rng = generator(seed, "crowd")
    direction = torch.nn.functional.normalize(torch.randn(d, generator=rng), dim=0)
    noise = torch.randn(honest, d, generator=rng) / math.sqrt(d)
    return torch.cat([direction + noise, 2 * torch.rand(riders, d, generator=rng) - 1])


@pytest.mark.parametrize("clip", [MedianNorm(), 0.5])
def test_free_riders_leave_within_five_rounds_and_the_honest_stay(clip):
    algorithm = RFFL(clip=clip)
    state, ready = begin(algorithm, 12, 2_000)
    for t in range(10):
        state, ready = algorithm.step(state, of(crowd(t)))
        assert t < 4 or ready == set(range(10))


def test_without_a_limit_the_honest_leave():
    """Why `clip` is not None by default: the paper to the letter."""
    algorithm = dataclasses.replace(RFFL.as_published(), clip=None)
    state, ready = begin(algorithm, 12, 2_000)
    for t in range(10):
        state, ready = algorithm.step(state, of(crowd(t)))
    assert ready == {10, 11}


# --- an aggregate of updates that have nothing in common


def stuck(t):
    """Updates of ten participants: noise, in which six drift the same way, and the four that learn go another."""
    rows = torch.randn(10, 2_000, generator=torch.Generator().manual_seed(t))
    rows[:4, 0] += 2.0
    rows[:4, 1] -= 6.0
    rows[4:, 1] += 8.0
    return rows


def test_where_most_do_not_learn_those_who_do_stay():
    left = []
    for algorithm in (RFFL(), RFFL.as_published()):
        state, _ = begin(algorithm, 10, 2_000)
        for t in range(15):
            state, ready = algorithm.step(state, of(stuck(t)))
        left.append(set(ready))
    assert left == [set(range(10)), set(range(4, 10))]


def test_attackers_that_cancel_the_others_out_are_excluded_a_round_later():
    """A third reverses: the aggregate is short in the first round, and in the second they have no weight."""
    honest = torch.ones(8, 100) + 0.1 * torch.randn(8, 100, generator=torch.Generator().manual_seed(0))
    rows = torch.cat([honest, -honest[:4]])
    algorithm = RFFL(min_coherence=1.5)
    state, ready = begin(algorithm, 12, 100)
    state, ready = algorithm.step(state, of(rows))
    assert ready == set(range(12))
    assert all(state.reputation[i] == 0.0 for i in range(8, 12))
    state, ready = algorithm.step(state, of(rows))
    assert ready == set(range(8))


# --- who is absent, zero, or back


def test_who_is_absent_keeps_its_reputation_and_is_paid_nothing():
    state, _ = one_round(HAND, AXES)
    after, ready = HAND.step(state, updates(AXES[1:], clients=[1, 2]))
    assert ready == {0, 1, 2}
    assert after.reputation[0] == pytest.approx(state.reputation[0])
    assert sum(after.reputation.values()) == pytest.approx(1)
    assert after.paid[0] is state.paid[0]
    assert close(after.aggregate, [2 / 3, 1 / 3]), "weights of 0.4 and 0.2 among two"


def test_a_lost_answer_does_not_set_a_model_off_its_course():
    """Client 1 trains twice on one download; both trainings stay in its model, and the allocation counts once."""
    state, _ = one_round(HAND, AXES)
    delta, memory = HAND.upload(torch.tensor([1.0, 0.0]), None)
    _, memory = HAND.upload(torch.tensor([0.0, 2.0]), memory)  # this one is lost
    model = HAND.integrate(Local(delta, delta, memory), HAND.download(state, 1))
    assert close(model, [1.0 + 1 / 3, 2.0 + 1 / 3])


def test_nothing_to_compare_with_changes_little():
    state, ready = one_round(RFFL(clip=None), [[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert state.reputation[0] == pytest.approx(0.8 / 3 / (0.8 + 0.4))
    state, ready = one_round(RFFL(), [[0.0, 0.0]] * 3)
    assert ready == {0, 1, 2}
    assert state.reputation == pytest.approx(dict.fromkeys(range(3), 1 / 3))
    assert state.coherence == 0.0
    state, _ = one_round(RFFL(clip=None, fade=0.0), [[1.0, 0.0], [-1.0, 0.0]])
    assert state.reputation == pytest.approx({0: 0.5, 1: 0.5}), "opposite updates leave no aggregate"


def test_probation_and_return():
    algorithm = dataclasses.replace(HAND, probation=3)
    state, ready = one_round(algorithm, [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert ready == {0, 1, 2}
    assert state.probation == {2: 1}
    assert state.reputable == {0, 1}
    assert sum(state.reputation[i] for i in state.reputable) == pytest.approx(1)
    assert state.verdicts[2].reason == "reputation 0.0000 < 0.1111, on probation since round 1"

    better = updates([[1.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    back, ready = algorithm.step(state, better)
    assert close(back.aggregate, [1.0, 0.0]), "its update has no weight yet"
    assert back.probation == {}
    assert back.verdicts[2].accepted is False
    assert back.verdicts[2].reason == "reputation 0.5000 >= 0.1667, back from probation"
    assert sum(back.reputation.values()) == pytest.approx(1)
    after, _ = algorithm.step(back, better)
    assert after.verdicts[2].weight == pytest.approx(1 / 3)

    bad = updates([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    for t in (2, 3):
        state, ready = algorithm.step(state, bad)
        assert (ready, state.probation) == ({0, 1, 2}, {2: 1}), t
        assert torch.equal(state.paid[2], torch.zeros(2))
    state, ready = algorithm.step(state, bad)
    assert (ready, state.probation) == ({0, 1}, {})
    assert state.verdicts[2].final
    assert state.verdicts[2].weight == 0.0


def test_a_round_of_those_on_probation_alone_changes_nothing():
    algorithm = dataclasses.replace(HAND, probation=3)
    state, _ = one_round(algorithm, [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    after, ready = algorithm.step(state, updates([[1.0, 0.0]], clients=[2]))
    assert ready == {0, 1, 2}
    assert after.version == 2
    assert after.reputation == state.reputation
    assert torch.equal(after.model, state.model)
    assert after.verdicts[2].reason == "no weight, and nobody reported who has some"


def test_somebody_always_stays():
    for seed in range(20):
        rows = torch.randn(4, 3, generator=generator(seed, "rows"))
        state, ready = one_round(RFFL(threshold=0.999, fade=0.0, clip=None), rows.tolist())
        assert ready
        assert sum(state.reputation.values()) == pytest.approx(1)


# --- other rules, incoherent rounds


def test_reputations_are_the_weights_of_any_rule():
    algorithm = RFFL(clip=None, fade=0.0, aggregate=Median())
    state, _ = one_round(algorithm, [[1.0, 0.0], [2.0, 0.1], [50.0, 50.0]])
    assert close(state.aggregate, [2.0, 0.1])
    heavy = state._replace(reputation={0: 0.6, 1: 0.2, 2: 0.2})
    after, _ = algorithm.step(heavy, updates([[1.0, 0.0], [2.0, 0.1], [50.0, 50.0]]))
    assert close(after.aggregate, [1.0, 0.0]), "a weighted median"


def test_in_a_round_of_little_coherence_nobody_leaves():
    rows = [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]  # their mean is a third, that of orthogonal ones 1 / sqrt(3)
    algorithm = dataclasses.replace(HAND, min_coherence=0.6)
    state, ready = one_round(algorithm, rows)
    assert state.coherence == pytest.approx(1 / math.sqrt(3))
    assert ready == {0, 1, 2}
    assert state.reputation == pytest.approx({0: 0.5, 1: 0.5, 2: 0.0}), "but its reputation is gone"
    assert state.verdicts[2].reason == "reputation 0.0000 < 0.1111, in a round of little coherence"
    assert one_round(dataclasses.replace(HAND, min_coherence=0.5), rows)[1] == {0, 1}


def test_in_a_round_of_little_coherence_probation_goes_on():
    algorithm = dataclasses.replace(HAND, probation=1, min_coherence=1.1)
    rows = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-0.1, 0.0, 0.0]]
    state, _ = one_round(algorithm, rows)
    assert state.probation == {3: 1}
    apart = updates([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, 0.0, 0.0]])
    later, ready = algorithm.step(state, apart)
    assert (ready, later.probation) == ({0, 1, 2, 3}, {3: 1})


@pytest.mark.parametrize(
    ("rows", "expected"), [([[1.0, 0.0]] * 4, 2.0), (torch.eye(4).tolist(), 1.0), ([[1.0, 0.0], [-1.0, 0.0]], 0.0)]
)
def test_coherence(rows, expected):
    dw = torch.tensor(rows)
    weights = torch.ones(len(dw), dtype=torch.float64)
    assert coherence_of(dw.mean(0), dw, weights) == pytest.approx(expected)


# --- the parts


def test_largest_by_hand():
    vector = torch.tensor([0.1, -3.0, 2.0, 0.0, 5.0, -1.0])
    whole = places(vector, Whole().parts(6))
    assert close(whole * 6, [4, 1, 2, 5, 0, 3])
    assert close(largest(vector, whole, 0.5), [0.0, -3.0, 2.0, 0.0, 5.0, 0.0])
    assert close(largest(vector, whole, 0.51), [0.0, -3.0, 2.0, 0.0, 5.0, -1.0]), "rounded up"
    layers = places(vector, PerLayer((2, 4)).parts(6))
    assert close(largest(vector, layers, 0.5), [0.0, -3.0, 2.0, 0.0, 5.0, 0.0])
    assert close(largest(vector, layers, 0.25), [0.0, -3.0, 0.0, 0.0, 5.0, 0.0])
    assert torch.equal(largest(vector, layers, 1.0), vector), "a quota of one is everything"
    assert not largest(vector, layers, 0.0).any()


def test_of_equal_entries_the_first_is_taken_and_rounding_does_not_add_one():
    vector = torch.ones(30)
    assert int(largest(vector, places(vector, (30,)), 0.1).sum()) == 3
    assert int(largest(vector, places(vector, (30,)), 0.1 + 1e-15).sum()) == 3
    assert torch.equal(largest(vector, places(vector, (30,)), 0.1).nonzero().flatten(), torch.arange(3))


def test_cosines_and_lengths():
    assert close(cos_sim(torch.tensor([1.0, 1.0]), torch.tensor([[2.0, 0.0], [0.0, 0.0]])), [math.sqrt(0.5), 0.0])
    assert close(cos_sim(torch.zeros(2), torch.tensor([[2.0, 0.0], [0.0, 0.0]])), [0.0, 0.0])
    assert close(
        shortened(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0).flatten(), [0.6, 0.8, 0.3, 0.4, 0, 0]
    )
    assert not shortened(torch.tensor([[3.0, 4.0]]), 0.0).any()


def test_reputations_of_the_members_keep_their_sum():
    past = torch.tensor([0.25, 0.25, 0.1], dtype=torch.float64)
    members = torch.tensor([True, True, False])
    r = renewed(past, torch.tensor([0.8, 0.2, 0.8], dtype=torch.float64), 0.5, members)
    assert close(r, [0.5 * 1.05 / 1.5, 0.5 * 0.45 / 1.5, 0.5 * 0.9 / 1.5])
    assert torch.equal(renewed(past, -torch.ones(3, dtype=torch.float64), 0.0, members), past)


def test_layers_of_a_model_are_found_without_drawing():
    before = torch.get_rng_state()
    assert PerLayer.of(MLP((64,)), (1, 28, 28), 10).sizes == (784 * 64, 64, 640, 10)
    cnn = PerLayer.of(XuLyuMnistCNN(), (1, 28, 28), 10)
    assert cnn.sizes == (576, 64, 50176, 16, 51200, 200, 2000, 10)
    assert sum(cnn.sizes) == 104_242
    assert torch.equal(torch.get_rng_state(), before)


# --- errors, and runs


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"fade": 1.5}, r"fade must lie in \[0, 1\], got 1.5"),
        ({"threshold": 1.0}, "threshold must lie in .* it is a share of 1 / |R|"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"clip": 0.0}, "clip must be positive and finite, got 0.0"),
        ({"probation": -1}, "probation must be at least 0, got"),
        ({"min_coherence": -0.1}, "min_coherence must be at least 0"),
        ({"fade": -1, "warmup": -1}, "fade .*; warmup"),
    ],
)
def test_hyper_parameters_out_of_range(arguments, says):
    with pytest.raises(ValueError, match=says):
        RFFL(**arguments)


def test_an_unknown_choice_is_named_without_the_checks_of_tests(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="own must be one of 'subtracted', 'kept', 'replaced', got 'lost'"):
        RFFL(own="lost")


def test_errors_of_the_parts():
    with pytest.raises(ValueError, match="factor must be positive"):
        MedianNorm(0.0)
    with pytest.raises(ValueError, match="an integer of at least 1"):
        PerLayer((3, 0))
    with pytest.raises(InfeasibleError, match=r"5 entries together, and the model has 2\. Take PerLayer\.of"):
        begin(RFFL(allocation=PerLayer((2, 3))), 2)


def test_in_the_engine_the_removed_are_not_asked_again():
    transport = Scripted({0: [1.0], 1: [1.0], 2: [-1.0]})
    state = phalanx.run(RFFL(), transport, torch.zeros(2), LoopSettings(until=Until(8)))
    asked = [set(send) for send in transport.sent]
    assert asked[0] == {0, 1, 2}
    assert asked[-1] == {0, 1}
    assert state.reputation == pytest.approx({0: 0.5, 1: 0.5})
