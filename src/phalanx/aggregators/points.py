"""What a rule sees: the updates of a round as weighted points, and their geometry, computed once for all who ask.

Krum, Bulyan, geometric median, nearest-neighbour mixing and others need distances only.  They share one product of the
matrix with itself, and work on the `(m, m)` matrix of distances from there on; the matrix is read once more, for the
weighted sum that is the result.  A pre-aggregator that averages or shortens rows changes coefficients only: the
distances between mixed rows follow from those between the rows.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.core import Matrix, Vector, Weights
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
)
from phalanx.numerics.memory import room

Sums = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # coefficients @ rows, written to a matrix
NEARBY = 20.0  # norms up to so many times the distance from a new origin leave it enough digits
FEW = 4  # rows in a sum up to which they are added one by one
EXACT = 1e-9  # share of its terms below which a difference of mixed distances is not trusted


class Points:
    """Weighted rows.

    Args:
        rows: (m, d), finite; not copied, and not to be changed.
        weights: (m,), positive, float64.
        turn: number of the call, for rules that draw: the same turn draws the same.
        previous: what the rule returned last time, for rules that start from there.
        there: for each row of the call whether it is among these; all of them if not given.
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
        """Checked rows and weights, rows without weight left out.

        Whether entries are finite is looked at by whatever reads them first.

        Raises:
            ValueError: not a matrix of floating-point numbers, or not as many sensible weights.
        """
        w = checked_weights(rows, weights)
        rows = rows.detach()  # a rule is no part of anybody's graph
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
        """The rows, for a rule that looks by itself whether all entries are finite."""
        return self.base

    @cached_property
    def _finite(self) -> Matrix:
        """The rows, after a look at whether all entries are finite; what reads all entries anyway looks by itself."""
        if not finite(self.base):
            self.refuse()
        return self.base

    def refuse(self) -> NoReturn:
        """Says which rows are not finite.

        Raises:
            ValueError: always.
        """
        there = [row for row, is_there in enumerate(self.there) if is_there]
        bad = [there[k] for k, row in enumerate(self.base) if not torch.isfinite(row).all()]
        if not bad:
            raise ValueError("Entries are so large that sums or squares of them overflow. Scale the rows first.")
        raise ValueError(
            f"Rows {bad} hold NaN or infinite values. Refuse such updates first, as phalanx.engine.guard.Guard does."
        )

    def _taken_as_finite_if(self, evidence: Tensor) -> None:
        """Spares the look if figures in which every entry has a part are finite."""
        if bool(torch.isfinite(evidence).all()):
            self.__dict__["_finite"] = self.base
        else:
            self.refuse()

    def write(self, out: Matrix | None) -> Matrix:
        """The rows, written to `out`, or where they are."""
        return self.matrix if out is None else out.copy_(self.matrix)

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def mass(self) -> float:
        """The total weight."""
        return float(self.weights.sum())

    @property
    def share(self) -> Weights:
        """Each row's part of the weight, summing to one."""
        return self.weights / self.weights.sum()

    @cached_property
    def products(self) -> Square:
        """Inner products, float64, on the CPU."""
        products = gram(self.base).cpu()
        self._taken_as_finite_if(products.diagonal())
        return products

    @cached_property
    def squared_distances(self) -> Square:
        """Squared distances between rows, float64, on the CPU."""
        return squared_distances(self.base, self.products.to(self.base.device)).cpu()

    def squared_distances_from(self, row: int) -> Weights:
        """Squared distances from one row, float64, on the CPU: in one pass, if the others are not known already."""
        if "squared_distances" in self.__dict__:
            return self.squared_distances[row]
        squares = squared_distances_to(self.base, self.base[row]).cpu()
        self._taken_as_finite_if(squares)
        return squares

    @cached_property
    def norms(self) -> Weights:
        """Distances of the rows from the origin, float64, on the CPU."""
        if "products" in self.__dict__:
            return root(self.products.diagonal())
        lengths = norms(self.base)
        self._taken_as_finite_if(lengths)
        return lengths.cpu()

    @property
    def knows_norms(self) -> bool:
        """Whether `norms` cost nothing any more."""
        return not {"norms", "products"}.isdisjoint(self.__dict__)

    def learn_norms(self, lengths: Weights) -> None:
        """Takes over `norms` from somebody who has read the rows, and looks whether all entries are finite."""
        self._taken_as_finite_if(lengths)
        self.__dict__["norms"] = lengths.cpu()

    @cached_property
    def cosines(self) -> Square:
        """Cosines between rows, as `linalg.cosine_similarity` defines them."""
        return cosines_of(self.products)

    @cached_property
    def medoid(self) -> int:
        """The row that has half of the weight nearest to it: in the midst of the honest, if they are the majority."""
        far, weights = self.squared_distances.numpy(), self.weights.numpy()
        order = far.argsort(axis=1, kind="stable")
        half = (weights[order].cumsum(axis=1) < self.mass / 2).sum(axis=1, keepdims=True).clip(max=len(self) - 1)
        return int(np.take_along_axis(far, np.take_along_axis(order, half, axis=1), axis=1).argmin())

    @cached_property
    def centred_products(self) -> Square:
        """Inner products of the rows minus the medoid, float64, on the CPU."""
        p, products = self.medoid, self.products
        lengths, radii = self.norms, root(self.squared_distances[self.medoid])
        if bool((((lengths + lengths[p]) < NEARBY * radii) | (radii == 0)).all()):
            centred = products - products[p] - products[:, p : p + 1] + products[p, p]
            return torch.where((radii == 0) | (radii[:, None] == 0), 0.0, centred)
        return gram(self.matrix, origin=self.matrix[p]).cpu()

    def products_about(self, centre: Vector) -> Square:
        """Inner products of the rows minus `centre`, float64, on the CPU."""
        return gram(self.matrix, origin=centre.to(self.matrix)).cpu()

    def combine(self, coefficients: Weights) -> Vector:
        """The sum of the rows, each times its coefficient."""
        return self._sums(sums_of_few, coefficients[None], None)[0]

    def sums(self, coefficients: Float[Tensor, "k m"], out: Matrix | None = None) -> Float[Tensor, "k d"]:
        """Several sums of the rows, each times its coefficient, written to `out`, or to a new matrix."""
        few = np.count_nonzero(coefficients.numpy()) <= FEW * len(coefficients)
        return self._sums(sums_of_few if few else product, coefficients, out)

    def _sums(self, way: Sums, coefficients: Float[Tensor, "k m"], out: Matrix | None) -> Float[Tensor, "k d"]:
        """`coefficients @ rows`; where every row has a part in them, the sums show whether all entries are finite."""
        if "_finite" in self.__dict__ or (coefficients.numpy() == 0).all(0).any():
            return way(coefficients, self.matrix, out)
        made = way(coefficients, self.unchecked, out)
        if finite(made):
            self.__dict__["_finite"] = self.base
        elif not finite(self.base):  # a sum can overflow where no entry does
            self.refuse()
        return made

    def mixed(self, coefficients: Float[Tensor, "k m"], weights: Float[Tensor, "k"]) -> "Mixture":
        """New rows that are sums of these, each times a coefficient, with weights of their own."""
        return Mixture(self, coefficients, weights)

    def shortened(self, radius: float) -> "Shortened":
        """The rows, none of them longer than `radius`."""
        return Shortened(self, radius)


