"""Deployment equals simulation: every algorithm over Flower's messages, to the bit where time does not matter."""

import dataclasses
import inspect

import pytest

from algorithms.test_common import ALGORITHMS, needed, one_of_each_class
from flower.federations import SMALL, states_in_simulation, states_over_flower
from phalanx import algorithms
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.attacks import LazyFreeRider, Rescale
from phalanx.core import Until
from phalanx.models import MLP
from phalanx.training import Classification, LocalOptimizer
from runs.test_packing import same

pytestmark = pytest.mark.filterwarnings("ignore:threshold")


# A rehearsal is one process, and torch has one stream for the dropout of a process: where the server trains as well, at
# the same time, the model must do without.


def planned(algorithm, **changes):
    own = needed(algorithm, 8) | ({"model": MLP((4,))} if algorithm.traits.needs_reference else {})  # see above
    until = Until(5 if algorithm.traits.synchronous else 15)
    return dataclasses.replace(SMALL, algorithm=algorithm, until=until, **own, **changes)


@pytest.mark.parametrize("algorithm", one_of_each_class(ALGORITHMS))
def test_over_flower_as_in_the_simulation(algorithm, tmp_path):
    plan = planned(algorithm)
    over_flower, simulated = states_over_flower(plan, tmp_path), states_in_simulation(plan)
    assert len(over_flower) > 5
    assert same(over_flower, simulated)


def test_tasks_and_optimizers_do_the_same(tmp_path):
    plan = planned(FedAvg(), task=Classification(metrics=("F1Score",)), training=LocalOptimizer("AdamW", batch_size=5))
    assert same(states_over_flower(plan, tmp_path), states_in_simulation(plan))


@pytest.mark.parametrize("attack", [Rescale(-2.0), LazyFreeRider()], ids=str)
@pytest.mark.parametrize("algorithm", [FedAvg(), FedAsync()], ids=str)
def test_attackers_do_the_same(algorithm, attack, tmp_path):
    plan = planned(algorithm, attack=attack, byzantine=2)
    assert same(states_over_flower(plan, tmp_path), states_in_simulation(plan))


@pytest.mark.exports
def test_no_algorithm_is_left_out():
    known = {type(a) for a in ALGORITHMS} | {type(getattr(a, "algorithm", None)) for a in ALGORITHMS}
    public = {getattr(algorithms, name) for name in algorithms.__all__}
    all_of_them = {k for k in public if inspect.isclass(k) and issubclass(k, algorithms.Algorithm)}
    assert all_of_them - {algorithms.Algorithm} <= known, "write a line in tests/algorithms/test_common.py"
