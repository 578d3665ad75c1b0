"""A first schema of a federation, drafted from the tables of its sites, or of one of them.

The draft leaves a site, and its rows are people.  It holds no text of fewer than `LEAST_ROWS` rows; bounds are moved
outwards to a coarse grid, and scaling is rounded.  What it leaves out is said in sentences, which quote cells and stay.
This is no differential privacy: a bound tells an extreme up to a tenth of the range.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.data.findings import (
    LEAST_VALUES,
    MISSING_WORDS,
    Finding,
    as_number_column,
    as_texts,
    counts_rows,
    is_number,
    leaks,
    plainly,
    zeros,
)
from phalanx.data.table_columns import BOOLEANS, Constraints, Field, Imputation, Scaling, Use
from phalanx.data.table_dates import days_of, pattern_of
from phalanx.data.table_files import CSV, Parquet, files_of
from phalanx.data.table_schema import USUAL, Schema, Writing, dates
from phalanx.data.tables import FILE, LARGEST_WHOLE, MOST_VALUES, Dialect, Joined, Name, beyond, joined_of
from phalanx.reading import file_digest, table_reader
from phalanx.wording import plural

LEAST_ROWS = 5  # with a text or a code, below which it is not written
LEAST_KNOWN = 20  # values of a column, below which no bound and no scaling is taken from them
MOST_CODES = 10  # different whole numbers of a column that may be codes
MOST_LABELS = 20  # different whole numbers that are classes
LISTED = 10  # rare texts that a sentence names
APART = 3.0  # deviations between means of sites, from which the unit is in question
TAIL = 0.05  # share of the values at each end at which scaling does not look
CODES = (-9.0, -99.0, -999.0, -9999.0, 999.0, 9999.0, 99999.0)  # numbers that often stand for a missing value

CODED = r"[+-]?0[0-9]+"  # a text of digits that is another one than its number

Numbers = npt.NDArray[np.float64]


class SchemaDraft(NamedTuple):
    """A schema that was drafted.

    Args:
        schema: the draft; None if a finding is an error.
        findings: what is to be decided, with the edit that does it. Sentences may quote cells of the tables.
        rows: number of rows of each file, by its name.
    """

    schema: Schema | None
    findings: tuple[Finding, ...]
    rows: Mapping[str, int]


def draft(
    paths: Sequence[str],
    target: str,
    *,
    owner: str | None = None,
    drop: Collection[str] = (),
    codes: Collection[str] = (),
    zeros: Collection[str] = (),
    classes: Mapping[str, Sequence[Name]] | None = None,
    dialect: Dialect | None = None,
    indicator: bool = False,
) -> SchemaDraft:
    """Return a first schema of tables.

    Args:
        paths: files, or patterns of such, each of one site.
        target: column of the labels or targets.
        owner: column of the owner of a row.
        drop: columns that are no inputs.
        codes: columns of whole numbers that are codes of kinds: each code becomes an input of 0 and 1.
        zeros: columns in which 0 stands for a missing value.
        classes: by class, the labels that it joins; None: each label is a class.
        dialect: how the files are written; `missing` adds words for a missing value.
        indicator: whether an input more is 1 where a value is missing, for each column of which some are.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file is no table, or lacks a column that is named.
    """
    writes = dialect or Dialect()
    CSV("", target, separator=writes.separator, decimal=writes.decimal, thousands=writes.thousands)  # or raises
    files, same = _different([file for path in paths for file in files_of(path, None) or [Path(path)]])
    called = Counter(file.name for file in files)
    sites = [_site(file, file.name if called[file.name] == 1 else str(file), target, writes) for file in files]
    roles = _Roles(target, owner, tuple(drop), frozenset(codes), frozenset(zeros), joined_of(classes), indicator)
    return _Drafting(sites, roles, writes, same).draft


def _different(files: Sequence[Path]) -> tuple[list[Path], list[Finding]]:
    """Return the files of different contents, and what is said of the others."""
    kept, found = dict[str, Path](), list[Finding]()
    for file in files:
        digest = file_digest(file) or str(file)
        if digest in kept:
            what = f"{file} has the contents of {kept[digest]}, and is counted once."
            found.append(Finding("twice", "", what, error=False))
        kept.setdefault(digest, file)
    return [*kept.values()], found


class _Roles(NamedTuple):
    """What a user says of columns; see `draft`."""

    target: str
    owner: str | None
    drop: tuple[str, ...]
    codes: frozenset[str]
    zeros: frozenset[str]
    joined: Joined
    indicator: bool


@dataclass(frozen=True)
class _Site:
    """The table of a site, whose cells are as they are written."""

    name: str
    frame: Any


def _site(file: Path, name: str, target: str, writes: Dialect) -> _Site:
    """Return the table in a file."""
    if table_reader(str(file)) == "Parquet":
        return _Site(name, Parquet(str(file), target).frame(str(file), None))
    source = CSV(str(file), target, separator=writes.separator, missing=())
    names = list(map(str, source.frame(str(file), None).columns))
    return _Site(name, source.frame(str(file), None, texts=names))


class _Column(NamedTuple):
    """A column of all sites.

    Args:
        values: (n,), numbers, NaN where one is missing; or texts, None where one is missing.
        words: for a missing value that it holds.
        codes: numbers that are taken for a missing value.
        site: (n,), the number of the site of each row.
        pattern: how the dates are written that the numbers are days of; empty if they are none.
    """

    values: npt.NDArray[Any]
    words: tuple[str, ...]
    codes: tuple[float, ...]
    site: npt.NDArray[np.int64]
    pattern: str = ""

    @property
    def text(self) -> bool:
        """Whether it holds texts."""
        return self.values.dtype.kind == "O"

    @property
    def empty(self) -> npt.NDArray[np.bool_]:
        """(n,), where a value is missing."""
        found: npt.NDArray[np.bool_] = self.values == None if self.text else np.isnan(self.values)  # noqa: E711
        return found

    @property
    def known(self) -> npt.NDArray[Any]:
        """The values that are there."""
        return self.values[~self.empty]


class _Drafting:
    """A draft in the making; its findings are collected on the way."""

    def __init__(self, sites: Sequence[_Site], roles: _Roles, writes: Dialect, found: Sequence[Finding]) -> None:
        self.sites, self.roles, self.writes, self.found = sites, roles, writes, [*found]
        self.labels = {str(label) for _, of in roles.joined for label in of}
        self.target, self.listed = roles.target, {*(writes.missing or ())}
        apart = [roles.target, *([] if roles.owner is None else [roles.owner]), *roles.drop]
        if len({*apart}) < len(apart) or {*apart} & (roles.codes | roles.zeros):
            raise ValueError(f"target, owner, drop and codes must be different columns, got {', '.join(apart)}.")
        named = [*apart, *sorted(roles.codes | roles.zeros)]
        for site in sites:
            if missing := [name for name in named if name not in site.frame.columns]:
                hint = " If this is several columns, set --separator." if len(site.frame.columns) == 1 else ""
                raise ValueError(
                    f"{site.name} has no column {' or '.join(map(repr, missing))}; its columns are "
                    f"{', '.join(map(repr, site.frame.columns))}. Name one of them.{hint}"
                )
        self.names = [str(name) for name in sites[0].frame.columns if all(name in s.frame.columns for s in sites)]

    # --- the whole

    @property
    def draft(self) -> SchemaDraft:
        """The draft."""
        rows = {site.name: len(site.frame) for site in self.sites}
        total = sum(rows.values())
        if total < LEAST_KNOWN:
            few = f"A draft needs {LEAST_KNOWN} rows, and has {total}: it would tell about single ones. Give more rows."
            return SchemaDraft(None, (Finding("rows", "", few),), rows)
        self._say_lacking()
        if self.roles.owner is not None and (empty := int(self._column(self.roles.owner).empty.sum())):
            what = f"Owner {self.roles.owner!r} is missing in {empty:,} of {plural(total, 'row')}"
            self._ask("missing", self.roles.owner, f"{what}. Fill these cells, or leave out the rows.")
        fields = [self._field(name) for name in self.names if name not in self._others]
        others = [(self.roles.owner, "owner"), *((name, "dropped") for name in self.roles.drop)]
        fields += [Field(name=n, type="string", use=Use(role=role)) for n, role in others if n is not None]  # type: ignore[arg-type]
        fields.append(self._target())
        for each in fields:
            if each.use.role == "input" or (each.use.role == "target" and not self.roles.joined):
                self._say_coding(each.name, self._column(each.name))
        self._say_leaks(fields)
        self._say_scaling(fields)
        used = [each.name for each in fields if each.use.role in ("input", "target")]
        values = {str(value) for each in fields if each.name in used for value in each.values}
        if self.roles.owner is not None:
            values |= {str(owner).strip() for owner in self._column(self.roles.owner).known.tolist()}
        words = {*chain.from_iterable(self._column(name).words for name in used)} | self.listed
        missing = ("", *sorted(words - values))  # a reader takes those of the table for missing in every column
        fields = [self._with_words(each, missing) if each.name in used else each for each in fields]
        if not any(each.use.role == "input" for each in fields):
            self._error("column", "", "No column is left for the inputs. Drop fewer.")
        writing = Writing(delimiter=self.writes.separator, decimal=self.writes.decimal, thousands=self.writes.thousands)
        wrong = any(one.error for one in self.found)
        schema = None if wrong else Schema(fields=tuple(fields), missing_values=missing, writing=writing)
        return SchemaDraft(schema, tuple(sorted(self.found, key=lambda one: not one.error)), rows)

    @cached_property
    def _others(self) -> set[str]:
        """The columns that are no inputs."""
        return {self.target, *([] if self.roles.owner is None else [self.roles.owner]), *self.roles.drop, FILE}

    def _ask(self, code: str, name: str, sentence: str) -> None:
        self.found.append(Finding(code, name, sentence, error=False))

    def _error(self, code: str, name: str, sentence: str) -> None:
        self.found.append(Finding(code, name, sentence))

    def _say_lacking(self) -> None:
        every = dict.fromkeys(str(name) for site in self.sites for name in site.frame.columns)
        for name in [name for name in every if name not in {*self.names}]:
            if name not in self._others:
                having = [site.name for site in self.sites if name in site.frame.columns]
                self._ask(
                    "column",
                    name,
                    f"Column {name!r} is only in {', '.join(having)}, and left out. Rename it, or add it to all.",
                )

    # --- cells

    def _column(self, name: str) -> _Column:
        if name not in self._columns:
            self._columns[name] = self._as_read(name)
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, _Column]:
        return {}

    def _as_read(self, name: str) -> _Column:
        """Return a column of all sites as numbers or as texts."""
        parts = [site.frame[name] for site in self.sites]
        site = np.concatenate([np.full(len(part), k) for k, part in enumerate(parts)])
        if all(part.dtype.kind in "iuf" for part in parts):
            values = np.concatenate([part.to_numpy(dtype=np.float64, na_value=np.nan) for part in parts])
            return self._without_codes(name, values, (), site)
        texts = np.concatenate([part.astype(str).to_numpy(dtype=object) for part in parts])
        texts[np.concatenate([part.isna().to_numpy(dtype=bool) for part in parts])] = None
        different = dict.fromkeys(text for text in texts if text is not None)
        labels = self.labels if name == self.target else set[str]()
        usual = {text: text.strip() not in labels and self._is_word(text) for text in different}
        numbers = {text: self._number(text) for text, word in usual.items() if not word}
        coded = name == self.target and any(re.fullmatch(CODED, text.strip()) for text in different)
        if numbers and not coded and all(number is not None for number in numbers.values()):
            held = {text: math.nan if word else numbers[text] for text, word in usual.items()}
            values = np.array([math.nan if text is None else held[text] for text in texts], dtype=np.float64)
            return self._without_codes(name, values, self._words(usual), site)
        words = {text for text in different if text.strip() in {*USUAL, "?", *self.listed} - labels}
        values = np.array([None if text is None or text in words else text for text in texts], dtype=object)
        try:
            pattern = pattern_of([text for text in different if text not in words], name)
        except ValueError as error:
            pattern = ""
            self._error("date", name, str(error).replace("in missing", "in --missing"))
        if pattern:
            days = days_of(values, pattern)
            return _Column(days, self._words(dict.fromkeys(words, True)), (), site, pattern)
        return _Column(values, self._words(dict.fromkeys(words, True)), (), site)

    def _is_word(self, text: str) -> bool:
        return text.strip() in self.listed or text.strip().lower() in MISSING_WORDS or text.strip() in USUAL

    @staticmethod
    def _words(usual: Mapping[str, bool]) -> tuple[str, ...]:
        return tuple(sorted({text.strip() for text, word in usual.items() if word} - {""}))

    def _number(self, text: str) -> float | None:
        """Return the number that a text is, as the files are written; None if it is none."""
        plain = text.strip()
        if self.writes.thousands is not None:
            plain = plain.replace(self.writes.thousands, "")
        if self.writes.decimal != "." and "." not in plain:
            plain = plain.replace(self.writes.decimal, ".")
        return float(plain) if is_number(plain) else None

    def _without_codes(self, name: str, values: Numbers, words: tuple[str, ...], site: Any) -> _Column:
        """Return a column of numbers, without those that stand for a missing value."""
        codes = [float(word) for word in self.listed if is_number(word)]
        values = np.where(np.isin(values, codes), np.nan, values)
        found = [0.0] if name in self.roles.zeros else list[float]()
        values = np.where(np.isin(values, found), np.nan, values)
        for code in CODES if name not in self._others else ():
            others, count = values[(values != code) & ~np.isnan(values)], int((values == code).sum())
            apart = len(others) and (others.min() >= 0 if code < 0 else others.max() < code / 2)
            if count >= LEAST_ROWS and apart and len(np.unique(others)) >= LEAST_VALUES:
                found.append(code)
                self._ask(
                    "missing",
                    name,
                    f"Column {name!r} is {code:g} in {plural(count, 'row')}, far from all others: taken as missing. If "
                    f'it is a number, take "{code:g}" out of missingValues of this column.',
                )
        return _Column(np.where(np.isin(values, found), np.nan, values), words, tuple(found), site)

    def _with_words(self, described: Field, words: Sequence[str]) -> Field:
        """Return the description of a column with what stands for a missing value in it alone."""
        column = self._column(described.name)
        own = {*column.words} - {*words} | {f"{code:g}" for code in column.codes}
        return msgspec.structs.replace(described, missing_values=(*words, *sorted(own))) if own else described

    # --- inputs

    def _field(self, name: str) -> Field:
        column = self._column(name)
        if not len(column.known):
            return self._dropped(name, "empty", "is empty")
        if column.pattern:
            return self._days(name, column)
        if name in self.roles.codes:
            return self._codes(name, column)
        if not column.text:
            return self._numbers(name, column)
        if {str(text).strip().lower() for text in column.known} <= BOOLEANS.keys():
            return Field(name=name, type="boolean", use=Use(impute=self._imputed(name, column, 0.0)))
        return self._texts(name, column)

    def _days(self, name: str, column: _Column) -> Field:
        """Return the description of a column of dates; no bound, which would be a date of a person."""
        if len(column.known) < LEAST_KNOWN:
            return self._dropped(name, "few", f"has {plural(len(column.known), 'date')}, too few for a scaling")
        what = f"Column {name!r} holds dates as {column.pattern}, and becomes days since 1970-01-01"
        self._ask("date", name, f"{what}. If they only tell when a row was written, drop it.")
        scaling = _drafted(column.known, bounds_of(column.known))
        use = Use(scaling=scaling, impute=self._imputed(name, column, scaling.mean))
        return dates(name, column.pattern, use)

    def _dropped(self, name: str, code: str, why: str) -> Field:
        self._ask(
            code, name, f'Column {name!r} {why}: its role is "dropped". If it is measured, describe it as an input.'
        )
        return Field(name=name, type="string", use=Use(role="dropped"))

    def _imputed(self, name: str, column: _Column, value: float | None) -> Imputation | None:
        empty = column.empty
        if not empty.any():
            return None
        of = f"is missing in {int(empty.sum()):,} of {plural(len(empty), 'row')}"
        whole = [site.name for k, site in enumerate(self.sites) if empty[column.site == k].all()]
        where = f", in {', '.join(whole)} in all" if whole and len(self.sites) > 1 else ""
        how = "each of its inputs is 0 then" if value is None else f"it is filled with {value:g}"
        more = '. For an input more that says so set "indicator": true in impute'
        more = ", and an input more says so" if self.roles.indicator else more
        self._ask("missing", name, f"Column {name!r} {of}{where}: {how}{more}.")
        return Imputation(value=value, indicator=self.roles.indicator)

    def _numbers(self, name: str, column: _Column) -> Field:
        values: Numbers = column.known
        if any(counts_rows(column.values[column.site == k]) for k in range(len(self.sites))):
            return self._dropped(name, "rows", "numbers the rows")
        if beyond(values).any():
            self._error(
                "number", name, f"Column {name!r} holds numbers beyond 3.4e38. Correct them, or drop the column."
            )
            return Field(name=name, type="string", use=Use(role="dropped"))
        if (values % 1 == 0).all() and (abs(values) > LARGEST_WHOLE).any():
            why = f"holds whole numbers beyond {LARGEST_WHOLE:,}, which float64 does not tell apart"
            return self._dropped(name, "number", why)
        if len(values) < LEAST_KNOWN:
            return self._dropped(name, "few", f"has {plural(len(values), 'value')}, too few for a range and a scaling")
        self._say_doubts(name, column)
        bounds = bounds_of(values)
        scaling = _drafted(values, bounds)
        use = Use(scaling=scaling, impute=self._imputed(name, column, scaling.mean))
        return Field(name=name, type="number", constraints=bounds, use=use)

    def _say_doubts(self, name: str, column: _Column) -> None:
        values: Numbers = column.known
        different, whole = np.unique(values), bool((values % 1 == 0).all())
        if whole and 2 < len(different) <= MOST_CODES:
            self._ask(
                "codes",
                name,
                f"Column {name!r} holds {len(different)} different whole numbers. If they are codes of kinds, give "
                f"--codes {name}.",
            )
        if whole and len(different) == len(values) == len(column.values):
            self._ask(
                "identifier", name, f"Column {name!r} tells all rows apart. If it is a number of a patient, drop it."
            )
        remedy = f"If 0 stands for a missing value in it at every site, give --zeros {name}."
        empty = [
            site.name
            for k, site in enumerate(self.sites)
            if (column.values[column.site == k] == 0).sum() == (~column.empty[column.site == k]).sum() > 0
        ]
        if empty and len(empty) < len(self.sites) and len(different) > 2:
            rows = sum(
                int((~column.empty[column.site == k]).sum()) for k, s in enumerate(self.sites) if s.name in empty
            )
            what = f"is 0 in all {plural(rows, 'row')} of {', '.join(empty)} that have a value, and not in the others"
            self._ask("zero", name, f"Column {name!r} {what}. {remedy}")
        else:
            for one in zeros({name: column.values}):
                zero = int((column.values == 0).sum())
                what = f"is 0 in {zero:,} of {plural(len(column.values), 'row')}, and far above in all others"
                self._ask("zero", one.name, f"Column {name!r} {what}. {remedy}")

    def _codes(self, name: str, column: _Column) -> Field:
        """Return the description of a column of codes."""
        if column.text or (column.known % 1 != 0).any() or (abs(column.known) > LARGEST_WHOLE).any():
            self._error("codes", name, f"Column {name!r} does not hold whole numbers alone. Leave it out of --codes.")
            return Field(name=name, type="string", use=Use(role="dropped"))
        counts = Counter(int(value) for value in column.known)
        kept = self._not_rare(name, counts, "code")
        if not kept:
            return self._dropped(name, "rare", "has no code that is frequent")
        aliases: Mapping[str, tuple[Name, ...]] = {str(code): (code,) for code in kept}
        use = Use(aliases=aliases, impute=self._imputed(name, column, None))
        return Field(name=name, type="string", categories=tuple(aliases), use=use)

    def _texts(self, name: str, column: _Column) -> Field:
        counts = Counter(map(str, column.known))
        if why := self._not_numbers(name, counts):
            self._error("number", name, why)
            return Field(name=name, type="string", use=Use(role="dropped"))
        if len(counts) > MOST_VALUES:
            return self._dropped(name, "identifier", f"has {len(counts):,} different texts")
        kept = self._not_rare(name, counts, "text")
        if not kept:
            return self._dropped(name, "rare", "has no text that is frequent")
        self._say_taken(name, column)
        self._say_words(name, counts)
        self._say_many(name, kept)
        categories, aliases = self._joined_spellings(name, kept)
        use = Use(aliases=aliases, impute=self._imputed(name, column, None))
        return Field(name=name, type="string", categories=categories, use=use)

    def _not_numbers(self, name: str, counts: Counter[str]) -> str:
        """Return why a column of texts is one of numbers with a mistake; empty if it is none."""
        numbers = [text for text in counts if self._number(text) is not None]
        others = [text for text in counts if self._number(text) is None]
        if found := as_number_column([*counts]):
            remedy = found.remedy.replace("Set decimal or thousands", "Set --decimal or --thousands")
            remedy = remedy.replace("Set thousands", "Set --thousands").replace("in missing", "in --missing")
            return f"Column {name!r} {found.what}: {found.text!r}. {remedy}"
        if len(numbers) > len(others) and len(counts) > MOST_CODES:
            listed = ", ".join(map(repr, others[:LISTED]))
            return f"Column {name!r} holds numbers, and {listed}. Correct it, list it in --missing, or drop the column."
        return ""

    def _not_rare(self, name: str, counts: Counter[Any], what: str) -> dict[Any, int]:
        """Return what enough rows hold, sorted; say what the draft leaves out."""
        kept = {value: counts[value] for value in sorted(counts) if counts[value] >= LEAST_ROWS}
        rare = {value: count for value, count in counts.most_common() if count < LEAST_ROWS}
        if rare:
            listed = ", ".join(f"{value!r} ({count})" for value, count in [*rare.items()][:LISTED])
            more = ", ..." if len(rare) > LISTED else ""
            rows = plural(sum(rare.values()), "row")
            self._ask(
                "rare",
                name,
                f"Column {name!r} has {plural(len(rare), what)} of fewer than {LEAST_ROWS} rows, in {rows}: {listed}"
                f"{more}. They are not in the schema. Add those that all sites may know to categories, or map them in "
                "aliases; rows with others do not fit.",
            )
        return kept

    def _joined_spellings(
        self, name: str, kept: Mapping[str, int]
    ) -> tuple[tuple[str, ...], Mapping[str, tuple[Name, ...]]]:
        """Return the categories among texts, the most frequent spelling of each, and the others as aliases."""
        by_plain = dict[str, list[str]]()
        for text in sorted(kept, key=lambda each: (-kept[each], each)):
            key = text if re.fullmatch(CODED, text.strip()) else plainly(text) or text
            by_plain.setdefault(key, []).append(text)
        aliases = dict[str, tuple[Name, ...]]()
        for category, *others in by_plain.values():
            if others:
                aliases[category] = tuple(others)
                listed = " and ".join(map(repr, [category, *others]))
                self._ask(
                    "near",
                    name,
                    f"{listed} of column {name!r} differ by spelling only, and are one category. If they are not, make "
                    "them categories in place of aliases.",
                )
        return tuple(sorted(of[0] for of in by_plain.values())), aliases

    def _say_many(self, name: str, kept: Mapping[str, int]) -> None:
        if len(kept) > MOST_CODES and np.median([*kept.values()]) < LEAST_KNOWN:
            listed = ", ".join(map(repr, [*kept][:3]))
            self._ask(
                "identifier",
                name,
                f"Column {name!r} has {len(kept)} texts of few rows each, and all are in the schema: {listed}, ... If "
                "they name persons, drop it.",
            )

    def _say_coding(self, name: str, column: _Column) -> None:
        """Ask where sites seem to write a column in different ways."""
        parts = {site.name: column.values[~column.empty & (column.site == k)] for k, site in enumerate(self.sites)}
        parts = {site: values for site, values in parts.items() if len(values)}
        if not column.text:
            self._say_units(name, parts)
        texts = parts if column.text else {}
        numbers = [site for site, of in texts.items() if all(self._number(text) is not None for text in {*of})]
        if numbers and (others := [site for site in parts if site not in numbers]):
            what = f"Column {name!r} holds numbers in {', '.join(numbers)}, and texts in {', '.join(others)}"
            self._ask("coding", name, f"{what}. If they mean the same, join them in aliases, or write them alike.")
            return
        if column.text or (column.known % 1 == 0).all():
            most = MOST_VALUES if column.text else MOST_CODES
            kinds = {site: {plainly(str(v)) or str(v) if column.text else v for v in of} for site, of in parts.items()}
            for one, other in combinations(kinds, 2):
                if max(len(kinds[one]), len(kinds[other])) <= most and not kinds[one] & kinds[other]:
                    what = f"Column {name!r} has no value that is in both {one} and {other}"
                    self._ask("coding", name, f"{what}. If they code it in different ways, write it alike at all.")
                    return

    def _say_units(self, name: str, parts: Mapping[str, Numbers]) -> None:
        known = {site: own for site, of in parts.items() if len(of) >= LEAST_KNOWN and (own := scaling_of(of))}
        if known and (question := unit_question(name, known)):
            self._ask("unit", name, question)

    def _say_taken(self, name: str, column: _Column) -> None:
        for word in column.words:
            if word not in self.listed and word != "?":
                self._ask(
                    "missing",
                    name,
                    f"{word!r} in column {name!r} is taken as missing. If it is a value, take it out of missingValues, "
                    "and add it to categories.",
                )

    def _say_words(self, name: str, counts: Counter[str]) -> None:
        for text in counts:
            if text.strip().lower() in MISSING_WORDS:
                self._ask(
                    "missing",
                    name,
                    f"{text!r} in column {name!r} is a category. If it stands for a missing value, give --missing "
                    f"{text.strip()!r}.",
                )

    # --- the target

    def _target(self) -> Field:
        name, column = self.target, self._column(self.target)
        if empty := int(column.empty.sum()):
            rows = plural(len(column.values), "row")
            self._ask("missing", name, f"Target {name!r} is missing in {empty:,} of {rows}. Leave out these rows.")
        self._say_taken(name, column)
        if column.pattern:
            self._error("target", name, f"Target {name!r} holds dates or times. Name another column.")
            return self._classes(name, ("?",), {})
        if self.roles.joined:
            return self._joined_target(name, column)
        if column.text:
            counts = Counter(str(text).strip() for text in column.known)
            if len(counts) > MOST_VALUES:
                self._error(
                    "target", name, f"Target {name!r} has {len(counts):,} different texts. Name another column."
                )
            if why := self._not_numbers(name, counts):
                self._error("number", name, why)
            self._say_words(name, counts)
            kept_texts = self._not_rare(name, counts, "class")
            self._say_lacking_classes(name, column, kept_texts)
            categories, aliases = self._joined_spellings(name, kept_texts)
            return self._classes(name, categories, aliases)
        values: Numbers = column.known
        if (abs(values) > LARGEST_WHOLE).any():
            self._error("target", name, f"Target {name!r} holds numbers beyond {LARGEST_WHOLE:,}. Use another unit.")
            return self._classes(name, ("?",), {})
        counts_of_numbers = Counter(values.tolist())
        if len(counts_of_numbers) <= MOST_LABELS and all(value % 1 == 0 for value in counts_of_numbers):
            kept = self._not_rare(name, Counter({int(v): n for v, n in counts_of_numbers.items()}), "class")
            self._say_lacking_classes(name, column, kept)
            if len(kept) > 2:
                some = ", ".join(map(str, [*kept][:LISTED]))
                self._ask("classes", name, f"Target {name!r} has the classes {some}. To join some, give --classes.")
            return self._classes(name, tuple(kept), {})
        self._ask("target", name, f"Target {name!r} is a number: the task is Regression. Write its unit.")
        bounds = bounds_of(values)
        use = Use(role="target", scaling=_drafted(values, bounds))
        return Field(name=name, type="number", constraints=bounds, use=use)

    def _say_lacking_classes(self, name: str, column: _Column, kept: Collection[Any]) -> None:
        """Ask which sites know fewer classes than others: they may join labels that the others tell apart."""
        classes = {plainly(str(each)): str(each) for each in kept}
        fewer = list[str]()
        for k, site in enumerate(self.sites):
            known = {plainly(str(value)) for value in column.values[~column.empty & (column.site == k)]}
            if missing := classes.keys() - known:
                listed = ", ".join(each for plain, each in classes.items() if plain not in missing)
                fewer.append(f"{site.name} has {f'only {listed}' if listed else 'none of them'}")
        if fewer and len(classes) > 2:
            what = f"Target {name!r} has {len(classes)} classes, and {'; '.join(fewer)}"
            self._ask("classes", name, f"{what}. If a site joins labels that others tell apart, give --classes.")

    def _joined_target(self, name: str, column: _Column) -> Field:
        """Return the description of a target whose classes join labels."""
        labels = {label for _, of in self.roles.joined for label in of}
        counts = Counter(str(value).strip() if column.text else value for value in column.known.tolist())
        unknown = {v: count for v, count in counts.items() if v not in labels and str(v) not in self.labels}
        if unknown:
            listed = ", ".join(
                f"{value:g}" if isinstance(value, float) else repr(value) for value in [*unknown][:LISTED]
            )
            rows = plural(sum(unknown.values()), "row")
            self._error("classes", name, f"Target {name!r} is {listed} in {rows}, which is in no class of --classes.")
        return self._classes(name, tuple(each for each, _ in self.roles.joined), dict(self.roles.joined))

    def _classes(self, name: str, classes: Sequence[Name], aliases: Mapping[str, tuple[Name, ...]]) -> Field:
        if not classes:
            self._error("target", name, f"Target {name!r} has no class of {LEAST_ROWS} rows. Name another column.")
            classes = ("?",)
        elif len(classes) == 1:
            only = f"Target {name!r} has the class {classes[0]!r} alone. Add those of other sites to categories."
            self._ask("target", name, only)
        whole = not any(isinstance(each, str) for each in classes)
        kind: Literal["integer", "string"] = "integer" if whole else "string"
        return Field(name=name, type=kind, categories=tuple(classes), use=Use(role="target", aliases=aliases))

    # --- all columns together

    def _say_leaks(self, fields: Sequence[Field]) -> None:
        target, column = fields[-1], self._column(self.target)
        if not target.categories:
            return
        known = ~column.empty
        labels = np.unique(as_texts(column.values[known]), return_inverse=True)[1]
        inputs = {each.name: self._column(each.name).values[known] for each in fields if each.use.role == "input"}
        shown = {name: as_texts(values) if values.dtype.kind == "O" else values for name, values in inputs.items()}
        for one in leaks(shown, labels):
            if one.code == "leak":
                self._ask(
                    "leak", one.name, f"Column {one.name!r} alone predicts the target. Unless it is measured, drop it."
                )

    def _say_scaling(self, fields: Sequence[Field]) -> None:
        numbers = [each.name for each in fields if each.use.scaling is not None]
        if not numbers:
            return
        rows, files = plural(sum(len(site.frame) for site in self.sites), "row"), len(self.sites)
        where = f"{rows} of {files} files" if files > 1 else f"{rows} of one file; other sites may differ from it"
        self._ask(
            "scaling",
            "",
            f"The scaling of {plural(len(numbers), 'column')} is fixed, from {where}. Extremes do not move it.",
        )
        complete = sum(each.use.role == "input" and each.use.impute is None for each in fields)
        if files == 1 and complete:
            whole = f"No value is missing here of {plural(complete, 'column')}, and none may be at any site"
            self._ask("impute", "", f"{whole}. Add impute where sites may lack some.")
        units = f"No unit is known of {plural(len(numbers), 'column')} of numbers"
        self._ask("unit", "", f'{units}. Write each as "unit" under phalanx, such as "mg/dL".')


def scaling_of(values: Numbers) -> Scaling | None:
    """Return mean and deviation of values without their tails, both rounded to two digits of the deviation.

    A tail is a twentieth of the values, and `LEAST_ROWS` at least, so that no figure tells of fewer rows.  None if all
    others are equal, or there are none.
    """
    tail = max(math.ceil(TAIL * (len(values) - 1)), LEAST_ROWS)
    if len(values) <= 2 * tail:
        return None
    ordered = np.sort(values)
    clipped = np.clip(ordered, ordered[tail], ordered[-1 - tail])
    if (deviation := float(clipped.std())) <= 1e-9 * float(abs(clipped).max()):
        return None
    digits = 1 - math.floor(math.log10(deviation))
    return Scaling(mean=round(float(clipped.mean()), digits), deviation=float(f"{deviation:.2g}"))


def unit_question(name: str, sites: Mapping[str, Scaling]) -> str:
    """Return the question whether some sites measure a column in another unit; empty if their means are alike."""
    mean, deviation = np.median([[own.mean, own.deviation] for own in sites.values()], axis=0)
    apart = [site for site, own in sites.items() if abs(own.mean - mean) > APART * deviation]
    what = f"{', '.join(apart)}: the mean of column {name!r} is {APART:g} deviations from that of the others"
    return f"{what}. Is it in another unit?" if apart else ""


def _drafted(values: Numbers, bounds: Constraints) -> Scaling:
    """Return the scaling of values; if nearly all are equal, that value and a quarter of the range of the bounds."""
    width = (bounds.maximum or 0.0) - (bounds.minimum or 0.0)
    return scaling_of(values) or Scaling(mean=float(np.median(values)), deviation=float(f"{width / 4:.2g}") or 1.0)


def bounds_of(values: Numbers) -> Constraints:
    """Return bounds outside of all values: on a grid of a tenth of the range, with two digits at most.

    Codes that enough rows have at both ends are bounds themselves, and 0 is where no number is negative.
    """
    low, high = float(values.min()), float(values.max())
    if len(np.unique(values)) <= MOST_CODES and min((values == low).sum(), (values == high).sum()) >= LEAST_ROWS:
        return Constraints(minimum=low, maximum=high)
    whole = bool((values % 1 == 0).all())
    step = max(_nice((high - low) / 10 or abs(high) / 10 or 1.0), 2.0 if whole else 0.0)
    return Constraints(
        minimum=max(_beyond(low, step, -1), 0.0) if low >= 0 else _beyond(low, step, -1),
        maximum=min(_beyond(high, step, 1), 0.0) if high <= 0 else _beyond(high, step, 1),
    )


def _nice(number: float) -> float:
    """Return the first of 1, 2 and 5 times a power of ten that is not below a number."""
    power = 10.0 ** math.floor(math.log10(number))
    return float(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= number * (1 - 1e-12)))


def _beyond(value: float, step: float, sign: int) -> float:
    """Return the next number outwards on the grid of a step, or on that of two digits if it is coarser."""
    step = max(step, 10.0 ** (math.floor(math.log10(abs(value))) - 1)) if value else step
    k = math.floor(value / step) + 1 if sign > 0 else math.ceil(value / step) - 1
    return float(f"{k * step:.12g}")
