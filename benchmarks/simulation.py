"""Simulated rounds: in one process, in several, and with the clients on a Ray cluster of this machine.

python benchmarks/simulation.py here        # 100 clients x 600 examples, a perceptron of 50,890 parameters
python benchmarks/simulation.py ray         # the same, `phalanx run --ray local`; both with --epochs 10, if asked to
python benchmarks/simulation.py engines     # against plain PyTorch: loop, compiled; 1 and 2 processes
python benchmarks/simulation.py ahead       # an asynchronous run in one and two processes, in turns
python benchmarks/simulation.py matrix      # memory of a round of 10,000 clients, and the cost of a client's turn
python benchmarks/simulation.py turns       # cost of a client's turn of one step, by the loop and compiled
python benchmarks/simulation.py evaluation  # share of the evaluation in runs at defaults, in turns
python benchmarks/simulation.py cell        # a cell of Byzantine CFL's Table 1 at the paper's size, in two processes
python benchmarks/simulation.py networks    # rounds of the papers' convolutional networks, against plain PyTorch
python benchmarks/simulation.py first       # from the command `phalanx run` to the end of its first step
python benchmarks/simulation.py task        # cost of a client on the cluster in addition to its training

Each says how long a round takes on the clock, how much CPU time all processes spend on it together, which does not
depend on who else uses the machine, and how long it takes to the end of the first round.  `benchmarks/rounds.py`
compares rounds with those of other libraries.
"""

import argparse
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the usual name)
from rounds import MARK, cpu_seconds

from phalanx import LocalSGD, Run, Until, simulate
from phalanx.algorithms import RFFL, ByzantineCFL, Catalyst, FedAvg, Standalone
from phalanx.data import Dataset, InMemory
from phalanx.engine.observer import Progress
from phalanx.models import MLP, SattlerCNN
from phalanx.numerics.allocation import keep_freed_memory
from phalanx.runs.federation import Federation
from phalanx.simulation import Normal
from phalanx.simulation.parallel import ProcessExecutors
from phalanx.training import Evaluation
from phalanx.training.compiled.chain_kernels import BFLOAT16
from training import NETWORKS
from training import central as train_plainly

CLIENTS, EXAMPLES, INPUTS, CLASSES, ROUNDS = 100, 600, 784, 10, 8
RECIPE = LocalSGD(batch_size=32, lr=0.05, engine="loop")
MODEL = MLP((64,))


def examples(count: int, seed: int) -> Dataset:
    rng = torch.Generator().manual_seed(seed)
    return Dataset(torch.rand(count, INPUTS, generator=rng), torch.randint(CLASSES, (count,), generator=rng), CLASSES)


def plan(clients: int = CLIENTS, held: int = EXAMPLES, recipe: LocalSGD = RECIPE) -> Run:
    return Run(
        data=InMemory(examples(clients * held, 0), examples(100, 1)), clients=clients, model=MODEL, training=recipe,
        algorithm=FedAvg(), until=Until(ROUNDS), evaluation=Evaluation(every=1000),
    )  # fmt: skip


