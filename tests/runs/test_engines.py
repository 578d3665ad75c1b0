"""Engines of local training: the choice by a clock that the test sets, and what must not depend on the choice."""

import re
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from phalanx import Run, Until, simulate
from phalanx.algorithms import SCAFFOLD, FedAsync
from phalanx.core import InfeasibleError
from phalanx.data import Dirichlet
from phalanx.models import MLP, GivenModule
from phalanx.runs.card import card
from phalanx.runs.engines import BUDGET, ENGINES, Bench, Choice, Preferred, fastest, with_engine
from phalanx.runs.federation import Federation
from phalanx.runs.provenance import Provenance
from phalanx.runs.record import Record
from phalanx.training import Ditto, FedPer, LocalOptimizer, LocalSGD, PrivateSGD
from phalanx.training.compiled import CompiledTrainer
from phalanx.training.sgd import Trainer
from phalanx.training.stacked import StackedTrainer

SMALL = Run(clients=4, model=MLP((4,)), until=Until(2))
TRAINERS = {"loop": Trainer, "stacked": StackedTrainer, "compiled": CompiledTrainer}


@dataclass(frozen=True)
class OwnSGD(LocalSGD):
    """A training whose trainer is another than that of `LocalSGD`."""

    def trainer(self, model, task, seed):
        return Trainer(model, self, seed, task)


