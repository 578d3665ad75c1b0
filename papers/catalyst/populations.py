"""The data and the speed of each client."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.data import MNIST, Dataset, Groups, Partition, Source
from phalanx.data.partition import Ints
from phalanx.fields import NonNegativeInt, PositiveInt
from phalanx.rng import numpy_generator
from phalanx.simulation import Latency, Normal
from phalanx.simulation.latency import Workload
from phalanx.wording import plural

COMMON, ALL = 0, 1  # groups of `LabelGroups`


@dataclass(frozen=True)
class Subset(Source):
    """Some examples of a data set, drawn at random.

    Args:
        source: the data set.
        examples: how many train examples, at most those that there are.
        tests: how many test examples; all if not given.
        seed: of the draw.
    """

    public_name: ClassVar[str] = "papers.catalyst.Subset"

    source: Source = MNIST()
    examples: int = 6000
    tests: int | None = None
    seed: int = 0

    @override
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
        drawn = numpy_generator(self.seed, "subset", part).choice(len(data), count, replace=False)
        return data.of(torch.from_numpy(drawn).sort().values)


@dataclass(frozen=True)
class LabelsEach(Partition):
    """Clients with this number of labels each, and about equal numbers of examples.

    Of each block of as many clients as there are labels, the first one holds the first `labels` of them in a random
    order, the next ones begin three places further on, each in its turn, going round.  So each label is held equally
    often; its examples are dealt evenly to its holders.  With ten labels, clients that are neighbours miss different
    ones.

    Args:
        labels: that a client holds, at least 1, and at most as many as there are.
    """

    public_name: ClassVar[str] = "papers.catalyst.LabelsEach"

    labels: PositiveInt = 7

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deal the shuffled examples of one label after another to its holders.

        Raises:
            ValueError: there are fewer labels, or a label that nobody holds.
        """
        classes = int(labels.max(initial=-1)) + 1
        if self.labels > classes:
            raise ValueError(f"labels must be at most the number of labels, {classes}, got {self.labels}.")
        holds = self.holdings(classes, clients, rng)
        if not (held := holds.any(axis=0)).all():
            missing = ", ".join(map(str, np.flatnonzero(~held)))
            raise ValueError(
                f"{plural(clients, 'client')} with {plural(self.labels, 'label')} each leave {missing} to nobody. Take "
                "more of either."
            )
        owners = np.empty_like(labels)
        for c in range(classes):
            members = rng.permutation(np.flatnonzero(labels == c))
            owners[members] = np.resize(rng.permutation(np.flatnonzero(holds[:, c])), len(members))
        return owners

    def holdings(
        self, classes: int, clients: int, rng: np.random.Generator
    ) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Return whether a client holds a label, (clients, classes)."""
        holds = np.zeros((clients, classes), dtype=bool)
        order = np.arange(classes)
        for client in range(clients):
            if client % classes == 0:
                order = rng.permutation(classes)
            holds[client, order[(3 * client + np.arange(self.labels)) % classes]] = True
        return holds


@dataclass(frozen=True)
class RareLabels(Partition):
    """Labels held by the last clients only; the other examples are dealt evenly to all clients.

    Args:
        rare: labels that only the last clients hold.
        holders: how many clients these are.
    """

    public_name: ClassVar[str] = "papers.catalyst.RareLabels"

    rare: tuple[int, ...] = (8, 9)
    holders: int = 8

    @override
    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deal the shuffled examples of both kinds in turn.

        Raises:
            ValueError: the holders are all clients, or none.
        """
        _check_holders(self.holders, clients)
        rare = np.isin(labels, self.rare)
        owners = np.empty_like(labels)
        for mask, first in ((rare, clients - self.holders), (~rare, 0)):
            members = rng.permutation(np.flatnonzero(mask))
            owners[members] = np.resize(np.arange(first, clients), len(members))
        return owners


@dataclass(frozen=True)
class LabelGroups(Groups):
    """Two groups, so that accuracy is measured on common labels and on all labels: 0 sees the common ones, 1 sees all.

    Nothing contradicts.  It goes with `RareLabels`, of whose clients those of group 0 hold no others.

    Args:
        rare: labels that group 0 does not see.
        holders: how many clients, the last ones, are of group 1.
    """

    public_name: ClassVar[str] = "papers.catalyst.LabelGroups"

    rare: tuple[int, ...] = (8, 9)
    holders: int = 8

    @property
    @override
    def number(self) -> int:
        return 2

    @override
    def of(self, clients: int) -> tuple[int, ...]:
        """Return the group of each client: the last ones are of group 1.

        Raises:
            ValueError: the holders are all clients, or none.
        """
        _check_holders(self.holders, clients)
        return (COMMON,) * (clients - self.holders) + (ALL,) * self.holders

    @override
    def seen_by(self, group: int, data: Dataset) -> Dataset:
        if group == ALL:
            return data
        rare = torch.isin(data.y, torch.tensor(self.rare, device=data.y.device))
        return data.of(~rare)


def _check_holders(holders: int, clients: int) -> None:
    """Raise ValueError if the holders are all clients, or none."""
    if not 1 <= holders < clients:
        raise ValueError(f"holders must lie in 1..{clients - 1}, got {holders}.")


@dataclass(frozen=True)
class LateOnes(Latency):
    """A latency under which the last clients are slower.

    Args:
        latency: how long clients would take.
        late: how many clients, the last ones, are slower.
        factor: by which they are slower.
    """

    public_name: ClassVar[str] = "papers.catalyst.LateOnes"

    latency: Latency = Normal(100.0, 20.0)
    late: NonNegativeInt = 8
    factor: Annotated[float, Meta(ge=1)] = 3.0

    @override
    def seconds(self, task: Workload, seed: int) -> float:
        slow = task.client >= task.clients - self.late
        return self.latency.seconds(task, seed) * (self.factor if slow else 1.0)
