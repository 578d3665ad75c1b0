"""Catalyst: FLAME on the first answers to a model, with a second chance for late answers.

Cox, Malan, Chen and Decouchant, "Asynchronous Byzantine Federated Learning", 2024.  `Catalyst` is Algorithm 3.  The
server takes a step when a quorum of clients has answered its current model; an answer to one of the K - 1 models before
waits for that step, is judged together with all other answers to the same model, and added if it passes.

The printed pseudo-code cannot be run as it is.  The corrections, by its lines:

* 4: "W_0" is G_0.
* 8: a client that answers twice to one version is ignored the second time, but it gets a download.  The guard finds
  such replies invalid before they get here.
* 14: 2f + 1 updates, and two of them if f = 0.  `quorum` can be larger.
* 15: the window has K - 1 old versions, from a - K + 1 to a - 1.
* 16 to 18: clipping by S[i], which was kept for the version i of the update; "S[a]" does not exist yet.
* 17: the union of processed[i] and pending[i] is a union: the answers in time to version i remain the reference for all
  later answers to it, 2f + 1 updates at least.
* 21: the late updates are ADDED.  The printed minus would undo what they learned.
* 21: |pending[i]| counts those that passed the filter, or a filtered update would give weight to the others.
* 21: alpha and eta only occur as a product, `late_lr`; sf(a, i) without alpha is `staleness`.
* 22 and 33: the age grows once.
* 26 to 28: every waiting client gets a download, the client that completed the quorum too.
* 41: "d" is the client c that was late.

Where the paper is silent:

* Cosines are between updates, and clipping is of updates: `compare`.  In Algorithm 2 cosines are between models, which
  are nearly one whatever clients do.
* FLAME's clusters of more than one half are always the largest, so never are all updates noise, or too few to judge:
  see `phalanx.clustering.density`.
* With f = 0 no client is suspected, and the rule is the mean of the clipped updates.
* Another rule can replace the filter.  If it weighs whole updates, the late ones get the share that it gives them.  If
  it does not, such as a median, the change of its result by the late updates is added.
* A filtered update is not considered again, as Section 5.3 says a fast one could be, unless `second_look` is set.  Then
  the filtered answers to a version that gets late answers are used like these if they are admitted now.

In the authors' published program late updates are in effect not judged, as its reference is overwritten; updates that
are one version late, which most are, are discarded; staleness is switched off; and models are compared, not updates.
`Catalyst.as_published(f)` has all four, each of which is a field.  It has more mistakes, which are not repeated here:
the client that completes a quorum goes on with a model of its own, G_i is that of the version after, and the lengths
of late updates are those of other clients.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators import Aggregator, Choice, Mean
from phalanx.aggregators.aggregator import check_rows, weighs_rows
from phalanx.aggregators.flame import DensestMajority
from phalanx.algorithms.arrivals import alone, merged
from phalanx.algorithms.flame import Compare, aggregated, check_chooses, clip_bound, clipped_verdicts, compared
from phalanx.algorithms.rounds import Weighted, stays_in_range, verdicts_of, weights_of
from phalanx.algorithms.staleness import Staleness, Undiscounted
from phalanx.core import (
    InfeasibleError,
    Matrix,
    Pool,
    Setting,
    TooFewError,
    Traits,
    Updates,
    Vector,
    Verdict,
    Weights,
    lost_verdicts,
)
from phalanx.fields import NonNegativeInt, PositiveInt
from phalanx.numerics.linalg import norms, shortened
from phalanx.promises.promise_watch import combine
from phalanx.weighting import Ignore, Preprocess
from phalanx.wording import at_most, plural


@dataclass(frozen=True)
class Inverse(Staleness):
    """s(tau) = 1 / tau, and 1 for fresh updates."""

    @override
    def __call__(self, age: int) -> float:
        return 1 / max(age, 1)


class CatalystState(NamedTuple):
    """The server's state of `Catalyst`.

    For N clients and d parameters the stored updates are K N d numbers at most: those of K - 1 old versions, and the
    waiting ones of the current version.  In a run it is rather the quorum than N, for each version.
    """

    version: int  # a, steps so far
    model: Vector  # G_a
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing, or before it if that is per cohort
    pending: Mapping[int, Mapping[int, Updates]]  # pending[i], by client; clients in pending[a] wait for G_{a+1}
    processed: Mapping[int, Updates]  # processed[i], of the old versions in the window
    bounds: Mapping[int, float]  # S[i], of the old versions in the window
    aggregate: Vector | None  # what the rule returned last, for rules that start from there
    verdicts: Mapping[int, Verdict]
    filtered: Mapping[int, frozenset[int]] = {}  # whose answers to old versions are not used yet; `second_look` only

    @property
    def waiting(self) -> int:
        """The number of clients that have answered the current model."""
        return len(self.pending.get(self.version, {}))

    @property
    def late(self) -> int:
        """The number of late updates that wait for the next step."""
        return sum(map(len, self.pending.values())) - self.waiting

    @property
    def kept(self) -> int:
        """The number of stored updates."""
        return sum(map(len, self.pending.values())) + sum(map(len, self.processed.values()))

    @property
    def decided(self) -> dict[int, dict[str, object]]:
        """The verdicts of a step on all updates that it used or filtered, not only on the last arrival."""
        return {i: asdict(v) for i, v in self.verdicts.items() if v.weight > 0 or not v.accepted}


class LatePart(NamedTuple):
    """The effect of the late answers to one version, before staleness."""

    change: Vector
    shares: Weights  # of each answer, late or not
    choice: Choice | None  # the rule's decision on each


class LateUpdate(NamedTuple):
    """The result of the late updates of one version."""

    change: Vector  # the change of the model
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class Catalyst(Weighted[CatalystState]):
    """Steps of FLAME on the first 2f + 1 answers to a model, to which late answers like these are added.

    Tolerates f attackers of N >= 2f + 1 clients, if each of them answers; if they may stay silent, N must be 3f + 1, or
    the quorum never comes together.  Each client counts once for each version, however fast it is.  But fast attackers
    are f of every quorum, slow honest clients contribute late or never, and the filter drops up to half of the quorum
    without any attack.

    Args:
        f: number of attackers to tolerate. 0: no client is suspected, and `DensestMajority` admits all.
        window: K, one more than the age, in versions, up to which late updates are used; 1 uses none.
        quorum: updates waited for, answers of as many clients to the current model; 2f + 1, and at least 2, if not
            given. With more than N - f, silent attackers stop the run.
        late_lr: alpha eta, factor on late updates.
        staleness: sf, the factor on an update that is tau versions late; 1 / tau in the paper.
        aggregate: the rule for clipped updates; FLAME's filter in the paper.
        preprocess: makes weights of the reported sizes; all are equal in the paper.
        compare: "updates" or "models", by which the rule compares clients.
        judge_late: whether late updates pass through the rule. If not, all are used, clipped: no defence against
            attackers that answer late.
        least_age: smallest age at which a late update is used, in versions.
        second_look: whether updates that were filtered are judged again, together with late updates of their version,
            and used like these if they are admitted.
    """

    f: NonNegativeInt
    window: PositiveInt = 5
    quorum: int | None = None
    late_lr: Annotated[float, Meta(gt=0, description="window = 1 uses no late updates")] = 1.0
    staleness: Staleness = Inverse()
    aggregate: Aggregator = DensestMajority()
    preprocess: Preprocess = Ignore()
    compare: Compare = "updates"
    judge_late: bool = True
    least_age: Annotated[int, Meta(ge=1, description="age 0 is not late")] = 1
    second_look: bool = False

    @property
    @override
    def traits(self) -> Traits:
        return super().traits._replace(synchronous=False, observed=("waiting", "late", "kept", "decided"))

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        least = max(2, 2 * self.f + 1)
        if self.quorum is not None and self.quorum < least:
            raise ValueError(
                f"quorum must be at least max(2, 2f + 1) = {least}, got {self.quorum}: of fewer, attackers can be half."
            )
        if self.second_look and not self.judge_late:
            raise ValueError("second_look needs judge_late: without it, whatever was filtered would be used later.")

    @classmethod
    def as_published(cls, f: int) -> "Catalyst":
        """Return Catalyst as in the experiments of the authors' published program, for f attackers."""
        return cls(f, staleness=Undiscounted(), compare="models", judge_late=False, least_age=2)

    @property
    def needed(self) -> int:
        """The number of answers to the current model that trigger a step."""
        return max(2, 2 * self.f + 1) if self.quorum is None else self.quorum

    @property
    @override
    def rule(self) -> Aggregator:
        """See `Algorithm`: the rule for clipped updates."""
        if not isinstance(self.aggregate, DensestMajority):
            return self.aggregate
        return DensestMajority(clipped=True) if self.f else Mean()

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[CatalystState, Set[int]]:
        n, q = len(sizes), self.needed
        if n < q:
            formula = "" if self.quorum else "max(2, 2f + 1) = " if self.f == 0 else "2f + 1 = "
            raise InfeasibleError(
                f"Catalyst needs at least {formula}{q} clients, got {n}. Lower f, or have more clients."
            )
        check_rows(self.rule, q, "quorum")
        check_chooses(self.rule, q, self.compare)
        weights = self.preprocess.enrolled(sizes)
        return CatalystState(0, model, dict(sizes), weights, {}, {}, {}, None, {}), weights.keys()  # lines 3 and 4

    @override
    def step(self, state: CatalystState, updates: Updates) -> tuple[CatalystState, Set[int]]:
        verdicts, ready = dict[int, Verdict](), set[int]()
        for c in updates.clients:
            state, now = self._receive(state, c, alone(updates, c))
            verdicts |= state.verdicts
            ready |= now
        return state._replace(verdicts=verdicts), ready

    def _receive(self, state: CatalystState, c: int, update: Updates) -> tuple[CatalystState, Set[int]]:
        """Return the state after lines 6 to 42, for the update of client c."""
        a, t = state.version, update.versions[0]  # line 7
        tau = a - t
        if c in state.pending.get(t, {}) or (t in state.processed and c in state.processed[t].clients):  # line 8
            why = f"has answered version {t} already"
            return state._replace(verdicts={c: Verdict(False, 0.0, None, why)}), {c} - state.pending.get(a, {}).keys()
        if tau > 0 and not self.least_age <= tau < self.window:  # line 38
            used = f"{self.least_age} to {self.window - 1}" if self.least_age < self.window else "none"
            why = f"{how_late(tau)}, late updates are used at ages {used}"
            return state._replace(verdicts={c: Verdict(False, 0.0, None, why)}), {c}
        pending = {**state.pending, t: {**state.pending.get(t, {}), c: update}}  # lines 13 and 39
        state = state._replace(pending=pending)
        if tau > 0:
            why = f"{how_late(tau)}, waits for the next step"
            return state._replace(verdicts={c: Verdict(True, 0.0, None, why, waits=True)}), {c}  # line 42
        if len(pending[a]) < self.needed:  # line 14
            why = f"waits for a quorum, {len(pending[a])} of {self.needed}"
            return state._replace(verdicts={c: Verdict(True, 0.0, None, why, waits=True)}), set()  # line 35
        try:
            return self._advance(state)
        except TooFewError as error:
            if len(pending[a]) >= len(state.sizes):
                raise  # nobody is left to wait for
            why = f"held back with {len(pending[a])}, waits for more: {error}"
            return state._replace(verdicts={c: Verdict(True, 0.0, None, why, waits=True)}), set()

    @override
    def lose_round(self, state: CatalystState, updates: Updates, why: str) -> tuple[CatalystState, Set[int]]:
        """See `Algorithm`: all who have answered the present model are asked again; late updates go on waiting."""
        lost = state.pending.get(state.version, {}).keys() | set(updates.clients)
        pending = {i: of for i, of in state.pending.items() if i != state.version}
        return state._replace(pending=pending, verdicts=lost_verdicts(lost, why)), lost

    def _advance(self, state: CatalystState) -> tuple[CatalystState, Set[int]]:
        """Return the state after lines 15 to 33."""
        a, G = state.version, state.model
        W = merged(state.pending[a].values())
        late = {i: self._late_or_lost(state, i) for i in sorted(state.pending) if i < a}  # lines 15 to 18
        n = weights_of(self.weights(state, W.clients), W)
        e, S = clip_bound(W.deltas, n, W.clients)  # line 18
        models = compared(self.compare, W.bases, W.deltas)
        rows = shortened(W.deltas, S, e)
        delta, choice = aggregated(
            self.rule, rows, models, n, W.clients, name="quorum", turn=a, previous=state.aggregate
        )  # lines 19 and 20
        G = G + delta
        verdicts = clipped_verdicts(verdicts_of(W, n, choice, self.remark(state, W)), e, S)
        filtered = {**self._filtered(state, late), a: frozenset(i for i, v in verdicts.items() if not v.accepted)}
        for change, judged in late.values():
            G = G + change  # line 21
            verdicts |= {i: both(verdicts[i], verdict) if i in verdicts else verdict for i, verdict in judged.items()}
        window = range(a - self.window + 2, a)  # lines 30 to 32: the versions that late updates can still need
        processed = {i: merged([state.processed[i], *state.pending.get(i, {}).values()]) for i in window if i >= 0}
        if self.window > 1:
            processed[a] = W  # line 24
        new = state._replace(
            version=a + 1,  # line 33
            model=G,
            pending={},  # line 25
            processed=processed,
            bounds={i: S if i == a else state.bounds[i] for i in processed},
            aggregate=delta,
            verdicts=dict(sorted(verdicts.items())),
            filtered={i: filtered[i] for i in processed} if self.second_look else {},
        )
        return new, set(W.clients)  # lines 26 to 29

    def _filtered(self, state: CatalystState, late: Mapping[int, LateUpdate]) -> dict[int, frozenset[int]]:
        """Return the clients whose answers to each old version are not used, after a step that used late updates."""
        filtered = dict(state.filtered)
        for i, (_, judged) in late.items():
            used = {c for c, verdict in judged.items() if verdict.accepted}
            filtered[i] = filtered.get(i, frozenset()).union(state.pending[i]) - used
        return filtered

    def _late_or_lost(self, state: CatalystState, i: int) -> LateUpdate:
        """Return the result of the late updates of version i; zero where the rule has no result for them."""
        try:
            return self._late(state, i)
        except InfeasibleError as error:
            reason = f"{how_late(state.version - i)}, not used: {error}"
            return LateUpdate(
                torch.zeros_like(state.model), dict.fromkeys(state.pending[i], Verdict(False, 0.0, None, reason))
            )

    def _late(self, state: CatalystState, i: int) -> LateUpdate:
        """Return the result of lines 16 to 18, and the term of version i in line 21."""
        tau, L, again = state.version - i, state.pending[i], state.filtered.get(i, frozenset())
        W = merged([state.processed[i], *L.values()])
        n = weights_of(self.weights(state, W.clients), W)
        e, S = norms(W.deltas).cpu(), state.bounds[i]
        part = self._part(state, W, n, shortened(W.deltas, S, e), [c in L or c in again for c in W.clients])
        sf = self.late_lr * self.staleness(tau)
        company = f"with {plural(len(W) - len(L), 'other')}" if self.judge_late else "not judged"
        note = f"{how_late(tau)}, {company}"
        verdicts = dict[int, Verdict]()
        judged = clipped_verdicts(verdicts_of(W, n, part.choice), e, S)
        for (c, verdict), weight in zip(judged.items(), (sf * part.shares).tolist(), strict=True):
            if c in L or (c in again and verdict.accepted):
                said = note if c in L else f"second look, {note}"
                verdicts[c] = replace(verdict, weight=weight, reason="; ".join(filter(None, (said, verdict.reason))))
        return LateUpdate(sf * part.change, verdicts)

    def _part(self, state: CatalystState, W: Updates, n: Weights, rows: Matrix, late: Sequence[bool]) -> LatePart:
        """Return the effect of some updates, the late ones and those judged again, among those of a version."""
        rule = self.rule if self.judge_late else Mean()
        is_late, models = torch.tensor(late), compared(self.compare, W.bases, W.deltas)
        name = "set of late answers"
        vector, choice = aggregated(rule, rows, models, n, W.clients, name=name, turn=state.version)
        n = n.cpu()
        if choice is None:
            early = [c for c, one in zip(W.clients, late, strict=True) if not one]
            used = self.weights(state, early)  # those of the answers in time are bounded by themselves
            n_early = torch.tensor([used[c] for c in early], dtype=torch.float64)
            before, _ = combine(rule, rows[~is_late], n_early, early, name, turn=state.version)
            return LatePart(vector - before, n / n.sum(), None)
        everybody = sum(self.preprocess.among(state.weights, state.weights).values())  # |C|
        everybody = max(everybody, float(n.sum()))  # a bound of few clients can be larger than that of all
        shares = choice.shares * n[choice.shares > 0].sum() / everybody
        return LatePart((shares * is_late).to(rows.device, rows.dtype) @ rows, shares, choice)

    @override
    def pools(self, setting: Setting, state: CatalystState | None = None) -> tuple[Pool, ...]:
        """See `Algorithm`: the quorum, and late answers together with those in time."""
        q, n = self.needed, setting.clients
        wanted = q if state is None else max(q, state.waiting + 1)  # more than the quorum while a step is held back
        pool = Pool(
            "quorum",
            self.rule,
            wanted,
            wanted,
            self.preprocess,
            "raise quorum",
            "Lower f" if self.quorum is None else "Lower quorum",
            chosen="arrival",
            there=None if state is None else state.waiting,
        )
        if self.window == 1:
            return (pool,)
        rule = self.rule if self.judge_late else Mean()
        late = Pool(
            "set of late answers", rule, q, n, self.preprocess, "raise quorum", chosen="arrival", bounds="shift"
        )
        return (pool, replace(late, versions=1, beyond=self._late_shift(rule)))

    def _late_shift(self, rule: Aggregator) -> str:
        """Return by how much late answers move the model in a step, in words.

        Those of an age count once in a step, times `late_lr` and `staleness`.  What they add is the difference of two
        results, each between honest entries; or parts of clipped updates, which are one in sum at most.
        """
        most = at_most(self.late_lr * sum(map(self.staleness, range(self.least_age, self.window))))
        if stays_in_range(rule):
            return f"Late answers shift the model in a step by at most {most} times the honest range."
        if weighs_rows(rule, self.needed):
            return (
                f"Late answers shift the model in a step by at most {most} times the length of the longest honest "
                "update of a quorum."
            )
        return "Late answers shift the model by the difference of two results, which can add up over steps."


def how_late(tau: int) -> str:
    """Return the age of a late update in words, for verdicts."""
    return f"{plural(tau, 'version')} late"


def both(one: Verdict, other: Verdict) -> Verdict:
    """Return the joint verdict on two updates of one client."""
    score = one.score if other.score is None else other.score
    reason = " and ".join(filter(None, (one.reason, other.reason)))
    return Verdict(one.accepted or other.accepted, one.weight + other.weight, score, reason)
