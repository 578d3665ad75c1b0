"""What stays at a client: personal layers, personal models and optimizers, to the bits of the simulator."""

import dataclasses
import os

import pytest
import torch

import phalanx
from flower.federations import FIRST_NODE, KEYS, QUICK, SMALL, Stepwise, roster_of, states_in_simulation
from phalanx.aggregators import Median
from phalanx.algorithms import SCAFFOLD, FedAsync, FedAvg, FLTrust, Permuted
from phalanx.core import InfeasibleError, Until
from phalanx.engine.participation import everyone
from phalanx.flower import (
    InProcessGrid,
    client_app,
    coordinate,
    coordinator_of,
    offered,
    participant_of,
    personalize,
)
from phalanx.flower.client import ClientWorker
from phalanx.runs.federation import Federation
from phalanx.training import Ditto, Evaluation, FedPer, LocalOptimizer, LocalSGD, PrivateSGD
from runs.test_packing import same

SGD = LocalSGD(batch_size=5, momentum=0.5)
TRAININGS = {
    "FedPer": FedPer(("1.*",), SGD),
    "FedPer, Adam remembered": FedPer(("1.*",), LocalOptimizer(lr=0.01, batch_size=5, remember=True)),
    "Adam remembered": LocalOptimizer(lr=0.01, batch_size=5, remember=True),
    "Ditto": Ditto(SGD, strength=0.5),
}


def planned(name, **changes):
    changes = {"algorithm": FedAvg(), "until": Until(4), **changes}
    return dataclasses.replace(SMALL, training=TRAININGS[name], **changes)


def restarted(plan, client, folder, federation, seen=lambda content: None):
    """A client that is killed after each message, as a process of Flower is."""

    def node(message, context):
        made = participant_of(plan, client, KEYS[client], folder / str(client), federation)
        reply = client_app(made)(message, context)
        seen(reply.content)
        return reply

    return node


def over_flower(plan, folder, seen=lambda content: None):
    """The state at each line, over Flower's messages."""
    federation, states = Federation(plan), []
    nodes = {FIRST_NODE + i: restarted(plan, i, folder, federation, seen) for i in range(plan.clients)}
    grid = InProcessGrid(nodes, stepwise=True)
    made = Stepwise(grid, roster_of(plan.clients), timeouts=QUICK, update_size=len(federation.start))
    with grid, made as transport:
        phalanx.run(
            plan.algorithm,
            transport,
            federation.start,
            plan,
            sample=everyone,
            observers=[lambda progress: states.append(progress.state)],
        )
    return states


@pytest.mark.parametrize("name", TRAININGS)
def test_over_flower_as_in_the_simulation_with_a_new_process_for_each_message(name, tmp_path):
    plan = planned(name)
    assert same(over_flower(plan, tmp_path), states_in_simulation(plan))


@pytest.mark.parametrize("algorithm", [FedAvg(Median()), FedAsync(), Permuted(FedAvg(Median()))], ids=lambda a: a.title)
@pytest.mark.parametrize("name", ["FedPer", "Ditto"])
def test_goes_with_rules_arrivals_and_hidden_models(name, algorithm, tmp_path):
    plan = planned(name, algorithm=algorithm, until=Until(4 if algorithm.traits.synchronous else 13))
    assert same(over_flower(plan, tmp_path), states_in_simulation(plan))


@pytest.mark.parametrize("name", ["FedPer", "Ditto"])
def test_each_client_uses_its_own_model_afterwards(name, tmp_path):
    """The model that a client loads is the one that the simulator serves to it, to the bit."""
    plan = planned(name, evaluation=Evaluation(by_clients=True), validation=0.3)
    simulated, federation = phalanx.simulate(plan), Federation(plan)
    nodes = {FIRST_NODE + i: restarted(plan, i, tmp_path, federation) for i in range(plan.clients)}
    roster, options = roster_of(plan.clients), {"folder": tmp_path / "server", "timeouts": QUICK}
    with InProcessGrid(nodes) as grid:
        coordinate(grid, coordinator_of(plan, roster, federation, **options))
    found = phalanx.Record.load(tmp_path / "server")
    ours, theirs = ([step.reports for step in record.history] for record in (found, simulated))
    assert ours == theirs, "clients measure their own models"
    assert found.config["training"]["class_path"] == f"phalanx.training.{name}"
    for i in range(plan.clients):
        client = participant_of(plan, i, KEYS[i], tmp_path / str(i), federation)
        assert personalize(client, offered(tmp_path / "server", i)) == 0
        expected = simulated.model(i).state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in client.model.state_dict().items())


def test_what_stays_is_never_sent_and_nobody_else_reads_it(tmp_path):
    plan, replies = planned("FedPer", until=Until(2)), []
    before = os.umask(0)
    try:
        over_flower(plan, tmp_path, replies.append)
    finally:
        os.umask(before)
    federation = Federation(plan)
    shared = federation.start.numel()
    assert shared < sum(p.numel() for p in federation.model.module.parameters())
    updates = [reply["vector"] for reply in replies if "vector" in reply]
    assert len(updates) == 2 * plan.clients
    for update in updates:
        assert sum(array.numpy().size for array in update.values()) == shared
    files = [*tmp_path.glob("*/*.npz")]
    assert len(files) == 2 * plan.clients
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("FedPer", {"memory": None}, "FedPer keeps state between tasks. Give its clients a folder: memory="),
        ("Adam remembered", {"memory": None}, "LocalOptimizer keeps state between tasks"),
        ("FedPer", {"algorithm": FLTrust()}, "trains a model at the server, and with FedPer"),
        ("FedPer", {"algorithm": SCAFFOLD()}, "corrects the gradients of local training"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(name, changes, message, tmp_path):
    made = participant_of(planned(name), 0, KEYS[0], tmp_path)
    with pytest.raises(InfeasibleError, match=message):
        ClientWorker(dataclasses.replace(made, **changes))


def test_the_coordinator_refuses_what_the_participant_refuses():
    with pytest.raises(InfeasibleError, match="with FedPer a model is complete at a client only"):
        dataclasses.replace(coordinator_of(planned("FedPer"), roster_of(6)), algorithm=FLTrust())


def test_noise_within_fedper_hides_what_it_hides_alone(tmp_path):
    private = PrivateSGD(clip=1.0, noise_multiplier=1.0)
    made = participant_of(planned("FedPer"), 0, KEYS[0], tmp_path)
    made = dataclasses.replace(made, training=FedPer(("1.*",), private), noise="system")
    assert made.hides
    assert made.training.secretly() == FedPer(("1.*",), private.secretly()) != made.training
