"""Intervals and paired tests over seeds."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from typing_extensions import override

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95 % interval.

    Args:
        mean: of the values; None if there are none.
        low: lower end of the interval, by Student's t distribution; None for fewer than two values.
        high: its upper end.
        n: number of values.
        failed: number of runs without a value, which failed or measured nothing finite.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    failed: int = 0

    @classmethod
    def of(cls, values: Iterable[float], failed: int = 0) -> "Estimate":
        """Return the estimate from independent values."""
        known = [float(value) for value in values]
        if len(known) < 2:
            return cls(known[0] if known else None, n=len(known), failed=failed)
        mean, error = statistics.fmean(known), statistics.stdev(known) / math.sqrt(len(known))
        half = _quantile(len(known) - 1) * error
        return cls(mean, mean - half, mean + half, len(known), failed)

    def text(self, scale: float = 1.0, decimals: int = 1) -> str:
        """Return `84.1 ± 0.3 (n 3)`, the mean alone for one value, a dash for none; values times `scale`."""
        if self.mean is None:
            return f"failed ({self.failed})" if self.failed else "–"
        half = "" if self.high is None else f" ± {scale * (self.high - self.mean):.{decimals}f}"
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{scale * self.mean:.{decimals}f}{half} (n {self.n}{failed})"


class EstimateTable(dict[str, dict[str, Estimate]]):
    """Estimates by row and column: a mapping that is shown as a table.

    Args:
        found: the estimates, by the names of row and column.
        axis: the name of the rows.
        title: of the figure.
        scale: the factor by which figures are shown.
    """

    def __init__(self, found: Mapping[str, dict[str, Estimate]], axis: str, title: str, scale: float) -> None:
        super().__init__(found)
        self.axis, self.title, self.scale = axis, title, scale

    @property
    def usual(self) -> int:
        """The number of seeds of most cells."""
        counts = Counter(e.n for inner in self.values() for e in inner.values() if e.n)
        return counts.most_common(1)[0][0] if counts else 0

    def texts(self) -> list[list[str]]:
        """Return the rows as text: the name, then the cells; a number of seeds only where it is not the usual one."""
        seeds = f" (n {self.usual})"
        return [
            [row, *(e.text(self.scale) if e.failed else e.text(self.scale).removesuffix(seeds) for e in inner.values())]
            for row, inner in self.items()
        ]

    @property
    def legend(self) -> str:
        """The meaning of the cells."""
        if self.usual < 2:
            return "One seed in each cell, so no interval."
        return (
            f"Mean ± half of the 95 % interval (Student's t) over seeds; n = {self.usual} unless a cell says otherwise."
        )

    @override
    def __repr__(self) -> str:
        columns = list(next(iter(self.values()), {}))
        rows = [[self.axis, *columns], *self.texts()]
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(wide[0]), *(cell.rjust(w) for cell, w in zip(row[1:], wide[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([self.title, "", *lines, "", self.legend])


@cache
def _quantile(freedom: int) -> float:
    """Return the quantile of Student's t distribution at the upper end of the interval."""
    from scipy.stats import t  # noqa: PLC0415  (slow to import)

    return float(t.ppf((1 + CONFIDENCE) / 2, freedom))


@dataclass(frozen=True)
class PairedTest:
    """A paired t test of two methods on common seeds.

    Args:
        first: name of a method.
        second: name of the other.
        difference: mean of the first minus the second, with its interval.
        p: of the null hypothesis that the mean difference is 0, two-sided.
        adjusted: p by Holm's correction for all tests of the table.
    """

    first: str
    second: str
    difference: Estimate
    p: float
    adjusted: float


def paired(differences: Sequence[float]) -> float:
    """Return the two-sided p of a paired t test; 1 if there is no difference.

    Args:
        differences: one for each seed, at least two.
    """
    if len(differences) < 2:
        raise ValueError(f"A paired test needs at least 2 common seeds, got {len(differences)}.")
    from scipy.stats import t  # noqa: PLC0415  (slow to import)

    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * float(t.sf(abs(mean) / (deviation / math.sqrt(len(differences))), len(differences) - 1))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number by Holm (1979), in the order given.

    The k-th smallest of m is multiplied by m - k + 1, and is at least the one before it, and at most 1.
    """
    order, out, before = sorted(range(len(ps)), key=lambda i: ps[i]), [0.0] * len(ps), 0.0
    for k, i in enumerate(order):
        before = out[i] = max(before, min(1.0, (len(ps) - k) * ps[i]))
    return out
