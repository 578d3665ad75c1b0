"""`examples/flower`, as it is: the apps, their configuration, a federation in process."""

import dataclasses
import importlib
import re
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits

from flower.federations import FIRST_NODE, KEYS, SMALL, at_nodes, coordinator, honest, silent
from phalanx import Record, Run, Until, simulate
from phalanx.algorithms import FedAvg
from phalanx.attacks import Attack, Gaussian, LazyFreeRider, Mimic, ReportSize, Rescale, SignFlip, Together
from phalanx.cli.flower import STEPS
from phalanx.core import InfeasibleError
from phalanx.data import CSV, Dataset, Digits, Natural
from phalanx.flower import InProcessGrid, Roster, client_app, coordinate, demo, new_key
from phalanx.flower.audit import read
from phalanx.flower.demo import DIGITS_SCHEMA, SAFE, as_table, deal, plan_of
from phalanx.flower.identity import EnrolmentRequest, public_text
from phalanx.flower.live import lines, status
from phalanx.flower.signed_schema import sign_schema
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
        train, test = hospitals("client").participant(context).examples
        with np.load(config["data"]) as file:
            rows = [[*x.tolist(), y] for part in (train, test) for x, y in zip(part.x, part.y.tolist(), strict=True)]
            given = [[*x.tolist(), y] for x, y in zip(file["x"], file["y"].tolist(), strict=True)]
            assert sorted(rows) == sorted(given), "the table holds the same as the arrays"
        assert 0.15 * len(rows) < len(test) < 0.25 * len(rows), "a hospital reports how good each model is on these"
        held.append(train)
    assert sum(map(len, held)) > 1000
    assert all(data.x.shape[1:] == (64,) and data.classes == 10 for data in held)


def written(folder, i, x, y):
    """The table of a hospital and the schema; returns the configuration of its node."""
    (folder / f"{i}.csv").write_text(as_table(x, y))
    (folder / "schema.json").write_bytes(DIGITS_SCHEMA.json)
    places = {"key": f"{i}.pem", "table": f"{i}.csv", "schema": "schema.json"}
    return {name: str(folder / place) for name, place in places.items()}


ANSWER = 10.0  # seconds that a client has for an answer
CLIENTS, LIAR, COPIED = 4, 3, 0


@dataclass(frozen=True)
class Noted(Attack):
    """No attack: notes each update with the model that it started from, for a copy."""

    seen: dict = field(default_factory=dict)

    def forge(self, update, knowledge, rng):
        self.seen.update(base=update.base.clone(), before=self.seen.get("update"), update=update.delta.clone())
        return update.delta


@dataclass(frozen=True)
class Copied(Noted):
    """Sends another client's update from the same model, which it waits for, or the one before."""

    old: bool = False

    def forge(self, update, knowledge, rng):
        while not self.seen or not torch.equal(self.seen["base"], update.base):
            time.sleep(0.01)
        before = self.seen["before"]
        return before if self.old and before is not None else self.seen["update"]


def patient(app):
    """An app that may wait while others compute."""

    def node(message, context):
        return app(message, context)

    node.waits = True
    return node


