"""An algorithm around another one."""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from phalanx.core import Algorithm, Local, QuorumStatus, Rule, SmallestSet, Updates, Vector


@dataclass(frozen=True)
class Wrapper(Algorithm[Any]):
    """An algorithm that forwards all calls to the one within; a subclass overrides what it changes.

    Args:
        algorithm: the one within.
    """

    algorithm: Algorithm

    # Declarations

    @property
    def synchronous(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.synchronous

    @property
    def observed(self) -> tuple[str, ...]:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.observed

    @property
    def exact_losses(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.exact_losses

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.needs_reference

    @property
    def can_join(self) -> bool:  # type: ignore[override]  # a class variable elsewhere
        """See `Algorithm`."""
        return self.algorithm.can_join

    @property
    def title(self) -> str:
        """See `Algorithm`: with the title of the one within."""
        return f"{type(self).__name__}({self.algorithm.title})"

    @property
    def rule(self) -> Rule | None:
        """See `Algorithm`."""
        return self.algorithm.rule

    @property
    def knows_layout(self) -> bool:
        """See `Algorithm`."""
        return self.algorithm.knows_layout

    @property
    def reference_every(self) -> int:
        """See `Algorithm`."""
        return self.algorithm.reference_every

    @property
    def remembers(self) -> bool:
        """See `Algorithm`."""
        return self.algorithm.remembers

    # Role: server

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.init(model, sizes)

    def step(self, state: Any, updates: Updates) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.step(state, updates)

    def download(self, state: Any, client: int) -> Vector:
        """See `Algorithm`."""
        return self.algorithm.download(state, client)

    def join(self, state: Any, client: int, size: int) -> Any:
        """See `Algorithm`."""
        return self.algorithm.join(state, client, size)

    def part(self, state: Any, clients: Mapping[int, int]) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.part(state, clients)

    def weights(self, state: Any, clients: Collection[int]) -> Mapping[int, float]:
        """See `Algorithm`."""
        return self.algorithm.weights(state, clients)

    def carried(self, state: Any) -> tuple[int, Vector | None]:
        """See `Algorithm`."""
        return self.algorithm.carried(state)

    def candidate_models(self, state: Any, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`."""
        return self.algorithm.candidate_models(state, client)

    def quorum_status(self, state: Any) -> QuorumStatus | None:
        """See `Algorithm`."""
        return self.algorithm.quorum_status(state)

    def smallest_set(self, m: int, population: int) -> SmallestSet:
        """See `Algorithm`."""
        return self.algorithm.smallest_set(m, population)

    def lose_round(self, state: Any, updates: Updates, why: str) -> tuple[Any, Set[int]]:
        """See `Algorithm`."""
        return self.algorithm.lose_round(state, updates, why)

    def check_round(self, m: int, population: int) -> None:
        """See `Algorithm`."""
        self.algorithm.check_round(m, population)

    # Role: client

    def integrate(self, local: Local | None, download: Vector) -> Vector:
        """See `Algorithm`."""
        return self.algorithm.integrate(local, download)

    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`."""
        return self.algorithm.upload(delta, memory)
