"""Federated averaging, with any rule in place of the average.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", 2017.  `FedAvg` is Algorithm 1; `FedAvg(aggregate=Median())` is the usual robust variant of it.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.rounds import Weighted, verdicts_of, weights_of
from phalanx.core import Updates, Vector, Verdict
from phalanx.fields import PositiveFloat
from phalanx.promises.promise_watch import combine
from phalanx.weighting import AsReported, Preprocess


class FedAvgState(NamedTuple):
    """The server's state of `FedAvg`."""

    version: int  # t, rounds completed
    model: Vector  # w_t
    sizes: Mapping[int, int]  # as reported
    # n_k after preprocessing, or before it if that is per cohort; computed again when a client joins
    weights: Mapping[int, float]
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FedAvg(Weighted[FedAvgState]):
    """The aggregate of all updates of a round, added to the model.

    Args:
        aggregate: the rule; the weighted mean is FedAvg proper.
        preprocess: makes weights of the reported sizes.
        server_lr: factor on the aggregate; 1 in the paper.
    """

    aggregate: Aggregator = Mean()
    preprocess: Preprocess = AsReported()
    server_lr: PositiveFloat = 1.0

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedAvgState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        return FedAvgState(0, model, sizes, weights, None, {}), weights.keys()

    @override
    def step(self, state: FedAvgState, updates: Updates) -> tuple[FedAvgState, Set[int]]:
        n = weights_of(self.weights(state, updates.clients), updates)
        delta, choice = combine(
            self.aggregate, updates.deltas, n, updates.clients, "round", turn=state.version, previous=state.aggregate
        )
        new = state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            aggregate=delta,
            verdicts=verdicts_of(updates, n, choice, self.remark(state, updates)),
        )
        return new, state.weights.keys()
