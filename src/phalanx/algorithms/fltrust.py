"""FLTrust: rounds in which an update counts as much as it agrees with the server's own.

Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", 2021.  With g_0, the
change that the server's own training makes to the present model, an update g_i has the trust score TS_i, and the model
moves by the mean of the updates at the length of the server's own:

    TS_i = max(0, cos(g_i, g_0))
    w <- w + alpha / (sum_j TS_j)  sum_i TS_i (|g_0| / |g_i|) g_i

Of the paper the abstract could be read here, and a program by others.  What they leave open:

* If every score is zero, it divides by zero.  Here the model stays.
* A zero update has no direction; it is not used.
* The server trains as the clients do, with the run's `training`, on its `server_examples`.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from typing_extensions import override

from phalanx.aggregators import Points
from phalanx.algorithms.rounds import Unweighted
from phalanx.algorithms.zeno import own_change
from phalanx.core import Traits, Updates, Vector, Verdict
from phalanx.fields import PositiveFloat, PositiveInt


class FLTrustState(NamedTuple):
    """The server's state of `FLTrust`."""

    version: int  # t, rounds completed
    model: Vector  # w^t
    clients: frozenset[int]
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FLTrust(Unweighted[FLTrustState]):
    """Averages updates at the length of the server's own, weighted by their cosine with it if that is positive.

    Tolerates any number of attackers, as each update is judged alone; the server must hold examples like the clients'.
    No update counts more than one that equals the server's own.  Attackers who agree with the server a little are used
    a little, and their other directions with it.  Reported sizes are not used.

    Args:
        server_lr: alpha, factor on the mean; 1 in the paper, in most of its experiments.
        reference_every: for how many rounds the server's own training serves.
    """

    server_lr: PositiveFloat = 1.0
    reference_every: PositiveInt = 1

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(reference_every=self.reference_every)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FLTrustState, Set[int]]:
        return FLTrustState(0, model, frozenset(sizes), {}), sizes.keys()

    @override
    def step(self, state: FLTrustState, updates: Updates) -> tuple[FLTrustState, Set[int]]:
        g_0 = own_change(self, updates)
        points = Points.of(updates.deltas)
        lengths, length = points.norms, float(torch.linalg.vector_norm(g_0.double()))
        directed = lengths > _shortest(length)
        safe = torch.where(directed, lengths, 1.0)
        products = torch.stack([row.double() @ g_0.double() for row in updates.deltas]).cpu()
        cosines = torch.where(directed, products / (safe * (length or 1.0)), 0.0).clamp(-1, 1)
        trust = cosines.relu()
        total = float(trust.sum())
        shares = trust / total if total else trust
        model = state.model
        if total:
            model = model + self.server_lr * points.combine(shares * length / safe)
        verdicts = {
            i: Verdict(share > 0, share, cosine, "" if share > 0 else _why(cosine, size, length))
            for i, share, cosine, size in zip(
                updates.clients, shares.tolist(), cosines.tolist(), lengths.tolist(), strict=True
            )
        }
        return state._replace(version=state.version + 1, model=model, verdicts=verdicts), state.clients


def _why(cosine: float, length: float, own: float) -> str:
    """Return why an update has no weight."""
    if not own:
        return "the server's own change is zero, and has no direction"
    if not length:
        return "its change is zero, and has no direction"
    if length <= _shortest(own):
        return "its change is next to zero, and has no direction"
    return f"cosine {cosine:.3g} with the server's own change, not above 0"


def _shortest(own: float) -> float:
    """Return the length of a change that no float32 factor makes as long as the server's own."""
    return own / torch.finfo(torch.float32).max
