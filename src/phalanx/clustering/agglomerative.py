"""Agglomerative clustering: the two nearest clusters are merged, again and again.

Distances of a merged cluster follow from those of its parts (Lance and Williams, "A General Theory of Classificatory
Sorting Strategies", 1967).  O(m^3) time, O(m^2) memory.
"""

from typing import Literal, cast, get_args

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

AgglomerativeLinkage = Literal["single", "complete", "average", "ward"]
Members = dict[int, tuple[int, ...]]
Distances = NDArray[np.float64]
Partition = tuple[tuple[int, ...], ...]


def agglomerate(
    distances: Float[Tensor, "m m"],
    linkage: AgglomerativeLinkage = "average",
    *,
    clusters: int | None = None,
    max_distance: float | None = None,
) -> Partition:
    """Return the clusters, each in increasing order, ordered by their first members.

    Merging ends with `clusters` clusters, or where the two nearest are farther apart than `max_distance`.  Of equally
    near pairs the one with the lowest first members is merged.

    Args:
        distances: (m, m), symmetric, finite; the diagonal does not count. For "ward" Euclidean ones.
        linkage: distance of two clusters: the smallest ("single"), largest ("complete") or mean ("average") one of
            their members, or by the growth of the sum of squares ("ward"), on the scale of the distances.
        clusters: number of clusters, at least 1; all stay apart if it is m or more.
        max_distance: largest distance at which clusters are merged.

    Raises:
        ValueError: not exactly one of `clusters` and `max_distance` is given, or an argument is out of range.
    """
    far = distances.detach().cpu().double().numpy().copy()
    m = len(far)
    if far.shape != (m, m) or m < 1 or not np.isfinite(far).all():
        raise ValueError(f"Clustering needs a square matrix of finite distances, got shape {far.shape}.")
    check_stop(clusters, max_distance)
    if linkage not in get_args(AgglomerativeLinkage):
        raise ValueError(f"linkage must be one of {', '.join(get_args(AgglomerativeLinkage))}, got {linkage!r}.")
    np.fill_diagonal(far, np.inf)
    members: Members = {i: (i,) for i in range(m)}
    while len(members) > (clusters or 1):
        i, j = sorted(divmod(int(far.argmin()), m))
        if max_distance is not None and far[i, j] > max_distance:
            break
        far[i] = far[:, i] = _merged(far, i, j, members, linkage)
        far[j] = far[:, j] = far[i, i] = np.inf
        members[i] += members.pop(j)
    return tuple(sorted(tuple(sorted(of)) for of in members.values()))


def check_stop(clusters: int | None, max_distance: float | None) -> None:
    """Raise ValueError unless one of them, and one only, says when merging ends."""
    if (clusters is None) == (max_distance is None):
        raise ValueError(
            f"Give either clusters or max_distance, got {clusters} and {max_distance}: the number of clusters if it is "
            "known, else the distance beyond which clusters stay apart."
        )
    if clusters is not None and clusters < 1:
        raise ValueError(f"clusters must be at least 1, got {clusters}.")
    if max_distance is not None and not 0 <= max_distance < np.inf:
        raise ValueError(f"max_distance must be at least 0 and finite, got {max_distance}.")


def _merged(far: Distances, i: int, j: int, members: Members, linkage: AgglomerativeLinkage) -> Distances:
    """Return the distances of the union of clusters i and j to all others."""
    a, b = far[i], far[j]
    if linkage == "single":
        return cast(Distances, np.minimum(a, b))
    if linkage == "complete":
        return cast(Distances, np.maximum(a, b))
    n_i, n_j = len(members[i]), len(members[j])
    if linkage == "average":
        return cast(Distances, (n_i * a + n_j * b) / (n_i + n_j))
    n = np.array([len(members.get(k, ())) for k in range(len(far))])
    squares = (n_i + n) * a**2 + (n_j + n) * b**2 - n * far[i, j] ** 2
    return cast(Distances, np.sqrt(np.maximum(squares, 0) / (n_i + n_j + n)))
