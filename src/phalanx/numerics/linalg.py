"""Inner products, distances and cosines of the rows of a matrix: fast, with the digits kept, the same for any threads.

Products of rows are taken in their precision (float32 for half) over blocks of `DEPTH` columns, and summed in float64.
So the error does not grow with the number of columns, nothing of the size of the matrix is copied, and since the work
is divided by the shape of the matrix and not by the number of threads, the result does not depend on that.

On the CPU the compiled loops of `phalanx.numerics.kernels` do it, elsewhere torch's own products.
"""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from phalanx.core import Matrix, Vector, Weights
from phalanx.numerics import kernels
from phalanx.numerics.kernels import CANCELLED, DEPTH, HUGE, TINY
from phalanx.numerics.memory import room
from phalanx.numerics.threads import in_threads

PRODUCTS = 1 << 22  # entries that are held at a time beside the matrix, or of its products
SHARES = 16  # parts in which work is divided, if it is enough

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
    strange = _strange(squares)
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
    products = _compiled_products if rows.device.type == "cpu" else _torch_products
    parts = map(products, _parts(rows, origin, scale))
    total = next(parts)
    for part in parts:
        total += part
    if total.device.type == "cpu":
        in_threads(kernels.mirror, (total.numpy(),), shares(len(total), kernels.BAND, SHARES), total.numel())
        return total
    upper = total.triu(1)
    return total.triu_().add_(upper.T)


