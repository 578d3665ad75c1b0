"""Who does what, and what becomes of the dead: with a stand-in for Ray, in which workers die as they are told to."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayError, RayTaskError

from phalanx.core import InfeasibleError
from phalanx.pool import Done, Failed, Given, Requeued
from phalanx.ray import crew as module
from phalanx.ray.crew import Crew, Place, RayWorker, check

HERE = {"torch": "2.7", "threads": 1}


class Reference:
    """What will come of a call."""

    def __init__(self, outcome):
        self.outcome = outcome


class Call:
    """Something that can be asked for."""

    def __init__(self, function):
        self.remote = function


class Handle:
    """A worker, as one sees it from here."""

    def __init__(self, number, words, pid=0):
        self.number, self.told = number, []
        host, there = words if isinstance(words, tuple) else ("", {})
        begun = (Place(host, "ab" * 28, pid), there)
        self.begin = Call(lambda: Reference(begun if isinstance(words, tuple) else words))


class Cluster:
    """Takes the place of the module `ray`: each wait brings one result, the newest that there is."""

    def __init__(self, cpus=2, begins=lambda number: (f"host{number}", HERE), pids=()):
        self.cpus, self.begins, self.hired, self.killed = cpus, begins, [], []
        self.pids = dict(enumerate(pids))  # of workers

    def remote(self, kind):
        if kind is RayWorker:
            return self
        there = SimpleNamespace(options=lambda **_: Call(lambda *pids: Reference(kind(*pids))))
        return there  # it runs on the machine of a worker

    def options(self, *, num_cpus):
        assert num_cpus == 1
        return Call(self.hire)

    def hire(self):
        number = len(self.hired)
        self.hired.append(Handle(number, self.begins(number), self.pids.get(number, 0)))
        return self.hired[-1]

    def wait(self, references, timeout):
        ready = [reference for reference in references if reference.outcome is not NEVER][-1:]
        return ready, [reference for reference in references if reference not in ready]

    def get(self, reference):
        if isinstance(reference.outcome, BaseException):
            raise reference.outcome
        return reference.outcome

    def kill(self, handle):
        self.killed.append(handle.number)

    def available_resources(self):
        return {"CPU": float(self.cpus)}

    cluster_resources = available_resources


NEVER = object()


@pytest.fixture
def at(monkeypatch):
    """Puts a cluster in the place of Ray."""

    def of(cluster):
        monkeypatch.setattr(module, "ray", cluster)
        return cluster

    return of


def crew(count=None, ahead=1):
    return Crew(RayWorker, count, ahead, HERE)


def brings(*outcomes):
    """A job that brings these outcomes, one after the other, by whoever has it."""
    left = iter(outcomes)
    return lambda handle: Reference(next(left))


def dead():
    return RayError("The actor died unexpectedly.\nIts process was killed.")


def test_each_job_is_done_once_by_whoever_is_free(at):
    at(Cluster(cpus=3))
    with crew(count=2, ahead=2) as made:
        assert len(made.workers) == 2
        happened = list(made.do([brings(number) for number in range(7)]))
    assert sorted((h.job, h.result) for h in happened if isinstance(h, Done)) == [(k, k) for k in range(7)]
    given = [h for h in happened if isinstance(h, Given)]
    assert sorted(h.job for h in given) == list(range(7))
    assert {h.worker.number for h in given} == {0, 1}
    open_ = itertools.accumulate(1 if isinstance(h, Given) else -1 for h in happened)
    assert max(open_) == 4, "two for each of two"


def test_what_a_dead_worker_had_is_done_again_by_another(at):
    cluster = at(Cluster(cpus=2))
    with crew() as made:
        happened = list(made.do([brings(dead(), "done"), brings("other")]))
        list(made.do([brings("one"), brings("two")]))
        assert len(made.workers) == 2
    assert [h for h in happened if isinstance(h, Requeued)] == [Requeued(0, "The actor died unexpectedly.")]
    assert {h.job: h.result for h in happened if isinstance(h, Done)} == {0: "done", 1: "other"}
    assert cluster.killed[0] in (0, 1)
    assert len(cluster.hired) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say whether a process is stopped")
def test_a_worker_that_is_stopped_is_named_and_ended_and_another_does_its_job(at, monkeypatch):
    monkeypatch.setattr(module, "AWAKE", 0.01)
    with subprocess.Popen(["sleep", "20"]) as process, ExitStack() as stack:
        stack.callback(process.kill)
        os.kill(process.pid, signal.SIGSTOP)
        cluster = at(Cluster(cpus=1, pids=[process.pid]))
        silent = Reference(NEVER)
        end = threading.Timer(20.0, setattr, (silent, "outcome", "nobody noticed"))  # or the test would not end
        stack.callback(end.cancel)
        end.start()
        with crew() as made:
            left = iter((silent, Reference("done")))
            happened = list(made.do([lambda handle: next(left)], pause=0.0))
        assert process.wait(10) == -signal.SIGKILL, "Ray's own message does not reach a process that is stopped"
    why = f"The process {process.pid} on host0 was stopped by a signal and did not go on, so that it was ended."
    assert [h for h in happened if isinstance(h, Requeued | Done)] == [Requeued(0, why), Done(0, "done")]
    assert (cluster.killed[0], len(cluster.hired)) == (0, 2)


def test_what_costs_three_workers_is_given_up_and_the_rest_is_done(at):
    cluster = at(Cluster(cpus=1))
    with crew() as made:
        happened = list(made.do([brings(dead(), dead(), dead(), "never"), brings("rest")]))
    (failed,) = [h for h in happened if isinstance(h, Failed)]
    assert failed.job == 0
    assert str(failed.error) == (
        "3 workers have died over it, one after the other, as they do when memory runs out: use fewer workers, or "
        "larger machines. The last: The actor died unexpectedly."
    )
    assert [h.result for h in happened if isinstance(h, Done)] == ["rest"]
    assert len(cluster.hired) == 4


def test_a_mistake_in_a_job_is_told_as_it_is(at):
    at(Cluster())
    mistake = RayTaskError("train", "a page of lines", ValueError("no such class"))
    with crew() as made:
        happened = list(made.do([brings(mistake), brings("done")]))
    (failed,) = [h for h in happened if isinstance(h, Failed)]
    assert isinstance(failed.error, ValueError)
    assert str(failed.error) == "no such class"


def test_where_nobody_is_left_and_nobody_begins_it_is_told(at, monkeypatch):
    monkeypatch.setattr(module, "START", 0.05)
    at(Cluster(cpus=1, begins=lambda number: ("host", HERE) if number == 0 else NEVER))
    with crew() as made, pytest.raises(ConnectionError, match=r"No worker is left .* the same command goes on"):
        list(made.do([brings(dead(), "never")], pause=0.01))


def test_where_no_worker_begins_at_all_it_is_told(at, monkeypatch):
    monkeypatch.setattr(module, "START", 0.05)
    at(Cluster(begins=lambda number: NEVER))
    with pytest.raises(ConnectionError, match="No worker has begun"), crew():
        pass


def test_a_cluster_whose_cpus_are_taken_is_not_waited_for_long(at, monkeypatch, caplog):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(module, "FREED", 0.3)
    at(Cluster(cpus=0))
    with pytest.raises(InfeasibleError, match="None of the 0 CPUs of the Ray cluster is free"), crew():
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "none of the 0 CPUs of the Ray cluster is free: waiting up to 0.3 s for one"
    ]


def test_cpus_that_workers_give_back_late_are_waited_for(at, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    cluster = at(Cluster(cpus=0))
    threading.Timer(0.3, lambda: setattr(cluster, "cpus", 2)).start()
    with crew() as made:
        assert made.places == 2


def test_a_worker_that_computes_other_bits_is_refused_and_all_are_sent_home(at):
    cluster = at(Cluster(begins=lambda number: ("host1", HERE | {"torch": "2.6"})))
    why = r"The worker on host1 computes with torch 2\.6, and this is 2\.7: it would give other bits"
    with pytest.raises(InfeasibleError, match=why), crew():
        pass
    assert sorted(cluster.killed) == [0, 1]
    check("host1", {**HERE, "unknown": "here"}, HERE)


def test_each_worker_is_prepared_those_who_come_later_as_well(at):
    at(Cluster(cpus=2))
    with crew() as made:
        made.prepare(lambda handle: handle.told.append("told"))
        list(made.do([brings(dead(), "done"), brings("other"), brings("more")]))
        list(made.do([brings("once more"), brings("and more")]))
        assert [handle.told for handle in made.workers] == [["told"], ["told"]]


def test_workers_of_a_wait_that_is_given_up_are_replaced(at):
    cluster = at(Cluster(cpus=1))
    with crew() as made:
        waiting = made.do([brings(NEVER)], pause=0.0)
        assert isinstance(next(waiting), Given)
        waiting.close()
        assert cluster.killed == [0]
        assert [h.result for h in made.do([brings("next")]) if isinstance(h, Done)] == ["next"]
