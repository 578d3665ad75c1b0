"""The interface of aggregation rules and pre-aggregators."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from phalanx.aggregators.influence import NOTHING, UNBOUNDED, UNKNOWN, Influence, Spread, audited, current_audit
from phalanx.aggregators.points import Mixture, Points
from phalanx.core import InfeasibleError, Matrix, Means, Rule, Tolerance, TooFewError, Vector, Weights
from phalanx.fields import CheckedFields
from phalanx.numerics.linalg import length
from phalanx.rng import numpy_generator

BELOW_HALF = math.nextafter(0.5, 0.0)  # largest share of the weight that a median tolerates: less than one half
TRIED = 4000  # rows of a trial, at most: of rules that compare all pairs, 128 MB


class TooFewRowsError(TooFewError):
    """A rule received fewer rows than it needs."""


class TooManyRowsError(InfeasibleError):
    """A rule received more rows than it can work on."""


class Choice(NamedTuple):
    """The share of each row in the result of a rule that combines whole rows."""

    shares: Weights  # (m,), float64: the result is the sum of share times row
    scores: Sequence[float] | None = None  # for each row, what the rule compares: a distance, a Krum score, ...
    reasons: Sequence[str] | None = None  # for each row, why its share is reduced; "" if it is not

    def among(self, there: Sequence[bool]) -> "Choice":
        """Return the choice for all rows of the call; rows that were not `there`, for lack of weight, have no share."""
        rows = [k for k, is_there in enumerate(there) if is_there]
        shares = torch.zeros(len(there), dtype=torch.float64)
        shares[rows] = self.shares
        scores = None if self.scores is None else [float("nan")] * len(there)
        reasons = ["no weight"] * len(there)
        for k, row in enumerate(rows):
            reasons[row] = self.reasons[k] if self.reasons else ""
            if scores is not None and self.scores is not None:
                scores[row] = self.scores[k]
        return Choice(shares, scores, reasons)

    def first(self, m: int) -> "Choice":
        """Return the choice for the first m rows."""
        return Choice(self.shares[:m], self.scores and self.scores[:m], self.reasons and self.reasons[:m])


class Aggregator(CheckedFields, ABC):
    """A rule that aggregates many vectors into one.  Usable alone: `Median()(deltas, weights)`.

    Unless its docstring says otherwise, a rule is equivariant to translation, to positive scaling and to the order of
    clients, and a weight acts like copies of the row: weights (1, 2) give the same result as weights (1, 1, 1) with the
    second row twice.  Rules with a parameter f tolerate f of m clients of average weight, that is attackers with a
    share of f / m of the weight.
    """

    @property
    def title(self) -> str:
        """A short name, such as `Median`."""
        return type(self).__name__

    def __call__(
        self, deltas: Matrix, weights: Weights | None = None, *, turn: int = 0, previous: Vector | None = None
    ) -> Vector:
        """Aggregate the rows of `deltas`.

        Args:
            deltas: (m, d), floating point, all finite.
            weights: (m,), finite and non-negative, at least one positive; equal if not given.  Only ratios matter. Give
                counts, or shares in float64: shares in float32 are rounded, and ties between them are missed.
            turn: number of the call, for rules that draw at random: the same turn gives the same draw.
            previous: (d,), the last result, for rules that start from it; zero if not given.

        Raises:
            ValueError: if an argument is not as described.
            TooFewRowsError: if the rule needs more rows.
            InfeasibleError: if the rule has no result for these rows.
        """
        points = Points.of(deltas, weights, turn, previous)
        return self.aggregate(points) if current_audit() is None else self._audited(points)[0]

    @abstractmethod
    def aggregate(self, points: Points) -> Vector:
        """Return the aggregate of checked rows of positive weight; each rule defines this."""

    def tolerates(self, q: int) -> Tolerance:
        """Return what the rule tolerates by its theory, of q rows of positive weight: nothing if not overridden."""
        return Tolerance.none(f"The rule {self.title} states no share of the weight that it tolerates.")

    def choose(self, points: Points) -> Choice | None:
        """Return the share of each row in the result, or None for a rule that does not combine whole rows."""
        return None

    def explained(
        self, deltas: Matrix, weights: Weights | None = None, *, turn: int = 0, previous: Vector | None = None
    ) -> tuple[Vector, Choice | None]:
        """Return the aggregate and the share of each row in it; arguments as in a call."""
        points = Points.of(deltas, weights, turn, previous)
        vector, choice = self.apply(points) if current_audit() is None else self._audited(points)
        return vector, choice if choice is None or all(points.there) else choice.among(points.there)

    def influence(
        self,
        deltas: Matrix,
        weights: Weights | None = None,
        *,
        f: int = 1,
        turn: int = 0,
        previous: Vector | None = None,
    ) -> Influence:
        """Return how far f attackers could have moved the result.

        The question: f of these rows are replaced by anything, the others and all weights stay.  How far does the
        result move at most?  `docs/rules.md` says for which rules the answer is exact, a bound, or unknown.

        Args:
            deltas: as in a call.
            weights: as in a call.
            f: number of attackers, at least 0.
            turn: as in a call.
            previous: as in a call.

        Raises:
            ValueError: if an argument is not as described.
            InfeasibleError: as in a call.

        Examples:
            >>> from phalanx.aggregators import Mean, Median
            >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [5.0, 0.0], [6.0, 0.0]])
            >>> Median().influence(rows, f=1)
            Influence(value=3.0, kind='bound', length=2.0)
            >>> Mean().influence(rows, f=1).kind
            'unbounded'
        """
        return self._measured(Points.of(deltas, weights, turn, previous), f)[2]

    def _audited(self, points: Points) -> tuple[Vector, Choice | None]:
        """Do what `apply` does, and note the influence that was asked for by `influence.audited`."""
        audit = current_audit()
        assert audit is not None
        vector, choice, influence = self._measured(points, audit.f)
        audit.found.append(influence)
        return vector, choice

    def _measured(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """Return the results of `aggregate` and `choose`, and the influence of f attackers, with the length."""
        if f < 0:
            raise ValueError(f"f must be at least 0, got {f}.")
        with audited(None):
            vector, choice, found = self.audit(points, f) if f else (*self.apply(points), NOTHING)
        return vector, choice, Influence(found.value, found.kind, length(vector))

    def audit(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """Return the results of `aggregate` and `choose`, and the influence of f attackers, at least 1."""
        vector, choice = self.apply(points)
        return vector, choice, self.influence_of(points, vector, choice, f)

    def influence_of(self, points: Points, vector: Vector, choice: Choice | None, f: int) -> Influence:
        """Return the influence of f attackers, at least 1, on this result; rules of which it is known define this."""
        return UNKNOWN

    def apply(self, points: Points) -> tuple[Vector, Choice | None]:
        """Return the results of `aggregate` and `choose`, without doing shared work twice."""
        return self.aggregate(points), self.choose(points)


class Selection(Aggregator):
    """A rule whose result is a weighted sum of whole rows.  A subclass is a frozen dataclass: its fields name a run.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Nearest(Selection):
        ...     def choose(self, points):
        ...         far = points.squared_distances[points.medoid]
        ...         kept = points.share * (far <= far.median())
        ...         return Choice(kept / kept.sum())
        >>> Nearest()(torch.tensor([[1.0], [2.0], [3.0], [50.0], [60.0]]))
        tensor([2.])
        >>> from phalanx import Run, Until, simulate
        >>> from phalanx.algorithms import FedAvg
        >>> simulate(Run(algorithm=FedAvg(aggregate=Nearest()), clients=7, until=Until(steps=2))).summary.steps
        2
    """

    @abstractmethod
    @override
    def choose(self, points: Points) -> Choice:
        """Return the share of each row in the result; each rule defines this."""

    @override
    def aggregate(self, points: Points) -> Vector:
        return points.combine(self.choose(points).shares)

    @override
    def apply(self, points: Points) -> tuple[Vector, Choice | None]:
        choice = self.choose(points)
        return points.combine(choice.shares), choice


class PreAggregator(CheckedFields, ABC):
    """A step that transforms the rows before a rule: `NearestNeighborMixing(f=2) >> Krum(f=2)`."""

    @property
    def title(self) -> str:
        """A short name, such as `NearestNeighborMixing`."""
        return type(self).__name__

    @abstractmethod
    def mix(self, points: Points) -> Points:
        """Return the transformed rows with their weights."""

    def keeps(self, q: int, then: Aggregator) -> Tolerance:
        """Return what a rule that is applied to the transformed rows tolerates, of q rows before the transformation."""
        return Tolerance.none(f"The rule {self.title} states no share of the weight that is tolerated after it.")

    @property
    def spread(self) -> Spread:
        """The rows after the transformation that an attacker's row changes, for the influence of attackers."""
        return "all"

    def rows(
        self, deltas: Matrix, weights: Weights | None = None, *, turn: int = 0, out: Float[Tensor, "k d"] | None = None
    ) -> Float[Tensor, "k d"]:
        """Return the transformed rows without weights.

        Args:
            deltas: as for a rule.
            weights: as for a rule.
            turn: as for a rule.
            out: (k, d), receives the rows; may be `deltas` itself. A new matrix if not given. If an error is raised, it
                may hold some of the new rows.

        Raises:
            ValueError: if rows or weights are invalid, or `out` has another shape or dtype than the new rows.
        """
        mixed = self.mix(Points.of(deltas, weights, turn))
        if out is not None and (out.shape, out.dtype) != ((len(mixed), deltas.shape[1]), deltas.dtype):
            wanted, got = (len(mixed), deltas.shape[1]), tuple(out.shape)
            raise ValueError(f"out must have shape {wanted} and be {deltas.dtype}, got {got} and {out.dtype}.")
        return mixed.write(out)

    @overload
    def __rshift__(self, then: Aggregator) -> "Chain": ...
    @overload
    def __rshift__(self, then: "PreAggregator") -> "Steps": ...
    def __rshift__(self, then: "Aggregator | PreAggregator") -> "Chain | Steps":
        if isinstance(then, Aggregator):
            return Chain(self, then)
        return Steps((self, then))


