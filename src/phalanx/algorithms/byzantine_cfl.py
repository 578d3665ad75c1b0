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
  small sample of clients the attackers remove the honest.  So rounds must bring more than half of all clients:
  `check_round` refuses a run that plans less, and verdicts say of a round that brought less.
* A zero update has no direction: it counts as orthogonal to all others, and as equal to other zero updates, with which
  it leaves.
* The constant 0.02 depends on the dimension.  Independent random vectors are orthogonal on average, but the closest of
  m in d dimensions has a cosine of about sqrt(2 ln m / d), which exceeds 0.02 for some 23,000 parameters or fewer:
  random attackers then stay.  `init` warns, and says what to set; `AboveNoise` sets it.
* Clients that were removed are not heard again.  With `retest_after` they are asked again after so many rounds: whose
  update is then similar to that of a benign client, by the same threshold, takes part from the next round on.  What it
  sent for the test counts for nothing.
* Nothing is said of clients that come late.  They take part at once, as line 11 compares their first update before it
  is averaged.
* Line 23 averages without weights.  `preprocess` and `aggregate` can be set, for comparison and for defence in depth.
"""

import math
import warnings
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.rounds import verdicts_of, warn_of_weights, weights_of
from phalanx.clustering import bipartition, cross_similarity
from phalanx.core import Algorithm, InfeasibleError, Updates, Vector, Verdict
from phalanx.numerics.linalg import cosine_similarity
from phalanx.weighting import Ignore, Preprocess


@dataclass(frozen=True)
class AboveNoise:
    """A threshold above what chance makes of unrelated updates: margin + factor sqrt(2 ln m / d).

    Args:
        margin: what is added, at least 0; the paper's constant.
        factor: of the largest cosine to expect between one random vector and m others of d parameters, at least 1.
    """

    margin: float = 0.02
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin must lie in [0, 1), got {self.margin}: it is a difference of cosines.")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be at least 1, got {self.factor}: below it, noise may stay.")

    def resolved(self, m: int, d: int) -> float:
        """The threshold for m clients and d parameters.

        Raises:
            InfeasibleError: the model is so small that no cosine is above it.
        """
        if (threshold := self.margin + self.factor * noise_floor(m, d)) < 1:
            return threshold
        raise InfeasibleError(
            f"With {m} clients and {d:,} parameters chance makes cosines of {noise_floor(m, d):.2f}, and no threshold "
            "below 1 is well above that. Take a larger model, or set threshold to a number."
        )


class ByzantineCFLState(NamedTuple):
    """What the server of `ByzantineCFL` carries over."""

    version: int  # rounds completed
    model: Vector  # theta of the benign cluster
    sizes: Mapping[int, int]  # as declared
    weights: Mapping[int, float]  # n_k: after preprocessing, or before it if that is per cohort
    benign: frozenset[int]  # c, the clients that take part
    removed: Mapping[int, int]  # the others, and the round in which each was removed, or tested last
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    alpha_cross: float | None  # cosine between the two candidates of the last split tried; None before the first
    threshold: float  # the cosine below which they are separated
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class ByzantineCFL(Algorithm[ByzantineCFLState]):
    """Keeps the largest cluster of similar updates, and removes the others, for good or until they are tested again.

    Assumes that the benign clients are more than half and share one distribution: honest clients with different data
    are removed too.  Sees directions only: attackers that move along with the honest ones stay.

    Args:
        threshold: alpha_cross^max in [-1, 1), the cosine below which two groups are separated.
        until_stable: split until nobody leaves in each round, instead of once a round.
        retest_after: rounds after which a removed client is asked once more, and again after as many; None: never. An
            attacker that behaves on these rounds comes back.
        aggregate: the rule within the benign cluster; the mean in the paper.
        preprocess: what declared sizes count for; nothing in the paper.
    """

    observed: ClassVar[tuple[str, ...]] = ("alpha_cross", "threshold")
    can_join: ClassVar[bool] = True

    threshold: float | AboveNoise = 0.02
    until_stable: bool = False
    retest_after: int | None = None
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, AboveNoise) and not -1 <= self.threshold < 1:
            raise ValueError(f"threshold must lie in [-1, 1), got {self.threshold}: it is compared with a cosine.")
        if self.retest_after is not None and self.retest_after < 1:
            raise ValueError(f"retest_after must be at least 1 round, or None for never, got {self.retest_after}.")

    @property
    def rule(self) -> Aggregator:
        """See `Algorithm`."""
        return self.aggregate

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[ByzantineCFLState, Set[int]]:
        """See `Algorithm`."""
        weights = self.preprocess.enrolled(sizes)
        warn_of_weights(self.preprocess, self.aggregate)
        threshold = self._threshold(len(sizes), len(model))
        benign = frozenset(sizes)
        return ByzantineCFLState(0, model, dict(sizes), weights, benign, {}, None, None, threshold, {}), benign

    def step(self, state: ByzantineCFLState, updates: Updates) -> tuple[ByzantineCFLState, Set[int]]:
        """See `Algorithm`."""
        t = state.version + 1
        tested, updates = updates.of(self._due(state)), updates.of(state.benign)
        if not len(updates):
            untold = Verdict(False, 0.0, None, "not tested: no benign client reported", final=True)
            new = state._replace(version=t, verdicts=dict.fromkeys(tested.clients, untold))
            return new, state.benign | self._due(new)
        c, alpha_cross, verdicts = self._separate(state, updates)
        kept = updates.of(c)
        n = weights_of(self.weights(state, kept.clients), kept)
        delta, choice = self.aggregate.explained(kept.deltas, n, turn=state.version, previous=state.aggregate)
        model = state.model + delta  # line 23
        for i, verdict in verdicts_of(kept, n, choice).items():
            reason = verdict.reason or verdicts[i].reason
            verdicts[i] = replace(verdicts[i], accepted=verdict.accepted, weight=verdict.weight, reason=reason)
        gone = set(updates.clients) - c
        removed = {**state.removed, **dict.fromkeys(sorted(gone), t)}
        back = self._test(state, tested, kept, verdicts)
        removed = {i: t if i in tested.clients else since for i, since in removed.items() if i not in back}
        benign = state.benign - gone | back
        new = state._replace(
            version=t,
            model=model,
            benign=benign,
            removed=removed,
            aggregate=delta,
            alpha_cross=alpha_cross,
            verdicts=dict(sorted(verdicts.items())),
        )
        return new, benign | self._due(new)

    def weights(self, state: ByzantineCFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: none for removed clients."""
        used = self.preprocess.among(state.weights, [i for i in clients if i in state.benign])
        return {i: used.get(i, 0.0) for i in clients}

    def check_round(self, m: int, population: int) -> None:
        """See `Algorithm`."""
        if 2 * m <= population:
            raise InfeasibleError(
                f"ByzantineCFL removes nobody unless more than half of all enrolled clients go on, and a round of {m} "
                f"of {population} can show no such majority: nobody would ever be removed. Have more than half of the "
                "clients take part in each round."
            )

    def join(self, state: ByzantineCFLState, client: int, size: int) -> ByzantineCFLState:
        """See `Algorithm`: a new client is taken for benign until its update is not."""
        sizes = {**state.sizes, client: size}
        weights = self.preprocess.enrolled(sizes)
        threshold = self._threshold(len(sizes), len(state.model))
        return state._replace(sizes=sizes, weights=weights, benign=state.benign | {client}, threshold=threshold)

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
            if not cross < state.threshold:  # line 14
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
        if not remark and 2 * len(ids) <= m:
            remark = f"nobody can be removed: {len(ids)} of {m} enrolled clients reported, no majority"
        verdicts |= {ids[row]: Verdict(True, 0.0, _closest(alpha, row), remark) for row in c}
        return {ids[row] for row in c}, alpha_cross, verdicts

    def _due(self, state: ByzantineCFLState) -> Set[int]:
        """The removed clients that are to be tested in the next round."""
        if self.retest_after is None:
            return frozenset()
        return {i for i, since in state.removed.items() if state.version - since >= self.retest_after}

    def _test(
        self, state: ByzantineCFLState, tested: Updates, kept: Updates, verdicts: dict[int, Verdict]
    ) -> frozenset[int]:
        """Who of the tested clients comes back: those whose closest benign client is not below the threshold.

        Args:
            state: before the round.
            tested: the updates of removed clients.
            kept: those of clients that were not separated in this round.
            verdicts: takes theirs.
        """
        back = set[int]()
        if len(tested):
            alpha = cosine_similarity(torch.cat([tested.deltas, kept.deltas])).cpu()
            nearest = alpha[: len(tested), len(tested) :].max(1).values.tolist()
            for i, similarity in zip(tested.clients, nearest, strict=True):
                fine = not similarity < state.threshold
                told = "takes part from the next round on" if fine else "stays removed"
                reason = f"tested again: cosine {similarity:.3f} to the closest benign client, {told}"
                verdicts[i] = Verdict(False, 0.0, similarity, reason, final=not fine)
                back |= {i} if fine else set()
        return frozenset(back)

    def _threshold(self, m: int, d: int) -> float:
        """The threshold for m clients and d parameters; warns if it is too low for them."""
        if isinstance(self.threshold, AboveNoise):
            return self.threshold.resolved(m, d)
        self._warn(self.threshold, m, d)
        return self.threshold

    def _warn(self, threshold: float, m: int, d: int) -> None:
        floor = noise_floor(m, d)
        if threshold > floor:
            return
        enough = 0.02 + 2 * floor
        remedy = f"Set threshold = {enough:.2g}, or take a larger model" if enough < 1 else "Take a larger model"
        warnings.warn(
            f"threshold = {threshold:g} is not above {floor:.3f}, the largest cosine to expect between one random "
            f"vector and {m} others of {d:,} parameters: attackers that send noise may stay. {remedy}.",
            stacklevel=4,
        )


def noise_floor(m: int, d: int) -> float:
    """The largest cosine to expect between one random vector and m others in d dimensions, sqrt(2 ln m / d)."""
    return math.sqrt(2 * math.log(max(m, 2)) / d)


def _closest(alpha: Float[Tensor, "m m"], row: int) -> float | None:
    others = torch.cat([alpha[row, :row], alpha[row, row + 1 :]])
    return float(others.max()) if len(others) else None
