"""The guarantees of the Separation Theorem of Clustered Federated Learning, and the noise that they allow.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Theorem 1 and Corollary 1; the noise that k distributions tolerate is from Sattler, Müller,
Wiegand and Samek, "On the Byzantine Robustness of Clustered Federated Learning", 2020.

Client i holds data of distribution I(i).  At a stationary point the gradient of its empirical risk is  v_I(i) + X_i,
v the gradient of the true risk and X the noise, and

    gamma_i  =  |X_i| / |v_I(i)|  in [0, 1).

Noise rotates a gradient by at most asin gamma_i, so all bounds here are sums of angles, as in the proof:

    H_ij             =  cos(asin gamma_i + asin gamma_j)  =  - gamma_i gamma_j + sqrt(1 - gamma_i^2) sqrt(1 - gamma_j^2)
    alpha_intra^min >=  min H_ij, over pairs of one distribution
    alpha_cross^max <=  max cos(max(0, pi / (k - 1) - asin gamma_i - asin gamma_j)), over pairs of two distributions

The last line is Equation 19, cos(pi / (k - 1)) H + sin(pi / (k - 1)) sqrt(1 - H^2), or 1 where H < cos(pi / (k - 1)).

Assumption of the theorem: positive multiples of the k *true* gradients v sum to zero.  At a stationary point of
federated learning the empirical gradients sum to zero; the two differ by the mean of the noise.

Errata, of the paper:

* Equation 16 allows gamma_i = 1, against Equation 15.  The noise must be shorter than the gradient.
* The maximum over i and j is missing in Equation 19.  Only pairs across the split count; since these are not known
  beforehand, the maximum here is over all pairs of two distributions, which can only be larger.
* Lemma 3 divides by |v|^2 where it must be |v| |w|, as in H.  For k = 1 the angle pi / (k - 1) does not exist.
* The proof of Lemma 4 in more than two dimensions assumes that angles do not shrink in a projection to a plane
  (Equation 96), which they do.  The lemma holds: if its bound failed, the k vectors would be connected by k - 1 arcs of
  the unit sphere that are together shorter than pi; there and back they are a closed curve shorter than 2 pi, and
  such a curve lies in an open half-space.  Vectors within one do not sum to zero.
"""

import math

import torch

from phalanx.clustering.separation import Partition, check_partition
from phalanx.core import Matrix, Weights
from phalanx.numerics.linalg import norms, product, squared_distances_to


def similarity_under_noise(gamma_i: float, gamma_j: float) -> float:
    """Return H_ij of Equation 20: the smallest cosine that two gradients of one distribution with this noise can have.

    Args:
        gamma_i: noise of one client, relative to the length of the true gradient, in [0, 1).
        gamma_j: noise of the other client.

    Raises:
        ValueError: if the noise is outside of [0, 1).

    Examples:
        >>> round(similarity_under_noise(0.5, 0.5), 6)
        0.5
    """
    return math.cos(_angle(gamma_i) + _angle(gamma_j))


def intra_bound(gammas: Weights, groups: Partition) -> float:
    """Return the lower bound of alpha_intra^min (Equation 21).

    Args:
        gammas: noise of each client in [0, 1).
        groups: the clients of each distribution, as indices.

    Returns:
        The bound; 1 if no distribution has two clients.

    Raises:
        ValueError: if the noise is outside of [0, 1), or `groups` is no partition of the clients.
    """
    angles = _angles(gammas, groups)
    return math.cos(max((sum(sorted(own)[-2:]) for own in angles if len(own) > 1), default=0.0))


def cross_bound(gammas: Weights, groups: Partition) -> float:
    """Return the upper bound of alpha_cross^max (Equation 19, over all pairs of two distributions).

    Args:
        gammas: noise of each client in [0, 1).
        groups: the clients of each of the k >= 2 distributions, as indices.

    Returns:
        The bound; 1 if the noise may hide that there are several distributions.

    Raises:
        ValueError: if there is only one distribution, the noise is outside of [0, 1), or `groups` is no partition.
    """
    between = _between(len(groups))
    noise = sum(sorted(max(own) for own in _angles(gammas, groups))[-2:])
    return math.cos(max(0.0, between - noise))


def guaranteed(gammas: Weights, groups: Partition) -> bool:
    """Return whether the optimal bi-partition must be correct: `intra_bound` above `cross_bound` (Corollary 1).

    Correct means that no distribution is divided (Definition 1).  Sufficient, not necessary: of random noise in many
    dimensions, much more is tolerated.

    Args:
        gammas: noise of each client in [0, 1).
        groups: the clients of each of the k >= 2 distributions, as indices.

    Raises:
        ValueError: as in `cross_bound`.
    """
    return intra_bound(gammas, groups) > cross_bound(gammas, groups)


