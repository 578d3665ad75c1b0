"""Engines of local training: what they change of a run, which runs can have them, and the rule that chooses."""

import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.algorithms import SCAFFOLD, FedAsync
from phalanx.attacks import Neurotoxin
from phalanx.core import InfeasibleError
from phalanx.models import MLP, GivenModule
from phalanx.runs import engine_choice
from phalanx.runs.card import card
from phalanx.runs.engine_choice import by_rule, can_begin, with_engine
from phalanx.runs.provenance import Provenance
from phalanx.runs.record import Record
from phalanx.training import Ditto, FedPer, LocalOptimizer, LocalSGD, PrivateSGD
from phalanx.training.compiled.trainer import CompiledTrainer
from phalanx.training.engines import TRAINERS
from phalanx.training.sgd import Trainer

SMALL = Run(clients=4, model=MLP((4,)), until=Until(2))
GELU = GivenModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10)))


@dataclass(frozen=True)
class OwnSGD(LocalSGD):
    """A training whose trainer is another than that of `LocalSGD`."""

    def trainer(self, model, task, seed):
        return Trainer(model, self, seed, task)


@pytest.mark.parametrize("engine", TRAINERS)
def test_an_engine_is_a_field_of_the_training_also_within_others(engine):
    sgd = LocalSGD(engine=engine)
    assert with_engine(SMALL, engine) == replace(SMALL, training=sgd)
    assert with_engine(with_engine(SMALL, "compiled"), engine).training.computed_by == engine
    around = Ditto(LocalSGD(steps=2), LocalSGD(steps=3))
    expected = Ditto(LocalSGD(steps=2, engine=engine), LocalSGD(steps=3, engine=engine))
    assert with_engine(replace(SMALL, training=around), engine).training == expected
    found = with_engine(replace(SMALL, training=FedPer(("0.*",))), engine).training
    assert (found, found.computed_by) == (FedPer(("0.*",), sgd), engine)


def test_the_loop_is_no_part_of_a_canonical_form_and_others_are():
    """So records of before there were engines keep their identities."""
    assert with_engine(SMALL, "loop").settings == SMALL.settings
    assert with_engine(SMALL, "compiled").settings == SMALL.settings | {"training": {"engine": "compiled"}}


def test_each_engine_has_the_trainer_of_its_name():
    kinds = {engine: type(LocalSGD(engine=engine).trainer(*_parts())) for engine in TRAINERS}
    assert kinds == {"loop": Trainer, "compiled": CompiledTrainer}


def _parts():
    federation = engine_choice.Federation(SMALL)
    return federation.model, SMALL.task, 0


@pytest.mark.parametrize(
    "training",
    [LocalOptimizer(), PrivateSGD(), FedPer(("0.*",), LocalOptimizer()), OwnSGD()],
    ids=lambda t: t.computed_by,
)
def test_other_trainings_have_no_engines(training):
    plan = replace(SMALL, training=training)
    with pytest.raises(InfeasibleError, match=f"train by {training.computed_by}. .*set training to LocalSGD"):
        with_engine(plan, "loop")
    assert by_rule(plan) is plan


@pytest.mark.parametrize(
    ("change", "has"),
    [
        ({}, True),
        ({"training": Ditto(LocalSGD())}, True),
        ({"algorithm": SCAFFOLD()}, True),
        ({"model": GELU}, False),
        ({"training": LocalSGD(precision="bfloat16")}, False),
        ({"attack": Neurotoxin(), "byzantine": 1}, False),
    ],
    ids=["perceptron", "Ditto", "SCAFFOLD", "GELU", "bfloat16 without convolutions", "attack on the training"],
)
def test_runs_whose_parts_go_with_an_engine_can_begin(monkeypatch, change, has):
    monkeypatch.setattr(engine_choice, "WORK", 0.0)
    plan = replace(SMALL, **change)
    wanted = with_engine(plan, "compiled")
    assert can_begin(wanted) == has
    assert by_rule(plan) == (wanted if has else plan)
    assert simulate(by_rule(plan)).summary.status == "finished"


def test_a_run_that_cannot_begin_is_no_run_without_the_engine():
    plan = replace(SMALL, model=GivenModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 3))))
    with pytest.raises(ValueError, match="scores for each of"):
        can_begin(with_engine(plan, "compiled"))
    assert by_rule(plan) is plan, "it says so when it begins"


@pytest.mark.parametrize(
    ("change", "work"),
    [
        ({}, 2 * 1438 * 310),  # two rounds of all 1,438 training examples, 64 x 4 + 4 + 4 x 10 + 10 parameters
        ({"training": LocalSGD(epochs=3)}, 3 * 2 * 1438 * 310),
        ({"training": LocalSGD(steps=5, batch_size=8)}, 2 * 4 * 5 * 8 * 310),
        ({"participation": 0.5}, 2 * 719 * 310),
        ({"algorithm": FedAsync()}, 2 * 359.5 * 310),
        ({"until": Until(seconds=9.0)}, float("inf")),
    ],
    ids=["rounds", "epochs", "steps", "participation", "asynchronous", "an end that is not known"],
)
def test_much_work_is_compiled(monkeypatch, change, work):
    plan = replace(SMALL, **change)
    found = engine_choice._work(engine_choice.Federation(plan))
    assert found == pytest.approx(work)
    for limit, engine in ((0.999 * work, "compiled"), (1.001 * work, "loop")):
        if limit < float("inf"):
            monkeypatch.setattr(engine_choice, "WORK", limit)
            assert by_rule(plan).training.computed_by == engine


def test_the_rule_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(engine_choice, "WORK", 0.0)
    plan = replace(SMALL, model=MLP((4,), start="glorot"), training=LocalSGD(momentum=0.5))
    by_hand = simulate(with_engine(plan, "compiled"))
    before = torch.get_rng_state()
    chosen = by_rule(plan)
    assert torch.equal(torch.get_rng_state(), before)
    record = simulate(chosen)
    assert (record.history, record.config) == (by_hand.history, by_hand.config)
    assert torch.equal(record.model().state_dict()["1.weight"], by_hand.model().state_dict()["1.weight"])


def test_the_record_names_the_engine(tmp_path):
    plan = with_engine(replace(SMALL, until=Until(1)), "compiled")
    record = simulate(plan, folder=tmp_path)
    assert '"engine":"compiled"' in re.sub(r"\s", "", (tmp_path / "summary.json").read_text())
    assert Record.load(tmp_path).summary.provenance.engine == "compiled"
    assert ", engine compiled |" in card(record)
    adam = simulate(replace(SMALL, training=LocalOptimizer(), until=Until(1))).summary.provenance
    assert adam.engine == "LocalOptimizer"
    without = {name: value for name, value in adam.form.items() if name != "engine"}
    assert Provenance.read(without).engine is None, "of an older record"
