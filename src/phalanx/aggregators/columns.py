"""What the coordinate-wise rules share: each column sorted, with the weights of its entries, a block at a time."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.core import Matrix, Vector, Weights

ROUNDING = 1e-12  # share of the total weight below which a difference of sums of weights is rounding
BLOCK = 1 << 18  # entries of one block, so that it and its sorted copy stay in cache


def by_column(deltas: Matrix, rule: Callable[[Float[Tensor, "b m"]], Float[Tensor, "b"]]) -> Vector:
    """Applies `rule` to the columns of `deltas`, a block of columns at a time, each handed over as a row."""
    result = torch.empty(deltas.shape[1], dtype=deltas.dtype, device=deltas.device)
    for columns, block in _blocks(deltas):
        result[columns] = rule(block).to(deltas.dtype)
    return result


def _blocks(deltas: Matrix) -> Iterator[tuple[slice, Float[Tensor, "b m"]]]:
    width = max(1, BLOCK // len(deltas))
    for start in range(0, deltas.shape[1], width):
        columns = slice(start, min(start + width, deltas.shape[1]))
        yield columns, deltas[:, columns].T.contiguous()


def sort_with_weights(
    rows: Float[Tensor, "b m"], weights: Weights
) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b m"]]:
    """Each row in increasing order, and the weight up to and including each entry.

    Sums of weights that are counts are exact in float64.
    """
    values, order = rows.sort(dim=1, stable=True)
    return values, weights[order].cumsum(1)


def equal(weights: Weights) -> bool:
    """Whether all weights are the same."""
    return bool((weights == weights[0]).all())
