"""Run servers for a long time on tiny models, and see whether memory or the time of a step grows.

python tests/reliability/soak.py [--arrivals 100000] [--rounds 10000] [--algorithms FedAsync RFFL]

Twenty clients that do not train send noise around one direction, at random times; one is far off.  The history goes to
a file, as in a run.  Each algorithm is a process of its own.  Printed are the resident memory after a tenth of the
steps and at the end, and the processor time of a step in the last tenth over that in the second (in the first, caches
are filled).  A growth of more than 8 MiB, or a ratio above 1.5, is a failure.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import phalanx
from algorithms.test_common import ALGORITHMS
from phalanx import LocalSGD, Until
from phalanx.algorithms import (
    BASGD,
    RFFL,
    AFLGuard,
    AsyncFilter,
    AsyncMomentum,
    AsyncRFFL,
    BenignClusters,
    ByzantineCFL,
    Catalyst,
    ClusteredFL,
    FedAsync,
    FedAvg,
    FedBuff,
    FoolsGold,
    Kardam,
    PerCluster,
    QFedAvg,
    Quorum,
    Rewarded,
    SignSGD,
    ZenoPlusPlus,
)
from phalanx.core import Algorithm
from phalanx.data import Dataset
from phalanx.engine import LoopSettings
from phalanx.engine.observer import Progress
from phalanx.models import MLP
from phalanx.rng import borrowed, generator
from phalanx.runs.history import History
from phalanx.simulation import Lognormal, Simulation
from phalanx.training.sgd import Trainer
from phalanx.training.vector import FlatModule

CLIENTS, D = 20, 6
MOST_MEMORY, MOST_RATIO = 8.0, 1.5  # MiB of growth, and of the last tenth to the second
LONG = (  # the kinds that are run, in their first setting of `ALGORITHMS`
    FedAsync, FedBuff, Kardam, BASGD, AsyncMomentum, AsyncFilter, ZenoPlusPlus, AFLGuard, Catalyst, AsyncRFFL, Quorum,
    Rewarded, PerCluster, FedAvg, ByzantineCFL, BenignClusters, RFFL, ClusteredFL, FoolsGold, QFedAvg, SignSGD,
)  # fmt: skip


class Noise(Trainer):
    """Clients change each parameter by 0.01 and noise of their own; client 0 by 5."""

    def train(self, task, data):
        task.row.normal_(0.01, 0.005, generator=generator(task.turn, "soak", task.client))
        if task.client == 0:
            task.row.fill_(5.0)
        return 1.0


class Sample(NamedTuple):
    """A look at a process."""

    step: int
    memory: float  # MiB, resident
    seconds: float  # of the processor


class Growth(NamedTuple):
    """What became of a long run."""

    steps: int
    before: float  # MiB after a tenth
    after: float  # MiB at the end
    each: float  # microseconds of a step in the last tenth
    ratio: float  # of that to a step in the second tenth

    @property
    def flat(self) -> bool:
        return self.after - self.before < MOST_MEMORY and self.ratio < MOST_RATIO

    def __str__(self) -> str:
        memory = f"{self.before:.1f} to {self.after:.1f} MiB"
        times = f"{self.each:.0f} us each at the end, {self.ratio:.2f} x the second tenth"
        return f"{self.steps:,} steps, {memory}, {times}"


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


class Watch:
    """An observer that looks ten times."""

    def __init__(self, steps: int) -> None:
        self.every, self.samples = steps // 10, list[Sample]()

    def __call__(self, progress: Progress) -> None:
        if progress.updates is not None and progress.step % self.every == 0:
            self.samples.append(Sample(progress.step, resident(), time.process_time()))

    def growth(self) -> Growth:
        first, second, *_, last_but_one, last = self.samples
        each = (last.seconds - last_but_one.seconds) / self.every
        ratio = (last.seconds - last_but_one.seconds) / (second.seconds - first.seconds)
        return Growth(last.step, first.memory, last.memory, 1e6 * each, ratio)


def carried_out(algorithm: Algorithm, steps: int, folder: Path, observers: Sequence[object]) -> None:
    """A run of so many steps."""
    with borrowed(0, "model"):
        model = FlatModule(MLP(()).build((2,), 2))
    data = dict.fromkeys(range(CLIENTS), Dataset(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), 2))
    transport = Simulation(algorithm, Noise(model, LocalSGD(), 0), data, latency=Lognormal(sigma=0.5, each_turn=True))
    own = (lambda model, version: torch.full((D,), 0.01)) if algorithm.traits.needs_reference else None
    history = History(algorithm.traits.observed, path=folder / "history.jsonl")
    with history:
        phalanx.run(
            algorithm,
            transport,
            torch.zeros(D),
            LoopSettings(until=Until(steps)),
            reference=own,
            observers=[history, *observers],
        )


def soaked(number: int, steps: int, answers: "multiprocessing.Queue[Growth]") -> None:
    torch.set_num_threads(1)
    watch = Watch(steps)
    with tempfile.TemporaryDirectory(prefix="phalanx-soak-") as made:
        carried_out(ALGORITHMS[number], steps, Path(made), [watch])
    answers.put(watch.growth())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arrivals", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--algorithms", nargs="+", default=[kind.__name__ for kind in LONG])
    options = parser.parse_args()
    processes = multiprocessing.get_context("fork")
    grown = 0
    for name in options.algorithms:
        number, algorithm = next((k, a) for k, a in enumerate(ALGORITHMS) if type(a).__name__ == name)
        answers = processes.Queue()
        steps = options.rounds if algorithm.traits.synchronous else options.arrivals
        child = processes.Process(target=soaked, args=(number, steps, answers))
        child.start()
        child.join()
        if child.exitcode:
            grown += 1
            print(f"{name}: ended with {child.exitcode}", flush=True)
            continue
        found: Growth = answers.get()
        grown += not found.flat
        print(f"{'' if found.flat else 'GROWS '}{algorithm.title}: {found}", flush=True)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
