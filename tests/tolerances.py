"""The tolerances in the table of docs/rules.md, computed from `Aggregator.tolerates`, of which promises are made.

python tests/tolerances.py      writes them
"""

import inspect
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

from phalanx import aggregators
from phalanx.aggregators import Aggregator
from phalanx.aggregators.flame import DensestMajority
from phalanx.core import Tolerance

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"
MANY = 60  # rows, more than any rule needs for three attackers
NOTHING = "nothing is promised"
BOUNDED = {
    "range": "each entry, by honest ones",
    "distance": "the distance from honest updates",
    "length": "the length, by honest ones",
    "selection": "one honest update is in the mean",
    "nothing": "-",
}
ROW = re.compile(r"^\| \[(\w+)\]\(rules/\w+\.md\)[^|]*\| ([^|]*) \| ([^|]*) \|", re.MULTILINE)


def tolerance(name: str, **changes: Any) -> Tolerance:
    """Return the tolerance of a rule with these of its parameters that it has."""
    kind: type[Aggregator] = getattr(aggregators, name, DensestMajority)
    parameters = inspect.signature(kind).parameters
    return kind(**{key: value for key, value in changes.items() if key in parameters}).tolerates(MANY)


def tolerated(name: str) -> str:
    """Return in words what a rule tolerates, from its tolerance for one, two and three attackers, and other shares."""
    found = [tolerance(name, f=f) for f in (1, 2, 3)]
    if not any(one.share for one in found):
        return NOTHING
    if [one.share for one in found] == [Fraction(f, MANY) for f in (1, 2, 3)]:
        first, slope = found[0].least, found[1].least - found[0].least
        assert found[2].least == first + 2 * slope, f"{name} needs a number of rows that is no line in f"
        return f"f of m >= {slope}f + {first - slope} rows"
    for field in ("beta", "share"):
        if all(tolerance(name, **{field: share}).share == Fraction(str(share)) for share in (0.125, 0.3)):
            return f"`{field}` of the weight at most"
    assert {one.limit for one in found} == {"less than one half"}, name
    return "less than one half of the weight"


def written(text: str) -> str:
    """Return the page with the tolerances of today."""

    def row(match: re.Match[str]) -> str:
        name, before = match[1], f"| {match[2]} | {match[3]} |"
        return match[0].replace(before, f"| {tolerated(name)} | {BOUNDED[tolerance(name, f=1).means]} |")

    rules, before, others = text.partition("\n| before a rule |")
    return ROW.sub(row, rules) + before + others


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
