"""Cases that any rule of robust aggregation can be held against, and exact criteria to judge an outcome by.

A case is a few small inputs.  Its criterion looks at nothing but the results and errors of a library on these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Outcome = Mapping[str, Any]  # `result` and `changed`, or `error`
ROBUST = (
    "Median",
    "TrimmedMean",
    "Krum",
    "MultiKrum",
    "GeometricMedian",
    "CenteredClipping",
    "MeaMed",
    "MDA",
    "MoNNA",
    "CAF",
    "SMEA",
    "Bulyan",
)
TOLERANT = tuple(rule for rule in ROBUST if rule not in ("Median", "GeometricMedian", "CenteredClipping"))  # have an f
CENTRED = tuple(rule for rule in ROBUST if rule != "CenteredClipping")  # follow a common offset of the rows
ROWS, LIARS, COLUMNS, LIAR = 11, 2, 50, 4
CLOSE = 1e-5  # what float32 can explain where the rows are about 1
SMALL = 0.1  # of the spread of the rows
MOVED = 1.0  # by which a rule may let attackers move the result, where the rows are about 1


BOUNDED = (
    "An error, no result, or every coordinate within the range of the ten other rows (about 0.8 to 1.3) or nearer to "
    "it than 1. Rules such as centred clipping let every row move the result, by no more than a radius."
)


class Judgement(NamedTuple):
    """The judgement on one form of a rule.

    Attributes:
        met: whether the criterion is met; None where it is a convention.
        said: what was seen, in a few words.
    """

    met: bool | None
    said: str


@dataclass(frozen=True)
class Input:
    """One call of a rule."""

    matrix: np.ndarray
    sizes: tuple[int, ...] | None = None
    again: bool = False  # whether global generators go on from the call before

    def order(self) -> dict[str, Any]:
        """Return the input as JSON can hold it."""
        rows, columns = self.matrix.shape
        name = self.matrix.dtype.name
        return {
            "matrix": self.matrix.tolist() if rows else [],
            "dtype": name,
            "columns": columns,
            "sizes": self.sizes,
            "again": self.again,
        }


@dataclass(frozen=True)
class Case:
    """A case.

    Args:
        name: short and unique.
        title: of its section.
        why: what a rule should do, and the reason.
        criterion: how an outcome is judged, exactly.
        rules: the rules that it is for.
        inputs: the calls.
        judge: the verdict on the outcomes, one for each input.
        f: number of attackers that rules are set to tolerate.
    """

    name: str
    title: str
    why: str
    criterion: str
    rules: tuple[str, ...]
    inputs: tuple[Input, ...]
    judge: Callable[[Sequence[Outcome]], Judgement]
    f: int = LIARS
    note: str = ""

    def parameters(self, rule: str) -> dict[str, Any]:
        """Return the parameters of a rule in this case, and no others."""
        rows, f = len(self.inputs[0].matrix), self.f
        given: dict[str, dict[str, Any]] = {
            "Mean": {},
            "Median": {},
            "GeometricMedian": {"steps": 100},
            "CenteredClipping": {"radius": 10.0, "iterations": 10},
            "MultiKrum": {"f": f, "m": max(rows - f, 1)},
            "MoNNA": {"f": f, "reference": 0},
            "Clip": {"radius": 1.0},
        }
        return given.get(rule, {"f": f})


def honest(rows: int = ROWS, columns: int = COLUMNS) -> np.ndarray:
    """Return rows about 1, multiples of 1/1024, as float32."""
    drawn = np.random.default_rng(0).standard_normal((rows, columns))
    return (1 + np.round(drawn * 100) / 1024).astype(np.float32)


def with_row(matrix: np.ndarray, value: float) -> np.ndarray:
    """Return the rows with one replaced; the first stays, which MoNNA trusts."""
    changed = matrix.copy()
    changed[LIAR] = value
    return changed


def short(number: float) -> str:
    """Return a number with two digits."""
    return f"{number:.2g}"


def refused(outcome: Outcome, allowed: bool = True) -> Judgement | None:
    """Return the verdict on an error or on no result, which may be `allowed`; None if there is a result."""
    if "error" in outcome:
        return Judgement(allowed, outcome["error"].partition(":")[0])
    return Judgement(allowed, "no result") if outcome["result"] is None else None


def within(matrix: np.ndarray, room: float, *, refusable: bool = True) -> Callable[[Sequence[Outcome]], Judgement]:
    """Return a judge: the result lies within the range of the rows in each column, up to `room`."""
    low, high = matrix.astype(np.float64).min(0), matrix.astype(np.float64).max(0)

    def judge(outcomes: Sequence[Outcome]) -> Judgement:
        if (verdict := refused(outcomes[0], refusable)) is not None:
            return verdict
        result = np.asarray(outcomes[0]["result"], dtype=np.float64)
        if not np.isfinite(result).all():
            return Judgement(False, "NaN" if np.isnan(result).any() else "infinite")
        beyond = float(np.maximum(result - high, low - result).max())
        if (result <= high + room).all() and (result >= low - room).all():
            return Judgement(True, "in range")
        return Judgement(False, f"beyond by {short(beyond)}")

    return judge


def share_of_first(most: float, least: float) -> Callable[[Sequence[Outcome]], Judgement]:
    """Return a judge: the first column, where the first row has 1 and the others 0, has a value in these limits."""

    def judge(outcomes: Sequence[Outcome]) -> Judgement:
        if (verdict := refused(outcomes[0])) is not None:
            return verdict
        share = float(np.asarray(outcomes[0]["result"])[0])
        return Judgement(least <= share <= most, f"{share:.3g}")

    return judge


def middle(outcomes: Sequence[Outcome]) -> Judgement:
    """Judge the median of 0, 1, 3, 10."""
    if (verdict := refused(outcomes[0])) is not None:
        return verdict
    value = float(np.asarray(outcomes[0]["result"])[0])
    named = {1.0: "lower middle", 2.0: "mid-point", 3.0: "upper middle"}.get(value, "")
    return Judgement(None if named else 1 <= value <= 3, f"{short(value)}{', ' + named if named else ''}")


def tie(outcomes: Sequence[Outcome]) -> Judgement:
    """Judge the choice between rows of the same score, in one order of the rows and in the opposite one."""
    for outcome in outcomes:
        if (verdict := refused(outcome)) is not None:
            return verdict
    one, other = (float(np.asarray(outcome["result"])[0]) for outcome in outcomes)
    return Judgement(None, "the same in both orders" if one == other else "by the order of rows")


def alike(room: float, shift: float = 0.0, *, refusable: bool = False) -> Callable[[Sequence[Outcome]], Judgement]:
    """Return a judge: all results are that of the first input plus `shift`, up to `room`."""

    def judge(outcomes: Sequence[Outcome]) -> Judgement:
        for outcome in outcomes:
            if (verdict := refused(outcome, refusable)) is not None:
                return verdict
        first, *others = (np.asarray(outcome["result"]) for outcome in outcomes)
        if not all(np.isfinite(result).all() for result in (first, *others)):
            return Judgement(False, "not finite")
        far = max(float(np.abs(other - shift - first).max()) for other in others)
        return Judgement(bool(far <= room), "the same bits" if far == 0 else f"off by {short(far)}")

    return judge


def refuses(outcomes: Sequence[Outcome]) -> Judgement:
    """Judge an input for which a rule has no meaning: an error, or no result."""
    return refused(outcomes[0]) or Judgement(False, "a result")


def untouched(outcomes: Sequence[Outcome]) -> Judgement:
    """Judge whether the caller's rows are the same after the call."""
    if (verdict := refused(outcomes[0], allowed=False)) is not None:
        return verdict
    changed = bool(outcomes[0]["changed"])
    return Judgement(not changed, "overwritten" if changed else "unchanged")


