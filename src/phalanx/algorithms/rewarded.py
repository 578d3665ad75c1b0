"""Rewards in proportion to contribution, around any algorithm.

Ours, after Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020, whose Algorithm 1
(`phalanx.algorithms.RFFL`) aggregates, judges and rewards by one number.  Here the algorithm within aggregates, with
its own defence, weights, rounds or arrivals, and this one judges and rewards only:

* The reputation of a client is the moving average of a cosine, from zero as in the paper, divided by the weight that
  the average has had so far.  The cosine is that of its update with the mean direction of what the *others* sent last,
  each as much as the algorithm within has used of it.  In the paper an update is in the aggregate that it is compared
  with, which would be all of it where arrivals are used one by one; and what is filtered here says nothing of others.
  Clients of which nothing is known yet have the mean reputation of the others.
* Its quota is its reputation over the largest one, to the power `sharpness`.
* A client's model is its own, after its own training, but for the entries in which it differs most from the server's
  model, as large a share of all entries as the quota: those are the server's.  With a quota of one it is the server's
  model, with a quota of zero what the client would have alone.  In the paper a model is a sum of all that a client
  sent and was allocated; that sum drifts away from the server's model where replies are late or lost, this one cannot.
* An update without a direction, zero, agrees with nobody: its cosine is zero.
* Nobody is excluded for a low reputation: who is not believed is filtered by the algorithm within, and gets nothing.

That cosine pays who predicts the others' updates, and so free riders that send back the last change of the model.  By
default (`challenge`) only those are paid who train on what they are sent: `phalanx.algorithms.challenge`.  With
`unsent` the cosine is that of `phalanx.algorithms.unsent`, taken on what a client could not know.

The server keeps two vectors for each client: its model, and the direction of its last update.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import torch
from msgspec import Meta
from typing_extensions import override

from phalanx.algorithms.centrally_private import check_not_central
from phalanx.algorithms.challenge import Asked, Challenge, proven_quotas
from phalanx.algorithms.reputation import Allocation, Whole, cos_sim, largest, places
from phalanx.algorithms.unsent import Earned, JudgedUpdate, Known, Unsent, quotas_of
from phalanx.algorithms.wrapper import OuterStateWithInnerVerdicts, StatefulWrapper
from phalanx.core import Pool, Setting, Traits, Updates, Vector
from phalanx.fields import LEFT_OUT, NonNegativeFloat
from phalanx.numerics.linalg import direction


class Account(NamedTuple):
    """The server's record of one client."""

    own: Vector  # its model after its last training
    average: float = 0.0  # moving average of its cosines, from zero
    judged: int = 0  # how many cosines that are
    latest: Vector | None = None  # direction of its last update, of length one; None before the first, or if it is zero
    used: float = 0.0  # the weight that it has had
    version: int = 0  # of the download that it answered
    base: Vector | None = None  # that download; with `unsent` only


@dataclass(frozen=True)
class RewardedState(OuterStateWithInnerVerdicts):
    """The server's state of `Rewarded`."""

    start: Vector  # the model with which clients begin
    accounts: Mapping[int, Account]
    total: Vector  # of all directions, as far as they were used
    reputation: Mapping[int, float]  # in [0, 1]
    quota: Mapping[int, float]  # share of the server's model that each client gets, in [0, 1]
    known: Known = Known()  # empty without `unsent`
    asked: Asked = Asked()  # empty without `challenge`
    proven: Mapping[int, float] = field(default_factory=dict)  # the factor of each quota; empty without `challenge`


