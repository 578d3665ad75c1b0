"""Training of the server alone: what its own examples are worth without any client.

Ours, a lower bound: a server that holds clean examples, as `phalanx.algorithms.FLTrust` asks of it, can train on them
and ask nobody.  A federation with such a server has to exceed this, and what its clients reach by `Standalone`.

In each round the model moves by the server's own training.  Updates are not used.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override

from phalanx.algorithms.rounds import Unweighted
from phalanx.algorithms.zeno import own_change
from phalanx.core import Pool, Setting, Traits, Updates, Vector, Verdict


class ServerAloneState(NamedTuple):
    """The server's state of `ServerAlone`."""

    version: int  # rounds completed
    model: Vector
    clients: frozenset[int]  # clients that take part
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class ServerAlone(Unweighted[ServerAloneState]):
    """Training of the server on its own examples; no update of a client is used.

    The server trains as the clients do, with the run's `training`, on its `server_examples`.
    """

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(reference_every=1)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[ServerAloneState, Set[int]]:
        return ServerAloneState(0, model, frozenset(sizes), {}), sizes.keys()

    @override
    def step(self, state: ServerAloneState, updates: Updates) -> tuple[ServerAloneState, Set[int]]:
        model = state.model + own_change(self, updates)
        verdicts = {i: Verdict(True, 0.0, reason="the server trains alone") for i in updates.clients}
        return state._replace(version=state.version + 1, model=model, verdicts=verdicts), state.clients

    @override
    def pools(self, setting: Setting, state: ServerAloneState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: nothing is aggregated."""
        return ()
