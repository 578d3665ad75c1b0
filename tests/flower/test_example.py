"""`examples/flower`, as it is: the apps, their configuration, a federation in process."""

import importlib
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits

from flower.federations import FIRST_NODE, KEYS, roster_of
from phalanx.data import Dataset
from phalanx.flower import InProcessGrid, new_key
from phalanx.flower.demo import deal
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
        held.append(hospitals("client").participant(context).data)
    assert sum(map(len, held)) > 1000
    assert all(data.x.shape[1:] == (64,) and data.classes == 10 for data in held)


@pytest.mark.slow
def test_four_hospitals_train_a_model_that_none_has_data_for_alone(hospitals, digits, tmp_path):
    x, y = digits
    roster, config = roster_of(0), {}
    for i in range(4):
        rows = slice(i, 1200, 4)
        np.savez(tmp_path / f"{i}.npz", x=x[rows], y=y[rows])
        key = new_key(tmp_path / f"{i}.pem")
        roster = roster.adding(f"hospital-{i}", key.public_key().public_bytes_raw())
        config[FIRST_NODE + i] = {"key": str(tmp_path / f"{i}.pem"), "data": str(tmp_path / f"{i}.npz")}
    roster.save(tmp_path / "roster.yaml")
    assert len(KEYS) >= 4
    run_config = {"roster": str(tmp_path / "roster.yaml"), "folder": str(tmp_path / "run"), "rounds": 12}
    with InProcessGrid(dict.fromkeys(config, hospitals("client").app), config) as grid:
        hospitals("server").app(grid, grid.context(run_config))
    model = hospitals("plan").model()
    model.load_state_dict(safetensors.torch.load_file(tmp_path / "run" / "model.safetensors"))
    flat = FlatModule(model)
    test = Dataset(torch.from_numpy(x[1200:]), torch.from_numpy(y[1200:]), 10)
    assert evaluate(flat, flat.read(), test).accuracy > 0.8
    assert len((tmp_path / "run" / "history.jsonl").read_text().splitlines()) == 13
