"""The clients of a round on a Ray cluster of two workers: the bits of one process, whatever dies."""

import os
import re
import signal
import time
from dataclasses import replace

import msgspec
import pytest
import torch

pytest.importorskip("ray")


from cluster.clusters import Mortal
from phalanx import LocalSGD, Run, Until, simulate
from phalanx.algorithms import RFFL, FedAsync, QFedAvg
from phalanx.attacks import LabelFlip, Rescale
from phalanx.core import InfeasibleError
from phalanx.data import Dataset, InMemory, PowerLaw
from phalanx.models import MLP, LeNet
from phalanx.ray import RayExecutors
from phalanx.ray.crew import Crew
from phalanx.rng import generator
from phalanx.runs.checkpoint import Checkpoint
from runs.test_packing import same

pytestmark = pytest.mark.slow


def examples(n, seed, shape=(6,)):
    rng = generator(seed, "examples")
    x = torch.rand(n, *shape, generator=rng)
    return Dataset(x, (x.flatten(1).mean(1) > 0.5).long(), 2)


SMALL = Run(
    data=InMemory(examples(90, 0), examples(20, 1)), clients=5, model=MLP((4,), dropout=0.2),
    training=LocalSGD(batch_size=5, momentum=0.5), until=Until(3),
)  # fmt: skip
IMAGES = InMemory(examples(40, 0, (1, 28, 28)), examples(10, 1, (1, 28, 28)))
PLANS = {
    "one model for all, sizes that differ": replace(SMALL, partition=PowerLaw()),
    "some take part": replace(SMALL, participation=0.6),
    "a model for each": replace(SMALL, algorithm=RFFL()),
    "exact losses": replace(SMALL, algorithm=QFedAvg()),
    "attackers": replace(SMALL, attack=LabelFlip(1, 0), byzantine=2),
    "images": replace(SMALL, data=IMAGES, model=LeNet(), until=Until(2)),
}


@pytest.fixture(scope="module")
def cohorts(two_workers):
    import ray

    deadline = time.monotonic() + 60.0
    while ray.available_resources().get("CPU") != 2 and time.monotonic() < deadline:  # of workers of other tests
        time.sleep(0.1)
    with RayExecutors(two_workers) as made:
        yield made


def states(plan, **options):
    """The state at each line, and the record without its times."""
    seen = []
    record = simulate(plan, observers=[lambda progress: seen.append(progress.state)], **options)
    return seen, record.history, msgspec.structs.replace(record.summary, wall_seconds=0.0)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_bits_are_those_of_one_process(plan, cohorts):
    assert cohorts.crew.places == 2
    there, here = states(plan, executors=cohorts), states(plan)
    assert len(there[0]) > 2
    assert same(there[0], here[0])
    assert there[1:] == here[1:]


def test_a_run_that_began_in_one_process_goes_on_on_a_cluster(cohorts, tmp_path):
    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(SMALL, folder=tmp_path, observers=[stop], checkpoint=Checkpoint(every_seconds=0))
    record = simulate(SMALL, folder=tmp_path, executors=cohorts)
    assert record.history == simulate(SMALL).history


def test_a_client_whose_worker_is_killed_is_trained_again(cohorts, tmp_path, caplog):
    plan = replace(SMALL, model=Mortal(str(tmp_path)))
    here = states(plan)
    (tmp_path / "die once").touch()
    there = states(plan, executors=cohorts)
    assert not list(tmp_path.iterdir())
    assert same(there[0], here[0])
    assert "is trained again by another worker" in caplog.text
    assert states(SMALL, executors=cohorts)[1] == states(SMALL)[1], "the crew is whole again"


def test_a_worker_that_is_stopped_is_named_and_replaced(cohorts, monkeypatch, caplog):
    give, pids = Crew.give, [place.pid for place in (cohorts.crew._at[worker] for worker in cohorts.crew.workers)]
    monkeypatch.setattr("phalanx.ray.crew.AWAKE", 0.1)

    def stopped(self, worker, number, job):
        give(self, worker, number, job)
        if pids and self._at[worker].pid == pids[0]:
            os.kill(pids[0], signal.SIGSTOP)
            pids.clear()

    monkeypatch.setattr(Crew, "give", stopped)
    there = states(SMALL, executors=cohorts)
    assert there[1] == states(SMALL)[1]
    assert not pids
    assert re.search(r"trained again by another worker: The process \d+ on .* was stopped by a signal", caplog.text)


def test_what_kills_every_worker_ends_the_run_with_a_sentence(cohorts, tmp_path):
    plan = replace(SMALL, clients=1, model=Mortal(str(tmp_path)))
    for number in range(3):
        (tmp_path / str(number)).touch()
    with pytest.raises(ConnectionError, match="3 workers have died over it, one after the other") as caught:
        simulate(plan, executors=cohorts)
    assert "While client 0 was trained on the Ray cluster." in caught.value.__notes__
    assert states(SMALL, executors=cohorts)[1] == states(SMALL)[1], "the next run is served"


def test_a_mistake_in_a_model_is_told_as_it_is(cohorts):
    plan = replace(SMALL, training=LocalSGD(lr=1e30, batch_size=5))
    assert states(plan, executors=cohorts)[1] == states(plan)[1], "a run that diverges does so everywhere"


@pytest.mark.parametrize(
    ("plan", "options", "why"),
    [
        (replace(SMALL, algorithm=FedAsync()), {}, "FedAsync trains its clients one by one"),
        (replace(SMALL, attack=Rescale(-1.0), byzantine=1), {"device": "meta"}, "train elsewhere do so on CPUs"),
    ],
    ids=["arrivals", "device"],
)
def test_what_does_not_go_together_is_refused(plan, options, why, cohorts):
    with pytest.raises(InfeasibleError, match=why):
        simulate(plan, executors=cohorts, **options)
