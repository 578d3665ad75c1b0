"""What is kept of a run, and what comes back from the disk."""

import json
import random
from dataclasses import replace
from pathlib import Path

import jaxtyping
import msgspec
import pytest

from phalanx.algorithms import ByzantineCFL
from phalanx.attacks import Gaussian, ReportSize, Together
from phalanx.core import Until
from phalanx.data import Digits
from phalanx.experiments.papers import Trace
from phalanx.experiments.store import Store
from phalanx.models import MLP
from phalanx.runs.plan import Run
from phalanx.runs.provenance import Provenance
from phalanx.runs.schema import Exclusion
from phalanx.runs.session import simulate
from phalanx.training.evaluation import Evaluation

PLAN = Run(
    algorithm=ByzantineCFL(threshold=0.3),
    data=Digits(),
    clients=7,
    model=MLP((16,)),
    attack=Together(Gaussian(), ReportSize(5000)),
    byzantine=2,
    until=Until(steps=5),
    evaluation=Evaluation(every=2),
    seed=3,
)


@pytest.fixture(scope="module")
def record():
    return simulate(PLAN)


@pytest.fixture(scope="module")
def trace(record):
    return Trace.of(PLAN, record)


def test_a_trace_holds_the_curves_of_the_record(record, trace):
    measured = [line for line in record.history if line.metrics]
    assert trace.curves["step"] == (0, 2, 4, 5)
    assert trace.curves["accuracy"] == tuple(line.accuracy for line in measured)
    assert trace.curves["seconds"] == tuple(line.seconds for line in measured)
    assert set(trace.curves) == {
        "step", "seconds", "accuracy", "loss", "worst_client_accuracy", "best_client_accuracy",
    }  # fmt: skip
    assert trace.received_accuracy == measured[-1].metrics.received_accuracy
    assert trace.curves["best_client_accuracy"][-1] == max(trace.received_accuracy.values())
    assert len(trace.received_accuracy) == 5, "the honest ones"
    assert trace.final() == record.summary.final.accuracy
    assert trace.best() == record.summary.best.accuracy
    assert trace.best("loss", lowest=True) == min(line.metrics.loss for line in measured)
    assert trace.final("attack_success") is None


def test_a_trace_holds_who_was_there_and_who_was_removed(record, trace):
    assert (trace.identity, trace.seed, trace.clients, trace.status, trace.failed) == (
        PLAN.identity, 3, 7, "finished", False,
    )  # fmt: skip
    assert set(trace.byzantine) == PLAN.attackers()
    assert sum(trace.held) == 1438
    assert {trace.reported[i] for i in trace.byzantine} == {5000}
    excluded = {i: c.excluded for i, c in record.summary.clients.items() if c.excluded}
    assert excluded, "the plan is chosen so that somebody is excluded"
    assert {e.client: Exclusion(step=e.step, reason=e.reason) for e in trace.excluded} == excluded
    assert trace.detection == msgspec.structs.asdict(record.summary.detection)
    assert trace.filtered == msgspec.structs.asdict(record.summary.filtered)


def test_small_figures_of_the_algorithm_are_kept_for_every_step(record, trace):
    states = [line.state for line in record.history if line.state]
    assert trace.state["step"] == (1, 2, 3, 4, 5)
    assert trace.state["alpha_cross"] == tuple(state["alpha_cross"] for state in states)
    assert trace.left_out == ()
    figures = {"many": list(range(13)), "few": [1, [2, 3]]}
    history = [msgspec.structs.replace(line, state=figures if line.state else {}) for line in record.history]
    other = Trace.of(PLAN, replace(record, history=history))
    assert other.left_out == ("many",)
    assert other.state["few"] == ([1, [2, 3]],) * 5


def test_what_is_saved_comes_back_and_gives_the_same_bytes(trace, tmp_path):
    store = Store(tmp_path)
    store.keep(trace)
    again, why = store.find(PLAN)
    assert (again, why) == (trace, "")
    before = store.path(PLAN).read_bytes()
    again.save(store.path(PLAN))
    assert store.path(PLAN).read_bytes() == before
    assert [path.name for path in store.folder.iterdir()] == [f"{PLAN.identity}.json"]
    assert store.find(replace(PLAN, seed=4)) == (None, "")


