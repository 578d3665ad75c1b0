"""`examples/flower`, as it is: the apps, their configuration, a federation in process."""

import dataclasses
import importlib
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits

from flower.federations import FIRST_NODE, KEYS, SMALL, at_nodes, coordinator, honest, silent
from phalanx import Record, Until, simulate
from phalanx.algorithms import FedAvg
from phalanx.attacks import Gaussian, LazyFreeRider, Mimic, ReportSize, Rescale, SignFlip, Together
from phalanx.core import InfeasibleError
from phalanx.data import Dataset
from phalanx.flower import InProcessGrid, Roster, client_app, coordinate, new_key
from phalanx.flower.audit import read
from phalanx.flower.demo import DIGITS_SCHEMA, SAFE, as_table, deal, plan_of
from phalanx.flower.identity import EnrolmentRequest, public_text
from phalanx.flower.live import lines, status
from phalanx.promises import Setting, promise
from phalanx.runs.files import AUDIT
from phalanx.training.evaluation import evaluate
from phalanx.training.vector import FlatModule

FOLDER = Path(__file__).parents[2] / "examples" / "flower"


@pytest.fixture
def hospitals(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield lambda name: importlib.import_module(f"hospitals.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "hospitals"]:
        del sys.modules[name]


@pytest.fixture
def digits():
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


def test_the_configuration_names_what_is_there(hospitals):
    told = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    for path in told.values():
        module, _, name = path.partition(":")
        assert hasattr(hospitals(module.partition(".")[2]), name)


def test_flower_up_gives_it_data(hospitals, tmp_path):
    """As `phalanx flower up --app examples/flower` does."""
    new_key(tmp_path / "key.pem")
    told = deal(tmp_path / "data", 3)
    held = []
    for config in told.values():
        context = Context(1, 1, {**config, "key": str(tmp_path / "key.pem")}, RecordDict(), {})
        held.append(hospitals("client").participant(context).examples.train)
        with np.load(config["data"]) as file:
            assert (held[-1].x == torch.from_numpy(file["x"])).all(), "the table holds the same as the arrays"
            assert (held[-1].y == torch.from_numpy(file["y"])).all()
    assert sum(map(len, held)) > 1000
    assert all(data.x.shape[1:] == (64,) and data.classes == 10 for data in held)


def written(folder, i, x, y):
    """The table of a hospital and the schema; returns the configuration of its node."""
    (folder / f"{i}.csv").write_text(as_table(x, y))
    (folder / "schema.json").write_bytes(DIGITS_SCHEMA.json)
    places = {"key": f"{i}.pem", "table": f"{i}.csv", "schema": "schema.json"}
    return {name: str(folder / place) for name, place in places.items()}


LIARS = {
    "size and update": Together(ReportSize(1_000_000), Rescale(-10.0)),
    "sign": SignFlip(),
    "scale": Rescale(100.0),
    "noise": Gaussian(),
    "copy of the model": LazyFreeRider(),
}


def trained(hospitals, digits, folder, change=lambda app: app, attack=None):
    """The accuracy after six rounds, and the record; hospital 3 lies."""
    x, y = digits
    mine = public_text(new_key(folder / "coordinator.pem"))
    roster, apps = Roster(coordinator=mine), {}
    for i in range(4):
        rows = slice(i, 1200, 4)
        key = new_key(folder / f"{i}.pem")
        roster = roster.adding(EnrolmentRequest.sign(f"hospital-{i}", key, mine))
        config = written(folder, i, x[rows], y[rows])
        made = hospitals("client").participant(Context(1, 1, config, RecordDict(), {}))
        made = dataclasses.replace(made, coordinator=mine)
        if i == 3 and attack is not None:
            made = dataclasses.replace(made, attack=attack, memory=folder / "liar")
        apps[FIRST_NODE + i] = change(client_app(made)) if i == 3 else client_app(made)
    roster.save(folder / "roster.yaml")
    run_config = {"roster": str(folder / "roster.yaml"), "folder": str(folder / "run"), "rounds": 6}
    run_config["schema"] = str(folder / "schema.json")
    made = hospitals("server").coordinator(Context(1, 1, {}, RecordDict(), run_config))
    times = dataclasses.replace(made.timeouts, answer=10.0, enrolment=60.0, poll=0.01, roll_call=0.1)
    with InProcessGrid(apps) as grid:
        coordinate(grid, dataclasses.replace(made, timeouts=times))
    flat = FlatModule(Record.load(folder / "run").model())
    test = Dataset(torch.from_numpy(x[1200:]), torch.from_numpy(y[1200:]), 10)
    return evaluate(flat, flat.read(), test).accuracy, Record.load(folder / "run")


@pytest.fixture(scope="module")
def clean():
    """The accuracy without a liar; a list that holds it once it is known."""
    return []


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if number else []) for number, kind in enumerate(LIARS)]
)
def test_one_liar_of_four_costs_at_most_five_points(hospitals, digits, tmp_path_factory, clean, kind):
    if not clean:
        clean.append(trained(hospitals, digits, tmp_path_factory.mktemp("clean"))[0])
    accuracy, record = trained(hospitals, digits, tmp_path_factory.mktemp("run"), attack=LIARS[kind])
    assert accuracy > clean[0] - 0.05
    assert record.history[0].promise.f == 1, "and that was promised"


