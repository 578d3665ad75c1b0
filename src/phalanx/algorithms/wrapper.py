"""An algorithm around another one: what is asked of it is asked of that one."""

from dataclasses import dataclass
from typing import Any

from phalanx.core import Algorithm, QuorumStatus


@dataclass(frozen=True)
class Wrapper(Algorithm[Any]):
    """An algorithm around another one: what is asked of it is asked of that one.

    Args:
        algorithm: the other one.
    """

    algorithm: Algorithm

    # What the engine, the history and attackers ask an algorithm for

    @property
    def synchronous(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """That of the algorithm."""
        return self.algorithm.synchronous

    @property
    def observed(self) -> tuple[str, ...]:  # type: ignore[override]  # a class variable elsewhere
        """Those of the algorithm."""
        return self.algorithm.observed

    @property
    def exact_losses(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """Whether the algorithm asks for them."""
        return self.algorithm.exact_losses

    @property
    def aggregate(self) -> object:
        """The algorithm's rule, None if it has none."""
        return getattr(self.algorithm, "aggregate", None)

    @property
    def preprocess(self) -> object:
        """What declared sizes count for in the algorithm, None if it does not say."""
        return getattr(self.algorithm, "preprocess", None)

    @property
    def remembers(self) -> bool:
        """Whether the algorithm's client role does."""
        return self.algorithm.remembers

    @property
    def knows_layout(self) -> bool:
        """Whether the algorithm does."""
        return self.algorithm.knows_layout

    def quorum_status(self, state: Any) -> QuorumStatus | None:
        """What the algorithm waits for."""
        return self.algorithm.quorum_status(state)

    def check_round(self, m: int, population: int) -> None:
        """Looks whether rounds of m updates will do for the algorithm."""
        self.algorithm.check_round(m, population)


# Rounds of those who have arrived
