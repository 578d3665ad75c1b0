"""Federated learning with buffered asynchronous aggregation.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated Learning with Buffered Asynchronous Aggregation",
2022.  `FedBuff` is Algorithm 1, the server's part: K updates are collected, whoever they come from, and then used
together.

Where the paper leaves a choice:

* Updates are scaled by s(tau) = 1 / sqrt(1 + tau), as in its experiments, with the age tau that an update has when it
  arrives.  Any `Staleness` of FedAsync will do.
* Its Algorithm 1 divides the sum of scaled updates by K.  So old updates make a short step: s is not divided out.
* Its Algorithm 1 weighs clients alike.  `preprocess` can weigh them by size: the sum is then that of shares of the
  weight in the buffer, which is the division by K where all weigh the same.
* How many clients train at a time (its M_c) is a matter of the run, not of the algorithm.
* It keeps only the running sum, so that the server need not see single updates.  Here they are kept until they are
  used, K vectors, so that any rule can take the place of the mean: `FedBuff(aggregate=Median())` is no method of the
  paper, but the plainest defence of an asynchronous federation.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from phalanx.aggregators import Aggregator, Choice, Mean
from phalanx.aggregators.aggregator import check_rows
from phalanx.algorithms.arrivals import Arrival, one_by_one, told_of_age
from phalanx.algorithms.rounds import Weighted, warn_of_weights
from phalanx.algorithms.staleness import Polynomial, Staleness
from phalanx.core import Updates, Vector, Verdict, Weights
from phalanx.weighting import Ignore, Preprocess


class Waiting(NamedTuple):
    """An update in the buffer."""

    client: int
    age: int  # tau, in server updates, when it arrived
    scale: float  # s(tau)
    change: Vector  # s(tau) Delta_i


class FedBuffState(NamedTuple):
    """What the server of `FedBuff` carries over."""

    version: int  # t, how often the buffer was used
    model: Vector  # w^t
    sizes: Mapping[int, int]  # as declared
    weights: Mapping[int, float]  # after preprocessing, or before it if that is per cohort
    buffer: tuple[Waiting, ...]  # fewer than K
    filled: int  # k, how many there are in the buffer
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FedBuff(Weighted[FedBuffState]):
    """Adds the mean of K scaled updates to the model, as soon as K have arrived.

    No defence by itself: one client's long update is in the mean, and a fast client is in the buffer more than once.
    With a robust rule as `aggregate`, fewer of the K than the rule stands must be attackers' whatever their speed.

    Args:
        size: K, the quorum, updates waited for; of any clients, also twice of one. 10 in the paper.
        staleness: s(tau), the factor on an update that is tau server updates old.
        server_lr: eta_g, factor on the aggregate.
        aggregate: the rule for the updates in the buffer; the mean in the paper.
        preprocess: what declared sizes count for; nothing in the paper's Algorithm 1.
    """

    synchronous: ClassVar[bool] = False
    observed: ClassVar[tuple[str, ...]] = ("filled",)

    size: int = 10
    staleness: Staleness = Polynomial(0.5)
    server_lr: float = 1.0
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}.")
        if not 0 < self.server_lr < float("inf"):
            raise ValueError(f"server_lr must be positive and finite, got {self.server_lr}.")

    @property
    def rule(self) -> Aggregator:
        """See `Algorithm`."""
        return self.aggregate

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedBuffState, Set[int]]:
        """See `Algorithm`."""
        weights = self.preprocess.enrolled(sizes)
        check_rows(self.aggregate, self.size, "size")
        warn_of_weights(self.preprocess, self.aggregate)
        return FedBuffState(0, model, sizes, weights, (), 0, None, {}), sizes.keys()

    def step(self, state: FedBuffState, updates: Updates) -> tuple[FedBuffState, Set[int]]:
        """See `Algorithm`."""
        verdicts = dict[int, Verdict]()
        for arrival in one_by_one(updates):
            state = self._receive(state, arrival)
            verdicts |= state.verdicts
        return state._replace(verdicts=verdicts), set(updates.clients)

    def _receive(self, state: FedBuffState, arrival: Arrival) -> FedBuffState:
        tau = state.version - arrival.version
        s = self.staleness(tau)
        buffer = (*state.buffer, Waiting(arrival.client, tau, s, s * arrival.delta))
        k = len(buffer)
        if k == self.size:
            return self._use(state, buffer)
        told = "; ".join(filter(None, (f"waits in the buffer, {k} of {self.size}", told_of_age(tau))))
        verdicts = {arrival.client: Verdict(True, 0.0, float(tau), told, waits=True)}
        return state._replace(buffer=buffer, filled=k, verdicts=verdicts)

    def _use(self, state: FedBuffState, buffer: tuple[Waiting, ...]) -> FedBuffState:
        changes = torch.stack([waiting.change for waiting in buffer])
        n = self._weights(state, buffer).to(changes.device)
        delta, choice = self.aggregate.explained(changes, n, turn=state.version, previous=state.aggregate)
        return state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            buffer=(),
            filled=0,
            aggregate=delta,
            verdicts=_verdicts(buffer, n, choice),
        )

    def _weights(self, state: FedBuffState, buffer: tuple[Waiting, ...]) -> Weights:
        """The weight of each update in the buffer, float64: that of its client."""
        n = self.preprocess.among(state.weights, {waiting.client for waiting in buffer})
        return torch.tensor([n[waiting.client] for waiting in buffer], dtype=torch.float64)


def _verdicts(buffer: tuple[Waiting, ...], n: Weights, choice: Choice | None) -> dict[int, Verdict]:
    """What became of each client's updates in the buffer; its shares are added, and the last one is told of."""
    shares = (n / n.sum() if choice is None else choice.shares).tolist()
    verdicts = dict[int, Verdict]()
    for row, (waiting, share) in enumerate(zip(buffer, shares, strict=True)):
        i, tau = waiting.client, waiting.age
        weight = share * waiting.scale + (verdicts[i].weight if i in verdicts else 0.0)
        why = choice.reasons[row] if choice is not None and choice.reasons else ""
        told = "; ".join(filter(None, (why, told_of_age(tau))))
        verdicts[i] = Verdict(weight > 0, weight, float(tau), told or ("" if weight > 0 else "no share in the rule"))
    return verdicts
