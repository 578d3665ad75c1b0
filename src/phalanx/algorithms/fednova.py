"""FedNova: updates are divided by the number of steps that they took, so that many steps do not count twice.

Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", 2020, Equation 7: client i takes tau_i steps to the update Delta_i, and with weights p_i

    x <- x + tau_eff * sum_i p_i Delta_i / |a_i|,      tau_eff = sum_i p_i |a_i|,

where |a_i| = tau_i for plain gradient descent, and (tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho) with local
momentum rho (their Section 4.2).

Where it differs from the paper:

* tau_i follows from the reported size, and from `epochs` and `batch_size`, which must be those of `training`.  A client
  that lies of its size changes the length of its own update, which it can choose anyway, and its weight, which
  `preprocess` bounds.
* The sums are any rule: it combines the divided updates, and the |a_i| to tau_eff, with the same weights.  So a false
  size has no more effect on the length of the step than the rule leaves it.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.fedavg import FedAvgState
from phalanx.algorithms.rounds import Weighted, verdicts_of, weights_of
from phalanx.core import Pool, Setting, Traits, Updates, Vector
from phalanx.numerics.linalg import scaled
from phalanx.promises.promise_watch import combine
from phalanx.training.sgd import LocalSGD
from phalanx.weighting import AsReported, Preprocess


@dataclass(frozen=True)
class FedNova(Weighted[FedAvgState]):
    """The aggregate of updates per step, times the aggregate number of steps.

    Args:
        training: the clients' local training: the same as `training` of the run.
        aggregate: the rule; the weighted mean is FedNova proper.
        preprocess: makes weights of the reported sizes.
    """

    training: LocalSGD = LocalSGD()
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = AsReported()

    @property
    @override
    def traits(self) -> Traits:
        """See `Algorithm`: clients must take the steps that divide their updates."""
        return super().traits._replace(pace=self.training.pace)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedAvgState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        return FedAvgState(0, model, sizes, weights, None, {}), weights.keys()

    def length(self, size: int) -> float:
        """Return |a_i| of a client with so many examples: its steps, as many as it would take without momentum."""
        tau, rho = self.training.count(size), self.training.momentum
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)

    @override
    def step(self, state: FedAvgState, updates: Updates) -> tuple[FedAvgState, Set[int]]:
        n = weights_of(self.weights(state, updates.clients), updates)
        lengths = torch.tensor([self.length(state.sizes[i]) for i in updates.clients], dtype=torch.float64)
        rows = scaled(updates.deltas, 1 / lengths)
        each, choice = combine(
            self.aggregate, rows, n, updates.clients, "round", turn=state.version, previous=state.aggregate
        )
        together = float(
            combine(self.aggregate, lengths[:, None].to(n.device), n, updates.clients, "round", turn=state.version)[0]
        )
        new = state._replace(
            version=state.version + 1,
            model=state.model + together * each,
            aggregate=each,
            verdicts=verdicts_of(updates, n, choice, self.remark(state, updates)),
        )
        return new, state.weights.keys()

    @override
    def pools(self, setting: Setting, state: FedAvgState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: the step is a product of two results."""
        return (Pool.of_round(self.rule, self.preprocess, setting, bounds="share"),)
