"""Training of each client alone: the lower bound that a federation has to exceed.

`Standalone` is the framework of that name in Xu and Lyu, "Towards Building a Robust and Fair Federated Learning
System", 2020: each participant trains on its own data, from the same initial model, as often as the others do in a
federation.  In the paper, the accuracy of such a model measures its owner's contribution.

No update leaves a client: it answers a download with zeros, and goes on from the end of its own last training.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from typing_extensions import override

from phalanx.algorithms.rounds import Unweighted
from phalanx.core import Local, Pool, Setting, Updates, Vector, Verdict


class StandaloneState(NamedTuple):
    """The server's state of `Standalone`."""

    version: int  # rounds completed
    model: Vector  # the initial one, which does not change
    clients: frozenset[int]  # clients that take part
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class Standalone(Unweighted[StandaloneState]):
    """Separate training: each client trains a model of its own, and the server's model does not change.

    `phalanx.training.evaluation` measures a client's model as its `received_accuracy`.  Attackers do not affect others.
    """

    # Role: client
    @override
    def integrate(self, local: Local | None, download: Vector) -> Vector:
        """See `Algorithm`: the result of its own last training; the initial model before the first."""
        if local is None or local.memory is None:
            return download
        return local.params + local.memory

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`: zeros, which are one in memory; the change is kept in the local state."""
        return delta.new_zeros(1).expand_as(delta), delta

    # Role: server
    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[StandaloneState, Set[int]]:
        return StandaloneState(0, model, frozenset(sizes), {}), sizes.keys()

    @override
    def step(self, state: StandaloneState, updates: Updates) -> tuple[StandaloneState, Set[int]]:
        verdicts = {i: Verdict(True, 0.0, reason="trained alone") for i in updates.clients}
        return state._replace(version=state.version + 1, verdicts=verdicts), state.clients

    @override
    def pools(self, setting: Setting, state: StandaloneState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: nothing is shared."""
        return ()
