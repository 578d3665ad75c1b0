"""The example of a search with Optuna: trials that fall behind are pruned."""

import importlib.util
from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna")


@pytest.fixture
def example():
    path = Path(__file__).parents[2] / "examples" / "optuna_pruning.py"
    spec = importlib.util.spec_from_file_location("optuna_pruning", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_trial_that_falls_behind_is_pruned(example):
    """Learning rates in this order: the second is hopeless from the beginning."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
    for lr in (0.3, 0.001):
        study.enqueue_trial({"lr": lr})
    study.optimize(lambda trial: example.objective(trial, steps=4), n_trials=2)
    first, second = study.trials
    assert (first.state.name, second.state.name) == ("COMPLETE", "PRUNED")
    assert first.value == first.intermediate_values[4]
    assert max(second.intermediate_values) < 4
