"""What the experiments share: how clients train, and data of which every client holds a few."""

from dataclasses import dataclass
from pathlib import Path

import torch

from phalanx.algorithms import ClusteredFL
from phalanx.data import MNIST, Dataset, Source
from phalanx.rng import numpy_generator
from phalanx.training import LocalSGD

NEVER = ClusteredFL(min_round=1_000_000)  # federated learning, seen through the eyes of clustered federated learning
BATCH, EPOCHS = 100, 3  # of all experiments of the paper
SILENT = (
    "The paper tells no learning rates and no sizes of its networks: lr = {lr:g} and {model} are ours. Pixels are "
    "standardised."
)


@dataclass(frozen=True)
class Drawn(Source):
    """Some examples of a data set, drawn at random.

    Args:
        source: the data set.
        examples: how many train examples, at most those that there are.
        tests: how many test examples; all if not given.
        seed: of the draw.
    """

    source: Source = MNIST()
    examples: int = 2000
    tests: int | None = None
    seed: int = 0

    def load(self, data_dir: Path | None = None) -> tuple[Dataset, Dataset]:
        """See `Source`.

        Raises:
            ValueError: there are fewer examples.
        """
        train, test = self.source.load(data_dir)
        return self._some(train, self.examples, "train"), self._some(test, self.tests or len(test), "test")

    def _some(self, data: Dataset, count: int, part: str) -> Dataset:
        if not 1 <= count <= len(data):
            raise ValueError(f"The {part} part has {len(data):,} examples, of which {count:,} cannot be drawn.")
        drawn = numpy_generator(self.seed, "drawn", part).choice(len(data), count, replace=False)
        return data.of(torch.from_numpy(drawn).sort().values)


def training(lr: float, batch_size: int = BATCH) -> LocalSGD:
    """Three local epochs."""
    return LocalSGD(epochs=EPOCHS, batch_size=batch_size, lr=lr)
