"""Clustered federated learning as a defence.

Sattler, Müller, Wiegand and Samek, "On the Byzantine Robustness of Clustered Federated Learning", 2020.
`ByzantineCFL` is Algorithm 1 with line 18: the largest cluster is benign, the rest is removed.

Where the paper is silent or ambiguous:

* One threshold goes by three names (alpha_cross^max, alpha_cross^thresh, alpha_max^cross).  It is `threshold`, and a
  split needs alpha_cross < threshold.
* Line 18 removes one group a round.  The Byzantine clients of Figure 2 leave one by one, over up to 34 rounds, and in
  every round before that the rest of them spoils the average.  `until_stable` repeats lines 12 to 18 within a round
  until nobody leaves; the paper's form is the default.
* The largest cluster must exist, and be the majority that the paper assumes: equal halves are not separated, nor is a
  group by one that is not itself more than half of all enrolled clients.  The verdicts of that round say so.  Without
  this rule, cosines that decay late in training (or a threshold set too high) remove everybody, one by one, and in a
  small sample of clients the attackers remove the honest.  So rounds must bring more than half of all clients.
* A zero update has no direction: it counts as orthogonal to all others (and leaves, with the other zero updates).
* The constant 0.02 depends on the dimension.  Independent random vectors are orthogonal on average, but the closest of
  m in d dimensions has a cosine of about sqrt(2 ln m / d), which exceeds 0.02 for some 23,000 parameters or fewer:
  random attackers then stay.  `init` warns, and says what to set.
* Line 23 averages without weights.  `preprocess` and `aggregate` can be set, for comparison and for defence in depth.
"""

import math
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.fedavg import verdicts_of, warn_of_weights, weights_of
from phalanx.clustering import bipartition, cross_similarity
from phalanx.core import Algorithm, Updates, Vector, Verdict
from phalanx.linalg import cosine_similarity
from phalanx.weighting import Ignore, Preprocess


class ByzantineCFLState(NamedTuple):
    """What the server of `ByzantineCFL` carries over."""

    version: int  # rounds completed
    model: Vector  # theta of the benign cluster
    weights: Mapping[int, float]  # n_k, fixed at enrolment: after preprocessing, or before it if that is per cohort
    benign: frozenset[int]  # c, the clients that still take part
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    alpha_cross: float | None  # cosine between the two candidates of the last split tried; None before the first
    threshold: float  # the cosine below which they are separated
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class ByzantineCFL(Algorithm[ByzantineCFLState]):
    """Keeps the largest cluster of similar updates, and removes the others for good.

    Assumes that the benign clients are more than half and share one distribution: honest clients with different data
    are removed too.  Sees directions only: attackers that move along with the honest ones stay.

    Args:
        threshold: alpha_cross^max in [-1, 1), the cosine below which two groups are separated.
        until_stable: split until nobody leaves in each round, instead of once a round.
        aggregate: the rule within the benign cluster; the mean in the paper.
        preprocess: what declared sizes count for; nothing in the paper.
    """

    observed: ClassVar[tuple[str, ...]] = ("alpha_cross", "threshold")

    threshold: float = 0.02
    until_stable: bool = False
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()

    def __post_init__(self) -> None:
        if not -1 <= self.threshold < 1:
            raise ValueError(f"threshold must lie in [-1, 1), got {self.threshold}: it is compared with a cosine.")

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[ByzantineCFLState, Set[int]]:
        """See `Algorithm`."""
        weights = self.preprocess.enrolled(sizes)
        warn_of_weights(self.preprocess, self.aggregate)
        self._warn(len(sizes), len(model))
        benign = frozenset(sizes)
        return ByzantineCFLState(0, model, weights, benign, None, None, self.threshold, {}), benign

    def step(self, state: ByzantineCFLState, updates: Updates) -> tuple[ByzantineCFLState, Set[int]]:
        """See `Algorithm`."""
        updates = updates.of(state.benign)
        c, alpha_cross, verdicts = self._separate(state, updates)
        kept = updates.of(c)
        n = weights_of(self.preprocess, state.weights, kept)
        delta, choice = self.aggregate.explained(kept.deltas, n, turn=state.version, previous=state.aggregate)
        model = state.model + delta  # line 23
        for i, verdict in verdicts_of(kept, n, choice).items():
            reason = verdict.reason or verdicts[i].reason
            verdicts[i] = verdicts[i]._replace(accepted=verdict.accepted, weight=verdict.weight, reason=reason)
        benign = state.benign - (set(updates.clients) - c)
        new = state._replace(
            version=state.version + 1,
            model=model,
            benign=benign,
            aggregate=delta,
            alpha_cross=alpha_cross,
            verdicts=verdicts,
        )
        return new, benign

    def _separate(
        self, state: ByzantineCFLState, updates: Updates
    ) -> tuple[Set[int], float | None, dict[int, Verdict]]:
        """Lines 11 to 18: who stays, the smallest alpha_cross seen, and verdicts in which nobody has weight yet."""
        ids, m = updates.clients, len(state.weights)
        alpha = cosine_similarity(updates.deltas).cpu()  # line 11
        c, alpha_cross, remark = list(range(len(ids))), None, ""
        verdicts = dict[int, Verdict]()
        while len(c) > 1:
            within = alpha[c][:, c]
            groups = bipartition(within)  # line 12
            cross = cross_similarity(within, groups)  # line 13
            alpha_cross = cross if alpha_cross is None else min(alpha_cross, cross)
            if not cross < self.threshold:  # line 14
                break
            smaller, larger = sorted(groups, key=len)
            if 2 * len(larger) <= m:
                remark = f"no majority: alpha_cross {cross:.3f} separates {len(larger)} from {len(smaller)}"
                break
            for k in smaller:  # line 18
                reason = f"cosine cluster of {len(smaller)}, benign cluster has {len(larger)}"
                verdicts[ids[c[k]]] = Verdict(False, 0.0, cross, reason, final=True)
            c = [c[k] for k in larger]
            if not self.until_stable:
                break
        verdicts |= {ids[row]: Verdict(True, 0.0, _closest(alpha, row), remark) for row in c}
        return {ids[row] for row in c}, alpha_cross, verdicts

    def _warn(self, m: int, d: int) -> None:
        floor = noise_floor(m, d)
        if self.threshold > floor:
            return
        enough = 0.02 + 2 * floor
        remedy = f"Set threshold = {enough:.2g}, or take a larger model" if enough < 1 else "Take a larger model"
        warnings.warn(
            f"threshold = {self.threshold:g} is not above {floor:.3f}, the largest cosine to expect between one random "
            f"vector and {m} others of {d:,} parameters: attackers that send noise may stay. {remedy}.",
            stacklevel=3,
        )


def noise_floor(m: int, d: int) -> float:
    """The largest cosine to expect between one random vector and m others in d dimensions, sqrt(2 ln m / d)."""
    return math.sqrt(2 * math.log(max(m, 2)) / d)


def _closest(alpha: Float[Tensor, "m m"], row: int) -> float | None:
    others = torch.cat([alpha[row, :row], alpha[row, row + 1 :]])
    return float(others.max()) if len(others) else None
