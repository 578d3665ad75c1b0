"""The input of a rule: the updates of a round as weighted points, and their geometry, computed once for all users.

Krum, Bulyan, geometric median, nearest-neighbour mixing and others need only distances.  They share one product of the
matrix with itself, and then work on the `(m, m)` matrix of distances; the matrix is read once more, for the weighted
sum that is the result.  A pre-aggregator that averages or clips rows changes only coefficients: the distances between
mixed rows follow from those between the rows.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from phalanx.core import Matrix, Vector, Weights
from phalanx.numerics.allocation import room
from phalanx.numerics.linalg import (
    Square,
    cosines_of,
    finite,
    gram,
    norms,
    product,
    root,
    scaled,
    shorten,
    shortening,
    squared_distances,
    squared_distances_to,
    sums_of_few,
    unit,
)

Sums = Callable[
    [Tensor, Tensor, Tensor | None], Tensor
]  # (coefficients, rows, out) -> coefficients @ rows, written to out
NEARBY = 20.0  # norms up to this multiple of the distance from a new origin leave enough digits after subtraction
FEW = 4  # average number of rows in a sum up to which `sums_of_few` is faster than a matrix product
EXACT = 1e-9  # a distance below this share of its terms has lost its digits to cancellation
LEAST = 1e-250  # a squared distance below this may have lost its digits to underflow


class Points:
    """Weighted rows.

    Products and squared distances are of the rows in multiples of `unit`; norms are of the rows themselves.  Distances
    below 1e-154 count as zero, or below 1e-154 of the largest entry if that is below 1e-120.

    Args:
        rows: (m, d), finite; not copied, and must not be changed.
        weights: (m,), positive, float64.
        turn: number of the call, for rules that draw at random: the same turn gives the same draw.
        previous: (d,), the last result, for rules that start from it.
        there: for each row of the call, whether it is one of these rows; all are if not given.
    """

    def __init__(
        self,
        rows: Matrix,
        weights: Weights,
        turn: int = 0,
        previous: Vector | None = None,
        there: Sequence[bool] | None = None,
    ) -> None:
        self.base, self.weights, self.turn, self.previous = rows, weights.cpu(), turn, previous
        self.there = there or (True,) * len(rows)

    @staticmethod
    def of(rows: Matrix, weights: Weights | None = None, turn: int = 0, previous: Vector | None = None) -> "Points":
        """Return checked rows and weights, without the rows of weight 0.

        Entries are checked to be finite by the first computation that reads them, which saves a pass over the matrix.

        Raises:
            ValueError: if `rows` is not a floating-point matrix, or the weights are invalid.
        """
        w = checked_weights(rows, weights)
        rows = rows.detach()  # rules are not differentiable
        there = w > 0
        if bool(there.all()):
            return Points(rows, w, turn, previous)
        return Points(rows[there], w[there], turn, previous, there.tolist())

    @property
    def matrix(self) -> Matrix:
        """The rows."""
        return self._finite

    @property
    def unchecked(self) -> Matrix:
        """The rows, for a rule that checks by itself that all entries are finite."""
        return self.base

    @cached_property
    def _finite(self) -> Matrix:
        """The rows, after a check that all entries are finite."""
        if not finite(self.base):
            self.refuse()
        return self.base

    def refuse(self) -> NoReturn:
        """Raise the error for rows that are not finite.

        Raises:
            ValueError: always.
        """
        there = [row for row, is_there in enumerate(self.there) if is_there]
        bad = [there[k] for k, row in enumerate(self.base) if not torch.isfinite(row).all()]
        if not bad:
            raise ValueError("Entries are so large that sums or squares of them overflow. Scale the rows first.")
        raise ValueError(
            f"Rows {bad} hold NaN or infinite values. Remove such updates first, as phalanx.engine.guard.Guard does."
        )

    def _finite_if(self, evidence: Tensor) -> None:
        """Skip the check of all entries if values to which every entry contributes, such as norms, are finite."""
        if bool(torch.isfinite(evidence).all()):
            self.__dict__["_finite"] = self.base
        else:
            self.refuse()

    def write(self, out: Matrix | None) -> Matrix:
        """Return the rows, copied to `out` if it is given."""
        return self.matrix if out is None else out.copy_(self.matrix)

    def __len__(self) -> int:
        return len(self.weights)

    @cached_property
    def unit(self) -> float:
        """A power of two by which the rows are divided for products and squared distances; 1 for ordinary rows."""
        return unit(self.base)

    def in_units(self, rows: Tensor) -> Tensor:
        """Return rows or a point in multiples of `unit`, which is exact."""
        return rows if self.unit == 1 else rows / self.unit

    @property
    def mass(self) -> float:
        """The total weight."""
        return float(self.weights.sum())

    @property
    def share(self) -> Weights:
        """The share of each row in the total weight."""
        return self.weights / self.weights.sum()

    @cached_property
    def products(self) -> Square:
        """Inner products of the rows in multiples of `unit`, float64, on the CPU."""
        products = gram(self.in_units(self.base)).cpu()
        self._finite_if(products.diagonal())
        return products

    @cached_property
    def squared_distances(self) -> Square:
        """Squared distances between rows in multiples of `unit`, float64, on the CPU."""
        return squared_distances(self.in_units(self.base), self.products.to(self.base.device)).cpu()

    def squared_distances_from(self, row: int) -> Weights:
        """Return a row of `squared_distances` without computing the others."""
        if "squared_distances" in self.__dict__:
            return self.squared_distances[row]
        squares = self.squared_distances_to(self.base[row])
        self._finite_if(squares)
        return squares

    def squared_distances_to(self, point: Vector) -> Weights:
        """Return the squared distances from any point in multiples of `unit`, float64, on the CPU."""
        return squared_distances_to(self.in_units(self.unchecked), self.in_units(point)).cpu()

    @cached_property
    def norms(self) -> Weights:
        """Distances of the rows from the origin, float64, on the CPU."""
        if "products" in self.__dict__:
            return root(self.products.diagonal()) * self.unit
        lengths = norms(self.base)
        self._finite_if(lengths)
        return lengths.cpu()

    @property
    def knows_norms(self) -> bool:
        """Whether `norms` are known or follow from what is known."""
        return not {"norms", "products"}.isdisjoint(self.__dict__)

    def learn_norms(self, lengths: Weights) -> None:
        """Store `norms` that a caller has computed, and check by them that all entries are finite."""
        self._finite_if(lengths)
        self.__dict__["norms"] = lengths.cpu()

    @cached_property
    def cosines(self) -> Square:
        """Cosines of pairs of rows, as `linalg.cosine_similarity` defines them."""
        return cosines_of(self.products)

    @cached_property
    def medoid(self) -> int:
        """The row with the smallest distance within which half of the weight lies.

        It lies among the honest rows if they hold the majority of the weight.
        """
        far, weights = self.squared_distances.numpy(), self.weights.numpy()
        # For each row, the distance within which half of the weight lies.
        order = far.argsort(axis=1, kind="stable")
        half = (weights[order].cumsum(axis=1) < self.mass / 2).sum(axis=1, keepdims=True).clip(max=len(self) - 1)
        return int(np.take_along_axis(far, np.take_along_axis(order, half, axis=1), axis=1).argmin())

    @cached_property
    def centred_products(self) -> Square:
        """Inner products of the rows minus the medoid in multiples of `unit`, float64, on the CPU."""
        p, products = self.medoid, self.products
        lengths, radii = self.norms / self.unit, root(self.squared_distances[self.medoid])
        # Subtracting products is free, but keeps few digits if the rows are long compared with their distances.
        if bool((((lengths + lengths[p]) < NEARBY * radii) | (radii == 0)).all()):
            centred = products - products[p] - products[:, p : p + 1] + products[p, p]
            return torch.where((radii == 0) | (radii[:, None] == 0), 0.0, centred)
        rows = self.in_units(self.matrix)
        return gram(rows, origin=rows[p]).cpu()

    def products_about(self, centre: Vector) -> tuple[Square, float]:
        """Return the inner products of the rows minus `centre`, float64, on the CPU, and the unit that they are in."""
        rows, origin = self.matrix, centre.to(self.matrix)
        units = [unit(rows), unit(origin[None])]
        if min(units) == 1:
            return gram(rows, origin=origin).cpu(), 1.0
        # Zeros have no unit of their own.
        one = max(u for u, part in zip(units, (rows, origin), strict=True) if part.any())
        return gram(rows / one, origin=origin / one).cpu(), one

    def combine(self, coefficients: Weights) -> Vector:
        """Return the sum of the rows, each times its coefficient."""
        return self._sums(sums_of_few, coefficients[None], None)[0]

    def sums(self, coefficients: Float[Tensor, "k m"], out: Matrix | None = None) -> Float[Tensor, "k d"]:
        """Return k sums of the rows, each row times its coefficient, in `out` or a new matrix."""
        few = np.count_nonzero(coefficients.numpy()) <= FEW * len(coefficients)
        return self._sums(sums_of_few if few else product, coefficients, out)

    def _sums(self, way: Sums, coefficients: Float[Tensor, "k m"], out: Matrix | None) -> Float[Tensor, "k d"]:
        """Return `coefficients @ rows`; finite sums prove that the entries of all rows in them are finite."""
        if "_finite" in self.__dict__ or (coefficients.numpy() == 0).all(0).any():
            return way(coefficients, self.matrix, out)
        made = way(coefficients, self.unchecked, out)
        if finite(made):
            self.__dict__["_finite"] = self.base
        elif not finite(self.base):  # a sum may overflow although all entries are finite
            self.refuse()
        return made

    def mixed(self, coefficients: Float[Tensor, "k m"], weights: Float[Tensor, "k"]) -> "Mixture":
        """Return the rows `coefficients @ rows` with new weights, without computing them yet."""
        return Mixture(self, coefficients, weights)

    def shortened(self, radius: float) -> "Shortened":
        """Return the rows, with norms above `radius` scaled down to it."""
        return Shortened(self, radius)


class Mixture(Points):
    """Rows `coefficients @ points.matrix`, which are computed only for rules that need their entries.

    Args:
        points: the rows that are mixed.
        coefficients: (k, m), float64.
        weights: (k,), positive, float64.
    """

    def __init__(self, points: Points, coefficients: Float[Tensor, "k m"], weights: Float[Tensor, "k"]) -> None:
        self.base, self.weights, self.turn, self.previous = points.base, weights, points.turn, points.previous
        self.points, self.coefficients, self.there = points, coefficients, (True,) * len(weights)

    @cached_property
    @override
    def matrix(self) -> Float[Tensor, "k d"]:
        """The rows."""
        return self.write(None)

    @property
    @override
    def unchecked(self) -> Matrix:
        return self.matrix

    @cached_property
    @override
    def unit(self) -> float:
        return unit(self.matrix) if self._geometry is None else self.points.unit

    @override
    def refuse(self) -> NoReturn:
        self.points.refuse()

    @override
    def write(self, out: Float[Tensor, "k d"] | None) -> Float[Tensor, "k d"]:
        """Return the rows, in `out` or a new matrix."""
        if out is not None and out.data_ptr() == self.base.data_ptr():  # the rows are read until the last sum is done
            return out.copy_(self.write(None))
        return self.points.sums(self.coefficients, out)

    @cached_property
    @override
    def products(self) -> Square:
        if self._geometry is None:
            return gram(self.in_units(self.matrix)).cpu()
        squares = self._geometry[-1, :-1]
        return (squares[:, None] + squares - self._geometry[:-1, :-1]) / 2

    @cached_property
    @override
    def squared_distances(self) -> Square:
        if self._geometry is None:
            return squared_distances(self.in_units(self.matrix), self.products.to(self.base.device)).cpu()
        return self._geometry[:-1, :-1]

    @override
    def squared_distances_from(self, row: int) -> Weights:
        return self.squared_distances[row]

    @cached_property
    @override
    def norms(self) -> Weights:
        return norms(self.matrix).cpu() if self._geometry is None else root(self._geometry[-1, :-1]) * self.unit

    @cached_property
    def _geometry(self) -> Float[Tensor, "k1 k1"] | None:
        """Squared distances between the mixed rows and, last, the origin; None if too many digits would be lost.

        For coefficients c and c' that sum to one and squared distances D, |c U - c' U|^2 = -1/2 (c - c') D (c - c').
        For other coefficients, the origin is one more point, whose coefficient makes the sum one.
        """
        m = len(self.points)
        squares = (self.points.norms / self.points.unit).square()
        between = torch.zeros(m + 1, m + 1, dtype=torch.float64)
        between[:m, :m], between[m, :m], between[:m, m] = self.points.squared_distances, squares, squares
        c = torch.cat([self.coefficients, 1 - self.coefficients.sum(1, keepdim=True)], dim=1)
        c = torch.cat([c, torch.eye(m + 1, dtype=torch.float64)[m:]])
        cross = c @ between @ c.T
        own = cross.diagonal()
        distances = cross - (own[:, None] + own) / 2
        terms = cross.abs() + (own.abs()[:, None] + own.abs()) / 2
        equal = (c[:, None] == c).all(2)
        if bool(((distances > (EXACT * terms).clamp(min=LEAST)) | equal).all()):
            return torch.where(equal, 0.0, distances)
        return None

    @override
    def combine(self, coefficients: Weights) -> Vector:
        return self.points.combine(self.traced(coefficients))

    def traced(self, coefficients: Float[Tensor, "k"]) -> Weights:
        """Return the coefficients of `points` that give the same sum as `coefficients` of these rows."""
        return coefficients @ self.coefficients


class Shortened(Mixture):
    """Rows clipped to a norm: a mixture with a diagonal matrix, computed without a matrix product.

    Args:
        points: the rows that are clipped.
        radius: the largest norm, at least 0.
    """

    def __init__(self, points: Points, radius: float) -> None:
        self.base, self.weights, self.turn, self.previous = points.base, points.weights, points.turn, points.previous
        self.points, self.radius, self.there = points, radius, (True,) * len(points)

    @cached_property
    def factors(self) -> Weights:
        """The factor of each row, 1 for rows that are not clipped."""
        return shortening(self.radius, self.points.norms)

    @cached_property
    @override
    def coefficients(self) -> Square:  # type: ignore[override]
        return torch.diag(self.factors)

    @override
    def traced(self, coefficients: Weights) -> Weights:
        return coefficients * self.factors

    @cached_property
    @override
    def matrix(self) -> Matrix:
        """The clipped rows; the rows themselves, not a copy, if none is clipped."""
        return self.points.matrix if bool((self.factors == 1).all()) else self.write(None)

    @override
    def write(self, out: Matrix | None) -> Matrix:
        """Return the rows, in `out` or a new matrix."""
        if self.points.knows_norms:
            return scaled(self.points.matrix, self.factors, out)
        rows = self.points.unchecked
        made = room(rows.shape, rows.dtype, rows.device) if out is None else out
        self.points.learn_norms(shorten(rows, self.radius, made))
        return made

    @cached_property
    @override
    def norms(self) -> Weights:
        return self.points.norms * self.factors


def checked_weights(rows: Matrix, weights: Weights | None) -> Weights:
    """Return the weights of a call in float64, not normalised (counts stay exact), after a check of both arguments.

    Raises:
        ValueError: if `rows` is not a floating-point matrix, or the weights are invalid.
    """
    if not isinstance(rows, Tensor):
        raise ValueError(f"A rule needs a torch tensor with a row per client, got a {type(rows).__name__}.")
    if rows.ndim != 2 or not rows.is_floating_point() or 0 in rows.shape:
        got = f"{rows.dtype} of shape {tuple(rows.shape)}"
        raise ValueError(f"A rule needs a floating-point matrix with a row per client, got {got}.")
    if weights is None:
        return torch.ones(len(rows), dtype=torch.float64)
    w = torch.as_tensor(weights).detach().to("cpu", torch.float64)
    if w.shape != (len(rows),) or bool((w < 0).any()) or not 0 < float(w.sum()) < float("inf"):
        raise ValueError(
            f"Weights must be {len(rows)} finite non-negative numbers, at least one positive, got {w.tolist()}."
        )
    return w
