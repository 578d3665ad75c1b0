"""The interface of rules."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import nextafter
from typing import NamedTuple, overload

import torch
from jaxtyping import Float
from torch import Tensor

from phalanx.aggregators.points import Mixture, Points
from phalanx.core import InfeasibleError, Matrix, Vector, Weights
from phalanx.rng import numpy_generator

BELOW_HALF = nextafter(0.5, 0.0)  # share of the weight that a median stands: not one half itself


class TooFew(InfeasibleError):
    """There are fewer rows than a rule needs."""


class Choice(NamedTuple):
    """How a rule that combines whole rows treats each of them."""

    shares: Weights  # (m,), float64: the result is their weighted sum of the rows
    scores: Sequence[float] | None = None  # the rule's own figure for each row
    reasons: Sequence[str] | None = None  # why a row counts for less than it could, in words of the rule

    def among(self, there: Sequence[bool]) -> "Choice":
        """The choice for all rows, of which only some were `there`; the others have no share."""
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


class Aggregator(ABC):
    """A rule that makes one vector of many.  Usable alone: `Median()(deltas, weights)`.

    Where its docstring says nothing else, a rule is equivariant to translation, to positive scaling and to the order of
    clients, and a weight is like a duplication: weights (1, 2) give what weights (1, 1, 1) give with the second row
    twice.  Rules with a parameter f tolerate f of m clients of average weight: attackers with the share f / m of it.
    """

    @property
    def title(self) -> str:
        """A name for people."""
        return type(self).__name__

    def __call__(
        self, deltas: Matrix, weights: Weights | None = None, *, turn: int = 0, previous: Vector | None = None
    ) -> Vector:
        """Aggregates the rows of `deltas`.

        Args:
            deltas: (m, d), floating point, all finite.
            weights: (m,), finite and non-negative, at least one positive; equal if not given.  Only ratios matter. Give
                counts, or shares in float64: shares in float32 are rounded, and ties between them are missed.
            turn: number of the call, for rules that draw at random: the same turn draws the same.
            previous: what the rule returned last time, for rules that start from there; zero if not given.

        Raises:
            ValueError: an argument is not as described.
            InfeasibleError: the rule needs more rows, which is `TooFew`, or can do nothing with these.
        """
        return self.aggregate(Points.of(deltas, weights, turn, previous))

    @abstractmethod
    def aggregate(self, points: Points) -> Vector:
        """The rule itself, on checked rows of positive weight."""

    def breakdown_point(self) -> float | None:
        """The share of the weight that attackers may hold by the rule's own theory; None if that counts rows."""
        return None

    def choose(self, points: Points) -> Choice | None:
        """What became of each row, for verdicts; None for rules that do not treat a row as a whole."""
        return None

    def explained(
        self, deltas: Matrix, weights: Weights | None = None, *, turn: int = 0, previous: Vector | None = None
    ) -> tuple[Vector, Choice | None]:
        """The aggregate, and what became of each row; arguments as in a call."""
        points = Points.of(deltas, weights, turn, previous)
        vector, choice = self.apply(points)
        return vector, choice if choice is None or all(points.there) else choice.among(points.there)

    def apply(self, points: Points) -> tuple[Vector, Choice | None]:
        """`aggregate` and `choose` in one."""
        return self.aggregate(points), self.choose(points)


class Selection(Aggregator):
    """A rule whose result is a weighted sum of whole rows: it says how much each row counts."""

    @abstractmethod
    def choose(self, points: Points) -> Choice:
        """The rule itself: how much each row counts."""

    def aggregate(self, points: Points) -> Vector:
        """See `Aggregator`."""
        return points.combine(self.choose(points).shares)

    def apply(self, points: Points) -> tuple[Vector, Choice | None]:
        """See `Aggregator`."""
        choice = self.choose(points)
        return points.combine(choice.shares), choice


