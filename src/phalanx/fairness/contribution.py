"""What the updates of a round are worth.

A *game* says what any coalition of clients is worth; a measure divides that among them.

* `RoundGame`: a coalition is worth what the model is, on a validation set, once their updates are aggregated.
* `CosineGame`: it is worth the cosine of its aggregate with that of all (no validation set).

`shapley` is exact, by the definition: Shapley, "A Value for n-Person Games", 1953.  `monte_carlo_shapley` samples
permutations and stops in each when little is left to gain: Ghorbani and Zou, "Data Shapley: Equitable Valuation of Data
for Machine Learning", 2019, Algorithm 1, with the standard error beside each value.  Values of rounds add up over a
run: Wang, Rausch, Zhang, Jia and Song, "A Principled Approach to Data Valuation for Federated Learning", 2020.

`cosines_to_aggregate` is what Xu, Lyu, Ma, Miao, Foo and Low, "Gradient-Driven Rewards to Guarantee Fairness in
Collaborative Machine Learning", 2021, put in the place of the Shapley value of a `CosineGame`: the cosine of each
normalised update with the aggregate, in O(m d) and not O(2^m d).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from phalanx.aggregators import Aggregator, Mean
from phalanx.core import InfeasibleError, Matrix, Progress, Updates, Vector, Weights
from phalanx.numerics.linalg import norms
from phalanx.rng import numpy_generator

Coalition = frozenset[int]
Game = Callable[[Coalition], float]  # what a coalition of clients is worth
MOST_EXACT = 10  # clients of an exact Shapley value: 1,024 coalitions
CANCELLED = 1e-7  # a sum of directions shorter than this share of their weight is rounding, and counts as zero


class RoundGame:
    """What a model is worth once a coalition's updates have been added to it.  Coalitions are evaluated once.

    Args:
        model: before the round.
        updates: of the round.
        value: what a model is worth, such as its accuracy on a validation set.
        aggregate: the rule.
        weights: of the clients, equal if not given.  Nobody of positive weight means no change.
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
        """How many models have been evaluated."""
        return len(self._known)

    def __call__(self, coalition: Coalition) -> float:
        """The worth of a coalition."""
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
    """The cosine of a coalition's aggregate with that of all, of normalised updates; the empty one is worth 0.

    Args:
        updates: of the round.
        weights: of the clients, equal if not given.
    """

    def __init__(self, updates: Updates, weights: Mapping[int, float] | None = None) -> None:
        self.players = updates.clients
        self._weights = _weights(updates, weights)
        u = _normalised(updates.deltas) * self._weights[:, None]
        self._products = u @ u.T  # all that the game looks at

    def __call__(self, coalition: Coalition) -> float:
        """The worth of a coalition."""
        rows = [k for k, i in enumerate(self.players) if i in coalition]
        own, all_ = float(self._products[rows][:, rows].sum()), float(self._products.sum())
        if own <= self._least(rows) or all_ <= self._least(list(range(len(self.players)))):
            return 0.0
        return float(self._products[rows].sum()) / math.sqrt(own * all_)

    def _least(self, rows: list[int]) -> float:
        """The squared length from which on an aggregate of these has a direction."""
        return (CANCELLED * float(self._weights[rows].sum())) ** 2


def cosines_to_aggregate(updates: Updates, weights: Mapping[int, float] | None = None) -> dict[int, float]:
    """The cosine gradient Shapley value as its authors approximate it: cosines of normalised updates with their sum.

    Args:
        updates: of the round.
        weights: of the clients in the sum, equal if not given; the paper's reputations.

    Returns:
        For each client a figure in [-1, 1]; 0 for a zero update, and for all where the updates cancel out.
    """
    u, n = _normalised(updates.deltas), _weights(updates, weights)
    total = n @ u
    length = float(total.norm())
    cosines = (u @ total / length).tolist() if length > CANCELLED * float(n.sum()) else [0.0] * len(updates)
    return dict(zip(updates.clients, cosines, strict=True))


def leave_one_out(game: Game, players: Iterable[int]) -> dict[int, float]:
    """What all are worth, minus what they are without each: m + 1 evaluations.

    Two clients that can replace each other count for nothing each.
    """
    all_ = frozenset(players)
    worth = game(all_)
    return {i: worth - game(all_ - {i}) for i in sorted(all_)}