def max_noise_for_correct_clustering(k: int) -> float:
    """Return sin(pi / (4 (k - 1))): below this noise, the bi-partition of k distributions must be correct.

    At this value `intra_bound` equals `cross_bound` if all clients have the same noise: four angles asin gamma make
    pi / (k - 1).  The value is the largest possible: above it, there are gradients that are split wrongly.

    Args:
        k: number of distributions, at least 2.

    Raises:
        ValueError: if there are fewer than two distributions.

    Examples:
        >>> [round(max_noise_for_correct_clustering(k), 4) for k in (2, 3, 4)]
        [0.7071, 0.3827, 0.2588]
    """
    return math.sin(_between(k) / 4)


def max_noise_for_split(alpha_cross: float) -> float:
    """Return sqrt((1 - alpha_cross) / 2): below this noise, the given split must be correct (Equation 39).

    A server can measure alpha_cross^max; the number of distributions does not matter.

    Args:
        alpha_cross: the largest cosine across the optimal bi-partition, in [-1, 1].

    Raises:
        ValueError: if it is not a cosine.

    Examples:
        >>> max_noise_for_split(0.5)
        0.5
    """
    if not -1 <= alpha_cross <= 1:
        raise ValueError(f"alpha_cross must be a cosine, in [-1, 1], got {alpha_cross}.")
    return math.sqrt((1 - alpha_cross) / 2)


def noise_ratios(updates: Matrix, groups: Partition) -> Weights:
    """Return estimates of gamma_i from the updates of clients whose groups are known.

    The gradient of a group is estimated by the mean g of its n updates, and the noise of client i by its difference
    from g.  Both are corrected for the noise in the mean itself, which shortens differences and lengthens g:

        gamma_i^2  ~  n / (n - 1) |u_i - g|^2  /  (|g|^2 - s / n),    s  =  sum of |u_j - g|^2 over the group / (n - 1)

    With independent noise of mean zero and equal size in a group, numerator and denominator are unbiased.  Their
    quotient and its root are not: for short gradients, few clients or few dimensions they are too large on average, and
    infinite if noise explains all of g.  The estimate is somewhat too small for a client with more noise than the rest
    of its group, and too large for the rest.  A deviation that all clients of a group share, such as a bias of local
    training, counts as gradient.  The groups matter too: two distributions in one group look like noise, and a group
    that was found from the same updates seems to have less noise than it has.

    Args:
        updates: (m, d), updates or gradients, a row per client.
        groups: groups of at least two clients, as indices: a partition of the rows.

    Returns:
        (m,), float64; at least 0, and `inf` if noise alone would explain the length of the mean of a group.

    Raises:
        ValueError: if a group has one client, or `groups` is no partition of the rows.
    """
    check_partition(groups, len(updates))
    if alone := [c for c in groups if len(c) < 2]:
        raise ValueError(f"Each group must have at least two clients to estimate noise, got {list(alone[0])}.")
    gammas = torch.empty(len(updates), dtype=torch.float64, device=updates.device)
    for c in groups:
        members = torch.tensor(sorted(c), device=updates.device)
        gammas[members] = _noise_within(updates[members])
    return gammas


def _noise_within(rows: Matrix) -> Weights:
    n = len(rows)
    mean = product(rows.new_full((1, n), 1 / n), rows)
    differences = squared_distances_to(rows, mean[0])
    gradient = norms(mean).square() - differences.sum() / (n * (n - 1))
    ratios: Weights = (n / (n - 1) * differences / gradient).sqrt()
    return torch.where(gradient > 0, ratios, torch.inf)


def _between(k: int) -> float:
    """Return the angle that some split of any k vectors with sum zero has at least between its parts (Lemma 4)."""
    if k < 2:
        raise ValueError(f"There must be two distributions or more to tell apart, got k = {k}.")
    return math.pi / (k - 1)


def _angle(gamma: float) -> float:
    """Return the largest angle by which noise can rotate a gradient."""
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma, the noise as a share of the gradient, must lie in [0, 1), got {gamma}.")
    return math.asin(gamma)


def _angles(gammas: Weights, groups: Partition) -> list[list[float]]:
    """Return `_angle` of the clients of each group."""
    check_partition(groups, len(gammas))
    angles = [_angle(gamma) for gamma in gammas.tolist()]
    return [[angles[i] for i in c] for c in groups]
