"""DeMoA: a robust rule over the last momentum of every client, of those who take part in a round and of the others.

Otsuka, Takezawa and Yamada, "Delayed Momentum Aggregation: Communication-efficient Byzantine-robust Federated Learning
with Partial Participation", 2025 (arXiv 2509.02970), whose first version calls it D-Byz-SGDM.  In round t, for clients
i that are sampled, and j that are not,

    m_i <- (1 - alpha) m_i + alpha g_i,   m_j <- m_j,   x <- x - eta Agg(m_1, ..., m_n)

So attackers who are most of a round's clients are no more of what the rule sees than they are of all.  Deviations, and
what could not be read: abstract, introduction and a summary of the algorithm were at hand, not its pseudo-code.

* A gradient is minus the change that a client trained, of many local steps.
* A momentum begins at zero here, and the server has zero for clients that it has not heard.  So a rule that tolerates f
  of n rows does so from the first round on, and a median does not move before half of the clients have answered.
* The paper samples each client by itself with the probability p; who takes part here is the run's affair.
* `preprocess` weighs the rows; nothing in the paper.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators import Aggregator, Median
from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.rounds import Weighted, drift
from phalanx.core import Pool, Setting, Updates, Vector, Verdict
from phalanx.fields import PositiveFloat
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Ignore, Preprocess


class DeMoAState(NamedTuple):
    """The server's state of `DeMoA`."""

    version: int  # t, rounds completed
    model: Vector  # x_t
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing, or before it if that is per cohort
    momenta: Mapping[int, Vector]  # minus m_i, of those who have answered
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class DeMoA(Weighted[DeMoAState]):
    """Applies a robust rule to the last momentum of all clients in each round, whoever takes part in it.

    Tolerates as many attackers of all clients as the rule tolerates rows.  Momenta of absent clients are old, and are
    used again and again: with few clients in a round, `server_lr` has to be smaller.  A client that has left stays
    among the rows.  The server remembers a vector of each client: n d numbers.

    Args:
        aggregate: Agg, over as many rows as there are clients.
        momentum: 1 - alpha in [0, 1), of the clients. 0 sends the changes themselves.
        server_lr: eta, factor on what the rule returns.
        preprocess: makes weights of the reported sizes; all are equal in the paper.
    """

    aggregate: Aggregator = Median()
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    server_lr: PositiveFloat = 1.0
    preprocess: Preprocess = Ignore()

    # Role: client

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`: the momentum, which is what is remembered."""
        past = torch.zeros_like(delta) if memory is None else memory
        m = self.momentum * past + (1 - self.momentum) * delta
        return m, m

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[DeMoAState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        check_rows(self.aggregate, len(sizes), "clients")
        return DeMoAState(0, model, sizes, weights, {}, None, {}), weights.keys()

    @override
    def step(self, state: DeMoAState, updates: Updates) -> tuple[DeMoAState, Set[int]]:
        sent = dict(zip(updates.clients, updates.deltas.clone(), strict=True))
        momenta = {**state.momenta, **sent}
        clients = sorted(state.weights)
        silent = torch.zeros_like(state.model)
        rows = torch.stack([momenta.get(i, silent) for i in clients])
        n = self.weights(state, clients)
        w = torch.tensor([n[i] for i in clients], dtype=torch.float64, device=rows.device)
        delta, choice = combine(
            self.aggregate, rows, w, clients, "set of momenta", turn=state.version, previous=state.aggregate
        )
        shares = dict(zip(clients, (w / w.sum() if choice is None else choice.shares).tolist(), strict=True))
        reasons = dict(zip(clients, choice.reasons, strict=True)) if choice is not None and choice.reasons else {}
        new = state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            momenta=momenta,
            aggregate=delta,
            verdicts={i: _verdict(shares[i], reasons.get(i, "")) for i in updates.clients},
        )
        return new, state.weights.keys()

    @override
    def pools(self, setting: Setting, state: DeMoAState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: all clients, whoever takes part."""
        n = setting.clients
        of = "Honest entries are of momenta, of absent clients the last, and zero before the first."
        beyond = drift(of, self.rule, self.server_lr)
        return (Pool("set of momenta", self.rule, n, n, self.preprocess, "have more clients", beyond=beyond),)


def _verdict(share: float, why: str) -> Verdict:
    return Verdict(share > 0, share, None, why or ("" if share > 0 else "no share in the rule"))
