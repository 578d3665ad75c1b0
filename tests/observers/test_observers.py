"""Observers that stop a run, or show it elsewhere; and what a stopped run leaves."""

import ast
import dataclasses
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from phalanx import InfeasibleError, LocalSGD, Progress, Record, Run, StopRunError, Until, observers, simulate
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import SignFlip
from phalanx.data import Dataset, InMemory
from phalanx.models import MLP
from phalanx.observers import EarlyStopping, MLflow, ProgressBar, TensorBoard, WeightsAndBiases
from phalanx.runs.checkpoint import Checkpoint
from phalanx.runs.schema import StepRecord
from phalanx.training.evaluation import Evaluation, Metrics

PACKAGE = Path(observers.__file__).parent


def examples(n, seed):
    x = torch.rand((n, 5), generator=torch.Generator().manual_seed(seed))
    return Dataset(x, (x.sum(1) > 2.5).long(), 2)


PLAN = Run(
    data=InMemory(examples(100, 0), examples(60, 1)),
    clients=5,
    model=MLP((6,)),
    training=LocalSGD(batch_size=10, lr=0.3),
    attack=SignFlip(),
    byzantine=1,
    until=Until(9),
)


def progress(step, **figures):
    metrics = Metrics(**figures) if figures else None
    return Progress(step, float(step), None, None, {}, {}, frozenset(), (), metrics)


def stops_after(stopping, values, metric="accuracy"):
    """The step at which a sequence of values stops a run; None if it does not."""
    for step, value in enumerate(values):
        try:
            stopping(progress(step, **({} if value is None else {metric: value})))
        except StopRunError:
            return step
    return None


# Early stopping


@pytest.mark.parametrize(
    ("values", "stopped"),
    [
        ([0.1, 0.2, 0.2, 0.2, 0.9], 3),  # equal is no improvement
        ([0.1, 0.2, 0.2, 0.3, 0.1, 0.2], 5),
        ([0.1, 0.2, 0.3, 0.4], None),
        ([0.5, None, None, 0.4, None, 0.5], 5),  # what was not evaluated does not count
        ([math.nan, math.nan, 0.2, math.nan, 0.3], 1),
        ([0.5, math.nan, math.nan], 2),
    ],
)
def test_a_metric_that_rises_no_more_stops_after_two_evaluations(values, stopped):
    assert stops_after(EarlyStopping(2), values) == stopped
    lower = [None if value is None else -value for value in values]
    assert stops_after(EarlyStopping(2, metric="loss"), lower, "loss") == stopped


def test_an_improvement_must_be_as_large_as_was_asked():
    creeping = [0.1 + 0.01 * k for k in range(10)]
    assert stops_after(EarlyStopping(3), creeping) is None
    assert stops_after(EarlyStopping(3, least=0.025), creeping) is None  # every third one is large enough
    assert stops_after(EarlyStopping(2, least=0.025), creeping) == 2


def test_an_observer_that_is_given_to_another_run_starts_over():
    stopping = EarlyStopping(1)
    assert stops_after(stopping, [0.9, 0.8]) == 1
    assert stops_after(stopping, [0.1, 0.2, 0.3]) is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"patience": 0}, "patience must be at least 1, got 0"),
        ({"patience": 1, "least": math.nan}, "least must be at least 0"),
    ],
)
@pytest.mark.usefixtures("_as_a_user_sees_it")
def test_settings_that_mean_nothing_are_refused(arguments, why):
    with pytest.raises(ValueError, match=why):
        EarlyStopping(**arguments)


@pytest.fixture
def _as_a_user_sees_it():
    """Without the checks of types that only tests have."""
    import jaxtyping

    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def test_what_was_before_counts():
    """A metric that is not finite is None in a history, and counts as an evaluation without improvement."""
    stopping = EarlyStopping(3)
    lines = [StepRecord(step=k, version=k, seconds=0.0, metrics=Metrics(accuracy=a)) for k, a in enumerate([0.5, 0.4])]
    stopping.catch_up([*lines, StepRecord(step=2, version=2, seconds=0.0)])
    stopping(progress(3))
    stopping(progress(4, accuracy=0.5))
    with pytest.raises(
        StopRunError, match=r"the accuracy was best after step 0 \(0\.5\) and did not improve in 3 evaluations"
    ):
        stopping(progress(5, accuracy=0.5))


# Stopping a run


def stop_at(step, reason="enough"):
    def observer(progress):
        if progress.step >= step:
            raise StopRunError(reason)

    return observer


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAsync()], ids=["rounds", "arrivals"])
def test_a_stopped_run_has_all_its_steps_and_goes_on_to_the_same_end(algorithm, tmp_path):
    plan = dataclasses.replace(PLAN, algorithm=algorithm)
    whole = simulate(plan)
    record = simulate(plan, folder=tmp_path, observers=[stop_at(4, "that will do")], checkpoint=Checkpoint(3600))
    assert (record.summary.status, record.summary.error, record.summary.steps) == ("stopped", "that will do", 4)
    assert [*record.history] == whole.history[: len(record.history)]
    assert Record.load(tmp_path) == record
    assert record.models.index.step == 4
    on = simulate(plan, folder=tmp_path)
    assert (on.summary.status, on.summary.error) == ("finished", None)
    assert [*on.history] == whole.history
    assert on.models.state().keys() == whole.models.state().keys()
    assert all(torch.equal(value, whole.models.state()[name]) for name, value in on.models.state().items())


def test_a_stopped_run_that_was_not_evaluated_there_is_evaluated(tmp_path):
    plan = dataclasses.replace(PLAN, evaluation=Evaluation(every=4))
    record = simulate(plan, folder=tmp_path, observers=[stop_at(6)])
    assert [step.step for step in record.history if step.metrics] == [0, 4, 6]
    assert [*simulate(plan, folder=tmp_path).history] == simulate(plan).history


