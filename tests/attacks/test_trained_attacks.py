"""Attacks by local training: by hand, by their constraints, and in whole runs."""

from dataclasses import dataclass, replace

import pytest
import torch
from federations import rng, update

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import (
    AttackTask,
    Backdoor,
    ConstrainAndScale,
    DistributedBackdoor,
    EdgeCases,
    LabelFlip,
    Neurotoxin,
    ProjectedTraining,
    Rescale,
    Role,
    Scheduled,
    SignFlip,
    Sybils,
    Together,
)
from phalanx.attacks.attack import each
from phalanx.attacks.data import TRIGGER
from phalanx.attacks.training import Training, train
from phalanx.core import InfeasibleError, Traits
from phalanx.data import Dataset
from phalanx.models import MLP
from phalanx.rng import borrowed, generator
from phalanx.runs.federation import Federation
from phalanx.simulation import Simulation
from phalanx.simulation.executor import DividedExecutor, SerialExecutor
from phalanx.training.local import LocalTask, LocalTrainer
from phalanx.training.sgd import Trainer
from phalanx.training.vector import FlatModule

DRAW = generator(3, "data")
DATA = Dataset(torch.rand(40, 5, generator=DRAW), torch.randint(0, 3, (40,), generator=DRAW), 3)


def trainer(**recipe):
    with borrowed(0, "model"):
        model = FlatModule(MLP((6,)).build((5,), 3))
    return Trainer(model, LocalSGD(**{"batch_size": 8, "lr": 0.5, **recipe}), 0)


def trained(attack, honest, start=None, previous=None, turn=0):
    """The update that an attacker trains."""
    start = honest.model.read() if start is None else start
    out = torch.empty_like(start)
    train(attack, AttackTask(LocalTask(1, turn, 0, start, out), DATA, previous), honest)
    return out


def honestly(honest, start, **recipe):
    """The update that a client with these settings trains."""
    out = torch.empty_like(start)
    own = Trainer(honest.model, replace(honest.recipe, **recipe), honest.seed)
    own.train(LocalTask(1, 0, 0, start, out), DATA)
    return out


@pytest.mark.parametrize(
    "attack", [SignFlip(), ConstrainAndScale(alpha=1.0), ProjectedTraining(radius=1e6), Neurotoxin(), LabelFlip()]
)
def test_without_a_constraint_training_is_honest_to_the_bit(attack):
    honest = trainer(momentum=0.5, weight_decay=0.01)
    start = honest.model.read()
    out = trained(attack, honest, start)
    if isinstance(attack, ProjectedTraining):
        assert torch.allclose(out, honestly(honest, start), atol=1e-6)
    else:
        assert torch.equal(out, honestly(honest, start))


def test_attackers_choose_epochs_and_learning_rate():
    honest = trainer()
    start = honest.model.read()
    assert torch.equal(
        trained(ConstrainAndScale(epochs=3, lr=0.1, alpha=1.0), honest, start),
        honestly(honest, start, epochs=3, lr=0.1),
    )


def test_constrain_and_scale_by_hand():
    """One step of the whole data, twice: the second adds the gradient of (1 - alpha) |w - w_0|^2."""
    honest = trainer(batch_size=40, epochs=2, lr=0.3)
    start = honest.model.read()
    alpha, w = 0.6, start.clone()
    for _ in range(2):
        honest.model.load(w)
        honest.model.gradient.zero_()
        torch.nn.functional.cross_entropy(honest.model.module(DATA.x), DATA.y).backward()
        w = w - 0.3 * (alpha * honest.model.gradient + (1 - alpha) * 2 * (w - start))
    assert torch.allclose(trained(ConstrainAndScale(alpha=alpha), honest, start), w - start, atol=1e-6)
    assert ConstrainAndScale(factor=-2.0).forge(update([1.0, 3.0]), None, rng()).tolist() == [-2.0, -6.0]


def test_projected_training_ends_within_the_ball_and_uses_it():
    honest = trainer(epochs=4)
    free = honestly(honest, honest.model.read(), epochs=4).norm()
    for part in (0.1, 0.5):
        radius = part * float(free)
        length = trained(ProjectedTraining(radius=radius, epochs=4), honest, START).norm()
        assert length <= radius * (1 + 1e-5)
        assert length > 0.9 * radius


START = trainer().model.read()


