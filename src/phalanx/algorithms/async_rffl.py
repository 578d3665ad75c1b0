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

Ages are not used: participants' models differ anyway, and a late update is judged by its direction.

`MedianNorm` is the median over all participants; those that have sent nothing count with length zero.  So no update is
used or judged until half of them have reported: fast attackers could set the median of the first few lengths.

The server keeps three vectors for each participant: its last update, the sum of its payments, and the server's model at
its last payment.
"""

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, NamedTuple

import torch

from phalanx.aggregators import Aggregator, Mean
from phalanx.algorithms.reputation import (
    Allocation,
    CumulativeClient,
    MedianNorm,
    Own,
    Whole,
    check_reputation,
    cos_sim,
    largest,
    places,
)
from phalanx.core import InfeasibleError, Updates, Vector, Verdict
from phalanx.numerics.linalg import norms, shortened
from phalanx.wording import plural


class Account(NamedTuple):
    """The server's record of one participant."""

    average: float  # moving average of its cosines, from zero
    judged: int  # number of these cosines
    latest: Vector | None  # what it sent last
    length: float  # the norm of that; zero if it has sent nothing
    seen: Vector  # w_g when it was last paid
    paid: Vector  # w^(0) and all that it was allocated, which it downloads


class AsyncRFFLState(NamedTuple):
    """The server's state of `AsyncRFFL`."""

    version: int  # arrivals so far
    model: Vector  # w_g
    accounts: Mapping[int, Account]  # also of excluded participants, which keep their last model
    reputation: Mapping[int, float]  # r_i of R, summing to one
    threshold: float  # r_th of the last arrival
    verdicts: Mapping[int, Verdict]


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
    """

    synchronous: ClassVar[bool] = False
    observed: ClassVar[tuple[str, ...]] = ("reputation", "threshold")

    fade: float = 0.8
    threshold: float = 1 / 3
    warmup: int = 3
    clip: float | MedianNorm | None = MedianNorm()
    allocation: Allocation = Whole()
    own: Own = "subtracted"
    aggregate: Aggregator = Mean()

    def __post_init__(self) -> None:
        check_reputation(
            self,
            (self.fade != 1, "fade must be below 1, got 1: reputations would never leave zero"),
            (self.warmup >= 0, f"warmup must be at least 0 arrivals, got {self.warmup}"),
        )

    # Role: server

    @property
    def rule(self) -> Aggregator:
        """See `Algorithm`."""
        return self.aggregate

    def weights(self, state: AsyncRFFLState, clients: Collection[int]) -> dict[int, float]:
        """See `Algorithm`: reputations."""
        return {i: state.reputation.get(i, 0.0) for i in clients}

    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[AsyncRFFLState, Set[int]]:
        """See `Algorithm`."""
        self.allocation.parts(len(model))
        accounts = dict.fromkeys(sizes, Account(0.0, 0, None, 0.0, model, model))
        equal = dict.fromkeys(sizes, 1 / len(sizes))
        return AsyncRFFLState(0, model, accounts, equal, self.threshold / len(sizes), {}), sizes.keys()

    def part(self, state: AsyncRFFLState, clients: Mapping[int, int]) -> tuple[AsyncRFFLState, Set[int]]:
        """See `Algorithm`: everybody keeps its model and its account, and reputations keep their ratios."""
        rest = {i: r for i, r in state.reputation.items() if i in clients}
        if not (total := sum(rest.values())):
            raise InfeasibleError(f"None of {plural(len(clients), 'client')} has a reputation: who is to be believed?")
        new = state._replace(
            accounts={i: account for i, account in state.accounts.items() if i in clients},
            reputation={i: r / total for i, r in rest.items()},
            threshold=self.threshold / len(rest),
            verdicts={},
        )
        return new, rest.keys()

    def download(self, state: AsyncRFFLState, client: int) -> Vector:
        """See `Algorithm`: w^(0) and all that the client was allocated."""
        return state.accounts[client].paid

    def step(self, state: AsyncRFFLState, updates: Updates) -> tuple[AsyncRFFLState, Set[int]]:
        """See `Algorithm`."""
        verdicts = dict[int, Verdict]()
        for i, delta in zip(updates.clients, updates.deltas, strict=True):
            if i in state.reputation:
                state = self._arrived(state, i, delta)
                verdicts |= state.verdicts
        return state._replace(verdicts=verdicts), verdicts.keys() & state.reputation.keys()

    def _arrived(self, state: AsyncRFFLState, i: int, delta: Vector) -> AsyncRFFLState:
        """Return the state after one arrival."""
        account = state.accounts[i]._replace(latest=delta, length=float(norms(delta[None])[0]))
        radius = self._radius({**state.accounts, i: account}, state.reputation.keys())
        dw_i = shortened(delta[None], radius)[0]
        if (dw_others := self._others(state, i, radius)) is not None:
            cosine = float(cos_sim(dw_others, dw_i[None])[0])
            average = self.fade * account.average + (1 - self.fade) * cosine
            account = account._replace(average=average, judged=account.judged + 1)

        r = self._reputations({**state.accounts, i: account}, state.reputation.keys())
        r_th = self.threshold / len(r)
        state = state._replace(version=state.version + 1, threshold=r_th)
        if r[i] < r_th and account.judged > self.warmup:
            verdict = Verdict(False, 0.0, r[i], f"reputation {r[i]:.4f} < {r_th:.4f}, excluded", final=True)
            rest = self._reputations(state.accounts, r.keys() - {i})
            return state._replace(reputation=rest, verdicts={i: verdict})

        w_g = state.model + r[i] * dw_i
        paid = account.paid + self._allocated(account, w_g, r[i] / max(r.values()), r[i] * dw_i)
        accounts = {**state.accounts, i: account._replace(seen=w_g, paid=paid)}
        used = Verdict(True, r[i], r[i])
        if radius == 0:
            used = Verdict(False, 0.0, r[i], "only recorded: the median norm of all participants is zero so far")
        return state._replace(model=w_g, accounts=accounts, reputation=r, verdicts={i: used})

    def _radius(self, accounts: Mapping[int, Account], members: Set[int]) -> float:
        """Return the current largest norm of an update."""
        if not isinstance(self.clip, MedianNorm):
            return math.inf if self.clip is None else self.clip
        return self.clip.factor * median(accounts[j].length for j in members)

    def _others(self, state: AsyncRFFLState, i: int, radius: float) -> Vector | None:
        """Return the reputation-weighted aggregate of the others' last updates; None if there is none."""
        last = {j: a.latest for j, a in state.accounts.items() if a.latest is not None and j != i}
        last = {j: dw_j for j, dw_j in last.items() if state.reputation.get(j, 0.0) > 0}
        if not last or radius == 0:
            return None
        rows = shortened(torch.stack([dw_j for dw_j in last.values() if dw_j is not None]), radius)
        weights = torch.tensor([state.reputation[j] for j in last], dtype=torch.float64, device=rows.device)
        return self.aggregate(rows, weights, turn=state.version)

    def _reputations(self, accounts: Mapping[int, Account], members: Set[int]) -> dict[int, float]:
        """Return the reputation of each member, summing to one: members without any have the mean of the others."""
        known = {
            i: max(accounts[i].average, 0.0) / (1 - self.fade ** accounts[i].judged)
            for i in sorted(members)
            if accounts[i].judged
        }
        mean = sum(known.values()) / len(known) if known else 1.0
        if mean == 0.0:  # nobody has any: all are equal
            return dict.fromkeys(sorted(members), 1 / len(members))
        r = {i: known.get(i, mean) for i in sorted(members)}
        total = sum(r.values())
        return {i: r_i / total for i, r_i in r.items()}

    def _allocated(self, account: Account, w_g: Vector, quota: float, contributed: Vector) -> Vector:
        """Return the payment of a participant out of the changes of the server's model since its last payment."""
        collected = w_g - account.seen
        place = places(collected, self.allocation.parts(len(collected)))
        allocated = largest(collected, place, quota)
        if self.own == "subtracted":
            return allocated - contributed
        if self.own == "replaced" and account.latest is not None:
            return allocated - largest(account.latest, place, quota)
        return allocated
