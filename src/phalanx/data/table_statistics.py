"""Statistics of the table of a site, and the scaling that several sites agree on: the median of theirs.

A site sends a small file.  Of a column it holds mean and deviation, without the outer twentieths and rounded to two
digits, and about how many values there are; no minimum, no maximum, no text.  A site may lie: the median over sites
stays within what honest ones say, as long as fewer than half of them lie.  What no table can have is left out.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, field
from typing_extensions import override

from phalanx.data.findings import Finding
from phalanx.data.table_columns import Field, Rule, Scaling, SchemaMember
from phalanx.data.table_draft import LEAST_KNOWN, scaling_of, unit_question
from phalanx.data.table_files import TableFile
from phalanx.data.table_impossible import rounded, spread_apart, wrong_column, wrong_counts
from phalanx.data.table_schema import Schema, UnfitTableError
from phalanx.reading import from_json
from phalanx.wording import plural

POOLED = "pooled scaling"  # by which a schema with the rule "pooled" is accepted
LARGEST_STATISTICS = 1_000_000  # bytes of a file of statistics

Count = Annotated[int, Meta(ge=0)]


class ColumnStatistics(SchemaMember, frozen=True, kw_only=True):
    """Statistics of a column of numbers.

    Args:
        mean: without the outer twentieths, 5 rows at least; None of fewer than 20 values, or if the others are equal.
        deviation: of the same.
        missing: number of missing values, rounded.
    """

    mean: float | None = None
    deviation: Annotated[float, Meta(gt=0)] | None = None
    missing: Count = 0

    @override
    def __post_init__(self) -> None:
        """Take what a site tells as it is: `wrong_column` says what is wrong with it."""


class SiteStatistics(SchemaMember, frozen=True, kw_only=True):
    """Statistics of the table of a site.

    Args:
        schema: digest of the schema.
        rows: their number, rounded.
        classes: number of rows of each class, rounded; 0 stands for fewer than 5.
        columns: by name, those of numbers.
    """

    schema: str
    rows: Count
    classes: Mapping[str, Count] = field(default_factory=dict)
    columns: Mapping[str, ColumnStatistics] = field(default_factory=dict)

    @staticmethod
    def parse(text: bytes, name: str) -> "SiteStatistics":
        """Return the statistics in a JSON text; raise `ValueError` if it holds none.

        Args:
            text: the JSON.
            name: of the file, for messages.
        """
        try:
            return from_json(text, SiteStatistics)
        except ValueError as error:
            raise ValueError(f"{name} holds no statistics of a site: {str(error).rstrip('.')}.") from error

    @property
    def json(self) -> bytes:
        """The text of the file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


class NoStatisticsError(ValueError):
    """No site has statistics that can be.

    Attributes:
        found: what cannot be.
    """

    def __init__(self, found: Sequence[Finding]) -> None:
        said = " ".join(one.sentence for one in found if one.error)
        what = "No site has statistics of any column that can be. Keep the schema, or ask for others."
        super().__init__(f"{what} {said}".rstrip())
        self.found = tuple(found)