class FakeClock:
    """A clock that goes only while clients train: for each engine so many seconds a step."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.calls = 0.0, []
        for engine, each in seconds.items():
            monkeypatch.setattr(TRAINERS[engine], "train_together", self._training(engine, each))

    def _training(self, engine, seconds):
        def train_together(trainer, tasks, data):
            steps = [trainer.recipe.count(len(data[task.client])) for task in tasks]
            self.now += seconds * sum(steps)
            self.calls.append((engine, [task.client for task in tasks], steps))
            return [0.0] * len(tasks)

        return train_together

    def __call__(self):
        return self.now


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_is_two_flags_of_the_training_also_within_others(engine):
    flags = {"stacked": engine == "stacked", "compiled": engine == "compiled"}
    assert with_engine(SMALL, engine) == replace(SMALL, training=LocalSGD(**flags))
    assert with_engine(with_engine(SMALL, "stacked"), engine).training.engine == engine
    if engine != "stacked":  # personal models are trained one at a time
        around = Ditto(LocalSGD(steps=2), LocalSGD(steps=3))
        expected = Ditto(LocalSGD(steps=2, **flags), LocalSGD(steps=3, **flags))
        assert with_engine(replace(SMALL, training=around), engine).training == expected
        found = with_engine(replace(SMALL, training=FedPer(("0.*",))), engine).training
        assert (found, found.engine) == (FedPer(("0.*",), LocalSGD(**flags)), engine)


@pytest.mark.parametrize(
    "training", [LocalOptimizer(), PrivateSGD(), FedPer(("0.*",), LocalOptimizer()), OwnSGD()], ids=lambda t: t.engine
)
def test_other_trainings_have_no_engines(training):
    plan = replace(SMALL, training=training)
    for choose in (lambda: with_engine(plan, "loop"), lambda: fastest(plan)):
        with pytest.raises(InfeasibleError, match=f"train by {training.base.engine}. .*set training to LocalSGD"):
            choose()


@pytest.mark.parametrize(
    ("stacked", "compiled", "chosen"),
    [(0.96, 0.97, "loop"), (0.94, 0.96, "stacked"), (0.9, 0.8, "compiled"), (0.95, 2.0, "stacked"), (2, 2, "loop")],
)
def test_the_fastest_is_chosen_if_it_saves_five_percent(monkeypatch, stacked, compiled, chosen):
    unit = 1 / 4096  # of seconds: a sum of these is exact
    seconds = {"loop": unit, "stacked": stacked * unit, "compiled": compiled * unit}
    clock = FakeClock(monkeypatch, **seconds)
    plan = replace(SMALL, training=LocalSGD(steps=8))
    choice = fastest(plan, clock=clock)
    assert choice.plan == with_engine(plan, chosen)
    assert choice.seconds == pytest.approx({engine: 8 * each for engine, each in seconds.items()})
    assert choice.refused == {}
    assert {client for _, clients, _ in clock.calls for client in clients} == {0, 1, 2, 3}


def test_every_engine_trains_once_before_it_is_timed(monkeypatch):
    clock = FakeClock(monkeypatch, loop=0.001, stacked=0.001, compiled=0.001)
    slow_first = clock._training("compiled", 0.0001)
    seen = []

    def train_together(trainer, tasks, data):
        clock.now += 0 if seen else 5.0  # as if Numba compiled
        seen.append(1)
        return slow_first(trainer, tasks, data)

    monkeypatch.setattr(CompiledTrainer, "train_together", train_together)
    assert fastest(SMALL, clock=clock).plan.training.engine == "compiled"


def test_long_tasks_are_measured_by_some_of_their_steps(monkeypatch):
    clock = FakeClock(monkeypatch, loop=0.01, stacked=0.02, compiled=0.005)
    plan = replace(SMALL, training=LocalSGD(epochs=40, batch_size=4))
    choice = fastest(plan, clock=clock)
    assert clock.now < 2.5 * BUDGET
    assert choice.plan.training == replace(plan.training, compiled=True)
    mean = sum(plan.training.count(n) for n in (360, 359, 359, 360)) / 4
    assert choice.seconds == pytest.approx(
        {"loop": 0.01 * mean, "stacked": 0.02 * mean, "compiled": 0.005 * mean}, 0.01
    )


def test_clients_train_as_many_at_a_time_as_in_the_run(monkeypatch):
    for change, widest in (({"algorithm": FedAsync()}, 1), ({"participation": 0.5}, 2), ({}, 4)):
        clock = FakeClock(monkeypatch, loop=0.001, stacked=0.001, compiled=0.001)
        fastest(replace(SMALL, **change), clock=clock)
        groups = {engine: max(len(clients) for e, clients, _ in clock.calls if e == engine) for engine in ENGINES}
        assert groups == {"loop": 1, "stacked": widest, "compiled": 1}


def test_clients_of_typical_size_and_the_largest_are_measured(monkeypatch):
    plan = replace(SMALL, clients=30, partition=Dirichlet(0.1), participation=0.1)
    clock = FakeClock(monkeypatch, loop=0.0001, stacked=0.0001, compiled=0.0001)
    fastest(plan, clock=clock)
    clients = {client for _, group, _ in clock.calls for client in group}
    sizes = {i: len(part) for i, part in enumerate(Federation(plan).data)}
    assert len(clients) == 3
    assert max(sizes, key=sizes.__getitem__) in clients
    ranks = sorted(sizes.values())
    assert all(ranks[10] <= sizes[i] <= ranks[19] or sizes[i] == ranks[-1] for i in clients)


def test_engines_that_the_run_cannot_have_are_named_with_the_reason(monkeypatch):
    FakeClock(monkeypatch, loop=0.001, compiled=0.001)
    corrected = fastest(replace(SMALL, algorithm=SCAFFOLD()))
    assert corrected.refused == {
        "stacked": "SCAFFOLD corrects the gradients of local training, which StackedTrainer does not support"
    }
    personal = fastest(replace(SMALL, training=Ditto()))
    assert personal.refused == {"stacked": "Clients with models of their own train one at a time"}


class Halved(nn.Module):
    """A module whose chain is not its own."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(64, 10)

    def forward(self, x):
        return self.part(x.flatten(1)) / 2

    def as_chain(self):
        return nn.Sequential(nn.Flatten(), self.part)


def test_a_chain_with_other_outputs_than_its_module_is_named():
    refused = fastest(replace(SMALL, model=GivenModule(Halved()))).refused
    assert refused["stacked"] == "the module and its `as_chain` have other outputs"
    with pytest.raises(InfeasibleError, match="Clients cannot be stacked: the module and its `as_chain`"):
        simulate(replace(SMALL, model=GivenModule(Halved()), training=LocalSGD(stacked=True)))


def test_with_one_engine_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(Bench, "compare", lambda *_: pytest.fail("measured"))
    refuse = {"stacked": "Clients cannot be stacked", "compiled": "Training has no compiled form"}
    for engine, words in refuse.items():

        def refused(*_, engine=engine, words=words):
            raise ValueError(f"{words}: a reason. Set training.{engine} to false.")

        monkeypatch.setattr(TRAINERS[engine], "__init__", refused)
    choice = fastest(SMALL)
    assert (choice.plan, choice.seconds) == (SMALL, {})
    assert str(choice) == "loop (stacked: a reason; compiled: a reason)"


