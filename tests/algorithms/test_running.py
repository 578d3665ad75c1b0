"""`AsyncRFFL` among many: the same as by passes over all participants, at a cost that does not grow with them."""

import random
from itertools import pairwise

import pytest
import torch

from phalanx.aggregators import Median
from phalanx.algorithms import AsyncRFFL, MedianNorm, async_rffl, running
from phalanx.algorithms.running import Ranked, Slots
from phalanx.rng import generator
from phalanx.runs.packing import pack, unpack
from toys import updates

M, D = 12, 5


@pytest.fixture(autouse=True)
def _sums_from_nine_participants_on(monkeypatch):
    monkeypatch.setattr(async_rffl, "FEW", 8)


def arrivals(m, count, seed=0):
    """Yield clients and rows: most agree, some point away, some are silent for long, some send ties of one length."""
    rng, rows = random.Random(seed), torch.randn(count, D, generator=generator(seed, "rows"))
    for turn in range(count):
        i = rng.randrange(m if turn > count // 3 else max(1, m // 2 + 2))
        row = rows[turn] * 0.5 + 1.0
        if i % 9 == 0:
            row = -row
        if i % 7 == 0:
            row = 3.0 * row / row.norm()
        if i % 11 == 0:
            row = 1e6 * row
        yield i, (0.0 * row if i % 13 == 0 else row).tolist()


def carried_out(algorithm, m, count, seed=0):
    state, _ = algorithm.init(torch.zeros(D), dict.fromkeys(range(m), 10))
    states = []
    for client, row in arrivals(m, count, seed):
        state, _ = algorithm.step(state, updates([row], clients=[client]))
        states.append(state)
    return states


SETTINGS = [
    AsyncRFFL(),
    AsyncRFFL(clip=None, challenge=None),
    AsyncRFFL(clip=2.0, threshold=0.0),
    AsyncRFFL(clip=MedianNorm(0.7), own="replaced", fade=0.0),
    AsyncRFFL(clip=MedianNorm(1.5), warmup=0, threshold=0.9),
]


@pytest.mark.parametrize("algorithm", SETTINGS, ids=str)
def test_it_gives_what_passes_over_all_give(algorithm, monkeypatch):
    kept = carried_out(algorithm, M, 150)
    assert all(state.running is not None for state in kept)
    monkeypatch.setattr(async_rffl, "FEW", M)
    for turn, (state, plain) in enumerate(zip(kept, carried_out(algorithm, M, 150), strict=True)):
        assert plain.running is None
        assert dict(state.reputation) == pytest.approx(plain.reputation, rel=1e-4, abs=1e-9), turn
        assert state.verdicts.keys() == plain.verdicts.keys()
        assert [v.final for v in state.verdicts.values()] == [v.final for v in plain.verdicts.values()], turn
        torch.testing.assert_close(state.model, plain.model, rtol=1e-4, atol=1e-4)
    if algorithm.threshold:
        assert len(plain.reputation) < M, "somebody was excluded"


def test_sums_are_computed_again_so_that_rounding_does_not_grow():
    states = carried_out(AsyncRFFL(threshold=0.0), M, 100)
    assert sum(a.running.updates.left < b.running.updates.left for a, b in pairwise(states)) == 100 // M


def exact(algorithm, state, row, client):
    """Return the states after an arrival, from the sums and from all rows."""
    plain = state._replace(accounts=dict(state.accounts), reputation=dict(state.reputation), running=None)
    return [algorithm.step(one, updates([row], clients=[client]))[0] for one in (state, plain)]


@pytest.mark.parametrize("length", [1e6, 9e14])
def test_a_long_row_that_was_replaced_leaves_nothing_behind(length, monkeypatch):
    algorithm, (state, *_) = AsyncRFFL(clip=None, threshold=0.0), carried_out(AsyncRFFL(clip=None, threshold=0.0), M, 1)
    rng = torch.Generator().manual_seed(3)
    rows = [(k % M, 1e-5 * (1 + 0.3 * torch.randn(D, generator=rng))) for k in range(M + 2)]
    for client, row in [*rows, *[(3, length * torch.randn(D, generator=rng)), (3, rows[0][1])] * 4]:
        state, _ = algorithm.step(state, updates([row.tolist()], clients=[client]))
        state = state._replace(running=state.running._replace(updates=rested(state.running.updates, M)))
    monkeypatch.setattr(async_rffl, "FEW", M)
    kept, plain = exact(algorithm, state, rows[1][1].tolist(), 1)
    assert kept.accounts[1].average == pytest.approx(plain.accounts[1].average, rel=1e-6)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_rows_of_zero_have_no_direction(clip, monkeypatch):
    algorithm = AsyncRFFL(clip=clip, threshold=0.0)
    state = carried_out(algorithm, M, 3 * M)[-1]
    for client in range(1, M):
        state, _ = algorithm.step(state, updates([[0.0] * D], clients=[client]))
        state = state._replace(running=state.running._replace(updates=rested(state.running.updates, M)))
    monkeypatch.setattr(async_rffl, "FEW", M)
    kept, plain = exact(algorithm, state, [1.0] * D, 0)
    assert kept.accounts[0].average == pytest.approx(plain.accounts[0].average, rel=1e-6)


def test_other_rules_and_few_participants_have_no_sums():
    few, _ = AsyncRFFL().init(torch.zeros(D), dict.fromkeys(range(async_rffl.FEW), 10))
    other, _ = AsyncRFFL(aggregate=Median()).init(torch.zeros(D), dict.fromkeys(range(M), 10))
    assert few.running is None
    assert other.running is None


def test_an_arrival_reads_as_many_accounts_for_any_number_of_participants(monkeypatch):
    algorithm = AsyncRFFL(threshold=0.0, challenge=None)

    def read(m):
        state = carried_out(algorithm, m, 3 * m // 2)[-1]
        state = state._replace(running=state.running._replace(updates=rested(state.running.updates, m)))
        counted, get = [], Slots.__getitem__
        with monkeypatch.context() as patched:
            patched.setattr(Slots, "__getitem__", lambda self, key: counted.append(key) or get(self, key))
            for client, row in arrivals(m, 20, seed=1):
                state, _ = algorithm.step(state, updates([row], clients=[client]))
        return len(counted) / 20

    assert read(200) < 1.5 * read(50) < 60


def rested(sums, m):
    """Return sums that will not be computed again soon."""
    return running.replace(sums, left=m)


def test_a_state_that_was_packed_goes_on_with_the_same_bits():
    algorithm = AsyncRFFL()
    state = carried_out(algorithm, M, 60)[-1]
    packed = pack(state)
    again = unpack(packed.form, [torch.cat(list(map(torch.as_tensor, [p.read()[1]]))) for p in packed.pieces])
    for client, row in arrivals(M, 40, seed=2):
        given = updates([row], clients=[client])
        (state, _), (again, _) = algorithm.step(state, given), algorithm.step(again, given)
        assert torch.equal(state.model, again.model)
        assert dict(state.reputation) == dict(again.reputation)


def test_a_part_of_many_keeps_the_ratios_and_goes_on(monkeypatch):
    algorithm = AsyncRFFL(threshold=0.0)
    state = carried_out(algorithm, M, 40)[-1]
    there = dict.fromkeys(range(10), 10)
    part, ready = algorithm.part(state, there)
    assert part.running is not None
    assert ready == there.keys()
    total = sum(state.reputation[i] for i in there)
    assert part.reputation == pytest.approx({i: state.reputation[i] / total for i in there})
    small, _ = algorithm.part(state, dict.fromkeys(range(5), 10))
    assert small.running is None
    monkeypatch.setattr(async_rffl, "FEW", M)
    plain, _ = algorithm.part(state, there)
    given = updates([[1.0, 2.0, 0.0, 1.0, 1.0]], clients=[3])
    (part, _), (plain, _) = algorithm.step(part, given), algorithm.step(plain, given)
    assert dict(part.reputation) == pytest.approx(dict(plain.reputation), rel=1e-4)
    torch.testing.assert_close(part.model, plain.model, rtol=1e-4, atol=1e-5)


def test_ranks_are_those_of_a_sorted_list(monkeypatch):
    monkeypatch.setattr(running, "BLOCK", 3)
    rng, pairs, ranked = random.Random(0), [], Ranked()
    for turn in range(600):
        if pairs and rng.random() < (0.3 if turn < 300 else 0.7):
            pair = rng.choice(pairs)
            ranked, rank = ranked.without(pair)
            assert rank == pairs.index(pair)
            pairs.remove(pair)
        else:
            pair = (float(rng.randrange(8)), turn)
            ranked, rank = ranked.including(pair)
            pairs = sorted([*pairs, pair])
            assert rank == pairs.index(pair)
        assert ranked.between(0, len(pairs)) == pairs
        assert ranked.between(2, 5) == pairs[2:5]
        assert len(ranked) == len(pairs)
        for value in (-1.0, 3.0, 3.5, 9.0):
            assert ranked.below(value) == sum(pair[0] < value for pair in pairs)
            assert ranked.up_to(value) == sum(pair[0] <= value for pair in pairs)
    assert all(ranked.blocks)


def test_slots_are_a_mapping_whose_copies_change_one_value(monkeypatch):
    monkeypatch.setattr(running, "BLOCK", 3)
    values = {key: str(key) for key in range(20, 0, -1)}
    slots = Slots.of(values)
    changed = slots.changed(7, "seven")
    assert dict(slots) == values
    assert dict(changed) == values | {7: "seven"}
    assert sum(a is not b for a, b in zip(slots.blocks, changed.blocks, strict=True)) == 1
    with pytest.raises(KeyError):
        slots[0]
