"""The properties of rules, as `Aggregator` states them."""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from phalanx.aggregators import Aggregator, Mean, PreAggregator
from phalanx.aggregators.aggregator import TooFewRowsError
from phalanx.contracts.breach import Found, Make, Property, drawing, same, written
from phalanx.core import InfeasibleError
from phalanx.rng import generator

SIZES = (7, 8, 11)  # rows
EXCEPTIONS = ("translation", "scaling", "order")  # properties that a rule's docstring may except


def _made(make: Make, m: int, f: int) -> Aggregator:
    """Return the rule; of a pre-aggregator, the mean after it."""
    made = make(m, f)
    rule: Aggregator = made >> Mean() if isinstance(made, PreAggregator) else made
    return rule


@lru_cache(16)
def tolerated(make: Make, m: int) -> int:
    """Return the number of attackers among m rows that a rule tolerates by its theory; 0 if none."""
    return max((f for f in range((m + 1) // 2) if _tolerates(_made(make, m, f), m, f)), default=0)


def _tolerates(rule: Aggregator, m: int, f: int) -> bool:
    """Return whether a rule of m rows says that f attackers leave its result near the honest rows."""
    said = rule.tolerates(m)
    return said.means in ("range", "distance") and said.least <= m and said.allows(Fraction(f, m))


def rows(m: int, d: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return m random rows around (1, ..., 1)."""
    return torch.randn(m, d, generator=generator(100 * m + seed, "rows"), dtype=dtype) + 1


def weights_of(m: int) -> Tensor:
    """Return the weights 1 to m."""
    return torch.arange(1, m + 1, dtype=torch.float64)


@lru_cache(16)
def federations(make: Make) -> tuple[tuple[int, int], ...]:
    """Return numbers of rows and attackers that a rule takes; without any it has no result to be checked.

    Raises:
        TooFewRowsError: all have too few rows.
    """
    every = [(m, f) for m in SIZES for f in sorted({0, tolerated(make, m) // 2, tolerated(make, m)})]
    there = tuple((m, f) for m, f in every if not _too_few(_made(make, m, 0), m))
    if not there:
        _made(make, *every[-1])(rows(SIZES[-1]))
    return there


def _too_few(rule: Aggregator, m: int) -> bool:
    try:
        rule(rows(m))
    except TooFewRowsError:
        return True
    return False


def cases(make: Make) -> Iterator[tuple[Tensor, Aggregator]]:
    """Yield rows, and the rule for a number of attackers that it tolerates."""
    for m, f in federations(make):
        yield rows(m, seed=f), _made(make, m, f)


def near(one: Tensor, other: Tensor, tolerance: float = 1e-6) -> bool:
    """Return whether two results are equal up to rounding."""
    return torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def _translation(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        shift = torch.linspace(-3, 4, U.shape[1], dtype=U.dtype)
        if not near(made(U + shift), made(U) + shift):
            yield "Rows that are moved must move the result as far.", f"Rows {written(U)}, moved by {written(shift)}."


def _scaling(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        for factor in (1e-3, 0.5, 1e4):
            if not near(made(factor * U) / factor, made(U)):
                yield "Rows times a positive factor must give the result times it.", f"Rows {written(U)} x {factor}."


def _order(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        weights, order = weights_of(len(U)), torch.randperm(len(U), generator=generator(1, "order"))
        for given, moved in ((None, None), (weights, weights[order])):
            if not near(made(U[order], moved), made(U, given)):
                yield "The order of clients must not change the result.", f"Rows {written(U)} as {order.tolist()}."


def _repetition(make: Make) -> Iterator[Found]:
    for (U, made), (_, again) in zip(cases(make), cases(make), strict=True):
        weights, drawn = weights_of(len(U)), drawing()
        if not torch.equal(made(U, weights), made(U, weights)) or not torch.equal(made(U), again(U)):
            yield "The same rows must give the same result. Draw from `points.turn`.", f"Rows {written(U)}, twice."
        if not same(drawing(), drawn):
            yield "It must not draw from the global generator. Use `phalanx.rng`.", f"Rows {written(U)}."


def _arguments(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        weights = weights_of(len(U))
        given = U.clone(), weights.clone()
        made(*given)
        if not torch.equal(given[0], U):
            yield "It must not change the rows that it is given.", f"Rows {written(U)} became {written(given[0])}."
        if not torch.equal(given[1], weights):
            yield "It must not change the weights that it is given.", f"They became {written(given[1])}."


def _form(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        for given in (U, U.float()):
            result = made(given)
            if result.shape != given.shape[1:] or result.dtype != given.dtype:
                expected = f"of {given.shape[1]} entries in {given.dtype}"
                yield f"The result must be a vector {expected}.", f"It was {tuple(result.shape)} in {result.dtype}."
            if not bool(result.isfinite().all()):
                yield "Finite rows must give a finite result.", f"Rows {written(U)} gave {written(result)}."


def _ratios(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        weights, equal = weights_of(len(U)), torch.full((len(U),), 3.7, dtype=torch.float64)
        if not near(made(U, 0.1 * weights), made(U, weights)):
            yield "Only ratios of weights may matter.", f"Rows {written(U)}, weights {written(weights)}, and x 0.1."
        if not near(made(U, equal), made(U)):
            yield "Equal weights must give what no weights give.", f"Rows {written(U)}, each with weight 3.7."


def _weights(make: Make) -> Iterator[Found]:
    for U, made in itertools.islice(cases(make), 1):
        many = (torch.rand(len(U), generator=generator(k, "weights"), dtype=torch.float64) ** 4 for k in range(40))
        if all(near(made(U, weights), made(U)) for weights in many):
            yield "Weights must count. It ignores them: see `points.weights`.", f"Rows {written(U)}, any weights."


def _absence(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        more, weights = torch.cat([U[:2], torch.full_like(U[:1], 1e30), U[2:]]), torch.ones(len(U) + 1).double()
        weights[2] = 0
        if not near(made(more, weights), made(U)):
            yield "A row without weight must not count.", f"Rows {written(U)}, and a third of 1e30 with weight 0."


def _shares(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        for weights in (None, weights_of(len(U))):
            vector, choice = made.explained(U, weights)
            if not torch.equal(vector, made(U, weights)):
                yield "`explained` must give the result of a call.", f"Rows {written(U)}."
            if choice is not None and not near(choice.shares @ U, vector):
                yield "The shares of `choose` must give the result.", f"Rows {written(U)}, {written(choice.shares)}."


def _few_rows(make: Make) -> Iterator[Found]:
    made = _made(make, 11, tolerated(make, 11))
    for m in range(1, 12):
        try:
            made(rows(m))
        except InfeasibleError:
            pass
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            yield "With too few rows it must raise `TooFewRowsError`.", f"{m} rows raised {said}."


def _attackers(make: Make) -> Iterator[Found]:
    most = dict(federations(make)).items()  # the last of each number of rows
    for (m, f), far, dtype in itertools.product(most, (1e12, -1e12), (torch.float32, torch.float64)):
        U = rows(m, seed=9, dtype=dtype)
        made = _made(make, m, f)
        for byzantine in itertools.islice(itertools.combinations(range(m), f), 0, None, 31):
            attacked = U.clone()
            attacked[list(byzantine)] = far
            honest = U[[i for i in range(m) if i not in byzantine]]
            error = torch.linalg.vector_norm(made(attacked) - honest.mean(0))
            spread = torch.linalg.vector_norm(honest - honest.mean(0), dim=1).max()
            if not error <= 3 * spread:
                wrong = f"Rows {list(byzantine)} of {written(U)} at {far:g} moved it by {float(error):.3g}."
                yield f"It claims to tolerate {f} of {m} attackers.", wrong


PROPERTIES: dict[str, Property] = {
    "repetition": _repetition,
    "arguments": _arguments,
    "form": _form,
    "order": _order,
    "translation": _translation,
    "scaling": _scaling,
    "ratios": _ratios,
    "weights": _weights,
    "absence": _absence,
    "shares": _shares,
    "few rows": _few_rows,
    "attackers": _attackers,
}
