"""The densest majority: density-based clustering in which a cluster must hold more than one half.

FLAME clusters with HDBSCAN (Campello, Moulavi and Sander, "Density-Based Clustering Based on Hierarchical Density
Estimates", 2013), with `min_cluster_size = m // 2 + 1`, `min_samples = 1` and one cluster allowed.  With one sample the
reachability distance is the distance itself, and two clusters of more than one half cannot exist.  So the
algorithm reduces to single linkage: clusters grow by the smallest gaps, and the answer is the first cluster that holds
more than one half, with all items that join it at the same distance.

Items are never all noise: at the largest distance they form one cluster.
"""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from phalanx.clustering.spanning_tree import maximum_spanning_tree
from phalanx.core import Weights

ROUNDING = 1e-12  # sums of weights that differ by less than this share of the total are equal up to rounding


def densest_majority(distances: Float[Tensor, "m m"], weights: Weights | None = None) -> tuple[int, ...]:
    """Return the first single-linkage cluster that holds more than one half of the weight.

    With equal weights it has m // 2 + 1 members, or more if clusters join or distances tie.  So even without an attack
    up to one half of the items is excluded.  O(m^2) time, O(m) memory.

    Args:
        distances: (m, m), symmetric, finite, non-negative; the diagonal does not count.
        weights: (m,), positive; equal if not given.  A weight acts like copies at distance 0 from each other.

    Returns:
        The members in increasing order.

    Raises:
        ValueError: if the matrix is not square, finite and non-negative.
    """
    gaps = distances.detach().cpu().double().numpy()
    m = len(gaps)
    if gaps.shape != (m, m) or m < 1:
        raise ValueError(f"A majority needs a square matrix of distances of one item or more, got shape {gaps.shape}.")
    if not np.isfinite(gaps).all() or (gaps < 0).any():
        raise ValueError("Distances must be finite and not negative: remove updates with NaN or infinite values first.")
    held = np.ones(m) if weights is None else weights.detach().cpu().double().numpy().copy()  # weight of each cluster
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