class Mixture(Points):
    """Rows `coefficients @ points.matrix`, that are written down only for those rules that need their entries.

    Args:
        points: what is mixed.
        coefficients: (k, m), float64.
        weights: (k,), positive, float64.
    """

    def __init__(self, points: Points, coefficients: Float[Tensor, "k m"], weights: Float[Tensor, "k"]) -> None:
        self.base, self.weights, self.turn, self.previous = points.base, weights, points.turn, points.previous
        self.points, self.coefficients, self.there = points, coefficients, (True,) * len(weights)

    @cached_property
    def matrix(self) -> Float[Tensor, "k d"]:
        """The rows."""
        return self.write(None)

    @property
    def unchecked(self) -> Matrix:
        """See `Points`."""
        return self.matrix

    def refuse(self) -> NoReturn:
        """See `Points`."""
        self.points.refuse()

    def write(self, out: Float[Tensor, "k d"] | None) -> Float[Tensor, "k d"]:
        """The rows, written to `out`, or to a new matrix."""
        if out is not None and out.data_ptr() == self.base.data_ptr():  # sums of rows that are still needed
            return out.copy_(self.write(None))
        return self.points.sums(self.coefficients, out)

    @cached_property
    def products(self) -> Square:
        """See `Points`."""
        if self._geometry is None:
            return gram(self.matrix).cpu()
        squares = self._geometry[-1, :-1]
        return (squares[:, None] + squares - self._geometry[:-1, :-1]) / 2

    @cached_property
    def squared_distances(self) -> Square:
        """See `Points`."""
        if self._geometry is None:
            return squared_distances(self.matrix, self.products.to(self.base.device)).cpu()
        return self._geometry[:-1, :-1]

    def squared_distances_from(self, row: int) -> Weights:
        """See `Points`."""
        return self.squared_distances[row]

    @cached_property
    def norms(self) -> Weights:
        """See `Points`."""
        return norms(self.matrix).cpu() if self._geometry is None else root(self._geometry[-1, :-1])

    @cached_property
    def _geometry(self) -> Float[Tensor, "k1 k1"] | None:
        """Squared distances between the mixed rows and, last, the origin; None where they cannot be had exactly.

        For coefficients c and c' that sum to one and distances D, |c U - c' U|^2 = -1/2 (c - c') D (c - c').  The
        origin is one more point, and takes what is missing to one.
        """
        m = len(self.points)
        squares = self.points.norms.square()
        between = torch.zeros(m + 1, m + 1, dtype=torch.float64)
        between[:m, :m], between[m, :m], between[:m, m] = self.points.squared_distances, squares, squares
        c = torch.cat([self.coefficients, 1 - self.coefficients.sum(1, keepdim=True)], dim=1)
        c = torch.cat([c, torch.eye(m + 1, dtype=torch.float64)[m:]])
        cross = c @ between @ c.T
        own = cross.diagonal()
        distances = cross - (own[:, None] + own) / 2
        terms = cross.abs() + (own.abs()[:, None] + own.abs()) / 2
        equal = (c[:, None] == c).all(2)
        if bool(((distances > EXACT * terms) | equal).all()):
            return torch.where(equal, 0.0, distances)
        return None

    def combine(self, coefficients: Weights) -> Vector:
        """See `Points`."""
        return self.points.combine(self.traced(coefficients))

    def traced(self, coefficients: Float[Tensor, "k"]) -> Weights:
        """The sum of these rows, each times its coefficient, as a sum of those that are mixed: their coefficients."""
        return coefficients @ self.coefficients


