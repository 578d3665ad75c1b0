"""A torch module as the model of a run."""

import copy
import dataclasses
import json
import pickle

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.cli.main import main
from phalanx.data import Dataset, InMemory
from phalanx.models import GivenModule
from phalanx.rng import borrowed
from phalanx.runs.canonical import source


@pytest.fixture(autouse=True)
def _unchecked():
    """As in a user's program: `Run(model=...)` takes what its type does not say."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def network(seed=0, act=nn.ReLU, **options):
    with borrowed(seed, "test"):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8, **options), act(), nn.Linear(8, 10))


def run_of(module, **settings):
    return Run(**{"clients": 4, "until": 2, "model": module} | settings)


def test_training_begins_with_its_values_whatever_the_seed():
    module = network()
    for seed in (0, 1):
        built = run_of(module, seed=seed).model.build((1, 8, 8), 10)
        assert all(map(torch.equal, built.parameters(), module.parameters()))
        assert built is not module


def test_a_run_neither_changes_the_module_nor_follows_its_changes():
    module = network()
    before = copy.deepcopy(module.state_dict())
    plan = run_of(module)
    identity, record = plan.identity, simulate(plan)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    module[1].weight.data.zero_()
    assert dataclasses.replace(plan).identity == identity
    assert [step.metrics for step in simulate(plan).history] == [step.metrics for step in record.history]


def test_equal_modules_are_one_run_and_others_are_not():
    one, again = run_of(network()), run_of(network())
    assert (one, one.identity, hash(one.model)) == (again, again.identity, hash(again.model))
    frozen = network()
    frozen[1].weight.requires_grad_(False)
    others = [network(1), network(act=nn.Tanh), network(bias=False), network().double(), frozen]
    assert len({run_of(module).identity for module in [network(), *others]}) == 6


def test_addresses_in_a_printed_structure_are_no_part_of_the_identity():
    class Holding(nn.Linear):
        def extra_repr(self):
            return f"{object()}"

    with borrowed(0, "test"):
        one = GivenModule(Holding(2, 2))
    assert "0x" not in json.dumps(one.canonical)
    assert " at 0x" in repr(one.module)


def test_the_source_of_the_modules_classes_counts():
    class Own(nn.Linear):
        pass

    assert source(run_of(nn.Sequential(nn.Flatten(), Own(64, 10)))) is not None
    assert GivenModule(nn.Sequential(Own(1, 1))).source_modules == (__name__, nn.Sequential.__module__)


def test_it_is_pickled_for_other_processes():
    model = GivenModule(network())
    assert pickle.loads(pickle.dumps(model)) == model


@pytest.mark.parametrize(
    ("module", "settings", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), {}, r"lazy parameters .* Run one batch through it first"),
        (nn.Linear(3, 2), {}, r"GivenModule\(Linear of 8 parameters\) cannot take examples of shape \(1, 8, 8\)"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
            {},
            r"must give 10 scores .* gave \(2, 9\)",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)), {}, 'Set buffers="average" to aggregate'),
    ],
)
def test_what_does_not_fit_is_said(module, settings, message):
    with pytest.raises(ValueError, match=message):
        simulate(run_of(module, **settings))


def test_integers_that_are_no_words_are_explained():
    train = Dataset.from_numpy(np.arange(8).reshape(4, 2), [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"same dtype.*\. They are integers, .*; make other numbers float32\."):
        simulate(run_of(nn.Linear(2, 2), data=InMemory(train, train), clients=2))


def test_a_class_is_no_module():
    with pytest.raises(TypeError, match=r"model must be a value, got the class Linear\. Write Linear\(\)"):
        run_of(nn.Linear)


def test_a_record_names_it_and_no_file_makes_it_again(tmp_path, capsys):
    plan = run_of(network(), until=Until(1), training=LocalSGD(steps=1))
    simulate(plan, folder=str(tmp_path / "run"))
    config = tmp_path / "run" / "run.json"
    assert json.loads(config.read_text())["model"]["init_args"]["values"] == plan.model.canonical["values"]
    with pytest.raises(SystemExit):
        main(["run", "--config", str(config)])
    assert "model: GivenModule is made of what no option can hold. Make the run in Python" in capsys.readouterr().err
