"""Robust and fair federated learning without rounds: each arrival changes one reputation.

Ours, after Xu and Lyu, "Towards Building a Robust and Fair Federated Learning System", 2020; `phalanx.algorithms.rffl`
is their algorithm.  What a round does at once is done here when a participant reports:

* Its update is compared with the reputation-weighted aggregate of what the *others* sent last.  In a round everybody's
  update is in the aggregate that it is compared with; here the one that has just come would be the freshest of all.
* Its reputation is the moving average of those cosines, from zero as in the paper, divided by the weight that the
  average has had so far.  Nobody else's changes.  Shares of the sum take the place of reputations that sum to one.
* Who falls below the threshold leaves before its update is used, not after.
* The server's model takes in the share of the update.  The participant is paid out of what the server's model has
  taken in since it was last paid: over one turn of everybody, as much as a round pays.

Ages are not looked at: participants' models differ anyway, and a late update is judged by where it points.

`MedianNorm` is the median over all participants, and who has not sent anything counts with length zero.  So nothing is
used, and nobody judged, until half of them have reported: a median of the first few lengths would be an attacker's who
is fast.

The server keeps three vectors for each participant: its last update, what it was paid, and the model that it was last
paid of.
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
from phalanx.core import Updates, Vector, Verdict
from phalanx.numerics.linalg import norms, shortened


class Account(NamedTuple):
    """What the server knows of one participant, and owes it."""

    average: float  # moving average of its cosines, from zero
    judged: int  # how many cosines that are
    latest: Vector | None  # what it sent last
    length: float  # the norm of that; zero if it has sent nothing
    seen: Vector  # w_g when it was last paid
    paid: Vector  # w^(0) and all that it was allocated, which it downloads


class AsyncRFFLState(NamedTuple):
    """What the server of `AsyncRFFL` carries over."""

    version: int  # arrivals so far
    model: Vector  # w_g
    accounts: Mapping[int, Account]  # also of those who were removed: they keep the model that they have
    reputation: Mapping[int, float]  # r_i of R, summing to one
    threshold: float  # r_th of the last arrival
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class AsyncRFFL(CumulativeClient[AsyncRFFLState]):
    """`RFFL` on arrivals: whoever reports is judged, and paid, at once.  Nor is anybody taken in later.

    Args:
        fade: alpha in [0, 1), the weight of the past in a reputation.
        threshold: c in r_th = c / |R|, in [0, 1). 0 removes nobody.
        warmup: cosines of a participant that do not remove it yet, at least 0: one alone is mostly chance.
        clip: largest norm of an update; `MedianNorm` is that of the last ones of all participants. None for no
            limit.
        allocation: of what a quota takes the largest entries.
        own: as in `RFFL`: "subtracted", "kept" or "replaced".
        aggregate: what an update is compared with: the rule, with reputations as weights, on the others' last updates.
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
        """The state after one arrival."""
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
            verdict = Verdict(False, 0.0, r[i], f"reputation {r[i]:.4f} < {r_th:.4f}, removed", final=True)
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
        """The largest norm of an update at present."""
        if not isinstance(self.clip, MedianNorm):
            return math.inf if self.clip is None else self.clip
        return self.clip.factor * median(accounts[j].length for j in members)

    def _others(self, state: AsyncRFFLState, i: int, radius: float) -> Vector | None:
        """The reputation-weighted aggregate of what the others sent last; None if there is none."""
        last = {j: a.latest for j, a in state.accounts.items() if a.latest is not None and j != i}
        last = {j: dw_j for j, dw_j in last.items() if state.reputation.get(j, 0.0) > 0}
        if not last or radius == 0:
            return None
        rows = shortened(torch.stack([dw_j for dw_j in last.values() if dw_j is not None]), radius)
        weights = torch.tensor([state.reputation[j] for j in last], dtype=torch.float64, device=rows.device)
        return self.aggregate(rows, weights, turn=state.version)

    def _reputations(self, accounts: Mapping[int, Account], members: Set[int]) -> dict[int, float]:
        """The reputation of each member, summing to one: those of whom nothing is known have the mean of the others."""
        known = {
            i: max(accounts[i].average, 0.0) / (1 - self.fade ** accounts[i].judged)
            for i in sorted(members)
            if accounts[i].judged
        }
        mean = sum(known.values()) / len(known) if known else 1.0
        if mean == 0.0:  # nobody has any: all are alike
            return dict.fromkeys(sorted(members), 1 / len(members))
        r = {i: known.get(i, mean) for i in sorted(members)}
        return {i: r_i / sum(r.values()) for i, r_i in r.items()}

    def _allocated(self, account: Account, w_g: Vector, quota: float, contributed: Vector) -> Vector:
        """What a participant is paid out of what the server's model has taken in since it was last paid."""
        collected = w_g - account.seen
        place = places(collected, self.allocation.parts(len(collected)))
        allocated = largest(collected, place, quota)
        if self.own == "subtracted":
            return allocated - contributed
        if self.own == "replaced" and account.latest is not None:
            return allocated - largest(account.latest, place, quota)
        return allocated
