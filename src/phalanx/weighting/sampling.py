"""The number of attackers among clients drawn at random, and their share of the weight.

k of K clients are drawn without replacement, F of all are Byzantine: the number X of attackers among the k is
hypergeometric.  `drawn_attackers` is the smallest f with P(X > f) <= delta, by exact integers; whatever the sizes are,
a set with f attackers is covered by `subset_bound`.  So truncation at that bound fails with probability delta at most
in a round, and in T rounds with T delta at most.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import comb

from phalanx.errors import TooFewError
from phalanx.weighting.truncation import attacker_share, check_shares, check_sizes, subset_bound, top
from phalanx.wording import plural


@dataclass(frozen=True)
class RoundCertificate:
    """The attackers' share of the weight in rounds of clients drawn at random."""

    clients: int  # K
    byzantine: int  # F, of all clients
    drawn: int  # k, clients of a round
    attackers: int  # f: in each of the rounds at most so many attackers are drawn, but with probability delta
    probability: float  # exact, that more are drawn in at least one of the rounds, by the union bound; at most delta
    bound: int  # U*: sizes above it count as this
    share: float  # the largest share of the weight of a round that f attackers can hold; at most alpha*


def certify_rounds(
    sizes: Mapping[int, int], alpha: float, alpha_star: float, drawn: int, delta: float = 0.01, *, rounds: int = 1
) -> RoundCertificate:
    """Find the bound that leaves attackers at most alpha* of the weight of rounds drawn at random, but for delta.

    Args:
        sizes: N, the size that each client reports, at least 1.
        alpha: largest share of the clients that may be Byzantine, in [0, 1).
        alpha_star: largest share of the weight of a round that they may have, in (0, 1).
        drawn: k, clients of a round, drawn without replacement from all of them with equal chances.
        delta: probability that it fails in any of the rounds, in (0, 1).
        rounds: T, number of rounds.

    Raises:
        ValueError: if an argument is not as described.
        TooFewError: if the attackers that may be drawn hold more than alpha* even with equal weights.
    """
    check_shares(alpha, alpha_star)
    check_sizes(sizes)
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}.")
    K, F = len(sizes), top(alpha, len(sizes))
    f = drawn_attackers(K, F, drawn, delta / rounds)
    try:
        U = subset_bound(sizes, f, drawn, alpha_star)
    except TooFewError as error:
        chance = f"of {drawn} of {plural(K, 'client')} drawn at random, {f} can be attackers with probability above"
        raise TooFewError(f"{chance} {delta / rounds:.2g}, and {error}") from error
    share = attacker_share({i: min(size, U) for i, size in sizes.items()}, f, drawn)
    return RoundCertificate(K, F, drawn, f, float(rounds * more_drawn(K, F, drawn, f)), U, share)


def drawn_attackers(clients: int, byzantine: int, drawn: int, delta: float) -> int:
    """Return the smallest f with P(X > f) <= delta, where X attackers are among the clients drawn.

    Args:
        clients: K, of whom are drawn.
        byzantine: F, attackers among them, at most K.
        drawn: k, drawn without replacement, from 1 to K.
        delta: in (0, 1); 0 gives the largest X that can be.

    Raises:
        ValueError: if an argument is not as described.

    Examples:
        >>> drawn_attackers(clients=100, byzantine=10, drawn=10, delta=0.01)
        3
    """
    _check(clients, byzantine, drawn)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta}: it is a probability.")
    most, limit, above = min(byzantine, drawn), Fraction(delta) * comb(clients, drawn), 0
    for x, ways in zip(range(most, -1, -1), _ways(clients, byzantine, drawn), strict=False):
        above += ways
        if above > limit:
            return x
    return 0


def more_drawn(clients: int, byzantine: int, drawn: int, f: int) -> Fraction:
    """Return P(X > f), the tail of the hypergeometric distribution, exactly; arguments as of `drawn_attackers`."""
    _check(clients, byzantine, drawn)
    most = min(byzantine, drawn)
    ways = zip(range(most, f, -1), _ways(clients, byzantine, drawn), strict=False)
    return Fraction(sum(count for _, count in ways), comb(clients, drawn))


def _ways(K: int, F: int, k: int) -> Iterator[int]:
    """In how many ways k of K clients are drawn with x attackers among them, for x from min(F, k) down to 0."""
    x = min(F, k)
    ways = comb(F, x) * comb(K - F, k - x) if k - x <= K - F else 0
    while x >= 0:
        yield ways
        if ways:  # C(F, x - 1) C(K - F, k - x + 1), from the last one
            ways = ways * x * (K - F - k + x) // ((F - x + 1) * (k - x + 1))
        x -= 1


def _check(clients: int, byzantine: int, drawn: int) -> None:
    if not 1 <= drawn <= clients or not 0 <= byzantine <= clients:
        raise ValueError(
            f"drawn must lie in 1..{clients} and byzantine in 0..{clients} of {plural(clients, 'client')}, got {drawn} "
            f"and {byzantine}."
        )
