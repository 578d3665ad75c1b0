"""The properties of rules, as `Aggregator` states them."""

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

from phalanx.aggregators import Aggregator, Mean, Median, PreAggregator
from phalanx.aggregators.aggregator import TooFewRowsError
from phalanx.contracts.breach import TRIED, Found, Make, Property, UntriedError, drawing, same, value, written
from phalanx.core import InfeasibleError, Tolerance
from phalanx.rng import generator

SIZES = (7, 8, 11)  # rows
BOUNDS = ("range", "distance", "length")  # what is bounded by what `tolerates` can say of a result
LEAST, MOST = 3.0, 1e12  # size of lies
GOLDEN = (5**0.5 - 1) / 2  # multiples of which, but for whole parts, fill an interval evenly
MEAN = Mean()
ROUNDING = 1e-5  # of results, whose entries are near one
NEAR = 3.0  # honest spreads, of a distance that is bounded
SIGNS: tuple[Callable[[int, int], Tensor], ...] = (  # of the entries of some attackers
    lambda f, d: torch.ones((f, d)),
    lambda f, d: -torch.ones(f, d),
    lambda f, d: (1.0 - 2 * (torch.arange(d) % 2)).expand(f, d),  # by turns in entries
    lambda f, d: (1.0 - 2 * (torch.arange(f) % 2))[:, None].expand(f, d),  # and in attackers
)
LIES = (*itertools.product(SIGNS, (torch.float32, torch.float64)),)
EXCEPTIONS = ("translation", "scaling", "order")  # properties that a rule's docstring may except


def _made(make: Make, m: int, f: int, then: Aggregator = MEAN) -> Aggregator:
    """Return the rule; of a pre-aggregator, another one after it."""
    made = make(m, f)
    rule: Aggregator = made >> then if isinstance(made, PreAggregator) else made
    return rule


