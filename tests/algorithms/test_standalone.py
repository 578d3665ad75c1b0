"""Everybody for itself: the same as training alone, to the bit."""

import dataclasses

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.algorithms import FedAvg, Standalone
from phalanx.attacks import Rescale
from phalanx.core import Local, Verdict
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from phalanx.training.local import LocalTask
from toys import close, updates

ALONE = Run(
    algorithm=Standalone(),
    clients=4,
    model=MLP((16,)),
    training=LocalSGD(momentum=0.5),
    until=Until(3),
)


def test_by_hand():
    algorithm = Standalone()
    state, ready = algorithm.init(torch.tensor([1.0, 2.0]), {0: 10, 3: 5})
    assert set(ready) == {0, 3}
    assert close(algorithm.integrate(None, state.model), [1.0, 2.0])
    sent, memory = algorithm.upload(torch.tensor([0.5, -1.0]), None)
    assert sent.tolist() == [0.0, 0.0], "nothing leaves the client"
    assert sent.untyped_storage().nbytes() == 4, "nor takes room in a checkpoint"
    local = Local(torch.tensor([1.0, 2.0]), sent, memory)
    assert close(algorithm.integrate(local, torch.tensor([100.0, 100.0])), [1.5, 1.0])


def test_the_server_uses_nothing():
    algorithm = Standalone()
    state, _ = algorithm.init(torch.tensor([1.0]), {0: 10, 3: 5})
    state, ready = algorithm.step(state, updates([[5.0], [7.0]], clients=[0, 3]))
    assert (state.version, state.model.tolist(), set(ready)) == (1, [1.0], {0, 3})
    assert state.verdicts[3] == Verdict(True, 0.0, None, "trained alone")


def test_a_newcomer_is_asked_from_the_next_round():
    algorithm = Standalone()
    state, _ = algorithm.init(torch.zeros(1), {0: 10})
    state = algorithm.join(state, 7, 3)
    assert algorithm.step(state, updates([[1.0]]))[1] == {0, 7}


def test_a_run_is_training_alone_to_the_bit():
    federation = Federation(ALONE)
    transport, trainer = federation.transport, federation.transport.trainer
    for version in range(3):
        transport.send(dict.fromkeys(range(4), federation.start), version)
        transport.receive(every=True)
    for client in range(4):
        model, change = federation.start, torch.empty_like(federation.start)
        for turn in range(3):
            trainer.train(LocalTask(client, turn, turn, model, change), federation.data[client])
            model = model + change
        assert torch.equal(transport.model_of(client, federation.start), model)


def test_clients_differ_and_attackers_reach_nobody():
    record = simulate(ALONE)
    received = record.history[-1].metrics.received_accuracy
    assert len(set(received.values())) > 1
    assert record.history[-1].accuracy == pytest.approx(sum(received.values()) / 4)
    attacked = simulate(dataclasses.replace(ALONE, attack=Rescale(-100.0), byzantine=1))
    honest = attacked.history[-1].metrics.received_accuracy
    assert len(honest) == 3
    assert {i: received[i] for i in honest} == honest


@pytest.mark.slow
def test_a_federation_is_worth_more_than_training_alone():
    """What a lower bound is for: on the digits, 72 examples each, trained until nobody learns much more."""
    plan = dataclasses.replace(ALONE, clients=20, until=Until(20), training=LocalSGD(epochs=2))
    together = simulate(dataclasses.replace(plan, algorithm=FedAvg())).history[-1].accuracy
    alone = simulate(plan).history[-1].metrics.received_accuracy.values()
    assert together > max(alone)
    assert together > sum(alone) / len(alone) + 0.05
