"""Groups of clients whose data contradict each other, or are about different things.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Section VI: what one group of clients learns is wrong for another, so that no model serves
all, or each group has its own topic.  Clients are tested on what their own group takes for true.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phalanx.data.dataset import NO_LABEL, Dataset
from phalanx.rng import generator


class Groups(ABC):
    """Divides clients into groups, and says what the examples of each are.  A subclass is a frozen dataclass."""

    @property
    @abstractmethod
    def number(self) -> int:
        """How many groups there are."""

    @abstractmethod
    def seen_by(self, group: int, data: Dataset) -> Dataset:
        """The data as a group has them, for training and for tests alike.

        Args:
            group: in 0 .. number - 1.
            data: examples as they come from their source.

        Raises:
            ValueError: these data cannot be transformed so.
        """

    def of(self, clients: int) -> tuple[int, ...]:
        """The group of each client: equally many in each, give or take one, neighbours together.

        Raises:
            ValueError: there are more groups than clients.
        """
        if clients < self.number:
            raise ValueError(f"{self.number} groups need at least {self.number} clients, got {clients}.")
        return tuple(i * self.number // clients for i in range(clients))


@dataclass(frozen=True)
class PermutedLabels(Groups):
    """Each group names the classes by a random permutation of its own (Equation 52).

    Args:
        count: number of groups, at least 1.
        seed: of the permutations; no two are equal.
    """

    count: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}.")

    @property
    def number(self) -> int:
        """See `Groups`."""
        return self.count

    def seen_by(self, group: int, data: Dataset) -> Dataset:
        """See `Groups`."""
        names = self.permutations(data.classes)[group].to(data.y.device)
        return _relabelled(data, names[data.labels])

    def permutations(self, classes: int) -> list[Tensor]:
        """For each group, (classes,) int64: what it calls each class.

        Raises:
            ValueError: so few classes have fewer permutations than there are groups.
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
    """Each group takes two classes for each other; inputs and labels are distributed alike in all groups.

    Args:
        pairs: the two classes of each group. The paper names (1, 7) and (3, 5), "and so on".
    """

    pairs: tuple[tuple[int, int], ...] = ((1, 7), (3, 5), (4, 9), (2, 8))

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError("pairs must name two classes for each of one group or more, got none.")
        if wrong := [pair for pair in self.pairs if min(pair) < 0 or pair[0] == pair[1]]:
            raise ValueError(f"A pair must be of two different classes, 0 or above, got {wrong[0]}.")

    @property
    def number(self) -> int:
        """See `Groups`."""
        return len(self.pairs)

    def seen_by(self, group: int, data: Dataset) -> Dataset:
        """See `Groups`."""
        a, b = self.pairs[group]
        if max(a, b) >= data.classes:
            raise ValueError(f"The pair {(a, b)} names a class that is not among 0..{data.classes - 1}.")
        y = data.labels
        return _relabelled(data, torch.where(y == a, b, torch.where(y == b, a, y)))


@dataclass(frozen=True)
class RotatedImages(Groups):
    """Each group sees its images turned; the authors' published code turns those of one half upside down.

    Args:
        quarter_turns: how far each group's are turned, in steps of 90 degrees, counterclockwise.
    """

    quarter_turns: tuple[int, ...] = (0, 2)

    def __post_init__(self) -> None:
        if not self.quarter_turns:
            raise ValueError("quarter_turns must name a number of turns for each of one group or more, got none.")

    @property
    def number(self) -> int:
        """See `Groups`."""
        return len(self.quarter_turns)

    def seen_by(self, group: int, data: Dataset) -> Dataset:
        """See `Groups`."""
        turns, shape = self.quarter_turns[group] % 4, tuple(data.x.shape[1:])
        if len(shape) < 2:
            raise ValueError(
                f"Only images can be turned, of shape (..., height, width); got examples of shape {shape}."
            )
        if turns % 2 and shape[-1] != shape[-2]:
            raise ValueError(f"Images that are not square can be turned upside down only, got shape {shape}.")
        return replace(data, x=torch.rot90(data.x, turns, (-2, -1)).contiguous()) if turns else data


@dataclass(frozen=True)
class Topics(Groups):
    """Each group has a topic of its own, and sees the examples of that topic and no others (AG-News in Section VI-C).

    It is for data whose owners have the topics in turn, owner k topic k mod `count`, as those of `AGNews` have, dealt
    with `Natural` to as many clients as there are owners.  Client i is then owner i and belongs to group i mod `count`,
    so that all that it holds is of its group's topic, and only tests have something left out.

    Args:
        count: number of topics, at least 1.
    """

    count: int = 4

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}.")

    @property
    def number(self) -> int:
        """See `Groups`."""
        return self.count

    def of(self, clients: int) -> tuple[int, ...]:
        """The group of each client: the groups take turns, as the topics of the owners do.

        Raises:
            ValueError: there are more groups than clients.
        """
        super().of(clients)
        return tuple(i % self.count for i in range(clients))

    def seen_by(self, group: int, data: Dataset) -> Dataset:
        """See `Groups`."""
        if data.owners is None:
            raise ValueError(
                "Topics are those of the examples' owners, and these data do not say whose an example is. "
                "Take data that do, such as AGNews, or other groups."
            )
        of_topic = data.owners % self.count == group
        if len(data) and not bool(of_topic.any()):
            raise ValueError(
                f"None of {len(data)} examples is of topic {group}. Deal the data with Natural, to as many clients as "
                "they have owners (for AGNews, corpora), so that each client holds what its group is to see."
            )
        return data if bool(of_topic.all()) else data.of(of_topic)


def _relabelled(data: Dataset, labels: Tensor) -> Dataset:
    """The data with those labels where they have one."""
    return replace(data, y=data.y.masked_scatter(data.y != NO_LABEL, labels))
