"""What the Separation Theorem of Clustered Federated Learning guarantees, and from which noise on.

Sattler, Müller and Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization under
Privacy Constraints", 2019, Theorem 1 and Corollary 1; the noise that k distributions bear is from Sattler, Müller,
Wiegand and Samek, "On the Byzantine Robustness of Clustered Federated Learning", 2020.

Client i holds data of distribution I(i).  At a stationary point the gradient of its empirical risk is  v_I(i) + X_i,
v the gradient of the true risk and X the noise, and

    gamma_i  =  |X_i| / |v_I(i)|  in [0, 1).

Noise turns a gradient by asin gamma_i at most, so all bounds here are sums of angles, as in the proof:

    H_ij             =  cos(asin gamma_i + asin gamma_j)  =  - gamma_i gamma_j + sqrt(1 - gamma_i^2) sqrt(1 - gamma_j^2)
    alpha_intra^min >=  min H_ij, over pairs of one distribution
    alpha_cross^max <=  max cos(max(0, pi / (k - 1) - asin gamma_i - asin gamma_j)), over pairs of two distributions

The last line is Equation 19, cos(pi / (k - 1)) H + sin(pi / (k - 1)) sqrt(1 - H^2), or 1 where H < cos(pi / (k - 1)).

What the theorem assumes: positive multiples of the k *true* gradients v sum to zero.  Where federated learning stops,
it is the empirical gradients that do; the two differ by the mean of the noise.

Errata, of the paper:

* Equation 16 allows gamma_i = 1, against Equation 15.  The noise must be shorter than the gradient.
* The maximum over i and j is missing in Equation 19.  The pairs that count are those across the split; as nobody knows
  them beforehand, here it is taken over all pairs of two distributions, which can only be larger.
* Lemma 3 divides by |v|^2 where it must be |v| |w|, as in H.  For k = 1 the angle pi / (k - 1) does not exist.
* The proof of Lemma 4 in more than two dimensions supposes that angles do not shrink in a projection to a plane
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
    """H_ij of Equation 20: the lowest cosine of two gradients of one distribution with so much noise.

    Args:
        gamma_i: noise of one client, as a share of the gradient's length, in [0, 1).
        gamma_j: of the other one.

    Raises:
        ValueError: noise outside of [0, 1).

    Example:
        >>> round(similarity_under_noise(0.5, 0.5), 6)
        0.5
    """
    return math.cos(_angle(gamma_i) + _angle(gamma_j))


def intra_bound(gammas: Weights, groups: Partition) -> float:
    """The lowest that alpha_intra^min can be (Equation 21).

    Args:
        gammas: noise of each client in [0, 1).
        groups: the clients of each distribution, as indices.

    Returns:
        1 if no distribution has two clients.

    Raises:
        ValueError: noise outside of [0, 1), or `groups` is no partition of the clients.
    """
    angles = _angles(gammas, groups)
    return math.cos(max((sum(sorted(own)[-2:]) for own in angles if len(own) > 1), default=0.0))


def cross_bound(gammas: Weights, groups: Partition) -> float:
    """The highest that alpha_cross^max can be (Equation 19, over all pairs of two distributions).

    Args:
        gammas: noise of each client in [0, 1).
        groups: the clients of each of the k >= 2 distributions, as indices.

    Returns:
        1 if the noise may hide that there are several distributions.

    Raises:
        ValueError: one distribution, noise outside of [0, 1), or `groups` is no partition of the clients.
    """
    between = _between(len(groups))
    noise = sum(sorted(max(own) for own in _angles(gammas, groups))[-2:])
    return math.cos(max(0.0, between - noise))


def guaranteed(gammas: Weights, groups: Partition) -> bool:
    """Whether the optimal bi-partition must be correct: `intra_bound` above `cross_bound` (Corollary 1).

    Correct means that no distribution is divided (Definition 1).  Sufficient, not necessary: with random noise in many
    dimensions far more is borne.

    Args:
        gammas: noise of each client in [0, 1).
        groups: the clients of each of the k >= 2 distributions, as indices.

    Raises:
        ValueError: as `cross_bound`.
    """
    return intra_bound(gammas, groups) > cross_bound(gammas, groups)


def max_noise_for_correct_clustering(k: int) -> float:
    """sin(pi / (4 (k - 1))): with less noise on every client the bi-partition of k distributions must be correct.

    It is where `intra_bound` meets `cross_bound` if all noise is alike: four angles asin gamma within pi / (k - 1).
    No larger number would do: for each there are gradients with less noise than that which are split wrongly.

    Args:
        k: number of distributions, at least 2.

    Raises:
        ValueError: fewer than two distributions.

    Example:
        >>> [round(max_noise_for_correct_clustering(k), 4) for k in (2, 3, 4)]
        [0.7071, 0.3827, 0.2588]
    """
    return math.sin(_between(k) / 4)


def max_noise_for_split(alpha_cross: float) -> float:
    """sqrt((1 - alpha_cross) / 2): with less noise on every client this very split must be correct (Equation 39).

    For a server that has measured alpha_cross^max; the number of distributions does not matter.

    Args:
        alpha_cross: the largest cosine across the optimal bi-partition, in [-1, 1].

    Raises:
        ValueError: not a cosine.

    Example:
        >>> max_noise_for_split(0.5)
        0.5
    """
    if not -1 <= alpha_cross <= 1:
        raise ValueError(f"alpha_cross must be a cosine, in [-1, 1], got {alpha_cross}.")
    return math.sqrt((1 - alpha_cross) / 2)


def noise_ratios(updates: Matrix, groups: Partition) -> Weights:
    """An estimate of gamma_i from the updates of clients of which the groups are known.

    The gradient of a group is taken to be the mean g of its n updates, and the noise of client i what it differs by.
    Both are corrected for the noise in the mean itself, which shortens differences and lengthens g:

        gamma_i^2  ~  n / (n - 1) |u_i - g|^2  /  (|g|^2 - s / n),    s  =  sum of |u_j - g|^2 over the group / (n - 1)

    With independent noise of mean zero and one size in a group, numerator and denominator are right on average.  Their
    quotient is not, nor is its root: for short gradients, few clients or few dimensions it is too large on average, and
    infinite where noise explains all of g.  A client with more noise than the rest of its group is given somewhat too
    little, the rest too much.  What the clients of a group have in common counts as gradient, such as a bias of local
    training.  And the groups matter: two distributions in one group look like noise, and a group that was found from
    the same updates seems to have less of it than it has.

    Args:
        updates: (m, d), updates or gradients, a row per client.
        groups: of two clients or more each, as indices: a partition of the rows.

    Returns:
        (m,), in float64; at least 0, and `inf` where a group's mean is no longer than noise would make it.

    Raises:
        ValueError: a group of one, or `groups` is no partition of the rows.
    """
    check_partition(groups, len(updates))
    if alone := [c for c in groups if len(c) < 2]:
        raise ValueError(f"Noise shows in groups of two clients or more, got a group of one: {list(alone[0])}.")
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
    """The largest angle that some split of k vectors that sum to zero is sure to have between its parts (Lemma 4)."""
    if k < 2:
        raise ValueError(f"There must be two distributions or more to tell apart, got k = {k}.")
    return math.pi / (k - 1)


def _angle(gamma: float) -> float:
    """By how much noise can turn a gradient."""
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma, the noise as a share of the gradient, must lie in [0, 1), got {gamma}.")
    return math.asin(gamma)


def _angles(gammas: Weights, groups: Partition) -> list[list[float]]:
    """`_angle` of the clients of each group."""
    check_partition(groups, len(gammas))
    angles = [_angle(gamma) for gamma in gammas.tolist()]
    return [[angles[i] for i in c] for c in groups]
