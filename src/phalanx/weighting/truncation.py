"""The truncation bound U* and its trade-off with alpha.

Portnoy, Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020: Definition 1,
Equations 4 and 5, Algorithm 3.

Where the paper is silent, or its code differs:

* The top p of K clients are the ceil(p K) largest: that many indices i satisfy (1 - p) K < i.  The authors' code takes
  floor(p K) + 1, one too many if p K is an integer.
* If even equal weights give ceil(alpha K) clients more than alpha*, no U is feasible.  The authors' code then silently
  uses the reported sizes.  Here it is an error.
* If nothing needs truncation, every U is feasible.  The bound is then the largest size.
* If only q of the K clients are aggregated at once, whichever they are, `subset_bound` compares the f largest sizes
  with the q - f smallest ones. That is Equation 4 for the worst of all sets of q; for q = K it is Equation 4.
* Sizes are integers, and alpha* is converted to the simple fraction that was meant, so that all comparisons are exact.
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.errors import InfeasibleError, TooFewError
from phalanx.wording import plural

Sizes = Mapping[int, int] | NDArray[np.int64]  # by client; or in the order of the clients, which takes less memory


class TradeOff(NamedTuple):
    """A point of the trade-off between robustness and accuracy."""

    alpha: float  # share of the clients that may be Byzantine
    bound: int  # U*, the largest size that is not truncated


def mwp(sizes: Mapping[int, float] | NDArray[Any], p: float) -> float:
    """Return the maximal weight proportion: the share that the largest p of the clients hold (Definition 1).

    Args:
        sizes: a positive size, or weight, for each client, by client or as an array.
        p: share of the clients, in [0, 1].

    Returns:
        The share, in [0, 1].

    Raises:
        ValueError: if there are no clients, a size is not positive, or p is out of range.

    Examples:
        >>> mwp({0: 1, 1: 2, 2: 3, 3: 6}, p=0.5)
        0.75
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must lie in [0, 1], got {p}.")
    if isinstance(sizes, np.ndarray) and sizes.dtype == np.int64 and len(sizes) and sizes.min() > 0:
        return heaviest(sizes, top(p, len(sizes))) / total(sizes)
    V = ranked(sizes)
    if not len(V) or not all(0 < size < float("inf") for size in V):
        raise ValueError("sizes must hold a positive, finite number for each client, and at least one client.")
    return float(sum(V[len(V) - top(p, len(V)) :]) / sum(V))


def truncation_bound(sizes: Sizes, alpha: float, alpha_star: float) -> int:
    """Return the largest U with mwp(trunc(N, U), alpha) <= alpha*, U* of Equation 4.

    O(K log K) time for K clients, to sort their sizes.

    Args:
        sizes: N, the size that each client reports, at least 1.
        alpha: largest share of the clients that may be Byzantine, in [0, 1).
        alpha_star: largest share of the weight that Byzantine clients may have, in (0, 1).

    Returns:
        U*, at least the smallest size; the largest size if no truncation is needed.

    Raises:
        ValueError: if an argument is not as described.
        InfeasibleError: if even with equal weights ceil(alpha K) clients hold more than alpha*.

    Examples:
        >>> truncation_bound({0: 1, 1: 2, 2: 3, 3: 1000}, alpha=0.25, alpha_star=0.5)
        6
    """
    check_shares(alpha, alpha_star)
    N = Sorted(sizes)
    return N.bound(_feasible(N, alpha, alpha_star), exact(alpha_star))


def subset_bound(sizes: Mapping[int, int], attackers: int, size: int, alpha_star: float) -> int:
    """Return the largest U with which no f clients hold more than alpha* of any q clients that they are among.

    The worst set is that of the f largest and the q - f smallest sizes.  Sets of more clients, or with fewer attackers,
    leave attackers less.  O(K log K) time for K clients, to sort their sizes.

    Args:
        sizes: N, the size that each client reports, at least 1.
        attackers: f, largest number of Byzantine clients.
        size: q, number of clients whose updates are aggregated at once, at least 1; at most K of them count.
        alpha_star: largest share of the weight of the q that Byzantine clients may have, in (0, 1).

    Returns:
        At least the smallest size; the largest size if no truncation is needed.

    Raises:
        ValueError: if an argument is not as described.
        TooFewError: if f of q clients hold more than alpha* even with equal weights.

    Examples:
        >>> subset_bound({0: 1, 1: 2, 2: 3, 3: 1000}, attackers=1, size=3, alpha_star=0.5)
        3
    """
    check_shares(0, alpha_star)
    if attackers < 0 or size < 1:
        raise ValueError(f"attackers must be at least 0 and size at least 1, got {attackers} and {size}.")
    N, limit = Sorted(sizes), exact(alpha_star)
    f, q = min(attackers, size, len(N)), min(size, len(N))
    if f > _largest(limit, q):
        remedies = feasible(attackers, q, len(N), alpha_star)
        raise TooFewError(
            f"{plural(f, 'attacker')} of {plural(q, 'client')} at once hold {f / q:.3g} of the weight even if all "
            f"weigh the same: more than alpha_star = {alpha_star:g}. Feasible is {remedies}."
        )
    return N.bound(f, limit, q)