class Shortened(Mixture):
    """Rows that are shortened to a norm: a mixture with a diagonal matrix, written down without a product.

    Args:
        points: what is shortened.
        radius: at least 0.
    """

    def __init__(self, points: Points, radius: float) -> None:
        self.base, self.weights, self.turn, self.previous = points.base, points.weights, points.turn, points.previous
        self.points, self.radius, self.there = points, radius, (True,) * len(points)

    @cached_property
    def factors(self) -> Weights:
        """What each row is multiplied with."""
        return shortening(self.radius, self.points.norms)

    @cached_property
    def coefficients(self) -> Square:  # type: ignore[override]
        """See `Mixture`."""
        return torch.diag(self.factors)

    def traced(self, coefficients: Weights) -> Weights:
        """See `Mixture`."""
        return coefficients * self.factors

    @cached_property
    def matrix(self) -> Matrix:
        """The rows; where they are, if none is shortened."""
        return self.points.matrix if bool((self.factors == 1).all()) else self.write(None)

    def write(self, out: Matrix | None) -> Matrix:
        """The rows, written to `out`, or to a new matrix."""
        if self.points.knows_norms:
            return scaled(self.points.matrix, self.factors, out)
        rows = self.points.unchecked
        made = room(rows.shape, rows.dtype, rows.device) if out is None else out
        self.points.learn_norms(shorten(rows, self.radius, made))
        return made

    @cached_property
    def norms(self) -> Weights:
        """See `Points`."""
        return self.points.norms * self.factors


def checked_weights(rows: Matrix, weights: Weights | None) -> Weights:
    """The weights of a rule's call in float64, as they were given (counts stay counts), after a look at both arguments.

    Raises:
        ValueError: not a matrix of floating-point numbers, or not as many sensible weights.
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
