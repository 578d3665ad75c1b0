"""Norms and inner products of the rows of a matrix, with the digits kept."""

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.core import Matrix, Weights

COLUMNS = 1 << 16  # columns of one block: a few megabytes of a matrix with a hundred rows


def gram(rows: Matrix) -> Float[Tensor, "m m"]:
    """Inner products of all pairs of rows, in float64.

    Blocks of columns are multiplied in the precision of the rows and summed in float64, so that the error does not
    grow with the number of columns.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in torch.split(rows, COLUMNS, dim=1):
        total += (block @ block.T).double()
    return (total + total.T) / 2


def norms(rows: Matrix) -> Weights:
    """Euclidean norm of each row, in the precision of the rows."""
    lengths: Weights = torch.linalg.vector_norm(rows, dim=1)
    return lengths


def cosine_similarity(rows: Matrix) -> Float[Tensor, "m m"]:
    """Cosines between all pairs of rows, in float64, symmetric, within [-1, 1], with ones on the diagonal.

    A zero row has no direction: it counts as orthogonal to every other row, and as equal to other zero rows.
    Rows are scaled by their largest entry first, so that 1e30 and 1e-30 neither overflow nor vanish.
    """
    scale = rows.abs().amax(dim=1, keepdim=True)
    products = gram(rows / torch.where(scale > 0, scale, 1))
    lengths = products.diagonal().sqrt()
    zero = lengths == 0
    cosines = products / torch.where(zero, 1.0, lengths).outer(torch.where(zero, 1.0, lengths))
    cosines[zero.outer(zero)] = 1.0
    cosines.fill_diagonal_(1.0)
    return cosines.clamp_(-1, 1)
