"""How the coordinate-wise rules get at their columns: compiled on the CPU, by torch's own sort elsewhere."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from phalanx.aggregators.points import Points
from phalanx.core import Matrix, Vector, Weights
from phalanx.numerics import column_kernels as kernels
from phalanx.numerics.linalg import shares
from phalanx.numerics.threads import in_threads

ROUNDING = 1e-12  # share of the total weight below which a difference of sums of weights is rounding
UNIT = 4 * kernels.TILES * kernels.LANES  # columns: parts of so many begin seldom
SHARES = 256  # parts in which columns are divided, if there are enough
BLOCK = 1 << 18  # entries of one block of torch's sort, so that it and its sorted copy stay in cache


def has_kernel(deltas: Matrix) -> bool:
    """Whether the compiled kernels can take this matrix."""
    return deltas.device.type == "cpu" and deltas.dtype in (torch.float32, torch.float64)


def of_columns(points: Points, kernel: Callable[..., bool], *arguments: Any) -> Vector:
    """What `kernel(matrix, *arguments, result, ranges of columns)` writes to the result.

    Raises:
        ValueError: an entry is not finite.
    """
    matrix = points.unchecked.detach().contiguous().numpy()
    result: NDArray[Any] = np.empty(matrix.shape[1], matrix.dtype)
    parts = shares(matrix.shape[1], UNIT, SHARES)
    if not all(in_threads(kernel, (matrix, *arguments, result), parts, matrix.size)):
        points.refuse()
    return torch.from_numpy(result)


def by_column(deltas: Matrix, rule: Callable[[Float[Tensor, "b m"]], Float[Tensor, "b"]]) -> Vector:
    """Applies `rule` to the columns of `deltas`, a block of columns at a time, each handed over as a row."""
    result = torch.empty(deltas.shape[1], dtype=deltas.dtype, device=deltas.device)
    width = max(1, BLOCK // len(deltas))
    for start in range(0, deltas.shape[1], width):
        columns = slice(start, min(start + width, deltas.shape[1]))
        result[columns] = rule(deltas[:, columns].T.contiguous()).to(deltas.dtype)
    return result


def sort_with_weights(
    rows: Float[Tensor, "b m"], weights: Weights
) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b m"]]:
    """Each row in increasing order, and the weight up to and including each entry.

    Sums of weights that are counts are exact in float64.
    """
    values, order = rows.sort(dim=1, stable=True)
    return values, weights.to(rows.device)[order].cumsum(1)


def counted(weights: Weights) -> NDArray[Any]:
    """The weights as counts of 16 or 32 bits if that is what they are: a kernel carries them along at less cost."""
    w = weights.numpy()
    if w.sum() > np.iinfo(np.int32).max or (w != w.round()).any():
        return w
    return w.astype(np.int16 if w.max() <= np.iinfo(np.int16).max else np.int32)


def equal(weights: Weights) -> bool:
    """Whether all weights are the same."""
    return bool((weights == weights[0]).all())