def _compiled_products(rows: Matrix) -> Square:
    """Inner products on the CPU; entries below the diagonal mean nothing."""
    m, d = rows.shape
    aligned = d - d % (kernels.BYTES // rows.itemsize)
    columns = shares(aligned, 4 * DEPTH, max(1, min(SHARES, 4 * PRODUCTS // (m * m))))
    bands = shares(m, kernels.TILE, max(1, SHARES // max(1, len(columns))))
    sums = np.zeros((max(1, len(columns)), m, m))
    entries = rows.detach().numpy()
    parts = [(*part, *band, n) for n, part in enumerate(columns) for band in bands]
    if parts:
        in_threads(kernels.inner_products, (entries, sums), parts, m * m * d)
    if aligned < d:
        last = np.zeros((m, kernels.BYTES // rows.itemsize), entries.dtype)
        last[:, : d - aligned] = entries[:, aligned:]
        in_threads(kernels.inner_products, (last, sums), [(0, last.shape[1], 0, m, len(sums) - 1)], 0)
    for part in sums[1:]:
        sums[0] += part
    return torch.from_numpy(sums[0])


def _torch_products(rows: Matrix) -> Square:
    """Inner products by torch, whose kernels elsewhere than on the CPU are as good as any."""
    whole = rows.shape[1] - rows.shape[1] % DEPTH
    blocks = rows[:, :whole].reshape(len(rows), -1, DEPTH).transpose(0, 1)
    last = rows[:, whole:]
    return torch.bmm(blocks, blocks.transpose(1, 2)).double().sum(0) + (last @ last.T).double()


def _parts(rows: Matrix, origin: Vector | None, scale: Weights | None) -> Iterator[Matrix]:
    """`(rows - origin) / scale` as matrices whose entries lie side by side, in float32 or float64.

    On the CPU the rows themselves, if nothing has to be done; else as many columns at a time as may be copied.
    """
    m, d = rows.shape
    precise = rows.dtype in (torch.float32, torch.float64)  # half precision has neither the range nor the digits
    if rows.device.type == "cpu" and precise and origin is None and scale is None and rows.is_contiguous():
        yield rows
        return
    width = DEPTH * max(1, PRODUCTS // (m * max(m, DEPTH)))
    for start in range(0, d, width):
        part = rows[:, start : start + width]
        part = part if precise else part.float()
        if origin is not None:
            part = part - origin[start : start + width]
        if scale is not None:
            part = part / scale[:, None]
        yield part.contiguous()


def shares(length: int, unit: int, most: int) -> list[tuple[int, int]]:
    """Ranges of about equal length, at most so many; all but the last hold whole units."""
    width = max(1, -(-length // (unit * most))) * unit
    return [(start, min(start + width, length)) for start in range(0, length, width)]


def _power_of_two(row: Vector) -> Tensor:
    """About the largest entry of a row, 1 for a zero row; division by it is exact."""
    largest = row.abs().max()
    return torch.where(largest > 0, torch.exp2(torch.log2(largest).floor()), 1.0).to(row.dtype)


def product(left: Float[Tensor, "k m"], rows: Matrix, out: Float[Tensor, "k d"] | None = None) -> Float[Tensor, "k d"]:
    """The matrix product `left @ rows`, to the same bits for any number of threads."""
    result = room((len(left), rows.shape[1]), rows.dtype, rows.device) if out is None else out
    if _compiled(rows):
        entries, made = rows.detach().numpy(), result.numpy()
        factors = np.ascontiguousarray(left.detach().numpy(), entries.dtype)
        parts = shares(rows.shape[1], kernels.STRIP, SHARES)
        in_threads(kernels.combine, (factors, entries, made), parts, left.numel() * rows.shape[1])
        return result
    precision = rows.dtype if rows.dtype == torch.float64 else torch.float32
    return result.copy_(left.to(rows.device, precision) @ rows.to(precision))


def sums_of_few(
    coefficients: Float[Tensor, "k m"], rows: Matrix, out: Float[Tensor, "k d"] | None = None
) -> Float[Tensor, "k d"]:
    """`coefficients @ rows` where most coefficients are zero: rows without one are not read.

    Args:
        coefficients: (k, m), on the CPU.
        rows: (m, d).
        out: where the result goes; may share no memory with the rows.
    """
    result = room((len(coefficients), rows.shape[1]), rows.dtype, rows.device) if out is None else out
    if not _compiled(rows):
        precision = rows.dtype if rows.dtype == torch.float64 else torch.float32
        return result.copy_(coefficients.to(rows.device, precision) @ rows.to(precision))
    sums, members = coefficients.numpy().nonzero()
    factors = coefficients.numpy()[sums, members].astype(rows.detach().numpy().dtype)
    first = np.searchsorted(sums, np.arange(len(coefficients) + 1))
    entries, made = rows.detach().numpy(), result.numpy()
    parts = shares(rows.shape[1], kernels.LENGTH, SHARES)
    in_threads(kernels.add_few, (first, members, factors, entries, made), parts, len(members) * rows.shape[1])
    return result


def finite(rows: Matrix) -> bool:
    """Whether all entries are finite."""
    if not _compiled(rows):
        return bool(torch.isfinite(rows.sum())) or bool(torch.isfinite(rows).all())
    return all(in_threads(kernels.finite, (rows.detach().numpy(),), _blocks(*rows.shape), rows.numel()))


def scaled(rows: Matrix, factors: Weights, out: Matrix | None = None) -> Matrix:
    """The rows, each times its factor.

    Args:
        rows: (m, d).
        factors: (m,).
        out: where the result goes; may be the rows. A new matrix if not given.
    """
    made = room(rows.shape, rows.dtype, rows.device) if out is None else out
    if not _compiled(rows):
        return torch.mul(rows.detach(), factors.to(rows.device, rows.dtype)[:, None], out=made)
    entries, each = rows.detach().numpy(), factors.to(rows.dtype).numpy()
    arguments = (entries, made.numpy(), made.data_ptr() == rows.data_ptr(), each)
    in_threads(kernels.scale, arguments, _blocks(*rows.shape), rows.numel())
    return made


def root(squares: Tensor) -> Tensor:
    """Square roots, without waking torch's threads on the CPU, which then keep it busy for some milliseconds."""
    return torch.from_numpy(np.sqrt(squares.numpy())) if squares.device.type == "cpu" else squares.sqrt()


def _blocks(m: int, d: int) -> list[tuple[int, int, int, int, int]]:
    """Parts of a matrix: rows, columns, and the number of these columns among the ranges that columns are divided in.

    Rows are whole where there are many, as memory is read fastest in long runs.
    """
    bands = shares(m, 1, SHARES)
    return [(*band, *part, n) for n, part in enumerate(shares(d, 4 * DEPTH, SHARES // len(bands))) for band in bands]


def _compiled(rows: Tensor) -> bool:
    """Whether the compiled loops take this matrix as it lies."""
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)


def norms(rows: Matrix) -> Weights:
    """Euclidean norm of each row, summed up block by block in float64."""
    squares = _squares(rows, None)
    lengths: Weights = root(squares)
    for i in _strange(squares):
        lengths[i] = _length(rows[i])
    return lengths


def _length(row: Vector, point: Vector | None = None) -> float:
    """The distance of a row from a point, the origin if not given, in float64."""
    if not _compiled(row):
        return float(torch.linalg.vector_norm(row.double() if point is None else row.double() - point.double()))
    there = 0.0 if point is None else point.detach().numpy().astype(np.float64)
    return float(np.sqrt(np.square(row.detach().numpy().astype(np.float64) - there).sum()))


def _strange(squares: Weights) -> list[int]:
    """Those of some squared norms that may have lost digits, or overflown, in float32."""
    return torch.nonzero(~((squares > TINY) & (squares < HUGE))).flatten().tolist()


def _squares(rows: Matrix, point: Vector | None) -> Weights:
    """Squared Euclidean distances of the rows to a point, the origin if not given, in float64."""
    m, d = rows.shape
    if _compiled(rows):
        parts = _blocks(m, d)
        sums, entries = np.zeros((parts[-1][-1] + 1, m)), rows.detach().numpy()
        if point is None:
            in_threads(kernels.squares, (entries, sums), parts, m * d)
        else:
            in_threads(kernels.squares_from, (entries, point.detach().numpy(), sums), parts, m * d)
        return torch.from_numpy(sums.cumsum(0)[-1])  # in their order
    total = torch.zeros(m, dtype=torch.float64, device=rows.device)
    precision = rows.dtype if rows.dtype == torch.float64 else torch.float32
    for start in range(0, d, 4 * DEPTH):
        part = rows[:, start : start + 4 * DEPTH]
        part = part if point is None else part - point[start : start + 4 * DEPTH]
        total += torch.linalg.vector_norm(part, dim=1, dtype=precision).double().square()
    return total


def shortened(rows: Matrix, radius: float, lengths: Weights | None = None) -> Matrix:
    """A copy of the rows, those that are longer than `radius` shortened to it.

    Args:
        rows: (m, d).
        radius: at least 0.
        lengths: (m,), `norms` of the rows, where they are known.
    """
    made = room(rows.shape, rows.dtype, rows.device)
    if lengths is None:
        shorten(rows, radius, made)
        return made
    return scaled(rows, shortening(radius, lengths), made)


def shorten(rows: Matrix, radius: float, out: Matrix) -> Weights:
    """Writes the rows to `out`, those that are longer than `radius` shortened to it; rows are read once.

    Args:
        rows: (m, d).
        radius: at least 0.
        out: (m, d); may be the rows.

    Returns:
        (m,), the `norms` of the rows as they were.
    """
    if not _compiled(rows) or len(rows) < SHARES:  # where a row is not one thread's
        lengths = norms(rows)
        scaled(rows, shortening(radius, lengths), out)
        return lengths
    entries, made, squares = rows.detach().numpy(), out.numpy(), np.empty(len(rows))
    arguments = (entries, made, rows.data_ptr() == out.data_ptr(), float(radius), squares)
    in_threads(kernels.shorten, arguments, shares(len(rows), 1, SHARES), rows.numel())
    lengths = torch.from_numpy(np.sqrt(squares))
    if strange := _strange(torch.from_numpy(squares)):
        lengths[strange] = torch.tensor([_length(rows[i]) for i in strange], dtype=torch.float64)
        out[strange] = scaled(rows[strange], shortening(radius, lengths[strange]))
    return lengths


def shortening(radius: float, lengths: Weights) -> Weights:
    """What rows of some lengths are multiplied with, to be no longer than `radius`; 1 where a length is not finite."""
    return torch.where((lengths > radius) & lengths.isfinite(), radius / lengths, 1.0)


def squared_distances_to(rows: Matrix, point: Vector) -> Weights:
    """Squared Euclidean distances of the rows to one point, in float64."""
    squares = _squares(rows, point)
    for i in _strange(squares):
        squares[i] = _length(rows[i], point) ** 2
    return squares


def cosine_similarity(rows: Matrix) -> Square:
    """Cosines between all pairs of rows, in float64, symmetric, within [-1, 1], with ones on the diagonal.

    A zero row has no direction: it counts as orthogonal to every other row, and as equal to other zero rows.
    """
    return cosines_of(gram(rows))


def cosines_of(products: Square) -> Square:
    """Cosines from inner products."""
    lengths = root(products.diagonal())
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
    distances, close = _distances(products)
    if close:
        squares = products.diagonal()
        _refine(rows, distances, distances < CANCELLED * (squares[:, None] + squares), list(range(len(rows))))
    return distances


def _distances(products: Square) -> tuple[Square, bool]:
    """Squared distances by inner products, and whether some have lost digits."""
    if products.device.type == "cpu":
        inner, made = products.numpy(), np.empty(tuple(products.shape))
        arguments = (inner, np.ascontiguousarray(inner.diagonal()), made)
        close = in_threads(kernels.distances, arguments, shares(len(inner), 1, SHARES), inner.size)
        return torch.from_numpy(made), any(close)
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp_(min=0).fill_diagonal_(0), True


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
