"""Which client holds what, and how fast it is."""

from dataclasses import dataclass

import numpy as np

from phalanx.data import Dataset, Groups, Partition
from phalanx.data.partition import Ints
from phalanx.simulation import Latency, Normal
from phalanx.simulation.latency import Task

COMMON, RARE = 0, 1  # groups of `LabelGroups`


@dataclass(frozen=True)
class LabelsEach(Partition):
    """Every client holds examples of so many labels, and all clients hold as many examples, or nearly.

    Of each block of as many clients as there are labels, the first one holds the first `labels` of them in a random
    order, the next ones begin three places further on, each in its turn, going round.  So each label is held equally
    often; its examples are dealt evenly to its holders.  With ten labels, clients that are neighbours miss different
    ones.

    Args:
        labels: that a client holds, at least 1, and at most as many as there are.
    """

    labels: int = 7

    def __post_init__(self) -> None:
        if self.labels < 1:
            raise ValueError(f"labels must be at least 1, got {self.labels}.")

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deals the shuffled examples of one label after the other to its holders.

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
                f"{clients} clients with {self.labels} labels each leave {missing} to nobody. Take more of either."
            )
        owners = np.empty_like(labels)
        for c in range(classes):
            members = rng.permutation(np.flatnonzero(labels == c))
            owners[members] = np.resize(rng.permutation(np.flatnonzero(holds[:, c])), len(members))
        return owners

    def holdings(
        self, classes: int, clients: int, rng: np.random.Generator
    ) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Whether a client holds a label, (clients, classes)."""
        holds = np.zeros((clients, classes), dtype=bool)
        order = np.arange(classes)
        for client in range(clients):
            if client % classes == 0:
                order = rng.permutation(classes)
            holds[client, order[(3 * client + np.arange(self.labels)) % classes]] = True
        return holds


@dataclass(frozen=True)
class RareLabels(Partition):
    """The last clients hold some labels alone, and no others; the rest of the examples is dealt evenly to the others.

    Args:
        rare: labels that the last clients hold.
        holders: how many clients these are.
    """

    rare: tuple[int, ...] = (8, 9)
    holders: int = 8

    def assign(self, labels: Ints, clients: int, rng: np.random.Generator) -> Ints:
        """Deals the shuffled examples of both kinds in turn.

        Raises:
            ValueError: the holders are all clients, or none.
        """
        if not 1 <= self.holders < clients:
            raise ValueError(f"holders must lie in 1..{clients - 1}, got {self.holders}.")
        rare = np.isin(labels, self.rare)
        owners = np.empty_like(labels)
        for mask, held_by in ((rare, range(clients - self.holders, clients)), (~rare, range(clients - self.holders))):
            members = rng.permutation(np.flatnonzero(mask))
            owners[members] = np.resize(np.array(held_by), len(members))
        return owners


@dataclass(frozen=True)
class LabelGroups(Groups):
    """Two groups, so that accuracy is measured on some labels and on the others apart: 0 has the common, 1 the rare.

    Nothing contradicts: a group sees the examples of its labels, for tests too.  It goes with `RareLabels`, whose
    clients hold no others.

    Args:
        rare: labels of group 1.
        holders: how many clients, the last ones, are of group 1.
    """

    rare: tuple[int, ...] = (8, 9)
    holders: int = 8

    @property
    def number(self) -> int:
        """See `Groups`."""
        return 2

    def of(self, clients: int) -> tuple[int, ...]:
        """The group of each client: the last ones are of group 1.

        Raises:
            ValueError: the holders are all clients, or none.
        """
        if not 1 <= self.holders < clients:
            raise ValueError(f"holders must lie in 1..{clients - 1}, got {self.holders}.")
        return (COMMON,) * (clients - self.holders) + (RARE,) * self.holders

    def seen_by(self, group: int, data: Dataset) -> Dataset:
        """See `Groups`."""
        rare = sum((data.y == label for label in self.rare), start=data.y < 0)
        return data.of(rare if group == RARE else ~rare)


@dataclass(frozen=True)
class LateOnes(Latency):
    """The last clients are slower than they would be.

    Args:
        latency: how long clients would take.
        late: how many clients, the last ones, are slower.
        factor: by which they are slower.
    """

    latency: Latency = Normal(100.0, 20.0)
    late: int = 8
    factor: float = 3.0

    def __post_init__(self) -> None:
        if not 1 <= self.factor < float("inf"):
            raise ValueError(f"factor must be at least 1, got {self.factor}.")

    def seconds(self, task: Task, seed: int) -> float:
        """See `Latency`."""
        slow = task.client >= task.clients - self.late
        return self.latency.seconds(task, seed) * (self.factor if slow else 1.0)
