"""The client role of algorithms whose clients send a momentum: m <- beta m + (1 - beta) delta, first m = delta."""

from torch import Tensor
from typing_extensions import override

from phalanx.core import Algorithm, State, Traits, Vector


class MomentumClient(Algorithm[State]):
    """Sends a momentum in place of a change; the change itself if `momentum` is zero."""

    momentum: float

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(keeps="memory" if self.momentum else "nothing")

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`: the momentum, which is what is remembered."""
        if not self.momentum:
            return delta, None
        m = delta if memory is None else self.momentum * memory + (1 - self.momentum) * delta
        return m, m
