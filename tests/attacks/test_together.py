"""Reported sizes, Sybils, and attacks made of attacks."""

import pytest
import torch
from federations import cloud, rng, seen, sent, update

from phalanx.attacks import (
    ALIE,
    AllLabelsTo,
    Backdoor,
    Divided,
    Flood,
    Gaussian,
    HoldBack,
    InnerProduct,
    Joining,
    JoinLate,
    LabelFlip,
    LabelShift,
    MinMax,
    Misreporting,
    Neurotoxin,
    OwnTraining,
    Poisoning,
    Replay,
    ReportSize,
    ReportTimes,
    Rescale,
    Scheduled,
    SignFlip,
    Sybils,
    Together,
)
from phalanx.attacks.attack import HOOKS, each
from phalanx.attacks.data import goal, poison
from phalanx.attacks.size import reported_size
from phalanx.data import Dataset


def images():
    return Dataset(torch.zeros(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2]), 3)


def test_declared_sizes():
    assert ReportSize().reported_size(3) == 1_000_000
    assert ReportSize(7).reported_size(3) == 7
    assert ReportTimes(10.0).reported_size(3) == 30
    assert ReportTimes(0.5).reported_size(7) == 4
    assert ReportTimes(0.01).reported_size(3) == 1, "at least one example"


def test_together_poisons_declares_and_forges_in_turn():
    attack = Together(AllLabelsTo(1), Together(Rescale(2.0), Together(ReportSize(5), ReportTimes(3.0))))
    assert poison(attack, images(), rng()).y.unique().tolist() == [1]
    assert reported_size(attack, 100) == 15
    assert attack.forge(update([1.0, -3.0]), None, rng()).tolist() == [2.0, -6.0]
    assert reported_size(Together(ReportTimes(3.0), ReportSize(5)), 100) == 5
    assert Together(Rescale(2.0), Rescale(-1.5)).forge(update([1.0]), None, rng()).tolist() == [-3.0]
    assert poison(Together(LabelShift(), LabelFlip(2, 1)), images(), rng()).y.tolist() == [1, 1, 0, 1, 1, 0]


def test_the_goal_is_that_of_the_first_that_has_one():
    backdoor, flip = Backdoor(target=2), LabelFlip(0, 1)
    for attack, one in (
        (Together(backdoor, flip), backdoor),
        (Together(ReportSize(), flip), flip),
        (Together(flip, Rescale()), flip),
    ):
        assert torch.equal(goal(attack, images()).x, one.goal(images()).x)
        assert torch.equal(goal(attack, images()).y, one.goal(images()).y)
    assert goal(Together(Rescale(), Gaussian()), images()) is None


@pytest.mark.parametrize(
    "attack", [LabelFlip(1, 2), ReportSize(), Neurotoxin(), JoinLate(), Flood(), HoldBack(), Replay()], ids=str
)
def test_attacks_made_of_others_do_all_that_these_do_alone(attack):
    (kind,) = {base for base in HOOKS.values() if isinstance(attack, base)} - {OwnTraining}
    for made in (Together(attack, SignFlip()), Together(SignFlip(), Sybils(attack)), Scheduled(attack, start=3)):
        assert each(made, kind) == (attack,)
    assert each(Divided(attack, SignFlip()), kind) == each(Divided(attack, attack), kind)[:1] == (attack,)
    whole_run = kind in (Poisoning, Misreporting, Joining)  # of a schedule, these are those of the attack alone
    assert each(Scheduled(SignFlip(), otherwise=attack), kind) == (() if whole_run else (attack,))
    assert not each(Together(Rescale(), Scheduled(Sybils(Gaussian()))), kind)


def test_together_sees_what_its_parts_see():
    assert not Together(Rescale(), ReportSize()).traits.omniscient
    assert Together(Rescale(), ALIE()).traits.omniscient
    assert Together(MinMax(), Rescale()).traits.omniscient
    assert not Together(MinMax(), Rescale()).traits.needs_rule
    assert Together(ReportSize(), ALIE("search")).traits.needs_rule
    assert Sybils(InnerProduct("search")).traits.needs_rule

    class Blind(Gaussian):
        def forge(self, update, knowledge, rng):
            assert knowledge is None
            return update.delta

    knowledge = cloud()
    forged = sent(Together(Blind(), InnerProduct(1.0)), knowledge)
    assert torch.equal(forged[0], -knowledge.honest.mean(0))
    sent(Sybils(Blind()), knowledge)


def test_a_backdoor_with_model_replacement_outweighs_everybody():
    """Eight honest clients that have converged, two attackers, factor 10 / 2: the mean is the attackers' mean."""
    knowledge = seen(torch.zeros(8, 2), [[1.0, 2.0], [3.0, 2.0]])
    forged = sent(Together(Backdoor(), Rescale(5.0)), knowledge)
    assert torch.cat((knowledge.honest, forged)).mean(0).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("send", ["first", "mean"])
def test_sybils_send_the_same_however_they_draw(send):
    knowledge = cloud()
    forged = sent(Sybils(Gaussian(), send), knowledge)
    assert all(torch.equal(row, forged[0]) for row in forged)
    assert torch.equal(forged, sent(Sybils(Gaussian(), send), knowledge, seed=1)), "one stream, by its own seed"
    assert not torch.equal(forged, sent(Sybils(Gaussian(), send, seed=1), knowledge))


def test_sybils_by_hand():
    knowledge = seen([[9.0, 9.0]], [[1.0, 0.0], [3.0, 4.0]])
    assert sent(Sybils(Rescale(-2.0)), knowledge).tolist() == [[-2.0, 0.0]] * 2
    assert sent(Sybils(Rescale(-2.0), "mean"), knowledge).tolist() == [[-4.0, -4.0]] * 2


def test_sybils_poison_declare_and_want_what_their_attack_does():
    attack = Sybils(Together(LabelFlip(0, 1), ReportSize(9)))
    assert poison(attack, images(), rng()).y.tolist() == [1, 1, 2, 1, 1, 2]
    assert reported_size(attack, 2) == 9
    assert goal(attack, images()).y.tolist() == [1, 1]
    assert sent(Sybils(MinMax()), cloud()).shape == (4, 20)
