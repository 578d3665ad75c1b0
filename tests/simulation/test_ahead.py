"""Clients of asynchronous runs that train ahead: the bits of clients that train at once, whatever else happens."""

import os
import random
import signal
from dataclasses import replace

import pytest
import torch

from phalanx import Run, Until, simulate
from phalanx.algorithms import (
    BASGD,
    AsyncFilter,
    AsyncMomentum,
    AsyncRFFL,
    Catalyst,
    DeMoA,
    FedAsync,
    FedAvg,
    FedBuff,
    Kardam,
    Permuted,
    Quorum,
    WorkerMomentum,
    ZenoPlusPlus,
)
from phalanx.attacks import ALIE, HoldBack, LabelFlip, PoisonedFL, Replay, SignFlip, Together
from phalanx.attacks.training import ConstrainAndScale
from phalanx.models import MLP
from phalanx.runs.checkpoint import Checkpoint
from phalanx.simulation import Both, Crashes, Deadline, Lognormal, OnOff, Silent, Stragglers
from phalanx.simulation.backlog import Backlog
from phalanx.simulation.executor import SerialExecutor
from phalanx.simulation.parallel import Learners, ProcessExecutors
from phalanx.training import LocalSGD
from phalanx.training.evaluation import Evaluation
from phalanx.training.local import LocalTask

SMALL = Run(
    algorithm=FedAsync(),
    model=MLP((4,), dropout=0.2),
    clients=8,
    latency=Lognormal(each_turn=True),
    until=Until(25),
    evaluation=Evaluation(10),
)
BUSY = replace(
    SMALL,
    latency=Stragglers(Lognormal(each_turn=True), 0.3, 6.0),
    availability=Both(OnOff(8.0, 4.0), Both(Crashes(0.2, 3.0), Silent(0.2, 12.0))),
    deadline=Deadline(5.0),
)
ASYNCHRONOUS = [
    FedAsync(),
    FedBuff(size=3),
    Kardam(f=1),
    BASGD(buffers=2),
    AsyncMomentum(),
    AsyncFilter(),
    AsyncRFFL(),
    DeMoA(),
    Catalyst(f=1),
    Catalyst.as_published(f=1),
    Quorum(FedAvg(), k=3),
    Quorum(WorkerMomentum(FedAvg()), k=3),
    Permuted(FedAsync(), seed=1),
    ZenoPlusPlus(),
]
ATTACKS = [SignFlip(), ALIE(), LabelFlip(), ConstrainAndScale(), PoisonedFL(), Together(Replay(), HoldBack(2))]


class Lazy:
    """An executor in this process that trains a task when its result is needed, and some others in any order."""

    def __init__(self, blueprint, data, *, exact):
        self.serial = SerialExecutor(blueprint.trainer(), data, exact)
        self.begun, self.losses = {}, {}
        self.rng, self.forgotten = random.Random(0), 0

    def __call__(self, tasks):
        return self.serial(tasks)

    def begin(self, tasks):
        self.begun |= {(task.client, task.turn): task for task, _ in tasks}
        for key in self.rng.sample(sorted(self.begun), len(self.begun) // 4):
            self._train(key)

    def _train(self, key):
        ((_, self.losses[key]),) = self.serial([self.begun.pop(key)])

    def result(self, task):
        assert task.row.data_ptr() != task.start.data_ptr()
        if (task.client, task.turn) in self.begun:
            self._train((task.client, task.turn))
        return self.losses.pop((task.client, task.turn))

    def forget(self, task):
        self.begun.pop((task.client, task.turn), None)
        self.losses.pop((task.client, task.turn), None)
        self.forgotten += 1


class LazyExecutors:
    def executor(self, blueprint, data, *, exact):
        self.made = Lazy(blueprint, data, exact=exact)
        return self.made


@pytest.mark.parametrize("algorithm", ASYNCHRONOUS, ids=repr)
def test_every_algorithm_has_the_history_of_clients_that_train_at_once(algorithm):
    plan = replace(SMALL, algorithm=algorithm, server_examples=20 * algorithm.traits.needs_reference)
    assert simulate(plan, executors=LazyExecutors()).history == simulate(plan).history


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
@pytest.mark.parametrize("plan", [SMALL, BUSY], ids=["quiet", "busy"])
def test_attackers_see_and_send_the_same(plan, attack):
    plan = replace(plan, attack=attack, byzantine=2)
    executors = LazyExecutors()
    assert simulate(plan, executors=executors).history == simulate(plan).history
    assert bool(executors.made.forgotten) == (plan.deadline is not None)


@pytest.mark.slow
def test_a_stopped_run_goes_on_where_clients_train_at_once_and_the_other_way_round(tmp_path):
    plan = replace(BUSY, attack=ALIE(), byzantine=2)

    def stop(progress):
        if progress.step == 15:
            raise KeyboardInterrupt

    whole = simulate(plan).history
    for name, first, second in (("a", LazyExecutors(), None), ("b", None, LazyExecutors())):
        options = {"folder": tmp_path / name, "checkpoint": Checkpoint(every_seconds=0)}
        with pytest.raises(KeyboardInterrupt):
            simulate(plan, executors=first, observers=[stop], **options)
        left = []
        record = simulate(plan, executors=second, observers=[left.append], **options)
        assert left[0].step >= 14, "it has not started over"
        assert record.history == whole


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "plan",
    [
        replace(BUSY, algorithm=Catalyst(f=1), attack=ALIE(), byzantine=2),
        replace(SMALL, algorithm=Quorum(FedAvg(), k=6), training=LocalSGD(engine="compiled", momentum=0.5)),
    ],
    ids=["loop", "compiled"],
)
def test_processes_give_the_bits_of_one(plan, tmp_path):
    with ProcessExecutors(2, after=0.0) as processors:
        record = simulate(plan, executors=processors, folder=tmp_path, checkpoint=Checkpoint(every_seconds=0))
    assert record.history == simulate(plan).history


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_process_that_dies_changes_nothing_but_the_speed(monkeypatch):
    give, given = Learners.give, []

    def killed(self, worker, number, job):
        give(self, worker, number, job)
        given.append(number)
        if len(given) == 15:
            os.kill(self.processes[worker].pid, signal.SIGKILL)

    monkeypatch.setattr(Learners, "give", killed)
    what = "train in one process from here on.*killed by the signal SIGKILL"
    with ProcessExecutors(2, after=0.0) as processors, pytest.warns(UserWarning, match=what):
        record = simulate(SMALL, executors=processors)
    assert record.history == simulate(SMALL).history


@pytest.mark.usefixtures("one_thread")
def test_before_processes_are_worth_their_start_a_client_trains_when_its_result_is_needed():
    with ProcessExecutors(2) as processors:
        assert simulate(SMALL, executors=processors).history == simulate(SMALL).history


def test_a_backlog_hands_out_what_is_needed_first_and_nothing_that_is_forgotten():
    backlog, none = Backlog(), torch.empty(0)
    tasks = [LocalTask(client, 0, 0, none, none) for client in range(5)]
    for task, due in zip(tasks, (4.0, 3.0, 1.0, 2.0, 1.0), strict=True):
        backlog.add(task, due)
    backlog.forget(tasks[3])
    assert [backlog.pop() for _ in range(5)] == [2, 4, 1, 0, None]
    backlog.forget(tasks[1])
    assert backlog.jobs.keys() == {0, 2, 4}
    assert backlog.job(tasks[2]).task is tasks[2]