def test_a_run_that_reaches_its_end_is_not_stopped():
    assert simulate(PLAN, observers=[stop_at(9)]).summary.status == "finished"


def test_the_other_observers_see_the_step_in_which_one_stops_the_run():
    seen = []
    record = simulate(PLAN, observers=[stop_at(3), lambda progress: seen.append(progress.step), stop_at(3, "late")])
    assert seen == [0, 1, 2, 3]
    assert record.summary.error == "enough"


def test_a_run_can_be_stopped_before_its_first_step():
    record = simulate(PLAN, observers=[stop_at(0)])
    assert (record.summary.steps, record.summary.status) == (0, "stopped")


def test_early_stopping_of_a_run_that_was_killed_is_where_it_would_have_been(tmp_path):
    """Also if it is called once more: it does not take another step."""
    training = LocalSGD(epochs=3, batch_size=10, lr=1.0)
    plan = dataclasses.replace(PLAN, attack=None, byzantine=0, training=training, until=Until(40))
    stopping = EarlyStopping(3, "loss")
    whole = simulate(plan, observers=[stopping])
    assert whole.summary.status == "stopped"
    assert 5 <= whole.summary.steps < 40

    class Killed(BaseException):
        pass

    def dies(progress):
        if progress.step == whole.summary.steps - 2:
            raise Killed

    every_step = Checkpoint(every_seconds=0)
    with pytest.raises(Killed):
        simulate(plan, folder=tmp_path, observers=[stopping, dies], checkpoint=every_step)
    for _ in range(2):
        record = simulate(plan, folder=tmp_path, observers=[EarlyStopping(3, "loss")])
        assert (record.summary.steps, record.summary.error) == (whole.summary.steps, whole.summary.error)
        assert [*record.history] == whole.history


def test_observers_are_shown_what_was_measured():
    seen = {}
    plan = dataclasses.replace(PLAN, evaluation=Evaluation(every=2))
    record = simulate(plan, observers=[lambda p: seen.update({p.step: p.metrics and p.metrics.accuracy})])
    assert seen == {step.step: step.accuracy for step in record.history}
    assert seen[1] is None
    assert seen[2] is not None


def test_an_observer_changes_no_number():
    assert simulate(PLAN, observers=[EarlyStopping(50)]).history == simulate(PLAN).history


# Elsewhere


def test_tensorboard_can_be_read_again(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    record = simulate(PLAN, observers=[board])
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = events.Scalars("accuracy")
    assert [event.step for event in scalars] == [step.step for step in record.history]
    assert [event.value for event in scalars] == pytest.approx([step.accuracy for step in record.history])
    assert [event.value for event in events.Scalars("updates/used")] == [5.0] * 9


def test_mlflow_gets_a_number_for_each_name(monkeypatch):
    logged = {}
    fake = SimpleNamespace(log_metrics=lambda values, step: logged.update({step: values}))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    record = simulate(PLAN, observers=[MLflow()])
    assert [logged[step.step]["accuracy"] for step in record.history] == [step.accuracy for step in record.history]
    assert all(isinstance(value, float | int) for values in logged.values() for value in values.values())
    assert logged[3]["updates/used"] == 5


def test_weights_and_biases_stays_on_this_machine_unless_asked(monkeypatch):
    begun, logged, ended = [], [], []
    run = SimpleNamespace(log=lambda values, step: logged.append((step, values)), finish=lambda: ended.append(1))
    fake = SimpleNamespace(init=lambda **options: (begun.append(options), run)[1])
    monkeypatch.setitem(sys.modules, "wandb", fake)
    board = WeightsAndBiases("mine", group="g")
    simulate(PLAN, observers=[board])
    board.close()
    assert begun == [{"project": "mine", "mode": "offline", "group": "g"}]
    assert [step for step, _ in logged] == [*range(10)]
    assert ended == [1]


@pytest.mark.parametrize(
    ("make", "package"),
    [
        (lambda: TensorBoard(Path()), "tensorboard"),
        (MLflow, "mlflow"),
        (lambda: WeightsAndBiases("mine"), "wandb"),
    ],
    ids=["tensorboard", "mlflow", "wandb"],
)
def test_a_package_that_is_missing_is_named_with_the_remedy(make, package, monkeypatch):
    for name in (package, f"torch.utils.{package}"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InfeasibleError, match=f"needs the package {package}. Install it: pip install {package}"):
        make()


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_services_are_imported_only_when_they_are_used(path):
    tree = ast.parse(path.read_text())
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert not {name.split(".")[0] for name in names} & {"mlflow", "wandb", "tensorboard", "torch", "IPython"}


# The progress bar


def test_the_bar_of_a_notebook_is_updated_in_place(monkeypatch):
    shown = []
    cell = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(display=lambda bar, display_id: cell)
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(config={"IPKernelApp": {}}), display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with ProgressBar(PLAN.until) as bar:
        record = simulate(PLAN, observers=[bar])
    assert len(shown) == 10
    accuracy = f"{100 * record.summary.final.accuracy:.1f} %"
    assert repr(shown[-1]) == f"step 9 of 9, accuracy {accuracy}"
    assert '<progress max="1" value="1.0000"' in shown[-1]._repr_html_()
    assert 'value="0.3333"' in shown[3]._repr_html_()


def test_the_bar_of_a_script_says_how_far_it_is(capsys):
    with ProgressBar(9) as bar:
        simulate(PLAN, observers=[bar])
    assert "9/9" in capsys.readouterr().out
