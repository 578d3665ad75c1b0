"""Inner products, distances and cosines of the rows of a matrix: fast, with the digits kept, the same for any threads.

Products of rows are taken in their precision (float32 for half) over blocks of `DEPTH` columns, and summed in float64.
So the error does not grow with the number of columns, nothing of the size of the matrix is copied, and since no block
is ever divided among threads, the result does not depend on their number.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from phalanx.core import Matrix, Vector, Weights

DEPTH = 1 << 10  # columns of one product
PRODUCTS = 1 << 22  # entries of the products that are held at a time
CANCELLED = 1 / 16  # a distance below this share of the squared norms has lost digits: it is taken again, from nearby
TINY, HUGE = 1e-24, 1e34  # squared norms outside of this range may have lost digits, or overflown, in float32

Square = Float[Tensor, "m m"]


def gram(rows: Matrix, origin: Vector | None = None) -> Square:
    """Inner products of all pairs of rows, in float64, symmetric.

    The error is some 1e-6 of the product of the two norms for float32 rows.  Entries from 1e-38 to 1e38 are fine: rows
    whose products leave the range of float32 are scaled first, by a power of two.

    Args:
        rows: (m, d).
        origin: (d,), taken from each row first; zero if not given.
    """
    products = _products(rows, origin, None)
    squares = products.diagonal()
    strange = torch.nonzero(~((squares > TINY) & (squares < HUGE))).flatten().tolist()
    if rows.dtype == torch.float64 or not strange:
        return products
    scale = torch.ones(len(rows), dtype=torch.float32, device=rows.device)
    for i in strange:
        scale[i] = _power_of_two(rows[i] if origin is None else rows[i] - origin)
    if bool((scale == 1).all()):
        return products
    return _products(rows, origin, scale) * scale.double().outer(scale.double())


def _products(rows: Matrix, origin: Vector | None, scale: Weights | None) -> Square:
    """Inner products of `(rows - origin) / scale`."""
    m = len(rows)
    total = torch.zeros(m, m, dtype=torch.float64, device=rows.device)
    for block in _blocks(rows, origin, scale):
        total += torch.bmm(block, block.transpose(1, 2)).double().sum(0)
    return (total + total.T) / 2


def _blocks(rows: Matrix, origin: Vector | None, scale: Weights | None) -> Iterator[Float[Tensor, "b m k"]]:
    """The columns in blocks of `DEPTH`, some blocks at a time; the last one is filled up with zeros."""
    m, d = rows.shape
    width = DEPTH * max(2, PRODUCTS // (m * m))
    for start in range(0, d, width):
        part = rows[:, start : start + width]
        if part.dtype not in (torch.float32, torch.float64):
            part = part.float()  # half precision has neither the range nor the digits
        if origin is not None:
            part = part - origin[start : start + width]
        if scale is not None:
            part = part / scale[:, None]
        whole = part.shape[1] // DEPTH
        if whole:
            yield part[:, : whole * DEPTH].reshape(m, whole, DEPTH).transpose(0, 1)
        if rest := part.shape[1] - whole * DEPTH:
            last = part.new_zeros(2, m, DEPTH)  # two, as one alone would be divided among threads
            last[0, :, :rest] = part[:, whole * DEPTH :]
            yield last


def _power_of_two(row: Vector) -> Tensor:
    """About the largest entry of a row, 1 for a zero row; division by it is exact."""
    largest = row.abs().max()
    return torch.where(largest > 0, torch.exp2(torch.log2(largest).floor()), 1.0).to(row.dtype)


def product(left: Float[Tensor, "k m"], rows: Matrix, out: Float[Tensor, "k d"] | None = None) -> Float[Tensor, "k d"]:
    """The matrix product `left @ rows`, to the same bits for any number of threads."""
    result = rows.new_empty(len(left), rows.shape[1]) if out is None else out
    start = 0
    for block in _blocks(rows, None, None):
        columns = result[:, start : start + block.shape[0] * DEPTH]
        made = torch.bmm(left.to(block.dtype).expand(len(block), -1, -1), block).transpose(0, 1).reshape(len(left), -1)
        columns.copy_(made[:, : columns.shape[1]])
        start += columns.shape[1]
    return result


def norms(rows: Matrix) -> Weights:
    """Euclidean norm of each row, summed up block by block in float64."""
    d = rows.shape[1]
    whole = d - d % DEPTH
    squares = torch.linalg.vector_norm(rows[:, whole:], dim=1).double().square()
    if whole:
        blocks = rows[:, :whole].reshape(len(rows), -1, DEPTH)
        squares += torch.linalg.vector_norm(blocks, dim=2).double().square().sum(1)
    lengths: Weights = squares.sqrt()
    for i in torch.nonzero(~((squares > TINY) & (squares < HUGE))).flatten().tolist():
        lengths[i] = torch.linalg.vector_norm(rows[i].double())
    return lengths


def shortened(rows: Matrix, radius: float, lengths: Weights | None = None) -> Matrix:
    """A copy of the rows, those that are longer than `radius` shortened to it.

    Args:
        rows: (m, d).
        radius: at least 0.
        lengths: (m,), `norms` of the rows, where they are known.
    """
    lengths = norms(rows) if lengths is None else lengths
    factors = torch.where(lengths > radius, radius / lengths, 1.0)
    return rows * factors.to(rows.device, rows.dtype)[:, None]


def squared_distances_to(rows: Matrix, point: Vector) -> Weights:
    """Squared Euclidean distances of the rows to one point, in float64."""
    squares = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], 4 * DEPTH):
        part = slice(start, start + 4 * DEPTH)
        squares += torch.linalg.vector_norm(rows[:, part] - point[part], dim=1).double().square()
    for i in torch.nonzero(~((squares > TINY) & (squares < HUGE))).flatten().tolist():
        squares[i] = torch.linalg.vector_norm(rows[i].double() - point.double()).square()
    return squares


def cosine_similarity(rows: Matrix) -> Square:
    """Cosines between all pairs of rows, in float64, symmetric, within [-1, 1], with ones on the diagonal.

    A zero row has no direction: it counts as orthogonal to every other row, and as equal to other zero rows.
    """
    return cosines_of(gram(rows))


def cosines_of(products: Square) -> Square:
    """Cosines from inner products."""
    lengths = products.diagonal().sqrt()
    zero = lengths == 0
    lengths = torch.where(zero, 1.0, lengths)
    cosines = products / lengths.outer(lengths)
    cosines[zero.outer(zero)] = 1.0
    cosines.fill_diagonal_(1.0)
    return cosines.clamp_(-1, 1)


def squared_distances(rows: Matrix, products: Square | None = None) -> Square:
    """Squared Euclidean distances between all pairs of rows, in float64, symmetric, each to 1e-4 of itself or better.

    `|a|^2 + |b|^2 - 2 <a, b>` loses the digits of a distance that is small beside the norms.  Rows that are so close to
    each other, because they share an offset or are copies, are taken again with one of them as the origin, as often as
    it needs: the common case costs one product, a common offset two.

    Args:
        rows: (m, d).
        products: their `gram`, if it is there already.
    """
    products = gram(rows) if products is None else products
    squares = products.diagonal()
    distances = (squares[:, None] + squares - 2 * products).clamp_(min=0).fill_diagonal_(0)
    _refine(rows, distances, distances < CANCELLED * (squares[:, None] + squares), list(range(len(rows))))
    return distances


def _refine(rows: Matrix, distances: Square, close: Bool[Tensor, "k k"], members: list[int], depth: int = 0) -> None:
    """Takes the distances within each group of `close` members again, and puts them in place."""
    close.fill_diagonal_(False)
    for group in _components(close.cpu().numpy()) if bool(close.any()) else ():
        c = [members[k] for k in group]
        centre = c[int(distances[c][:, c].sum(1).argmin())]
        part = rows[c] if depth < 3 else rows[c].double()  # groups within groups within groups: exact at once
        products = gram(part, rows[centre].to(part.dtype))
        squares = products.diagonal()
        within = (squares[:, None] + squares - 2 * products).clamp_(min=0).fill_diagonal_(0)
        index = torch.tensor(c, device=rows.device)
        distances[index[:, None], index] = within
        if depth < 4:
            _refine(rows, distances, within < CANCELLED * (squares[:, None] + squares), c, depth + 1)


def _components(close: NDArray[np.bool_]) -> list[list[int]]:
    """The connected components of two or more members, each in increasing order."""
    found, left = [], close.any(1)
    while left.any():
        group = border = np.zeros_like(left)
        border[np.flatnonzero(left)[0]] = True
        while border.any():
            group = group | border
            border = close[border].any(0) & ~group
        found.append(np.flatnonzero(group).tolist())
        left &= ~group
    return found