def late(app):
    """An app that answers each task when its time is over."""

    def node(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "train":
            time.sleep(ANSWER + 1.0)
        return reply

    return patient(node)


class Liar(NamedTuple):
    """What a liar does to its update, and to its app."""

    attack: Attack | None = None
    change: Callable = lambda app: app


KINDS = {
    "size": Liar(ReportSize(1_000_000)),
    "size and update": Liar(Together(ReportSize(1_000_000), Rescale(-10.0))),
    "sign": Liar(SignFlip()),
    "scale": Liar(Rescale(100.0)),
    "noise": Liar(Gaussian()),
    "silence": Liar(change=silent()),
    "lateness": Liar(Rescale(-10.0), late),
    "copies of a client": Liar(Copied(), patient),
    "old copies of a client": Liar(Copied(old=True), patient),
    "copies of the model": Liar(LazyFreeRider()),
}
EXAMPLES = sorted(path.parent.name for path in FOLDER.glob("*/server.py"))
CONFIGURED = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
DEMONSTRATION = "the demonstration of phalanx flower up"


@pytest.fixture
def shipped(monkeypatch):
    """The functions that make a coordinator and a participant from a context, of a shipped app."""
    monkeypatch.syspath_prepend(FOLDER)

    def of(name):
        if name == DEMONSTRATION:
            return demo.coordinator, demo.participant
        modules = [importlib.import_module(f"{name}.{part}") for part in ("server", "client")]
        return modules[0].coordinator, modules[1].participant

    yield of
    for name in [name for name in sys.modules if name.partition(".")[0] in EXAMPLES]:
        del sys.modules[name]


def trained(app, folder, liar=None):
    """The accuracy of a shipped app at its end, and its record, where `flower up` gives it digits."""
    made, participant = app
    private = new_key(folder / "coordinator.pem")
    mine = public_text(private)
    roster, apps, seen, dealt = Roster(coordinator=mine), {}, {}, deal(folder / "data", CLIENTS)
    sign_schema(folder / "data" / "schema.json", private)
    for i, told in dealt.items():
        roster = roster.adding(EnrolmentRequest.sign(f"client-{i}", new_key(folder / f"{i}.pem"), mine))
        config = {**told, "key": str(folder / f"{i}.pem"), "memory": str(folder / f"memory-{i}")}
        attack = None if liar is None else liar.attack if i == LIAR else Noted() if i == COPIED else None
        attack = dataclasses.replace(attack, seen=seen) if isinstance(attack, Noted) else attack
        client = participant(Context(1, 1, config, RecordDict(), UP))
        memory = Path(config["memory"]) if client.algorithm.traits.remembers or attack is not None else None
        client = client_app(dataclasses.replace(client, coordinator=mine, attack=attack, memory=memory))
        apps[FIRST_NODE + i] = client if liar is None or i != LIAR else liar.change(client)
    roster.save(folder / "roster.yaml")
    config = {"roster": str(folder / "roster.yaml"), "folder": str(folder / "run")}
    config |= {"schema": str(folder / "data" / "schema.json"), "rounds": CONFIGURED["rounds"]}
    server = made(Context(1, 1, {}, RecordDict(), {**UP, **config}))
    times = dataclasses.replace(server.timeouts, answer=ANSWER, enrolment=60.0, poll=0.01, roll_call=0.1)
    with InProcessGrid(apps) as grid:
        coordinate(grid, dataclasses.replace(server, timeouts=times))
    record = Record.load(folder / "run")
    flat = FlatModule(record.model())
    return evaluate(flat, flat.read(), Digits().load()[1]).accuracy, record


UP = {"clients": CLIENTS, "steps": STEPS, "asynchronous": False, "prefetch": False, "answer": ANSWER}


@pytest.fixture(scope="module")
def clean():
    """The accuracy of each app without a liar, once it is known."""
    return {}


@pytest.mark.parametrize("name", [*EXAMPLES, DEMONSTRATION])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if number else []) for number, kind in enumerate(KINDS)]
)
def test_one_liar_of_four_costs_each_shipped_app_at_most_five_points(shipped, tmp_path_factory, clean, name, kind):
    app = shipped(name)
    if name not in clean:
        clean[name] = trained(app, tmp_path_factory.mktemp("clean"))[0]
    accuracy, record = trained(app, tmp_path_factory.mktemp("run"), KINDS[kind])
    assert accuracy > clean[name] - 0.05
    assert record.history[0].promise.f == 1, "and that was promised"
    missed = [step for step in record.history if LIAR in step.lost]
    assert bool(missed) is (kind in ("silence", "lateness")), "it was not there, or not in time"


