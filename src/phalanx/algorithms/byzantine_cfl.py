"""Clustered federated learning as a defence.

Sattler, Müller, Wiegand and Samek, "On the Byzantine Robustness of Clustered Federated Learning", 2020.
`ByzantineCFL` is Algorithm 1 with line 18: the largest cluster is benign, the rest is excluded.

Where the paper is silent or ambiguous:

* One threshold goes by three names (alpha_cross^max, alpha_cross^thresh, alpha_max^cross).  It is `threshold`, and a
  split needs alpha_cross < threshold.
* Line 18 excludes one group a round.  The Byzantine clients of Figure 2 leave one by one, over up to 34 rounds, and in
  every round before that the rest of them corrupts the average.  `IfUnlike`, the default, repeats lines 12 to 18 within
  a round until nobody leaves; `until_stable` does so with `AtOnce`.
* The largest cluster must exist, and be the majority that the paper assumes: equal halves are not separated, nor is a
  group by one that is not itself more than half of all enrolled clients.  The verdicts of that round say so.  Without
  this rule, cosines that decay late in training (or a threshold set too high) exclude everybody, one by one, and in a
  small sample of clients the attackers exclude the honest.  So rounds need updates of more than half of all clients:
  `pools` refuses a run that plans fewer, and the verdicts of a round with fewer say so.
* The paper claims that cosines of honest clients stay above the threshold.  Late in training they do not: updates are
  mostly noise then, and with few clients one of them has no similar peer in some round.  `IfUnlike`, the default, asks
  for more than one such round; `ByzantineCFL.as_published()` has line 18, `AtOnce`.
* A zero update has no direction: it counts as orthogonal to all others, and as equal to other zero updates, with which
  it leaves.
* The constant 0.02 depends on the dimension.  Independent random vectors are orthogonal on average, but the closest of
  m in d dimensions has a cosine of about sqrt(2 ln m / d), which exceeds 0.02 for some 23,000 parameters or fewer:
  random attackers then stay.  `init` warns, and says what to set; `AboveNoise` sets it.
* Excluded clients get no more downloads.  With `retest_after` they are tested again after so many rounds: a client
  whose update is then similar to that of a benign client, by the same threshold, takes part from the next round on.
  Its update for the test has no weight.
* The paper does not consider clients that join late.  They take part at once, as line 11 compares their first update
  before it is averaged.
* Line 23 averages without weights.  `preprocess` and `aggregate` can be set, for comparison and for defence in depth.
"""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.rounds import verdicts_of, weights_of
from phalanx.clustering import bipartition, cross_similarity
from phalanx.core import Algorithm, InfeasibleError, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.fields import CheckedFields, PositiveInt
from phalanx.numerics.linalg import cosine_similarity
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Ignore, Preprocess


@dataclass(frozen=True)
class AboveNoise(CheckedFields):
    """A threshold above the cosines of unrelated updates: margin + factor sqrt(2 ln m / d).

    Args:
        margin: added to the noise, at least 0; the paper's constant.
        factor: factor on the largest cosine expected between one random vector and m others, at least 1.
    """

    margin: Annotated[float, Meta(ge=0, lt=1, description="it is a difference of cosines")] = 0.02
    factor: Annotated[float, Meta(ge=1, description="below it, noise may stay")] = 2.0

    def resolved(self, m: int, d: int) -> float:
        """Return the threshold for m clients and d parameters.

        Raises:
            InfeasibleError: the model is so small that no cosine is above it.
        """
        if (threshold := self.margin + self.factor * noise_floor(m, d)) < 1:
            return threshold
        raise InfeasibleError(
            f"With {m} clients and {d:,} parameters chance makes cosines of {noise_floor(m, d):.2f}, and no threshold "
            "below 1 is well above that. Take a larger model, or set threshold to a number."
        )


@dataclass(frozen=True)
class AtOnce:
    """Excludes whoever is separated, in the same round and for good: line 18 of Algorithm 1."""


