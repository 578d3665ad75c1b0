"""The demonstration over Flower: handwritten digits, split among clients that each run in their own process.

One client in four sends its update times -10, and is excluded.  The asynchronous demonstration has no attacker, since
its algorithm has no defence.  Each client reads its share of the data from a file, as in a real federation: a client's
process is started for each task, and splitting the data there would be most of its work.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Context

from phalanx.aggregators import Median
from phalanx.algorithms import AboveNoise, ByzantineCFL, FedAsync
from phalanx.attacks import Rescale
from phalanx.core import Until
from phalanx.data import Dataset, Digits, Schema
from phalanx.data.table_columns import Constraints, Field, Use
from phalanx.data.table_schema import SCHEMA_FILE
from phalanx.flower.client import Participant
from phalanx.flower.durable_files import private_file
from phalanx.flower.from_run import coordinator_of
from phalanx.flower.server import Coordinator
from phalanx.flower.timeouts import Timeouts
from phalanx.models import MLP
from phalanx.runs.federation import Federation
from phalanx.runs.files import write
from phalanx.runs.plan import Run
from phalanx.training.sgd import LocalSGD

DIGITS = 10
SAFE = 4  # clients, from which on the synchronous demonstration tolerates one attacker or more
DIGITS_SCHEMA = Schema(
    fields=(
        *(Field(name=f"pixel {k}", type="number", constraints=Constraints(minimum=0, maximum=1)) for k in range(64)),
        Field(name="digit", type="integer", categories=tuple(range(DIGITS)), use=Use(role="target")),
    )
)
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "phalanx-demo"
version = "1.0.0"
description = "Handwritten digits, and one attacker among four clients"
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
prefetch = false
answer = 120
"""
MODULE = '''"""The apps that Flower runs."""

from phalanx.flower import client_app, server_app
from phalanx.flower.demo import coordinator, participant

server = server_app(coordinator)
client = client_app(participant)
'''


def plan_of(clients: int, steps: int, *, asynchronous: bool) -> Run:
    """Return the plan of the demonstration."""
    byzantine = clients // 4
    return Run(
        algorithm=FedAsync() if asynchronous else ByzantineCFL(threshold=AboveNoise(), aggregate=Median()),
        data=Digits(),
        clients=clients,
        model=MLP((64,)),
        training=LocalSGD(epochs=2, batch_size=16, lr=0.2),
        attack=Rescale(-10.0) if byzantine and not asynchronous else None,
        byzantine=0 if asynchronous else byzantine,
        until=Until(steps=steps),
        tolerate=byzantine if byzantine and not asynchronous else None,
        suspicion=True,
    )


def write_app(folder: Path) -> Path:
    """Write the two files of a Flower app."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "pyproject.toml", PYPROJECT.encode())
    write(folder / "phalanx_demo.py", MODULE.encode())
    return folder


def deal(folder: Path, clients: int) -> dict[int, Mapping[str, Any]]:
    """Write each client's share of the digits to a file; other apps than the demonstration can use them too.

    Args:
        folder: receives data-0.npz and so on, each with `x`, float32 of shape (n, 64), and `y`, int64; the same as
            tables, data-0.csv and so on; and schema.json, which says how rows of these become examples.
        clients: number of clients.

    Returns:
        The node configuration of each client: its id, the number of clients, and the paths of its data, of its table,
        and of the schema.
    """
    folder.mkdir(parents=True, exist_ok=True)
    configs = dict[int, Mapping[str, Any]]()
    for client, data in enumerate(Federation(plan_of(clients, 1, asynchronous=True)).data):
        path = folder / f"data-{client}.npz"
        table, x, y = path.with_suffix(".csv"), data.tensor.flatten(1).numpy(), data.y.numpy()
        for old in (path, table):
            old.unlink(missing_ok=True)
        with private_file(path) as file:
            np.savez(file, allow_pickle=False, x=x, y=y)
        with private_file(table) as file:
            file.write(as_table(x, y).encode())
        paths = {"data": str(path), "table": str(table), "schema": str(folder / SCHEMA_FILE)}
        configs[client] = {"client": client, "clients": clients, **paths}
    write(folder / SCHEMA_FILE, DIGITS_SCHEMA.json)
    return configs


def as_table(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> str:
    """Return digits as the text of a CSV file, in the columns of `DIGITS_SCHEMA`.

    Args:
        x: (n, 64), pixels from 0 to 1.
        y: (n,), the digits.
    """
    lines = [",".join([*(f"{pixel:g}" for pixel in row), str(label)]) for row, label in zip(x, y, strict=True)]
    return "\n".join([",".join(each.name for each in DIGITS_SCHEMA.fields), *lines]) + "\n"


def _plan(context: Context) -> Run:
    config = context.run_config
    return plan_of(int(config["clients"]), int(config["steps"]), asynchronous=bool(config["asynchronous"]))


def coordinator(context: Context) -> Coordinator:
    """Return the server of the demonstration."""
    config = context.run_config
    return coordinator_of(
        _plan(context),
        Path(str(config["roster"])),
        folder=Path(str(config["folder"])),
        prefetch=bool(config["prefetch"]),
        accept=() if int(config["clients"]) >= SAFE and not config["asynchronous"] else ("no promise",),
        timeouts=Timeouts(answer=float(config["answer"])),
    )


def participant(context: Context) -> Participant:
    """Return a client of the demonstration."""
    config, plan = context.node_config, _plan(context)
    with np.load(str(config["data"]), allow_pickle=False) as file:
        data = Dataset(torch.from_numpy(file["x"]), torch.from_numpy(file["y"]), DIGITS)
    return Participant(
        plan.algorithm,
        plan.model.build(data.shape, data.classes),
        plan.training,
        data,
        Path(str(config["key"])),
        Path(str(config["memory"])),
        plan.seed,
        attack=plan.attack if int(config["client"]) in plan.attackers() else None,
        noise="stream",
    )
