"""Inner products, distances and cosines of the rows of a matrix: fast, accurate, the same for any number of threads.

Products of rows are computed in their precision (float32 for half) over blocks of `DEPTH` columns and summed in
float64.  So the error does not grow with the number of columns, and the matrix is not copied.  The work is divided by
the shape of the matrix, not by the number of threads, so the result does not depend on that number.

On the CPU the compiled loops of `phalanx.numerics.kernels` do the work, on other devices torch's own products.
"""

import math
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from phalanx.core import Matrix, Vector, Weights
from phalanx.numerics import kernels
from phalanx.numerics.allocation import room
from phalanx.numerics.kernels import CANCELLED, DEPTH, HUGE, TINY
from phalanx.numerics.threads import in_threads

PRODUCTS = 1 << 22  # entries of temporary copies or products held at a time, besides the matrix
SHORT = 1 << 14  # entries of a vector whose copy in float64 costs nothing
NORMAL = 1e-200  # squares of a length that are larger, and smaller than its inverse, have all their digits
SHARES = 16  # most parts to divide work into
FAINT = 2.0**-400  # entries of float64 below which squares of differences may underflow
LOOK = 16  # columns in which `unit` looks for an ordinary entry first

Square = Float[Tensor, "m m"]


def gram(rows: Matrix, origin: Vector | None = None) -> Square:
    """Return the inner products of all pairs of rows, in float64, symmetric.

    For float32 rows the error is about 1e-6 of the product of the two norms.  Entries from 1e-38 to 1e38 are allowed:
    rows whose products leave the range of float32 are first scaled by a power of two, which is exact.

    Args:
        rows: (m, d).
        origin: (d,), subtracted from each row first; zero if not given.
    """
    products = _products(rows, origin, None)
    squares = products.diagonal()
    strange = _strange(squares)
    # A cheap check of the diagonal is enough: |<a, b>| <= |a| |b|.
    if rows.dtype == torch.float64 or not strange:
        return products
    scale = torch.ones(len(rows), dtype=torch.float32, device=rows.device)
    for i in strange:
        scale[i] = _power_of_two(rows[i] if origin is None else rows[i] - origin)
    if bool((scale == 1).all()):
        return products
    return _products(rows, origin, scale) * scale.double().outer(scale.double())


