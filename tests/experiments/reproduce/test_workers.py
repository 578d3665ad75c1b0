"""Processes that carry out runs, some of which misbehave."""

import os
import signal
import sys
import time
from dataclasses import replace
from itertools import islice

import pytest
import torch
from toy_papers.toy_paper.setting import Broken, Deadly, Noise, base

from phalanx import simulate
from phalanx.experiments.carrying_out import Means, local_workers
from phalanx.experiments.run_events import Began, Ended, Warned
from phalanx.experiments.store import Store
from phalanx.experiments.trace import Trace
from phalanx.runs.checkpoint import Checkpoint, peek
from phalanx.training.sgd import LocalSGD

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What happened to a good run, three that go wrong in their own ways, and a good one again; and the store."""
    good, later = base("quick", 0), base("quick", 1)
    plans = {
        "good": good,
        "deadly": replace(good, attack=Deadly(), byzantine=1),
        "broken": replace(good, attack=Broken(), byzantine=1),
        "diverges": replace(good, training=LocalSGD(lr=1e30)),
        "infeasible": replace(good, clients=5000),
        "later": later,
    }
    store = Store(tmp_path_factory.mktemp("results"))
    ended, begun, there = {}, [], {}
    with local_workers(1, store, Means()) as workers:
        for event in workers.events(list(plans.values())):
            if isinstance(event, Began):
                begun.append(event.plan.identity)
            if isinstance(event, Ended):
                ended[event.trace.identity] = event
                there[event.trace.identity] = (store.folder / f"{event.trace.identity}.json").is_file()
    assert begun == [plan.identity for plan in plans.values()]
    return {name: (ended[plan.identity], there[plan.identity]) for name, plan in plans.items()}


def test_good_runs_are_in_the_store_as_soon_as_they_have_ended(told):
    for name in ("good", "later"):
        event, there = told[name]
        assert (event.trace.status, event.kept, there) == ("finished", True, True)


def test_a_process_that_is_killed_takes_one_run_with_it_and_says_so(told):
    event, there = told["deadly"]
    assert (event.trace.failed, event.kept, there) == (True, False, False)
    assert event.trace.error == (
        "Its process was killed by the signal SIGKILL, as the operating system does when memory runs out: "
        "give fewer --jobs."
    )


def test_a_mistake_in_a_class_is_told_with_its_line(told):
    event, there = told["broken"]
    assert (event.trace.failed, event.kept, there) == (True, False, False)
    assert "AttributeError" in event.trace.error
    assert "no_such_field" in event.trace.error
    assert "setting.py" in event.trace.error


def test_a_run_that_diverges_is_kept_because_it_would_again(told):
    event, there = told["diverges"]
    assert (event.trace.failed, event.kept, there) == (True, True, True)
    assert "Nobody brings the update" in event.trace.error


def test_a_run_that_cannot_begin_is_not_kept(told):
    event, there = told["infeasible"]
    assert (event.trace.failed, event.kept, there) == (True, False, False)
    assert "5000" in event.trace.error
    assert event.trace.steps == 0


def test_leaving_the_context_ends_processes_in_the_middle_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_PAUSE", "60")
    plan = replace(base("quick", 0), attack=Noise(), byzantine=1)
    with local_workers(2, Store(tmp_path), Means()) as workers:
        events = workers.events([plan, replace(plan, seed=1)])
        began = islice((event for event in events if isinstance(event, Began)), 2)
        assert {event.run for event in began} == {0, 1}
        processes = list(workers.pool.processes.values())
        assert [process.is_alive() for process in processes] == [True, True]
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not any(process.is_alive() for process in processes)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say whether a process is stopped")
def test_a_process_that_is_stopped_is_named_and_another_one_carries_out_its_run(tmp_path, monkeypatch):
    monkeypatch.setattr("phalanx.processes.AWAKE", 0.1)
    plans, stopped, said, ended = [base("quick", seed) for seed in (0, 1)], [], [], []
    with local_workers(1, Store(tmp_path), Means()) as workers:
        for event in workers.events(plans):
            if isinstance(event, Began) and not stopped:
                stopped += [process.pid for process in workers.pool.processes.values()]
                os.kill(stopped[0], signal.SIGSTOP)
            if isinstance(event, Warned):
                said.append(event.text)
            if isinstance(event, Ended):
                ended.append(event.trace.status)
    assert ended == ["finished", "finished"]
    assert said == [
        f"A run is carried out again by another worker: The process {stopped[0]} was stopped by a signal and did not "
        "go on, so that it was ended."
    ]


def test_a_run_that_was_killed_on_its_way_goes_on(tmp_path):
    plan, store = base("quick", 0), Store(tmp_path / "results")

    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: with other threads, bits could differ, and the run does not go on
    try:
        whole = Trace.of(plan, simulate(plan))
        with pytest.raises(KeyboardInterrupt):
            simulate(plan, folder=store.underway(plan), observers=[stop], checkpoint=Checkpoint(every_seconds=0))
    finally:
        torch.set_num_threads(before)
    at = peek(store.underway(plan)).step
    assert 0 < at <= 2
    with local_workers(1, store, Means()) as workers:
        (ended,) = [event for event in workers.events([plan]) if isinstance(event, Ended)]
    assert (ended.trace.curves, ended.trace.state) == (whole.curves, whole.state)
    assert not store.underway(plan).parent.exists()


def test_a_run_that_would_give_other_bits_does_not_go_on(tmp_path):
    plan, store = base("quick", 0), Store(tmp_path / "results")

    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(plan, folder=store.underway(plan), observers=[stop], checkpoint=Checkpoint(every_seconds=0))
    finally:
        torch.set_num_threads(before)
    with local_workers(1, store, Means()) as workers:
        (ended,) = [event for event in workers.events([plan]) if isinstance(event, Ended)]
    assert ended.trace.failed
    assert "computed with threads 3, and this is 1" in ended.trace.error
    with local_workers(1, store, Means(resume=False)) as workers:
        (ended,) = [event for event in workers.events([plan]) if isinstance(event, Ended)]
    assert ended.trace.status == "finished"
