"""Attacks on the declared size: what a server that weighs clients by their word can be told.

A size is declared once, at enrolment (`phalanx.engine.guard.Guard` refuses impossible ones).  `Together` combines the lie with
an attack on data or update.
"""

import math
from dataclasses import dataclass

from phalanx.attacks.attack import Attack


@dataclass(frozen=True)
class ReportSize(Attack):
    """Declares a fixed number of examples, and trains honestly.  It sees nothing.

    Portnoy, Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020: one attacker
    declares 10 million examples, or every tenth client one million.

    Args:
        size: the number, at least 1.
    """

    size: int = 1_000_000

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}.")

    def declare(self, size: int) -> int:
        """See `Attack`."""
        return self.size


@dataclass(frozen=True)
class ReportTimes(Attack):
    """Declares a multiple of the examples that it has, at least one, and trains honestly.  It sees nothing.

    Args:
        factor: above 0; 10 claims ten times as many, 0.1 a tenth.
    """

    factor: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor must be positive and finite, got {self.factor}.")

    def declare(self, size: int) -> int:
        """See `Attack`."""
        return max(1, round(self.factor * size))
