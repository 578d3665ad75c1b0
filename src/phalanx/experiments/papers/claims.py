"""Claims of papers, and the verdicts of runs on them.

A claim *holds*, *fails* or is *open*, by a test on the seeds of its runs.

* A claim on an amount, such as the lead of one method over another on the same seeds and the same data: Student's
  paired t test against the claimed least amount, two-sided.  The p values of one page are adjusted for their number by
  Holm (1979).  Below 0.05 the claim holds or fails, by the sign; otherwise, and with one seed, it is open.
* A claim that a seed bears out or does not, such as "no honest client is excluded": it holds or fails if all of at
  least three seeds say so; otherwise it is open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.experiments.papers.comparison import Sample, Table
from phalanx.experiments.statistics import CONFIDENCE, holm, paired
from phalanx.experiments.trace import Trace

Verdict = Literal["holds", "fails", "open"]
Seeded = Sequence[tuple[int, float]]  # pairs of a seed and a value
LEAST_SEEDS = 3  # that must agree on a claim without an amount
LEGEND = (
    "Verdicts: of an amount by a paired t test over seeds against what is claimed, adjusted by Holm for all of the "
    f"page; of a yes or no if all of at least {LEAST_SEEDS} seeds agree. Otherwise open."
)


@dataclass(frozen=True)
class Claim:
    """A claim of a paper with what the runs of each seed say.

    Args:
        text: the claim, short.
        values: for each seed an amount in `unit`; or whether it is borne out.
        least: of the amount, that is claimed; None if values are yes or no.
        unit: of the amount.
        published: what the paper gives, in words; "" if nothing.
        decimals: of the amount in the text.
    """

    text: str
    values: Sequence[float]
    least: float | None = 0.0
    unit: str = "points"
    published: str = ""
    decimals: int = 1

    @property
    def p(self) -> float:
        """Of the hypothesis that the mean amount is the claimed least one; 1 for fewer than two seeds."""
        if self.least is None or len(self.values) < 2:
            return 1.0
        return paired([value - self.least for value in self.values])

    def verdict(self, p: float) -> Verdict:
        """Return the verdict.

        Args:
            p: adjusted.
        """
        if self.least is None:
            if len(self.values) < LEAST_SEEDS or len({bool(value) for value in self.values}) > 1:
                return "open"
            return "holds" if self.values[0] else "fails"
        if p >= 1 - CONFIDENCE:
            return "open"
        return "holds" if sum(self.values) > self.least * len(self.values) else "fails"

    @property
    def sample(self) -> Sample:
        """The values over seeds."""
        return Sample.of(float(value) for value in self.values)

    @property
    def ours(self) -> str:
        """What the runs say, in words: `+2.0 ± 0.4 points`, or `in 2 of 3 seeds`."""
        if self.least is None:
            return f"in {sum(map(bool, self.values))} of {len(self.values)} seeds"
        return f"{self.sample.text(self.decimals, signed=True)} {self.unit}".rstrip()

    @property
    def claimed(self) -> str:
        """What is claimed, in words."""
        if self.published or self.least is None:
            return self.published or "yes"
        return f"above {self.least:.3g}"


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict."""

    claim: Claim
    verdict: Verdict


def judged(claims: Sequence[Claim]) -> list[Judged]:
    """Return the claims of one page that have a run, with their verdicts."""
    known = [claim for claim in claims if claim.values]
    tested = [k for k, claim in enumerate(known) if claim.least is not None]
    adjusted = dict(zip(tested, holm([known[k].p for k in tested]), strict=True))
    return [Judged(claim, claim.verdict(adjusted.get(k, 1.0))) for k, claim in enumerate(known)]


def claims_table(claims: Sequence[Judged]) -> Table:
    """Return the claims of a page."""
    rows = [[one.claim.text, one.verdict, one.claim.ours, one.claim.claimed, str(len(one.claim.values))]
            for one in claims]  # fmt: skip
    return Table("Claims", ("claim", "verdict", "ours", "claimed", "seeds"), rows, (LEGEND,))


def finals(traces: Sequence[Trace], figure: str = "accuracy", *, best: bool = False) -> list[tuple[int, float]]:
    """Return seed and last value, or best one, of each run that finished, in percent."""
    known = [(t.seed, t.best(figure) if best else t.final(figure)) for t in traces if not t.failed]
    return [(seed, 100 * value) for seed, value in known if value is not None]


def lead(first: Seeded, second: Seeded) -> list[float]:
    """Return by how much the first leads, on each seed that both have."""
    return [value for _, value in difference(first, second)]


def difference(first: Seeded, second: Seeded) -> list[tuple[int, float]]:
    """Return the first minus the second, on each seed that both have."""
    other = dict(second)
    return [(seed, value - other[seed]) for seed, value in sorted(first) if seed in other]
