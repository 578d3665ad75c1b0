"""Clients that train in several processes: the bits of one process, and errors that say what happened."""

import os
import signal
import sys
import time
import warnings
from unittest.mock import Mock

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.algorithms import RFFL, QFedAvg
from phalanx.core import InfeasibleError
from phalanx.models import MLP
from phalanx.simulation.parallel import TRIAL, Learners, ProcessExecutors, divided
from phalanx.training import LocalOptimizer, LocalSGD

pytestmark = pytest.mark.usefixtures("one_thread")


def plan(steps=4, **changes):
    return Run(**{"clients": 10, "model": MLP((16,), dropout=0.2), "until": Until(steps)} | changes)


def metrics(record):
    return [line.metrics for line in record.history]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training": LocalSGD(engine="compiled", momentum=0.5), "model": MLP((16,)), "clients": 50},
        {"algorithm": RFFL()},
        {"algorithm": QFedAvg(), "participation": 0.5},
    ],
    ids=["loop", "compiled", "models of their own", "exact losses"],
)
def test_the_bits_are_those_of_one_process(changes):
    here = simulate(plan(**changes))
    for jobs in (2, 3):
        with ProcessExecutors(jobs, after=0.0) as processors:
            assert metrics(simulate(plan(**changes), executors=processors)) == metrics(here)


@pytest.mark.slow
def test_it_moves_to_processes_in_the_middle_of_a_run(monkeypatch):
    monkeypatch.setattr("phalanx.simulation.parallel.TRIAL", 1000)  # they may be slower here
    seen = []
    with ProcessExecutors(2, after=0.05) as processors:
        watch = lambda progress: seen.append(bool(made(processors) and made(processors).learners))  # noqa: E731
        record = simulate(plan(400), executors=processors, observers=[watch])
    assert seen[0] is False
    assert seen[-1] is True
    assert metrics(record) == metrics(simulate(plan(400)))


def made(processors):
    callbacks = [callback for _, callback in processors._stack._exit_callbacks]
    return callbacks[0].__wrapped__.__self__ if callbacks else None


@pytest.mark.slow
def test_it_moves_back_if_several_processes_are_slower(monkeypatch):
    give, given = Learners.give, []

    def slowly(self, worker, number, job):
        time.sleep(0.05)
        given.extend(job)
        give(self, worker, number, job)

    monkeypatch.setattr(Learners, "give", slowly)
    with ProcessExecutors(2, after=0.05) as processors, warnings.catch_warnings(action="error"):
        record = simulate(plan(400), executors=processors)
        assert made(processors).learners is None
    assert len(given) == TRIAL * 10
    assert metrics(record) == metrics(simulate(plan(400)))


@pytest.mark.slow
def test_a_process_that_dies_changes_nothing_but_the_speed(monkeypatch):
    give, given = Learners.give, []

    def killed(self, worker, number, job):
        give(self, worker, number, job)
        given.append(number)
        if len(given) == 12:  # in the middle of the second round
            os.kill(self.processes[worker].pid, signal.SIGKILL)

    monkeypatch.setattr(Learners, "give", killed)
    with ProcessExecutors(2, after=0.0) as processors:
        with pytest.warns(UserWarning, match="train in one process from here on.*killed by the signal SIGKILL"):
            record = simulate(plan(6), executors=processors)
        assert made(processors).learners is None
    assert metrics(record) == metrics(simulate(plan(6)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say whether a process is stopped")
def test_a_process_that_is_stopped_is_named_and_changes_nothing_but_the_speed(monkeypatch):
    give, given = Learners.give, []

    def stopped(self, worker, number, job):
        give(self, worker, number, job)
        given.append(number)
        if len(given) == 12:
            os.kill(self.processes[worker].pid, signal.SIGSTOP)

    monkeypatch.setattr(Learners, "give", stopped)
    monkeypatch.setattr("phalanx.processes.AWAKE", 0.1)
    with (
        ProcessExecutors(2, after=0.0) as processors,
        pytest.warns(UserWarning, match=r"train in one process from here on.*The process \d+ was stopped by a signal"),
    ):
        record = simulate(plan(6), executors=processors)
    assert metrics(record) == metrics(simulate(plan(6)))


def test_jobs_become_smaller():
    for count, most, clients in ((2, 16, 100), (3, 2, 1000), (2, 16, 3), (8, 1, 12)):
        jobs = [*divided(range(clients), count, most)]
        assert [one for job in jobs for one in job] == [*range(clients)]
        sizes = [len(job) for job in jobs]
        assert sizes == sorted(sizes, reverse=True)
        assert 1 <= sizes[-1] <= sizes[0] <= most
    assert [len(job) for job in divided(range(40), 2, 8)] == [8, 8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]


def test_without_shared_memory_it_stays_in_one_process(monkeypatch):
    monkeypatch.setattr("phalanx.simulation.parallel.disk_usage", lambda path: Mock(free=100_000))
    what = r"need \d+ MB of shared memory, and /dev/shm has 0 MB"
    with ProcessExecutors(2, after=0.0) as processors, pytest.warns(UserWarning, match=what):
        record = simulate(plan(), executors=processors)
    assert metrics(record) == metrics(simulate(plan()))


def test_jobs_are_smaller_where_shared_memory_is(monkeypatch):
    spans = []

    def begun(*_, span, **__):
        spans.append(span)
        raise OSError("as far as this test goes")

    monkeypatch.setattr("phalanx.simulation.parallel.Learners", begun)
    for free in (10**9, 500_000, 425_000):  # examples: 379,632 bytes; a group: 38,720 for two processes
        monkeypatch.setattr("phalanx.simulation.parallel.disk_usage", lambda path, free=free: Mock(free=free))
        with ProcessExecutors(2, after=0.0) as processors, pytest.warns(UserWarning, match="as far as this test goes"):
            simulate(plan(), executors=processors)
    assert spans == [16, 2, 1]


def test_one_process_starts_none():
    with ProcessExecutors(1) as processors:
        assert metrics(simulate(plan(), executors=processors)) == metrics(simulate(plan()))
        assert made(processors) is None


def test_a_short_run_starts_none():
    with ProcessExecutors(2) as processors:
        simulate(plan(), executors=processors)
        assert made(processors).learners is None


def test_what_cannot_be_spread_is_refused():
    with pytest.raises(InfeasibleError, match="jobs must be at least 1, got 0"):
        ProcessExecutors(0)
    with ProcessExecutors(2) as processors, pytest.raises(InfeasibleError, match="remembers something of each client"):
        simulate(Run(clients=4, training=LocalOptimizer(remember=True)), executors=processors)


def test_the_threads_of_torch_leave_fewer_processors(monkeypatch):
    monkeypatch.setattr("phalanx.simulation.parallel.processors", lambda: 8)
    torch.set_num_threads(2)
    assert ProcessExecutors().count == 4
    assert ProcessExecutors(3).count == 3
    with pytest.raises(InfeasibleError, match=r"5 processes of 2 threads each are more than the 8 .*set_num_threads"):
        simulate(plan(), executors=ProcessExecutors(5))
