"""Attacks on the reported size, against servers that weigh clients by it.

A size is reported once, at enrolment (`phalanx.engine.guard.Guard` refuses impossible ones).  `Together` combines a
false size with an attack on data or updates.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from typing_extensions import override

from phalanx.attacks.attack import Attack, each
from phalanx.fields import PositiveFloat, PositiveInt


class Misreporting(Attack, ABC, hooks=("reported_size",)):
    """An attack on the reported size."""

    @abstractmethod
    def reported_size(self, size: int) -> int:
        """Return the number of examples that the attacker reports, if it has `size` examples."""


def reported_size(attack: Attack | None, size: int) -> int:
    """Return the number of examples that a client with this attack reports, if it has `size` examples."""
    for one in each(attack, Misreporting):
        size = one.reported_size(size)
    return size


@dataclass(frozen=True)
class ReportSize(Misreporting):
    """Reports a fixed number of examples, and trains honestly.  It sees nothing.

    Portnoy, Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020: one attacker
    reports 10 million examples, or every tenth client reports one million.

    Args:
        size: number of examples to report, at least 1.
    """

    size: PositiveInt = 1_000_000

    @override
    def reported_size(self, size: int) -> int:
        return self.size


@dataclass(frozen=True)
class ReportTimes(Misreporting):
    """Reports a multiple of its number of examples, at least one, and trains honestly.  It sees nothing.

    Args:
        factor: factor on the true number, above 0: 10 reports ten times as many, 0.1 a tenth.
    """

    factor: PositiveFloat = 10.0

    @override
    def reported_size(self, size: int) -> int:
        return max(1, round(self.factor * size))
