"""Cost of the engine per arrival, beyond the algorithm's own arithmetic.

python benchmarks/engine.py [--clients 100 1000 10000] [--arrivals 5000] [--repeats 5] [--profile]

Training is switched off: a client's change is one constant, written into its row.  What is left is the loop, the books,
the guard, the virtual clock and the simulated clients, on a model of 10 parameters.  An arrival takes from one call of
an observer to the next; the time of `FedAsync.step`, found by replaying steps alone, is taken off.  Both are processor
time of the one thread that computes, so that others on the machine do not count, though they still cool its caches; and
medians over arrivals and over repeats.  Microseconds.
"""

import argparse
import cProfile
import itertools
import pstats
import statistics
import time
from dataclasses import dataclass

import torch

import phalanx
from phalanx.algorithms import FedAsync
from phalanx.algorithms.fedasync import FedAsyncState
from phalanx.attacks import Attack, Replay
from phalanx.core import Until, Updates, Vector
from phalanx.data import Dataset
from phalanx.engine import LoopSettings
from phalanx.engine.observer import Progress
from phalanx.models import MLP
from phalanx.simulation import Availability, Constant, Crashes, Deadline, Latency, Lognormal, OnOff, Simulation
from phalanx.training.local import LocalTask
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule


class NoTraining(Trainer):
    """Changes every parameter by the same small number."""

    def train(self, task: LocalTask, data: Dataset) -> float:
        task.row.fill_(1e-3)
        return 1.0


@dataclass(frozen=True)
class Setting:
    """Departures and delays of clients."""

    name: str
    latency: Latency
    availability: Availability | None = None
    deadline: Deadline | None = None
    attack: Attack | None = None
    byzantine: float = 0.0


SETTINGS = (
    Setting("constant latency", Constant()),
    Setting("lognormal, drawn once", Lognormal()),
    Setting("lognormal, each turn", Lognormal(each_turn=True)),
    Setting("with a deadline", Lognormal(), deadline=Deadline(30.0)),
    Setting("clients leave and return", Lognormal(), OnOff(20.0, 10.0)),
    Setting("tasks crash", Lognormal(), Crashes(0.1, 5.0)),
    Setting("a tenth replay", Lognormal(), attack=Replay(), byzantine=0.1),
)


def federation(clients: int, setting: Setting) -> tuple[Simulation, Vector]:
    """Return a simulation of clients that hold one example and do not train."""
    model = FlatModule(MLP(()).build((4,), 2))
    one = Dataset(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64), 2)
    simulation = Simulation(
        FedAsync(),
        NoTraining(model, LocalSGD(), 0),
        dict.fromkeys(range(clients), one),
        latency=setting.latency,
        availability=setting.availability,
        deadline=setting.deadline,
        attack=setting.attack,
        byzantine=frozenset(range(int(setting.byzantine * clients))),
    )
    return simulation, model.read()


def arrival(clients: int, arrivals: int, setting: Setting) -> tuple[float, float]:
    """Return microseconds per arrival of engine and algorithm, without the first round, which starts all clients."""
    simulation, start = federation(clients, setting)
    warm, times = clients // 10 + 200, list[float]()
    steps = list[tuple[FedAsyncState, Updates]]()

    def watch(progress: Progress) -> None:
        if progress.updates is not None and progress.step < warm:
            steps.append((progress.state, progress.updates))
        elif progress.updates is not None:
            times.append(time.thread_time())

    phalanx.run(FedAsync(), simulation, start, LoopSettings(until=Until.of(warm + arrivals)), observers=[watch])
    whole = statistics.median(later - before for before, later in itertools.pairwise(times))
    own = statistics.median(itertools.starmap(replayed, steps))
    return 1e6 * (whole - own), 1e6 * own


def replayed(state: FedAsyncState, updates: Updates) -> float:
    """Return the seconds of a step."""
    begun = time.thread_time()
    FedAsync().step(state, updates)
    return time.thread_time() - begun


def addition(times: int = 20_000) -> float:
    """Return the microseconds to add two tensors of 10 numbers."""
    a, b = torch.ones(10), torch.ones(10)
    seconds = list[float]()
    for _ in range(times):
        begun = time.thread_time()
        torch.add(a, b)
        seconds.append(time.thread_time() - begun)
    return 1e6 * statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--arrivals", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="profile the first setting")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.profile:
        with cProfile.Profile() as profile:
            arrival(options.clients[-1], options.arrivals, SETTINGS[0])
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        return
    what = f"torch {torch.__version__}, 1 thread, {options.arrivals:,} arrivals, median of {options.repeats}"
    print(f"{what}; a small addition takes {addition():.1f} us")
    print(f"{'':<26}" + "".join(f"{f'{n:,} clients':>16}" for n in options.clients) + f"{'FedAsync itself':>18}")
    for setting in SETTINGS:
        runs = {n: [arrival(n, options.arrivals, setting) for _ in range(options.repeats)] for n in options.clients}
        engine = [statistics.median(e for e, _ in runs[n]) for n in options.clients]
        own = statistics.median(a for n in options.clients for _, a in runs[n])
        print(f"{setting.name:<26}" + "".join(f"{e:>16.1f}" for e in engine) + f"{own:>18.1f}", flush=True)


if __name__ == "__main__":
    main()