def test_a_hundred_steps_of_75_clients_take_less_than_15_kilobytes(trace, tmp_path):
    draw = random.Random(0)
    steps = range(101)
    shares = {name: tuple(draw.randrange(10000) / 10000 for _ in steps) for name in ("accuracy", "attack_success")}
    floats = {name: tuple(draw.random() for _ in steps) for name in ("loss", "worst_client_accuracy")}
    curves = {"step": tuple(steps), "seconds": tuple(map(float, steps)), **shares, **floats}
    sizes = tuple(draw.randrange(20000) for _ in range(75))
    state = {"step": tuple(steps), "bound": tuple(draw.random() for _ in steps)}
    replace(trace, curves=curves, state=state, reported=sizes, held=sizes).save(tmp_path / "large.json")
    assert (tmp_path / "large.json").stat().st_size < 15_000


def edited(**changes):
    return lambda form: json.dumps(form | changes)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda form: "", "Expecting value"),
        (lambda form: json.dumps(form)[:-200], "line 1 column"),
        (lambda form: "[]", "it is no mapping"),
        (lambda form: "{}", "identity"),
        (edited(steps="five"), "steps missing or of a wrong type"),
        (lambda form: json.dumps({k: v for k, v in form.items() if k != "curves"}), "curves missing"),
        (
            lambda form: edited(settings=form["settings"] | {"seed": 4})(form),
            "its name, its identity and its settings",
        ),
        (edited(identity="0" * 64), "its name, its identity and its settings"),
        (lambda form: edited(curves=form["curves"] | {"loss": [1.0]})(form), "its columns are of different lengths"),
        (edited(excluded=[{"client": 1}]), "a value is of a wrong type"),
        (edited(provenance={"numerics": "1"}), "its provenance"),
    ],
)
def test_a_damaged_file_is_named_with_the_remedy(trace, tmp_path, damage, why):
    store = Store(tmp_path)
    store.keep(trace)
    path = store.path(PLAN)
    form = json.loads(path.read_text())
    del form["seal"]  # which would find the change before it is looked at
    path.write_text(damage(form))
    with pytest.raises(ValueError, match="Delete the file, and give the same command again") as error:
        store.find(PLAN)
    assert str(error.value).startswith(f"{path} is not the record of a run: ")
    assert why in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        *({name: {"0": None}} for name in ("received_accuracy", "client_accuracy", "groups")),
        {"groups": {"0": 0.5}},
        {"clusters": [[0], [None]]},
    ],
)
def test_figures_of_clients_and_their_groups_are_numbers(trace, monkeypatch, changes):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of tests
    form = {name: value for name, value in trace.form.items() if name != "seal"}
    with pytest.raises(ValueError, match="it holds something else where a number must be"):
        Trace.read(edited(**changes)(form), Path("a.json"), trace.identity)


def test_a_file_of_another_run_is_foreign(trace, tmp_path):
    other = replace(PLAN, seed=4)
    store = Store(tmp_path)
    trace.save(store.path(other))
    with pytest.raises(ValueError, match="its name, its identity and its settings do not agree"):
        store.find(other)


def test_a_kill_while_a_record_is_written_leaves_the_old_one(trace, tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.keep(trace)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.keep(replace(trace, wall_seconds=99.0))
    assert store.find(PLAN) == (trace, "")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": "stopped", "steps": 3}, "it was stopped after step 3"),
        ({"provenance": Provenance(numerics=-1)}, ""),
        ({"source": "of something else"}, "the source of the classes of your own that it uses has changed since"),
        ({"status": "failed", "error": "Nobody is left."}, ""),
    ],
)
def test_a_record_is_used_only_if_it_is_of_the_same_run_to_its_end(trace, tmp_path, change, why):
    store = Store(tmp_path)
    store.keep(replace(trace, **change))
    found, told = store.find(PLAN)
    assert why in told
    assert (found is None) == bool(why)


def test_a_run_that_could_not_begin_has_a_trace_without_curves():
    trace = Trace.of_failure(PLAN, ValueError("No such data."), 1.5)
    assert (trace.failed, trace.error, trace.wall_seconds) == (True, "ValueError: No such data.", 1.5)
    assert (trace.final(), trace.best(), trace.clients, trace.seed) == (None, None, 7, 3)
    assert Trace.of_failure(PLAN, "Its process was killed.").error == "Its process was killed."
