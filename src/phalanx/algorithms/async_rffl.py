"""Robust and fair federated learning without rounds: each arrival changes one reputation.

Ours, after Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020; `phalanx.algorithms.rffl`
is their algorithm.  The steps of a round are taken here whenever one participant reports:

* Its update is compared with the reputation-weighted aggregate of the last updates of the *others*.  In a round every
  update is in the aggregate that it is compared with; here the new one would be the freshest of all.
* Its reputation is the moving average of those cosines, from zero as in the paper, divided by the weight that the
  average has had so far.  No other reputation changes.  Shares of the sum replace reputations that sum to one.
* A participant below the threshold is excluded before its update is used, not after.
* The share of the update is added to the server's model.  The participant is paid out of the changes of the server's
  model since its last payment: over one update of each participant, as much as a round pays.

A participant that sends back the last change of its model predicts the others, and would be paid with `challenge=None`.
`Unsent`, by which `RFFL` can pay, does not help: what arrives is served at once, and little is left that is new.
Nobody is excluded who is seen to train by `challenge`: late in a run the honest agree on little.

Participants that answer often have lower reputations, and those hardly follow sizes: docs/rffl.md has the correlations.

Ages are not used: participants' models differ anyway, and a late update is judged by its direction.

`MedianNorm` is the median over all participants; those that have sent nothing count with length zero.  So no update is
used or judged until half of them have reported: fast attackers could set the median of the first few lengths.

The server keeps three vectors for each participant: its last update, the sum of its payments, and the server's model at
its last payment.

With more than `FEW` participants, the mean as rule and `challenge=None`, an arrival costs the same for any number of
them: sums change by what it brings (`phalanx.algorithms.running`).  They add in another order, so other last bits
follow.
"""

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.challenge import Asked, Challenge, proven_quotas
from phalanx.algorithms.reputation import Allocation, CumulativeClient, MedianNorm, Own, Whole, cos_sim, largest, places
from phalanx.algorithms.rounds import no_proof
from phalanx.algorithms.running import GONE, TICK, Clipped, LastSent, Ranked, Shares, Slots
from phalanx.core import InfeasibleError, Pool, Setting, Traits, Updates, Vector, Verdict
from phalanx.fields import LEFT_OUT, NonNegativeInt, PositiveFloat
from phalanx.numerics.linalg import norms, shortened
from phalanx.promises.promise_watch import combine
from phalanx.wording import plural

FEW = 64  # participants whose last updates are added up at each arrival


class AsyncAccount(NamedTuple):
    """The server's record of one participant."""

    average: float  # moving average of its cosines, from zero
    judged: int  # number of these cosines
    latest: Vector | None  # what it sent last
    length: float  # the norm of that; zero if it has sent nothing
    seen: Vector  # w_g when it was last paid
    paid: Vector  # w^(0) and all that it was allocated, which it downloads


class Running(NamedTuple):
    """What follows from the accounts, but costs a pass over them."""

    updates: Clipped  # the last updates of participants that are not excluded
    averages: Ranked  # their averages, each divided by the weight that it has had
    weights: Slots[float | None]  # the same by participant
    mean: float  # of the averages, which those have who have none


class AsyncRFFLState(NamedTuple):
    """The server's state of `AsyncRFFL`."""

    version: int  # arrivals so far
    model: Vector  # w_g
    accounts: Mapping[int, AsyncAccount]  # also of excluded participants, which keep their last model
    reputation: Mapping[int, float]  # r_i of R, summing to one
    threshold: float  # r_th of the last arrival
    verdicts: Mapping[int, Verdict]
    running: Running | None = None  # with more than `FEW` participants
    asked: Asked = Asked()  # empty without `challenge`
    proven: Mapping[int, float] = {}  # the factor of each quota; empty without `challenge`
    quota: Mapping[int, float] = {}  # with what is proven; empty without `challenge`


