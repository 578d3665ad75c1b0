"""Rewards for what a client could not know: by hand, against combinations of what is known, and in runs."""

import dataclasses
from itertools import pairwise

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.aggregators import Median
from phalanx.algorithms import RFFL, FedAvg, Rewarded, Unsent
from phalanx.algorithms.unsent import JudgedUpdate, Known, quotas_of
from phalanx.attacks import LazyFreeRider, Mimic, SignFlip, Sybils
from phalanx.models import MLP
from phalanx.rng import generator
from phalanx.training import Evaluation

UNSENT, NOBODY = Unsent(), Known()


def e(*places, d=8):
    """Return the sum of unit vectors."""
    return torch.eye(d)[list(places)].sum(0)


def judged(rows, known=NOBODY, version=0, **fields):
    sent = {i: JudgedUpdate(row, 1.0, version, **fields) for i, row in enumerate(rows)}
    return UNSENT.agreements(known, sent, sent)


def test_without_anything_known_it_is_the_cosine_with_the_others():
    found = judged([e(0, 1), e(0, 2), e(0, 3)])
    assert found[0] == pytest.approx(1 / 2**0.5 * 2 / 6**0.5), "o is 2 e0 + e2 + e3, over sqrt(2)"


def test_what_is_known_counts_for_nothing():
    """All move along e0, which the model has moved along before; only e1 is new."""
    known = UNSENT.seen(UNSENT.seen(Known(), 0, e(5)), 1, e(5) + e(0))
    found = judged([4 * e(0), e(0, 1), e(0, 1), e(0, 1)], known, version=1)
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert found[1] == pytest.approx(0.5**0.5), "half of the square of its update is new, and agrees"


def test_a_client_knows_only_models_up_to_the_version_that_it_was_sent():
    known = UNSENT.seen(UNSENT.seen(Known(), 0, e(5)), 1, e(5) + e(0))
    assert judged([e(0, 1), e(0, 2), e(0, 3)], known, version=0)[0] == pytest.approx(1 / 3**0.5)


@pytest.mark.parametrize("seed", range(20))
def test_no_combination_of_changes_and_own_updates_is_worth_anything(seed):
    rng = generator(seed, "unsent")
    known, model, served = Known(), torch.randn(200, generator=rng), []
    for version in range(9):
        known = UNSENT.seen(known, version, model)
        served.append(model)
        rows = torch.randn(5, 200, generator=rng) + torch.randn(200, generator=rng)
        known = UNSENT.after(known, {i: JudgedUpdate(row, 1.0, version, model) for i, row in enumerate(rows)})
        model = model + rows.mean(0)
    changes = torch.stack([new - old for old, new in pairwise(served[-4:])])
    made = torch.randn(len(changes), generator=rng) @ changes + known.sent[4][-1] * torch.randn((), generator=rng)
    new = torch.randn(4, 200, generator=rng) + torch.randn(200, generator=rng) + changes[-1]
    found = judged([*new, made], known, version=8)
    assert found[4] == pytest.approx(0, abs=1e-5)
    assert min(found[i] for i in range(4)) > 0.1


def test_all_linear_combinations_of_kept_models_are_known_and_old_ones_are_thinned_out():
    known = Known()
    for version in range(200):
        known = UNSENT.seen(known, version, torch.full((3,), float(version)))
    kept = sorted(known.models)
    assert (kept[0], kept[-4:]) == (0, [196, 197, 198, 199])
    assert len(kept) < 4 * 8
    ages = [199 - v for v in kept]
    assert all(old <= 2 * new + 2 for old, new in pairwise(ages))


def test_equal_updates_are_worth_nothing_and_copies_with_noise_less():
    rows = [e(0, 1), e(0, 2), e(0, 3), e(0, 4)]
    assert judged([*rows, e(0, 4)])[3] == judged([*rows, e(0, 4)])[4] == pytest.approx(0, abs=1e-6)
    near, apart = (judged([*rows, e(0, 4) + noise * e(5)])[4] for noise in (0.3, 1.0))
    assert near > 0
    assert apart <= judged(rows)[3]


def test_updates_that_all_agree_are_no_copies():
    assert judged([e(0)] * 4) == pytest.approx(dict.fromkeys(range(4), 1.0))


def test_nothing_sent_and_nobody_to_compare_with():
    assert judged([e(0), e(0, 1), 0 * e(0)])[2] == 0.0
    assert judged([e(0)]) == {}
    assert UNSENT.agreements(Known(), {0: JudgedUpdate(e(0), 1.0), 1: JudgedUpdate(e(1), 0.0)}, [0, 1]) == {
        1: pytest.approx(0)
    }


def test_quotas_are_ratios_to_the_best_and_unknown_ones_have_the_mean():
    assert quotas_of({0: 0.5, 1: 0.25, 2: None}) == ({0: 0.5, 1: 0.25, 2: 0.375}, {0: 1.0, 1: 0.5, 2: 0.75})
    assert quotas_of({0: 0.0, 1: 0.0})[1] == {0: 1.0, 1: 1.0}


PLAN = Run(clients=8, attack=SignFlip(), additional_byzantine=2, model=MLP((16,)), evaluation=Evaluation(every=10000))


@pytest.mark.parametrize(
    "algorithm",
    [Rewarded(FedAvg(Median()), unsent=UNSENT, challenge=None), RFFL(unsent=UNSENT, challenge=None)],
    ids=str,
)
@pytest.mark.parametrize("attack", [LazyFreeRider(1e-8), Sybils(LazyFreeRider(1e-8)), Mimic(3)], ids=str)
def test_free_riders_earn_less_than_the_honest(algorithm, attack):
    plan = dataclasses.replace(PLAN, algorithm=algorithm, attack=attack, until=Until(12))
    record = simulate(plan)
    last = [step.state["quota"] for step in list(record.history)[-4:]]
    quota = {i: sum(each.get(i, 0.0) for each in last) / len(last) for i in range(10)}
    honest = sorted(quota[i] for i in range(8) if i != 3)
    assert max(quota[8], quota[9]) < 0.5 * honest[3]


def test_only_payments_change():
    """Weights and exclusions are those of the reputations, as without it."""
    plan = dataclasses.replace(PLAN, algorithm=RFFL(challenge=None), attack=SignFlip(), until=Until(1))
    with pytest.warns(UserWarning, match="rewards agreement"):
        without = simulate(plan)
    paid = simulate(dataclasses.replace(plan, algorithm=RFFL(unsent=UNSENT, challenge=None)))
    assert without.history[-1].state["reputation"] == paid.history[-1].state["reputation"]
    assert without.history[-1].state["quota"] != paid.history[-1].state["quota"]