@dataclass(frozen=True)
class Steps(PreAggregator):
    """Several pre-aggregators, applied one after the other.

    Args:
        steps: the pre-aggregators, in the order in which they are applied.
    """

    steps: tuple[PreAggregator, ...]

    @property
    @override
    def title(self) -> str:
        return " >> ".join(step.title for step in self.steps)

    @property
    @override
    def spread(self) -> Spread:
        """See `PreAggregator`: the worst of its steps."""
        kinds = {step.spread for step in self.steps}
        return "all" if "all" in kinds else "clipped" if "clipped" in kinds else "one"

    @override
    def keeps(self, q: int, then: Aggregator) -> Tolerance:
        for step in reversed(self.steps[1:]):
            then = Chain(step, then)
        return self.steps[0].keeps(q, then) if self.steps else then.tolerates(q)

    @override
    def mix(self, points: Points) -> Points:
        for step in self.steps:
            points = step.mix(points)
        return points


@dataclass(frozen=True)
class Chain(Aggregator):
    """A rule applied to the rows of a pre-aggregator: `before >> rule`.

    Args:
        before: the pre-aggregator that transforms the rows.
        rule: the rule that aggregates the transformed rows.
    """

    before: PreAggregator
    rule: Aggregator

    @property
    @override
    def title(self) -> str:
        return f"{self.before.title} >> {self.rule.title}"

    @override
    def tolerates(self, q: int) -> Tolerance:
        return self.before.keeps(q, self.rule)

    @override
    def aggregate(self, points: Points) -> Vector:
        return self.rule.aggregate(self.before.mix(points))

    @override
    def apply(self, points: Points) -> tuple[Vector, Choice | None]:
        mixed = self.before.mix(points)
        vector, choice = self.rule.apply(mixed)
        return vector, self._traced(points, mixed, choice)

    @override
    def audit(self, points: Points, f: int) -> tuple[Vector, Choice | None, Influence]:
        """See `Aggregator`.  Known where an attacker's row changes one of the rows that the rule receives."""
        mixed, spread = self.before.mix(points), self.before.spread
        if spread == "all":
            vector, choice = self.rule.apply(mixed)
            return vector, self._traced(points, mixed, choice), UNKNOWN
        vector, choice, influence = self.rule.audit(mixed, f)
        if spread == "clipped":  # fewer vectors are left to attackers
            influence = (
                UNKNOWN if influence.value is None or influence == UNBOUNDED else replace(influence, kind="bound")
            )
        return vector, self._traced(points, mixed, choice), influence

    @staticmethod
    def _traced(points: Points, mixed: Points, choice: Choice | None) -> Choice | None:
        """Return a choice among the mixed rows as one among the rows of the call."""
        if choice is None:
            return None
        # The shares are of mixed rows: trace them back through each layer to the rows of the call.
        shares, layer = choice.shares, mixed
        while isinstance(layer, Mixture) and layer is not points:
            shares, layer = layer.traced(shares), layer.points
        if len(mixed) != len(points):
            return Choice(shares)
        return choice._replace(shares=shares)  # scores and reasons are of the row that was made from each row


