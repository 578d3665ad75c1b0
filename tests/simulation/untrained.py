"""Federations whose clients do not train: each sends one constant, so that a run takes no time."""

from collections.abc import Sequence
from typing import Any

import torch

import phalanx
from phalanx.algorithms import FedAsync, FedAvg
from phalanx.core import Algorithm, Until
from phalanx.data import Dataset
from phalanx.engine import Guard, LoopSettings
from phalanx.engine.observer import Progress
from phalanx.models import MLP
from phalanx.rng import borrowed
from phalanx.simulation import Latency, Simulation
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule

D = 6  # parameters of the model


class Untrained(Trainer):
    """Client i changes each parameter by i + 1."""

    def train(self, task, data):
        task.row.fill_(task.client + 1.0)
        return 1.0


def federation(algorithm: Algorithm, clients: int = 4, examples: int = 2, **options: Any) -> Simulation:
    with borrowed(0, "model"):
        model = FlatModule(MLP(()).build((2,), 2))
    data = Dataset(torch.zeros(examples, 2), torch.zeros(examples, dtype=torch.int64), 2)
    return Simulation(algorithm, Untrained(model, LocalSGD(), 0), dict.fromkeys(range(clients), data), **options)


def go(algorithm: Algorithm | None = None, until: Any = 10, guard: Any = None, **options: Any) -> list[Progress]:
    """What observers see of a run; the run's error, if it has one, goes on its way."""
    algorithm = algorithm or FedAsync()
    seen = list[Progress]()
    simulation = federation(algorithm, **options)
    phalanx.run(
        algorithm,
        simulation,
        torch.zeros(D),
        LoopSettings(until=Until.of(until), guard=guard or Guard()),
        observers=[seen.append],
    )
    return seen


def arrivals(seen: Sequence[Progress]) -> list[tuple[float, tuple[int, ...], tuple[int, ...]]]:
    """When a step was taken, on whose updates, of which versions."""
    return [(p.now, p.updates.clients, p.updates.versions) for p in seen if p.updates is not None]


def news(seen: Sequence[Progress], kind: str) -> list[tuple[float, dict[int, str]]]:
    """When an answer was invalid or lost, and why."""
    return [(p.now, dict(getattr(p, kind))) for p in seen if getattr(p, kind)]


class ById(Latency):
    """Client i takes the i-th of these times, for each task."""

    def __init__(self, *times: float) -> None:
        self.times = times

    def seconds(self, task, seed):
        return self.times[task.client]


ROUNDS, ARRIVALS = FedAvg(), FedAsync()
