"""Searches for the strength with which an attack does the most damage under the server's rule.

The damage is no smooth function of the strength: a rule that chooses rows drops the attackers beyond some strength, and
takes them up again elsewhere.  `line_search` climbs one slope; `grid_search` looks everywhere, and then closer.
"""

from collections.abc import Callable, Sequence

import torch

from phalanx.attacks.attack import Knowledge
from phalanx.core import InfeasibleError, Vector

GRID = (  # strengths at which a search looks first, besides 0: exponents of 2, the closest where attacks usually end
    *(k / 2 for k in range(-16, -6)),
    *(k / 8 for k in range(-24, 40)),
    *(k / 2 for k in range(10, 31)),
)
PEAKS, LEVELS, INNER = 5, 4, 8  # of the grid: peaks that are refined, how often, and with how many points


def damage(knowledge: Knowledge, forged: Vector, *, carried: bool = False) -> float:
    """Return the distance of the server's aggregate from the honest mean if every attacker sends `forged`.

    It is 0 if the rule has no result, since the round is then lost.

    Args:
        knowledge: the honest updates and the rule.
        forged: (d,), the update.
        carried: see `Knowledge.outcome`.

    Raises:
        InfeasibleError: the rule is not known.
    """
    try:
        outcome = knowledge.outcome(forged, carried=carried)
    except InfeasibleError:
        if knowledge.rule is None:
            raise
        return 0.0
    return float(torch.linalg.vector_norm(outcome - knowledge.honest.mean(0)))


def line_search(objective: Callable[[float], float], evaluations: int = 16) -> float:
    """Return a factor in [0, 2^15) that makes `objective` large: doubled while that helps, then refined by half steps.

    The result is the best factor tried, the first one at a tie; it is close to the optimum if `objective` has a single
    peak. Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity", 2023, strengthen
    their attacks in this way.

    Args:
        objective: returns the value of a factor.
        evaluations: number of calls of `objective`, at least 2.
    """
    best, top, step = 0.0, objective(0.0), 1.0
    left, growing = evaluations - 1, True
    while left > 0:
        # Once doubling has failed, both sides of the best factor are tried with half the step.
        rivals = (best + step,) if growing or step > best else (best + step, best - step)
        tried = [(objective(x), x) for x in rivals[:left]]
        left -= len(tried)
        value, x = max(tried)
        better = value > top
        if better:
            top, best = value, x
        growing = growing and better
        step = 2 * step if growing else step / 2
    return best


def grid_search(objective: Callable[[float], float], *, both_signs: bool = True) -> float:
    """Return a factor in [-2^15, 2^15] that makes `objective` large: the best of a grid, and of closer ones at peaks.

    The grid has 0 and, of each sign, 95 factors from 2^-8 on, 8 for each doubling between 1/8 and 32.  Each of its five
    highest peaks is refined four times between its neighbours.  The result is the best factor tried, the smallest one
    at a tie.

    Args:
        objective: returns the value of a factor; called about 350 times, or 250 times for one sign.
        both_signs: whether negative factors are tried.
    """
    positive = [2.0**exponent for exponent in GRID]
    xs = [*(-x for x in reversed(positive)), 0.0, *positive] if both_signs else [0.0, *positive]
    tried = {x: objective(x) for x in xs}
    for peak in _peaks([tried[x] for x in xs])[:PEAKS]:
        low, high = xs[max(peak - 1, 0)], xs[min(peak + 1, len(xs) - 1)]
        for _ in range(LEVELS):
            step = (high - low) / (INNER + 1)
            inner = [low, *(low + step * k for k in range(1, INNER + 1)), high]
            tried |= {x: objective(x) for x in inner if x not in tried}
            best = max(range(len(inner)), key=lambda k, at=inner: tried[at[k]])  # type: ignore[misc]
            low, high = inner[max(best - 1, 0)], inner[min(best + 1, INNER + 1)]
    top = max(tried.values())
    best_factor: float = min((x for x, value in tried.items() if value == top), key=abs)
    return best_factor


def _peaks(values: Sequence[float]) -> list[int]:
    """Return the places of values that are no lower than their neighbours, the highest first."""
    last = len(values) - 1
    places = [k for k, y in enumerate(values) if y >= max(values[max(k - 1, 0)], values[min(k + 1, last)])]
    return sorted(places, key=lambda k: -values[k])
