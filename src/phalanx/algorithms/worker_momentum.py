"""Momentum of the clients across rounds, around any synchronous algorithm whose clients remember nothing.

Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization", 2021, Algorithm 2: client i sends

    m_i <- beta m_i + (1 - beta) Delta_i,      and Delta_i itself in its first round.

Averaged over rounds, honest updates scatter less, so that an attacker has less room between them.

Where it differs from the paper: Delta_i is the change of a whole local training, one gradient there; and a client that
is not in a round, or whose update is lost, keeps its m_i.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.algorithms.momentum import MomentumClient
from phalanx.algorithms.rounds import drift
from phalanx.algorithms.wrapper import Wrapper
from phalanx.core import InfeasibleError, Pool, Setting, Vector
from phalanx.promises.remarks import innermost
from phalanx.wording import plural


@dataclass(frozen=True)
class WorkerMomentum(MomentumClient, Wrapper):
    """Clients that send the momentum of their updates.

    Args:
        algorithm: a synchronous one, whose clients remember nothing themselves.
        momentum: beta, in [0, 1).
    """

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.traits.synchronous or self.algorithm.traits.remembers or self.algorithm.traits.corrects:
            raise InfeasibleError(
                f"WorkerMomentum is for algorithms of rounds whose clients only train, and {self.algorithm.title} is "
                "another. Choose FedAvg, for example."
            )

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`: the momentum, as the algorithm within sends it."""
        m, memory = super().upload(delta, memory)
        return self.algorithm.upload(m, None)[0], memory

    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: of momenta, one of each client."""
        inner = super().pools(setting, state)
        rounds = plural(round(1 / (1 - self.momentum)), "round")
        of = f"Honest entries are of momenta, which average the updates of about {rounds}."
        words = drift(of, self.rule, getattr(innermost(self), "server_lr", 1.0))
        return inner and tuple(replace(pool, beyond=words) if pool.bounds == "result" else pool for pool in inner)