def tolerates_f(rule: Aggregator | PreAggregator, f: int, q: int, least: int, means: Means) -> Tolerance:
    """Return that of a rule that is made for f of q rows of average weight.

    Args:
        rule: named in the source.
        f: number of attackers.
        q: number of rows.
        least: number of rows that it needs.
        means: as in `Tolerance`.
    """
    return Tolerance(Fraction(f, max(q, 1)), means, f"{rule.title} is made for {f} of {q} rows.", least=least)


def require(rule: Aggregator | PreAggregator, m: int, least: int, why: str) -> None:
    """Raise `TooFewRowsError` if a rule has fewer rows than it needs.

    Args:
        rule: named in the message.
        m: number of rows.
        least: number of rows that the rule needs.
        why: the formula for `least`, such as "2f + 3".
    """
    if m < least:
        remedy = "Lower f, or have more clients" if "f" in why else "Have more clients"
        raise TooFewRowsError(f"{rule} needs at least {why} = {least} rows, got {m}. {remedy}.")


def check_rows(rule: Rule, m: int, option: str) -> None:
    """Check that a rule can work on m rows, by a trial on random rows of two entries.

    Args:
        rule: the rule with its pre-aggregators.
        m: number of rows that it will receive at a time.
        option: name of the option that sets m, for the message, such as "k".

    Raises:
        TooFewRowsError: if the rule needs more rows.
        TooManyRowsError: if it can only work on fewer.
    """
    error = wrong_number(rule, m)
    if isinstance(error, TooManyRowsError):
        raise TooManyRowsError(f"{option} = {m} is too large: {error} Or lower {option}.")
    if error is not None:
        raise TooFewRowsError(f"{option} = {m} is too small: {error} Or raise {option}.")