@dataclass(frozen=True)
class Rewarded(StatefulWrapper):
    """Serves each client as much of the server's model as its reputation deserves.

    Args:
        algorithm: what the server does with updates; one that serves everybody the same model.
        fade: alpha in [0, 1), the weight of the past reputation.
        sharpness: power to which the ratio of two reputations is raised, at least 0. 0 serves everybody alike.
        allocation: of what a quota takes the largest entries.
        unsent: rewards only agreement on what a client could not know.
        challenge: rewards only clients that train on what they are sent. None: free riders that send back what they
            were sent, or copy others, are rewarded. Not used where sharpness is 0.
    """

    fade: Annotated[float, Meta(ge=0, lt=1, description="at 1 reputations would never leave zero")] = 0.8
    sharpness: NonNegativeFloat = 1.0
    allocation: Allocation = Whole()
    unsent: Unsent | None = None
    challenge: Challenge | None = field(default=Challenge(), metadata={LEFT_OUT: None})

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm.traits.remembers:
            raise ValueError(
                f"{self.algorithm.title} lets clients keep models of their own, so there is no one model to reward "
                "them with. Choose an algorithm that serves everybody alike, such as Catalyst."
            )
        if self.algorithm.traits.vectors != 1:
            raise ValueError(f"Rewarded serves models, and {self.algorithm.title} sends more than a model.")
        check_not_central("Rewarded", self.algorithm)

    @property
    @override
    def traits(self) -> Traits:
        """See `Algorithm`: it shows reputations and quotas; quotas of parts of a model need its layout."""
        inner, parts = super().traits, not isinstance(self.allocation, Whole)
        observed = (*inner.observed, "reputation", "quota", *(("proven",) if self._asks else ()))
        return inner._replace(observed=observed, knows_layout=inner.knows_layout or parts)

    @property
    def _asks(self) -> Challenge | None:
        """The challenge, if rewards differ."""
        return self.challenge if self.sharpness > 0 else None

    # Role: server

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[RewardedState, Set[int]]:
        self.allocation.parts(len(model))
        inner, ready = self.algorithm.init(model, sizes)
        everybody, accounts = dict.fromkeys(sizes, 1.0), dict.fromkeys(sizes, Account(model))
        return RewardedState(inner, model, accounts, torch.zeros_like(model), everybody, everybody), ready

    @override
    def download(self, state: RewardedState, client: int) -> Vector:
        """See `Algorithm`: the client's own model, with its share of the server's."""
        return state.asked.shifted(client, self._allocated(state, client))

    def _allocated(self, state: RewardedState, client: int) -> Vector:
        """Return the client's own model, with its share of the server's."""
        own, quota = state.accounts[client].own, state.quota[client]
        if quota >= 1:
            return state.model
        place = places(state.model - own, self.allocation.parts(len(own)))
        return torch.where(largest(torch.ones_like(own), place, quota) > 0, state.model, own)

    @override
    def candidate_models(self, state: RewardedState, client: int) -> Mapping[int, Vector]:
        """See `Algorithm`: one only, since to choose a better one would be to choose one's reward; without a shift."""
        return {0: self._allocated(state, client)}

    @override
    def join(self, state: RewardedState, client: int, size: int) -> RewardedState:
        """See `Algorithm`: a new client is served as much as the mean of the others."""
        inner = self.algorithm.join(state.inner, client, size)
        return self._rated(replace(state, inner=inner, accounts={**state.accounts, client: Account(state.start)}))

    @override
    def part(self, state: RewardedState, clients: Mapping[int, int]) -> tuple[RewardedState, Set[int]]:
        """See `Algorithm`: reputations and models stay."""
        inner, ready = self.algorithm.part(state.inner, clients)
        accounts, known = {i: state.accounts[i] for i in clients}, state.known.of(clients)
        asked = state.asked.of(clients)
        used = [account.used * account.latest for account in accounts.values() if account.latest is not None]
        total = sum(used, torch.zeros_like(state.total))
        state = replace(state, inner=inner, accounts=accounts, total=total, known=known, asked=asked)
        return self._rated(state), ready

    @override
    def step(self, state: RewardedState, updates: Updates) -> tuple[RewardedState, Set[int]]:
        inner, ready = self.algorithm.step(state.inner, updates)
        accounts, total = dict(state.accounts), state.total
        rows = zip(updates.clients, updates.versions, updates.bases, updates.deltas, strict=True)
        for i, version, base, delta in rows:
            total = total - _used(accounts[i])
            kept = None if self.unsent is None else base
            own = state.asked.unshifted(i, base + delta)
            accounts[i] = Account(
                own, accounts[i].average, accounts[i].judged, direction(delta), version=version, base=kept
            )
        decided = [i for i, verdict in inner.verdicts.items() if not verdict.waits]
        for i in decided:
            total = total - _used(accounts[i])
            accounts[i] = accounts[i]._replace(used=inner.verdicts[i].weight)
            total = total + _used(accounts[i])
        cosines, known = self._cosines(state, updates, accounts, total, decided)
        for i, cosine in cosines.items():
            average, judged = Earned(accounts[i].average, accounts[i].judged).after(cosine, self.fade)
            accounts[i] = accounts[i]._replace(average=average, judged=judged)
        asked = state.asked
        if (asks := self._asks) is not None:
            asked = asks.after(asked, updates, inner.model, inner.version, len(accounts))
        state = replace(state, inner=inner, accounts=accounts, total=total, known=known, asked=asked)
        return self._rated(state), ready

    def _cosines(
        self,
        state: RewardedState,
        updates: Updates,
        accounts: Mapping[int, Account],
        total: Vector,
        decided: Sequence[int],
    ) -> tuple[dict[int, float], Known]:
        """Return the cosines of those clients for whom others were used, and what is known then."""
        if self.unsent is None:
            others = {i: total - _used(accounts[i]) for i in decided}
            return {i: _cosine(accounts[i], rest) for i, rest in others.items() if bool(rest.any())}, state.known
        known = self.unsent.seen(state.known, state.version, state.model)
        sent = {
            i: JudgedUpdate(a.latest, a.used * state.proven.get(i, 1.0), a.version, a.base)
            for i, a in accounts.items()
            if a.latest is not None
        }
        cosines = self.unsent.agreements(known, sent, decided, copies=self._asks is not None)
        return cosines, self.unsent.after(known, {i: sent[i] for i in decided if i in sent})

    def _rated(self, state: RewardedState) -> RewardedState:
        """Return the state with the reputations and quotas that follow from the accounts."""
        known = {i: Earned(a.average, a.judged).reputation(self.fade) for i, a in state.accounts.items()}
        reputation, ratios = quotas_of(known)
        if (asks := self._asks) is not None:
            proven = asks.proven(state.asked, ratios)
            ratios = proven_quotas(ratios, proven)
            state = replace(state, proven=proven)
        quota = {i: ratio**self.sharpness for i, ratio in ratios.items()}
        return replace(state, reputation=reputation, quota=quota)

    @override
    def pools(self, setting: Setting, state: Any = None) -> tuple[Pool, ...] | None:
        """See `Algorithm`: clients train on models of their own, and what they earn is not bounded."""
        pays = "predicts the aggregate" if self.unsent is None else "copies an update of the same step"
        back = ", and takes off what it knows of its shift," if self._asks else ""
        earned = f"What clients earn is not bounded: a client that {pays}{back} is rewarded."
        inner = super().pools(setting, state)
        return inner and tuple(replace(pool, bounds="share", beyond=earned) for pool in inner)


def _cosine(account: Account, others: Vector) -> float:
    """Return the cosine of a client's last update with what was used of the others."""
    return 0.0 if account.latest is None else float(cos_sim(others, account.latest[None])[0])


def _used(account: Account) -> Vector | float:
    """Return what of a client's last update is in the sum of all."""
    return 0.0 if account.latest is None else account.used * account.latest
