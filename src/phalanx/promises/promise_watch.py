"""The audit: what any f clients hold of the weight, at each call of a rule.

A server loop opens a `watched` context around each step; algorithms call their rules through `combine`.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from phalanx.aggregators import Aggregator, Choice
from phalanx.core import Matrix, TooFewError, Vector, Weights
from phalanx.wording import plural

BrokenPromise = Literal["hold", "unweighted", "remark"]  # treatment of an aggregation that breaks the promise
Owners = Sequence[int | Collection[int]]  # of each row, the client or the clients that it comes from


class PromiseError(TooFewError):
    """An aggregation would break the promise of the run, and is not done.

    Args:
        message: why it would.
        f: number of attackers that are promised to be tolerated.
        rows: number of rows with a weight.
        name: what the rows are, as in `Pool`.
    """

    def __init__(self, message: str, f: int = 0, rows: int = 0, name: str = "") -> None:
        super().__init__(message)
        self.f, self.rows, self.name = f, rows, name


@dataclass
class PromiseWatch:
    """The audit of some calls.

    Args:
        f: number of clients, any, that are compared with what the rule tolerates.
        shares: receives the largest share of the weight that f clients hold, for each call that is done.
        broken: receives why, for each call that breaks the promise.
        then: treatment of such a call: it is not done ("hold"), done with equal weights ("unweighted") or as it is
            ("remark").
    """

    f: int
    shares: list[float] = field(default_factory=list)
    broken: list[PromiseError] = field(default_factory=list)
    then: BrokenPromise = "hold"


_WATCH: ContextVar[PromiseWatch | None] = ContextVar("phalanx_promise", default=None)


@contextmanager
def watched(f: int, broken: list[PromiseError] | None = None, then: BrokenPromise = "hold") -> Iterator[list[float]]:
    """Check each call of `combine` in this context for any f clients; 0 checks nothing.

    A call whose rule does not tolerate what f clients hold raises `PromiseError`, which `broken` receives, too.  It is
    done nevertheless if `then` is "unweighted", with equal weights, or "remark"; then `broken` alone says so.  The list
    that is yielded receives the largest share of the weight that f clients hold, of each call that is done.
    """
    watch = PromiseWatch(f, broken=[] if broken is None else broken, then=then) if f else None
    token = _WATCH.set(watch)
    try:
        yield watch.shares if watch else []
    finally:
        _WATCH.reset(token)


def combine(
    rule: Aggregator,
    rows: Matrix,
    weights: Weights | None,
    owners: Owners,
    name: str,
    *,
    turn: int = 0,
    previous: Vector | None = None,
) -> tuple[Vector, Choice | None]:
    """Return what `Aggregator.explained` does, after the audit of the context.

    Args:
        rule: combines the rows.
        rows: (m, d), the updates.
        weights: (m,); equal if None.
        owners: m clients, or sets of clients, that the rows come from.
        name: what the rows are, as in `Pool`.
        turn: as in a call of the rule.
        previous: likewise.

    Raises:
        PromiseError: the promise of the run would be broken.
        InfeasibleError: as in a call of the rule.
    """
    given = weights
    if (watch := _WATCH.get()) is not None:
        used = weights.tolist() if weights is not None else [1.0] * len(owners)
        share = held(watch.f, used, owners)
        try:
            _check(rule, watch.f, share, used, name)
        except PromiseError as error:
            watch.broken.append(error)
            if watch.then == "hold":
                raise
            if watch.then == "unweighted" and weights is not None:
                weights = (weights > 0).to(weights.dtype)
                share = held(watch.f, weights.tolist(), owners)
        watch.shares.append(share)
    result, choice = rule.explained(rows, weights, turn=turn, previous=previous)
    if choice is None and weights is not None and weights is not given:
        choice = Choice((weights / weights.sum()).double().cpu())  # the shares of the weight are not those given
    return result, choice


def held(f: int, weights: Sequence[float], owners: Owners) -> float:
    """Return the largest share of the weight that any f clients own; of rows with several owners, at most that.

    Args:
        f: number of clients.
        weights: of the rows.
        owners: of the rows.
    """
    own = dict[int, float]()
    for weight, owner in zip(weights, owners, strict=True):
        for client in (owner,) if isinstance(owner, int) else owner:
            own[client] = own.get(client, 0.0) + weight
    total = sum(weights)
    return min(1.0, sum(sorted(own.values(), reverse=True)[:f]) / total) if total > 0 else 0.0


def _check(rule: Aggregator, f: int, share: float, weights: Sequence[float], name: str) -> None:
    """Raise `PromiseError` unless a rule tolerates that f clients hold this share of the weight of the rows."""
    there = [weight for weight in weights if weight > 0]
    tolerance = rule.tolerates(len(there))
    alike = not tolerance.equal or len(set(there)) == 1
    if alike and tolerance.allows(share):
        return
    limit = tolerance.limit if alike else "attackers only if all rows weigh the same"
    raise PromiseError(
        f"{plural(f, 'client')} could hold {share:.3g} of the weight of this {name} of {len(weights)}, and "
        f"{rule.title} tolerates {limit}: the promise for {f} would be broken.",
        f,
        len(there),
        name,
    )
