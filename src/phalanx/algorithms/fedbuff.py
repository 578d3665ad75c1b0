"""Federated learning with buffered asynchronous aggregation.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated Learning with Buffered Asynchronous Aggregation",
2022.  `FedBuff` is Algorithm 1, the server's part: K updates of any clients are collected, and then used together.

Where the paper leaves a choice:

* Updates are scaled by s(tau) = 1 / sqrt(1 + tau), as in its experiments, with the age tau that an update has when it
  arrives.  Any `Staleness` of FedAsync can be used.
* Its Algorithm 1 divides the sum of scaled updates by K.  So old updates make a short step: s is not divided out.
* Its Algorithm 1 gives clients equal weights.  `preprocess` can weigh them by size: each update then counts with its
  share of the weight in the buffer, which is 1 / K if all weights are equal.
* The number of clients that train at the same time (its M_c) is a setting of the run, not of the algorithm.
* It keeps only the running sum, so that the server need not see single updates.  Here they are kept until they are
  used, K vectors, so that any rule can replace the mean: `FedBuff(aggregate=Median())` is not a method of the paper,
  but the simplest defence of an asynchronous federation.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from typing_extensions import override

from phalanx.aggregators import Aggregator, Choice, Mean
from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.arrivals import Arrival, OneByOne, age_in_words
from phalanx.algorithms.rounds import Weighted
from phalanx.algorithms.staleness import Polynomial, Staleness
from phalanx.core import (
    InfeasibleError,
    Pool,
    Setting,
    TooFewError,
    Traits,
    Updates,
    Vector,
    Verdict,
    Weights,
    lost_verdicts,
)
from phalanx.fields import PositiveFloat, PositiveInt
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Ignore, Preprocess


class Waiting(NamedTuple):
    """An update in the buffer."""

    client: int
    age: int  # tau, in server updates, when it arrived
    scale: float  # s(tau)
    change: Vector  # s(tau) Delta_i


class FedBuffState(NamedTuple):
    """The server's state of `FedBuff`."""

    version: int  # t, number of times that the buffer was used
    model: Vector  # w^t
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing, or before it if that is per cohort
    buffer: tuple[Waiting, ...]  # fewer than K
    filled: int  # k, number of updates in the buffer
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FedBuff(OneByOne[FedBuffState], Weighted[FedBuffState]):
    """The mean of K scaled updates, added to the model as soon as K have arrived.

    No defence by itself: one client's long update is in the mean, and a fast client is in the buffer more than once.
    With a robust rule as `aggregate`, at most as many of the K as it tolerates may be attackers', however fast; that
    needs `distinct`, or a few fast attackers fill the buffer.

    Args:
        size: K, the quorum, updates waited for; of any clients, also twice of one. 10 in the paper. Up to 2K where
            K are too few for the rule or for truncated weights.
        staleness: s(tau), the factor on an update that is tau server updates old.
        server_lr: eta_g, factor on the aggregate.
        aggregate: the rule for the updates in the buffer; the mean in the paper.
        preprocess: makes weights of the reported sizes; all are equal in the paper's Algorithm 1.
        distinct: whether the K updates are of K clients: a second update of a client in the buffer replaces the first.
    """

    size: PositiveInt = 10
    staleness: Staleness = Polynomial(0.5)
    server_lr: PositiveFloat = 1.0
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()
    distinct: bool = False

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(synchronous=False, observed=("filled",))

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedBuffState, Set[int]]:
        if self.distinct and len(sizes) < self.size:
            raise InfeasibleError(
                f"A buffer of {self.size} clients needs as many, got {len(sizes)}. Lower size, or have more clients."
            )
        weights = self.preprocess.enrolled(sizes)
        check_rows(self.aggregate, self.size, "size")
        return FedBuffState(0, model, sizes, weights, (), 0, None, {}), sizes.keys()

    @override
    def _receive(self, state: FedBuffState, arrival: Arrival) -> FedBuffState:
        tau = state.version - arrival.version
        s = self.staleness(tau)
        others = state.buffer
        if self.distinct:
            others = tuple(waiting for waiting in others if waiting.client != arrival.client)
        buffer = (*others, Waiting(arrival.client, tau, s, s * arrival.delta))
        k, why = len(buffer), f"waits in the buffer, {len(buffer)} of {self.size}"
        if k >= self.size:
            try:
                return self._use(state, buffer)
            except TooFewError as error:
                if k >= 2 * self.size or (self.distinct and k >= len(state.sizes)):
                    raise  # nobody is left to wait for, or too much is kept
                why = f"held back in the buffer with {k}, waits for more: {error}"
        reason = "; ".join(filter(None, (why, age_in_words(tau))))
        verdicts = {arrival.client: Verdict(True, 0.0, float(tau), reason, waits=True)}
        return state._replace(buffer=buffer, filled=k, verdicts=verdicts)

    def _use(self, state: FedBuffState, buffer: tuple[Waiting, ...]) -> FedBuffState:
        changes = torch.stack([waiting.change for waiting in buffer])
        n = self._weights(state, buffer).to(changes.device)
        delta, choice = combine(
            self.aggregate,
            changes,
            n,
            [w.client for w in buffer],
            "buffer",
            turn=state.version,
            previous=state.aggregate,
        )
        return state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            buffer=(),
            filled=0,
            aggregate=delta,
            verdicts=_verdicts(buffer, n, choice, self.preprocess.remark(state.weights, {w.client for w in buffer})),
        )

    @override
    def lose_round(self, state: FedBuffState, updates: Updates, why: str) -> tuple[FedBuffState, Set[int]]:
        """See `Algorithm`: the buffer is emptied."""
        verdicts = lost_verdicts({waiting.client for waiting in state.buffer} | set(updates.clients), why)
        return state._replace(buffer=(), filled=0, verdicts=verdicts), set(updates.clients)

    def _weights(self, state: FedBuffState, buffer: tuple[Waiting, ...]) -> Weights:
        """Return the weight of each update in the buffer, float64: that of its client."""
        n = self.preprocess.among(state.weights, {waiting.client for waiting in buffer})
        return torch.tensor([n[waiting.client] for waiting in buffer], dtype=torch.float64)

    @override
    def pools(self, setting: Setting, state: FedBuffState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: the buffer, which one client can fill if it is fast."""
        if self.distinct:
            return (Pool("buffer", self.rule, self.size, self.size, self.preprocess, "raise size", chosen="arrival"),)
        return (Pool("buffer", self.rule, 1, 1, self.preprocess, "set distinct", chosen="arrival", several=True),)


def _verdicts(buffer: tuple[Waiting, ...], n: Weights, choice: Choice | None, remark: str) -> dict[int, Verdict]:
    """Return the verdict on each client's updates in the buffer: the sum of their shares, and the last reason."""
    shares = (n / n.sum() if choice is None else choice.shares).tolist()
    verdicts = dict[int, Verdict]()
    for row, (waiting, share) in enumerate(zip(buffer, shares, strict=True)):
        i, tau = waiting.client, waiting.age
        weight = share * waiting.scale + (verdicts[i].weight if i in verdicts else 0.0)
        why = choice.reasons[row] if choice is not None and choice.reasons else ""
        reason = "; ".join(filter(None, (why, age_in_words(tau), remark)))
        verdicts[i] = Verdict(weight > 0, weight, float(tau), reason or ("" if weight > 0 else "no share in the rule"))
    return verdicts