def feasible(attackers: int, size: int, clients: int, alpha_star: float) -> str:
    """Return what makes `subset_bound` feasible: more clients at once, fewer attackers, or a larger alpha*."""
    limit, share = exact(alpha_star), Fraction(attackers, size)
    least, most = ceil(attackers / limit), _largest(limit, size)
    remedies = [f"at least {least} clients at once"] if size < least <= clients else []
    remedies += [f"alpha of at most {shortest(most, clients)} ({most} of {plural(clients, 'client')})"] if most else []
    remedies += [f"alpha_star of at least {ceil(share * 1000) / 1000:g}"] if share < 1 else []
    return ", or ".join(remedies or ["more clients"])


def attacker_share(weights: Mapping[int, float], attackers: int, size: int) -> float:
    """Return the largest share of the weight that f of any q clients hold.

    Args:
        weights: a positive weight for each client.
        attackers: f.
        size: q, at least 1.
    """
    V = sorted(weights.values())
    q = min(size, len(V))
    f = min(attackers, q)
    top_f, rest = sum(V[len(V) - f :]), sum(V[: q - f])
    return float(top_f / (top_f + rest))


def largest_share(weights: Mapping[int, int], attackers: int, size: int) -> Fraction:
    """Return `attacker_share` of integer weights exactly."""
    V = sorted(weights.values())
    q = min(size, len(V))
    f = min(attackers, q)
    top_f, rest = sum(V[len(V) - f :]), sum(V[: q - f])
    return Fraction(top_f, top_f + rest)


def most_tolerated(clients: int, alpha_star: float) -> int:
    """Return the largest number of so many clients that hold at most alpha* of the weight if all weigh the same."""
    return _largest(exact(alpha_star), clients)


def truncation_curve(sizes: Sizes, alpha_star: float, tolerated: Iterable[int] | None = None) -> list[TradeOff]:
    """Return U* for every alpha at which it changes (Algorithm 3).

    Between two neighbours alpha_1 < alpha_2 of the list, the bound is that of alpha_2, since it depends only on the
    number of clients ceil(alpha K).  One sweep, O(K log K) time for K clients, to sort their sizes.

    Args:
        sizes: N, the size that each client reports, at least 1.
        alpha_star: largest share of the weight that Byzantine clients may have, in (0, 1).
        tolerated: numbers of clients, from 1 to `most_tolerated`, of which points are wanted; all if not given.

    Returns:
        One point for each alpha = 1/K, 2/K, ... up to the largest feasible one, by increasing alpha and
        decreasing bound, or in the order of `tolerated`.  Empty if there are fewer than 1 / alpha* clients.

    Raises:
        ValueError: if an argument is not as described.
    """
    check_shares(0, alpha_star)
    N, limit = Sorted(sizes), exact(alpha_star)
    if tolerated is not None:
        return [TradeOff(t / len(N), N.bound(t, limit)) for t in tolerated]
    curve, u = list[TradeOff](), 0
    for t in range(_largest(limit, len(N)), 0, -1):  # alpha falls, so U* rises, and u with it
        while u < len(N) and N.keeps(u, t, limit):
            u += 1
        curve.append(TradeOff(t / len(N), N.solve(u, t, limit)))
    return curve[::-1]


class Sorted:
    """The sorted sizes N = (n_1 <= ... <= n_K) with prefix sums, for O(1) sums of truncated sizes.

    Args:
        sizes: the size that each client reports.

    Raises:
        ValueError: if there are no clients, or a size is not an integer of at least 1.
    """

    def __init__(self, sizes: Sizes) -> None:
        check_sizes(sizes)
        if isinstance(sizes, Mapping):
            self.n: Sequence[int] = ranked({i: int(size) for i, size in sizes.items()})
        else:
            self.n = ranked(sizes.astype(np.int64, copy=False))
        if not isinstance(sizes, Mapping) and _sums_fit(sizes):
            self._sums: Sequence[int] = np.concatenate([[0], np.cumsum(self.n)]).data
        else:
            self._sums = [0, *accumulate(self.n)]

    def __len__(self) -> int:
        return len(self.n)

    def linear(self, u: int, t: int, q: int | None = None) -> tuple[int, int, int, int]:
        """Return a, b, c, d of Equation 5: for n_u <= U <= n_{u+1} the top t hold a + b U of the total c + d U.

        Args:
            u: number of sizes that U does not truncate.
            t: number of the largest clients, ceil(alpha K).
            q: number of clients whose sizes are in the total, the top t and the smallest q - t; K if not given.
        """
        K, sums = len(self), self._sums
        rest = (K if q is None else q) - t
        a, b = sums[u] - sums[K - t] if u > K - t else 0, min(t, K - u)
        return a, b, a + sums[min(u, rest)], b + max(rest - u, 0)

    def keeps(self, u: int, t: int, limit: Fraction, q: int | None = None) -> bool:
        """Return whether the top t hold at most `limit` of the weight if all sizes are truncated at n_{u+1}."""
        a, b, c, d = self.linear(u, t, q)
        # Cross-multiplied integers, so the comparison is exact.
        return (a + b * self.n[u]) * limit.denominator <= limit.numerator * (c + d * self.n[u])

    def bound(self, t: int, limit: Fraction, q: int | None = None) -> int:
        """Return U* of Equation 4, for a feasible t: mwp rises with U, so the right segment is found by bisection.

        The share of the top t among q clients rises with U, too: while U truncates one of the q - t smallest, it
        truncates all of the top t; beyond, only the top t grow.
        """
        low, high = 0, len(self)
        while low < high:  # the number of n_1, n_2, ... that are feasible bounds
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.keeps(middle, t, limit, q) else (low, middle)
        return self.solve(low, t, limit, q)

    def solve(self, u: int, t: int, limit: Fraction, q: int | None = None) -> int:
        """Return the largest feasible U within [n_u, n_{u+1}], by Equation 5; n_K if u = K."""
        if u == len(self):
            return self.n[-1]
        a, b, c, d = self.linear(u, t, q)
        x, y = limit.numerator, limit.denominator
        return (x * c - y * a) // (y * b - x * d)  # n_{u+1} is infeasible, so y b > x d


