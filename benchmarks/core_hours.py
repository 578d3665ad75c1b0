"""Core-hours of every table and figure at its paper's size: the first steps of its runs, times their number.

python benchmarks/core_hours.py                      # all papers
python benchmarks/core_hours.py 'clustered-fl *'     # some experiments
python benchmarks/core_hours.py --kinds 20           # more runs of each, 6 by default
python benchmarks/core_hours.py --engine compiled    # as if they trained by another engine, where the network has it

Of the runs of one seed, some are timed, spread evenly over their list, since most differ in little but the attack or
the rule.  Each takes steps for some seconds of processor time, in one process of one thread; the first step, which may
compile code, counts as a part of the start.  Runs that two experiments share count in both.
"""

import argparse
import os
import time
import warnings
from fnmatch import fnmatch
from pathlib import Path

import torch

from phalanx import Run, simulate
from phalanx.core import Progress, Stop
from phalanx.reproduce.experiment import reproductions
from phalanx.runs.engines import ENGINES, with_engine

LEAST_STEPS = 3  # of a run; the first of them is left out
LEAST_SHARE = 0.15  # of a run's virtual time, since clients with similar speeds answer in waves
LONGER = 15  # times as long as other runs may take until that share
SEEDS = 3  # for which hours are given


def seconds(plan: Run, data_dir: Path | None, longest: float) -> float:
    """Return the processor's seconds that a run takes, from its first steps."""
    marks, begun = list[tuple[float, float]](), time.process_time()
    waves = plan.until.seconds and not plan.algorithm.synchronous

    def watch(progress: Progress) -> None:
        steps = progress.step / plan.until.limit if plan.until.limit else 0.0
        virtual = progress.now / plan.until.seconds if plan.until.seconds else 0.0
        marks.append((max(steps, virtual), time.process_time()))
        wanted = longest if not waves or virtual >= LEAST_SHARE else LONGER * longest
        if progress.step >= LEAST_STEPS and time.process_time() - begun > wanted:
            raise Stop

    with warnings.catch_warnings(action="ignore"):
        simulate(plan, data_dir=data_dir, observers=[watch], models=None)
    moved = [mark for mark in marks if mark[0] > 0]
    (share, first), (last_share, last) = moved[0], moved[-1]
    share = 0.0 if waves else share
    if last_share >= 1 or last_share <= share:
        return last - begun
    return first - begun + (1 - share) * (last - first) / (last_share - share)


def seconds_by(plan: Run, engine: str, data_dir: Path | None, longest: float) -> float:
    """Return the seconds with an engine; with the run's own if its network, training or algorithm has no such form."""
    try:
        return seconds(with_engine(plan, engine), data_dir, longest)
    except ValueError:
        return seconds(plan, data_dir, longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="*", help="names of experiments, as in 'rffl table*'")
    parser.add_argument("--kinds", type=int, default=6, help="runs of each experiment that are timed, at most")
    parser.add_argument("--engine", choices=ENGINES, default="loop", help="of local training, where a run has it")
    parser.add_argument("--longest", type=float, default=4.0, help="seconds for each, after which it stops")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    where = os.environ.get("PHALANX_DATA")
    data_dir = Path(where) if where else None
    total = 0.0
    print("experiment, runs of one seed, timed, core-minutes of one seed, core-hours of three")
    for reproduction in reproductions().values():
        for experiment in reproduction.experiments.values():
            if not fnmatch(experiment.title, asked.pattern):
                continue
            runs = list({run.identity: run for run in experiment.exhibit.runs("paper", 0).values()}.values())
            if not runs:
                continue
            chosen = (
                [runs[k * len(runs) // asked.kinds] for k in range(asked.kinds)] if len(runs) > asked.kinds else runs
            )
            found = [seconds_by(run, asked.engine, data_dir, asked.longest) for run in chosen]
            minutes = sum(found) / len(found) * len(runs) / 60
            total += SEEDS * minutes / 60
            print(
                f"{experiment.title}, {len(runs)}, {len(found)}, {minutes:.1f}, {SEEDS * minutes / 60:.2f}"
                f" (a run {min(found):.0f} to {max(found):.0f} s)",
                flush=True,
            )
    print(f"in all {total:.1f} core-hours of {SEEDS} seeds")


if __name__ == "__main__":
    main()
