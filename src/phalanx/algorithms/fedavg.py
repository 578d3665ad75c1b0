"""Federated averaging, with any rule in place of the average.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep Networks from
Decentralized Data", 2017.  `FedAvg` is Algorithm 1; `FedAvg(aggregate=Median())` is the usual robust variant of it.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

import torch

from phalanx.aggregators import Aggregator, Choice, Mean
from phalanx.core import Algorithm, Updates, Vector, Verdict, Weights
from phalanx.weighting import AsDeclared, Preprocess


class FedAvgState(NamedTuple):
    """What the server of `FedAvg` carries over."""

    version: int  # t, rounds completed
    model: Vector  # w_t
    weights: Mapping[int, float]  # n_k after preprocessing, fixed at enrolment
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
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
        return FedAvgState(0, model, weights, None, {}), weights.keys()

    def step(self, state: FedAvgState, updates: Updates) -> tuple[FedAvgState, Set[int]]:
        """See `Algorithm`."""
        n = weights_of(state.weights, updates)
        delta, choice = self.aggregate.explained(updates.deltas, n, turn=state.version, previous=state.aggregate)
        new = FedAvgState(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            weights=state.weights,
            aggregate=delta,
            verdicts=verdicts_of(updates, n, choice),
        )
        return new, state.weights.keys()


def weights_of(weights: Mapping[int, float], updates: Updates) -> Weights:
    """The weights of those clients that sent `updates`, in their order, float64."""
    return torch.tensor([weights[i] for i in updates.clients], dtype=torch.float64, device=updates.deltas.device)


def verdicts_of(updates: Updates, weights: Weights, choice: Choice | None) -> dict[int, Verdict]:
    """What a rule made of each update; where it does not treat updates as a whole, each has its share of the weight."""
    if choice is None:
        return {i: Verdict(True, w) for i, w in zip(updates.clients, (weights / weights.sum()).tolist(), strict=True)}
    verdicts = {}
    for k, (i, share) in enumerate(zip(updates.clients, choice.shares.tolist(), strict=True)):
        score = None if choice.scores is None else float(choice.scores[k])
        verdicts[i] = Verdict(share > 0, share, score, choice.reasons[k] if choice.reasons else "")
    return verdicts
