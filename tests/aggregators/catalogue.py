"""All rules, in one list, each of which goes through every property of `test_catalogue.py`.

An exported rule without an entry of its own gets one, for its default values: `lacking`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from exported import excepted, lacking
from phalanx.aggregators import (
    CAF,
    CTMA,
    MDA,
    SMEA,
    AdaptiveClip,
    Aggregator,
    Bucketing,
    Bulyan,
    CenteredClipping,
    Chain,
    Clip,
    DnC,
    FLAMEFilter,
    GeometricMedian,
    Krum,
    MeaMed,
    Mean,
    Median,
    MoNNA,
    MultiKrum,
    NearestNeighborMixing,
    PreAggregator,
    SignMajority,
    Steps,
    TrimmedMean,
)
from phalanx.contracts.rules import tolerated

Rule = Callable[[int, int], Aggregator]  # rows, attackers -> the rule


@dataclass(frozen=True)
class Entry:
    """A rule, and what its docstring claims."""

    name: str
    rule: Rule  # for m rows and f attackers
    most: Callable[[int], int] = lambda m: (m - 1) // 2  # attackers withstood among m
    copies: Rule | None = None  # the rule for k times as many rows, where a weight is like a duplication: (m k, f k)
    translation: bool = True
    scaling: bool = True
    order: bool = True  # of clients does not matter

    def __str__(self) -> str:
        return self.name


def natural(rule: Rule) -> dict[str, Rule]:
    """For a rule whose f scales with the number of copies."""
    return {"rule": rule, "copies": rule}


CATALOGUE = [
    Entry("Mean", **natural(lambda m, f: Mean()), most=lambda m: 0),
    Entry("Median", **natural(lambda m, f: Median())),
    Entry("TrimmedMean", **natural(lambda m, f: TrimmedMean(f / m))),
    Entry("MeaMed", **natural(lambda m, f: MeaMed(f))),
    Entry("Krum", lambda m, f: Krum(f), most=lambda m: (m - 3) // 2),
    Entry("Krum, n-f-1", lambda m, f: Krum(f, "n-f-1"), lambda m: (m - 1) // 2),
    Entry("MultiKrum", lambda m, f: MultiKrum(f), most=lambda m: (m - 3) // 2),
    Entry("MultiKrum, 2", lambda m, f: MultiKrum(f, 2), most=lambda m: (m - 3) // 2),
    Entry("Bulyan", lambda m, f: Bulyan(f), most=lambda m: (m - 3) // 4),
    Entry("GeometricMedian", **natural(lambda m, f: GeometricMedian(1e-9))),
    Entry(
        "CenteredClipping",
        **natural(lambda m, f: CenteredClipping(2.0, iterations=5)),
        translation=False,
        scaling=False,
        most=lambda m: m // 4,
    ),
    Entry("MDA", **natural(lambda m, f: MDA(f))),
    Entry("SMEA", lambda m, f: SMEA(f)),
    Entry("CAF", **natural(lambda m, f: CAF(f)), most=lambda m: m // 4),
    Entry("CTMA", **natural(lambda m, f: CTMA(f / m))),
    Entry("MoNNA", lambda m, f: MoNNA(f), order=False, most=lambda m: 0),
    Entry("DnC", lambda m, f: DnC(f), most=lambda m: m // 4),
    Entry("SignMajority", **natural(lambda m, f: SignMajority()), translation=False, scaling=False),
    Entry("FLAMEFilter", lambda m, f: FLAMEFilter(), translation=False),
    Entry("NNM >> Mean", **natural(lambda m, f: NearestNeighborMixing(f) >> Mean()), most=lambda m: 0),
    Entry("NNM >> Median", **natural(lambda m, f: NearestNeighborMixing(f) >> Median())),
    Entry("NNM >> Krum", lambda m, f: NearestNeighborMixing(f) >> Krum(f), most=lambda m: (m - 3) // 2),
    Entry("NNM >> GeometricMedian", **natural(lambda m, f: NearestNeighborMixing(f) >> GeometricMedian(1e-9))),
    Entry("ARC >> TrimmedMean", lambda m, f: AdaptiveClip(f) >> TrimmedMean(f / m), translation=False),
    Entry("ARC >> NNM >> Krum", lambda m, f: AdaptiveClip(f) >> NearestNeighborMixing(f) >> Krum(f),
          most=lambda m: (m - 3) // 2, translation=False),
    Entry("Clip >> GeometricMedian", **natural(lambda m, f: Clip(3.0) >> GeometricMedian(1e-9)),
          translation=False, scaling=False),
    Entry("Bucketing >> Median", lambda m, f: Bucketing(2) >> Median(), most=lambda m: (-(-m // 2) - 1) // 2,
          order=False),
]  # fmt: skip


def classes(rule):
    """The class of a rule, and those of its parts."""
    parts = (rule.before, rule.rule) if isinstance(rule, Chain) else rule.steps if isinstance(rule, Steps) else ()
    return {type(rule)}.union(*map(classes, parts))


def without_an_entry():
    """An entry for each exported rule that has none, with what its docstring excepts."""
    for kind, make in lacking((Aggregator, PreAggregator), set().union(*(classes(e.rule(11, 1)) for e in CATALOGUE))):
        rule = (lambda m, f, make=make: make(m, f) >> Median()) if issubclass(kind, PreAggregator) else make
        moved, scaled, ordered = (each not in excepted(kind) for each in ("translation", "scaling", "order"))
        yield Entry(kind.__name__, rule, partial(tolerated, make), None, moved, scaled, ordered)


CATALOGUE += without_an_entry()