class PreAggregator(ABC):
    """Makes other rows of the rows, for a rule that follows: `NearestNeighborMixing(f=2) >> Krum(f=2)`."""

    @property
    def title(self) -> str:
        """A name for people."""
        return type(self).__name__

    @abstractmethod
    def mix(self, points: Points) -> Points:
        """The new rows, with weights."""

    def rows(
        self,
        deltas: Matrix,
        weights: Weights | None = None,
        *,
        turn: int = 0,
        out: Float[Tensor, "k d"] | None = None,
    ) -> Float[Tensor, "k d"]:
        """The new rows alone.

        Args:
            deltas: as for a rule.
            weights: as for a rule.
            turn: as for a rule.
            out: where they are written; may be `deltas` itself. A new matrix if not given. It may hold some of the new
                rows when others turn out not to be finite.

        Raises:
            ValueError: rows or weights are such as no rule takes, or `out` has not the shape and dtype of the new rows.
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
    """Pre-aggregators, one after the other.

    Args:
        steps: in the order in which they act.
    """

    steps: tuple[PreAggregator, ...]

    @property
    def title(self) -> str:
        """See `PreAggregator`."""
        return " >> ".join(step.title for step in self.steps)

    def mix(self, points: Points) -> Points:
        """See `PreAggregator`."""
        for step in self.steps:
            points = step.mix(points)
        return points


@dataclass(frozen=True)
class Chain(Aggregator):
    """A rule on rows that a pre-aggregator made: `before >> rule`.

    Args:
        before: what makes the rows.
        rule: what aggregates them.
    """

    before: PreAggregator
    rule: Aggregator

    @property
    def title(self) -> str:
        """See `Aggregator`."""
        return f"{self.before.title} >> {self.rule.title}"

    def aggregate(self, points: Points) -> Vector:
        """See `Aggregator`."""
        return self.rule.aggregate(self.before.mix(points))

    def apply(self, points: Points) -> tuple[Vector, Choice | None]:
        """See `Aggregator`."""
        mixed = self.before.mix(points)
        vector, choice = self.rule.apply(mixed)
        if choice is None:
            return vector, None
        shares, layer = choice.shares, mixed
        while isinstance(layer, Mixture) and layer is not points:
            shares, layer = layer.traced(shares), layer.points
        if len(mixed) != len(points):
            return vector, Choice(shares)
        return vector, choice._replace(shares=shares)  # scores and reasons are those of the rows made of each row


def require(rule: Aggregator | PreAggregator, m: int, least: int, why: str) -> None:
    """Raises `TooFew` where a rule gets fewer rows than it needs.

    Args:
        rule: for its name and parameters.
        m: rows that there are.
        least: rows that it takes.
        why: the formula, such as "2f + 3".
    """
    if m < least:
        remedy = "Lower f, or ask more clients" if "f" in why else "Ask more clients"
        raise TooFew(f"{rule} needs at least {why} = {least} rows, got {m}. {remedy}.")


def check_rows(rule: Aggregator, m: int, option: str) -> None:
    """Looks whether a rule can work on m rows, whatever is in them, by trying it out on short ones.

    Args:
        rule: with all that comes before it.
        m: rows that it will get at a time.
        option: what says so, for the message: "k".

    Raises:
        TooFew: it needs more.
    """
    try:
        rule(_trial_rows(m))
    except TooFew as error:
        raise TooFew(f"{option} = {m} is too small: {error} Or raise {option}.") from error
    except InfeasibleError:
        return  # of these rows; others may do


def weighs_rows(rule: Aggregator, m: int) -> bool:
    """Whether a rule says how much each of m rows counts; if it can do nothing with those it is tried on, it may."""
    try:
        return rule.explained(_trial_rows(m))[1] is not None
    except InfeasibleError:
        return True


def _trial_rows(m: int) -> Matrix:
    return torch.from_numpy(numpy_generator(0, "trial", m).standard_normal((m, 2)))
