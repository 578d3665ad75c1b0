"""Personal models between a real SuperLink and real SuperNodes, each a process: it takes minutes."""

import importlib.util
import time

import pytest
import torch

import phalanx
from phalanx.flower import offered, participant_of, personalize
from phalanx.flower.demo import write_app
from phalanx.flower.local_federation import LocalFederation, marked

pytestmark = [pytest.mark.slow, pytest.mark.waits]

CLIENTS, PATIENT = 3, 420.0  # seconds, on a machine that others use as well
MODULE = f"""
import dataclasses
from pathlib import Path

from phalanx import LocalSGD, Run, Until
from phalanx.attacks import Rescale
from phalanx.data import Dirichlet, Digits
from phalanx.flower import Timeouts, client_app, coordinator_of, participant_of, server_app
from phalanx.models import MLP
from phalanx.training import Ditto, Evaluation, FedPer

SGD = LocalSGD(batch_size=16, momentum=0.5)
TRAININGS = {{"FedPer": FedPer(("1.*",), SGD), "Ditto": Ditto(SGD, strength=0.5)}}


def plan(name):
    return Run(
        data=Digits(),
        clients={CLIENTS},
        partition=Dirichlet(0.5),
        model=MLP((8,)),
        training=TRAININGS[name],
        attack=Rescale(-1.0),
        byzantine=1,
        validation=0.2,
        evaluation=Evaluation(by_clients=True),
        until=Until(2),
    )


def coordinator(context):
    config = context.run_config
    options = {{"folder": Path(config["folder"]), "timeouts": Timeouts(answer=300.0, enrolment=300.0)}}
    return coordinator_of(plan(config["training"]), Path(config["roster"]), **options)


def participant(context):
    config = context.node_config
    made = plan(context.run_config["training"])
    memory = Path(config["memory"])
    return participant_of(made, int(config["client"]), Path(config["key"]), memory, coordinator="")


server = server_app(coordinator)
client = client_app(participant)
"""


def app_in(folder):
    """An app of Flower with these two trainings, and its module."""
    write_app(folder)
    with (folder / "pyproject.toml").open("a") as file:
        file.write('training = ""\n')
    (folder / "phalanx_demo.py").write_text(MODULE)
    spec = importlib.util.spec_from_file_location("personal_app", folder / "phalanx_demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def carried_out(federation, name):
    """The folder of a run, once it has ended."""
    results = federation.folder / "results"
    config = {"roster": str(federation.folder / "roster.yaml"), "folder": str(results), "training": name}
    run, deadline = federation.run(federation.folder / "app", config), time.monotonic() + PATIENT
    while run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    logs = [path.read_text(errors="replace")[-2000:] for path in sorted((federation.folder / "logs").glob("*.log"))]
    assert run.poll() == 0, "\n".join(logs)
    return results


def holding(folder, tensor):
    """The files of a federation that contain the values of a tensor, by the folder that they lie in."""
    sought = tensor.numpy().tobytes()
    files = [path for path in folder.rglob("*") if path.is_file() and sought in path.read_bytes()]
    return {"/".join(path.relative_to(folder).parts[:2]) for path in files}


@pytest.mark.parametrize("name", ["FedPer", "Ditto"])
def test_a_personal_model_is_that_of_the_simulator_and_nobody_else_has_it(name, tmp_path):
    app = app_in(tmp_path / "app")
    plan = app.plan(name)
    simulated = phalanx.simulate(plan)
    with LocalFederation(tmp_path, CLIENTS, {i: {"client": i} for i in range(CLIENTS)}) as federation:
        results = carried_out(federation, name)
        state = (tmp_path / "flwr" / "state.db").read_bytes()
    assert marked(federation.mark) == [], "no process is left"
    assert state, "what the SuperLink keeps is searched as well"

    found = phalanx.Record.load(results)
    assert [step.reports for step in found.history] == [step.reports for step in simulated.history]
    ours, theirs = (record.model().state_dict() for record in (found, simulated))
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())

    for i in range(CLIENTS):
        client = participant_of(plan, i, tmp_path / "keys" / f"client-{i}.pem", tmp_path / "memory" / str(i))
        personalize(client, offered(results, i))
        own, expected = client.model.state_dict(), simulated.model(i).state_dict()
        assert all(torch.equal(value, expected[key]) for key, value in own.items())
        assert holding(tmp_path, own["3.weight"]) == {f"memory/{i}"}
    assert "results/model.safetensors" in holding(tmp_path, ours["1.weight"]), "what is served is found in this way"