@lru_cache(16)
def tolerated(make: Make, m: int) -> int:
    """Return the number of attackers among m rows that a rule, or the median after, tolerates by its theory."""
    return max((f for f in range((m + 1) // 2) if _tolerates(_made(make, m, f, Median()), m, f)), default=0)


def tolerates_some(make: Make) -> bool:
    """Return whether a rule tolerates an attacker by its theory; so, too, if that cannot be asked of it."""
    try:
        return any(tolerated(make, m) for m in SIZES)
    except Exception:  # of code that is being checked: the property that meets it names it
        return True


def _tolerates(rule: Aggregator, m: int, f: int) -> bool:
    """Return whether a rule of m rows says that f attackers leave its result near the honest rows, or as short."""
    said = rule.tolerates(m)
    return said.means in BOUNDS and said.least <= m and said.allows(Fraction(f, m))


def rows(m: int, d: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return m random rows around (1, ..., 1)."""
    return torch.randn(m, d, generator=generator(100 * m + seed, "rows"), dtype=dtype) + 1


def weights_of(m: int) -> Tensor:
    """Return the weights 1 to m."""
    return torch.arange(1, m + 1, dtype=torch.float64)


@lru_cache(16)
def federations(make: Make) -> tuple[tuple[int, int], ...]:
    """Return numbers of rows and attackers that a rule takes; without any it has no result to be checked.

    A rule that says to tolerate none is made for one, too: for none, many rules are the mean.

    Raises:
        TooFewRowsError: all have too few rows.
    """
    every = [(m, f) for m in SIZES for f in sorted({0, tolerated(make, m) // 2, tolerated(make, m) or 1})]
    there = tuple((m, f) for m, f in every if not _too_few(_made(make, m, f), m))
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
    """Yield rows, and the rule for a number of attackers that it tolerates.

    Raises:
        UntriedError: it gives what is not finite, with which nothing can be compared.
    """
    for m, f in federations(make):
        U, made = rows(m, seed=f), _made(make, m, f)
        if not bool(made(U.clone()).isfinite().all()):
            raise UntriedError("it gives NaN or infinity for finite rows")
        yield U, made


def near(one: Tensor, other: Tensor, tolerance: float = 1e-6) -> bool:
    """Return whether two results are equal up to rounding."""
    return torch.allclose(one.double(), other.double(), rtol=tolerance, atol=tolerance)


def _translation(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        shift = torch.linspace(-3, 4, U.shape[1], dtype=U.dtype)
        if not near(made(U + shift), made(U) + shift):
            yield "Rows that are moved must move the result as far.", f"Rows {written(U)}, moved by {written(shift)}."
        yield TRIED


def _scaling(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        for factor in (1e-3, 0.5, 1e4):
            if not near(made(factor * U) / factor, made(U)):
                yield "Rows times a positive factor must give the result times it.", f"Rows {written(U)} x {factor}."
        yield TRIED


def _order(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        weights, order = weights_of(len(U)), torch.randperm(len(U), generator=generator(1, "order"))
        for given, moved in ((None, None), (weights, weights[order])):
            if not near(made(U[order], moved), made(U, given)):
                yield "The order of clients must not change the result.", f"Rows {written(U)} as {order.tolist()}."
        yield TRIED


def _repetition(make: Make) -> Iterator[Found]:
    for (U, made), (_, again) in zip(cases(make), cases(make), strict=True):
        weights, drawn = weights_of(len(U)), drawing()
        if not torch.equal(made(U, weights), made(U, weights)) or not torch.equal(made(U), again(U)):
            yield "The same rows must give the same result. Draw from `points.turn`.", f"Rows {written(U)}, twice."
        if not same(drawing(), drawn):
            yield "It must not draw from the global generator. Use `phalanx.rng`.", f"Rows {written(U)}."
        yield TRIED


def _arguments(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        weights = weights_of(len(U))
        given = U.clone(), weights.clone()
        made(*given)
        if not torch.equal(given[0], U):
            yield "It must not change the rows that it is given.", f"Rows {written(U)} became {written(given[0])}."
        if not torch.equal(given[1], weights):
            yield "It must not change the weights that it is given.", f"They became {written(given[1])}."
        yield TRIED


def _form(make: Make) -> Iterator[Found]:
    for m, f in federations(make):
        U, made = rows(m, seed=f), _made(make, m, f)
        for given in (U, U.float()):
            result = made(given)
            if result.shape != given.shape[1:] or result.dtype != given.dtype:
                expected = f"of {given.shape[1]} entries in {given.dtype}"
                yield f"The result must be a vector {expected}.", f"It was {tuple(result.shape)} in {result.dtype}."
            if not bool(result.isfinite().all()):
                yield "Finite rows must give a finite result.", f"Rows {written(U)} gave {written(result)}."
        yield TRIED


def _ratios(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        weights, equal = weights_of(len(U)), torch.full((len(U),), 3.7, dtype=torch.float64)
        if not near(made(U, 0.1 * weights), made(U, weights)):
            yield "Only ratios of weights may matter.", f"Rows {written(U)}, weights {written(weights)}, and x 0.1."
        if not near(made(U, equal), made(U)):
            yield "Equal weights must give what no weights give.", f"Rows {written(U)}, each with weight 3.7."
        yield TRIED


def _weights(make: Make) -> Iterator[Found]:
    for U, made in itertools.islice(cases(make), 1):
        many = (torch.rand(len(U), generator=generator(k, "weights"), dtype=torch.float64) ** 4 for k in range(40))
        if all(near(made(U, weights), made(U)) for weights in many):
            yield "Weights must count. It ignores them: see `points.weights`.", f"Rows {written(U)}, any weights."
        yield TRIED


def _absence(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        more, weights = torch.cat([U[:2], torch.full_like(U[:1], 1e30), U[2:]]), torch.ones(len(U) + 1).double()
        weights[2] = 0
        if not near(made(more, weights), made(U)):
            yield "A row without weight must not count.", f"Rows {written(U)}, and a third of 1e30 with weight 0."
        yield TRIED


def _shares(make: Make) -> Iterator[Found]:
    for U, made in cases(make):
        for weights in (None, weights_of(len(U))):
            vector, choice = made.explained(U, weights)
            if not torch.equal(vector, made(U, weights)):
                yield "`explained` must give the result of a call.", f"Rows {written(U)}."
            if choice is not None and not near(choice.shares @ U, vector):
                yield "The shares of `choose` must give the result.", f"Rows {written(U)}, {written(choice.shares)}."
        yield TRIED


def _few_rows(make: Make) -> Iterator[Found]:
    made, worked = _made(make, 11, tolerated(make, 11)), False
    for m in range(1, 12):
        try:
            result = made(rows(m))
        except InfeasibleError:
            continue
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            yield "With too few rows it must raise `TooFewRowsError`.", f"{m} rows raised {said}."
        else:
            if not bool(result.isfinite().all()):
                yield "With too few rows it must raise `TooFewRowsError`.", f"{m} rows gave {written(result)}."
            worked = True
            yield TRIED
    if not worked:
        raise UntriedError("it has no result for 1 to 11 rows")


def _attackers(make: Make) -> Iterator[Found]:
    """Whoever the attackers are, whatever they send, and however their share of the weight is divided among them."""
    most = {m: f for m in dict(federations(make)) if (f := tolerated(make, m))}
    if not most:
        raise UntriedError("its `tolerates` bounds no range, distance or length")
    lies = itertools.count()
    for m, f in most.items():
        made = _made(make, m, f, Median())
        said = made.tolerates(m)
        every = (zip(cases, itertools.cycle(LIES), strict=False) for cases in _held(said, m, f))
        for ((liars, weights), (signs, dtype)), lie in zip(itertools.chain(*every), lies, strict=False):
            magnitude = LEAST * (MOST / LEAST) ** (lie * GOLDEN % 1)
            U = rows(m, seed=9, dtype=dtype)
            attacked = U.clone()
            attacked[liars] = magnitude * signs(len(liars), U.shape[1]).to(dtype)
            if not _bounded(said.means, made(attacked, weights), U, liars, weights):
                who = f"Rows {liars}" if weights is None else f"Weights {written(weights)}, and rows {liars}"
                yield f"It claims to tolerate {f} of {m} attackers.", f"{who} of {written(U)} at {magnitude:g}."
            yield TRIED


Held = tuple[list[int], Tensor | None]  # attackers, and the weights of all


def _held(said: Tolerance, m: int, f: int) -> Iterator[Iterator[Held]]:
    """Yield ways to hold what is tolerated, each with cases for every lie: f alike, f unlike, one heavy, many light."""
    draw = generator(m, "attackers")
    sets = max(m, len(LIES))
    yield (([(first + k) % m for k in range(f)], None) for first in range(sets))
    yield ((torch.randperm(m, generator=draw)[:f].tolist(), None) for _ in range(2 * m))
    if not said.equal:
        held = float(said.share) * (1 - 1e-3 * said.strict) if said.means == "range" else f / m
        yield from (_unlike(held, m, many, sets, draw) for many in (f, f, 1, m // 2 + 1))


def _unlike(held: float, m: int, many: int, sets: int, draw: torch.Generator) -> Iterator[Held]:
    """Yield sets of attackers, with random weights of which they hold a share."""
    for first in range(sets):
        liars = [(first + k) % m for k in range(many)]
        weights = 0.1 + torch.rand(m, generator=draw, dtype=torch.float64)
        honest = torch.ones(m, dtype=torch.bool).index_fill(0, torch.tensor(liars), value=False)
        weights[~honest] *= held / (1 - held) * weights[honest].sum() / weights[~honest].sum()
        yield liars, weights


def _bounded(means: str, result: Tensor, U: Tensor, liars: list[int], weights: Tensor | None) -> bool:
    """Return whether a result is what a rule promises of it, whatever the attackers have sent."""
    kept = [i for i in range(len(U)) if i not in liars]
    honest, result = U[kept].double(), result.double()
    if means == "range":
        return bool(((honest.amin(0) - ROUNDING <= result) & (result <= honest.amax(0) + ROUNDING)).all())
    if means == "length":
        return bool(result.norm() <= honest.norm(dim=1).max() + ROUNDING)
    w = torch.ones(len(kept), dtype=torch.float64) if weights is None else weights[kept]
    centre = w @ honest / w.sum()
    return bool((result - centre).norm() <= NEAR * (honest - centre).norm(dim=1).max())


PROPERTIES: dict[str, Property] = {
    "value": value,
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