def ranked(weights: Mapping[int, Any] | NDArray[Any]) -> Sequence[Any]:
    """Return sizes or weights in increasing order, as Python's numbers, whose sums are exact if they are integers."""
    # A view of an array gives Python's numbers one at a time; a list of them has four times its memory.
    return sorted(weights.values()) if isinstance(weights, Mapping) else np.sort(weights).data


def total(sizes: NDArray[np.int64]) -> int:
    """Return the exact sum of positive sizes, also if it has more than 64 bits."""
    return int(sizes.sum()) if _sums_fit(sizes) else sum(sizes.data)


def heaviest(sizes: NDArray[np.int64], t: int) -> int:
    """Return the exact sum of the t largest of positive sizes."""
    return total(np.partition(sizes, len(sizes) - t)[len(sizes) - t :]) if t else 0


def _sums_fit(sizes: NDArray[Any]) -> bool:
    """Return whether no sum of different positive sizes can have more than 63 bits."""
    return len(sizes) * int(sizes.max(initial=0)) < 2**63


def top(p: float, K: int) -> int:
    """Return ceil(p K), safe against rounding: 0.1 of 10 clients is 1 client."""
    return min(max(ceil(p * K - 1e-9), int(p > 0)), K)


def shortest(t: int, K: int) -> str:
    """Return the shortest decimal fraction alpha for which `top(alpha, K)` is t."""
    digits = next(d for d in range(1, 20) if t * 10**d // K * K > (t - 1) * 10**d)
    return f"{t * 10**digits // K / 10**digits:.{digits}f}"


def check_shares(alpha: float, alpha_star: float) -> None:
    """Raise `ValueError` if a share is out of range."""
    if not 0 <= alpha < 1:
        raise ValueError(f"alpha must lie in [0, 1), got {alpha}: it is a share of the clients.")
    if not 0 < alpha_star < 1:
        raise ValueError(f"alpha_star must lie in (0, 1), got {alpha_star}: it is a share of the weight.")


def check_sizes(sizes: Sizes) -> None:
    """Raise `ValueError` if there are no sizes, or one is not an integer of at least 1."""
    if not len(sizes):
        raise ValueError("sizes must hold at least one client, got none.")
    if not isinstance(sizes, Mapping):
        if sizes.dtype == np.int64 and sizes.min() >= 1:
            return
        sizes = dict(enumerate(sizes.tolist()))
    for client, size in sizes.items():
        if not 1 <= size < float("inf") or size != int(size):
            raise ValueError(f"sizes must be integers of at least 1, got {size!r} for client {client}.")


def exact(share: float) -> Fraction:
    """Return the fraction that a float is meant to be: 1/3 for the float nearest to it, 1/10 for 0.1."""
    # A float is rarely the number that was typed: 0.1 is a little more than 1/10, which would change comparisons.
    near = Fraction(share).limit_denominator(10**6)
    return near if float(near) == share else Fraction(repr(float(share)))


def _largest(limit: Fraction, K: int) -> int:
    """Return the largest number of K equally weighted clients that hold at most `limit` of the weight."""
    return int(limit * K)


def _feasible(N: Sorted, alpha: float, alpha_star: float) -> int:
    """Return ceil(alpha K); raise `InfeasibleError` if no truncation limits that many clients to alpha*."""
    K, t = len(N), top(alpha, len(N))
    most = _largest(exact(alpha_star), K)
    if t <= most:
        return t
    kind = TooFewError if alpha < alpha_star else InfeasibleError  # of enough clients, a smaller share is feasible
    raise kind(
        f"alpha = {alpha:g} of {plural(K, 'client')} means {t} of them, who hold {t / K:.3g} of the weight even if "
        f"all weigh the same: more than alpha_star = {alpha_star:g}. "
        + (
            f"The largest feasible alpha is {shortest(most, K)} ({most} of {plural(K, 'client')})."
            if most
            else f"No alpha is feasible with fewer than {ceil(1 / exact(alpha_star))} clients."
        )
    )
