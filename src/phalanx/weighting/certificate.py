"""Certificates that a truncation bound holds for a population, from a sample of its sizes.

Portnoy, Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020, Theorem 3.1.

Where this differs from the printed theorem:

* epsilon_2 and epsilon_3 have ln(3 / delta), not ln ln(3 / delta).  The proof applies Hoeffding's inequality to means
  of values in [0, U] with failure probability delta / 3 each, which gives the single logarithm.  The printed one is
  smaller, and claims too much confidence: for delta = 0.05 both margins are 1.7 times too small.
* epsilon_2 counts the terms of the mean that it bounds, floor(k (alpha - epsilon_1)) + 1.
* alpha of K clients are ceil(alpha K), which for small K is more than alpha K.  If `clients` is given, the certificate
  is for ceil(alpha K) / K.

The order statistics are not independent draws, but the proof needs only this: if at least floor(k (alpha - epsilon_1))
+ 1 samples are among the largest alpha of the clients, that many of them are independent draws from these, and the mean
of the largest samples is at least their mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from phalanx.weighting.truncation import check_shares, top

MOST = 10**12  # samples; a bound that fails with this many is taken to fail with any number


@dataclass(frozen=True)
class Certificate:
    """The result of a test of a truncation bound on a sample."""

    samples: int  # k
    alpha_star: float  # the largest allowed mwp(trunc(N, U), alpha)
    ceiling: float  # left side of Equation 6: with probability 1 - delta, mwp is at most this; may be infinite
    estimate: float  # mwp of the sample itself, without a margin
    needed: int | None  # number of samples like these with which the bound would hold; None if there is none

    @property
    def holds(self) -> bool:
        """Whether mwp(trunc(N, U), alpha) <= alpha* holds with probability 1 - delta."""
        return self.ceiling <= self.alpha_star

    @property
    def reason(self) -> str:
        """The result in words."""
        allowed = f"allowed is {self.alpha_star:g}"
        if self.holds:
            return f"holds: the largest share is at most {self.ceiling:.3f}, {allowed}"
        known = f"{self.samples:,} samples only show that the largest share is at most {self.ceiling:.3f}"
        if self.ceiling >= 1:
            known = f"{self.samples:,} samples show nothing"
        if self.needed is None:
            return f"{known}; in the sample it is {self.estimate:.3f}, {allowed}: choose a smaller bound"
        return f"{known}, {allowed}; some {self.needed:,} samples like these would do"


def certify(
    sample: Sequence[float] | Mapping[int, float],
    bound: int,
    alpha: float,
    alpha_star: float,
    delta: float = 0.05,
    *,
    clients: int | None = None,
) -> Certificate:
    """Decide from a random sample of sizes whether truncation at `bound` limits alpha of all clients to alpha*.

    The bound must be chosen before the sample is seen, for example from another sample.  If it was chosen to fit the
    sample, delta is not the probability of an error.

    Args:
        sample: k sizes, drawn independently and uniformly from the population, with replacement; at least 1 each.
        bound: U, at least 1.
        alpha: largest share of the clients that may be Byzantine, in (0, 1).
        alpha_star: largest share of the weight that Byzantine clients may have, in (0, 1).
        delta: probability that the certificate is wrong, in (0, 1).
        clients: K, the number of clients in the population; infinite if not given.

    Returns:
        The decision, with its numbers, and the number of samples that would suffice if these do not.

    Raises:
        ValueError: if an argument is not as described.
    """
    alpha, alpha_star, delta = float(alpha), float(alpha_star), float(delta)
    X = np.sort(np.asarray(list(sample.values() if isinstance(sample, Mapping) else sample), dtype=np.float64))
    if not len(X) or not (X >= 1).all() or not np.isfinite(X).all():
        raise ValueError("sample must hold sizes of at least 1, and at least one of them.")
    check_shares(alpha, alpha_star)
    if bound < 1:
        raise ValueError(f"bound must be at least 1, got {bound}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}: it is a probability.")
    if alpha == 0:
        raise ValueError("alpha must be positive, got 0: without Byzantine clients there is nothing to certify.")
    if clients is not None and clients < 1:
        raise ValueError(f"The population must have at least 1 client, got {clients}.")
    X = X.clip(max=bound)  # the order statistic X_(1) <= ... <= X_(k)
    share = alpha if clients is None else top(alpha, clients) / clients
    ceiling = _ceiling(X, len(X), bound, share, delta)
    needed = len(X) if ceiling <= alpha_star else _needed(X, bound, share, alpha_star, delta)
    return Certificate(len(X), alpha_star, ceiling, _ceiling(X, MOST, 0, share, delta), needed)


def _ceiling(X: NDArray[np.float64], k: int, U: int, alpha: float, delta: float) -> float:
    """Return the left side of Equation 6 for k samples distributed like X; U scales the margins of both means."""
    e1 = sqrt(log(3 / delta) / (2 * k))
    # With so few samples, maybe none is among the largest alpha of the clients.
    if alpha <= e1:
        return inf
    terms = int(k * (alpha - e1)) + 1  # of the mean over the largest samples
    e2 = U * sqrt(log(3 / delta) / (2 * terms))
    e3 = U * sqrt(log(3 / delta) / (2 * k))
    mean = X.mean() - e3
    return float(min(alpha * (_mean_of_largest(X, terms / k) + e2) / mean, inf)) if mean > 0 else inf


def _mean_of_largest(X: NDArray[np.float64], share: float) -> float:
    """Return the mean of the largest `share` of the sample; if that is no whole number, the last one counts in part."""
    count = min(share * len(X), len(X))
    whole = int(count + 1e-9)
    total = X[len(X) - whole :].sum() + (count - whole) * (X[-whole - 1] if whole < len(X) else 0)
    return float(total / count)


def _needed(X: NDArray[np.float64], U: int, alpha: float, alpha_star: float, delta: float) -> int | None:
    """Return the smallest k with which a sample distributed like X would certify the bound, or None."""
    if _ceiling(X, MOST, U, alpha, delta) > alpha_star:
        return None
    low, high = len(X), MOST
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _ceiling(X, middle, U, alpha, delta) <= alpha_star else (middle, high)
    return high
