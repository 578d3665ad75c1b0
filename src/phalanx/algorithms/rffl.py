"""Robust and fair federated learning.

Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020.  `RFFL` is Algorithm 1, and
`RFFL.authors` what the authors' published code makes of it.

Where the paper is silent or contradicts itself:

* The paper does not limit norms, but the authors' code clips every update to a norm Gamma, in the client and in the
  server.  Otherwise one long random vector is the aggregate: it is similar to itself, and the honest are excluded.
  `clip` is Gamma, or by default the median norm of the round, which needs no search; None is the paper to the letter.
* "Initialised equally to be 0" makes the first aggregate zero.  The first round weighs participants equally, or by
  what `preprocess` makes of their reported sizes: `AsReported` is what the code does.
* "r_th = 1/3 |R|" exceeds every reputation.  Read as r_th = 1 / (3 |R|).
* Reputations sum to one "without loss of generality", but cosines do not: each round divides by the sum before the
  threshold is applied, and again after an exclusion.  So alpha mixes a share, about 1 / |R|, with a cosine, and the
  weight of the past is smaller than alpha.
* A negative reputation counts as zero: it would reverse the update.
* All are judged with |R| of the beginning of the round.  Line "aggregation" comes before the exclusion: the update of
  an excluded participant is in the aggregate of that round.
* `largest` takes a share of the entries of the whole vector, as |dw_g| in the paper has it, or of those of each layer,
  as the code does: `allocation`.  A quota of one is everything; in the code it lacks one entry of each layer.
* The code does not subtract a participant's own contribution from its payment: `own`.
* The code excludes nobody in the first ten rounds: `warmup`.  The paper's Figure 2 does not agree with such rounds.
* In the code, an excluded participant trains on alone.  Here it gets no more downloads, and keeps its model.
* A participant that is absent from a round gets no payment for it, and its reputation does not change.
* A zero update has no direction: its cosine counts as zero.
* The paper excludes in every round.  Where an aggregate is hardly longer than the mean of unrelated updates, nothing
  agrees with anything, and cosines with it say nothing: where half of the participants do not learn, those that do are
  excluded.  `min_coherence` waits for a round that says something; `RFFL.as_published()` does not wait.

The line w_i + dw_i + dw_*i is summed up over the rounds: a download is w^(0) plus all allocations of its receiver so
far, and the client adds all updates that it has sent.  So a lost download or reply costs one round, without a lasting
effect on a model.

Similarity is also predictability: a participant that sends back the last change of its model has a high reputation.
By default (`challenge`) only participants are paid that train on what they are sent; `RFFL.as_published()` pays all.
Reputations still weigh and exclude, but nobody is excluded who is seen to train: late in a run the honest agree on
little.  With `unsent` payments are for what a participant could not know.

Ours, and off by default: `probation`, a rule other than the mean for `aggregate`, `own="replaced"`, `agreement` and
`unsent`.
`docs/rffl.md` has their purpose, with numbers.
"""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float
from msgspec import Meta
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.agreement import Agreement, ByClass
from phalanx.algorithms.challenge import Asked, Challenge, proven_quotas
from phalanx.algorithms.reputation import (
    Allocation,
    CumulativeClient,
    MedianNorm,
    Own,
    PerLayer,
    Whole,
    cos_sim,
    largest,
    places,
)
from phalanx.algorithms.rounds import no_proof, verdicts_of
from phalanx.algorithms.unsent import JudgedUpdate, Known, Unsent
from phalanx.core import InfeasibleError, Matrix, Pool, Setting, Traits, Updates, Vector, Verdict, Weights
from phalanx.fields import INFINITE, LEFT_OUT, NonNegativeInt, PositiveFloat
from phalanx.numerics.linalg import norms, shortened
from phalanx.promises.promise_watch import combine
from phalanx.weighting import AsReported, Ignore, Preprocess
from phalanx.wording import plural


