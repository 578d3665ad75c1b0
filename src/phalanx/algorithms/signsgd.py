"""SignSGD with majority vote: one bit per parameter, and one vote per client.

Bernstein, Zhao, Azizzadenesheli and Anandkumar, "signSGD with Majority Vote is Communication Efficient and Fault
Tolerant", 2019.  `SignSGD` is Algorithm 1 (Signum with majority vote):

    client k:  v_k <- beta v_k + (1 - beta) g_k,   sends sign(v_k)
    server:    sends sign( sum_k sign(v_k) )
    all:       x <- x - eta ( sign( sum_k sign(v_k) ) + lambda x )

Where the paper leaves a choice:

* g_k is a minibatch's gradient there.  Here it is the negative change of the client's training: with `training.steps`
  = 1 the learning rate times that gradient, of which only the sign counts; with a whole epoch, as Xu and Lyu (2020)
  have it, the negative change of that epoch.  The clients' learning rate then sets how far they look ahead, and not
  how far the model moves.
* A coordinate with equal votes up and down does not move, and a zero is no vote.
* The server takes the sign of all values: an attacker has one vote per coordinate, whatever it sends.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators import Choice, SignMajority
from phalanx.algorithms.rounds import Weighted, verdicts_of, weights_of
from phalanx.core import Updates, Vector, Verdict
from phalanx.fields import NonNegativeFloat, PositiveFloat
from phalanx.training.sgd import Schedule
from phalanx.weighting import Ignore, Preprocess


class SignSGDState(NamedTuple):
    """The server's state of `SignSGD`."""

    version: int  # t, rounds completed
    model: Vector  # x_t
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # votes of each client: after preprocessing, or before it if that is per cohort
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class SignSGD(Weighted[SignSGDState]):
    """Moves of each parameter by a fixed length, in the direction that most clients vote for.

    Tolerates attackers with less than one half of the votes, as far as the honest clients agree: a coordinate moves in
    the right direction if more than half of all votes are right.  Where honest votes are little better than coin flips,
    as late in training, few attackers suffice.

    Args:
        server_lr: eta, the length of each parameter's move, or a schedule by version. Small: all parameters move.
        momentum: beta in [0, 1), of the clients.
        weight_decay: lambda, at least 0; the model shrinks by eta lambda of itself in each round.
        preprocess: makes weights of the reported sizes; all are equal in the paper.
    """

    server_lr: PositiveFloat | Schedule = 1e-3
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    weight_decay: NonNegativeFloat = 0.0
    preprocess: Preprocess = Ignore()

    # Role: client
    @override
    def upload(self, delta: Vector, memory: Tensor | None) -> tuple[Vector, Tensor | None]:
        """See `Algorithm`: the signs of the momentum, which is the local state."""
        past = torch.zeros_like(delta) if memory is None else memory
        v = self.momentum * past + (1 - self.momentum) * delta
        return v.sign(), v

    # Role: server
    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[SignSGDState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        return SignSGDState(0, model, sizes, weights, {}), weights.keys()

    @override
    def step(self, state: SignSGDState, updates: Updates) -> tuple[SignSGDState, Set[int]]:
        eta = self.server_lr(state.version) if isinstance(self.server_lr, Schedule) else self.server_lr
        votes = weights_of(self.weights(state, updates.clients), updates)
        majority = SignMajority()(updates.deltas, votes)
        # Of each client, the share of the parameters on which its vote is that of the majority.
        agreement = [float((row.sign() == majority).double().mean()) for row in updates.deltas]
        choice = Choice((votes / votes.sum()).cpu(), agreement)
        new = state._replace(
            version=state.version + 1,
            model=state.model + eta * (majority - self.weight_decay * state.model),
            verdicts=verdicts_of(updates, votes, choice, self.remark(state, updates)),
        )
        return new, state.weights.keys()