@dataclass(frozen=True)
class IfUnlike(CheckedFields):
    """Leaves separated clients out of the average of a round, and excludes those that were unlike the others before.

    When little is left to learn, updates are mostly noise: any honest client may have no similar peer in some round,
    and in the next round another one.  An attacker is unlike the others from the start, or in round after round.

    The *typical cosine* of a client is the median of its cosines to the other clients of a round, its *deficit* by how
    much that is below the median client's.  A separated client is excluded if both hold:

    * It is clearly apart: alpha_cross is by `gap` below the median, over those who stay, of the cosine to the closest
      other one.
    * It was unlike the others before: its deficit was `deficit` or more on average in the last `memory` rounds in which
      it reported.  In its first round nothing is known, and the gap decides.

    Lines 12 to 18 cannot separate an attacker if another one is similar both to it and to honest clients, and so
    connects them.  So a client is separated, too, whose typical cosine is below the threshold and whose deficit
    reaches `gap`.  The deficit is its gap then.

    Medians of typical cosines are over an honest majority.  So fewer than half of those who report cannot make an
    honest client unlike the others, nor an attacker like them.

    Args:
        gap: a difference of cosines, in (0, 2).
        memory: rounds before in which a client reported over which its deficit is averaged, at least 1.
        deficit: a difference of cosines, in (0, 2).
    """

    gap: Annotated[float, Meta(gt=0, lt=2, description="it is a difference of cosines")] = 0.4
    memory: PositiveInt = 10
    deficit: Annotated[float, Meta(gt=0, lt=2, description="it is a difference of cosines")] = 0.2

    def excludes(self, gap: float, before: Sequence[float]) -> bool:
        """Return whether a separated client is excluded.

        Args:
            gap: by how much it is farther from those who stay than they are from each other.
            before: its deficits in the rounds before that count.
        """
        return gap >= self.gap and (not before or sum(before) / len(before) >= self.deficit)


NO_MAJORITY = (
    "ByzantineCFL excludes nobody unless more than half of all enrolled clients go on, and a round of {} of {} can "
    "show no such majority: nobody would ever be excluded. Have more than half of the clients take part in each round."
)


class ByzantineCFLState(NamedTuple):
    """The server's state of `ByzantineCFL`."""

    version: int  # rounds completed
    model: Vector  # theta of the benign cluster
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # n_k: after preprocessing, or before it if that is per cohort
    benign: frozenset[int]  # c, the clients that take part
    removed: Mapping[int, int]  # the others, and the round in which each was excluded, or tested last
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    alpha_cross: float | None  # cosine between the two candidates of the last split tried; None before the first
    threshold: float  # the cosine below which they are separated
    verdicts: Mapping[int, Verdict]
    deficits: Mapping[int, tuple[float, ...]] = {}  # of each client in its last rounds, the newest last; `IfUnlike`


class SeparatedGroup(NamedTuple):
    """Clients that are separated from the rest of a round."""

    rows: tuple[int, ...]
    similarity: float  # alpha_cross
    others: int  # clients that they were separated from


class Separation(NamedTuple):
    """The result of lines 12 to 18 in one round, in rows of alpha."""

    kept: list[int]
    groups: tuple[SeparatedGroup, ...]
    alpha_cross: float | None  # the smallest one seen
    remark: str  # why no further group is separated, if that needs saying


class Parting(NamedTuple):
    """The decisions on the clients of a round."""

    kept: Set[int]  # clients whose updates are averaged
    excluded: Set[int]  # clients that leave for good
    alpha_cross: float | None  # the smallest one seen
    deficits: Mapping[int, tuple[float, ...]]
    verdicts: dict[int, Verdict]  # nobody has weight yet