HEART = Path(__file__).parents[2] / "docs" / "tutorials" / "heart"
UNLIKE = {  # by kind, of what a simulation can show: points that the hospital loses that loses most, by the README
    "size": (ReportSize(1_000_000), 0.0),
    "size and update": (KINDS["size and update"].attack, 28.0),
    "sign": (SignFlip(), 28.0),
    "scale": (Rescale(100.0), 28.0),
    "noise": (Gaussian(), 28.0),
    "copies of the model": (LazyFreeRider(), 28.0),
    **{f"copies of {target}": (Mimic(target=target), 53.0) for target in range(CLIENTS)},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", UNLIKE)
def test_real_hospitals_that_differ_lose_as_much_as_the_readme_says(shipped, kind):
    shipped("hospitals")
    plan, (attack, most) = importlib.import_module("hospitals.plan"), UNLIKE[kind]
    classes = {"healthy": (0,), "ill": (1, 2, 3, 4)}
    tables = CSV(str(HEART / "*.csv"), "target", missing=("?",), impute="median", class_names=classes)
    run = Run(
        data=tables, partition=Natural(), clients=CLIENTS, model=plan.network, algorithm=plan.algorithm,
        training=plan.training, until=Until(CONFIGURED["rounds"]),
    )  # fmt: skip
    clean = simulate(run, models=None).history[-1].metrics.client_accuracy
    lost = []
    for liar in sorted(path.stem for path in HEART.glob("*.csv")):
        record = simulate(dataclasses.replace(run, attack=attack, byzantine=(liar,)), models=None)
        found = record.history[-1].metrics.client_accuracy
        lost += [100 * (clean[i] - share) for i, share in found.items() if not record.summary.clients[i].byzantine]
    assert max(lost) <= most
    if kind == "copies of 2":
        assert max(lost) > 28.0, "or the README says too much"


def test_an_example_that_deploys_is_an_app_in_the_folder_that_is_attacked():
    deploys = re.compile(r"phalanx[. ]flower|Coordinator\(|server_app")
    files = [path for path in FOLDER.parent.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    found = {path.relative_to(FOLDER.parent) for path in files if deploys.search(path.read_text(errors="replace"))}
    assert {path.parts[:2] for path in found if len(path.parts) > 2} == {("flower", name) for name in EXAMPLES}
    assert [str(path) for path in found if len(path.parts) <= 2] in ([], ["flower/README.md"])


@pytest.mark.parametrize("clients", range(SAFE, 13))
def test_the_demonstration_promises_to_tolerate_an_attacker(clients):
    plan = plan_of(clients, 1, asynchronous=False)
    found = promise(plan.algorithm, Setting(clients, lossy=True, joins=True), f=plan.tolerate)
    assert found.f == plan.byzantine >= 1


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
    private = new_key(tmp_path / "coordinator.pem")
    mine = public_text(private)
    roster, config = Roster(coordinator=mine), {}
    for i in range(4):
        rows = slice(i, 1200, 4)
        key = new_key(tmp_path / f"{i}.pem")
        roster = roster.adding(EnrolmentRequest.sign(f"hospital-{i}", key, mine))
        config[FIRST_NODE + i] = written(tmp_path, i, x[rows], y[rows]) | {"coordinator": mine}
    roster.save(tmp_path / "roster.yaml")
    sign_schema(tmp_path / "schema.json", private)
    assert len(KEYS) >= 4
    run_config = {"roster": str(tmp_path / "roster.yaml"), "folder": str(tmp_path / "run"), "rounds": 12}
    run_config["schema"] = str(tmp_path / "schema.json")
    with InProcessGrid(dict.fromkeys(config, hospitals("client").app), config) as grid:
        hospitals("server").app(grid, grid.context(run_config))
    flat = FlatModule(Record.load(tmp_path / "run").model())
    test = Dataset(torch.from_numpy(x[1200:]), torch.from_numpy(y[1200:]), 10)
    assert evaluate(flat, flat.read(), test).accuracy > 0.8
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 13
