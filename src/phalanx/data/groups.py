"""Groups of clients whose data contradict each other, or have different topics.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Section VI: the model of one group of clients is wrong for another group, so that no model
fits all, or each group has its own topic.  Clients are tested on the data of their own group.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.data.dataset import NO_LABEL, Dataset
from phalanx.fields import CheckedFields, PositiveInt
from phalanx.rng import generator


class Groups(CheckedFields, ABC):
    """A division of clients into groups, and the data of each group.  A subclass is a frozen dataclass."""

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of groups."""

    @abstractmethod
    def seen_by(self, group: int, data: Dataset) -> Dataset:
        """Return the data as a group sees them, in training and in tests.

        Args:
            group: in 0 .. number - 1.
            data: examples from the source.

        Raises:
            ValueError: if these data cannot be transformed in this way.
        """

    def of(self, clients: int) -> tuple[int, ...]:
        """Return the group of each client: neighbouring clients together, and equal numbers up to one in each group.

        Raises:
            ValueError: if there are more groups than clients.
        """
        if clients < self.number:
            raise ValueError(f"{self.number} groups need at least {self.number} clients, got {clients}.")
        return tuple(i * self.number // clients for i in range(clients))


@dataclass(frozen=True)
class PermutedLabels(Groups):
    """Each group has a random permutation of the labels (Equation 52).

    Args:
        count: number of groups, at least 1.
        seed: seed of the permutations, which all differ.
    """

    count: PositiveInt = 4
    seed: int = 0

    @property
    @override
    def number(self) -> int:
        return self.count

    @override
    def seen_by(self, group: int, data: Dataset) -> Dataset:
        names = self.permutations(data.classes)[group].to(data.y.device)
        return _relabelled(data, names[data.labels])

    def permutations(self, classes: int) -> list[Tensor]:
        """Return, for each group, its label of each class: (classes,), int64.

        Raises:
            ValueError: if there are more groups than permutations of the classes.
        """
        if self.count > math.factorial(min(classes, 20)):
            raise ValueError(f"{classes} classes cannot be permuted in {self.count} ways. Lower count.")
        rng, drawn = generator(self.seed, "permuted labels"), dict[tuple[int, ...], Tensor]()
        while len(drawn) < self.count:
            names = torch.randperm(classes, generator=rng)
            drawn.setdefault(tuple(names.tolist()), names)
        return list(drawn.values())


@dataclass(frozen=True)
class SwappedLabels(Groups):
    """Each group has the labels of two classes swapped; inputs and labels have the same distribution in all groups.

    Args:
        pairs: the two classes that each group swaps. The paper names (1, 7) and (3, 5), "and so on".
    """

    pairs: tuple[tuple[int, int], ...] = ((1, 7), (3, 5), (4, 9), (2, 8))

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pairs:
            raise ValueError("pairs must name two classes for each of one group or more, got none.")
        if wrong := [pair for pair in self.pairs if min(pair) < 0 or pair[0] == pair[1]]:
            raise ValueError(f"A pair must be of two different classes, 0 or above, got {wrong[0]}.")

    @property
    @override
    def number(self) -> int:
        return len(self.pairs)

    @override
    def seen_by(self, group: int, data: Dataset) -> Dataset:
        a, b = self.pairs[group]
        if max(a, b) >= data.classes:
            raise ValueError(f"The pair {(a, b)} names a class that is not among 0..{data.classes - 1}.")
        y = data.labels
        return _relabelled(data, torch.where(y == a, b, torch.where(y == b, a, y)))


@dataclass(frozen=True)
class RotatedImages(Groups):
    """Each group has rotated images; in the authors' code, those of one half of the clients are upside down.

    Args:
        quarter_turns: rotation of the images of each group, in steps of 90 degrees, counterclockwise.
    """

    quarter_turns: tuple[int, ...] = (0, 2)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.quarter_turns:
            raise ValueError("quarter_turns must name a number of turns for each of one group or more, got none.")

    @property
    @override
    def number(self) -> int:
        return len(self.quarter_turns)

    @override
    def seen_by(self, group: int, data: Dataset) -> Dataset:
        turns, shape = self.quarter_turns[group] % 4, data.shape
        if len(shape) < 2:
            raise ValueError(
                f"Only images of shape (..., height, width) can be rotated, got examples of shape {shape}."
            )
        if turns % 2 and shape[-1] != shape[-2]:
            raise ValueError(f"Images that are not square can be rotated only by 180 degrees, got shape {shape}.")
        return replace(data, x=torch.rot90(data.tensor, turns, (-2, -1)).contiguous()) if turns else data


@dataclass(frozen=True)
class Topics(Groups):
    """Each group has its own topic, and sees only the examples of that topic (AG-News in Section VI-C).

    For data in which owner k has topic k mod `count`, such as `AGNews`, partitioned with `Natural` among as many
    clients as owners.  Client i is then owner i and belongs to group i mod `count`, so all of its examples are of the
    topic of its group, and only test examples are left out.

    Args:
        count: number of topics, at least 1.
    """

    count: PositiveInt = 4

    @property
    @override
    def number(self) -> int:
        return self.count

    @override
    def of(self, clients: int) -> tuple[int, ...]:
        """Return the group of each client: i mod `count`, like the topics of the owners.

        Raises:
            ValueError: if there are more groups than clients.
        """
        super().of(clients)
        return tuple(i % self.count for i in range(clients))

    @override
    def seen_by(self, group: int, data: Dataset) -> Dataset:
        if data.owners is None:
            raise ValueError(
                "Topics needs data with owners, whose topics it uses, and these data have none. "
                "Choose data with owners, such as AGNews, or other groups."
            )
        of_topic = data.owners % self.count == group
        if len(data) and not bool(of_topic.any()):
            raise ValueError(
                f"None of {len(data)} examples is of topic {group}. Use the partition Natural with as many clients as "
                "the data have owners (for AGNews, corpora), so that each client has its group's topic."
            )
        return data if bool(of_topic.all()) else data.of(of_topic)


def _relabelled(data: Dataset, labels: Tensor) -> Dataset:
    """Return the data with these labels at the positions that have one."""
    return replace(data, y=data.y.masked_scatter(data.y != NO_LABEL, labels))