@dataclass(frozen=True)
class AsyncRFFL(CumulativeClient[AsyncRFFLState]):
    """`RFFL` on arrivals: a participant is judged, and paid, as soon as it reports.  Nobody can join later.

    Args:
        fade: alpha in [0, 1), the weight of the past in a reputation.
        threshold: c in r_th = c / |R|, in [0, 1). 0 excludes nobody.
        warmup: number of a participant's first cosines that do not exclude it, at least 0: one alone is mostly chance.
        clip: largest norm of an update; `MedianNorm` is that of the last ones of all participants. None for no
            limit.
        allocation: the parts of a vector of which a quota takes the largest entries.
        own: as in `RFFL`: "subtracted", "kept" or "replaced".
        aggregate: the rule for the others' last updates, with reputations as weights, with whose result an update is
            compared.
        challenge: as in `RFFL`; costs a pass over all participants at each arrival, which None saves.
    """

    fade: Annotated[float, Meta(ge=0, lt=1, description="at 1 reputations would never leave zero")] = 0.8
    threshold: Annotated[float, Meta(ge=0, lt=1, description="it is a share of 1 / |R|")] = 1 / 3
    warmup: NonNegativeInt = 3
    clip: PositiveFloat | MedianNorm | None = MedianNorm()
    allocation: Allocation = Whole()
    own: Own = "subtracted"
    aggregate: Aggregator = Mean()
    challenge: Challenge | None = field(default=Challenge(), metadata={LEFT_OUT: None})

    @property
    @override
    def traits(self) -> Traits:
        observed = ("reputation", "threshold", *(("proven", "quota") if self.challenge else ()))
        return super().traits._replace(synchronous=False, observed=observed)

    # Role: server

    @override
    def weights(self, state: AsyncRFFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: reputations."""
        return {i: state.reputation.get(i, 0.0) for i in clients}

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[AsyncRFFLState, Set[int]]:
        self.allocation.parts(len(model))
        accounts = dict.fromkeys(sizes, AsyncAccount(0.0, 0, None, 0.0, model, model))
        equal = dict.fromkeys(sizes, 1 / len(sizes))
        state = AsyncRFFLState(0, model, accounts, equal, self.threshold / len(sizes), {})
        return self._kept_running(state), sizes.keys()

    @override
    def part(self, state: AsyncRFFLState, clients: Mapping[int, int]) -> tuple[AsyncRFFLState, Set[int]]:
        """See `Algorithm`: everybody keeps its model and its account, and reputations keep their ratios."""
        rest = {i: r for i, r in state.reputation.items() if i in clients}
        if not (total := sum(rest.values())):
            raise InfeasibleError(
                f"None of {plural(len(clients), 'client')} has a reputation, so no update would have weight. "
                "Keep a client that has one, or start a new run."
            )
        new = state._replace(
            accounts={i: account for i, account in state.accounts.items() if i in clients},
            reputation={i: r / total for i, r in rest.items()},
            threshold=self.threshold / len(rest),
            verdicts={},
            asked=state.asked.of(clients),
            proven={i: p for i, p in state.proven.items() if i in clients},
            quota={i: q for i, q in state.quota.items() if i in clients},
        )
        return self._kept_running(new), rest.keys()

    @override
    def download(self, state: AsyncRFFLState, client: int) -> Vector:
        """See `Algorithm`: w^(0) and all that the client was allocated."""
        return state.asked.shifted(client, state.accounts[client].paid)

    @override
    def candidate_models(self, state: AsyncRFFLState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`: without a shift."""
        return {0: state.accounts[client].paid}

    @override
    def step(self, state: AsyncRFFLState, updates: Updates) -> tuple[AsyncRFFLState, Set[int]]:
        verdicts = dict[int, Verdict]()
        for i in updates.clients:
            if i in state.reputation:
                state = self._arrived(state, i, updates.of({i}))
                verdicts |= state.verdicts
        return state._replace(verdicts=verdicts), {i for i in verdicts if i in state.reputation}

    def _arrived(self, state: AsyncRFFLState, i: int, one: Updates) -> AsyncRFFLState:
        """Return the state after one arrival."""
        account = state.accounts[i]._replace(latest=one.deltas[0], length=float(norms(one.deltas)[0]))
        updates, radius = self._clipped(state, i, account)
        dw_i = shortened(one.deltas, radius)[0]
        if (dw_others := self._others(state, updates, i, radius)) is not None:
            cosine = float(cos_sim(dw_others, dw_i[None])[0])
            average = self.fade * account.average + (1 - self.fade) * cosine
            account = account._replace(average=average, judged=account.judged + 1)

        r, running = self._rated(state, updates, i, account)
        r_th = self.threshold / len(r)
        state = state._replace(version=state.version + 1, threshold=r_th)
        trains = self.challenge is not None and i in self.challenge.training(state.asked, (i,))
        if r[i] < r_th and account.judged > self.warmup and not trains:
            verdict = Verdict(False, 0.0, r[i], f"reputation {r[i]:.4f} < {r_th:.4f}, excluded", final=True)
            rest, running = self._rated(state, updates and updates.without(i, account.length), i, None)
            asked = state.asked.of(state.reputation.keys() - {i})
            return state._replace(reputation=rest, verdicts={i: verdict}, running=running, asked=asked)

        w_g = state.model + r[i] * dw_i
        most = r.largest if isinstance(r, Shares) else max(r.values())
        quota = r[i] / most
        if self.challenge is not None:
            asked = self.challenge.after(state.asked, one, w_g, state.version, len(r))
            proven = self.challenge.proven(asked, r)
            quotas = proven_quotas({j: r_j / most for j, r_j in r.items()}, proven)
            quota = quotas[i]
            state = state._replace(asked=asked, proven=proven, quota=quotas)
        paid = account.paid + self._allocated(account, w_g, quota, r[i] * dw_i)
        accounts = _changed(state.accounts, i, account._replace(seen=w_g, paid=paid))
        used = Verdict(True, r[i], r[i])
        if radius == 0:
            used = Verdict(False, 0.0, r[i], "only recorded: the median norm of all participants is zero so far")
        return state._replace(model=w_g, accounts=accounts, reputation=r, verdicts={i: used}, running=running)

    def _clipped(self, state: AsyncRFFLState, i: int, account: AsyncAccount) -> tuple[Clipped | None, float]:
        """Return the sums of the others' last updates, if they are kept, and the current largest norm of an update."""
        if state.running is not None:
            old, sums = self._sent(state.accounts[i]), state.running.updates
            return sums.replaced(i, old, account.length, self._radius, lambda j: self._sent(state.accounts[j]))
        accounts = {**state.accounts, i: account}
        return None, self._radius([accounts[j].length for j in state.reputation])

    def _radius(self, lengths: Ranked | list[float]) -> float:
        """Return the largest norm of an update for the lengths of all last ones."""
        if not isinstance(self.clip, MedianNorm):
            return math.inf if self.clip is None else self.clip
        if isinstance(lengths, Ranked):
            lengths = [length for length, _ in lengths.between((len(lengths) - 1) // 2, len(lengths) // 2 + 1)]
        return self.clip.factor * median(lengths)

    def _others(self, state: AsyncRFFLState, updates: Clipped | None, i: int, radius: float) -> Vector | None:
        """Return the reputation-weighted aggregate of the others' last updates; None if there is none."""
        if radius == 0:
            return None
        if updates is not None and state.running is not None and state.running.mean > 0:
            mean = updates.mean(radius, state.running.mean)
            return None if mean is None else mean.to(state.model.dtype)
        last = {j: a.latest for j, a in state.accounts.items() if a.latest is not None and j != i}
        last = {j: dw_j for j, dw_j in last.items() if state.reputation.get(j, 0.0) > 0}
        if not last:
            return None
        rows = shortened(torch.stack([dw_j for dw_j in last.values() if dw_j is not None]), radius)
        weights = torch.tensor([state.reputation[j] for j in last], dtype=torch.float64, device=rows.device)
        return combine(self.aggregate, rows, weights, list(last), "set of last updates", turn=state.version)[0]

    def _rated(
        self, state: AsyncRFFLState, updates: Clipped | None, i: int, account: AsyncAccount | None
    ) -> tuple[Mapping[int, float], Running | None]:
        """Return the reputations with a new account, or without a participant, and what is kept with them."""
        if updates is None or state.running is None:
            if account is None:
                return self._reputations(state.accounts, state.reputation.keys() - {i}), None
            return self._reputations({**state.accounts, i: account}, state.reputation.keys()), None
        old, averages = self._weight(state.accounts[i]), state.running.averages
        new = GONE if account is None else self._weight(account)
        if old is not None:
            averages, _ = averages.without((old, i))
        if account is not None:
            updates = updates.including(i, self._sent(account))
            if new is not None:
                averages, _ = averages.including((new, i))
        if updates.left <= 0:
            accounts = _changed(state.accounts, i, account or state.accounts[i])
            sent = {j: self._sent(accounts[j]) for _, j in updates.lengths.between(0, len(updates.lengths))}
            updates = Clipped.of(sent, state.model, self._radius)
        return self._shares(updates, averages, state.running.weights.changed(i, new))

    def _shares(
        self, updates: Clipped, averages: Ranked, weights: Slots[float | None]
    ) -> tuple[Mapping[int, float], Running]:
        """Return the reputations that follow from what is kept, and that."""
        mean = updates.ticks * TICK / len(averages) if averages else 1.0
        top = averages[len(averages) - 1][0] if averages else mean
        return Shares(weights, mean, len(updates.lengths), top), Running(updates, averages, weights, mean)

    def _kept_running(self, state: AsyncRFFLState) -> AsyncRFFLState:
        """Return the state with what is kept for more than `FEW` participants; reputations stay as they are."""
        if len(state.reputation) <= FEW or type(self.aggregate) is not Mean:
            return state._replace(running=None)
        there = {j: self._sent(state.accounts[j]) for j in state.reputation}
        weights = Slots.of({j: there[j].weight if j in there else GONE for j in state.accounts})
        averages = Ranked.of((one.weight, j) for j, one in there.items() if one.weight is not None)
        _, running = self._shares(Clipped.of(there, state.model, self._radius), averages, weights)
        if state.running is not None:
            running = running._replace(mean=state.running.mean)
        return state._replace(accounts=Slots.of(state.accounts), running=running)

    def _sent(self, account: AsyncAccount) -> LastSent:
        return LastSent(account.latest, account.length, self._weight(account))

    def _weight(self, account: AsyncAccount) -> float | None:
        """Return the average of a participant's cosines, at least 0, divided by the weight that it has had."""
        return max(account.average, 0.0) / (1 - self.fade**account.judged) if account.judged else None

    def _reputations(self, accounts: Mapping[int, AsyncAccount], members: Set[int]) -> dict[int, float]:
        """Return the reputation of each member, summing to one: members without any have the mean of the others."""
        weights = {i: self._weight(accounts[i]) for i in sorted(members)}
        known = {i: weight for i, weight in weights.items() if weight is not None}
        mean = sum(known.values()) / len(known) if known else 1.0
        if mean == 0.0:  # nobody has any: all are equal
            return dict.fromkeys(sorted(members), 1 / len(members))
        r = {i: known.get(i, mean) for i in sorted(members)}
        total = sum(r.values())
        return {i: r_i / total for i, r_i in r.items()}

    def _allocated(self, account: AsyncAccount, w_g: Vector, quota: float, contributed: Vector) -> Vector:
        """Return the payment of a participant out of the changes of the server's model since its last payment."""
        collected = w_g - account.seen
        place = places(collected, self.allocation.parts(len(collected)))
        allocated = largest(collected, place, quota)
        if self.own == "subtracted":
            return allocated - contributed
        if self.own == "replaced" and account.latest is not None:
            return allocated - largest(account.latest, place, quota)
        return allocated

    @override
    def pools(self, setting: Setting, state: AsyncRFFLState | None = None) -> tuple[Pool, ...]:
        return (Pool.of_one(self.rule, no_proof(self)),)


def _changed(accounts: Mapping[int, AsyncAccount], i: int, account: AsyncAccount) -> Mapping[int, AsyncAccount]:
    """Return a copy of the accounts with another one."""
    return accounts.changed(i, account) if isinstance(accounts, Slots) else {**accounts, i: account}
