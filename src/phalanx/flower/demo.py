"""The demonstration over Flower: handwritten digits, dealt to clients that each have a process of their own.

One in four turns its updates round and makes them ten times as large.  Each client makes its share of the data itself,
from the `Run` that all of them know; in a real federation it reads its own, as `examples/flower` does.
"""

from pathlib import Path

from flwr.app import Context

from phalanx.aggregators import Median
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import Rescale
from phalanx.core import Until
from phalanx.data import Digits
from phalanx.flower.client import Participant
from phalanx.flower.patience import Patience
from phalanx.flower.planned import coordinator_of, participant_of
from phalanx.flower.server import Coordinator
from phalanx.models import MLP
from phalanx.runs import Run
from phalanx.training import LocalSGD

PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "phalanx-demo"
version = "1.0.0"
description = "Handwritten digits, and one attacker in four"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "phalanx"

[tool.flwr.app.components]
serverapp = "phalanx_demo:server"
clientapp = "phalanx_demo:client"

[tool.flwr.app.config]
roster = ""
folder = ""
clients = 4
steps = 5
asynchronous = false
answer = 120
"""
MODULE = '''"""What Flower is told to run."""

from phalanx.flower import client_app, server_app
from phalanx.flower.demo import coordinator, participant

server = server_app(coordinator)
client = client_app(participant)
'''


def plan_of(clients: int, steps: int, *, asynchronous: bool) -> Run:
    """The run of the demonstration."""
    byzantine = clients // 4
    return Run(
        algorithm=FedAsync() if asynchronous else FedAvg(aggregate=Median()),
        data=Digits(),
        clients=clients,
        model=MLP((64,)),
        training=LocalSGD(epochs=2, batch_size=16, lr=0.2),
        attack=Rescale(-10.0) if byzantine and not asynchronous else None,
        byzantine=0 if asynchronous else byzantine,
        until=Until(steps=steps),
    )


def write_app(folder: Path) -> Path:
    """Writes the two files that Flower wants of an app."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "phalanx_demo.py").write_text(MODULE)
    return folder


def _plan(context: Context) -> Run:
    config = context.run_config
    return plan_of(int(config["clients"]), int(config["steps"]), asynchronous=bool(config["asynchronous"]))


def coordinator(context: Context) -> Coordinator:
    """The server of the demonstration."""
    config = context.run_config
    return coordinator_of(
        _plan(context),
        Path(str(config["roster"])),
        folder=Path(str(config["folder"])),
        patience=Patience(answer=float(config["answer"]), enrolment=300.0),
    )


def participant(context: Context) -> Participant:
    """A client of the demonstration."""
    told = context.node_config
    return participant_of(_plan(context), int(told["client"]), Path(str(told["key"])), Path(str(told["memory"])))
