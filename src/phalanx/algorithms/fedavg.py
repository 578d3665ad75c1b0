"""Federated averaging, with any rule in place of the average.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", 2017.  `FedAvg` is Algorithm 1; `FedAvg(aggregate=Median())` is the usual robust variant of it.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch

from phalanx.aggregators import Mean
from phalanx.core import Aggregator, Algorithm, Updates, Vector, Verdict, Weights
from phalanx.weighting import AsDeclared, Preprocess


class FedAvgState(NamedTuple):
    """What the server of `FedAvg` carries over."""

    version: int  # t, rounds completed
    model: Vector  # w_t
    weights: Mapping[int, float]  # n_k after preprocessing, fixed at enrolment
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FedAvg(Algorithm[FedAvgState]):
    """Adds the aggregate of all updates of a round to the model.

    Args:
        aggregate: the rule; the weighted mean is FedAvg proper.
        preprocess: what declared sizes count for.
        server_lr: factor on the aggregate; 1 in the paper.
    """

    aggregate: Aggregator = Mean()
    preprocess: Preprocess = AsDeclared()
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise ValueError(f"server_lr must be positive, got {self.server_lr}.")

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FedAvgState, Set[int]]:
        """See `Algorithm`."""
        weights = self.preprocess(sizes)
        return FedAvgState(0, model, weights, {}), weights.keys()

    def step(self, state: FedAvgState, updates: Updates) -> tuple[FedAvgState, Set[int]]:
        """See `Algorithm`."""
        n = weights_of(state.weights, updates)
        model = state.model + self.server_lr * self.aggregate(updates.deltas, n)
        return FedAvgState(state.version + 1, model, state.weights, equal_verdicts(updates, n)), state.weights.keys()


def weights_of(weights: Mapping[int, float], updates: Updates) -> Weights:
    """The weights of those clients that sent `updates`, in their order, float64."""
    return torch.tensor([weights[i] for i in updates.clients], dtype=torch.float64, device=updates.deltas.device)


def equal_verdicts(updates: Updates, weights: Weights) -> dict[int, Verdict]:
    """All accepted, each with its share of the weight."""
    shares = (weights / weights.sum()).tolist()
    return {i: Verdict(True, share) for i, share in zip(updates.clients, shares, strict=True)}