@dataclass(frozen=True)
class ByzantineCFL(Algorithm[ByzantineCFLState]):
    """Training of the largest cluster of similar updates; the others are excluded, for good or until a retest.

    Assumes that the benign clients are more than half and share one distribution: honest clients with different data
    are excluded too.  Uses directions only: attackers whose updates point where the honest ones do stay.

    Args:
        threshold: alpha_cross^max in [-1, 1), the cosine below which two groups are separated.
        until_stable: with `AtOnce`: split until nobody leaves in each round, instead of once a round.
        retest_after: rounds after which an excluded client is tested, and again after as many; None: never. An attacker
            that is honest in these rounds comes back.
        aggregate: the rule within the benign cluster; the mean in the paper.
        preprocess: makes weights of the reported sizes; all are equal in the paper.
        exclusion: which of the separated clients are excluded: `IfUnlike` those that were unlike the others before,
            while the rest is left out of the round only; `AtOnce` all of them, as in the paper.
    """

    threshold: Annotated[float, Meta(ge=-1, lt=1, description="it is compared with a cosine")] | AboveNoise = 0.02
    until_stable: bool = False
    retest_after: PositiveInt | None = None
    aggregate: Aggregator = Mean()
    preprocess: Preprocess = Ignore()
    exclusion: AtOnce | IfUnlike = IfUnlike()

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(observed=("alpha_cross", "threshold"), can_join=True)

    @classmethod
    def as_published(cls) -> "ByzantineCFL":
        """Return Algorithm 1: one split a round, and who is separated is excluded."""
        return cls(exclusion=AtOnce())

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[ByzantineCFLState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        threshold = resolved_threshold(self.threshold, len(sizes), len(model))
        benign = frozenset(sizes)
        return ByzantineCFLState(0, model, dict(sizes), weights, benign, {}, None, None, threshold, {}), benign

    @override
    def step(self, state: ByzantineCFLState, updates: Updates) -> tuple[ByzantineCFLState, Set[int]]:
        t = state.version + 1
        tested, updates = updates.of(self._due(state)), updates.of(state.benign)
        if not len(updates):
            untested = Verdict(False, 0.0, None, "not tested: no benign client reported", final=True)
            new = state._replace(version=t, verdicts=dict.fromkeys(tested.clients, untested))
            return new, state.benign | self._due(new)
        parting = self._part(state, updates)
        kept, verdicts = updates.of(parting.kept), parting.verdicts
        n = weights_of(self.weights(state, kept.clients), kept)
        delta, choice = combine(
            self.aggregate, kept.deltas, n, kept.clients, "benign cluster", turn=state.version, previous=state.aggregate
        )
        model = state.model + delta  # line 23
        remark = self.preprocess.remark(state.weights, kept.clients)
        for i, verdict in verdicts_of(kept, n, choice, remark).items():
            reason = verdict.reason or verdicts[i].reason
            verdicts[i] = replace(verdicts[i], accepted=verdict.accepted, weight=verdict.weight, reason=reason)
        removed = {**state.removed, **dict.fromkeys(sorted(parting.excluded), t)}
        back = self._test(state, tested, kept, verdicts)
        removed = {i: t if i in tested.clients else since for i, since in removed.items() if i not in back}
        benign = state.benign - parting.excluded | back
        new = state._replace(
            version=t,
            model=model,
            benign=benign,
            removed=removed,
            aggregate=delta,
            alpha_cross=parting.alpha_cross,
            verdicts=dict(sorted(verdicts.items())),
            deficits=parting.deficits,
        )
        return new, benign | self._due(new)

    @override
    def weights(self, state: ByzantineCFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: none for excluded clients."""
        used = self.preprocess.among(state.weights, [i for i in clients if i in state.benign])
        return {i: used.get(i, 0.0) for i in clients}

    @override
    def join(self, state: ByzantineCFLState, client: int, size: int) -> ByzantineCFLState:
        """See `Algorithm`: a new client is assumed to be benign until its update is not."""
        sizes = {**state.sizes, client: size}
        weights = self.preprocess.enrolled(sizes)
        threshold = resolved_threshold(self.threshold, len(sizes), len(state.model))
        return state._replace(sizes=sizes, weights=weights, benign=state.benign | {client}, threshold=threshold)

    def _part(self, state: ByzantineCFLState, updates: Updates) -> Parting:
        """Return by lines 11 to 18 who is averaged and who is excluded."""
        alpha = cosine_similarity(updates.deltas).cpu()  # line 11
        found = self._separate(alpha, len(state.weights), state.threshold)
        if isinstance(self.exclusion, IfUnlike):
            return _if_unlike(self.exclusion, state, updates.clients, alpha, found)
        ids = updates.clients
        verdicts = {ids[row]: Verdict(True, 0.0, _closest(alpha, row), found.remark) for row in found.kept}
        for group in found.groups:
            reason = f"cosine cluster of {len(group.rows)}, benign cluster has {group.others}"
            verdicts |= {ids[row]: Verdict(False, 0.0, group.similarity, reason, final=True) for row in group.rows}
        kept = {ids[row] for row in found.kept}
        return Parting(kept, set(ids) - kept, found.alpha_cross, state.deficits, verdicts)

    def _separate(self, alpha: Float[Tensor, "r r"], m: int, threshold: float) -> Separation:
        """Return by lines 12 to 18 who stays and who is separated, for m enrolled clients."""
        c, groups, alpha_cross, remark = list(range(len(alpha))), list[SeparatedGroup](), None, ""
        while len(c) > 1:
            within = alpha[c][:, c]
            parts = bipartition(within)  # line 12
            cross = cross_similarity(within, parts)  # line 13
            alpha_cross = cross if alpha_cross is None else min(alpha_cross, cross)
            if not cross < threshold:  # line 14
                break
            smaller, larger = sorted(parts, key=len)
            if 2 * len(larger) <= m:
                remark = f"no majority: alpha_cross {cross:.3f} separates {len(larger)} from {len(smaller)}"
                break
            groups.append(SeparatedGroup(tuple(c[k] for k in smaller), cross, len(larger)))
            c = [c[k] for k in larger]  # line 18
            if not self.until_stable and isinstance(self.exclusion, AtOnce):
                break
        if not remark and 2 * len(alpha) <= m:
            remark = f"nobody can be excluded: {len(alpha)} of {m} enrolled clients reported, no majority"
        return Separation(c, tuple(groups), alpha_cross, remark)

    def _due(self, state: ByzantineCFLState) -> Set[int]:
        """Return the excluded clients that are tested in the next round."""
        if self.retest_after is None:
            return frozenset()
        return {i for i, since in state.removed.items() if state.version - since >= self.retest_after}

    def _test(
        self, state: ByzantineCFLState, tested: Updates, kept: Updates, verdicts: dict[int, Verdict]
    ) -> frozenset[int]:
        """Return the tested clients that come back: those with a benign client whose cosine reaches the threshold.

        Args:
            state: before the round.
            tested: the updates of excluded clients.
            kept: those of clients that were not separated in this round.
            verdicts: to which those on the tested clients are added.
        """
        back = set[int]()
        if len(tested):
            alpha = cosine_similarity(torch.cat([tested.deltas, kept.deltas])).cpu()
            nearest = alpha[: len(tested), len(tested) :].max(1).values.tolist()
            for i, similarity in zip(tested.clients, nearest, strict=True):
                fine = not similarity < state.threshold
                outcome = "takes part from the next round on" if fine else "stays excluded"
                reason = f"tested again: cosine {similarity:.3f} to the closest benign client, {outcome}"
                verdicts[i] = Verdict(False, 0.0, similarity, reason, final=not fine)
                back |= {i} if fine else set()
        return frozenset(back)

    @override
    def pools(self, setting: Setting, state: ByzantineCFLState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: those who are left when as many as can be were removed."""
        m, n = setting.asked, setting.clients
        least = 1 if setting.lossy or (setting.drawn and not setting.fastest) else min(m, n // 2 + 1)
        refused = "" if 2 * m > n else NO_MAJORITY.format(m, n)
        larger = "have more clients" if least > 1 else "have all clients take part in each round, without a deadline"
        return (
            Pool(
                "benign cluster",
                self.rule,
                least,
                m,
                self.preprocess,
                larger,
                chosen="updates",
                beyond="Who is removed is not bounded: attackers choose whom they resemble.",
                refused="" if 2 * m > n else refused,
            ),
        )


def resolved_threshold(threshold: float | AboveNoise, m: int, d: int) -> float:
    """Return the threshold for m clients and d parameters; warn if it is too low for them."""
    if isinstance(threshold, AboveNoise):
        return threshold.resolved(m, d)
    if threshold <= (floor := noise_floor(m, d)):
        enough = 0.02 + 2 * floor
        remedy = f"Set threshold = {enough:.2g}, or take a larger model" if enough < 1 else "Take a larger model"
        warnings.warn(
            f"threshold = {threshold:g} is not above {floor:.3f}, the largest cosine to expect between one random "
            f"vector and {m} others of {d:,} parameters: attackers that send noise may stay. {remedy}.",
            stacklevel=3,
        )
    return threshold


def noise_floor(m: int, d: int) -> float:
    """Return the largest cosine expected between one random vector and m others in d dimensions, sqrt(2 ln m / d)."""
    return math.sqrt(2 * math.log(max(m, 2)) / d)


def _if_unlike(
    exclusion: IfUnlike, state: ByzantineCFLState, ids: Sequence[int], alpha: Float[Tensor, "r r"], found: Separation
) -> Parting:
    """Return who is averaged and who leaves, of those whom lines 12 to 18 have found, and of those whom they missed."""
    typical = _typical(alpha)
    deficits = (typical.median() - typical).tolist()
    apart = _apart(alpha, found)
    before = [state.deficits.get(i, ()) for i in ids]
    hidden = [k for k in found.kept if typical[k] < state.threshold and deficits[k] >= exclusion.gap]
    if hidden and 2 * (len(found.kept) - len(hidden)) > len(state.weights):
        apart |= {k: (float(typical[k]), deficits[k], "typical cosine") for k in hidden}
    kept = [row for row in found.kept if row not in apart]
    verdicts = {ids[row]: Verdict(True, 0.0, _closest(alpha, row), found.remark) for row in kept}
    excluded = set[int]()
    for row, (score, gap, what) in apart.items():
        final = exclusion.excludes(gap, before[row])
        excluded |= {ids[row]} if final else set()
        was = f"deficit {sum(before[row]) / len(before[row]):.3f} before" if before[row] else "first round"
        did = "excluded" if final else "left out of this round"
        reason = f"{what} {score:.3f}, gap {gap:.3f}, {was}: {did}"
        verdicts[ids[row]] = Verdict(False, 0.0, score, reason, final=final)
    recent = dict(state.deficits)
    for i, deficit in zip(ids, deficits, strict=True):
        recent[i] = (*recent.get(i, ()), deficit)[-exclusion.memory :]
    return Parting({ids[row] for row in kept}, excluded, found.alpha_cross, recent, verdicts)


def _apart(alpha: Float[Tensor, "r r"], found: Separation) -> dict[int, tuple[float, float, str]]:
    """Return the cosine of each separated client to those who stay, how far it is below theirs, and what it is."""
    among = alpha[found.kept][:, found.kept].clone().fill_diagonal_(-torch.inf)
    usual = float(among.max(1).values.median()) if len(found.kept) > 1 else 1.0
    return {
        row: (group.similarity, usual - group.similarity, f"cosine cluster of {len(group.rows)}, alpha_cross")
        for group in found.groups
        for row in group.rows
    }


def _typical(alpha: Float[Tensor, "r r"]) -> Float[Tensor, "r"]:
    """Return the median of the cosines of each client to the others; 1 for a client that is alone."""
    r = len(alpha)
    if r == 1:
        return alpha.new_ones(1)
    others = alpha[~torch.eye(r, dtype=torch.bool)].reshape(r, r - 1)
    return others.median(1).values


def _closest(alpha: Float[Tensor, "m m"], row: int) -> float | None:
    others = torch.cat([alpha[row, :row], alpha[row, row + 1 :]])
    return float(others.max()) if len(others) else None
