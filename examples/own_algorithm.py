"""A custom algorithm: federated averaging with momentum on the server (Hsu et al. 2019).

phalanx run --algorithm own_algorithm.ServerMomentum --algorithm.momentum 0.8        (from the folder examples)
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta

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

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9

    def init(self, model, sizes):
        return State(0, model, torch.zeros_like(model), frozenset(sizes), {}), frozenset(sizes)

    def step(self, state, updates):
        velocity = self.momentum * state.velocity + updates.deltas.mean(0)
        verdicts = {i: Verdict(True, 1 / len(updates)) for i in updates.clients}
        return State(state.version + 1, state.model + velocity, velocity, state.everyone, verdicts), state.everyone