@pytest.mark.parametrize("kind", [*LIARS, "copy of a client"])
def test_one_liar_of_four_costs_the_demonstration_at_most_five_points(kind):
    plan = dataclasses.replace(plan_of(4, 6, asynchronous=False), attack=None, byzantine=0)
    attack = LIARS.get(kind, Mimic())
    attacked = simulate(dataclasses.replace(plan, attack=attack, byzantine=1), models=None)
    assert attacked.summary.final.accuracy > simulate(plan, models=None).summary.final.accuracy - 0.05
    assert attacked.history[0].promise.f == 1


@pytest.mark.parametrize("clients", range(SAFE, 13))
def test_the_demonstration_promises_to_tolerate_an_attacker(clients):
    plan = plan_of(clients, 1, asynchronous=False)
    found = promise(plan.algorithm, Setting(clients, lossy=True, joins=True), f=plan.tolerate)
    assert found.f == plan.byzantine >= 1


@pytest.mark.slow
def test_a_silent_hospital_costs_at_most_five_points(hospitals, digits, tmp_path_factory, clean):
    if not clean:
        clean.append(trained(hospitals, digits, tmp_path_factory.mktemp("clean"))[0])
    accuracy, record = trained(hospitals, digits, tmp_path_factory.mktemp("run"), silent())
    assert accuracy > clean[0] - 0.05
    assert any(3 in step.lost for step in record.history)


def test_a_plan_that_promises_nothing_does_not_start_unless_that_is_accepted_by_name(tmp_path):
    plan = dataclasses.replace(SMALL, algorithm=FedAvg(), until=Until(1))
    apps = at_nodes(honest(plan, tmp_path / "state"))
    with InProcessGrid(apps) as grid, pytest.raises(InfeasibleError, match=r"Promises nothing.* accept that by name"):
        coordinate(grid, coordinator(plan, accept=(), folder=tmp_path / "refused"))
    assert not any(step.verdicts for step in lines(tmp_path / "refused"))
    assert status(tmp_path / "refused").phase == "not begun"
    with InProcessGrid(apps) as grid:
        coordinate(grid, coordinator(plan, folder=tmp_path / "accepted"))  # by the helper, as the remedy says
    (event,) = [entry for entry in read(tmp_path / "accepted" / AUDIT) if entry.event == "accepted"]
    assert event.why.startswith("Promises nothing")
    assert Record.load(tmp_path / "accepted").config["accept"] == ["no promise"]


@pytest.mark.slow
def test_four_hospitals_train_a_model_that_none_has_data_for_alone(hospitals, digits, tmp_path):
    x, y = digits
    mine = public_text(new_key(tmp_path / "coordinator.pem"))
    roster, config = Roster(coordinator=mine), {}
    for i in range(4):
        rows = slice(i, 1200, 4)
        key = new_key(tmp_path / f"{i}.pem")
        roster = roster.adding(EnrolmentRequest.sign(f"hospital-{i}", key, mine))
        config[FIRST_NODE + i] = written(tmp_path, i, x[rows], y[rows]) | {"coordinator": mine}
    roster.save(tmp_path / "roster.yaml")
    assert len(KEYS) >= 4
    run_config = {"roster": str(tmp_path / "roster.yaml"), "folder": str(tmp_path / "run"), "rounds": 12}
    run_config["schema"] = str(tmp_path / "schema.json")
    with InProcessGrid(dict.fromkeys(config, hospitals("client").app), config) as grid:
        hospitals("server").app(grid, grid.context(run_config))
    flat = FlatModule(Record.load(tmp_path / "run").model())
    test = Dataset(torch.from_numpy(x[1200:]), torch.from_numpy(y[1200:]), 10)
    assert evaluate(flat, flat.read(), test).accuracy > 0.8
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 13
