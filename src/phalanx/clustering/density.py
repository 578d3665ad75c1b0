"""The densest majority: what density-based clustering leaves when a cluster must hold more than one half.

FLAME clusters with HDBSCAN (Campello, Moulavi and Sander, "Density-Based Clustering Based on Hierarchical Density
Estimates", 2013), with `min_cluster_size = m // 2 + 1`, `min_samples = 1` and one cluster allowed.  With one sample the
reachability distance is the distance itself, and two clusters of more than one half cannot exist.  What is left of the
algorithm is single linkage: clusters grow by their smallest gaps, and the answer is the first one that holds more than
one half, with everything that joins it at the very distance at which it got there.

There is no case in which all is noise: at the largest distance everything is one cluster.
"""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from phalanx.clustering.spanning_tree import maximum_spanning_tree
from phalanx.core import Weights

ROUNDING = 1e-12  # share of the total weight below which a difference of sums of weights is rounding


def densest_majority(distances: Float[Tensor, "m m"], weights: Weights | None = None) -> tuple[int, ...]:
    """The first single-linkage cluster that holds more than one half of the weight.

    With equal weights it has m // 2 + 1 members, or more where clusters join or distances tie.  So without any attack
    up to one half of the items is left out.  O(m^2) time, O(m) memory.

    Args:
        distances: symmetric, finite, non-negative; the diagonal is not looked at.
        weights: positive; equal if not given.  A weight is like a number of copies, at distance 0 of each other.

    Returns:
        The members in increasing order.

    Raises:
        ValueError: not a square, finite, non-negative matrix.
    """
    gaps = distances.detach().cpu().double().numpy()
    m = len(gaps)
    if gaps.shape != (m, m) or m < 1:
        raise ValueError(f"A majority needs a square matrix of distances of one item or more, got shape {gaps.shape}.")
    if not np.isfinite(gaps).all() or (gaps < 0).any():
        raise ValueError("Distances must be finite and not negative: refuse updates with NaN or infinite values first.")
    held = np.ones(m) if weights is None else weights.detach().cpu().double().numpy().copy()  # by each cluster
    half = held.sum() * (0.5 + ROUNDING)
    order, parent, strength = maximum_spanning_tree(-gaps)
    cluster = np.arange(m)
    reached = 0.0 if held.max() > half else np.inf  # the distance at which a cluster holds more than one half
    for edge in np.argsort(-strength, kind="stable"):
        if -strength[edge] > reached:
            break
        one, other = cluster[order[edge]], cluster[parent[edge]]
        cluster[cluster == other] = one
        held[one] += held[other]
        held[other] = 0
        if held[one] > half:
            reached = -strength[edge]
    return tuple(np.flatnonzero(cluster == held.argmax()).tolist())
