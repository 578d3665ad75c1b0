"""What weights do to a federation, in figures that need no training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.weighting.truncation import check_sizes, mwp


class Concentration(NamedTuple):
    """How unequal weights are."""

    largest: float  # share of the weight that the heaviest client holds
    top_tenth: float  # share of the weight that the heaviest 10 % of the clients hold, rounded up to whole clients
    effective: float  # clients of equal weight that would average as much noise away: (sum w)^2 / sum w^2


def concentration(weights: Mapping[int, float]) -> Concentration:
    """How unequal weights are.

    Args:
        weights: a positive weight for each client.

    Raises:
        ValueError: there are no clients, or a weight is not positive.
    """
    tenth, total = mwp(weights, 0.1), sum(weights.values())
    shares = [weight / total for weight in weights.values()]
    return Concentration(max(shares), tenth, 1 / sum(share**2 for share in shares))


def weight_shift(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """The share of the weight that changes hands between two weightings, in [0, 1].

    Half the L1 distance of the two vectors of shares.  No objective with losses in [a, b] changes by more than (b - a)
    times this number.

    Args:
        before: a weight for each client, at least one positive.
        after: the same for other weights.

    Raises:
        ValueError: the weightings are not of the same clients, or one has no positive weight.
    """
    if before.keys() != after.keys():
        raise ValueError("Both weightings must be of the same clients.")
    n, m = sum(before.values()), sum(after.values())
    if not (n > 0 and m > 0):
        raise ValueError("Both weightings must have a positive weight.")
    return sum(abs(before[i] / n - after[i] / m) for i in before) / 2


@dataclass(frozen=True)
class ObjectiveShift:
    """How far truncation moves the objective at one model."""

    shift: float  # |F(w) with declared sizes - F(w) with truncated ones|, nats per example
    printed_bound: float  # right side of Theorem 3.2; can be smaller than the shift
    safe_bound: float  # (largest loss - smallest loss) x weight_shift; never smaller than the shift


def objective_shift(sizes: Mapping[int, int], bound: int, losses: Mapping[int, float]) -> ObjectiveShift:
    """The difference of the weighted objectives before and after truncation (Portnoy et al. 2020, Theorem 3.2).

    The proof of the theorem puts 1 / K for U / n~ inside a norm, where n~ is the sum of the truncated sizes.  That
    makes one term larger, but the other has the opposite sign, so the norm can become smaller: the printed bound is a
    diagnostic, not an invariant.  `safe_bound` is one.

    Args:
        sizes: what each client declares, at least 1.
        bound: U, at least 1.
        losses: F_k(w), the mean loss of the model on each client's examples; nats per example.

    Raises:
        ValueError: an argument is not as described, or losses are not of the same clients.
    """
    check_sizes(sizes)
    if bound < 1:
        raise ValueError(f"bound must be at least 1, got {bound}.")
    if sizes.keys() != losses.keys():
        raise ValueError("losses must be of the same clients as sizes.")
    K, n = len(sizes), sum(sizes.values())
    kept = {i: min(size, bound) for i, size in sizes.items()}
    n_kept = sum(kept.values())
    shift = sum((sizes[i] / n - kept[i] / n_kept) * losses[i] for i in sizes)
    above = sum((sizes[i] / n - 1 / K) * losses[i] for i in sizes if sizes[i] > bound)
    below = (1 / n - 1 / n_kept) * sum(sizes[i] * losses[i] for i in sizes if sizes[i] <= bound)
    spread = max(losses.values()) - min(losses.values())
    return ObjectiveShift(abs(shift), abs(above + below), spread * weight_shift(sizes, kept))