class Rounds:
    """Records wall time and CPU time at the end of each round."""

    def __init__(self) -> None:
        self.mark = os.environ[MARK] = secrets.token_hex(8)
        self.begun, self.seen = time.perf_counter(), list[tuple[float, float]]()

    def __call__(self, *_: object) -> None:
        self.seen.append((time.perf_counter(), cpu_seconds(self.mark)))

    def show(self, name: str) -> None:
        """Print the medians, without the first round, in which processes warm up."""
        later = list(zip(self.seen[1:], self.seen[2:], strict=False))
        wall, cpu = (statistics.median(b[k] - a[k] for a, b in later) for k in (0, 1))
        first = self.seen[1][0] - self.begun
        print(f"{name}: {wall:.2f} s a round, {cpu:.2f} s of CPU time; {first:.1f} s to the end of the first; ", end="")
        print(f"{CLIENTS} clients x {EXAMPLES} examples, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def here(epochs: int) -> None:
    rounds = Rounds()
    simulate(plan(recipe=replace(RECIPE, epochs=epochs)), observers=[rounds])
    rounds.show("one process")


def on_ray(epochs: int) -> None:
    from phalanx.ray import RayExecutors  # noqa: PLC0415

    rounds = Rounds()
    with RayExecutors("local") as cohorts:
        simulate(plan(recipe=replace(RECIPE, epochs=epochs)), observers=[rounds], executors=cohorts)
        rounds.show(f"{len(cohorts.crew.workers)} workers on Ray")


def central(data: Dataset, batch: int) -> float:
    """Return the seconds of one epoch of plain PyTorch on all examples."""
    module = MODEL.build((INPUTS,), CLASSES)
    optimizer = torch.optim.SGD(module.parameters(), lr=RECIPE.lr)
    begun = time.perf_counter()
    for indices in torch.randperm(len(data)).split(batch):
        optimizer.zero_grad()
        F.cross_entropy(module(data.tensor[indices]), data.y[indices]).backward()
        optimizer.step()
    return time.perf_counter() - begun


def engines(repeats: int = 3) -> None:
    """Print how much faster a round is than an epoch of plain PyTorch on one core; the ways take turns."""
    keep_freed_memory()
    data = examples(CLIENTS * EXAMPLES, 0)
    for batch in (100, 16):
        ratios = dict[str, list[float]]()
        for _ in range(repeats):
            plain = central(data, batch)
            for name, engine, jobs in WAYS:
                recipe, seen = replace(RECIPE, batch_size=batch, engine=engine), list[float]()
                with ProcessExecutors(jobs, after=0.0) as processors:
                    watch = seen.append
                    observers = [lambda _, watch=watch: watch(time.perf_counter())]
                    simulate(plan(recipe=recipe), observers=observers, executors=processors)
                later = [b - a for a, b in pairwise(seen[1:])]
                ratios.setdefault(name, []).append(plain / statistics.median(later))
        shown = ", ".join(f"{n} {statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for n, r in ratios.items())
        print(f"batches of {batch}, against plain PyTorch: {shown}; load {os.getloadavg()[0]:.1f}", flush=True)


ENGINES = ("loop", "compiled")
WAYS = [(f"{engine}, {jobs} process{'es'[: 2 * jobs - 2]}", engine, jobs) for jobs in (1, 2) for engine in ENGINES]


def ahead(steps: int = 400, repeats: int = 3) -> None:
    """Time Catalyst with 40 clients, as in Table 1 of its paper at the scale quick; the ways take turns.

    The figures leave out the first quarter of a run, in which processes start.
    """
    keep_freed_memory()
    recipe = LocalSGD(batch_size=10, lr=0.05, momentum=0.5, clip_norm=5.0)
    for _ in range(repeats):
        shown = list[str]()
        for name, engine, jobs in WAYS:
            small = plan(clients=40, held=150, recipe=replace(recipe, engine=engine))
            evaluation = Evaluation(every=10)
            run = replace(
                small, algorithm=Catalyst(10), latency=Normal(100.0, 20.0), until=Until(steps), evaluation=evaluation
            )
            mark = os.environ[MARK] = secrets.token_hex(8)
            seen = list[tuple[float, float, float]]()

            def look(progress: Progress, mark: str = mark, seen: list[tuple[float, float, float]] = seen) -> None:
                if progress.step in (steps // 4, steps):
                    seen.append((time.perf_counter(), cpu_seconds(mark), time.process_time()))

            with ProcessExecutors(jobs, after=0.0) as processors:
                simulate(run, executors=processors, observers=[look])
            wall, cpu, here = (after - before for before, after in zip(*seen, strict=True))
            shown.append(f"{name} {wall:.2f} s, CPU time {cpu:.2f} s, of it {here:.2f} s here")
        print("; ".join(shown), f"; load {os.getloadavg()[0]:.1f}", flush=True)


def matrix(clients: int) -> None:
    """Show the peak memory of rounds of clients that take one step on one example, and the CPU time of a turn."""
    page, seen = resource.getpagesize(), list[tuple[float, int]]()

    def look(_: object) -> None:
        held = int(Path("/proc/self/statm").read_text().split()[1]) * page
        seen.append((time.process_time(), held))

    run = plan(clients=clients, held=1, recipe=LocalSGD(steps=1, batch_size=1))
    simulate(run, observers=[look])
    size = clients * 4 * sum(p.numel() for p in MODEL.build((INPUTS,), CLASSES).parameters())
    status = Path("/proc/self/status").read_text()  # `getrusage` includes the parent
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024 - seen[0][1]
    turn = statistics.median((b[0] - a[0]) / clients for a, b in pairwise(seen[1:]))
    print(f"{clients} clients: peak {peak / size:.2f} x the matrix of {size / 1e6:.0f} MB, ", end="")
    print(f"{1e6 * turn:.0f} microseconds of CPU time a turn; load {os.getloadavg()[0]:.1f}")


def turns(clients: int = 2000, repeats: int = 3) -> None:
    """Print the CPU time of a client's turn of one step on one example, least and median of five rounds."""
    keep_freed_memory()
    for _ in range(repeats):
        shown = list[str]()
        for engine in ENGINES:
            seen = list[float]()
            run = plan(clients=clients, held=1, recipe=LocalSGD(steps=1, batch_size=1, engine=engine))
            simulate(replace(run, until=Until(6)), observers=[lambda _, seen=seen: seen.append(time.process_time())])
            each = [1e6 * (b - a) / clients for a, b in pairwise(seen[1:])]
            shown.append(f"{engine} {min(each):.0f} ({statistics.median(each):.0f})")
        print(f"microseconds a turn: {', '.join(shown)}; load {os.getloadavg()[0]:.1f}", flush=True)


def evaluation(repeats: int = 3) -> None:
    """Print the CPU time of runs of 30 steps at defaults, and the share of it that evaluation takes."""
    keep_freed_memory()
    spent, evaluate = [0.0], Federation.evaluate

    def timed(*arguments: Any) -> Any:
        begun = time.process_time()
        try:
            return evaluate(*arguments)
        finally:
            spent[0] += time.process_time() - begun

    Federation.evaluate = timed  # type: ignore[method-assign]
    for _ in range(repeats):
        shown = list[str]()
        for algorithm in (FedAvg(), RFFL(challenge=None), Standalone()):
            spent[0], begun = 0.0, time.process_time()
            simulate(Run(algorithm=algorithm, until=Until(30)))
            total = time.process_time() - begun
            shown.append(f"{type(algorithm).__name__} {100 * spent[0] / total:.1f} % of {total:.2f} s")
        print(f"{', '.join(shown)}; load {os.getloadavg()[0]:.1f}", flush=True)


def cell(rounds: int = 4, of: int = 200) -> None:
    """Time rounds of Table 1 of Sattler et al., 100 clients x 600 images, in two processes; the ways take turns."""
    keep_freed_memory()
    shape, held = (1, 28, 28), Dataset(torch.rand(60_000, 1, 28, 28), torch.randint(CLASSES, (60_000,)), CLASSES)
    plain = LocalSGD(batch_size=100, lr=0.01, engine="loop")
    recipes = {"float32": plain, "compiled": replace(plain, engine="compiled")}
    recipes["bfloat16"] = replace(plain, precision="bfloat16")
    if BFLOAT16:
        recipes["compiled bfloat16"] = replace(plain, engine="compiled", precision="bfloat16")
    for name, recipe in recipes.items():
        run = Run(
            data=InMemory(held, held.of(torch.arange(10_000))), clients=CLIENTS, model=SattlerCNN(), training=recipe,
            algorithm=ByzantineCFL(), until=Until(rounds + 1), evaluation=Evaluation(every=10),
        )  # fmt: skip
        seen = list[float]()
        with ProcessExecutors(2, after=0.0) as processors:
            simulate(run, executors=processors, observers=[lambda _, seen=seen: seen.append(time.perf_counter())])
        each = [b - a for a, b in pairwise(seen[2:])]
        print(f"{name}, images of {shape}: {statistics.median(each):.2f} s a round ({min(each):.2f} to ", end="")
        print(
            f"{max(each):.2f}), {of * statistics.median(each) / 60:.1f} minutes for {of}; load {os.getloadavg()[0]:.1f}"
        )


def networks(clients: int = 20, rounds: int = 4, repeats: int = 3) -> None:
    """Print how much faster compiled rounds in two processes are than an epoch of plain PyTorch on one core."""
    keep_freed_memory()
    for model, shape, batch, count in NETWORKS:
        if isinstance(model, MLP):
            continue
        held = count // clients
        data = Dataset(torch.rand(count, *shape), torch.randint(CLASSES, (count,)), CLASSES)
        plain = LocalSGD(batch_size=batch, lr=0.01, engine="compiled")
        recipes = {"float32": plain} | ({"bfloat16": replace(plain, precision="bfloat16")} if BFLOAT16 else {})
        run = Run(
            data=InMemory(data, data.of(torch.arange(100))), clients=clients, model=model, training=plain,
            algorithm=FedAvg(), until=Until(rounds + 1), evaluation=Evaluation(every=1000),
        )  # fmt: skip
        ratios: dict[str, list[float]] = {name: [] for name in recipes}
        for _ in range(repeats):
            for name, recipe in recipes.items():
                begun = time.perf_counter()
                train_plainly(model, data, batch)
                alone, seen = time.perf_counter() - begun, list[float]()
                with ProcessExecutors(2, after=0.0) as processors:
                    watch = [lambda _, seen=seen: seen.append(time.perf_counter())]
                    simulate(replace(run, training=recipe), executors=processors, observers=watch)
                ratios[name].append(alone / statistics.median(b - a for a, b in pairwise(seen[1:])))
        shown = ", ".join(f"{n} {statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for n, r in ratios.items())
        print(f"{type(model).__name__}, {clients} clients x {held} images, batches of {batch}: {shown}; ", end="")
        print(f"load {os.getloadavg()[0]:.1f}", flush=True)


FIRST = """
import gc, sys, time
from phalanx.cli.main import main
gc.disable()  # as the command does before it imports
before = time.process_time()
import torch
imported = time.process_time() - before
from phalanx.algorithms import FedAvg
step, seen = FedAvg.step, []
FedAvg.step = lambda *arguments: [step(*arguments), seen.append(time.process_time())][0]
sys.argv[1:] = ["run", "--until.steps", "1", "--folder", sys.argv[1]]
main()
print("CPU", seen[0], imported, time.process_time())
"""


def first(turns: int = 5) -> None:
    """Show the CPU time of new processes until the end of the first step, of it torch's import; and until their end."""
    figures = []
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", FIRST, str(Path(folder) / "run")]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        figures.append([float(figure) for figure in done.stdout.splitlines()[-1].split()[1:]])
    step, imported, end = map(statistics.median, zip(*figures, strict=True))
    print(f"CPU time, medians of {turns}: until the end of the first step {step:.2f} s, of it importing torch ", end="")
    print(f"{imported:.2f}; until the end of the command {end:.2f}; load {os.getloadavg()[0]:.1f}")


def task() -> None:
    """Time rounds of clients with one example, so that training takes almost no time."""
    from phalanx.ray import RayExecutors  # noqa: PLC0415

    recipe, costs = LocalSGD(steps=1, batch_size=1), dict[str, tuple[float, float]]()

    def measured(name: str, run: Callable[[Rounds], object]) -> None:
        rounds = Rounds()
        run(rounds)
        later = list(zip(rounds.seen[1:], rounds.seen[2:], strict=False))
        wall, cpu = (statistics.median(1e3 * (b[k] - a[k]) / CLIENTS for a, b in later) for k in (0, 1))
        costs[name] = wall, cpu

    with RayExecutors("local") as cohorts:
        measured("Ray", lambda rounds: simulate(plan(held=1, recipe=recipe), observers=[rounds], executors=cohorts))
    measured("here", lambda rounds: simulate(plan(held=1, recipe=recipe), observers=[rounds]))
    for name, (wall, cpu) in costs.items():
        print(f"{name}: {wall:.2f} ms a client, {cpu:.2f} ms of CPU time, {MODEL}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = ["here", "ray", "engines", "ahead", "matrix", "first", "task", "turns", "evaluation", "cell", "networks"]
    parser.add_argument("what", choices=ways)
    parser.add_argument("--epochs", type=int, default=1, help="of local training, here and on Ray")
    parser.add_argument("--clients", type=int, default=10_000, help="of the matrix")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = {"here": lambda: here(options.epochs), "ray": lambda: on_ray(options.epochs)}
    measured |= {"engines": engines, "task": task, "ahead": ahead, "first": first}
    measured |= {"turns": turns, "evaluation": evaluation, "cell": cell, "networks": networks}
    (measured | {"matrix": lambda: matrix(options.clients)})[options.what]()
