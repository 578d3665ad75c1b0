"""FoolsGold: clients whose updates always have the direction of another client's get less weight.

Fung, Yoon and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings", 2020.  `FoolsGold` is Algorithm
1 with its memory; `phalanx.aggregators.FoolsGoldWeights` is the same on the updates of one round:

    H_i <- H_i + Delta_i;   cs_ij <- cosine of H_i and H_j;   v_i <- max_j cs_ij
    where v_j > v_i:  cs_ij <- cs_ij v_i / v_j                                        (pardoning)
    alpha_i <- 1 - max_j cs_ij;  alpha_i <- alpha_i / max_i alpha_i
    alpha_i <- kappa ( ln( alpha_i / (1 - alpha_i) ) + 0.5 ),  clipped to [0, 1]      (logit)
    w <- w + sum_i alpha_i Delta_i

Where the paper is silent or ambiguous:

* The sum of the last line makes a step of m clients m times as long as an update, so that a learning rate that is good
  for one client is m times too large for all of them.  By default the step is the mean with the weights alpha_i, which
  is as long as an update, whichever clients are left out; `step_length="sum"` is the paper's line.
* A client that does not take part in a round keeps its H_i, and others are still compared with it: Sybils cannot avoid
  the comparison by taking turns.
* If all clients that report have alpha = 0, the model does not change, and the round is lost.  The paper divides zero
  by zero if all clients have the direction of another.
* The largest cosine is at least 0, and a rescaled alpha of 1 counts as 0.99, as in `FoolsGoldWeights`.
* "Indicative features": the cosines can be restricted to the parameters of the output layer.  A vector has no layers;
  `last` says how many parameters, counted from the end, that are.  The paper's soft weighting of features is left out.
* Reported sizes are not used.

An attacker without an accomplice has full weight.  Honest clients with similar data count as Sybils, and the client
that is least similar to the others has most of the weight: `docs/measurements/xu-lyu-baselines.md` has the numbers.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators.foolsgold import learning_rates
from phalanx.aggregators.points import Points
from phalanx.algorithms.rounds import Unweighted
from phalanx.core import InfeasibleError, Traits, Updates, Vector, Verdict, Weights
from phalanx.fields import PositiveFloat, PositiveInt
from phalanx.numerics.linalg import cosine_similarity


class FoolsGoldState(NamedTuple):
    """The server's state of `FoolsGold`."""

    version: int  # t, rounds completed
    model: Vector  # w_t
    clients: frozenset[int]  # clients that take part
    sums: Mapping[int, Vector]  # H_i: sum of each client's updates so far, for the compared parameters
    alphas: Mapping[int, float]  # alpha_i of all clients that have sent something
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class FoolsGold(Unweighted[FoolsGoldState]):
    """Less weight for a client, the more its sum of updates has the direction of another client's.

    A defence against any number of Sybils, if honest clients differ from each other more than Sybils do.  Memory at the
    server: one vector of `last` parameters for each client.

    Args:
        confidence: kappa, the factor on the logit; the larger, the more weights are 0 or 1. 1 in the experiments of Xu
            and Lyu (2020).
        last: number of parameters that are compared, counted from the end: those of the output layer, say. All if None.
        step_length: "mean": the step is the weighted mean of the updates; "sum": their weighted sum, as in the paper.
        server_lr: factor on that.
    """

    confidence: PositiveFloat = 1.0
    last: PositiveInt | None = None
    step_length: Literal["mean", "sum"] = "mean"
    server_lr: PositiveFloat = 1.0

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(observed=("alphas",))

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[FoolsGoldState, Set[int]]:
        if self.last is not None and self.last > len(model):
            raise InfeasibleError(
                f"FoolsGold is to compare the last {self.last:,} parameters, and the model has {len(model):,}. "
                "Set last to the number of parameters of its output layer, or to None for all."
            )
        return FoolsGoldState(0, model, frozenset(sizes), {}, {}, {}), sizes.keys()

    @override
    def step(self, state: FoolsGoldState, updates: Updates) -> tuple[FoolsGoldState, Set[int]]:
        sums = self._remembered(state.sums, updates)
        known = sorted(sums)
        cs = cosine_similarity(torch.stack([sums[i] for i in known])).cpu().fill_diagonal_(0)
        alpha = learning_rates(cs, self.confidence)

        rows = [known.index(i) for i in updates.clients]
        weights = alpha[rows] if self.step_length == "sum" else _shares(alpha[rows])
        new = state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * Points.of(updates.deltas).combine(weights),
            sums=sums,
            alphas=dict(zip(known, alpha.tolist(), strict=True)),
            verdicts=_verdicts(updates.clients, alpha[rows], cs[rows], known),
        )
        return new, state.clients

    def _remembered(self, sums: Mapping[int, Vector], updates: Updates) -> dict[int, Vector]:
        """Return H with the updates of this round."""
        start = 0 if self.last is None else updates.deltas.shape[1] - self.last
        sent = dict(zip(updates.clients, updates.deltas[:, start:], strict=True))
        return {**sums, **{i: sums[i] + row if i in sums else row.clone() for i, row in sent.items()}}


def _shares(alpha: Weights) -> Weights:
    """Return alpha over its sum; zeros if all are zero."""
    total = alpha.sum()
    return alpha / total if float(total) > 0 else torch.zeros_like(alpha)


def _verdicts(
    clients: Sequence[int], alpha: Weights, cs: Float[Tensor, "m n"], known: Sequence[int]
) -> dict[int, Verdict]:
    """Return the verdict on each update, with the most similar client if the weight is reduced.

    Args:
        clients: senders of the updates.
        alpha: of each of them.
        cs: cosines of each of them with all known clients.
        known: ids of the known clients.
    """
    verdicts, like = {}, cs.argmax(1).tolist()
    for k, (i, a, share) in enumerate(zip(clients, alpha.tolist(), _shares(alpha).tolist(), strict=True)):
        reason = f"cosine {float(cs[k, like[k]]):.3f} with client {known[like[k]]}" if a < 1 else ""
        verdicts[i] = Verdict(share > 0, share, a, reason)
    return verdicts
