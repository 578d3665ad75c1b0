"""Contributions of clients' updates to a round.

A *game* gives the value of any coalition of clients; a measure divides that value among them.

* `RoundGame`: the value is that of the model, on a validation set, after the coalition's updates are aggregated.
* `CosineGame`: the value is the cosine of the coalition's aggregate with that of all clients (no validation set).

`shapley` is exact, by the definition: Shapley, "A Value for n-Person Games", 1953.  `monte_carlo_shapley` samples
permutations and stops in each when little is left to gain: Ghorbani and Zou, "Data Shapley: Equitable Valuation of Data
for Machine Learning", 2019, Algorithm 1, with the standard error of each value.  Values of rounds add up over a
run: Wang, Rausch, Zhang, Jia and Song, "A Principled Approach to Data Valuation for Federated Learning", 2020.

`cosines_to_aggregate` is what Xu, Lyu, Ma, Miao, Foo and Low, "Gradient-Driven Rewards to Guarantee Fairness in
Collaborative Machine Learning", 2021, use instead of the Shapley value of a `CosineGame`: the cosine of each
normalised update with the aggregate, in O(m d) instead of O(2^m d).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from typing_extensions import override

from phalanx.aggregators import Aggregator, Mean
from phalanx.core import InfeasibleError, Matrix, Updates, Vector, Weights
from phalanx.engine.observer import Progress
from phalanx.fields import CheckedFields, PositiveInt
from phalanx.numerics.linalg import norms
from phalanx.rng import numpy_generator

Coalition = frozenset[int]
Game = Callable[[Coalition], float]  # the value of a coalition of clients
MOST_EXACT = 10  # largest number of clients for an exact Shapley value: 1,024 coalitions
CANCELLED = 1e-7  # a sum of directions shorter than this share of their weight is a rounding error, and counts as zero


class RoundGame:
    """The value of a model after a coalition's updates are added to it.  Each coalition is evaluated once.

    Args:
        model: the model before the round.
        updates: the updates of the round.
        value: returns the value of a model, such as its accuracy on a validation set.
        aggregate: the aggregation rule; the mean by default.
        weights: weights of the clients, equal by default.  A coalition without positive weight changes nothing.
    """

    def __init__(
        self,
        model: Vector,
        updates: Updates,
        value: Callable[[Vector], float],
        *,
        aggregate: Aggregator | None = None,
        weights: Mapping[int, float] | None = None,
    ) -> None:
        self.players = updates.clients
        self._model, self._updates, self._value = model, updates, value
        self._rule, self._weights = aggregate or Mean(), _given(updates, weights)
        self._known = dict[Coalition, float]()

    @property
    def evaluations(self) -> int:
        """Number of evaluated models."""
        return len(self._known)

    def __call__(self, coalition: Coalition) -> float:
        """Return the value of a coalition."""
        members = frozenset(i for i in coalition if self._weights[i] > 0)
        if members not in self._known:
            self._known[members] = float(self._value(self._model + self._change(members)))
        return self._known[members]

    def _change(self, members: Coalition) -> Vector:
        if not members:
            return torch.zeros_like(self._model)
        part = self._updates.of(members)
        n = torch.tensor([self._weights[i] for i in part.clients], dtype=torch.float64, device=part.deltas.device)
        return self._rule(part.deltas, n)


class CosineGame:
    """The cosine of a coalition's aggregate of normalised updates with that of all clients; 0 for an empty coalition.

    Args:
        updates: the updates of the round.
        weights: weights of the clients, equal by default.
    """

    def __init__(self, updates: Updates, weights: Mapping[int, float] | None = None) -> None:
        self.players = updates.clients
        self._weights = _weights(updates, weights)
        u = _normalised(updates.deltas) * self._weights[:, None]
        self._products = u @ u.T  # the game depends on these only

    def __call__(self, coalition: Coalition) -> float:
        """Return the value of a coalition."""
        rows = [k for k, i in enumerate(self.players) if i in coalition]
        own, all_ = float(self._products[rows][:, rows].sum()), float(self._products.sum())
        if own <= self._least(rows) or all_ <= self._least(list(range(len(self.players)))):
            return 0.0
        return float(self._products[rows].sum()) / math.sqrt(own * all_)

    def _least(self, rows: list[int]) -> float:
        """Return the squared norm below which an aggregate of these rows is only rounding error."""
        return (CANCELLED * float(self._weights[rows].sum())) ** 2


def cosines_to_aggregate(updates: Updates, weights: Mapping[int, float] | None = None) -> dict[int, float]:
    """Return the approximate cosine gradient Shapley value of its authors: the cosine of each update with their sum.

    Args:
        updates: the updates of the round.
        weights: weights of the clients in the sum (the paper's reputations), equal by default.

    Returns:
        A number in [-1, 1] for each client; 0 for a zero update, and for all clients if the updates cancel out.
    """
    u, n = _normalised(updates.deltas), _weights(updates, weights)
    total = n @ u
    length = float(total.norm())
    cosines = (u @ total / length).tolist() if length > CANCELLED * float(n.sum()) else [0.0] * len(updates)
    return dict(zip(updates.clients, cosines, strict=True))


def leave_one_out(game: Game, players: Iterable[int]) -> dict[int, float]:
    """Return for each client the value of all clients minus that without it: m + 1 evaluations.

    Two clients of which one is enough get 0 each.
    """
    all_ = frozenset(players)
    value = game(all_)
    return {i: value - game(all_ - {i}) for i in sorted(all_)}


def shapley(game: Game, players: Iterable[int]) -> dict[int, float]:
    """Return the Shapley value of each client: the mean of its marginal value over all orders of the clients.

    Args:
        game: the value of a coalition; evaluated once for each of the 2^m.
        players: the clients, at most ten.

    Raises:
        InfeasibleError: there are more than ten clients.
    """
    ids = sorted(players)
    m = len(ids)
    if m > MOST_EXACT:
        raise InfeasibleError(
            f"An exact Shapley value evaluates 2^m coalitions, which is {2**m:,} for {m} clients. "
            f"Use at most {MOST_EXACT} clients, or monte_carlo_shapley."
        )
    value = [game(frozenset(ids[k] for k in range(m) if code >> k & 1)) for code in range(2**m)]
    share = [math.factorial(s) * math.factorial(m - s - 1) / math.factorial(m) for s in range(m)]
    values = dict.fromkeys(ids, 0.0)
    for k, i in enumerate(ids):
        without = (code for code in range(2**m) if not code >> k & 1)
        values[i] = math.fsum(share[code.bit_count()] * (value[code | 1 << k] - value[code]) for code in without)
    return values


class SampledShapley(NamedTuple):
    """A sampled Shapley value."""

    value: float
    error: float  # standard error of sampling, without the bias of truncation


def monte_carlo_shapley(
    game: Game, players: Iterable[int], *, permutations: int = 100, tolerance: float = 0.0, seed: int = 0
) -> dict[int, SampledShapley]:
    """Return Shapley values estimated from random orders of the clients.

    Args:
        game: the value of a coalition.
        players: the clients.
        permutations: number of random orders, at least 2.
        tolerance: distance to the value of all clients, in units of the game, below which the rest of an order is
            assumed to add nothing. With 0, every order is evaluated to its end.
        seed: seed of the random stream "shapley" for the orders.

    Raises:
        ValueError: an argument is out of range.
    """
    if permutations < 2 or not tolerance >= 0:
        raise ValueError(
            f"permutations must be at least 2 and tolerance at least 0, got {permutations} and {tolerance}."
        )
    ids = sorted(players)
    empty, full = game(frozenset()), game(frozenset(ids))
    rng = numpy_generator(seed, "shapley")
    added = torch.zeros(permutations, len(ids), dtype=torch.float64)
    for t in range(permutations):
        before, coalition = empty, frozenset[int]()
        for k in rng.permutation(len(ids)).tolist():
            if tolerance and abs(full - before) <= tolerance:
                break
            coalition |= {ids[k]}
            after = game(coalition) if len(coalition) < len(ids) else full
            added[t, k], before = after - before, after
    error = added.std(0) / math.sqrt(permutations)
    return {i: SampledShapley(float(v), float(e)) for i, v, e in zip(ids, added.mean(0), error, strict=True)}


@dataclass
class Contributions(CheckedFields):
    """An observer that measures the contribution of each client in each step of a run.

    Give it to `simulate(plan, observers=[...])`, or to `run`.

    Args:
        measure: returns each client's contribution from the model before a step and the updates of the step.
        every: number of steps between two measurements.
    """

    measure: Callable[[Vector, Updates], Mapping[int, float]]
    every: PositiveInt = 1

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = dict[int, dict[int, float]]()  # step -> client -> contribution
        self._model: Vector | None = None

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        if progress.updates is not None and self._model is not None and progress.step % self.every == 0:
            self.steps[progress.step] = dict(self.measure(self._model, progress.updates))
        self._model = progress.state.model

    @property
    def total(self) -> dict[int, float]:
        """Each client's contribution, summed over the measured steps."""
        ids = sorted({i for step in self.steps.values() for i in step})
        return {i: math.fsum(step.get(i, 0.0) for step in self.steps.values()) for i in ids}


def _normalised(deltas: Matrix) -> Matrix:
    """Return the rows scaled to norm 1, in float64; zero rows stay zero."""
    lengths = norms(deltas)
    return deltas.double() / torch.where(lengths > 0, lengths, 1.0)[:, None]


def _weights(updates: Updates, weights: Mapping[int, float] | None) -> Weights:
    given = _given(updates, weights)
    return torch.tensor([given[i] for i in updates.clients], dtype=torch.float64, device=updates.deltas.device)


def _given(updates: Updates, weights: Mapping[int, float] | None) -> Mapping[int, float]:
    """Return the weight of each client, equal by default."""
    if weights is None:
        return dict.fromkeys(updates.clients, 1.0)
    if bad := [i for i in updates.clients if not 0 <= weights.get(i, -1.0) < math.inf]:
        raise ValueError(f"weights must be at least 0 and finite for each client of the round, but are not for {bad}.")
    return weights