class RFFLState(NamedTuple):
    """The server's state of `RFFL`."""

    version: int  # t, rounds completed
    model: Vector  # w_g
    reputation: Mapping[int, float]  # r_i of all clients that are not excluded; those of R sum to one
    probation: Mapping[int, int]  # clients that are not excluded but not in R, and the round from which on
    threshold: float  # r_th of the last round
    coherence: float | None  # length of the last aggregate over that of orthogonal updates; None before the first
    quota: Mapping[int, float]  # share of the aggregate that each was paid in the last round
    paid: Mapping[int, Vector]  # w^(0) + all dw_*i so far, which participant i downloads; shared where equal
    aggregate: Vector | None  # dw_g of the last round
    sent: Mapping[int, Tensor]  # sum of each client's updates for each class; empty without `agreement`
    agreement: Mapping[int, Agreement]  # with the others, in the last round
    verdicts: Mapping[int, Verdict]
    known: Known = Known()  # empty without `unsent`
    asked: Asked = Asked()  # empty without `challenge`
    proven: Mapping[int, float] = {}  # the factor of each quota; empty without `challenge`

    @property
    def reputable(self) -> frozenset[int]:
        """R."""
        return frozenset(self.reputation.keys() - self.probation.keys())


class RFFLRound(NamedTuple):
    """The intermediate results of one round."""

    updates: Updates  # of all clients that are not excluded
    dw: Matrix  # Delta w_i, clipped
    share: Weights  # r_i^(t-1) of R, summing to one; zero for the others
    dw_g: Vector
    r: tuple[float, ...]  # r_i^(t), on the scale on which those of R summed to one
    coherence: float  # the coherence of the updates, see `coherence_of`
    sent: Mapping[int, Tensor] = {}  # as in the state, this round included
    agreement: Mapping[int, Agreement] = {}
    trains: frozenset[int] = frozenset()  # seen to train; empty without `challenge`
    threshold: float = 0.0  # r_th
    disagree: frozenset[int] = frozenset()  # with the others, on a class
    probation: Mapping[int, int] = {}  # as in the state, after this round
    excluded: frozenset[int] = frozenset()

    @property
    def reputation(self) -> dict[int, float]:
        """r_i^(t) of each client that reported."""
        return dict(zip(self.updates.clients, self.r, strict=True))


