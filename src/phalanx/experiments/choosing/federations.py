"""The federations in which compositions were measured, one for each number of clients."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from phalanx.data import Dirichlet, SwappedLabels, Uniform
from phalanx.experiments.leaderboard.tiers import DIGITS, SEARCH, Tier

HETEROGENEITY: Mapping[str, Mapping[str, Any]] = {
    "alike": {"partition": Uniform()},
    "unlike": {"partition": Dirichlet(0.5)},
    "groups": {"groups": SwappedLabels()},
}
ROUNDS = 20  # of synchronous compositions
SECONDS = 20.0  # virtual ones, of the others; a client trains for about one


SEARCH_HERE = replace(SEARCH, factors=(1.0, 0.3, 10.0, -3.0), budget=3)  # about half of the leaderboard's


def _tier(clients: int, attackers: Sequence[int], seeds: int, searched: int) -> Tier:
    """Return a tier; the results have so many seeds, the search others."""
    return Tier(
        str(clients),
        f"Handwritten digits: {clients} clients, softmax regression, {ROUNDS} rounds of two minibatches of 32 examples",
        replace(DIGITS.base, clients=clients),
        attackers=attackers,
        tuned_for=attackers[len(attackers) // 2],
        heterogeneity=HETEROGENEITY,
        search=replace(SEARCH_HERE, seeds=SEARCH.seeds[:searched]),
        seeds=tuple(range(seeds)),
        rounds=ROUNDS,
        seconds=SECONDS,
    )


TIERS = (_tier(4, (1,), 10, 4), _tier(8, (1, 2, 3), 5, 2), _tier(20, (2, 5, 8), 5, 2), _tier(100, (10, 30), 3, 1))
