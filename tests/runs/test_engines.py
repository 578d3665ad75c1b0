"""Engines of local training: what they change of a run, which runs can have them, and the rule that chooses."""

import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from phalanx import Run, Study, Until, simulate
from phalanx.algorithms import SCAFFOLD, FedAsync
from phalanx.attacks import Neurotoxin
from phalanx.core import InfeasibleError
from phalanx.experiments.carrying_out import Means, carried_out
from phalanx.experiments.papers.experiment import reproductions
from phalanx.experiments.papers.manifest import Page
from phalanx.experiments.papers.needed import Needed
from phalanx.experiments.store import Store
from phalanx.models import MLP, GivenModule
from phalanx.runs import engine_choice
from phalanx.runs.canonical import canonical, configuration
from phalanx.runs.card import card
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.engine_choice import named, with_engine
from phalanx.runs.federation import Federation, can_begin
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


def by_rule(plan):
    """The run as `simulate` and `phalanx run` carry it out."""
    return Federation(plan, begun="").plan


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
    assert with_engine(SMALL, "loop").identity == SMALL.identity
    assert with_engine(SMALL, "compiled").settings == SMALL.settings | {"training": {"engine": "compiled"}}
    around = [Ditto(LocalSGD(engine=engine), LocalSGD(engine=engine)) for engine in (None, "loop")]
    assert canonical(around[0]) == canonical(around[1])
    assert [configuration(one)["init_args"]["training"]["engine"] for one in around] == [None, "loop"]


def test_an_engine_is_named_only_where_none_is():
    mixed = replace(SMALL, training=Ditto(LocalSGD(), LocalSGD(engine="loop")))
    assert named(mixed, "compiled").training == Ditto(LocalSGD(engine="compiled"), LocalSGD(engine="loop"))
    for plan in (with_engine(SMALL, "loop"), with_engine(SMALL, "compiled"), named(SMALL)):
        assert named(plan, "compiled") is plan
    assert LocalSGD().computed_by == "loop"


def test_each_engine_has_the_trainer_of_its_name():
    kinds = {engine: type(LocalSGD(engine=engine).trainer(*_parts())) for engine in (None, *TRAINERS)}
    assert kinds == {None: Trainer, "loop": Trainer, "compiled": CompiledTrainer}


def _parts():
    federation = Federation(SMALL)
    return federation.model, SMALL.task, 0


@pytest.mark.parametrize(
    "training",
    [LocalOptimizer(), PrivateSGD(), FedPer(("1.*",), LocalOptimizer()), OwnSGD()],
    ids=lambda t: t.computed_by,
)
def test_other_trainings_have_no_engines(training):
    plan = replace(SMALL, training=training)
    with pytest.raises(InfeasibleError, match=f"train by {training.computed_by}. .*set training to LocalSGD"):
        with_engine(plan, "loop")
    assert by_rule(plan) is plan
    assert named(plan) is plan


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
    assert by_rule(plan) == (wanted if has else with_engine(plan, "loop"))
    record = simulate(plan)
    assert record.summary.status == "finished"
    assert record.summary.provenance.engine == ("compiled" if has else "loop")


def test_a_run_that_cannot_begin_is_no_run_without_the_engine():
    plan = replace(SMALL, model=GivenModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 3))))
    with pytest.raises(ValueError, match="scores for each of"):
        can_begin(with_engine(plan, "compiled"))
    with pytest.raises(ValueError, match="scores for each of"):
        by_rule(plan)


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
    federation = Federation(plan)
    found = engine_choice._work(plan, [len(held) for held in federation.data], federation.model.trainable)
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
    assert by_rule(plan) == with_engine(plan, "compiled")
    assert torch.equal(torch.get_rng_state(), before)
    record = simulate(plan)
    assert (record.history, record.config) == (by_hand.history, by_hand.config)
    assert record.summary.identity == by_hand.summary.identity != plan.identity
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


@pytest.mark.parametrize("began", ["loop", "compiled"])
def test_a_run_that_goes_on_keeps_the_engine_that_it_began_with(monkeypatch, tmp_path, began):
    def stop(progress):
        if progress.step == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(with_engine(SMALL, began), folder=tmp_path, observers=[stop], checkpoint=Checkpoint(0.0))
    monkeypatch.setattr(engine_choice, "WORK", 0.0 if began == "loop" else float("inf"))
    record, whole = simulate(SMALL, folder=tmp_path), simulate(with_engine(SMALL, began))
    assert (record.history, record.summary.identity) == (whole.history, whole.summary.identity)
    assert simulate(SMALL, folder=tmp_path).summary.provenance.engine == began, "also when it is done"
    (tmp_path / "summary.json").write_text("{")
    other = simulate(SMALL, folder=tmp_path).summary.provenance
    assert other.engine != began, "nothing that can be read was begun"


def test_what_papers_need_is_done_by_the_loop_where_no_engine_is_named():
    """Their records are stored under its identity, and are computed again to the bit."""
    figure = reproductions()["clustered-fl"].experiments["figure6"]
    needed = Needed.by([figure], "quick", {figure.name: Page.of(1)})
    assert needed.plans
    assert all(plan.training.base.engine == "loop" and plan.identity == i for i, plan in needed.plans.items())


@pytest.mark.slow
def test_a_study_has_the_engines_of_the_rule_and_finds_its_records_again(tmp_path):
    """Runs until a time count as much work; those of two rounds do not."""
    grid = {"end": {"steps": {"until": Until(2)}, "time": {"until": Until(seconds=2.0)}}}
    study = Study(replace(SMALL, algorithm=FedAsync()), grid, seeds=1)
    done = study.run(tmp_path)
    engines = {row.labels["end"]: row.trace.provenance.engine for row in done.rows}
    assert engines == {"steps": "loop", "time": "compiled"}
    short, timed = (one.plan for one in study.planned)
    assert [row.trace.identity for row in done.rows] == [short.identity, with_engine(timed, "compiled").identity]
    again = study.results(tmp_path)
    assert (again.rows, again.missing) == (done.rows, 0)
    assert study.cost(tmp_path).done == 2


@pytest.mark.parametrize("kept", TRAINERS)
def test_a_study_keeps_a_record_by_another_engine_than_that_of_the_rule(tmp_path, kept):
    plan = with_engine(SMALL, kept)
    Store(tmp_path).keep(carried_out(plan, None, Means(), lambda _: None).trace)
    (row,) = Study(SMALL, {}, seeds=1).results(tmp_path).rows
    assert (row.trace.identity, row.trace.provenance.engine) == (plan.identity, kept)
