"""Runs on several machines: each record is in the store of this machine as soon as its run ends.

A run whose worker dies is carried out again.  If a worker sees the folder of results, as in a file system that all
machines share, the run goes on from its last checkpoint; otherwise it starts from the beginning.
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
from typing_extensions import override

from phalanx.experiments.carrying_out import Means, Outcome, RunProgress, Workers, carried_out
from phalanx.experiments.store import Records
from phalanx.pool import Message, WorkerReport
from phalanx.ray.crew import Crew, Job, RayWorker, joined, stated
from phalanx.runs.plan import Run

TALKING = {"max_concurrency": 2}  # options of Ray: a worker reports its progress while it computes


class Runner(RayWorker):
    """A worker that carries out one run after another."""

    def __init__(self) -> None:
        super().__init__()
        self._so_far = RunProgress(0.0, ())

    def run(self, plan: Run, folder: Path | None, sign: Path, means: Means) -> Outcome:
        """Carry out a run.

        Args:
            plan: the run.
            folder: of its checkpoints, if this worker sees the folder of results.
            sign: a file that exists if it does.
            means: of carrying it out.
        """
        torch.set_num_threads(1)  # of this thread, which is not that of other methods
        self._say(RunProgress(0.0, ()))
        return carried_out(plan, folder if sign.is_file() else None, means, self._say)

    def _say(self, so_far: RunProgress) -> None:
        self._so_far = so_far

    def so_far(self) -> RunProgress:
        """Return the progress of its run."""
        return self._so_far


class Runners(Crew):
    """The workers of a sweep, whose progress is queried after each event, and after a while without one.

    Args:
        count: largest number; the free CPUs of the cluster if None.
    """

    def __init__(self, count: int | None) -> None:
        here = {name: value for name, value in stated().items() if name != "threads"}  # nothing is computed here
        super().__init__(Runner, count, 1, here, TALKING)
        self._queries = dict[Any, Any]()  # Ray's reference to the progress, by worker

    @override
    def wait(self, seconds: float) -> Sequence[Message]:
        messages = super().wait(seconds)
        said = [found for number, worker in self._flying.values() if (found := self._said(number, worker))]
        return [*messages, *said]

    def _said(self, number: int, worker: Any) -> WorkerReport | None:
        """Return the progress of a worker, if it has answered; then query it again."""
        query = self._queries.pop(worker, None)
        if query is not None and not ray.wait([query], timeout=0)[0]:
            self._queries[worker] = query
            return None
        self._queries[worker] = worker.so_far.remote()
        try:
            return None if query is None else WorkerReport(number, ray.get(query))
        except RayError:  # the worker is dead, which the end of its run shows
            return None

    @override
    def give(self, worker: Any, number: int, job: Job) -> None:
        """See `WorkerPool`: progress of the worker's previous run is dropped."""
        self._queries.pop(worker, None)
        super().give(worker, number, job)


@contextmanager
def ray_workers(address: str, count: int | None, store: Records, means: Means) -> Iterator[Workers]:
    """Start the workers of a Ray cluster.

    Args:
        address: of the cluster; see `phalanx.ray.joined`.
        count: largest number of runs at one time; the free CPUs of the cluster if None.
        store: takes the records.
        means: of carrying out runs; data sets are at the same place on all machines.

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
            underway = store.underway(plan)
            folder = underway.absolute() if underway else None
            return lambda worker: worker.run.remote(plan, folder, sign, everywhere)

        yield Workers(pool, job, store)
