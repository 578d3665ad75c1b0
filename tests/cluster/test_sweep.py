"""Runs on a Ray cluster of two workers: the records of processes on one machine, whatever dies."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("ray")

from cluster.clusters import Complaining, Deadly
from phalanx import LocalSGD, Run, Until, simulate
from phalanx.core import InfeasibleError
from phalanx.data import Digits
from phalanx.experiments.carrying_out import Means
from phalanx.experiments.ray_runs import ray_workers
from phalanx.experiments.run_events import Advanced, Began, Ended, Warned
from phalanx.experiments.store import Store
from phalanx.experiments.trace import Trace
from phalanx.models import MLP
from phalanx.ray import RayExecutors

pytestmark = pytest.mark.slow

GOOD = Run(data=Digits(), clients=4, model=MLP((8,)), training=LocalSGD(lr=0.2), until=Until(3))


def carried_out(address, store, plans, means=None, count=None):
    with ray_workers(address, count, store, means or Means()) as workers:
        return list(workers.events(plans))


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


def bare(trace):
    return replace(trace, wall_seconds=0.0)


def test_records_are_those_of_this_process(two_workers, tmp_path):
    plans, store = [replace(GOOD, seed=seed) for seed in range(3)], Store(tmp_path / "results")
    events = carried_out(two_workers, store, plans)
    began, ended = of(Began, events), of(Ended, events)
    assert {event.plan.identity for event in began} == {plan.identity for plan in plans}
    assert {event.run for event in began} == {0, 1, 2}
    assert [event.kept for event in ended] == [True] * 3
    assert all(0 <= event.share <= 1 for event in of(Advanced, events))
    for plan in plans:
        assert bare(store.find(plan)[0]) == bare(Trace.of(plan, simulate(plan)))
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["records"]
    assert len(list((tmp_path / "results" / "records").iterdir())) == 3


def test_a_run_whose_worker_is_killed_is_carried_out_again(two_workers, tmp_path):
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    plan = replace(GOOD, attack=Deadly(str(deaths)), byzantine=1)
    here = Trace.of(plan, simulate(plan))
    (deaths / "once").touch()
    events = carried_out(two_workers, Store(tmp_path / "results"), [plan])
    assert len(of(Began, events)) == 1
    (warned,) = of(Warned, events)
    assert warned.text.startswith("A run is carried out again by another worker: ")
    (ended,) = of(Ended, events)
    assert bare(ended.trace) == bare(here)


def test_a_run_that_kills_every_worker_fails_with_a_sentence_and_others_go_on(two_workers, tmp_path):
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    for number in range(3):
        (deaths / str(number)).touch()
    plans = [replace(GOOD, attack=Deadly(str(deaths)), byzantine=1), GOOD]
    ended = of(Ended, carried_out(two_workers, Store(tmp_path / "results"), plans, count=1))
    assert [event.kept for event in ended] == [False, True]
    assert ended[0].trace.error.startswith("3 workers have died over it, one after the other")
    assert ended[1].trace.status == "finished"


def test_what_is_wrong_with_a_run_is_told_as_of_this_machine(two_workers, tmp_path):
    plans = [replace(GOOD, clients=5000), replace(GOOD, training=LocalSGD(lr=1e30)),
             replace(GOOD, attack=Complaining(), byzantine=1)]  # fmt: skip
    events = carried_out(two_workers, Store(tmp_path), plans)
    ended = {event.trace.identity: event for event in of(Ended, events)}
    few, diverges, odd = (ended[plan.identity] for plan in plans)
    assert (few.trace.failed, few.kept) == (True, False)
    assert "5000" in few.trace.error
    assert (diverges.trace.failed, diverges.kept) == (True, True)
    assert odd.trace.status == "finished"
    assert {event.text for event in of(Warned, events)} == {"something is odd"}


def test_a_process_that_computes_other_bits_is_not_joined(two_workers):
    torch.set_num_threads(2)
    try:
        with pytest.raises(InfeasibleError, match="computes with threads 1, and this is 2: it would give other bits"):
            RayExecutors(two_workers).__enter__()
    finally:
        torch.set_num_threads(1)