def test_neurotoxin_keeps_the_entries_that_changed_most():
    honest = trainer(momentum=0.9, weight_decay=0.1)
    change = torch.linspace(-1, 2, len(START))
    out = trained(Neurotoxin(keep=0.25), honest, START, previous=START - change)
    most = change.abs().argsort(descending=True)[: -(-len(START) // 4)]
    kept = torch.zeros(len(START), dtype=torch.bool)
    kept[most] = True
    assert (out[kept] == 0).all()
    assert (out[~kept] != 0).float().mean() > 0.8


def test_neurotoxin_finds_its_entries_in_convolutions():
    """Their memory is laid out otherwise than the vector."""
    with borrowed(0, "model"):
        model = FlatModule(torch.nn.Sequential(torch.nn.Conv2d(2, 3, 2), torch.nn.Flatten(), torch.nn.Linear(27, 2)))
    honest, draw = Trainer(model, LocalSGD(batch_size=4), 0), generator(1, "x")
    data = Dataset(torch.rand(8, 2, 4, 4, generator=draw), torch.tensor([0, 1] * 4), 2)
    start = model.read()
    change = torch.rand(len(start), generator=draw)
    out = torch.empty_like(start)
    Neurotoxin(keep=0.3).train(AttackTask(LocalTask(0, 1, 1, start, out), data, start - change), honest)
    assert (out[change.argsort(descending=True)[: round(0.3 * len(start) + 0.5)]] == 0).all()
    assert (out != 0).float().mean() > 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: ConstrainAndScale(alpha=0.0),
        lambda: ConstrainAndScale(factor=float("inf")),
        lambda: ProjectedTraining(radius=0.0),
        lambda: ProjectedTraining(epochs=0),
        lambda: Neurotoxin(keep=1.0),
        lambda: Neurotoxin(lr=-0.1),
        lambda: DistributedBackdoor(parts=5),
        lambda: DistributedBackdoor(parts=2, piece=2),
        lambda: EdgeCases(3, 3),
        lambda: EdgeCases(share=0.0),
    ],
)
def test_out_of_range(make):
    with pytest.raises(ValueError, match="must"):
        make()


# Data


def test_each_attacker_of_a_distributed_backdoor_holds_a_part_of_the_trigger():
    data = Dataset(torch.zeros(30, 1, 6, 6), torch.ones(30, dtype=torch.int64), 3)
    bright = []
    for client in (4, 5, 8, 9):
        part = DistributedBackdoor(target=2, share=1.0).part(Role(client, 0, (4, 5, 8, 9)))
        poisoned = part.poison(data, rng())
        assert (poisoned.y == 2).all()
        bright.append({tuple(p) for p in poisoned.x[0, 0].nonzero().tolist()})
    whole = {tuple(p) for p in DistributedBackdoor(target=2).goal(data).x[0, 0].nonzero().tolist()}
    assert [len(part) for part in bright] == [1, 1, 1, 1]
    assert set.union(*bright) == whole == {(row + 2, column + 2) for row, column in TRIGGER}
    assert torch.equal(DistributedBackdoor().goal(data).x, Backdoor().goal(data).x)


def test_edge_cases_are_the_examples_farthest_from_their_class():
    x = torch.tensor([[0.0], [1.0], [9.0], [50.0], [2.0], [60.0]])
    data = Dataset(x, torch.tensor([1, 1, 1, 0, 1, 2]), 3)
    attack = EdgeCases(source=1, target=2, share=0.25)
    assert attack.poison(data, rng()).y.tolist() == [1, 1, 2, 0, 1, 2]
    goal = attack.goal(data)
    assert (goal.x.tolist(), goal.y.tolist()) == ([[9.0]], [2])
    nobody = Dataset(x, torch.zeros(6, dtype=torch.int64), 3)
    assert torch.equal(attack.poison(nobody, rng()).y, nobody.y)


# In a simulation

SMALL = Run(clients=6, byzantine=2, model=MLP((8,)), until=Until(steps=3), attack=LabelFlip(1, 7))


def simulation(algorithm, attack, byzantine):
    honest = trainer()
    return Simulation(algorithm, honest, dict.fromkeys(range(4), DATA), attack=attack, byzantine=byzantine), honest


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAsync()])
def test_honest_clients_train_to_the_same_bits(algorithm):
    deltas = []
    for attack in (LabelFlip(0, 1), Together(LabelFlip(0, 1), ProjectedTraining(radius=0.01))):
        transport, _ = simulation(algorithm, attack, frozenset({1, 2}))
        transport.send(dict.fromkeys(range(4), START), 0)
        replies = transport.receive(every=True).replies
        deltas.append({reply.client: reply.delta for reply in replies})
    assert [torch.equal(deltas[0][i], deltas[1][i]) for i in range(4)] == [True, False, False, True]
    assert deltas[1][1].norm() <= 0.0101


