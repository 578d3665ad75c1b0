"""Attacks by version, attacks with a memory, and what each attacker knows of itself."""

from dataclasses import dataclass, replace

import pytest
import torch
from federations import rng, update
from test_timing import OLD, federation, go, mine

from phalanx import Run, Until, simulate
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import (
    ALIE,
    Backdoor,
    DistributedBackdoor,
    Duplicate,
    Flood,
    Forged,
    Gaussian,
    HoldBack,
    LabelFlip,
    LabelShift,
    Mimic,
    PoisonedFL,
    Remembering,
    Replay,
    ReportSize,
    Rescale,
    Role,
    Scheduled,
    SignFlip,
    Sybils,
    Together,
    Training,
)
from phalanx.attacks.attack import HONEST, each, part
from phalanx.models import MLP
from phalanx.runs.federation import Federation

SMALL = Run(clients=6, byzantine=2, attack=LabelShift(), model=MLP((8,)), until=Until(steps=5))


def models(plan):
    """The model after each round."""
    found = []
    simulate(plan, observers=[lambda p: found.append(p.state.model.clone())])
    return found


@pytest.mark.parametrize(
    ("options", "attacked"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"start": 5}, [5, 6, 7]),
        ({"stop": 2}, [0, 1]),
        ({"start": 1, "stop": 7, "every": 2}, [1, 3, 5]),
        ({"start": 3, "stop": 4}, [3]),
    ],
)
def test_versions(options, attacked):
    schedule = Scheduled(SignFlip(), **options)
    assert [v for v in range(8) if schedule.attacks_in(v)] == attacked
    sent = [float(schedule.forge(update([1.0])._replace(version=v), None, rng())) for v in range(8)]
    assert [v for v in range(8) if sent[v] == -1.0] == attacked
    assert set(sent) <= {-1.0, 1.0}


def test_an_attack_that_starts_late_leaves_no_trace_before():
    honest, late = (
        models(replace(SMALL, attack=Rescale(1.0))),
        models(replace(SMALL, attack=Scheduled(LabelShift(), 3))),
    )
    assert [torch.equal(a, b) for a, b in zip(honest, late, strict=True)] == [True] * 4 + [False] * 2


def test_an_attack_in_all_versions_is_the_attack():
    for attack in (LabelShift(), Gaussian(), ALIE(), Together(LabelFlip(1, 7), ReportSize(500))):
        plain, scheduled = models(replace(SMALL, attack=attack)), models(replace(SMALL, attack=Scheduled(attack)))
        assert all(torch.equal(a, b) for a, b in zip(plain, scheduled, strict=True)), attack


def test_attackers_go_back_to_their_honest_data():
    """After the only round of the attack, an attacker trains from that model as an honest client does."""
    attack = Scheduled(Together(LabelShift(), ReportSize(900)), start=0, stop=1)
    federation = Federation(replace(SMALL, attack=attack))
    adversary, client = federation.transport.adversary, min(federation.byzantine)
    before = federation.data[client]
    assert not torch.equal(adversary.data(client, adversary.part(client, 0)).y, before.y)
    assert adversary.data(client, adversary.part(client, 1)) is before
    assert federation.transport.reported[client] == 900, "the size is reported once"


def test_the_goal_is_measured_after_the_attack_has_stopped():
    plan = replace(SMALL, attack=Scheduled(Together(Backdoor(), Rescale(3.0)), stop=2))
    steps = [line for line in simulate(plan).history if line.metrics]
    assert steps[-1].step == 5
    assert all(line.metrics.attack_success is not None for line in steps)


