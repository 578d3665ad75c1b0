"""The interface of attacks."""

from collections.abc import Set
from typing import ClassVar, NamedTuple

import torch

from phalanx.core import Matrix, Vector
from phalanx.data import Dataset


class Update(NamedTuple):
    """What an attacker would send if it were honest (on the data that it poisoned)."""

    client: int
    version: int  # of the download
    base: Vector  # the download
    delta: Vector  # trained minus received parameters, as the algorithm uploads it


class Knowledge(NamedTuple):
    """What an omniscient attacker sees beside that."""

    honest: Matrix  # every honest update of the round, or in flight; (h, d)
    byzantine: Set[int]  # the attackers, itself included


class Attack:
    """Behaves honestly on every level; a subclass overrides the level on which it attacks.

    Attackers draw from streams of their own, so that they change no honest client's randomness.
    """

    omniscient: ClassVar[bool] = False  # whether `forge` needs to see the honest updates

    def poison(self, data: Dataset, rng: torch.Generator) -> Dataset:
        """The data that the attacker trains on, made once from its share."""
        return data

    def declare(self, size: int) -> int:
        """The number of examples that it claims to have."""
        return size

    def forge(self, update: Update, knowledge: Knowledge | None, rng: torch.Generator) -> Vector:
        """The update that it sends, of any content; `knowledge` is given to omniscient attacks only."""
        return update.delta

    def goal(self, test: Dataset) -> Dataset | None:
        """Test examples with the labels that the attacker wants, if any: its success is the accuracy on them."""
        return None