HONEST = honest()
SPREAD = float(HONEST.std())
OTHERS = np.delete(HONEST, LIAR, axis=0)
LARGE = (1e38 * (1 + np.arange(ROWS)[:, None] / ROWS * np.ones(COLUMNS))).astype(np.float32)
HALF = (300 + 10 * np.random.default_rng(1).standard_normal((ROWS, COLUMNS))).astype(np.float16)
INDICATOR = np.zeros((10, 3), np.float32)
INDICATOR[0, 0] = 1.0
COUNTS = np.array([[0], [0], [0], [1], [1], [1], [1], [2], [2], [3], [9]])
TIED = np.array([[-7.0], [-6.0], [-5.0], [5.0], [6.0], [7.0]])
OFFSET = 8192.0  # a power of two: the shifted rows are exact in float32
SHUFFLES = tuple(HONEST[np.append(0, 1 + np.random.default_rng(k).permutation(ROWS - 1))] for k in range(4))

CASES = (
    Case(
        "nan",
        "NaN from one client",
        "One of 11 clients sends NaN; rules are set to f = 2. A rule should ignore the row, or refuse the input. "
        "A NaN in the result reaches every parameter of the model, and no later round removes it.",
        BOUNDED,
        ROBUST,
        (Input(with_row(HONEST, np.nan)),),
        within(OTHERS, MOVED),
    ),
    Case(
        "infinity",
        "Infinity from one client",
        "As before, with infinite entries. Overflow in local training produces them without any attack.",
        BOUNDED,
        ROBUST,
        (Input(with_row(HONEST, np.inf)),),
        within(OTHERS, MOVED),
    ),
    Case(
        "far",
        "A finite row whose square overflows",
        "One of 11 clients sends 1e30 in float32: finite, but its squared norm is not. A rule that tolerates two "
        "arbitrary rows should give a result near the others. Refusal counts as well: the caller then knows.",
        BOUNDED,
        ROBUST,
        (Input(with_row(HONEST, 1e30)),),
        within(OTHERS, MOVED),
    ),
    Case(
        "large",
        "All rows near the largest float32",
        "Entries are from 1e38 to 2e38, whose sum overflows. The mean of finite numbers is finite.",
        "An error, no result, or every coordinate within the range of the rows, up to 1e33.",
        ("Mean", *CENTRED),
        (Input(LARGE),),
        within(LARGE, 1e33),
    ),
    Case(
        "declared",
        "10^9 examples reported by one client",
        "Ten clients, nine of which report 100 examples, and one 1,000,000,000. Numbers of examples are not "
        "verified, so no report should give one client most of the weight.",
        "That client's row is 1 and the others are 0: an error, no result, or a result from 0 to 0.5. The mean of "
        "rows that count alike is 0.1, the median 0.",
        ("Mean", "Median", "TrimmedMean"),
        (Input(INDICATOR, (1_000_000_000, *(100,) * 9)),),
        share_of_first(0.5, 0.0),
        f=1,
        note="ByzFL's and ByzPy's rules take rows only: no declaration reaches them, and whoever calls them decides "
        "on weights. `AsReported` is Phalanx's default; `Truncate` is an option, here with alpha = 0.1 and "
        "alpha_star = 0.25.",
    ),
    Case(
        "negative",
        "A negative number of examples",
        "Nine clients report 100 examples, one reports -500. No client has a negative number, and a negative "
        "weight moves the result away from that client's row, beyond the range of all rows.",
        "That client's row is 1 and the others are 0: an error, no result, or a result from 0 to 0.5.",
        ("Mean", "Median", "TrimmedMean"),
        (Input(INDICATOR, (-500, *(100,) * 9)),),
        share_of_first(0.5, 0.0),
        f=1,
        note="Phalanx does not enrol that client, and goes on with the other nine.",
    ),
    Case(
        "even",
        "The median of an even number of rows",
        "Of 0, 1, 3 and 10, every number from 1 to 3 is a median. Which one is a convention, which a library should "
        "state: the mid-point keeps the median of -x equal to minus the median of x, one of the rows keeps it a "
        "value that was sent.",
        "A convention: named, not judged.",
        ("Median",),
        (Input(np.array([[0.0], [1.0], [3.0], [10.0]])),),
        middle,
    ),
    Case(
        "ties",
        "Ties",
        "Six rows on a line, -7, -6, -5, 5, 6, 7 with f = 1, so that each choice has a mirror image with the same "
        "score. Which one wins is a convention; if it depends on the order of clients, whoever orders them should "
        "know.",
        "A convention: the result for these rows and for the reversed rows is the same or not.",
        ("Krum", "MDA"),
        (Input(TIED), Input(TIED[::-1])),
        tie,
        f=1,
    ),
    Case(
        "offset",
        "Small differences under a large offset",
        "The rows differ by 0.1, and 8192 is added to all, as when whole models are aggregated instead of updates. "
        "The rows are multiples of 1/1024, so that float32 holds both sets exactly. Rules that follow a translation "
        "should give the same result, moved; squared distances computed from float32 norms and inner products lose "
        "the differences.",
        "The result minus 8192 differs from the result without offset by at most a tenth of the standard deviation "
        f"of entries, {short(SMALL * SPREAD)}. Results near 8192 are rounded to 0.00049 in float32.",
        ("Mean", *CENTRED),
        (Input(HONEST), Input(HONEST + np.float32(OFFSET))),
        alike(SMALL * SPREAD, OFFSET),
        note="Centred clipping starts from a point that does not move along, and is left out. "
        "ByzFL's geometric median takes 100 steps here (`T=100`, by default 3).",
    ),
    Case(
        "order",
        "The order of clients",
        "The same rows in four orders; the first stays first, since MoNNA trusts it. Clients answer in any order, so "
        "the order should decide nothing but ties. A rule that draws at random draws the same each time here.",
        f"Results differ by at most {CLOSE:g}.",
        ("Mean", *ROBUST),
        tuple(map(Input, SHUFFLES)),
        alike(CLOSE),
    ),
    Case(
        "twice",
        "The same call twice",
        "The same rule on the same rows, created again for each call, without setting any seed. Without equal results, "
        "no run can be repeated, and no decision checked afterwards.",
        "The two results have the same bits.",
        ("Mean", *ROBUST),
        (Input(HONEST, again=True), Input(HONEST, again=True)),
        alike(0.0),
    ),
    Case(
        "copies",
        "All rows equal",
        "All clients send the same row, as at a stationary point. Distances and variances are zero then, and should "
        "not be divided by.",
        "Every coordinate is that of the row, up to 2e-5.",
        ("Mean", *ROBUST),
        (Input(np.tile(HONEST[:1], (ROWS, 1))),),
        within(HONEST[:1], 2e-5, refusable=False),
    ),
    Case(
        "one",
        "A single row",
        "One client answered, and f = 0. The row is the only reasonable result; a rule whose theory needs more rows "
        "may refuse.",
        "Every coordinate is that of the row, up to 2e-5; or an error, or no result.",
        ("Mean", *ROBUST),
        (Input(HONEST[:1]),),
        within(HONEST[:1], 2e-5),
        f=0,
    ),
    Case(
        "none",
        "No rows",
        "No client answered: the matrix, or the list, is empty. There is no result, and a vector of zeros or NaN "
        "would pass for one.",
        "An error, or no result.",
        ("Mean", *(rule for rule in ROBUST if rule != "MultiKrum")),
        (Input(np.zeros((0, COLUMNS), np.float32)),),
        refuses,
        f=0,
    ),
    Case(
        "half",
        "Half of the rows may lie",
        "Four rows and f = 2. No rule can tolerate it: the attackers could be the honest ones, so the setting is a "
        "mistake.",
        "An error, or no result.",
        TOLERANT,
        (Input(HONEST[:4]),),
        refuses,
    ),
    Case(
        "integers",
        "Integers",
        "Counters and running sums are aggregated with the rest of a model. The result should be that for the same "
        "numbers as floats, not cut to an integer; or the type is refused.",
        "The result for the numbers as float64, up to 1e-6; or an error, or no result.",
        ("Mean", *CENTRED),
        (Input(COUNTS), Input(COUNTS.astype(np.float64))),
        alike(1e-6, refusable=True),
    ),
    Case(
        "float16",
        "Half precision",
        "Entries are about 300 in float16, whose squares overflow beyond 65504. The result should be that for the "
        "same numbers in float64, to the precision of float16.",
        "The result for the numbers as float64, up to 0.25, the distance of neighbouring float16 numbers there; or "
        "an error, or no result.",
        ("Mean", *CENTRED),
        (Input(HALF), Input(HALF.astype(np.float64))),
        alike(0.25, refusable=True),
    ),
    Case(
        "arguments",
        "The caller's rows",
        "A rule should leave its arguments as they are; rows are often used again, for distances, records or a "
        "second rule.",
        "The rows are the same after the call.",
        ("Mean", *ROBUST, "Clip", "AdaptiveClip", "NearestNeighborMixing"),
        (Input(HONEST),),
        untouched,
    ),
)