@dataclass(frozen=True)
class RFFL(CumulativeClient[RFFLState]):
    """Aggregation and payment of participants by reputation, and exclusion of those with a low one.

    Every participant has a model of its own.  Reputation is similarity to the aggregate: participants with rare data
    have less of it, and attackers that send the majority's update have much.  Nobody can join after the run has begun:
    the paper does not define the reputation and the model of a new participant.

    Args:
        fade: alpha in [0, 1], the weight of the past reputation.
        threshold: c in r_th = c / |R|, in [0, 1). 0 excludes nobody.
        warmup: rounds in which nobody is excluded.
        clip: Gamma, the largest norm of an update; None for no limit.
        allocation: the parts of a vector of which a quota takes the largest entries.
        own: the treatment of a participant's own update in the entries of its payment: "subtracted", as far as it is
            in the aggregate (the paper); "kept" (the authors' code); "replaced" by the aggregate (ours).
        preprocess: makes weights of the reported sizes for the first round; all are equal by default.
        aggregate: the rule, with reputations as weights; the mean in the paper.
        probation: rounds for which a participant below the threshold still trains, unpaid and without weight. It
            returns if its reputation recovers, and is excluded otherwise. 0 excludes at once.
        min_coherence: smallest length of a round's aggregate, in lengths of that of orthogonal updates, with which
            participants are excluded; equal updates have sqrt(|R|). 0, no condition, is the paper.
        agreement: a participant that disagrees with the others on a class is treated as if below the threshold. None:
            not tested.
        unsent: pays for agreement with the others on what a participant could not know. None: by reputation, as in the
            paper.
        challenge: pays only participants that train on what they are sent, and excludes nobody who is seen to. None:
            free riders that send back what they were sent, or copy others, are paid, as in the paper.
    """

    fade: Annotated[float, Meta(ge=0, le=1)] = 0.8
    threshold: Annotated[float, Meta(ge=0, lt=1, description="it is a share of 1 / |R|")] = 1 / 3
    warmup: NonNegativeInt = 0
    clip: PositiveFloat | MedianNorm | None = MedianNorm()
    allocation: Allocation = Whole()
    own: Own = "subtracted"
    preprocess: Preprocess = Ignore()
    aggregate: Aggregator = Mean()
    probation: NonNegativeInt = 0
    min_coherence: Annotated[float, Meta(ge=0), INFINITE] = 1.1
    agreement: ByClass | None = None
    unsent: Unsent | None = None
    challenge: Challenge | None = field(default=Challenge(), metadata={LEFT_OUT: None})

    @property
    @override
    def traits(self) -> Traits:
        """See `Algorithm`: classes that are compared need the model's layout."""
        client, proven = super().traits, ("proven",) if self.challenge else ()
        observed = ("reputation", "threshold", "probation", "quota", "coherence", "agreement", *proven)
        return client._replace(observed=observed, knows_layout=client.knows_layout or self.agreement is not None)

    @classmethod
    def as_published(cls) -> "RFFL":
        """Return Algorithm 1, with a limit on norms, without which it excludes the honest."""
        return cls(min_coherence=0.0, challenge=None)

    @classmethod
    def authors(cls, layers: PerLayer, clip: float = 0.5) -> "RFFL":
        """Return the settings of the authors' published code.

        Args:
            layers: of the model.
            clip: Gamma: 0.5 for MNIST, 0.15 for CIFAR-10, 1 for texts.
        """
        return replace(
            cls.as_published(), fade=0.95, warmup=10, clip=clip, allocation=layers, own="kept", preprocess=AsReported()
        )

    # Role: server

    @override
    def weights(self, state: RFFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: reputations, none on probation and after exclusion."""
        return {i: state.reputation[i] if i in state.reputable else 0.0 for i in clients}

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[RFFLState, Set[int]]:
        self.allocation.parts(len(model))
        if self.agreement is not None:
            self.agreement.check(len(model))
        weights = self.preprocess(sizes)
        total = sum(weights.values())
        r = {i: weight / total for i, weight in weights.items()}
        paid = dict.fromkeys(sizes, model)
        return RFFLState(0, model, r, {}, self.threshold / len(r), None, {}, paid, None, {}, {}, {}), r.keys()

    @override
    def part(self, state: RFFLState, clients: Mapping[int, int]) -> tuple[RFFLState, Set[int]]:
        """See `Algorithm`: everybody keeps its model, and reputations keep their ratios."""
        R = state.reputable & clients.keys()
        if not (total := sum(state.reputation[i] for i in R)):
            raise InfeasibleError(
                f"None of {plural(len(clients), 'client')} has a reputation, so no update would have weight. "
                "Keep a client that has one, or start a new run."
            )
        new = state._replace(
            reputation={i: r / total for i, r in state.reputation.items() if i in clients},
            probation={i: since for i, since in state.probation.items() if i in clients},
            threshold=self.threshold / len(R),
            quota={i: quota for i, quota in state.quota.items() if i in clients},
            paid={i: paid for i, paid in state.paid.items() if i in clients},
            aggregate=None,
            sent={i: rows for i, rows in state.sent.items() if i in clients},
            agreement={},
            verdicts={},
            known=state.known.of(clients),
            asked=state.asked.of(clients),
            proven={i: p for i, p in state.proven.items() if i in clients},
        )
        return new, new.reputation.keys()

    @override
    def download(self, state: RFFLState, client: int) -> Vector:
        """See `Algorithm`: w^(0) and all that the client was allocated."""
        return state.asked.shifted(client, state.paid[client])

    @override
    def candidate_models(self, state: RFFLState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`: without a shift."""
        return {0: state.paid[client]}

    @override
    def step(self, state: RFFLState, updates: Updates) -> tuple[RFFLState, Set[int]]:
        updates = updates.of(state.reputation.keys())
        dw = self._shortened(updates.of(state.reputable).deltas, updates.deltas)
        r_past = torch.tensor([state.reputation[i] for i in updates.clients], dtype=torch.float64, device=dw.device)
        in_R = torch.tensor([i in state.reputable for i in updates.clients], device=dw.device)
        if not bool((r_past * in_R).any()):
            return self._idle(state, updates)

        # Aggregation and reputation calculation
        n = r_past * in_R
        dw_g, choice = combine(
            self.aggregate, dw, n, updates.clients, "round", turn=state.version, previous=state.aggregate
        )
        coherence = coherence_of(dw_g, dw, n)
        r = renewed(r_past, cos_sim(dw_g, dw), self.fade, in_R)
        sent, agreement = self._agreed(state, updates, dw)
        asked, proven, trains = state.asked, state.proven, frozenset[int]()
        if self.challenge is not None:
            w_g, of = state.model + dw_g, len(state.reputation)
            asked = self.challenge.after(asked, updates, w_g, state.version + 1, of)
            trains = self.challenge.training(asked, updates.clients)
        c = RFFLRound(updates, dw, n / n.sum(), dw_g, tuple(r.tolist()), coherence, sent, agreement, trains)
        round_ = self._judged(state, c)
        reputation = {**state.reputation, **round_.reputation}
        R = reputation.keys() - round_.probation.keys() - round_.excluded

        # Gradient allocation
        best, total = max(reputation[i] for i in R), sum(reputation[i] for i in R)
        quota, known = {i: reputation[i] / best for i in updates.clients if i in R}, state.known
        if self.unsent is not None:
            known = self._earned(self.unsent, state, updates, c)
            quota = {i: each for i, each in known.quotas(R, self.fade).items() if i in quota}
        if self.challenge is not None:
            asked = asked.of(reputation.keys() - round_.excluded)
            proven = self.challenge.proven(asked, reputation.keys() - round_.excluded)
            quota = proven_quotas(quota, proven)
        new = RFFLState(
            version=state.version + 1,
            model=state.model + dw_g,
            reputation={i: r_i / total for i, r_i in reputation.items() if i not in round_.excluded},
            probation=round_.probation,
            threshold=round_.threshold,
            coherence=coherence,
            quota=quota,
            paid=self._paid(state, round_, quota),
            aggregate=dw_g,
            sent={i: rows for i, rows in sent.items() if i not in round_.excluded},
            agreement=agreement,
            verdicts=self._verdicts(state, round_, verdicts_of(updates, n, choice)),
            known=known,
            asked=asked,
            proven=proven,
        )
        return new, new.reputation.keys()

    def _shortened(self, reputable: Float[Tensor, "k d"], deltas: Matrix) -> Matrix:
        """Return all updates, clipped to `clip`; the median is over R."""
        if self.clip is None or not len(reputable):
            return deltas
        if isinstance(self.clip, MedianNorm):
            return shortened(deltas, self.clip.factor * float(norms(reputable).quantile(0.5)))
        return shortened(deltas, self.clip)

    def _earned(self, unsent: Unsent, state: RFFLState, updates: Updates, c: RFFLRound) -> Known:
        """Return what is known and earned after a round."""
        known = unsent.seen(state.known, state.version, state.model)
        weights = (c.share.cpu() * norms(c.dw).cpu()).tolist()
        rows = zip(updates.clients, c.dw, weights, updates.versions, strict=True)
        sent = {i: JudgedUpdate(dw_i, weight * state.proven.get(i, 1.0), version) for i, dw_i, weight, version in rows}
        return unsent.judged(known, sent, updates.clients, self.fade, copies=self.challenge is not None)

    def _agreed(
        self, state: RFFLState, updates: Updates, dw: Matrix
    ) -> tuple[Mapping[int, Tensor], Mapping[int, Agreement]]:
        """Return the sums of updates by class, this round included, and the agreement of the clients that reported."""
        if self.agreement is None:
            return {}, {}
        rows = self.agreement.rows(dw)
        sent = {**state.sent, **{i: state.sent.get(i, 0.0) + rows[k] for k, i in enumerate(updates.clients)}}
        if state.version < self.agreement.patience:
            return sent, {}
        found = self.agreement.agreements(sent)
        return sent, {i: found[i] for i in updates.clients}

    def _judged(self, state: RFFLState, c: RFFLRound) -> RFFLRound:
        """Return the round, with the clients on probation after it, and those excluded in it."""
        t, probation, excluded = state.version + 1, dict(state.probation), set[int]()
        r_th = self.threshold / len(state.reputable)
        low = {i for i, r_i in c.reputation.items() if r_i < r_th}
        disagree = self._disagreeing(c, state.reputable, low)
        lenient = t <= self.warmup or c.coherence < self.min_coherence
        for i in c.reputation:
            if i not in low | disagree:
                probation.pop(i, None)
            elif (i in disagree or not (lenient or i in c.trains)) and t >= probation.setdefault(i, t) + self.probation:
                excluded.add(i)
                del probation[i]
        return c._replace(threshold=r_th, disagree=disagree, probation=probation, excluded=frozenset(excluded))

    def _disagreeing(self, c: RFFLRound, R: Set[int], low: Set[int]) -> frozenset[int]:
        """Return the clients that disagree on a class; none if half of R do, or only they are above the threshold."""
        if self.agreement is None:
            return frozenset()
        found = frozenset(i for i, score in c.agreement.items() if score.cosine < self.agreement.least)
        return found if 2 * len(found & R) < len(R) and R - low - found else frozenset()

    def _paid(self, state: RFFLState, c: RFFLRound, quota: Mapping[int, float]) -> dict[int, Vector]:
        """Return the sum of each participant's payments after this round, w^(0) included."""
        place = places(c.dw_g, self.allocation.parts(len(c.dw_g)))
        paid = dict(state.paid)
        for k, i in enumerate(c.updates.clients):
            if i not in quota:
                continue
            allocated = largest(c.dw_g, place, quota[i])
            if self.own == "subtracted":
                allocated -= float(c.share[k]) * c.dw[k]
            elif self.own == "replaced":
                allocated -= largest(c.updates.deltas[k], place, quota[i])  # its part in the payment
            paid[i] = state.paid[i] + allocated
        return paid

    def _verdicts(self, state: RFFLState, c: RFFLRound, used: Mapping[int, Verdict]) -> dict[int, Verdict]:
        """Return the verdict on each update, with reputations and their consequences."""
        verdicts = {}
        for i, verdict in used.items():
            fate, r_i = self._fate(state, c, i), c.reputation[i]
            compared = f"reputation {r_i:.4f} {'<' if r_i < c.threshold else '>='} {c.threshold:.4f}"
            if i in c.disagree and self.agreement is not None:
                score = c.agreement[i]
                compared = f"agrees by {score.cosine:.2f} < {self.agreement.least:g} on class {score.disputed}"
            words = f"{compared}, {fate}" if fate else ""
            accepted = verdict.accepted and i in state.reputable
            reason = "; ".join(filter(None, (verdict.reason, words))) if i in state.reputable else words
            verdicts[i] = Verdict(accepted, verdict.weight if accepted else 0.0, r_i, reason, final=i in c.excluded)
        return verdicts

    def _fate(self, state: RFFLState, c: RFFLRound, client: int) -> str:
        """Return the consequence of a participant's reputation in words; empty if there is none."""
        if client in c.excluded:
            return "excluded"
        if client in c.probation:
            return f"on probation since round {c.probation[client]}"
        if client in state.probation:
            return "back from probation"
        if c.reputation[client] >= c.threshold:  # clients that disagree are excluded or on probation
            return ""
        if state.version < self.warmup:
            return "in the warm-up"
        return "trains on what it is sent" if client in c.trains else "in a round of little coherence"

    def _idle(self, state: RFFLState, updates: Updates) -> tuple[RFFLState, Set[int]]:
        """Return the state after a round without a report of a client with weight: nothing changes."""
        why = "no weight, and nobody reported who has some"
        verdicts = {i: Verdict(False, 0.0, state.reputation[i], why) for i in updates.clients}
        new = state._replace(version=state.version + 1, quota={}, coherence=None, verdicts=verdicts)
        return new, state.reputation.keys()

    @override
    def pools(self, setting: Setting, state: RFFLState | None = None) -> tuple[Pool, ...]:
        return (Pool.of_round(self.rule, None, setting, unproven=no_proof(self)),)


def renewed(past: Weights, cosine: Weights, fade: float, members: Bool[Tensor, "m"]) -> Weights:
    """Return the reputations after a round, scaled so that those of the members keep their sum.

    Args:
        past: (m,), non-negative, float64.
        cosine: (m,), of each update with the aggregate.
        fade: alpha, the weight of the past.
        members: (m,), whether a client is in R.  Others are judged on the same scale.

    Returns:
        (m,), non-negative.  The past ones if nobody would have any.
    """
    r = (fade * past + (1 - fade) * cosine).clamp(min=0)
    total = (r * members).sum()
    return r * (past * members).sum() / total if float(total) > 0 else past


def coherence_of(dw_g: Vector, dw: Matrix, weights: Weights) -> float:
    """Return the length of an aggregate over that of the mean of orthogonal updates; 0 if all are zero.

    1 if the updates have nothing in common, sqrt(m) if m of equal weight are equal, less than 1 if they cancel out.
    """
    share = weights / weights.sum()
    orthogonal = float((share * norms(dw)).square().sum().sqrt())
    return float(norms(dw_g[None])[0]) / orthogonal if orthogonal > 0 else 0.0