def too_few(rule: Rule, m: int) -> str:
    """Return why a rule needs more than m rows, by a trial as in `wrong_number`; "" if it does not."""
    error = wrong_number(rule, m)
    return str(error) if isinstance(error, TooFewRowsError) else ""


def wrong_number(rule: Rule, m: int) -> TooFewRowsError | TooManyRowsError | None:
    """Return why a rule cannot work on m rows, by a trial on random rows of two entries; None if it can.

    The trial has no more than `TRIED` rows.  Where a rule needs more than that, None: each step says so itself.
    """
    if m < 1:
        return TooFewRowsError(f"{rule} needs at least 1 row, got {m}.")
    try:
        # Random rows: a rule may have no result for equal ones, such as FoolsGold.
        rule(_trial_rows(min(m, TRIED)))
    except TooFewRowsError as error:
        return error if m <= TRIED else None
    except TooManyRowsError as error:
        return error
    except (ValueError, RuntimeError, IndexError):
        return None  # the rule may have a result for other rows, of as many entries as a model
    return None


def weighs_rows(rule: Aggregator, m: int) -> bool:
    """Return whether a rule gives each of m rows a share, by a trial; True if it has no result for the trial rows."""
    try:
        return rule.explained(_trial_rows(m))[1] is not None
    except InfeasibleError:
        return True


def _trial_rows(m: int) -> Matrix:
    return torch.from_numpy(numpy_generator(0, "trial", m).standard_normal((m, 2)))