def _products(rows: Matrix, origin: Vector | None, scale: Weights | None) -> Square:
    """Return the inner products of `(rows - origin) / scale`."""
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
    """Return the inner products on the CPU; entries below the diagonal are undefined."""
    m, d = rows.shape
    aligned = d - d % (kernels.BYTES // rows.itemsize)
    # Each range of columns has its own (m, m) sums, so their number is limited by memory.
    columns = shares(aligned, 4 * DEPTH, max(1, min(SHARES, 4 * PRODUCTS // (m * m))))
    bands = shares(m, kernels.TILE, max(1, SHARES // max(1, len(columns))))
    sums = np.zeros((max(1, len(columns)), m, m))
    entries = rows.detach().numpy()
    parts = [(*part, *band, n) for n, part in enumerate(columns) for band in bands]
    if parts:
        in_threads(kernels.inner_products, (entries, sums), parts, m * m * d)
    if aligned < d:  # the kernel takes whole vectors only: pad the last columns with zeros
        last = np.zeros((m, kernels.BYTES // rows.itemsize), entries.dtype)
        last[:, : d - aligned] = entries[:, aligned:]
        in_threads(kernels.inner_products, (last, sums), [(0, last.shape[1], 0, m, len(sums) - 1)], 0)
    for part in sums[1:]:
        sums[0] += part
    return torch.from_numpy(sums[0])


def _torch_products(rows: Matrix) -> Square:
    """Return the inner products by torch, for other devices than the CPU."""
    whole = rows.shape[1] - rows.shape[1] % DEPTH
    blocks = rows[:, :whole].reshape(len(rows), -1, DEPTH).transpose(0, 1)
    last = rows[:, whole:]
    return torch.bmm(blocks, blocks.transpose(1, 2)).double().sum(0) + (last @ last.T).double()


def _parts(rows: Matrix, origin: Vector | None, scale: Weights | None) -> Iterator[Matrix]:
    """Yield `(rows - origin) / scale` as contiguous matrices of float32 or float64, some columns at a time.

    On the CPU, yield the rows themselves if nothing has to change; else copies within the limit of `PRODUCTS`.
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
    """Return at most `most` ranges of about equal length; all but the last hold whole multiples of `unit`."""
    width = max(1, -(-length // (unit * most))) * unit
    return [(start, min(start + width, length)) for start in range(0, length, width)]


def _power_of_two(row: Vector) -> Tensor:
    """Return the power of two nearest below the largest entry of a row, 1 for a zero row; division by it is exact."""
    largest = row.abs().max()
    return torch.where(largest > 0, torch.exp2(torch.log2(largest).floor()), 1.0).to(row.dtype)


def unit(rows: Matrix) -> float:
    """Return a power of two near the largest entry of float64 rows so small that squares underflow; 1 for other rows.

    One ordinary entry settles it, and the first entries are looked at first, so usually this costs no pass over the
    matrix.
    """
    if rows.dtype != torch.float64 or abs(float(rows[0, 0])) >= FAINT:  # squares of other types are float64
        return 1.0
    start, width = 0, LOOK
    while start < rows.shape[1]:
        if bool((rows[:, start : start + width].abs() >= FAINT).any()):
            return 1.0
        start, width = start + width, 4 * width
    largest = float(rows.abs().max())
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0


def product(left: Float[Tensor, "k m"], rows: Matrix, out: Float[Tensor, "k d"] | None = None) -> Float[Tensor, "k d"]:
    """Return the matrix product `left @ rows`, to the same bits for any number of threads."""
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
    """Return `coefficients @ rows` for coefficients that are mostly zero: only rows with a nonzero one are read.

    Args:
        coefficients: (k, m), on the CPU.
        rows: (m, d).
        out: (k, d), receives the result; must not share memory with the rows.
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
    """Return whether all entries are finite."""
    if not _compiled(rows):  # a finite sum has finite terms; an infinite sum may be an overflow, so check each entry
        return bool(torch.isfinite(rows.sum())) or bool(torch.isfinite(rows).all())
    return all(in_threads(kernels.finite, (rows.detach().numpy(),), _blocks(*rows.shape), rows.numel()))


def scaled(rows: Matrix, factors: Weights, out: Matrix | None = None) -> Matrix:
    """Return the rows, each times its factor.

    Args:
        rows: (m, d).
        factors: (m,).
        out: (m, d), receives the result; may be the rows. A new matrix if not given.
    """
    made = room(rows.shape, rows.dtype, rows.device) if out is None else out
    if not _compiled(rows):
        return torch.mul(rows.detach(), factors.to(rows.device, rows.dtype)[:, None], out=made)
    entries, each = rows.detach().numpy(), factors.to(rows.dtype).numpy()
    arguments = (entries, made.numpy(), made.data_ptr() == rows.data_ptr(), each)
    in_threads(kernels.scale, arguments, _blocks(*rows.shape), rows.numel())
    return made


def root(squares: Tensor) -> Tensor:
    """Return the square roots; on the CPU by NumPy, since torch's threads would spin for milliseconds afterwards."""
    return torch.from_numpy(np.sqrt(squares.numpy())) if squares.device.type == "cpu" else squares.sqrt()


def _blocks(m: int, d: int) -> list[tuple[int, int, int, int, int]]:
    """Divide a matrix into blocks: first row, end of rows, first column, end of columns, index of the range of columns.

    With many rows, a block holds whole rows, since memory is fastest in long consecutive reads.
    """
    bands = shares(m, 1, SHARES)
    return [(*band, *part, n) for n, part in enumerate(shares(d, 4 * DEPTH, SHARES // len(bands))) for band in bands]


def _compiled(rows: Tensor) -> bool:
    """Return whether the compiled loops can read this matrix in place."""
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.float64)


def norms(rows: Matrix) -> Weights:
    """Return the Euclidean norm of each row, summed block by block in float64."""
    squares = _squares(rows, None)
    lengths: Weights = root(squares)
    for i in _strange(squares):
        lengths[i] = _length(rows[i])
    return lengths


def length(vector: Vector) -> float:
    """Return the Euclidean norm."""
    if vector.device.type == "cpu" and len(vector) <= SHORT:  # a tenth of the time for a model of 1,000 parameters
        entries = vector.to(torch.float64).numpy()
        squares = float(entries @ entries)
        if NORMAL < squares < 1 / NORMAL:
            return math.sqrt(squares)
    return float(norms(vector[None])[0])


def _length(row: Vector, point: Vector | None = None) -> float:
    """Return the distance of a row from a point, the origin by default, in float64."""
    if not _compiled(row):
        return float(torch.linalg.vector_norm(row.double() if point is None else row.double() - point.double()))
    there = 0.0 if point is None else point.detach().numpy().astype(np.float64)
    away = row.detach().numpy().astype(np.float64) - there
    squares = np.square(away).sum()
    scale = 1.0 if squares >= FAINT or not away.any() else unit(torch.from_numpy(away)[None])
    return scale * float(np.sqrt(squares if scale == 1 else np.square(away / scale).sum()))


def _strange(squares: Weights) -> list[int]:
    """Return the indices of squared norms that may have underflowed or overflowed in float32, NaN included."""
    return torch.nonzero(~((squares > TINY) & (squares < HUGE))).flatten().tolist()


def _squares(rows: Matrix, point: Vector | None) -> Weights:
    """Return the squared Euclidean distances of the rows from a point, the origin by default, in float64."""
    m, d = rows.shape
    if _compiled(rows):
        parts = _blocks(m, d)
        sums, entries = np.zeros((parts[-1][-1] + 1, m)), rows.detach().numpy()
        if point is None:
            in_threads(kernels.squares, (entries, sums), parts, m * d)
        else:
            in_threads(kernels.squares_from, (entries, point.detach().numpy(), sums), parts, m * d)
        return torch.from_numpy(sums.cumsum(0)[-1])  # in order; `sum` may add in pairs
    total = torch.zeros(m, dtype=torch.float64, device=rows.device)
    precision = rows.dtype if rows.dtype == torch.float64 else torch.float32
    for start in range(0, d, 4 * DEPTH):
        part = rows[:, start : start + 4 * DEPTH]
        part = part if point is None else part - point[start : start + 4 * DEPTH]
        total += torch.linalg.vector_norm(part, dim=1, dtype=precision).double().square()
    return total


def shortened(rows: Matrix, radius: float, lengths: Weights | None = None) -> Matrix:
    """Return a copy of the rows, in which rows with a norm above `radius` are scaled down to it.

    Args:
        rows: (m, d).
        radius: at least 0.
        lengths: (m,), `norms` of the rows, if they are known.
    """
    made = room(rows.shape, rows.dtype, rows.device)
    if lengths is None:
        shorten(rows, radius, made)
        return made
    return scaled(rows, shortening(radius, lengths), made)


def shorten(rows: Matrix, radius: float, out: Matrix) -> Weights:
    """Write the rows to `out`, and scale those with a norm above `radius` down to it; each row is read once.

    Args:
        rows: (m, d).
        radius: at least 0.
        out: (m, d); may be the rows.

    Returns:
        (m,), the `norms` of the rows before scaling.
    """
    if not _compiled(rows) or len(rows) < SHARES:  # too few rows to give each thread whole ones
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
    """Return the factors that scale rows of these lengths down to `radius`; 1 for a length that is not finite."""
    return torch.where((lengths > radius) & lengths.isfinite(), radius / lengths, 1.0)


def squared_distances_to(rows: Matrix, point: Vector) -> Weights:
    """Return squared Euclidean distances of the rows to one point, in float64."""
    squares = _squares(rows, point)
    for i in _strange(squares):
        squares[i] = _length(rows[i], point) ** 2
    return squares


def direction(vector: Vector) -> Vector | None:
    """Return a vector at length one, of its own dtype; None if it is zero."""
    length = float(torch.linalg.vector_norm(vector.double()))
    return (vector.double() / length).to(vector.dtype) if length > 0 else None


def cosine_similarity(rows: Matrix) -> Square:
    """Return cosines between all pairs of rows, in float64, symmetric, within [-1, 1], with ones on the diagonal.

    A zero row has no direction: it counts as orthogonal to every other row, and as equal to other zero rows.
    """
    return cosines_of(gram(rows))


def cosines_of(products: Square) -> Square:
    """Return the cosines of pairs of rows from their inner products; see `cosines`."""
    lengths = root(products.diagonal())
    zero = lengths == 0
    lengths = torch.where(zero, 1.0, lengths)
    cosines = products / lengths.outer(lengths)
    cosines[zero.outer(zero)] = 1.0
    cosines.fill_diagonal_(1.0)
    return cosines.clamp_(-1, 1)


def squared_distances(rows: Matrix, products: Square | None = None) -> Square:
    """Return the squared Euclidean distances of all pairs of rows, in float64, symmetric, to a relative error of 1e-4.

    `|a|^2 + |b|^2 - 2 <a, b>` loses the digits of a distance that is small compared with the norms.  The distances
    within groups of such close rows, which share an offset or are copies, are computed again with one of the rows as
    the origin, repeatedly if needed.  The usual case costs one product of the matrix, a common offset two.

    Args:
        rows: (m, d).
        products: their `gram`, if it is known.
    """
    products = gram(rows) if products is None else products
    distances, close = _distances(products)
    if close:
        squares = products.diagonal()
        _refine(rows, distances, distances < CANCELLED * (squares[:, None] + squares), list(range(len(rows))))
    return distances


def _distances(products: Square) -> tuple[Square, bool]:
    """Return the squared distances from inner products, and whether some may have lost digits."""
    if products.device.type == "cpu":
        inner, made = products.numpy(), np.empty(tuple(products.shape))
        arguments = (inner, np.ascontiguousarray(inner.diagonal()), made)
        close = in_threads(kernels.distances, arguments, shares(len(inner), 1, SHARES), inner.size)
        return torch.from_numpy(made), any(close)
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp_(min=0).fill_diagonal_(0), True


def _refine(rows: Matrix, distances: Square, close: Bool[Tensor, "k k"], members: list[int], depth: int = 0) -> None:
    """Compute the distances within each group of `close` members again, relative to a central member, in place."""
    close.fill_diagonal_(False)
    for group in _components(close.cpu().numpy()) if bool(close.any()) else ():
        c = [members[k] for k in group]
        # The most central row as the origin makes the remaining norms, and so the errors, small.
        centre = c[int(distances[c][:, c].sum(1).argmin())]
        part = (
            rows[c] if depth < 3 else rows[c].double()
        )  # after three levels of groups within groups, float64 settles it
        products = gram(part, rows[centre].to(part.dtype))
        squares = products.diagonal()
        within = (squares[:, None] + squares - 2 * products).clamp_(min=0).fill_diagonal_(0)
        index = torch.tensor(c, device=rows.device)
        distances[index[:, None], index] = within
        if depth < 4:
            _refine(rows, distances, within < CANCELLED * (squares[:, None] + squares), c, depth + 1)


def _components(close: NDArray[np.bool_]) -> list[list[int]]:
    """Return the connected components with at least two members, each in increasing order."""
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
