"""What goes wrong in a consortium, staged: each is named by `phalanx doctor` or by the live view, within a round.

The faults and their numbers are those of a public runbook (MediSwarm's F1 to F10).  Two are staged elsewhere: F3, a
lock that was left (`tests/reliability/test_folders.py`), and F9, a kit of yesterday, whose schema is another
(`tests/flower/test_contract.py`).
"""

import dataclasses
import io
import time

import pytest
import torch
from flwr.app import Message
from rich.console import Console

from flower.federations import KEYS, QUICK, SMALL, at_nodes, attacked, coordinator, honest
from phalanx import Record, Until
from phalanx.aggregators import Median
from phalanx.algorithms import FedAvg
from phalanx.cli import doctor
from phalanx.cli.main import main
from phalanx.cli.terminal import complaints
from phalanx.core import StalledError
from phalanx.flower import InProcessGrid, coordinate
from phalanx.flower.client import ClientWorker
from phalanx.flower.live import lines, status, view
from phalanx.runs.federation import Federation
from phalanx.simulation import parallel

PLAN = dataclasses.replace(SMALL, algorithm=FedAvg(aggregate=Median()), until=Until(4))
TROUBLED = 2  # the client with the fault


class Screen:
    """Keeps what the live view shows after each step."""

    def __init__(self, folder):
        self.folder, self.shown = folder, []

    def __call__(self, progress):
        if progress.step:
            self.shown.append(self.text())

    def text(self):
        console = Console(width=220, height=60, file=io.StringIO())
        console.print(view(status(self.folder), lines(self.folder), (220, 60)))
        return console.file.getvalue()

    def of(self, client):
        """What the last picture says of a client, and the advice below."""
        rows = [line for line in self.shown[-1].splitlines() if f"clinic-{client}" in line]
        return " ".join(" ".join(rows).split())


def staged(folder, change, client=TROUBLED, **options):
    """What the operator sees in a run in which a client's app is changed."""
    screen, federation = Screen(folder), Federation(PLAN)
    apps = honest(PLAN, folder / "clients", federation)
    nodes = at_nodes({**apps, client: change(apps[client])})
    with InProcessGrid(nodes) as grid:
        coordinate(grid, coordinator(PLAN, folder=folder, federation=federation, observers=[screen], **options))
    return screen


def failing(error):
    """An app whose training raises an error."""

    def change(app):
        def node(message, context):
            if message.metadata.message_type == "train":
                raise error
            return app(message, context)

        return node

    return change


def raising(monkeypatch, error):
    """A client whose own code raises an error while it trains."""
    trained = ClientWorker.train

    def train(self, content):
        if self.key == KEYS[TROUBLED]:
            raise error
        return trained(self, content)

    monkeypatch.setattr(ClientWorker, "train", train)


@pytest.mark.slow
def test_f1_a_slow_site_is_not_called_dead(tmp_path):
    def slow(app):
        def node(message, context):
            time.sleep(8.0 * (message.metadata.message_type == "train"))
            return app(message, context)

        return node

    last = PLAN.clients - 1  # the grid's other nodes do not wait for it
    screen = staged(tmp_path, slow, last, until=Until(1), timeouts=dataclasses.replace(QUICK, answer=6.0))
    assert "lost @" in screen.of(last)
    assert "If it trains longer than that, raise `Timeouts(answer=...)`" in screen.shown[-1]
    assert status(tmp_path).clients[last].standing == "here"


GPU = getattr(torch, "AcceleratorError", None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        pytest.param(GPU and GPU("CUDA error: device lost"), "its GPU cannot be used", marks=pytest.mark.skipif(
            GPU is None, reason="of PyTorch 2.8 and later")),
        (torch.OutOfMemoryError("CUDA out of memory"), "it ran out of memory"),
    ],
)  # fmt: skip
def test_f2_a_gpu_that_vanishes_while_it_trains(error, reason, tmp_path, monkeypatch):
    raising(monkeypatch, error)
    screen = staged(tmp_path, lambda app: app)
    assert f"{reason}" in screen.of(TROUBLED)


def test_f2_a_gpu_that_was_never_there(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(doctor, "DRIVER", tmp_path)
    (found,) = doctor.gpu()
    assert (found.level, "PyTorch" in found.what, "nvidia-smi" in found.remedy) == ("wrong", True, True)


def test_f4_a_disk_that_is_read_only(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    found = {each.subject: each for each in doctor.at(tmp_path)}
    assert (found["folder"].level, "read only" in found["folder"].remedy) == ("wrong", True)


def test_f5_an_update_of_an_earlier_model(tmp_path):
    kept = []

    def change(message, reply, context):
        kept.append(reply.content)
        return Message(kept[0], reply_to=message)

    screen = staged(tmp_path, lambda app: attacked(app, change))
    assert "replayed, or meant for another task" in screen.of(TROUBLED)


def test_f6_a_network_that_is_cut(tmp_path):
    begun = []

    def cut(app):
        def node(message, context):
            begun.extend([message] if message.metadata.message_type == "train" else [])
            return None if len(begun) > 1 else app(message, context)

        return node

    screen = staged(tmp_path, cut, timeouts=dataclasses.replace(QUICK, answer=0.5))
    assert "lost @" in screen.of(TROUBLED)


def test_f7_shared_memory_that_is_small(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 64e6}))
    (found,) = doctor.shared_memory()
    assert (found.level, "64 MB" in found.what, "--shm-size" in found.remedy) == ("warning", True, True)


def test_f8_a_result_of_a_subset_is_called_one_with_names(tmp_path, capsys):
    staged(tmp_path, failing(ValueError("no")))
    record = Record.load(tmp_path)
    assert record.summary.status == "finished"
    sentence = f"The result is that of a subset: without client {TROUBLED} (clinic-{TROUBLED}) from step 1 on."
    assert sentence in (tmp_path / "model.md").read_text()
    assert sentence in complaints(record)
    assert main(["report", str(tmp_path)]) == 0
    assert sentence in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_f10_no_results_are_no_success(tmp_path):
    federation = Federation(PLAN)
    apps = honest(PLAN, tmp_path / "clients", federation)
    nodes = at_nodes({i: failing(ValueError("no"))(app) for i, app in apps.items()})
    with InProcessGrid(nodes) as grid, pytest.raises(StalledError, match="Nobody brings the update for step 1"):
        coordinate(grid, coordinator(PLAN, folder=tmp_path, federation=federation))
    record = Record.load(tmp_path)
    assert record.summary.status == "failed"
    assert record.summary.final.accuracy is None
    assert "Nobody brings the update" in status(tmp_path).why
    assert "0 steps, failed" in (tmp_path / "model.md").read_text()
