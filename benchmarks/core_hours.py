"""Core-hours of every table and figure at its paper's size: the first steps of its runs, times their number.

python benchmarks/core_hours.py                         # all papers
python benchmarks/core_hours.py 'clustered-fl *' 'rffl *'
python benchmarks/core_hours.py --engine compiled       # as if they trained by another engine, where the network has it
python benchmarks/core_hours.py --by-tasks 'catalyst figure5'   # where all clients train for a quarter of an hour
PYTHONPATH=OTHER/src:OTHER python benchmarks/core_hours.py   # by another checkout whose names are these

One run is timed of each kind, that is of the runs that differ only in the partition, the attack, the attackers, the
parameters of the algorithm or the seed, and if they are asynchronous in the number of clients: the median is timed.  It
takes steps for some seconds of processor time, in one process of one thread; the first step, which may compile code,
counts as a part of the start.  Evaluations are timed by themselves, since the first steps have few of them.  Runs that
two experiments share count in both.
"""

import argparse
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from phalanx import Run, simulate
from phalanx.engine.observer import Progress
from phalanx.experiments.papers.experiment import reproductions
from phalanx.numerics.allocation import keep_freed_memory
from phalanx.runs.engine_choice import named, with_engine
from phalanx.runs.federation import Federation
from phalanx.simulation.latency import Workload
from phalanx.training.evaluation import evaluate
from phalanx.training.local import LocalTask

ENGINES = ("loop", "compiled")
LEAST_STEPS = 3  # of a run; the first of them is left out, unless they take so long that it is the only one
LEAST_SHARE = 0.15  # of a run's virtual time, since clients with similar speeds answer in waves
LONGER = 15  # times as long as other runs may take until that share, or for so many steps
BATCHES, TESTED = 3, 100  # minibatches and test examples that are timed, of runs that take too long
SEEDS = 3  # for which hours are given
VARIED = ("algorithm", "attack", "byzantine", "additional_byzantine", "byzantine_per_round", "partition", "seed")
EVALUATE = Federation.evaluate


def kind(plan: Run) -> str:
    """Return what the runs of a kind have in common."""
    varied = VARIED if plan.algorithm.traits.synchronous else (*VARIED, "clients")
    common = {field.name: getattr(plan, field.name) for field in fields(plan) if field.name not in varied}
    return repr((type(plan.algorithm), common))


class EnoughError(Exception):
    """Ends a run that is timed."""


