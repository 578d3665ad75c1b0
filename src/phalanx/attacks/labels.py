"""Attacks on the labels of the training data: the attacker trains honestly on unchanged inputs with other labels."""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from phalanx.attacks.data import Poisoning, aimed_at, different, one_of
from phalanx.data import NO_LABEL, Dataset
from phalanx.fields import NonNegativeInt
from phalanx.rng import generator

Labels = Int[Tensor, "n"]


class Relabelling(Poisoning):
    """Trains with changed labels.  It sees only its own data.

    In a sequence, each label is changed like the label of an example; positions without a label keep none.
    """

    @abstractmethod
    def relabelled(self, y: Labels, classes: int) -> Labels:
        """Return the labels that replace `y`.

        Raises:
            ValueError: if a class of the attack is not one of the `classes`.
        """

    @override
    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        return replace(data, y=data.y.masked_scatter(data.y != NO_LABEL, self.relabelled(data.labels, data.classes)))


@dataclass(frozen=True)
class AllLabelsTo(Relabelling):
    """Trains with every label set to one class.

    The label-flip scenario of Sattler et al., "On the Byzantine Robustness of Clustered Federated Learning", 2020.

    Args:
        target: the class of all labels.
    """

    target: NonNegativeInt = 0

    @override
    def relabelled(self, y: Labels, classes: int) -> Labels:
        one_of(classes, target=self.target)
        return torch.full_like(y, self.target)

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        """Return the test examples of other classes, labelled as the target."""
        return self.poison(aimed_at(test, test.y != self.target), torch.Generator())


@dataclass(frozen=True)
class LabelFlip(Relabelling):
    """Trains with the examples of one class labelled as another class.

    Biggio, Nelson and Laskov, "Support Vector Machines Under Adversarial Label Noise", 2011; the targeted poisoning of
    Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020: 1 labelled as 7.

    Args:
        source: the class whose examples are relabelled.
        target: the class that they get as label.
    """

    source: NonNegativeInt = 1
    target: NonNegativeInt = 7

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        different(source=self.source, target=self.target)

    @override
    def relabelled(self, y: Labels, classes: int) -> Labels:
        one_of(classes, source=self.source, target=self.target)
        return torch.where(y == self.source, self.target, y)

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        """Return the test examples of the source class, labelled as the target."""
        return self.poison(aimed_at(test, test.y == self.source), torch.Generator())


@dataclass(frozen=True)
class LabelSwap(Relabelling):
    """Trains with the labels of two classes exchanged.

    Args:
        a: the first class.
        b: the second class.
    """

    a: NonNegativeInt = 1
    b: NonNegativeInt = 7

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        different(a=self.a, b=self.b)

    @override
    def relabelled(self, y: Labels, classes: int) -> Labels:
        one_of(classes, a=self.a, b=self.b)
        return torch.where(y == self.a, self.b, torch.where(y == self.b, self.a, y))

    @override
    def goal(self, test: Dataset) -> Dataset | None:
        """Return the test examples of the two classes, each labelled as the other class."""
        return self.poison(aimed_at(test, (test.y == self.a) | (test.y == self.b)), torch.Generator())


@dataclass(frozen=True)
class LabelShift(Relabelling):
    """Trains with label y replaced by classes - 1 - y: 9 - y for ten classes.

    Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018; Portnoy, Tirosh and
    Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020.  If the number of classes is
    odd, the middle class keeps its label.
    """

    @override
    def relabelled(self, y: Labels, classes: int) -> Labels:
        return classes - 1 - y


@dataclass(frozen=True)
class LabelPermutation(Relabelling):
    """Trains with the classes permuted by a random cycle, the same for all attackers: no label stays the same.

    Sattler et al., "Clustered Federated Learning", 2019, permute labels to make clients that contradict each other; a
    cycle is a permutation without fixed points.

    Args:
        seed: seed of the cycle; the same seed gives the same cycle in every run.
    """

    seed: int = 0

    @override
    def relabelled(self, y: Labels, classes: int) -> Labels:
        # Each class gets the label of the next class in a random order, so none keeps its own.
        cycle = torch.randperm(classes, generator=generator(self.seed, "label permutation"))
        renamed = torch.empty_like(cycle)
        renamed[cycle] = cycle.roll(-1)
        return renamed.to(y.device)[y]
