"""A federation on the digits whose groups of clients see different data."""

from collections.abc import Mapping

import torch

import phalanx
from phalanx.core import Algorithm, AnyState, Until, Vector
from phalanx.data import Dataset, Digits, Groups, Uniform
from phalanx.engine import LoopSettings
from phalanx.models import MLP
from phalanx.rng import borrowed, numpy_generator
from phalanx.simulation import Simulation
from phalanx.training.evaluation import evaluate
from phalanx.training.local import LocalTask
from phalanx.training.sgd import LocalSGD, Trainer
from phalanx.training.vector import FlatModule


class Divided:
    """Clients in groups; each is tested on the test set as its group sees it.

    Args:
        clients: number of them.
        groups: how they differ; not at all if None.
        seed: the run's.
        options: of the simulation.
    """

    def __init__(self, clients: int, groups: Groups | None = None, seed: int = 0) -> None:
        train, self.test = Digits().load()
        parts = Uniform().split(train.y, clients, numpy_generator(seed, "partition"))
        self.groups, self.seed = groups, seed
        self.group = dict(enumerate(groups.of(clients) if groups else (0,) * clients))
        self.data = {i: self.seen(i, train.of(part)) for i, part in enumerate(parts)}
        with borrowed(seed, "model"):
            self.model = FlatModule(MLP((32,)).build((1, 8, 8), 10))
        self.start = self.model.read()
        self.trainer = Trainer(self.model, LocalSGD(epochs=3, lr=0.1), seed)

    def seen(self, client: int, data: Dataset) -> Dataset:
        return self.groups.seen_by(self.group[client], data) if self.groups else data

    def run(self, algorithm: Algorithm, until: int, observers=(), **options) -> AnyState:
        self.transport = Simulation(algorithm, self.trainer, self.data, seed=self.seed, **options)
        return phalanx.run(
            algorithm, self.transport, self.start, LoopSettings(until=Until.of(until)), observers=observers
        )

    def update(self, client: int, model: Vector, turn: int = 1000) -> Vector:
        delta = torch.empty_like(model)
        self.trainer.train(LocalTask(client, turn, 0, model, delta), self.data[client])
        return delta

    def accuracy(self, client: int, model: Vector) -> float:
        return evaluate(self.model, model, self.seen(client, self.test)).accuracy

    def accuracies(self, algorithm: Algorithm, state: AnyState) -> Mapping[int, float]:
        served = {i: self.transport.model_of(i, algorithm.download(state, i)) for i in self.data}
        return {i: self.accuracy(i, model) for i, model in served.items()}

    def true_groups(self) -> set[frozenset[int]]:
        return {frozenset(i for i, g in self.group.items() if g == group) for group in self.group.values()}