class Stopwatch:
    """An observer of a run's first steps, and a count of the time of its evaluations.

    Args:
        plan: the run.
        longest: seconds of the processor after which it ends the run.
    """

    def __init__(self, plan: Run, longest: float) -> None:
        self._plan, self._longest = plan, longest
        self._begun = time.process_time()
        self._federation: Federation | None = None
        self._evaluations = list[float]()
        self._marks = list[tuple[float, float]]()  # the share of the run that is done, seconds without evaluations
        self._asynchronous = bool(plan.until.seconds) and not plan.algorithm.traits.synchronous
        self._step = 0

    def evaluation(self) -> Callable[..., Any]:
        """Return what evaluates a state in place of `Federation.evaluate`, and counts the time."""

        def worth(federation: Federation, *state: Any) -> Any:
            begun = time.process_time()
            found = EVALUATE(federation, *state)
            self._federation = federation
            self._evaluations.append(time.process_time() - begun)
            return found

        return worth

    def __call__(self, progress: Progress) -> None:
        """Note what the run has taken, and end it if it was enough."""
        until = self._plan.until
        steps = progress.step / until.limit if until.limit else 0.0
        virtual = progress.now / until.seconds if until.seconds else 0.0
        taken = time.process_time() - self._begun
        self._step = progress.step
        self._marks.append((max(steps, virtual), taken - sum(self._evaluations)))
        wanted = self._longest if not self._asynchronous or virtual >= LEAST_SHARE else LONGER * self._longest
        enough = LEAST_STEPS if taken < LONGER * self._longest else 1
        if progress.step >= enough and taken > wanted:
            if progress.step % self._plan.evaluation.every and self._federation is not None:
                self._federation.evaluate(progress.state, progress.enrolled)
            raise EnoughError

    def seconds(self) -> float:
        """Return the seconds of the whole run."""
        moved = [mark for mark in self._marks if mark[0] > 0]
        (first_share, first), (share, last) = moved[0], moved[-1]
        if share >= 1:
            return last + sum(self._evaluations)
        if share == first_share:
            first = first_share = 0.0
        rate = (last - first) / (share - (0.0 if self._asynchronous else first_share))
        number = 1 - (-self._step / share // self._plan.evaluation.every)  # before the first step, and after the last
        return last + (1 - share) * rate + number * self._evaluations[-1]


def seconds(plan: Run, data_dir: Path | None, longest: float) -> float:
    """Return the processor's seconds that a run takes, from its first steps."""
    watch = Stopwatch(plan, longest)
    Federation.evaluate = watch.evaluation()  # type: ignore[method-assign]
    with warnings.catch_warnings(action="ignore"), suppress(EnoughError):
        simulate(plan, data_dir=data_dir, observers=[watch])
    return watch.seconds()


def seconds_by_tasks(plan: Run, data_dir: Path | None) -> float:
    """Return the seconds that training and evaluation of a run take, from some examples; the rules are left out."""
    federation = Federation(plan, data_dir)
    held, size = federation.data, plan.training.examples(len(federation.data[0]))
    trainer = replace(plan.training, steps=BATCHES, epochs=1).trainer(federation.model, plan.task, plan.seed)
    task = LocalTask(0, 0, 0, federation.start, torch.empty_like(federation.start))
    few = federation.tests[0].of(torch.arange(TESTED))
    for _ in range(2):  # the first does not count
        begun = time.process_time()
        trainer.train(task, held[0])
        trained = time.process_time()
        evaluate(federation.model, federation.start, few, plan.task)
        tested = time.process_time()
    if plan.algorithm.traits.synchronous:
        steps, turns = plan.until.limit, dict.fromkeys(range(len(held)), plan.until.limit * plan.participation)
    else:
        delays = (
            plan.latency.seconds(Workload(i, examples=len(each), clients=len(held)), plan.seed)
            for i, each in enumerate(held)
        )
        turns = {i: plan.until.seconds / delay for i, delay in enumerate(delays)}
        steps = sum(turns.values())
    examples = plan.training.epochs * sum(turns[i] * len(each) for i, each in enumerate(held))
    tests = sum(map(len, federation.tests.values())) * (1 - -steps // plan.evaluation.every)
    return examples * (trained - begun) / (BATCHES * size) + tests * (tested - trained) / TESTED


def seconds_by(plan: Run, engine: str, data_dir: Path | None, longest: float) -> tuple[float, str]:
    """Return the seconds with an engine, and which: the run's own if its network or training has no such form."""
    if engine != "loop":
        try:
            return seconds(with_engine(plan, engine), data_dir, longest), engine
        except ValueError:
            pass
    return seconds(named(plan), data_dir, longest), "loop"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="*", default=["*"], help="names of experiments, as in 'rffl table*'")
    parser.add_argument("--engine", choices=ENGINES, default="loop", help="of local training, where a run has it")
    parser.add_argument("--by-tasks", action="store_true", help="time minibatches and an evaluation, not steps")
    parser.add_argument("--longest", type=float, default=4.0, help="seconds for each kind, after which it stops")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command line does
    where = os.environ.get("PHALANX_DATA")
    data_dir = Path(where) if where else None
    known, total = dict[str, tuple[float, str]](), 0.0
    print("experiment, runs of one seed, kinds, core-minutes of one seed, core-hours of three")
    for reproduction in reproductions().values():
        for experiment in reproduction.experiments.values():
            if not any(fnmatch(experiment.title, pattern) for pattern in asked.pattern):
                continue
            kinds = defaultdict[str, list[Run]](list)
            for run in {run.identity: run for run in experiment.exhibit.runs("paper", 0).values()}.values():
                kinds[kind(run)].append(run)
            if not kinds:
                continue
            for name, runs in kinds.items():
                if name not in known:
                    typical = sorted(runs, key=lambda run: run.clients)[len(runs) // 2]
                    if asked.by_tasks:
                        known[name] = seconds_by_tasks(typical, data_dir), "loop"
                    else:
                        known[name] = seconds_by(typical, asked.engine, data_dir, asked.longest)
            number = sum(len(runs) for runs in kinds.values())
            minutes = sum(len(runs) * known[name][0] for name, runs in kinds.items()) / 60
            others = sum(len(runs) for name, runs in kinds.items() if known[name][1] != asked.engine)
            each = [known[name][0] for name in kinds]
            total += SEEDS * minutes / 60
            print(
                f"{experiment.title}, {number}, {len(kinds)}, {minutes:.1f}, {SEEDS * minutes / 60:.2f}"
                f" (a run {min(each):.0f} to {max(each):.0f} s{f'; {others} by the loop' if others else ''})",
                flush=True,
            )
    print(f"in all {total:.1f} core-hours of {SEEDS} seeds")


if __name__ == "__main__":
    main()
