"""A run that has ended lets go of its data at once, not when Python's garbage collector happens to come."""

import gc

import pytest

from phalanx import Run, StopRunError, Until, simulate
from phalanx.algorithms import Catalyst
from phalanx.data import Dataset
from phalanx.simulation import Normal

ASYNCHRONOUS = {"algorithm": Catalyst(2), "latency": Normal(1.0, 0.1)}


def held():
    return sum(type(one) is Dataset for one in gc.get_objects())


def stop(progress):
    if progress.step == 2:
        raise StopRunError("enough")


def stop_from_another(progress):
    try:
        stop(progress)
    except StopRunError as error:
        raise StopRunError("enough") from error


@pytest.mark.parametrize(
    ("changes", "stored", "observers"),
    [
        ({}, False, ()),
        ({}, True, (stop,)),
        ({}, True, (stop_from_another,)),
        (ASYNCHRONOUS, True, ()),
        (ASYNCHRONOUS, False, (stop,)),
    ],
    ids=["FedAvg", "FedAvg in a folder, stopped", "stopped by an error", "Catalyst in a folder", "Catalyst, stopped"],
)
def test_nothing_of_its_data_is_held(changes, stored, observers, tmp_path):
    simulate(Run(clients=10, until=Until(1), **changes))  # what is made once
    gc.collect()
    before = held()
    gc.disable()
    try:
        simulate(Run(clients=10, until=Until(3), **changes), folder=tmp_path if stored else None, observers=observers)
        assert held() == before
    finally:
        gc.enable()
