"""A robust rule over the last momentum of every client, weighted by how often each has answered, at each arrival.

Dahan and Levy, "Weight for Robustness: A Comprehensive Approach towards Optimal Fault-Tolerant Asynchronous ML", 2024
(arXiv 2501.09621), as its authors' program has it.  When client i answers,

    d_i <- what it sent,   s_i <- s_i + 1,   x <- x - eta Agg((d_1, s_1), ..., (d_n, s_n))

with a rule that takes weights: the weighted median or geometric median, alone or within
`phalanx.aggregators.CTMA`.  Clients send a momentum d_i <- beta d_i + (1 - beta) g_i that begins with their first
gradient.  Deviations, and what could not be read: abstract and program were at hand, not the text.

* The paper's optimiser is mu^2-SGD, whose correction needs the gradients of one minibatch at two models.  A client here
  trains one model; so it is the program's optimiser "momentum".  The paper's optimal rate is not claimed for it.
* A gradient is minus the change that a client trained, of many local steps.
* The program begins with an answer of every worker.  One silent client would hold that up for ever; here the first step
  is taken when `start` clients have answered, and those who have not have weight zero.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators import Aggregator, Median
from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.arrivals import Arrival, OneByOne, age_in_words
from phalanx.algorithms.momentum import MomentumClient
from phalanx.algorithms.rounds import Unweighted, drift
from phalanx.core import InfeasibleError, Pool, Setting, Traits, Vector, Verdict
from phalanx.fields import PositiveFloat, PositiveInt
from phalanx.promises.promise_watch import combine

WeightBy = Literal["answers", "clients"]


class AsyncMomentumState(NamedTuple):
    """The server's state of `AsyncMomentum`."""

    version: int  # t, steps taken
    model: Vector  # x_t
    clients: frozenset[int]
    momenta: Mapping[int, Vector]  # minus d_i, of those who have answered
    answers: Mapping[int, int]  # s_i, of the same
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class AsyncMomentum(OneByOne[AsyncMomentumState], MomentumClient[AsyncMomentumState], Unweighted[AsyncMomentumState]):
    """Takes a step at each arrival, by a weighted robust rule over the last momentum of all clients.

    A client that answers often has fresh momenta and counts more: what must stay below the rule's breakdown point is
    the attackers' share of all answers, not of the clients.  **Fast attackers gain weight**; `weight_by="clients"`
    gives all clients the same, so that it is their number that counts.  The server remembers a vector of each client: n
    d numbers.

    Args:
        aggregate: Agg, a rule that takes weights.
        momentum: beta in [0, 1), of the clients. 0 sends the changes themselves.
        server_lr: eta, factor on what the rule returns. A step is taken at each arrival, so it is small.
        weight_by: what a client counts for: the number of its "answers", as in the paper; or all "clients" alike.
        start: clients that must have answered before the first step; null for more than half of them.
    """

    aggregate: Aggregator = Median()
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    server_lr: PositiveFloat = 0.1
    weight_by: WeightBy = "answers"
    start: PositiveInt | None = None

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(synchronous=False)

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[AsyncMomentumState, Set[int]]:
        if self.start is not None and self.start > len(sizes):
            raise InfeasibleError(
                f"start = {self.start} clients must have answered before the first step, and there are {len(sizes)}. "
                "Lower start, or have more clients."
            )
        check_rows(self.aggregate, self._start(len(sizes)), "start")
        return AsyncMomentumState(0, model, frozenset(sizes), {}, {}, None, {}), sizes.keys()

    @override
    def weights(self, state: AsyncMomentumState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: s_i."""
        if self.weight_by == "clients":
            return dict.fromkeys(clients, 1.0)
        return {i: float(max(1, state.answers.get(i, 0))) for i in clients}

    def _start(self, clients: int) -> int:
        """Return how many clients must have answered before the first step."""
        return clients // 2 + 1 if self.start is None else self.start

    @override
    def _receive(self, state: AsyncMomentumState, arrival: Arrival) -> AsyncMomentumState:
        i, tau = arrival.client, state.version - arrival.version
        momenta = {**state.momenta, i: arrival.delta.clone()}
        state = state._replace(momenta=momenta, answers={**state.answers, i: state.answers.get(i, 0) + 1})
        needed = self._start(len(state.clients))
        if not state.version and len(momenta) < needed:
            reason = f"kept; the first step is taken when {needed} clients have answered, {len(momenta)} have"
            return state._replace(verdicts={i: Verdict(True, 0.0, float(tau), reason)})
        clients = sorted(momenta)
        s = self.weights(state, clients)
        w = torch.tensor([s[j] for j in clients], dtype=torch.float64, device=arrival.delta.device)
        rows = torch.stack([momenta[j] for j in clients])
        delta, choice = combine(
            self.aggregate, rows, w, clients, "set of momenta", turn=state.version, previous=state.aggregate
        )
        row = clients.index(i)
        share = float((w / w.sum() if choice is None else choice.shares)[row])
        why = choice.reasons[row] if choice is not None and choice.reasons else ""
        reason = "; ".join(filter(None, (why, age_in_words(tau)))) or ("" if share > 0 else "no share in the rule")
        return state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            aggregate=delta,
            verdicts={i: Verdict(share > 0, share, float(tau), reason)},
        )

    @override
    def pools(self, setting: Setting, state: AsyncMomentumState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: the clients that have answered when the first step is taken."""
        start = self._start(setting.clients)
        fast = "Clients weigh by their number of answers, so that fast attackers have nearly all of the weight."
        return (
            Pool(
                "set of momenta",
                self.rule,
                start,
                start,
                larger="raise start",
                chosen="arrival",
                unproven="" if self.weight_by == "clients" else fast,
                beyond=drift("Honest entries are of momenta, of each client the last.", self.rule, self.server_lr),
            ),
        )
