"""Whether a truncation bound holds for a population of which only a sample is seen.

Portnoy, Tirosh and Hendler, "Towards Federated Learning With Byzantine-Robust Client Weighting", 2020, Theorem 3.1.

Where this differs from the printed theorem:

* epsilon_2 and epsilon_3 have ln(3 / delta), not ln ln(3 / delta).  The proof applies Hoeffding's inequality to means
  of values in [0, U] with failure probability delta / 3 each, which gives the single logarithm.  The printed one is
  smaller, and claims more confidence than was earned: for delta = 0.05 both margins come out 1.7 times too small.
* epsilon_2 counts the terms of the mean that it bounds, floor(k (alpha - epsilon_1)) + 1.
* alpha of K clients are ceil(alpha K), which for small K is more than alpha K.  With `clients` given, the certificate
  is for ceil(alpha K) / K.

The order statistics are not independent draws, but the proof needs no more than this: given that at least
floor(k (alpha - epsilon_1)) + 1 samples fall among the largest alpha of the clients, so many of them are independent
draws from these, and the mean of the largest samples is no less than theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from phalanx.weighting.truncation import check_shares, top

MOST = 10**12  # samples; if so many would not do, none do


@dataclass(frozen=True)
class Certificate:
    """What a sample says about a bound."""

    samples: int  # k
    alpha_star: float  # what mwp(trunc(N, U), alpha) may be
    ceiling: float  # left side of Equation 6: mwp is no more than this with probability 1 - delta; may be infinite
    estimate: float  # mwp of the sample itself, without any margin
    needed: int | None  # samples with which the bound would hold if they looked like these; None if no number would do

    @property
    def holds(self) -> bool:
        """Whether mwp(trunc(N, U), alpha) <= alpha* is certain with probability 1 - delta."""
        return self.ceiling <= self.alpha_star

    @property
    def reason(self) -> str:
        """The decision in words."""
        allowed = f"allowed is {self.alpha_star:g}"
        if self.holds:
            return f"holds: the largest share is at most {self.ceiling:.3f}, {allowed}"
        known = f"{self.samples:,} samples only show that the largest share is at most {self.ceiling:.3f}"
        if self.ceiling >= 1:
            known = f"{self.samples:,} samples show nothing"
        if self.needed is None:
            return f"{known}; in the sample it is {self.estimate:.3f}, {allowed}: take a smaller bound"
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
    """Decides from a random sample of sizes whether truncation at `bound` keeps alpha of all clients to alpha*.

    The bound has to be chosen before the sample is seen, from another sample say.  With one that was chosen to fit the
    sample, delta is not the probability of an error.

    Args:
        sample: k sizes, drawn independently and uniformly from the population, with replacement; at least 1 each.
        bound: U, at least 1.
        alpha: largest share of the clients that may be Byzantine, in (0, 1).
        alpha_star: largest share of the weight that they may get, in (0, 1).
        delta: probability with which a certificate may be wrong, in (0, 1).
        clients: K, the size of the population; if not given, it is taken to be so large that 1 / K does not matter.

    Returns:
        The decision, with its figures, and how large a sample would have to be if this one does not suffice.

    Raises:
        ValueError: an argument is not as described.
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
        raise ValueError("alpha must be positive, got 0: nobody is suspected, and there is nothing to certify.")
    if clients is not None and clients < 1:
        raise ValueError(f"The population must have at least 1 client, got {clients}.")
    X = X.clip(max=bound)  # the order statistic X_(1) <= ... <= X_(k)
    share = alpha if clients is None else top(alpha, clients) / clients
    ceiling = _ceiling(X, len(X), bound, share, delta)
    needed = len(X) if ceiling <= alpha_star else _needed(X, bound, share, alpha_star, delta)
    return Certificate(len(X), alpha_star, ceiling, _ceiling(X, MOST, 0, share, delta), needed)


def _ceiling(X: NDArray[np.float64], k: int, U: int, alpha: float, delta: float) -> float:
    """The left side of Equation 6 for k samples that are distributed as X is; U scales the margins of the two means."""
    e1 = sqrt(log(3 / delta) / (2 * k))
    if alpha <= e1:
        return inf
    terms = int(k * (alpha - e1)) + 1  # of the mean over the largest
    e2 = U * sqrt(log(3 / delta) / (2 * terms))
    e3 = U * sqrt(log(3 / delta) / (2 * k))
    mean = X.mean() - e3
    return float(min(alpha * (_mean_of_largest(X, terms / k) + e2) / mean, inf)) if mean > 0 else inf


def _mean_of_largest(X: NDArray[np.float64], share: float) -> float:
    """The mean of the largest `share` of the sample; the last one counts in part where that is no whole number."""
    count = min(share * len(X), len(X))
    whole = int(count + 1e-9)
    total = X[len(X) - whole :].sum() + (count - whole) * (X[-whole - 1] if whole < len(X) else 0)
    return float(total / count)


def _needed(X: NDArray[np.float64], U: int, alpha: float, alpha_star: float, delta: float) -> int | None:
    """The smallest k with which the bound would be certified if the sample stayed as it is: margins shrink with k."""
    if _ceiling(X, MOST, U, alpha, delta) > alpha_star:
        return None
    low, high = len(X), MOST
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _ceiling(X, middle, U, alpha, delta) <= alpha_star else (middle, high)
    return high
