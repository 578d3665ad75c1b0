"""Robust and fair federated learning.

Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020.  `RFFL` is Algorithm 1, and
`RFFL.authors` what the authors' published code makes of it.

Where the paper is silent or contradicts itself:

* Nothing is said of norms, but the authors' code shortens every update to a norm Gamma, in the client and in the
  server.  Without that one long random vector is the aggregate: it is similar to itself, and the honest are removed.
  `clip` is Gamma, or by default the median norm of the round, which needs no search; None is the paper to the letter.
* "Initialised equally to be 0" makes the first aggregate zero.  The first round weighs participants equally, or by
  what `preprocess` makes of their declared sizes: `AsReported` is what the code does.
* "r_th = 1/3 |R|" exceeds every reputation.  Read as r_th = 1 / (3 |R|).
* Reputations sum to one "without loss of generality", but cosines do not: each round divides by the sum before the
  threshold is applied, and again when somebody has left.  So alpha mixes a share, about 1 / |R|, with a cosine, and
  the past counts for less than alpha.
* A negative reputation counts as zero: it would turn the update round.
* All are judged with |R| as the round began.  Line "aggregation" comes before the removal: the update of who leaves is
  in the aggregate of that round.
* `largest` takes a share of the entries of the whole vector, as |dw_g| in the paper has it, or of those of each layer,
  as the code does: `allocation`.  A quota of one is everything; in the code it lacks one entry of each layer.
* The code does not subtract a participant's own contribution from what it is paid: `own`.
* The code removes nobody in the first ten rounds: `warmup`.  The paper's Figure 2 fits no such rounds.
* In the code, who is removed trains on alone.  Here it is not asked again, and keeps the model that it has.
* Who is absent from a round is paid nothing of it, and its reputation stays as it is.
* A zero update has no direction: its cosine counts as zero.

The line w_i + dw_i + dw_*i is summed up over the rounds: a download is w^(0) plus all that its receiver was ever
allocated, and the client adds all that it ever sent.  So a download or a reply that is lost costs one round and does
not set a model off its course.

Ours, and off by default: `probation`, a rule other than the mean for `aggregate`, `own="replaced"`, `min_coherence` and
`agreement`.
`docs/rffl.md` says what they are for, with numbers.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.agreement import Agreement, ByClass
from phalanx.algorithms.reputation import (
    Allocation,
    CumulativeClient,
    MedianNorm,
    Own,
    PerLayer,
    Whole,
    check_reputation,
    cos_sim,
    largest,
    places,
)
from phalanx.algorithms.rounds import verdicts_of, warn_of_weights
from phalanx.core import Matrix, Updates, Vector, Verdict, Weights
from phalanx.numerics.linalg import norms, shortened
from phalanx.weighting import AsReported, Ignore, Preprocess


class RFFLState(NamedTuple):
    """What the server of `RFFL` carries over."""

    version: int  # t, rounds completed
    model: Vector  # w_g
    reputation: Mapping[int, float]  # r_i of all who are asked; those of R sum to one
    probation: Mapping[int, int]  # who is asked but not in R, and the round from which on
    threshold: float  # r_th of the last round
    coherence: float | None  # length of the last aggregate over that of orthogonal updates; None before the first
    quota: Mapping[int, float]  # share of the aggregate that each was paid in the last round
    paid: Mapping[int, Vector]  # w^(0) + all dw_*i so far, which participant i downloads; shared where equal
    aggregate: Vector | None  # dw_g of the last round
    sent: Mapping[int, Tensor]  # what each who is asked ever said of each class; empty without `agreement`
    agreement: Mapping[int, Agreement]  # with the others, as of the last round
    verdicts: Mapping[int, Verdict]

    @property
    def reputable(self) -> frozenset[int]:
        """R."""
        return frozenset(self.reputation.keys() - self.probation.keys())


class Round(NamedTuple):
    """One round, as far as it is known."""

    updates: Updates  # of all who are asked
    dw: Matrix  # Delta w_i, shortened
    share: Weights  # r_i^(t-1) of R, summing to one; zero for the others
    dw_g: Vector
    r: tuple[float, ...]  # r_i^(t), on the scale on which those of R summed to one
    coherence: float  # how much the updates have in common, see `coherence_of`
    sent: Mapping[int, Tensor] = {}  # as in the state, this round included
    agreement: Mapping[int, Agreement] = {}
    threshold: float = 0.0  # r_th
    disagree: frozenset[int] = frozenset()  # with the others, on a class
    probation: Mapping[int, int] = {}  # as in the state, after this round
    removed: frozenset[int] = frozenset()

    @property
    def reputation(self) -> dict[int, float]:
        """r_i^(t) of each who reported."""
        return dict(zip(self.updates.clients, self.r, strict=True))


@dataclass(frozen=True)
class RFFL(CumulativeClient[RFFLState]):
    """Aggregates by reputation, pays each participant in proportion, and removes those of little reputation.

    Every participant has a model of its own.  Reputation is similarity to the aggregate: participants with rare data
    have less of it, and attackers who send what the majority sends have much.  Who comes after the run has begun is not
    taken in: the paper does not say with which reputation and which model.

    Args:
        fade: alpha in [0, 1], the weight of the past reputation.
        threshold: c in r_th = c / |R|, in [0, 1). 0 removes nobody.
        warmup: rounds in which nobody is removed.
        clip: Gamma, the largest norm of an update; None for no limit.
        allocation: of what a quota takes the largest entries.
        own: what becomes of a participant's own update where it is paid: "subtracted", as far as it is in the
            aggregate (the paper); "kept" (the authors' code); "replaced" by the aggregate, entry by entry (ours).
        preprocess: what declared sizes count for in the first round; nothing by default.
        aggregate: the rule, with reputations as weights; the mean in the paper.
        probation: rounds for which a participant below the threshold is still asked, unpaid and without weight. It is
            back if its reputation is, and else removed. 0 removes at once.
        min_coherence: how much longer than the aggregate of orthogonal updates that of a round must be, or nobody
            leaves in it. 1 is as long, sqrt(|R|) that of equal updates; 0 asks nothing.
        agreement: who disagrees with the others on a class is treated like one below the threshold. None: not asked.
    """

    observed: ClassVar[tuple[str, ...]] = (
        "reputation",
        "threshold",
        "probation",
        "quota",
        "coherence",
        "agreement",
    )

    fade: float = 0.8
    threshold: float = 1 / 3
    warmup: int = 0
    clip: float | MedianNorm | None = MedianNorm()
    allocation: Allocation = Whole()
    own: Own = "subtracted"
    preprocess: Preprocess = Ignore()
    aggregate: Aggregator = Mean()
    probation: int = 0
    min_coherence: float = 0.0
    agreement: ByClass | None = None

    def __post_init__(self) -> None:
        check_reputation(
            self,
            (self.warmup >= 0, f"warmup must be at least 0 rounds, got {self.warmup}"),
            (self.probation >= 0, f"probation must be at least 0 rounds, got {self.probation}"),
            (self.min_coherence >= 0, f"min_coherence must be at least 0, got {self.min_coherence}"),
        )

    @classmethod
    def authors(cls, layers: PerLayer, clip: float = 0.5) -> "RFFL":
        """The settings of the authors' published code.

        Args:
            layers: of the model.
            clip: Gamma: 0.5 for MNIST, 0.15 for CIFAR-10, 1 for texts.
        """
        return cls(fade=0.95, warmup=10, clip=clip, allocation=layers, own="kept", preprocess=AsReported())

    @property
    def knows_layout(self) -> bool:
        """See `Algorithm`: also where classes are compared."""
        return super().knows_layout or self.agreement is not None

    # Role: server

    @property
    def rule(self) -> Aggregator:
        """See `Algorithm`."""
        return self.aggregate

    def weights(self, state: RFFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: reputations, none on probation and after removal."""
        return {i: state.reputation[i] if i in state.reputable else 0.0 for i in clients}

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[RFFLState, Set[int]]:
        """See `Algorithm`."""
        self.allocation.parts(len(model))
        if self.agreement is not None:
            self.agreement.check(len(model))
        warn_of_weights(self.preprocess, self.aggregate)
        weights = self.preprocess(sizes)
        r = {i: weight / sum(weights.values()) for i, weight in weights.items()}
        paid = dict.fromkeys(sizes, model)
        return RFFLState(0, model, r, {}, self.threshold / len(r), None, {}, paid, None, {}, {}, {}), r.keys()

    def download(self, state: RFFLState, client: int) -> Vector:
        """See `Algorithm`: w^(0) and all that the client was allocated."""
        return state.paid[client]

    def step(self, state: RFFLState, updates: Updates) -> tuple[RFFLState, Set[int]]:
        """See `Algorithm`."""
        updates = updates.of(state.reputation.keys())
        dw = self._shortened(updates.of(state.reputable).deltas, updates.deltas)
        r_past = torch.tensor([state.reputation[i] for i in updates.clients], dtype=torch.float64, device=dw.device)
        in_R = torch.tensor([i in state.reputable for i in updates.clients], device=dw.device)
        if not bool((r_past * in_R).any()):
            return self._idle(state, updates)

        # Aggregation and reputation calculation
        n = r_past * in_R
        dw_g, choice = self.aggregate.explained(dw, n, turn=state.version, previous=state.aggregate)
        coherence = coherence_of(dw_g, dw, n)
        r = renewed(r_past, cos_sim(dw_g, dw), self.fade, in_R)
        sent, agreement = self._agreed(state, updates, dw)
        c = Round(updates, dw, n / n.sum(), dw_g, tuple(r.tolist()), coherence, sent, agreement)
        round_ = self._judged(state, c)
        reputation = {**state.reputation, **round_.reputation}
        R = reputation.keys() - round_.probation.keys() - round_.removed

        # Gradient allocation
        best, total = max(reputation[i] for i in R), sum(reputation[i] for i in R)
        quota = {i: reputation[i] / best for i in updates.clients if i in R}
        new = RFFLState(
            version=state.version + 1,
            model=state.model + dw_g,
            reputation={i: r_i / total for i, r_i in reputation.items() if i not in round_.removed},
            probation=round_.probation,
            threshold=round_.threshold,
            coherence=coherence,
            quota=quota,
            paid=self._paid(state, round_, quota),
            aggregate=dw_g,
            sent={i: rows for i, rows in sent.items() if i not in round_.removed},
            agreement=agreement,
            verdicts=self._verdicts(state, round_, verdicts_of(updates, n, choice)),
        )
        return new, new.reputation.keys()

    def _shortened(self, reputable: Float[Tensor, "k d"], deltas: Matrix) -> Matrix:
        """All updates, at most as long as `clip`; the median is that of R's."""
        if self.clip is None or not len(reputable):
            return deltas
        if isinstance(self.clip, MedianNorm):
            return shortened(deltas, self.clip.factor * float(norms(reputable).quantile(0.5)))
        return shortened(deltas, self.clip)

    def _agreed(
        self, state: RFFLState, updates: Updates, dw: Matrix
    ) -> tuple[Mapping[int, Tensor], Mapping[int, Agreement]]:
        """What each sent so far, this round included; and how those who reported agree with the others, if asked."""
        if self.agreement is None:
            return {}, {}
        rows = self.agreement.rows(dw)
        sent = {**state.sent, **{i: state.sent.get(i, 0.0) + rows[k] for k, i in enumerate(updates.clients)}}
        if state.version < self.agreement.patience:
            return sent, {}
        found = self.agreement.agreements(sent)
        return sent, {i: found[i] for i in updates.clients}

    def _judged(self, state: RFFLState, c: Round) -> Round:
        """The round, with who is on probation after it, and who is removed in it."""
        t, probation, removed = state.version + 1, dict(state.probation), set[int]()
        r_th = self.threshold / len(state.reputable)
        low = {i for i, r_i in c.reputation.items() if r_i < r_th}
        disagree = self._disagreeing(c, state.reputable, low)
        lenient = t <= self.warmup or c.coherence < self.min_coherence
        for i in c.reputation:
            if i not in low | disagree:
                probation.pop(i, None)
            elif (i in disagree or not lenient) and t >= probation.setdefault(i, t) + self.probation:
                removed.add(i)
                del probation[i]
        return c._replace(threshold=r_th, disagree=disagree, probation=probation, removed=frozenset(removed))

    def _disagreeing(self, c: Round, R: Set[int], low: Set[int]) -> frozenset[int]:
        """Who disagrees with the others on a class; nobody if half of R do, or if only they are above the threshold."""
        if self.agreement is None:
            return frozenset()
        found = frozenset(i for i, told in c.agreement.items() if told.cosine < self.agreement.least)
        return found if 2 * len(found & R) < len(R) and R - low - found else frozenset()

    def _paid(self, state: RFFLState, c: Round, quota: Mapping[int, float]) -> dict[int, Vector]:
        """What each participant has been paid after this round, w^(0) included."""
        place = places(c.dw_g, self.allocation.parts(len(c.dw_g)))
        paid = dict(state.paid)
        for k, i in enumerate(c.updates.clients):
            if i not in quota:
                continue
            allocated = largest(c.dw_g, place, quota[i])
            if self.own == "subtracted":
                allocated -= float(c.share[k]) * c.dw[k]
            elif self.own == "replaced":
                allocated -= largest(c.updates.deltas[k], place, quota[i])  # its own entries where it is paid
            paid[i] = state.paid[i] + allocated
        return paid

    def _verdicts(self, state: RFFLState, c: Round, used: Mapping[int, Verdict]) -> dict[int, Verdict]:
        """What the rule made of each update, with reputations and what follows from them."""
        verdicts = {}
        for i, verdict in used.items():
            fate, r_i = self._fate(state, c, i), c.reputation[i]
            compared = f"reputation {r_i:.4f} {'<' if r_i < c.threshold else '>='} {c.threshold:.4f}"
            if i in c.disagree and self.agreement is not None:
                told = c.agreement[i]
                compared = f"agrees by {told.cosine:.2f} < {self.agreement.least:g} on class {told.disputed}"
            words = f"{compared}, {fate}" if fate else ""
            accepted = verdict.accepted and i in state.reputable
            reason = "; ".join(filter(None, (verdict.reason, words))) if i in state.reputable else words
            verdicts[i] = Verdict(accepted, verdict.weight if accepted else 0.0, r_i, reason, final=i in c.removed)
        return verdicts

    def _fate(self, state: RFFLState, c: Round, client: int) -> str:
        """What follows from a participant's reputation, in words; empty if nothing."""
        if client in c.removed:
            return "removed"
        if client in c.probation:
            return f"on probation since round {c.probation[client]}"
        if client in state.probation:
            return "back from probation"
        if c.reputation[client] >= c.threshold:  # who disagrees is removed or on probation
            return ""
        return "in the warm-up" if state.version < self.warmup else "in a round of little coherence"

    def _idle(self, state: RFFLState, updates: Updates) -> tuple[RFFLState, Set[int]]:
        """A round in which nobody reported who has weight: nothing changes."""
        why = "no weight, and nobody reported who has some"
        verdicts = {i: Verdict(False, 0.0, state.reputation[i], why) for i in updates.clients}
        new = state._replace(version=state.version + 1, quota={}, coherence=None, verdicts=verdicts)
        return new, state.reputation.keys()


def renewed(past: Weights, cosine: Weights, fade: float, members: Bool[Tensor, "m"]) -> Weights:
    """The reputations after a round, scaled so that those of the members keep their sum.

    Args:
        past: (m,), non-negative, float64.
        cosine: (m,), of each update with the aggregate.
        fade: alpha, the weight of the past.
        members: (m,), who is in R.  Others are judged on the same scale.

    Returns:
        (m,), non-negative.  The past ones if nobody would have any.
    """
    r = (fade * past + (1 - fade) * cosine).clamp(min=0)
    total = (r * members).sum()
    return r * (past * members).sum() / total if float(total) > 0 else past


def coherence_of(dw_g: Vector, dw: Matrix, weights: Weights) -> float:
    """Length of an aggregate over the length that the mean of orthogonal updates would have; 0 if all are zero.

    1 if the updates have nothing in common, sqrt(m) if m of equal weight are equal, less than 1 if they cancel out.
    """
    share = weights / weights.sum()
    orthogonal = float((share * norms(dw)).square().sum().sqrt())
    return float(norms(dw_g[None])[0]) / orthogonal if orthogonal > 0 else 0.0
