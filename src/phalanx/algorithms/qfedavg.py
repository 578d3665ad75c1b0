"""Federated learning that improves the clients with the largest losses.

Li, Sanjabi, Beirami and Smith, "Fair Resource Allocation in Federated Learning", 2020.  `QFedAvg` is Algorithm 2
(q-FedAvg), which minimises the objective q-FFL,

    f(w) = sum_k p_k / (q + 1) F_k(w)^(q + 1),

where F_k is the mean loss of client k.  The larger q is, the more the clients with a large loss count.  In a step each
client k trains w into w_k, and

    Delta w_k = L (w - w_k),   Delta_k = F_k^q Delta w_k,   h_k = q F_k^(q-1) |Delta w_k|^2 + L F_k^q,
    w <- w - sum_k p_k Delta_k / sum_k p_k h_k.

Here the same is written with shares s_k = p_k F_k^q / sum_j p_j F_j^q, which do not overflow whatever q and F are:

    w <- w + damping * sum_k s_k (w_k - w),   1 / damping = sum_k s_k (1 + q L |w_k - w|^2 / F_k).

Where the paper is silent or the authors' code says more:

* F_k is the loss of the model that was received, on all training examples of the client, as in the authors' code; the
  mean over its first epoch, which costs nothing, is smaller since the model learns during the epoch.
* F_k = 0 would leave q F_k^(q-1) without a value; 1e-10 is added to each loss, as in the code.
* The paper samples clients with probabilities p_k and then gives them equal weights.  Here they are sampled uniformly,
  if at all, and `preprocess` makes p_k of the reported sizes: equal by default, which is the unweighted form of the
  code.
* 1/L is the learning rate of the clients, in paper and code.  An algorithm does not know how clients train, so it is a
  field, which must equal `training.lr`.  It matters for q > 0 only.

The clients report their losses themselves.  With q > 0, a client that reports an enormous loss controls the model.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override

from phalanx.aggregators import Choice
from phalanx.aggregators.points import Points
from phalanx.algorithms.rounds import Weighted, verdicts_of, weights_of
from phalanx.core import Traits, Updates, Vector, Verdict
from phalanx.fields import NonNegativeFloat, PositiveFloat
from phalanx.training.sgd import Schedule
from phalanx.weighting import Ignore, Preprocess

LEAST = 1e-10  # added to each loss


class QFedAvgState(NamedTuple):
    """The server's state of `QFedAvg`."""

    version: int  # t, rounds completed
    model: Vector  # w^t
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # p_k up to a factor: after preprocessing, or before it if that is per cohort
    losses: Mapping[int, float]  # F_k of the clients of the last round, as reported
    damping: float | None  # length of the last step over that of the averaged update, in (0, 1]; None before the first
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class QFedAvg(Weighted[QFedAvgState]):
    """A mean with weights that grow with each client's loss, and a step that is shortened accordingly.

    q = 0 is `FedAvg` with equal weights; a large q approaches the largest loss alone.  No defence.

    Args:
        q: how much a large loss counts, at least 0; 0.1 in the experiments of Xu and Lyu (2020).
        lr: 1/L, the clients' learning rate, or its schedule: the same as `training.lr`.
        preprocess: makes weights of the reported sizes; all are equal by default.
    """

    q: NonNegativeFloat = 0.1
    lr: PositiveFloat | Schedule = 0.1
    preprocess: Preprocess = Ignore()

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(observed=("damping", "losses"), exact_losses=True)

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[QFedAvgState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        return QFedAvgState(0, model, sizes, weights, {}, None, {}), weights.keys()

    @override
    def step(self, state: QFedAvgState, updates: Updates) -> tuple[QFedAvgState, Set[int]]:
        lr = self.lr(state.version) if isinstance(self.lr, Schedule) else self.lr
        L, q = 1 / lr, self.q
        points = Points.of(updates.deltas)
        p = weights_of(self.weights(state, updates.clients), updates).cpu()
        F = updates.losses.double().cpu() + LEAST

        s = p * (F / F.max()) ** q
        s = s / s.sum()
        damping = float(1 / (s * (1 + q * L * points.norms.square() / F)).sum())
        new = state._replace(
            version=state.version + 1,
            model=state.model + damping * points.combine(s),
            losses=dict(zip(updates.clients, updates.losses.tolist(), strict=True)),
            damping=damping,
            verdicts=verdicts_of(updates, p, Choice(s, updates.losses.tolist()), self.remark(state, updates)),
        )
        return new, state.weights.keys()
