"""A custom algorithm: federated averaging with momentum on the server (Hsu et al. 2019).

phalanx run --algorithm own_algorithm.ServerMomentum --algorithm.momentum 0.8        (from the folder examples)
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from phalanx import Algorithm, Verdict


class State(NamedTuple):
    version: int
    model: torch.Tensor
    velocity: torch.Tensor
    everyone: frozenset[int]
    verdicts: dict[int, Verdict]


@dataclass(frozen=True)
class ServerMomentum(Algorithm[State]):
    """Averages updates, and adds their decaying sum to the model.

    Args:
        momentum: share of the last step that is taken again, in [0, 1).
    """

    momentum: float = 0.9

    def __post_init__(self):
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}.")

    def init(self, model, sizes):
        return State(0, model, torch.zeros_like(model), frozenset(sizes), {}), frozenset(sizes)

    def step(self, state, updates):
        velocity = self.momentum * state.velocity + updates.deltas.mean(0)
        verdicts = {i: Verdict(True, 1 / len(updates)) for i in updates.clients}
        return State(state.version + 1, state.model + velocity, velocity, state.everyone, verdicts), state.everyone