def test_a_choice_is_a_line():
    refused = {"stacked": "a Conv2d has no gradient written by hand"}
    choice = Choice(with_engine(SMALL, "compiled"), {"loop": 0.0052, "compiled": 0.0019}, refused)
    assert str(choice) == "compiled, 1.9 ms a client (loop 5.2 ms; stacked: a Conv2d has no gradient written by hand)"
    assert str(Choice(SMALL, {"loop": 1.234, "stacked": 0.9996}, {})) == "loop, 1.23 s a client (stacked 1.00 s)"
    assert str(Choice(SMALL, {}, {})) == "loop"


@pytest.mark.parametrize("fast", ENGINES)
def test_the_result_is_that_of_the_engine_from_the_start(monkeypatch, fast):
    """What was measured, here by all engines in earnest, leaves no trace."""
    compare = Bench.compare
    monkeypatch.setattr(Bench, "compare", lambda *of: {e: 0.1 if e == fast else s + 1 for e, s in compare(*of).items()})
    plan = replace(SMALL, model=MLP((4,), start="glorot"), training=LocalSGD(momentum=0.5))
    by_hand = simulate(with_engine(plan, fast))
    before = torch.get_rng_state()
    choice = fastest(plan)
    assert torch.equal(torch.get_rng_state(), before)
    record = simulate(choice.plan)
    assert record.history == by_hand.history
    assert record.config == by_hand.config
    assert torch.equal(record.model().state_dict()["1.weight"], by_hand.model().state_dict()["1.weight"])


def test_the_record_names_the_engine(tmp_path):
    plan = with_engine(replace(SMALL, until=Until(1)), "stacked")
    record = simulate(plan, folder=tmp_path)
    assert '"engine":"stacked"' in re.sub(r"\s", "", (tmp_path / "summary.json").read_text())
    assert Record.load(tmp_path).summary.provenance.engine == "stacked"
    assert ", engine stacked |" in card(record)
    adam = simulate(replace(SMALL, training=LocalOptimizer(), until=Until(1))).summary.provenance
    assert adam.engine == "LocalOptimizer"
    without = {name: value for name, value in adam.form.items() if name != "engine"}
    assert Provenance.read(without).engine is None, "of an older record"


GELU = GivenModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10)))


@pytest.mark.parametrize(
    ("change", "has"),
    [
        ({}, {"stacked", "compiled"}),
        ({"training": Ditto(LocalSGD())}, {"compiled"}),
        ({"model": GELU}, {"stacked"}),
        ({"algorithm": SCAFFOLD()}, {"compiled"}),
        ({"training": LocalSGD(precision="bfloat16")}, set()),
        ({"training": PrivateSGD()}, set()),
    ],
    ids=["perceptron", "Ditto", "GELU", "SCAFFOLD", "bfloat16 without convolutions", "PrivateSGD"],
)
def test_of_many_runs_those_that_have_an_engine_get_it(change, has):
    plan = replace(SMALL, **change)
    for engine in ENGINES[1:]:
        wanted = with_engine(plan, engine) if engine in has else plan
        assert Preferred(engine)(plan).identity == wanted.identity
        assert simulate(wanted).summary.status == "finished"


def test_runs_that_differ_in_what_does_not_matter_are_tried_once(monkeypatch):
    tried = list[Run]()
    monkeypatch.setattr(Preferred, "_has", lambda self, form: not tried.append(form))
    preferred = Preferred("compiled")
    for seed in range(3):
        for algorithm in (FedAsync(), SCAFFOLD()):
            plan = replace(SMALL, seed=seed, algorithm=algorithm)
            assert preferred(plan) == with_engine(plan, "compiled")
    assert len(tried) == 2
    assert preferred(tried[0]) is tried[0], "it has the engine already"


def test_a_run_that_cannot_begin_is_no_run_without_the_engine():
    with pytest.raises(ValueError, match="scores for each of"):
        Preferred("compiled")(replace(SMALL, model=GivenModule(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))))
