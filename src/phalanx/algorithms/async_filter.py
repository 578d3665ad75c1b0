"""AsyncFilter: rounds of arrivals in which updates are compared with those of the same age.

Kang and Li, "AsyncFilter: Detecting Poisoning Attacks in Asynchronous Federated Learning", 2024, as its authors'
program in their library Plato has it; its text could not be read here.  The updates of a round are grouped by their age
tau.  Of each group of three or more,

    mu_v <- (N_v mu_v + sum_i u_i) / (N_v + m),   N_v <- N_v + m   the moving average for version v = t - tau
    d_i  <- |u_i - mu_v| / sum_j |u_j - mu_v|
    those of the three clusters of d (3-means) with the largest mean are not used

and the others are averaged with the updates of smaller groups, which pass unseen.  Deviations:

* Rounds are the caller's: `Quorum(AsyncFilter(), k=10)` makes rounds of the next ten arrivals, as the program does;
  alone it is synchronous, with the group tau = 0 only.
* The program compares models.  Updates of one version start from one model, so that the distances are the same.
* The program's new model is a mean of the clients' models, which undoes what others have done since they started.  Here
  the mean of the changes is added to the present model.
* Its 3-means starts at random.  Here the best three clusters are found exactly: those of sorted numbers are intervals.
* Fewer than three different distances are fewer clusters; the largest is still not used, unless all are equal.
* Averages of versions that are more than `window` rounds old are forgotten, and begin again.  The program keeps all,
  and fails at an age of 20.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NamedTuple

import torch
from typing_extensions import override

from phalanx.aggregators import Choice, Points
from phalanx.algorithms.rounds import Weighted, verdicts_of, weights_of
from phalanx.core import Matrix, Updates, Vector, Verdict
from phalanx.fields import PositiveFloat, PositiveInt
from phalanx.numerics.linalg import squared_distances_to
from phalanx.weighting import Ignore, Preprocess

LEAST = 3  # updates of a group below which it is not looked at
CLUSTERS = 3


class Moving(NamedTuple):
    """The average of the updates of one version so far."""

    mean: Vector  # mu_v
    total: int  # N_v


class AsyncFilterState(NamedTuple):
    """The server's state of `AsyncFilter`."""

    version: int  # t, rounds completed
    model: Vector
    sizes: Mapping[int, int]  # as reported
    weights: Mapping[int, float]  # after preprocessing, or before it if that is per cohort
    averages: Mapping[int, Moving]  # by version
    verdicts: Mapping[int, Verdict]


@dataclass(frozen=True)
class AsyncFilter(Weighted[AsyncFilterState]):
    """Leaves out, of updates of one age, those farthest from their average; the others are averaged.

    Drops at least one update of every group of three or more, with or without an attack.  What is farthest is left out,
    so that attackers who are a majority of a group, or near its average, stay.

    Args:
        window: rounds for which the average of a version is kept.
        server_lr: factor on the mean.
        preprocess: makes weights of the reported sizes, for the mean.
    """

    window: PositiveInt = 20
    server_lr: PositiveFloat = 1.0
    preprocess: Preprocess = Ignore()

    @override
    def init(self, model: Vector, sizes: Mapping[int, int]) -> tuple[AsyncFilterState, Set[int]]:
        weights = self.preprocess.enrolled(sizes)
        return AsyncFilterState(0, model, sizes, weights, {}, {}), weights.keys()

    @override
    def step(self, state: AsyncFilterState, updates: Updates) -> tuple[AsyncFilterState, Set[int]]:
        averages = dict(state.averages)
        scores, why = [0.0] * len(updates), [""] * len(updates)
        for version in sorted(set(updates.versions)):
            rows = [row for row, v in enumerate(updates.versions) if v == version]
            if len(rows) < LEAST:
                continue
            averages[version] = moved(averages.get(version), updates.deltas[rows])
            d = distances(updates.deltas[rows], averages[version].mean)
            far = farthest(d)
            for k, row in enumerate(rows):
                scores[row] = d[k]
                if k in far:
                    why[row] = f"distance {d[k]:.3g} of the sum of {len(rows)} updates of its age, among the farthest"
        n = weights_of(self.weights(state, updates.clients), updates).cpu()
        kept = n * torch.tensor([not reason for reason in why], dtype=torch.float64)
        shares = kept / kept.sum() if float(kept.sum()) else kept
        delta = Points.of(updates.deltas).combine(shares)
        new = state._replace(
            version=state.version + 1,
            model=state.model + self.server_lr * delta,
            averages={v: of for v, of in averages.items() if v > state.version - self.window},
            verdicts=verdicts_of(updates, n, Choice(shares, scores, why)),
        )
        return new, state.weights.keys()


def moved(average: Moving | None, updates: Matrix) -> Moving:
    """Return the moving average after more updates of its version."""
    m = len(updates)
    if average is None:
        return Moving(updates.mean(0), m)
    total = average.total + m
    return Moving((average.total * average.mean + updates.sum(0)) / total, total)


def distances(updates: Matrix, mean: Vector) -> list[float]:
    """Return d_i, the distances from the average as shares of their sum; zeros if all are zero."""
    d = squared_distances_to(updates, mean).sqrt()
    total = float(d.sum())
    return (d / total if total else d).tolist()


def farthest(d: Sequence[float]) -> frozenset[int]:
    """Return who is in the cluster of the largest numbers, of the three that minimise the sum of squares.

    Of equally good clusters, those with the fewest of the largest.  Nobody if all numbers are equal.

    Args:
        d: at least one number.
    """
    values = sorted(set(d))
    if len(values) == 1:
        return frozenset()
    k = min(CLUSTERS, len(values))
    ordered = sorted(d)
    starts = [i for i in range(1, len(ordered)) if ordered[i] > ordered[i - 1]]  # equal numbers stay together
    cost = {(a, b): _spread(ordered[a:b]) for a, b in combinations([0, *starts, len(ordered)], 2)}
    cuts = min(combinations(starts, k - 1), key=lambda cut: (_total(cost, (0, *cut, len(ordered))), -cut[-1]))
    least = ordered[cuts[-1]]
    return frozenset(i for i, value in enumerate(d) if value >= least)


def _spread(numbers: Sequence[float]) -> float:
    """Return the sum of squares about the mean."""
    mean = math.fsum(numbers) / len(numbers)
    return math.fsum((x - mean) ** 2 for x in numbers)


def _total(cost: Mapping[tuple[int, int], float], ends: Sequence[int]) -> float:
    return math.fsum(cost[pair] for pair in pairwise(ends))