def test_a_task_goes_to_its_executor_and_results_keep_the_order():
    log = []

    class Executor:
        def __init__(self, name):
            self.name = name

        def __call__(self, tasks):
            for task in tasks:
                log.append((self.name, task.client))
                yield task, float(task.client)

    class Whole(Executor):
        def __call__(self, tasks):
            return list(super().__call__(tasks))

    tasks = [LocalTask(client, 0, 0, START, START) for client in (5, 1, 2, 0, 7)]
    for others in (Executor("others"), Whole("others")):
        log.clear()
        done = list(DividedExecutor(frozenset({5, 2, 7}), Executor("theirs"), others)(iter(tasks)))
        assert [(task.client, loss) for task, loss in done] == [(c, float(c)) for c in (5, 1, 2, 0, 7)]
        assert sorted(log) == [("others", 0), ("others", 1), ("theirs", 2), ("theirs", 5), ("theirs", 7)]
        assert list(DividedExecutor(frozenset({5}), Executor("theirs"), others)(iter(()))) == []


def test_only_attackers_that_train_by_themselves_have_an_executor_of_their_own():
    plain = Federation(SMALL).transport
    assert isinstance(plain._executor, SerialExecutor)
    assert isinstance(Federation(replace(SMALL, attack=Neurotoxin())).transport._executor, DividedExecutor)


def test_training_that_changes_nothing_changes_no_bit_of_a_run():
    def final(attack):
        record = simulate(replace(SMALL, attack=attack))
        return record.summary.final

    plain = final(LabelFlip(1, 7))
    assert final(Together(LabelFlip(1, 7), ConstrainAndScale(alpha=1.0))) == plain
    assert final(Together(ConstrainAndScale(alpha=1.0), LabelFlip(1, 7))) == plain
    assert final(Scheduled(LabelFlip(1, 7))) == plain


def test_exact_losses_are_those_of_the_model_that_was_received():
    class Exact(FedAvg):
        traits = Traits(exact_losses=True)

    losses = []
    for attack in (LabelFlip(0, 1), Together(LabelFlip(0, 1), ProjectedTraining(radius=0.01))):
        transport, _ = simulation(Exact(), attack, frozenset({1}))
        transport.send(dict.fromkeys(range(4), START), 0)
        losses.append([reply.loss for reply in transport.receive(every=True).replies])
    assert losses[0] == losses[1]


@dataclass(frozen=True)
class OwnWay(LocalSGD):
    """Honest training that is not by `Trainer`."""

    def trainer(self, model, task, seed):
        return Still(model, task)


class Still(LocalTrainer):
    """Changes nothing."""

    def train(self, task, data):
        task.row.zero_()
        return 0.0


@pytest.mark.parametrize("wrap", [lambda a: a, Sybils, Scheduled, lambda a: Together(LabelFlip(1, 2), a)])
def test_training_that_an_attack_cannot_replace_is_refused_before_the_run(wrap):
    plan = replace(SMALL, training=OwnWay(), attack=wrap(Neurotoxin()))
    with pytest.raises(InfeasibleError, match="Neurotoxin changes training by LocalSGD"):
        Federation(plan)
    Federation(replace(plan, attack=Scheduled(LabelFlip(1, 2))))


@dataclass(frozen=True)
class OtherWay(Training):
    """Trains as honest clients do, and sends the opposite."""

    def train(self, job, honest):
        loss = honest.train(job.task, job.data)
        job.task.row.neg_()
        return loss


def test_attackers_that_train_go_between_compiled_clients():
    """Rows of attackers are opposite to those without an attack, all others are the same."""
    compiled = replace(SMALL, training=LocalSGD(engine="compiled"), clients=8, byzantine=0, attack=None)
    rows = []
    for plan in (compiled, replace(compiled, attack=OtherWay(), byzantine=3)):
        transport = (federation := Federation(plan)).transport
        transport.send(dict.fromkeys(range(8), federation.start), 0)
        rows.append({reply.client: reply.delta for reply in transport.receive(every=True).replies})
    for client in range(8):
        sign = -1 if client in federation.byzantine else 1
        assert torch.allclose(rows[1][client], sign * rows[0][client], rtol=1e-4, atol=1e-6)
        assert rows[0][client].abs().max() > 1e-3
    with pytest.raises(InfeasibleError, match="its engine to loop"):
        Federation(replace(compiled, attack=Neurotoxin(), byzantine=3))


def test_a_part_of_an_attack_trains_in_the_others_place():
    attack = Together(Backdoor(), Together(ProjectedTraining(radius=0.01), Rescale(50.0)))
    assert len(each(attack, Training)) == 1
    assert trained(attack, trainer(), START).norm() <= 0.0101
    assert trained(Sybils(attack), trainer(), START).norm() <= 0.0101
    assert not each(Together(Backdoor(), Rescale(2.0)), Training)
