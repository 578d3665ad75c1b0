"""Similarities of clients by whom else they are similar to.

The cosine of two updates is near zero if the two clients hold few examples, whatever their groups: what is peculiar to
a client is then longer than what its group has in common.  But what is peculiar is independent of the others, so that a
client is still more similar to the many clients of its group than to the many of another one.  The profile of a client
is its row of similarities; two clients of one group have like profiles.
"""

import torch
from jaxtyping import Float
from torch import Tensor

FEWEST = 10  # items below which a profile has too few entries to be compared


def profile_similarity(similarity: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """Return the correlation of each two rows over their m - 2 entries for third items, in float64.

    Of fewer than `FEWEST` items the similarities themselves.  A row without variance is uncorrelated to all others.
    O(m^3) time, by one product of matrices.

    Args:
        similarity: (m, m), symmetric, finite; the diagonal does not count.
    """
    m = len(similarity)
    if m < FEWEST:
        return similarity
    a = similarity.double().clone().fill_diagonal_(0.0)
    sums = a.sum(1)[:, None] - a  # of row i without entries i and j
    squares = (a * a).sum(1)[:, None] - a * a
    spread = (squares - sums * sums / (m - 2)).clamp_min(0.0)
    scale = (spread * spread.T).sqrt()
    covariance = a @ a - sums * sums.T / (m - 2)
    alpha = torch.where(scale > 1e-12 * m, covariance / scale.clamp_min(1e-300), 0.0).clamp(-1, 1)
    return ((alpha + alpha.T) / 2).fill_diagonal_(1.0)
