"""Access of the coordinate-wise rules to columns: compiled kernels on the CPU, torch's sort on other devices."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from phalanx.aggregators.influence import UNKNOWN, Influence
from phalanx.aggregators.points import Points
from phalanx.core import Matrix, Vector, Weights
from phalanx.numerics import column_kernels as kernels
from phalanx.numerics.linalg import shares
from phalanx.numerics.threads import in_threads

ROUNDING = 1e-12  # sums of weights that differ by less than this share of the total are equal up to rounding
UNIT = 4 * kernels.TILES * kernels.LANES  # columns of the smallest part: enough to make its start cheap
SHARES = 256  # most parts to divide the columns into: many, so that a slow thread can leave some to the others
UNDERFLOWS = 1e-140  # squares of a smaller reach may underflow
BLOCK = 1 << 18  # entries that torch sorts at a time, so that they and their sorted copy stay in cache


def has_kernel(deltas: Matrix) -> bool:
    """Return whether the compiled kernels support this matrix."""
    return deltas.device.type == "cpu" and deltas.dtype in (torch.float32, torch.float64)


def of_columns(points: Points, kernel: Callable[..., bool], *arguments: Any) -> Vector:
    """Return the result of `kernel(matrix, *arguments, result, parts, taken)`, one value for each column.

    Raises:
        ValueError: if an entry is not finite.
    """
    matrix = points.unchecked.detach().contiguous().numpy()
    result: NDArray[Any] = np.empty(matrix.shape[1], matrix.dtype)
    parts = shares(matrix.shape[1], UNIT, SHARES)
    if not all(in_threads(kernel, (matrix, *arguments, result), parts, matrix.size)):
        points.refuse()
    return torch.from_numpy(result)


def shifted_columns(points: Points, kernel: Callable[..., bool], *arguments: Any) -> tuple[Vector, float]:
    """Return the result of `kernel(matrix, *arguments, squares, result, parts, taken)`, and the root of all squares.

    Raises:
        ValueError: if an entry is not finite.
    """
    squares = np.zeros((len(shares(points.base.shape[1], UNIT, SHARES)), kernels.LANES))
    vector = of_columns(points, kernel, *arguments, squares)
    return vector, math.sqrt(float(squares.sum()))


def shifted_ranks(coefficients: NDArray[np.float64], by: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the coefficients of ranks and of the changes if they apply `by` ranks higher or lower, and their runs.

    Args:
        coefficients: (m,), of the result.
        by: number of ranks.

    Returns:
        (3, m), and (n, 3) as `column_kernels.combine_shifted_ranks` takes them.  The first run is that of the result,
        which may hold ranks without a coefficient.
    """
    zeros = np.zeros(by)
    higher, lower = np.concatenate([zeros, coefficients[:-by]]), np.concatenate([coefficients[by:], zeros])
    changes = np.stack([coefficients, higher - coefficients, lower - coefficients])
    ranks = np.flatnonzero(coefficients)
    runs = [(0, int(ranks[0]), int(ranks[-1]) + 1)]
    for k in (1, 2):
        edges = np.flatnonzero(np.diff(changes[k] != 0, prepend=False, append=False))
        runs += [(k, first, last) for first, last in edges.reshape(-1, 2).tolist()]
    return changes, np.array(runs)


def shifted_by_column(deltas: Matrix, rule: Callable[..., Float[Tensor, "b"]], shift: float) -> tuple[Vector, float]:
    """Return what `by_column` does for the rule without a shift, and how far the rule with either shift is from it."""
    value, most, least = (by_column(deltas, partial(rule, shift=by)) for by in (0.0, shift, -shift))
    reach = torch.maximum(most.double() - value.double(), value.double() - least.double())
    return value, float(reach.square().sum().sqrt())


def entrywise(points: Points, reach: float) -> Influence:
    """Return the influence on a coordinate-wise rule whose result attackers move this far in all coordinates.

    With one coordinate they are the same rows; with more, each has attackers of its own.  With weights, the attackers
    hold what the heaviest rows hold.  Of faint rows it is unknown, as squares of the reach underflow.
    """
    if reach < UNDERFLOWS and points.unit != 1:
        return UNKNOWN
    if points.base.shape[1] == 1 and equal(points.weights):
        return Influence(reach, "exact")
    return Influence.bound(reach)


def by_column(deltas: Matrix, rule: Callable[[Float[Tensor, "b m"]], Float[Tensor, "b"]]) -> Vector:
    """Apply `rule` to the columns of `deltas`, one block of columns at a time, transposed: each column is a row."""
    result = torch.empty(deltas.shape[1], dtype=deltas.dtype, device=deltas.device)
    width = max(1, BLOCK // len(deltas))
    for start in range(0, deltas.shape[1], width):
        columns = slice(start, min(start + width, deltas.shape[1]))
        result[columns] = rule(deltas[:, columns].T.contiguous()).to(deltas.dtype)
    return result


def sort_with_weights(
    rows: Float[Tensor, "b m"], weights: Weights
) -> tuple[Float[Tensor, "b m"], Float[Tensor, "b m"]]:
    """Return each row in increasing order, and the cumulative weight up to and including each entry.

    Cumulative weights are exact in float64 if the weights are counts.
    """
    values, order = rows.sort(dim=1, stable=True)
    return values, weights.to(rows.device)[order].cumsum(1)


def counted(weights: Weights) -> NDArray[Any]:
    """Return the weights as int16 or int32 if they are whole numbers, which kernels move faster; else as float64."""
    w = weights.numpy()
    if w.sum() > np.iinfo(np.int32).max or (w != w.round()).any():
        return w
    return w.astype(np.int16 if w.max() <= np.iinfo(np.int16).max else np.int32)


def equal(weights: Weights) -> bool:
    """Return whether all weights are equal."""
    w = weights.numpy()
    return bool((w == w[0]).all())
