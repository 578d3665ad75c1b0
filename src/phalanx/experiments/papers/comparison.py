"""Tables that compare our numbers with the published ones."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from phalanx.experiments.papers.published import Published
from phalanx.experiments.statistics import Estimate
from phalanx.experiments.trace import Trace


@dataclass(frozen=True)
class Sample:
    """Mean, standard deviation and 95 % interval of values over seeds.

    Args:
        mean: None if there are no values.
        deviation: standard deviation with n - 1 in the denominator; None for fewer than two values.
        n: number of values.
        half: of the length of the 95 % interval of the mean, by Student's t; None for fewer than two values.
    """

    mean: float | None
    deviation: float | None
    n: int
    half: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> "Sample":
        """Return mean and standard deviation (ddof = 1) of the values."""
        known = [float(value) for value in values]
        mean = statistics.fmean(known) if known else None
        high = Estimate.of(known).high
        half = None if high is None or mean is None else high - mean
        return cls(mean, statistics.stdev(known) if len(known) > 1 else None, len(known), half)

    def text(self, decimals: int = 1, *, signed: bool = False) -> str:
        """Return `84.1 ± 0.3` with half of the 95 % interval, the mean alone for one value, a dash for none."""
        if self.mean is None:
            return "-"
        form = f"{'+' if signed else ''}.{decimals}f"
        return f"{self.mean:{form}}" + ("" if self.half is None else f" ± {self.half:.{decimals}f}")


@dataclass(frozen=True)
class ComparedCell:
    """A cell of a table: our number and the published one.

    Args:
        ours: at the end of training, over seeds, in the unit of the published number.
        best: the best during training, over seeds.
        published: the paper's number.
        remark: on the comparison.
        failed: number of further runs of this cell that failed; they are not in `ours`.
        decimals: of our numbers in the text.
    """

    ours: Sample
    best: Sample | None = None
    published: Published | None = None
    remark: str = ""
    failed: int = 0
    decimals: int = 1

    @property
    def difference(self) -> float | None:
        """Ours minus published; None if either is missing."""
        if self.ours.mean is None or self.published is None or self.published.value is None:
            return None
        return self.ours.mean - self.published.value

    @property
    def text(self) -> str:
        """Our number in words: "failed" if all runs failed, "missing" if there are none."""
        if self.ours.n:
            of = f" ({self.failed} of {self.failed + self.ours.n} failed)" if self.failed else ""
            return self.ours.text(self.decimals) + of
        return "failed" if self.failed else "missing"

    @property
    def verdict(self) -> str:
        """Whether ours is "higher" or "lower": if its 95 % interval excludes the published number; "" if not, or none.

        A number that was read off a figure is excluded only with its error of reading.
        """
        if self.difference is None or self.ours.half is None or self.published is None:
            return ""
        if abs(self.difference) <= self.ours.half + self.published.within:
            return ""
        return "higher" if self.difference > 0 else "lower"

    @property
    def alone(self) -> "ComparedCell":
        """The same cell without the published number."""
        return replace(self, published=None, remark="")


Cell = str | ComparedCell
SMALLER = "The published numbers are of the paper's own size. Smaller runs are not compared with them."


@dataclass(frozen=True)
class Table:
    """Rows of text and comparisons.

    One column of comparisons is shown as five: ours, best, published, difference, remark.  If there are more, each
    cell shows ours, and published with the difference in brackets; remarks are below.

    Args:
        title: of the table.
        columns: headings, with units.
        rows: a cell for each column.
        notes: sentences below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if wrong := [row for row in self.rows if len(row) != len(self.columns)]:
            expected = f"{len(self.columns)} cells ({', '.join(self.columns)})"
            raise ValueError(f"Each row of the table {self.title!r} needs {expected}, got {len(wrong[0])}: {wrong[0]}.")

    @property
    def alone(self) -> "Table":
        """The same table without published numbers."""
        rows = [[cell.alone if isinstance(cell, ComparedCell) else cell for cell in row] for row in self.rows]
        return replace(self, rows=rows)


def compared(
    traces: Sequence[Trace],
    published: Published | None = None,
    remark: str = "",
    *,
    figure: str = "accuracy",
    scale: float = 100.0,
    decimals: int = 1,
    lowest: bool = False,
) -> ComparedCell:
    """Return the comparison of one cell over seeds: the last and the best measured values of finished runs.

    Args:
        traces: of the cell.
        published: the paper's number for it.
        remark: on the comparison; the published number's own remark is added.
        figure: the measured curve.
        scale: factor on its values: 100 makes shares percent.
        decimals: in the text.
        lowest: whether smaller is better.
    """
    done = [trace for trace in traces if not trace.failed]
    final = [scale * value for trace in done if (value := trace.final(figure)) is not None]
    best = [scale * value for trace in done if (value := trace.best(figure, lowest=lowest)) is not None]
    remarks = " ".join(filter(None, (remark, published.remark if published else "")))
    return ComparedCell(Sample.of(final), Sample.of(best), published, remarks, len(traces) - len(final), decimals)
