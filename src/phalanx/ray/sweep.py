"""Runs on several machines: each record is in the store of this one as soon as its run ends.

A run whose worker dies is carried out again.  Where a worker sees the folder of results, as in a file system that all
machines share, the run goes on from its last checkpoint; elsewhere it begins anew.
"""

import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from phalanx.ray.crew import Again, Crew, Done, Failed, Given, Job, RayWorker, joined, stated
from phalanx.reproduce.store import Store
from phalanx.reproduce.trace import Trace
from phalanx.reproduce.workers import PAUSE, Advanced, Began, Ended, Event, Means, Report, Warned, traced
from phalanx.runs.plan import Run

TALKING = {"max_concurrency": 2}  # options of Ray: a worker says how far it is while it computes


class Runner(RayWorker):
    """A worker that carries out one run after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._share, self._told = 0.0, list[str]()

    def run(self, plan: Run, folder: Path, sign: Path, means: Means) -> tuple[Trace, bool, list[str]]:
        """Carries out a run.

        Args:
            plan: the run.
            folder: where it is saved on its way, if this worker sees the folder of results.
            sign: a file that is there if it does.
            means: how it is carried out.

        Returns:
            The trace, of a run that cannot be carried out as well; whether it is to be kept; and all warnings.
        """
        torch.set_num_threads(1)  # of this thread, which is not that of other methods
        warnings.showwarning = self._show  # type: ignore[assignment]
        report = Report(plan, self._advance)
        trace, fit = traced(plan, folder if sign.is_file() else None, means, report, keep=lambda trace: None)
        told, self._told, self._share = self._told, [], 0.0
        return trace, fit, told

    def _show(self, message: Warning | str, *_: Any) -> None:
        self._told.append(str(message))

    def _advance(self, share: float) -> None:
        self._share = share

    def so_far(self) -> tuple[float, list[str]]:
        """Which share of its run is done, and what warnings there were."""
        return self._share, list(self._told)


@dataclass(eq=False)
class _Underway:
    """A run that a worker has."""

    place: int  # among those that are under way, for the display
    began: float
    worker: Any = None
    asked: Any = None  # Ray's reference to how far it is
    told: list[str] = field(default_factory=list)  # warnings


class Sweep:
    """A Ray cluster that carries out runs, with the interface of `phalanx.reproduce.workers.Workers`.  A context.

    Args:
        address: of the cluster; see `phalanx.ray.joined`.
        count: how many runs at a time at most; as many as the cluster has free CPUs if None.
        store: takes the records.
        means: how runs are carried out; data sets lie at the same place on all machines.
    """

    def __init__(self, address: str, count: int | None, store: Store, means: Means) -> None:
        self.address, self.store = address, store
        self.means = replace(means, data_dir=means.data_dir.absolute() if means.data_dir else None)
        here = {name: value for name, value in stated().items() if name != "threads"}  # nothing is computed here
        self.crew = Crew(Runner, count, 1, here, TALKING)
        self._stack = ExitStack()
        self._underway = dict[int, _Underway]()  # by number of the job

    def __enter__(self) -> "Sweep":
        """Joins the cluster and begins the workers.

        Raises:
            InfeasibleError: there is no cluster, none of its CPUs is free, or a worker would compute other bits.
            ConnectionError: no worker begins.
        """
        self.store.folder.mkdir(parents=True, exist_ok=True)
        with self._stack as stack:
            sign = stack.enter_context(tempfile.NamedTemporaryFile(dir=self.store.folder, prefix=".seen-from-here-"))
            self._sign = Path(sign.name).absolute()
            stack.enter_context(joined(self.address))
            stack.enter_context(self.crew)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def events(self, plans: Sequence[Run]) -> Iterator[Event]:
        """Carries out runs, and tells what happens; for each run there is one `Began` and one `Ended`.

        Raises:
            ConnectionError: no worker is left.
        """
        for happening in self.crew.do([self._job(plan) for plan in plans], PAUSE):
            match happening:
                case Given(job, worker):
                    yield from self._given(job, plans[job], worker)
                case Done(job, (trace, fit, told)):
                    yield from self._warned(job, told)
                    if fit:
                        self.store.keep(trace)
                        self.store.tidy(plans[job])
                    yield Ended(self._underway.pop(job).place, trace, fit)
                case Again(job, why):
                    yield Warned(self._underway[job].place, f"A run is carried out again by another worker: {why}")
                    self._underway[job].asked = None
                case Failed(job, error):
                    done = self._underway.pop(job)
                    told = str(error) if isinstance(error, ConnectionError) else error
                    seconds = round(time.monotonic() - done.began, 3)
                    yield Ended(done.place, Trace.of_failure(plans[job], told, seconds), kept=False)
            yield from self._news()

    def _job(self, plan: Run) -> Job:
        folder = self.store.underway(plan).absolute()
        return lambda worker: worker.run.remote(plan, folder, self._sign, self.means)

    def _given(self, job: int, plan: Run, worker: Any) -> Iterator[Event]:
        """A worker has a run; the first one that has it begins it."""
        if job in self._underway:
            self._underway[job].worker = worker
            return
        taken = {run.place for run in self._underway.values()}
        place = next(n for n in range(1, len(taken) + 2) if n not in taken)
        self._underway[job] = _Underway(place, time.monotonic(), worker)
        yield Began(place, plan)

    def _news(self) -> Iterator[Event]:
        """How far those runs are whose workers have answered since they were last asked; asks anew."""
        for job, run in list(self._underway.items()):
            if run.asked is not None:
                if not ray.wait([run.asked], timeout=0)[0]:
                    continue
                try:
                    share, told = ray.get(run.asked)
                except RayError:  # the worker is dead, which shows by its run
                    continue
                yield Advanced(run.place, share)
                yield from self._warned(job, told)
            run.asked = run.worker.so_far.remote()

    def _warned(self, job: int, told: list[str]) -> Iterator[Event]:
        """The warnings that nobody was told of yet."""
        run = self._underway[job]
        yield from (Warned(run.place, text) for text in told[len(run.told) :])
        run.told = told
