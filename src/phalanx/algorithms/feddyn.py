"""FedDyn: each client's loss gets a linear and a quadratic term, so that its minimum comes to be that of all.

Acar et al., "Federated Learning Based on Dynamic Regularization", 2021, Algorithm 1.  A client i of a round trains

    L_i(w) - <h_i, w> + alpha/2 |w - x|^2      from the model x to w_i, and then    h_i <- h_i - alpha (w_i - x)

and the server, with m clients in all of whom those in P take part,

    h <- h - alpha / m * sum over P of (w_i - x),      x <- mean over P of w_i - h / alpha.

Here H = -h / alpha, so that with the aggregate Delta of the updates w_i - x

    H <- H + |P| / m * Delta,                          x <- x + Delta + H.

Where it differs from the paper: the mean is weighted if `preprocess` says so, and may be any rule.  A client whose
update is lost keeps its h_i.

Byzantine clients: H sums up the aggregates, so the error of a robust rule, which is bounded in each round, adds up over
rounds if it always points the same way: H rounds shift the model by H (H + 3) / 2 times the honest range of a round at
most.  Their h_i are their own.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.rounds import Weighted, drift, stays_in_range, verdicts_of, weights_of
from phalanx.core import Correction, Local, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.fields import PositiveFloat
from phalanx.promises.promise_watch import combine
from phalanx.weighting import AsReported, Preprocess


class FedDynState(NamedTuple):
    """The server's state of `FedDyn`."""

    version: int  # rounds completed
    model: Vector  # x
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing, or before it if that is per cohort
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    total: Vector  # H
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FedDyn(Weighted[FedDynState]):
    """Clients with a loss that is corrected by their past updates, and a server that goes on by the sum of its steps.

    Args:
        alpha: of the terms, positive; 0.1, 0.01 or 0.001 in the paper. Small: clients go further alone.
        aggregate: the rule; the mean is FedDyn proper.
        preprocess: makes weights of the reported sizes.
    """

    alpha: PositiveFloat = 0.01
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = AsReported()

    # Role: client

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(keeps="memory")

    @override
    def correction(self, local: Local | None, download: Vector, reach: float) -> Correction:
        """See `Algorithm`: the gradients of the two terms."""
        h = torch.zeros_like(download) if local is None or local.memory is None else local.memory
        return Correction(-h, self.alpha)

    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`: the change; h_i is what is remembered."""
        return delta, (-self.alpha * delta if memory is None else memory - self.alpha * delta)

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedDynState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        return FedDynState(0, model, sizes, weights, None, torch.zeros_like(model), {}), weights.keys()

    @override
    def part(self, state: FedDynState, clients: Mapping[int, int]) -> tuple[FedDynState, Set[int]]:
        """See `Algorithm`: H stays, as the clients keep their h_i."""
        new, ready = self.init(state.model, clients)
        return new._replace(total=state.total), ready

    @override
    def step(self, state: FedDynState, updates: Updates) -> tuple[FedDynState, Set[int]]:
        n = weights_of(self.weights(state, updates.clients), updates)
        delta, choice = combine(
            self.aggregate, updates.deltas, n, updates.clients, "round", turn=state.version, previous=state.aggregate
        )
        total = state.total + len(updates) / len(state.weights) * delta
        new = state._replace(
            version=state.version + 1,
            model=state.model + delta + total,
            aggregate=delta,
            total=total,
            verdicts=verdicts_of(updates, n, choice, self.remark(state, updates)),
        )
        return new, state.weights.keys()

    @override
    def pools(self, setting: Setting, state: FedDynState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: each aggregate moves the model in its round, and in this and all later ones as part of H.

        So after H rounds the j-th has moved it 1 + (H - j + 1) times at most.
        """
        beyond = drift("Each step is repeated in all later ones.", self.rule, far="H (H + 3) / 2")
        bounds = "shift" if stays_in_range(self.rule) else "share"
        return (Pool.of_round(self.rule, self.preprocess, setting, bounds=bounds, beyond=beyond),)
