"""Diagnostics of weights that need no training: concentration, shift between weightings, shift of the objective."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phalanx.weighting.truncation import check_sizes, mwp


class Concentration(NamedTuple):
    """Measures of how unequal weights are."""

    largest: float  # share of the weight that the heaviest client holds
    top_tenth: float  # share of the weight that the heaviest 10 % of the clients hold, rounded up to whole clients
    effective: float  # number of equally weighted clients with the same noise of the mean: (sum w)^2 / sum w^2


def concentration(weights: Mapping[int, float] | NDArray[Any]) -> Concentration:
    """Return measures of how unequal weights are.

    Args:
        weights: a positive weight for each client, by client or as an array.

    Raises:
        ValueError: if there are no clients, or a weight is not positive.
    """
    tenth = mwp(weights, 0.1)
    shares = np.array([*weights.values()] if isinstance(weights, Mapping) else weights, np.float64)
    shares /= shares.sum()
    return Concentration(float(shares.max()), tenth, 1 / float(shares @ shares))


def weight_shift(before: Mapping[int, float] | NDArray[Any], after: Mapping[int, float] | NDArray[Any]) -> float:
    """Return the share of the weight that moves between clients from one weighting to another, in [0, 1].

    It is half the L1 distance of the two vectors of shares.  An objective with losses in [a, b] changes by at most
    (b - a) times this number.

    Args:
        before: a weight for each client, at least one positive, by client or as an array.
        after: other weights of the same clients, at least one positive, in the same form.

    Raises:
        ValueError: if the weightings are of different clients, or one has no positive weight.
    """
    n: float
    m: float
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        same, n, m = before.keys() == after.keys(), sum(before.values()), sum(after[i] for i in before if i in after)
    elif isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        same, n, m = before.shape == after.shape, sum(before.data), sum(after.data)
    else:
        raise TypeError("Both weightings must be mappings, or both arrays.")
    if not same:
        raise ValueError("Both weightings must be of the same clients.")
    if not (n > 0 and m > 0):
        raise ValueError("Both weightings must have a positive weight.")
    if isinstance(before, Mapping):
        return sum(abs(x / n - after[i] / m) for i, x in before.items()) / 2
    return sum(np.abs(before / float(n) - np.asarray(after) / float(m)).data) / 2


@dataclass(frozen=True)
class ObjectiveShift:
    """The change of the objective by truncation, at one model."""

    shift: float  # |F(w) with reported sizes - F(w) with truncated sizes|, nats per example
    printed_bound: float  # right side of Theorem 3.2; can be smaller than the shift
    safe_bound: float  # (largest loss - smallest loss) x weight_shift; never smaller than the shift


def objective_shift(sizes: Mapping[int, int], bound: int, losses: Mapping[int, float]) -> ObjectiveShift:
    """Return the difference of the weighted objectives before and after truncation (Portnoy et al. 2020, Theorem 3.2).

    The proof of the theorem replaces U / n~ by 1 / K inside a norm, where n~ is the sum of the truncated sizes.  That
    makes one term larger, but the other term has the opposite sign, so the norm can become smaller.  So the printed
    bound is a diagnostic and can be violated; `safe_bound` always holds.

    Args:
        sizes: the size that each client reports, at least 1.
        bound: U, at least 1.
        losses: F_k(w), the mean loss of the model on each client's examples; nats per example.

    Raises:
        ValueError: if an argument is not as described, or losses are of other clients.
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
