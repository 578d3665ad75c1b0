"""The memory of a simulation: one matrix holds the updates of all rounds."""

import re
import subprocess
import sys

import pytest
import torch

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.data import Dataset, InMemory
from phalanx.models import MLP
from phalanx.numerics.allocation import LARGE, ReusedRoom


def plan(clients=24):
    data = Dataset(torch.rand(clients, 784), torch.arange(clients) % 10, 10)
    training = LocalSGD(steps=1, batch_size=1)
    return Run(data=InMemory(data, data), clients=clients, model=MLP((64,)), training=training, until=Until(4))


def test_each_round_uses_the_memory_of_the_one_before():
    seen = list[int]()
    simulate(plan(), observers=[lambda p: seen.append(p.updates.deltas.data_ptr() if p.updates else 0)])
    assert len(seen) == 5
    assert len(set(seen[1:])) == 1


def test_updates_that_somebody_holds_are_not_overwritten():
    held = []

    def hold(progress):
        if progress.updates is not None:
            held.append((progress.updates.deltas, progress.updates.deltas.clone()))

    simulate(plan(), observers=[hold])
    assert all(torch.equal(deltas, copy) for deltas, copy in held)
    assert len({deltas.data_ptr() for deltas, _ in held}) == 4


def test_a_room_is_used_again_when_nothing_refers_to_it():
    room, shape = ReusedRoom(), (LARGE // 4, 1)
    first = room(shape)
    at, part = first.data_ptr(), first[5:7]
    assert room(shape).data_ptr() != at
    del first, part
    second = room(shape)
    at = second.data_ptr()
    del second
    assert room((LARGE // 8,), torch.float64).data_ptr() == at
    assert at % 64 == 0
    assert room((2 * LARGE // 4,)).numel() == 2 * LARGE // 4, "a larger one needs other memory"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_is_one_matrix():
    command = [sys.executable, "benchmarks/simulation.py", "matrix", "--clients", "800"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"peak ([0-9.]+) x the matrix of 163 MB", out)
    assert found, out
    assert float(found[1]) <= 1.25
