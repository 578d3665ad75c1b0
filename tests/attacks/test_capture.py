"""Attackers who first behave: in a group, or on credit."""

import pytest
import torch
from federations import rng, update

from phalanx import Run, Until, simulate
from phalanx.algorithms import FedAvg, PerCluster
from phalanx.attacks import (
    ALIE,
    Divided,
    HoldBack,
    InGroup,
    InnerProduct,
    Knowledge,
    LabelFlip,
    Mimic,
    OnCredit,
    PoisonedFL,
    Rescale,
    Role,
    Scheduled,
    SignFlip,
    Together,
)
from phalanx.attacks.capture import Credit
from phalanx.models import MLP

HONEST = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9], [1.0, 0.2]])


def own(delta, memory=None):
    return update(delta.tolist(), memory=memory)


def known(clients=(0, 1, 2, 3, 4)):
    return Knowledge(HONEST[list(clients)], frozenset({7, 8}), clients, ())


def test_every_second_attacker_performs_the_other_attack():
    attack = Divided(Rescale(2.0), Scheduled(Rescale(3.0), start=5))
    parts = [attack.part(Role(client, 4, (2, 6, 9))) for client in (2, 6, 9)]
    assert parts == [Rescale(2.0), parts[1], Rescale(2.0)]
    assert attack.part(Role(6, 5, (2, 6, 9))) == Rescale(3.0)
    assert not attack.traits.omniscient
    assert Divided(Mimic(), SignFlip()).traits.omniscient


def test_a_group_is_the_clients_most_like_its_target():
    sent = InGroup(ALIE(z=0.0), target=0, count=3).forge(own(HONEST[1]), known(), rng())
    torch.testing.assert_close(sent, HONEST[[0, 1, 4]].mean(0))
    sent = InGroup(InnerProduct(2.0), target=3, count=2).forge(own(HONEST[1]), known(), rng())
    torch.testing.assert_close(sent, -2 * HONEST[[2, 3]].mean(0))


def test_a_target_that_is_absent_has_a_successor():
    sent = InGroup(Mimic(2), target=1, count=2).forge(own(HONEST[1]), known((0, 2, 3)), rng())
    torch.testing.assert_close(sent, HONEST[2])
    sent = InGroup(ALIE(z=0.0), target=9, count=1).forge(own(HONEST[1]), known((2, 3)), rng())
    torch.testing.assert_close(sent, HONEST[2])


def test_a_reputation_is_never_spent_below_what_is_kept():
    attack, memory, forged = OnCredit(Rescale(-1.0), fade=0.8, keep=0.5), None, []
    for _ in range(60):
        sent, memory = attack.respond(own(HONEST[1], memory), known(), rng())
        forged.append(torch.equal(sent, -HONEST[1]))
        assert isinstance(memory, Credit)
        assert memory.own >= 0.5 * memory.honest
    assert not forged[0]
    assert 5 < sum(forged) < 30, "it attacks as often as it can, and has to earn in between"


def test_a_reputation_is_that_of_the_server():
    """An honest turn adds the cosine with the honest mean, and so does one that attacks."""
    delta, mean = HONEST[1], HONEST.mean(0)
    sent, memory = OnCredit(Rescale(-1.0), fade=0.5).respond(own(delta), known(), rng())
    torch.testing.assert_close(sent, delta)
    assert memory.own == pytest.approx(0.5 * float(torch.cosine_similarity(delta, mean, 0)))
    assert memory.honest == pytest.approx(0.5 * float(torch.cosine_similarity(HONEST, mean[None]).mean()))
    sent, memory = OnCredit(Rescale(-1.0), fade=0.5, keep=0.0).respond(own(delta, Credit(1.0, 1.0)), known(), rng())
    torch.testing.assert_close(sent, -delta)
    assert memory.own == pytest.approx(0.5 - 0.5 * float(torch.cosine_similarity(delta, mean, 0)))


@pytest.mark.parametrize(
    ("kind", "attack"),
    [
        (InGroup, LabelFlip()),
        (InGroup, Scheduled(SignFlip())),
        (InGroup, Together(LabelFlip(), SignFlip())),
        (OnCredit, Together(SignFlip(), HoldBack())),
        (OnCredit, LabelFlip()),
        (OnCredit, PoisonedFL()),
    ],
)
def test_what_cannot_be_done_in_a_group_or_on_credit_is_refused(kind, attack):
    with pytest.raises(ValueError, match=rf"{kind.__name__} needs an attack"):
        kind(attack)


def test_attackers_behave_and_then_turn_in_a_run():
    attack = Scheduled(
        Together(Mimic(0), Rescale(-5.0)), start=2, otherwise=Divided(Mimic(0), InGroup(ALIE(z=0.0), 0, 3))
    )
    run = Run(algorithm=PerCluster(FedAvg()), clients=6, byzantine=2, attack=attack, model=MLP((4,)), until=Until(3))
    ended = simulate(run).history[-1]
    assert ended.version == 3