class Scaled(NamedTuple):
    """A schema whose scaling sites agreed on.

    Args:
        schema: the schema.
        findings: what does not fit, by site and column.
        known: by column whose scaling is set, the number of sites whose figures it is made of.
        counted: the sites whose numbers of rows can be.
        rule: by which it is made.
    """

    schema: Schema
    findings: tuple[Finding, ...]
    known: Mapping[str, int]
    counted: tuple[str, ...]
    rule: Rule = "median"

    @property
    def tolerates(self) -> int:
        """The number of sites that may lie, and leave each scaling within what the others say."""
        if self.rule == "pooled":
            return 0
        return min(((count - 1) // 2 for count in self.known.values()), default=0)

    @property
    def promise(self) -> str:
        """The same in words, with the column that fewest sites know."""
        if self.rule == "pooled":
            return "no site may lie: it is of all rows together"
        liars = plural(self.tolerates, "site") if self.tolerates else "no site"
        column, count = min(self.known.items(), key=lambda item: item[1], default=("", 0))
        fewest = f": column {column!r} is known at {plural(count, 'site')}" if {*self.known.values()} != {count} else ""
        return f"{liars} may lie{fewest}"


def statistics_of(schema: Schema, path: str, source: TableFile | None = None) -> SiteStatistics:
    """Return the statistics of a file that fits a schema.

    Args:
        schema: the schema.
        path: of the file.
        source: how it is written; None: as the schema says.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it does not fit; or it has fewer than 20 rows.
    """
    frame = schema.read(path, source=source)
    data = schema.dataset(frame)
    if len(data) < LEAST_KNOWN:
        few = f"{path} has {plural(len(data), 'row')}, and statistics need {LEAST_KNOWN}"
        raise ValueError(f"{few}: those of fewer tell too much. Give more rows.")
    if found := tuple(schema.few(len(data))):
        raise UnfitTableError(found, schema)
    read, columns = schema.columns(frame), dict[str, ColumnStatistics]()
    for each in _numbers(schema):
        cells = read[each.name].cells
        known = cells[~np.isnan(cells)]
        missing = rounded(len(cells) - len(known))
        scaling = scaling_of(known) if len(known) >= LEAST_KNOWN else None
        mean, deviation = (None, None) if scaling is None else (scaling.mean, scaling.deviation)
        columns[each.name] = ColumnStatistics(mean=mean, deviation=deviation, missing=missing)
    counts = data.label_counts().tolist() if schema.labels else []
    classes = {str(label): rounded(count) for label, count in zip(schema.labels, counts, strict=True)}
    return SiteStatistics(schema=schema.digest, rows=rounded(len(data)), classes=classes, columns=columns)


def _numbers(schema: Schema) -> list[Field]:
    """Return the columns that have a scaling, that of a target among them."""
    return [each for each in (*schema.inputs_of, schema.target) if each.use.scaling is not None]


def scaled_by(schema: Schema, sites: Mapping[str, SiteStatistics], rule: Rule = "median") -> Scaled:
    """Return a schema with the scaling that sites agree on, and with its mean as what fills gaps.

    Statistics that cannot be are left out, and said; see `phalanx.data.table_impossible`.

    Args:
        schema: the schema.
        sites: by name.
        rule: "median" of the sites' means and deviations; or "pooled": those of all rows together, in which one site
            that lies moves each figure as far as it likes.

    Raises:
        ValueError: statistics are of another schema, or of other columns or classes, or there are none.
    """
    numbers = {each.name: each for each in _numbers(schema)}
    for name, site in sites.items():
        check_schema(schema, name, site)
    found, known = list[Finding](), dict[str, int]()
    counted = {name: site for name, site in sites.items() if not _uncounted(name, site, found)}
    fields = list[Field]()
    for each in schema.fields:
        if each.name not in numbers:
            fields.append(each)
            continue
        if kept := _known(each, counted, found):
            fields.append(_agreed(each, kept, counted, rule, found))
            known[each.name] = len(kept)
            continue
        fields.append(each)
        what = f"No site has statistics of column {each.name!r} that can be: it keeps its scaling."
        found.append(Finding("unknown", each.name, what, error=False))
    if numbers and not known:
        raise NoStatisticsError(found)
    return Scaled(msgspec.structs.replace(schema, fields=tuple(fields)), tuple(found), known, tuple(counted), rule)


def check_schema(schema: Schema, name: str, site: SiteStatistics) -> None:
    """Raise `ValueError` if statistics are of another schema, or of other columns or classes.

    Args:
        schema: the schema.
        name: of the site, for messages.
        site: its statistics.
    """
    if site.schema != schema.digest:
        raise ValueError(f"{name} has statistics by the schema {site.schema[:80]!r}, expected {schema.digest}.")
    if {*site.columns} != {each.name for each in _numbers(schema)}:
        raise ValueError(f"{name} does not have the statistics of the columns with a scaling. Make the file again.")
    if {*site.classes} != {*map(str, schema.labels)}:
        raise ValueError(f"{name} does not have the classes of the schema. Make the file again.")


def _uncounted(name: str, site: SiteStatistics, found: list[Finding]) -> bool:
    """Return whether a site's numbers of rows cannot be; add why."""
    if why := wrong_counts(site.rows, site.classes):
        what = f"{name} is left out: {why}, which cannot be."
        found.append(Finding("impossible", "", what, site=name))
    return bool(why)


def _known(each: Field, sites: Mapping[str, SiteStatistics], found: list[Finding]) -> Mapping[str, Scaling]:
    """Return by site the mean and deviation of a column that can be; add which cannot."""
    known = dict[str, Scaling]()
    for name, site in sites.items():
        one = site.columns[each.name]
        if why := wrong_column(each, site.rows, one.mean, one.deviation, one.missing):
            what = f"{name} is left out in column {each.name!r}: {why}, which cannot be."
            found.append(Finding("impossible", each.name, what, site=name))
        elif one.mean is not None and one.deviation is not None:
            known[name] = Scaling(mean=one.mean, deviation=one.deviation)
    apart = spread_apart({name: own.deviation for name, own in known.items()})
    for name, why in apart.items():
        what = f"{name} is left out in column {each.name!r}: {why}. Is it in another unit?"
        found.append(Finding("impossible", each.name, what, site=name))
    return {name: own for name, own in known.items() if name not in apart}


def _agreed(
    each: Field, known: Mapping[str, Scaling], sites: Mapping[str, SiteStatistics], rule: Rule, found: list[Finding]
) -> Field:
    """Return a column with the scaling of its sites; add which sites are far from it."""
    if rule == "pooled":
        weights = [sites[name].rows - sites[name].columns[each.name].missing for name in known]
        middle = pooled([*known.values()], weights)
    else:
        middle = np.median([[own.mean, own.deviation] for own in known.values()], axis=0).tolist()
    mean, deviation = (float(f"{value:.12g}") for value in middle)
    if question := unit_question(each.name, known):
        found.append(Finding("unit", each.name, question, error=False))
    scaling, impute = Scaling(mean=mean, deviation=deviation, rule=rule), each.use.impute
    if impute is not None and impute.value is not None:
        impute = msgspec.structs.replace(impute, value=mean)
    return msgspec.structs.replace(each, use=msgspec.structs.replace(each.use, scaling=scaling, impute=impute))


def pooled(known: Sequence[Scaling], rows: Sequence[int]) -> tuple[float, float]:
    """Return mean and deviation of the values of several sites together (Chan, Golub and LeVeque 1983).

    Args:
        known: of each site.
        rows: number of values of each.
    """
    total = sum(rows)
    mean = known[0].mean + math.fsum(n * (own.mean - known[0].mean) for n, own in zip(rows, known, strict=True)) / total
    squares = (n * (own.deviation**2 + (own.mean - mean) ** 2) for n, own in zip(rows, known, strict=True))
    return mean, math.sqrt(math.fsum(squares) / total)


def together(sites: Sequence[SiteStatistics]) -> str:
    """Return in a sentence what the sites have together."""
    classes = {name: sum(site.classes.get(name, 0) for site in sites) for name in (sites[0].classes if sites else ())}
    listed = "".join(f", {name} about {count:,}" for name, count in classes.items())
    return f"{plural(len(sites), 'site')}, about {sum(site.rows for site in sites):,} rows{listed}"
