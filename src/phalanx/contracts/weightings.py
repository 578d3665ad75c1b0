"""The properties of weightings, as `Preprocess` states them."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction

from phalanx.contracts.breach import TRIED, Found, Make, Property, drawing, same, value
from phalanx.errors import InfeasibleError
from phalanx.rng import numpy_generator
from phalanx.weighting import Preprocess

HUGE = 10**9  # a size that an attacker reports
SLACK = Fraction(1, 10**9)  # of a share of the weight, for the rounding of floating-point weights
SIZES: tuple[dict[int, int], ...] = (
    *(dict(enumerate(numpy_generator(n, "sizes").zipf(1.7, n).clip(1, 10**6).tolist())) for n in (5, 8, 12)),
    {0: 1},
    {3: 7, 5: 7, 9: 7},
    {0: 1, 1: 2, 2: HUGE},
)


def _made(make: Make) -> Preprocess:
    weighting: Preprocess = make(8, 1)
    return weighting


def _weights(weighting: Preprocess, sizes: Mapping[int, int]) -> dict[int, float] | None:
    """Return the weights of all clients in a step; None if these sizes have none."""
    try:
        return weighting.among(weighting.enrolled(dict(sizes)), [*sizes])
    except InfeasibleError:
        return None


def _feasible(make: Make) -> list[dict[int, int]]:
    """Return the sizes that have weights."""
    return [sizes for sizes in SIZES if _weights(_made(make), sizes) is not None]


def _form(make: Make) -> Iterator[Found]:
    weighting = _made(make)
    there = _feasible(make)
    if not there:
        yield "Some sizes must have weights.", f"It raised `InfeasibleError` for {SIZES[0]} and all others."
    made = [(sizes, weighting(dict(sizes))) for sizes in there] + [
        (sizes, _weights(weighting, sizes) or {}) for sizes in there
    ]
    for sizes, weights in made:
        if weights.keys() != sizes.keys():
            yield "Every client must have a weight, and no other.", f"Of {sizes} it made {weights}."
        if not all(0 <= weight < math.inf for weight in weights.values()) or not any(weights.values()):
            yield "Weights must be finite and at least 0, one above 0.", f"Of {sizes} it made {weights}."
        yield TRIED


def _repetition(make: Make) -> Iterator[Found]:
    for sizes in _feasible(make):
        drawn = drawing()
        if not same(_weights(_made(make), sizes), _weights(_made(make), sizes)):
            yield "The same sizes must give the same weights.", f"{sizes}, twice."
        if not same(drawing(), drawn):
            yield "It must not draw from a global generator.", "The global generator has moved."
        yield TRIED


def _arguments(make: Make) -> Iterator[Found]:
    for sizes in SIZES:
        given = dict(sizes)
        with suppress(InfeasibleError):
            _made(make).enrolled(given)
        if given != sizes:
            yield "It must not change the sizes that it is given.", f"{sizes} became {given}."
        yield TRIED


def _names(make: Make) -> Iterator[Found]:
    """Clients in another order, and with other names, get the weights of their sizes."""
    for sizes in _feasible(make):
        moved = dict(reversed(sizes.items()))
        named = {client + 100: size for client, size in sizes.items()}
        before, order, names = (_weights(_made(make), given) for given in (sizes, moved, named))
        if not _near(before, order):
            yield "The order of clients must not change their weights.", f"{sizes}, reversed."
        if before is not None and not _near({client + 100: weight for client, weight in before.items()}, names):
            yield "The names of clients must not change their weights.", f"{sizes}, each name plus 100."
        yield TRIED


def _near(one: Mapping[int, float] | None, other: Mapping[int, float] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(math.isclose(one[client], other[client]) for client in one)


def _share(make: Make) -> Iterator[Found]:
    """No f of q clients hold more of the weight than `held` says, whatever these f report."""
    for sizes, f in itertools.product(SIZES, (0, 1, 2)):
        weighting, n = _made(make), len(sizes)
        for q, (attackers, reported) in itertools.product(range(f + 1, n + 1), _attacked(sizes, min(f, n))):
            share = _worst(weighting, reported, attackers, q)
            if share is None:
                continue
            for known in (None, reported):
                said = weighting.held(known, f, q, n)
                case = f"f = {f}, q = {q}, the sizes {'any' if known is None else reported}"
                if not 0 <= said <= 1:
                    yield "`held` must return a share in [0, 1].", f"It returned {said} for {case}."
                if share > said + SLACK:
                    yield "`held` must bound the attackers' weight.", f"Of {case}: {said}, and {float(share):.3g}."
            yield TRIED


def _attacked(sizes: Mapping[int, int], f: int) -> Iterator[tuple[Sequence[int], dict[int, int]]]:
    """Yield f attackers, the largest and the smallest clients, and the sizes that all report."""
    order = sorted(sizes, key=lambda client: sizes[client])
    for attackers in (order[:f], order[len(order) - f :]):
        yield attackers, dict(sizes)
        yield attackers, {**sizes, **dict.fromkeys(attackers, HUGE)}


def _worst(weighting: Preprocess, sizes: Mapping[int, int], attackers: Sequence[int], q: int) -> Fraction | None:
    """Return the attackers' share of the weight among themselves and the q - f smallest others; None for no weights."""
    others = sorted(sizes.keys() - {*attackers}, key=lambda client: sizes[client])[: q - len(attackers)]
    try:
        weights = weighting.among(weighting.enrolled(dict(sizes)), sorted([*attackers, *others]))
    except InfeasibleError:
        return None
    exact = {client: Fraction(weight) for client, weight in weights.items()}
    total = sum(exact.values(), Fraction(0))
    return sum((exact[client] for client in attackers), Fraction(0)) / total if total else Fraction(0)


PROPERTIES: dict[str, Property] = {
    "value": value,
    "form": _form,
    "repetition": _repetition,
    "arguments": _arguments,
    "names": _names,
    "share": _share,
}