def shapley(game: Game, players: Iterable[int]) -> dict[int, float]:
    """The Shapley value of each client: the mean, over all orders in which they could come, of what each adds.

    Args:
        game: what a coalition is worth; asked once for each of the 2^m.
        players: at most ten.

    Raises:
        InfeasibleError: there are more.
    """
    ids = sorted(players)
    m = len(ids)
    if m > MOST_EXACT:
        raise InfeasibleError(
            f"An exact Shapley value asks for 2^m coalitions, and {m} clients have {2**m:,}. "
            f"Take at most {MOST_EXACT} clients, or monte_carlo_shapley."
        )
    worth = [game(frozenset(ids[k] for k in range(m) if code >> k & 1)) for code in range(2**m)]
    share = [math.factorial(s) * math.factorial(m - s - 1) / math.factorial(m) for s in range(m)]
    values = dict.fromkeys(ids, 0.0)
    for k, i in enumerate(ids):
        without = (code for code in range(2**m) if not code >> k & 1)
        values[i] = math.fsum(share[code.bit_count()] * (worth[code | 1 << k] - worth[code]) for code in without)
    return values


class Estimate(NamedTuple):
    """A Shapley value by sampling."""

    value: float
    error: float  # standard error of the value: that of sampling, not what truncation leaves out


def monte_carlo_shapley(
    game: Game, players: Iterable[int], *, permutations: int = 100, tolerance: float = 0.0, seed: int = 0
) -> dict[int, Estimate]:
    """Shapley values from random orders of the clients.

    Args:
        game: what a coalition is worth.
        players: the clients.
        permutations: how many orders, at least 2.
        tolerance: distance to the worth of all, in units of the game, from which on the rest of an order is taken to
            add nothing. 0 asks to the end of every order.
        seed: orders come from the stream "shapley".

    Raises:
        ValueError: an argument is out of range.
    """
    if permutations < 2 or not tolerance >= 0:
        raise ValueError(
            f"permutations must be at least 2 and tolerance at least 0, got {permutations} and {tolerance}."
        )
    ids = sorted(players)
    nobody, everybody = game(frozenset()), game(frozenset(ids))
    rng = numpy_generator(seed, "shapley")
    added = torch.zeros(permutations, len(ids), dtype=torch.float64)
    for t in range(permutations):
        before, coalition = nobody, frozenset[int]()
        for k in rng.permutation(len(ids)).tolist():
            if tolerance and abs(everybody - before) <= tolerance:
                break
            coalition |= {ids[k]}
            after = game(coalition) if len(coalition) < len(ids) else everybody
            added[t, k], before = after - before, after
    error = added.std(0) / math.sqrt(permutations)
    return {i: Estimate(float(v), float(e)) for i, v, e in zip(ids, added.mean(0), error, strict=True)}


@dataclass
class Contributions:
    """An observer that measures what each update of a run contributed, step by step.

    Give it to `simulate(plan, observers=[...])`, or to `run`.

    Args:
        measure: of the model before a step, and the updates of the step, what each client contributed.
        every: measures each so many steps.
    """

    measure: Callable[[Vector, Updates], Mapping[int, float]]
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}.")
        self.steps = dict[int, dict[int, float]]()  # step -> client -> contribution
        self._model: Vector | None = None

    def __call__(self, progress: Progress) -> None:
        """See `Observer`."""
        if progress.updates is not None and self._model is not None and progress.step % self.every == 0:
            self.steps[progress.step] = dict(self.measure(self._model, progress.updates))
        self._model = progress.state.model

    @property
    def total(self) -> dict[int, float]:
        """What each client contributed in all the steps that were measured."""
        ids = sorted({i for step in self.steps.values() for i in step})
        return {i: math.fsum(step.get(i, 0.0) for step in self.steps.values()) for i in ids}


def _normalised(deltas: Matrix) -> Matrix:
    """The rows with length one, float64; zero rows as they are."""
    lengths = norms(deltas)
    return deltas.double() / torch.where(lengths > 0, lengths, 1.0)[:, None]


def _weights(updates: Updates, weights: Mapping[int, float] | None) -> Weights:
    given = _given(updates, weights)
    return torch.tensor([given[i] for i in updates.clients], dtype=torch.float64, device=updates.deltas.device)


def _given(updates: Updates, weights: Mapping[int, float] | None) -> Mapping[int, float]:
    """The weight of each client, equal if not given."""
    if weights is None:
        return dict.fromkeys(updates.clients, 1.0)
    if bad := [i for i in updates.clients if not 0 <= weights.get(i, -1.0) < math.inf]:
        raise ValueError(f"weights must give each client of the round a number of at least 0, not so for {bad}.")
    return weights
