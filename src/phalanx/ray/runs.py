"""Runs on several machines: each record is in the store of this one as soon as its run ends.

A run whose worker dies is carried out again.  Where a worker sees the folder of results, as in a file system that all
machines share, the run goes on from its last checkpoint; elsewhere it starts from the beginning.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from phalanx.pool import Message, Said
from phalanx.ray.crew import Crew, Job, RayWorker, joined, stated
from phalanx.reproduce.store import Store
from phalanx.reproduce.workers import Means, Outcome, SoFar, Workers, carried_out
from phalanx.runs.plan import Run

TALKING = {"max_concurrency": 2}  # options of Ray: a worker says how far it is while it computes


class Runner(RayWorker):
    """A worker that carries out one run after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._so_far = SoFar(0.0, ())

    def run(self, plan: Run, folder: Path, sign: Path, means: Means) -> Outcome:
        """Carry out a run.

        Args:
            plan: the run.
            folder: where it is saved on its way, if this worker sees the folder of results.
            sign: a file that is there if it does.
            means: how it is carried out.
        """
        torch.set_num_threads(1)  # of this thread, which is not that of other methods
        self._say(SoFar(0.0, ()))
        return carried_out(plan, folder if sign.is_file() else None, means, self._say)

    def _say(self, so_far: SoFar) -> None:
        self._so_far = so_far

    def so_far(self) -> SoFar:
        """How far its run is."""
        return self._so_far


class Runners(Crew):
    """The workers of a sweep, which are asked how far they are whenever something has happened, or nothing for a while.

    Args:
        count: how many at most; as many as the cluster has free CPUs if None.
    """

    def __init__(self, count: int | None) -> None:
        here = {name: value for name, value in stated().items() if name != "threads"}  # nothing is computed here
        super().__init__(Runner, count, 1, here, TALKING)
        self._asked = dict[Any, Any]()  # Ray's reference to how far it is, by worker

    def wait(self, seconds: float) -> Sequence[Message]:
        """See `Pool`."""
        messages = super().wait(seconds)
        said = [found for number, worker in self._flying.values() if (found := self._said(number, worker))]
        return [*messages, *said]

    def _said(self, number: int, worker: Any) -> Said | None:
        """How far a worker is, if it has answered; then asks it again."""
        asked = self._asked.pop(worker, None)
        if asked is not None and not ray.wait([asked], timeout=0)[0]:
            self._asked[worker] = asked
            return None
        self._asked[worker] = worker.so_far.remote()
        try:
            return None if asked is None else Said(number, ray.get(asked))
        except RayError:  # the worker is dead, which shows by its run
            return None

    def give(self, worker: Any, number: int, job: Job) -> None:
        """See `Pool`: what a worker says of the run before is not of this one."""
        self._asked.pop(worker, None)
        super().give(worker, number, job)


@contextmanager
def ray_workers(address: str, count: int | None, store: Store, means: Means) -> Iterator[Workers]:
    """The workers of a Ray cluster.

    Args:
        address: of the cluster; see `phalanx.ray.joined`.
        count: how many runs at a time at most; as many as the cluster has free CPUs if None.
        store: takes the records.
        means: how runs are carried out; data sets lie at the same place on all machines.

    Raises:
        InfeasibleError: there is no cluster, none of its CPUs is free, or a worker would compute other bits.
        ConnectionError: no worker begins.
    """
    everywhere = replace(means, data_dir=means.data_dir.absolute() if means.data_dir else None)
    store.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.NamedTemporaryFile(dir=store.folder, prefix=".seen-from-here-") as file,
        joined(address),
        Runners(count) as pool,
    ):
        sign = Path(file.name).absolute()

        def job(plan: Run) -> Job:
            folder = store.underway(plan).absolute()
            return lambda worker: worker.run.remote(plan, folder, sign, everywhere)

        yield Workers(pool, job, store)