def test_time_is_scheduled_too():
    fast = mine(go(FedAsync(), Scheduled(Flood(0.25), stop=1), until=Until(seconds=3.3)))
    assert [now for now, _, _ in fast] == [0.25, 1.25, 2.25, 3.25]
    held = [now for now, _, _ in mine(go(FedAvg(), Scheduled(HoldBack(), start=1, stop=2), until=3))]
    assert held == [1.0, 2.001, 3.001]
    twice = go(FedAvg(), Scheduled(Duplicate(2), start=1, stop=2), until=3)
    assert [len(p.invalid) for p in twice] == [0, 0, 1, 0]
    assert [delta for _, _, delta in mine(go(FedAvg(), Scheduled(Replay(1), start=2), until=4))] == [0.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("options", [{"start": -1}, {"start": 3, "stop": 3}, {"every": 0}])
def test_impossible_schedules(options):
    with pytest.raises(ValueError, match="must be"):
        Scheduled(SignFlip(), **options)


# Parts


def test_each_attacker_knows_who_it_is():
    role = Role(7, 3, (2, 7, 9))
    assert role.rank == 1
    whole = Together(DistributedBackdoor(), Scheduled(SignFlip(), start=4))
    assert part(whole, role) == Together(DistributedBackdoor(piece=1), HONEST)
    assert part(whole, Role(9, 4, (2, 7, 9))) == Together(DistributedBackdoor(piece=2), SignFlip())
    assert part(Together(LabelShift(), SignFlip()), role) == Together(LabelShift(), SignFlip())


def test_sybils_are_all_the_same():
    for attack in (Scheduled(SignFlip()), PoisonedFL(), DistributedBackdoor()):
        with pytest.raises(ValueError, match="the same for all attackers in all rounds"):
            Sybils(attack)
    assert Scheduled(Sybils(Gaussian()), stop=3).part(Role(0, 0, (0,))) == Sybils(Gaussian())


# Memory


@dataclass(frozen=True)
class Counter(Remembering):
    """Sends how often it was asked, from `first` on."""

    first: int = 1

    def respond(self, update, knowledge, rng):
        count = self.first if update.memory is None else update.memory + 1
        return Forged(torch.full_like(update.delta, float(count)), count)


def test_an_attacker_remembers_from_turn_to_turn():
    assert [delta for _, _, delta in mine(go(FedAvg(), Counter(), until=4))] == [1.0, 2.0, 3.0, 4.0]
    paired = Together(Counter(5), Together(Rescale(2.0), Counter(8)))
    assert [delta for _, _, delta in mine(go(FedAvg(), paired, until=3))] == [8.0, 9.0, 10.0]
    doubled = Together(Counter(5), Rescale(2.0))
    assert [delta for _, _, delta in mine(go(FedAvg(), doubled, until=3))] == [10.0, 12.0, 14.0]
    pausing = mine(go(FedAvg(), Scheduled(Counter(), start=1, every=2), until=5))
    assert [delta for _, _, delta in pausing] == [0.0, 1.0, 2.0, 2.0, 4.0], "honest turns send the number of the task"


def test_memories_go_into_a_snapshot_and_those_without_memory_have_none():
    transport = federation(FedAvg(), Counter())
    transport.send(dict.fromkeys(range(3), torch.zeros(6)), 0)
    transport.receive(every=True)
    other = federation(FedAvg(), Counter())
    other.restore(transport.snapshot())
    assert other.adversary.memories == {0: 1}
    plain = federation(FedAvg(), SignFlip())
    plain.send(dict.fromkeys(range(3), torch.zeros(6)), 0)
    plain.receive(every=True)
    assert plain.snapshot().memories == {}
    assert Replay(1).answers(OLD, ()) == (OLD,)


# PoisonedFL


def turns(attack, changes, start=0.0):
    """The updates that an attacker sends while the model changes so from download to download."""
    base, previous, memory, sent = torch.full_like(changes[0], start), None, None, []
    for change in [torch.zeros_like(changes[0]), *changes]:
        previous, base = (base, base + change) if sent else (None, base)
        now = update(torch.zeros_like(base).tolist(), base=base.tolist(), previous=previous, memory=memory)
        delta, memory = attack.respond(now, None, rng())
        sent.append(delta)
    return sent, memory


def test_poisoned_updates_keep_their_signs_and_grow_with_the_change_of_the_model():
    changes = [torch.tensor(x) for x in ([3.0, 4.0], [0.0, 2.0], [1.0, 0.0])]
    attack = PoisonedFL(factor=2.0)
    s = attack.signs(changes[0])
    (first, second, third, fourth), _ = turns(attack, changes)
    assert first.tolist() == [0.0, 0.0]
    assert torch.allclose(second, 2.0 * torch.tensor([3.0, 4.0]) * s)
    against = changes[1] - 2.0 / second.norm() * second
    assert torch.allclose(third, 2.0 * 2.0 * against.abs() / against.norm() * s)
    assert fourth.norm().item() == pytest.approx(2.0)
    assert torch.equal(fourth.sign(), s)


def test_poisoned_updates_shrink_when_they_are_filtered():
    d = 400
    attack = PoisonedFL(factor=8.0, every=3)
    along, away = attack.signs(torch.zeros(d)), torch.randn(d, generator=torch.Generator().manual_seed(1))
    assert turns(attack, [along] * 9)[1].factor == 8.0, "the model follows"
    assert turns(attack, [away] * 4)[1].factor == pytest.approx(8.0 * 0.7)
    assert turns(attack, [away] * 7)[1].factor == pytest.approx(8.0 * 0.7**2)
    floor = turns(PoisonedFL(factor=0.6, every=1), [away] * 5)[1].factor
    assert floor == 0.6, "no lower than 0.5"


def test_otherwise_is_the_attack_of_all_other_versions():
    """Copy one client, then send the opposite of its update."""
    schedule = Scheduled(Together(Mimic(0), Rescale(-1.0)), start=2, otherwise=Mimic(0))
    assert [schedule.part(Role(4, v, (4, 5))) for v in (1, 2)] == [Mimic(0), schedule.attack]
    assert schedule.traits.omniscient
    assert not each(schedule, Training)
    copied = models(replace(SMALL, attack=Mimic(0)))
    turned = models(replace(SMALL, attack=schedule))
    assert [torch.equal(a, b) for a, b in zip(copied, turned, strict=True)] == [True, True, True, False, False, False]


def test_the_attack_of_other_versions_has_no_memory():
    with pytest.raises(ValueError, match="without a memory"):
        Scheduled(SignFlip(), otherwise=PoisonedFL())
