"""A column of a table as a schema describes it, and the cells of one that is read."""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, SupportsFloat, get_args, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, field

from phalanx.data.findings import Finding, is_number, merged, notation, plainly
from phalanx.data.table_dates import DATE, DATETIME, days_of
from phalanx.data.tables import LARGEST_WHOLE, Name, as_truths, beyond, beyond_whole, cells_of, is_text, missing_in
from phalanx.wording import plural, shown

LISTED = 12  # categories that a message lists, at most
UNTRAINED = "Correct it, or leave out the rows: no model was trained on it"
DATES = {"date": DATE, "datetime": DATETIME}  # by type, how the dates are written if the schema does not say
BOOLEANS = {"true": 1.0, "false": 0.0}

Rule = Literal["median", "pooled"]
Role = Literal["input", "target", "owner", "dropped"]
Cells = npt.NDArray[Any]


class SchemaMember(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """The base class of the parts of a schema; JSON leaves out members at their default, and has no others.

    A number has the form that it has in a file, as 150.0, so that a schema made in Python has the digest of its file.

    Raises:
        ValueError: a number is not finite, which JSON has no form for.
    """

    def __post_init__(self) -> None:
        for name in _with_fractions(type(self)):
            given = getattr(self, name)
            if isinstance(given, list | tuple):
                msgspec.structs.force_setattr(self, name, tuple(_as_in_file(name, each) for each in given))
            elif given is not None:
                msgspec.structs.force_setattr(self, name, _as_in_file(name, given))


def _as_in_file(name: str, given: SupportsFloat) -> float:
    """Return a number of a member in the form of JSON, which has no other than finite ones."""
    try:
        number = float(given)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {shown(str(given))}")
    return number


@cache
def _with_fractions(kind: type) -> list[str]:
    """Return the names of the members of a class that hold numbers with a fraction."""
    return [name for name, declared in get_type_hints(kind).items() if float in (declared, *get_args(declared))]


class Scaling(SchemaMember, frozen=True, kw_only=True):
    """A fixed scaling: a model takes (number - mean) / deviation.

    Args:
        mean: what is subtracted.
        deviation: what is divided by, above 0.
        rule: how several sites agreed on it, if they did: "median" of theirs, or "pooled", of all rows together.
    """

    mean: float
    deviation: Annotated[float, Meta(gt=0)]
    rule: Rule = "median"


class Imputation(SchemaMember, frozen=True, kw_only=True):
    """What takes the place of a missing value.

    Args:
        value: a number, before scaling; None for a column of texts, each of whose inputs is 0 then.
        indicator: whether one input more is 1 where the value is missing.
    """

    value: float | None = None
    indicator: bool = False


class Constraints(SchemaMember, frozen=True, kw_only=True):
    """What values must fulfil.

    Args:
        minimum: the smallest number; None if there is no bound.
        maximum: the largest.
    """

    minimum: float | None = None
    maximum: float | None = None


class Use(SchemaMember, frozen=True, kw_only=True):
    """What a column is used for.

    Args:
        role: an input, the target, the owner of the row, or nothing ("dropped").
        unit: of its numbers, such as "mg/dL", in the notation of UCUM; empty if it is not known.
        scaling: of its numbers; None: they are taken as they are.
        impute: what takes the place of a missing value; None: there must be none.
        aliases: by category of a string, the other values of the column that mean it: texts, or whole numbers, which
            may be written in any way. So several classes become one.
    """

    role: Role = "input"
    unit: str = ""
    scaling: Scaling | None = None
    impute: Imputation | None = None
    aliases: Mapping[str, tuple[Name, ...]] = {}


class Field(SchemaMember, frozen=True, kw_only=True):
    """A column.

    Args:
        name: of the column.
        type: of its values: "number", "integer", "boolean", "string"; "date" or "datetime", which become days.
        format: how dates are written, in the notation of `datetime.strptime`; empty: 2024-12-31, or
            2024-12-31T08:30:00.
        title: for readers.
        description: for readers.
        categories: the texts of an input, or the classes of a target, in the order of their numbers.
        missing_values: the words for a missing value in this column, those of the table among them; None: those of
            the table.
        constraints: of its values.
        use: what it is used for; `phalanx` in JSON.
    """

    name: Annotated[str, Meta(min_length=1)]
    type: Literal["number", "integer", "boolean", "string", "date", "datetime"]
    format: str = ""
    title: str = ""
    description: str = ""
    categories: tuple[Name, ...] = ()
    missing_values: tuple[str, ...] | None = None
    constraints: Constraints = Constraints()
    use: Use = field(default=Use(), name="phalanx")

    @property
    def pattern(self) -> str:
        """How its dates are written; empty if it holds none."""
        return self.format or DATES.get(self.type, "")

    @property
    def wrong(self) -> str:
        """What is wrong with the description of this column, and the remedy; empty if nothing is."""
        return next(chain(self._faults(), self._faults_of_role()), "")

    def _faults(self) -> Iterator[str]:
        low, high, texts = self.constraints.minimum, self.constraints.maximum, self.type == "string"
        if len({*map(str, self.categories)}) < len(self.categories):
            yield "has a category twice. Leave out one"
        if any(isinstance(each, int) and abs(each) > LARGEST_WHOLE for each in self.values):
            yield f"has a whole number beyond {LARGEST_WHOLE:,} as a category. Make it a text"
        elif unknown := self.use.aliases.keys() - {each for each in self.categories if texts}:
            yield f"has aliases of {shown(min(unknown))!r}, which is no category of a string. Correct one of them"
        elif self._ambiguous():
            yield "has an alias that means two categories. Leave out one"
        if self.format and not (self.type in DATES and {"%Y", "%m", "%d"} <= {*re.findall("%.", self.format)}):
            yield "has a format, which dates have, with a year of four digits: %Y, %m and %d. Correct it, or the type"
        if self.missing_values is not None and "" not in self.missing_values:
            yield 'has missingValues without "", which always is a missing value. Add it'
        if low is not None and high is not None and low > high:
            yield f"has the minimum {low:g} above the maximum {high:g}. Correct one of them"
        bounds = (low is not None or high is not None) and self.type not in ("number", "integer")
        if bounds or (texts and self.use.scaling is not None):
            yield f"has a scaling or a bound that no {self.type} has. Leave it out, or make it a number"

    @property
    def values(self) -> list[Name]:
        """The categories and their aliases."""
        return [*self.categories, *chain.from_iterable(self.use.aliases.values())]

    def _ambiguous(self) -> bool:
        """Return whether an alias is that of another category as well, or another category itself."""
        meant = {_plain(each): {each} for each in self.categories} if self.use.aliases else {}
        for category, others in self.use.aliases.items():
            for other in others:
                meant.setdefault(_plain(other), {category}).add(category)
        aliases = map(_plain, chain.from_iterable(self.use.aliases.values()))
        return any(len(meant[alias]) > 1 for alias in aliases)

    def _faults_of_role(self) -> Iterator[str]:
        use, texts = self.use, self.type == "string"
        whole = self.type == "integer"
        if use.role == "input":
            if texts and not (self.categories and all(isinstance(each, str) for each in self.categories)):
                yield "is an input of type string, and needs its texts as categories. List them, or drop the column"
            if self.categories and not texts:
                yield f"has categories, and its type is {self.type}. Make it a string"
            if use.impute is not None and (use.impute.value is None) != texts:
                yield "imputes a value, which numbers need and texts cannot have. Correct impute"
        if use.role == "target":
            if self.type in DATES:
                yield "is the target, and holds dates. Name another column"
            if use.impute is not None:
                yield "is the target, and has impute. Leave it out"
            if self.type == "boolean" or bool(self.categories) != (texts or whole):
                yield "is the target: a number, or a string or an integer with the classes as categories"
            if any(isinstance(each, int) != whole for each in self.categories):
                yield f"is the target, of type {self.type}, and not all of its categories are"
            if self.categories and use.scaling is not None:
                yield "has classes, and a scaling. Leave it out"


class ReadColumn(NamedTuple):
    """A column that was read.

    Args:
        cells: (n,): numbers, NaN where one is missing; or texts, None where one is missing.
        found: what does not fit.
    """

    cells: Cells
    found: tuple[Finding, ...]

    @staticmethod
    def of(column: Any, described: Field, words: Collection[str]) -> "ReadColumn":
        """Return the cells of a column of pandas as it is described.

        Args:
            column: of pandas.
            described: what it is.
            words: for a missing value.
        """
        column = as_truths(column)
        empty = missing_in(column, words, described.values, number=described.type != "string" and not described.pattern)
        if described.type == "string":
            cells, found = _texts(column, described, empty)
        elif described.pattern:
            cells, found = _days(column, described, empty)
        else:
            cells, found = _numbers(column, described, empty)
        if empty.any() and described.use.impute is None:
            found.append(gap(described, empty))
        return ReadColumn(cells, tuple(found))


def gap(
    described: Field, empty: npt.NDArray[np.bool_], remedy: str = "Fill these cells, or leave out the rows"
) -> Finding:
    """Return an error about cells that are missing."""
    return _finding("missing", described, empty, "is empty", remedy)


def _days(column: Any, described: Field, empty: npt.NDArray[np.bool_]) -> tuple[Cells, list[Finding]]:
    """Return the cells of a column of dates, in days, and what does not fit."""
    cells = np.where(empty, np.nan, days_of(column, described.pattern))
    if not (wrong := np.isnan(cells) & ~empty).any():
        return cells, []
    return cells, [_finding("type", described, wrong, f"holds what is no date as {described.pattern}", "Write it so")]


def _texts(column: Any, described: Field, empty: npt.NDArray[np.bool_]) -> tuple[Cells, list[Finding]]:
    """Return the cells of a column of texts, and what does not fit."""
    known = {*described.categories}
    if column.dtype.kind == "b":
        spelled = {str(each).casefold(): each for each in known}
        column = column.astype(object).map(lambda cell: spelled.get(str(cell).casefold(), cell), na_action="ignore")
    column = _named(column, described)
    if not is_text(column) and not empty.all():
        what = "holds numbers or dates, and not texts"
        return cells_of(column.astype(object), empty), [
            _finding("type", described, ~empty, what, "Write them as texts")
        ]
    cells = cells_of(column.astype(object), empty)
    if described.use.role == "target":  # the classes may be codes of digits, beside which spaces mean nothing
        cells = np.array([cell if cell is None or cell in known else cell.strip() for cell in cells], dtype=object)
    wrong = np.array([cell is not None and cell not in known for cell in cells], dtype=bool)
    if not wrong.any():
        return cells, []
    plain = {plainly(str(each)) for each in known}
    alike = sum(plainly(cell) in plain for cell in cells[wrong])
    more = f"; {alike} differ in spelling only" if alike else ""
    what = f"holds another text than {_listed(described)}"
    return cells, [_finding("word", described, wrong, what, UNTRAINED, more=more)]


def _plain(value: Name) -> Name | float:
    """Return the number that a value is, however it is written, or the text."""
    return float(value) if is_number(str(value)) else value


def _named(column: Any, described: Field) -> Any:
    """Return a column with the category in place of each of its aliases."""
    if not described.use.aliases:
        return column
    texts, numbers = dict[str, str](), dict[float, str]()
    for category, others in described.use.aliases.items():
        texts |= {other: category for other in others if isinstance(other, str)}
        numbers |= {float(other): category for other in others if isinstance(other, int)}

    def named(cell: Any) -> Any:
        text = str(cell).strip() if described.use.role == "target" else str(cell)
        if text in texts:
            return texts[text]
        return numbers.get(float(text), cell) if is_number(text) else cell

    return column.astype(object).map(named, na_action="ignore")


def _listed(described: Field) -> str:
    """Return the first categories of a column, for a message."""
    known = described.values
    return ", ".join(map(repr, known[:LISTED])) + (", ..." if len(known) > LISTED else "")


def _numbers(column: Any, described: Field, empty: npt.NDArray[np.bool_]) -> tuple[Cells, list[Finding]]:
    """Return the cells of a column of numbers, and what does not fit."""
    kind, boolean = column.dtype.kind, described.type == "boolean" or bool(described.categories)
    if is_text(column):
        texts, cells = cells_of(column, empty), np.full(len(column), np.nan)
        for i in np.flatnonzero(~empty):
            known = float(texts[i]) if is_number(texts[i]) else BOOLEANS.get(texts[i].lower()) if boolean else None
            cells[i] = np.nan if known is None else known
        if (wrong := np.isnan(cells) & ~empty).any():
            if boolean and not described.categories:
                remedy = "Write true or false, or 1 or 0"
                return cells, [_finding("number", described, wrong, "holds neither true nor false", remedy)]
            written = sorted({notation(text) for text in texts[wrong]} - {""})
            how = f" (in part, one with {written[0]})" if written else ""
            remedy = "Correct it, or say in the schema what a missing value and a decimal look like"
            return cells, [_finding("number", described, wrong, f"holds what is no number{how}", remedy)]
    elif kind not in "iufb" or (kind == "b" and not boolean):
        what = f"holds {'true and false' if kind == 'b' else 'dates'}, and not numbers"
        return np.full(len(column), np.nan), [_finding("type", described, ~empty, what, "Write them as numbers")]
    else:
        cells = cells_of(column, empty)
    if (unheld := beyond_whole(column) & ~empty).any():
        what = f"holds a whole number beyond {LARGEST_WHOLE:,}, which float64 may not hold"
        return cells, [_finding("number", described, unheld, what, "Write it in another unit")]
    return cells, [*_misfits(cells, described, empty)]


def _misfits(cells: Cells, described: Field, empty: npt.NDArray[np.bool_]) -> Iterator[Finding]:
    """Yield what does not fit of numbers."""
    infinite = beyond(cells) & ~empty
    if infinite.any():
        what = "holds a number that is infinite, or beyond 3.4e38"
        yield _finding("number", described, infinite, what, "Correct it, or leave out the rows")
    kept = ~empty & ~infinite
    if described.type == "boolean" and (other := kept & ~np.isin(cells, (0, 1))).any():
        yield _finding("type", described, other, "holds neither true (1) nor false (0)", "Correct it")
    if described.categories:
        other = kept & ~np.isin(cells, np.array(described.categories, dtype=np.float64))
        if other.any():
            what = f"holds another class than {_listed(described)}"
            yield _finding("word", described, other, what, UNTRAINED)
    elif described.type == "integer" and (part := kept & (np.where(kept, cells, 0) % 1 != 0)).any():
        yield _finding("type", described, part, "holds a number that is not whole", "Correct it")
    low, high = described.constraints.minimum, described.constraints.maximum
    below, above = -np.inf if low is None else low, np.inf if high is None else high
    target = described.use.role == "target" and not described.categories
    if target and any(merged(cells[kept])):
        what = "holds different numbers that are one in float32"
        yield _finding("number", described, kept, what, "Subtract what they have in common")
    outside = kept & ((cells < below) | (cells > above))
    if outside.any():
        bounds = f"{'-' if low is None else f'{low:g}'} to {'-' if high is None else f'{high:g}'}"
        remedy = "Is it another unit? Correct it, or widen the bounds in the schema"
        yield _finding("range", described, outside, f"holds a number outside {bounds}", remedy)


def _finding(
    code: str, described: Field, rows: npt.NDArray[np.bool_], what: str, remedy: str, *, more: str = ""
) -> Finding:
    """Return an error about some rows of a column."""
    count, first = int(rows.sum()), int(np.argmax(rows)) + 1
    where = f"in {count} of {plural(len(rows), 'row')} (the first: row {first}{more})"
    sentence = f"Column {described.name!r} {what} {where}. {remedy}."
    return Finding(code, described.name, sentence, rows=count, first=first)
