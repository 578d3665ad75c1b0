"""Findings about data and models before a run begins: what would make its result wrong, and what may be meant."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.wording import plural

LEAST_ROWS = 20  # below which a column can predict the labels by chance
MOST_CLASSES = 50  # labels that a column is compared with
WRONG = 0.005  # share of rows in which a column that predicts the labels may be wrong
LEAST_CODES = 3  # different numbers of a column in which one such as -9 or 999 is noticed
LEAST_VALUES = 10  # different numbers above 0 of a column in which 0 is noticed
SOME_VALUES = 20  # of a column of text, above which it seems to hold numbers with a unit, or names of the rows
FEW_ROWS = 5  # for each text of a column, below which these seem to be names of the rows
FAR = 3.0  # ranges of the other numbers of a column, between these and one that may stand for a missing value
MERGED = 2.5e-4  # rounding, as a share of a column's range, above which different values are one in float32
SHOWN = 5  # findings of one kind that are listed

BOUND = "a bound, such as <"
MISSING_WORDS = frozenset({"?", "-", "--", ".", "*", "n/a", "na", "nan", "none", "null", "nil", "missing", "unknown"})
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2013\u2014\ufe63\uff0d", "-"))
_SPACES = str.maketrans(dict.fromkeys("\u00a0\u2009\u202f'\u2019_ ", ""))
_SEPARATED = re.compile(r"[+-]?\d+([.,]\d+)+([eE][+-]?\d+)?|[+-]?[.,]\d+")
_BOUND = re.compile(r"[<>\u2264\u2265~\u2248=]+")
_AFFIXED = re.compile(r"([^\w.+-]*)([+-]?[\d.]+)([^\d]*)")  # a sign such as (, a number, and a unit such as mg
_UNIT = re.compile(r"[%\u20ac$\u00a3]")


@dataclass(frozen=True)
class Finding:
    """One finding about a run before it begins.

    Args:
        code: its kind, such as "leak".
        name: what it is about: a column, a label, a parameter, a client.
        sentence: what was found, and what to do.
        error: whether the result would be wrong; if not, it is a remark.
        rows: number of rows of a table in which it was found; 0 if it is not about rows.
        first: the first of them, from 1; 0 if it is not about rows.
        site: the site that it is about; empty if it is about none.
    """

    code: str
    name: str
    sentence: str
    error: bool = True
    rows: int = 0
    first: int = 0
    site: str = ""

    @property
    def key(self) -> str:
        """The name by which it is accepted: CODE:NAME."""
        return f"{self.code}:{self.name}"


# --- texts


def is_number(text: str) -> bool:
    """Return whether a text is a number as a program writes it."""
    try:
        float(text)
    except ValueError:
        return False
    return (
        text.strip().isascii()
        and not re.fullmatch(r"[+-]?(nan|inf|infinity)", text.strip(), re.IGNORECASE)
        and "_" not in text
    )


def notation(text: str) -> str:
    """Return how a text that is meant as a number is written: "decimal", "thousands", ...; empty if it is none."""
    if is_number(text):
        return ""
    plain = text.strip().translate(_MINUS)
    if is_number(_digits(plain)):
        return "a sign that is no minus (U+002D)" if is_number(plain) else "digits other than 0 to 9"
    if _BOUND.match(plain) and (is_number(rest := _BOUND.sub("", plain, count=1)) or _SEPARATED.fullmatch(rest)):
        return BOUND
    if (bare := _UNIT.sub("", plain).strip()) != plain and (is_number(bare) or _SEPARATED.fullmatch(bare)):
        return "a unit"
    joined = plain.translate(_SPACES)
    if joined != plain and (is_number(joined) or _SEPARATED.fullmatch(joined)) and re.match(r"[+-]?\d{1,3}\D", plain):
        return "digits in groups"
    return "a comma" if _SEPARATED.fullmatch(plain) and "," in plain else ""


def _digits(text: str) -> str:
    """Return a text with 0 to 9 in place of the digits of other scripts."""
    return "".join(str(unicodedata.decimal(c, c)) for c in text)


class Misread(NamedTuple):
    """Why a column of numbers was read as text.

    Args:
        text: the first cell that is no number. No message quotes it, unless it is a usual word for a missing value.
        what: the column holds.
        remedy: for that.
    """

    text: str
    what: str
    remedy: str


def as_number_column(values: Sequence[str]) -> Misread | None:
    """Return why texts are a column of numbers that was read as text; None if it is none.

    Args:
        values: its different texts.
    """
    words = [v for v in values if v.strip().lower() in MISSING_WORDS]
    others = [v for v in values if v.strip().lower() not in MISSING_WORDS]
    numbers, written = [v for v in others if is_number(v)], {v: how for v in others if (how := notation(v))}
    alike = len(numbers) + sum(how != BOUND or bool(numbers) for how in written.values())
    if not (words or written) or not alike or 2 * alike < len(others):
        return None
    if written:
        text, how = next(iter(written.items()))
        remedy = {
            "a comma": "Set decimal or thousands to the sign that it stands for",
            "digits in groups": "Set thousands to what separates the groups",
        }.get(how, "Correct it in the file")
        return Misread(text, f"holds a number with {how}", f"{remedy}, or drop the column.")
    remedy = "If that is a missing value, list it in missing, and set impute; or drop the column."
    return Misread(words[0], f"holds {words[0]!r} among numbers", remedy)


def written(counts: Mapping[str, int], column: str, what: str) -> Iterator[Finding]:
    """Yield why texts may be numbers with something else, or names of the rows.

    Args:
        counts: rows of each of the texts.
        column: the column that holds them.
        what: they become: "an input of 0 and 1", say.
    """
    others = [text for text in counts if not is_number(text)]
    bare = {number for text in others if (number := _AFFIXED.sub(r"\2", text.strip())) and is_number(number)}
    words = [text for text in others if not any(map(str.isdigit, text))]  # 3+ and 2b are grades
    if words and 2 <= len(counts) - len(others) >= len(words):
        rows = plural(sum(map(counts.__getitem__, words)), "row")
        yield Finding(
            "notation",
            column,
            f"Column {column!r} holds numbers, and text in {rows}: each becomes {what} of its own. "
            "Correct the text, or list it in missing, and set impute.",
        )
    elif len(counts) > SOME_VALUES and len(bare) > 0.9 * len(counts):
        yield Finding(
            "notation",
            column,
            f"Column {column!r} holds {len(counts)} numbers with a sign or a unit, and each becomes {what} of its own. "
            "Write the numbers alone, or drop the column.",
        )
    elif len(counts) > SOME_VALUES and sum(counts.values()) < FEW_ROWS * len(counts):
        yield Finding(
            "identifier",
            column,
            f"Column {column!r} has {len(counts)} texts of few rows each. If they name persons or rows, drop it.",
            error=False,
        )


def plainly(text: str) -> str:
    """Return a text without what differs by spelling only: case, spaces, signs at its ends, Unicode's forms."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(c for c in folded if unicodedata.category(c) not in ("Cf", "Cc"))
    kept = " ".join(kept.split()).strip(" .,;:!'\"\u2019`")
    return repr(float(kept)) if is_number(kept) else kept


def near(texts: Iterable[object], column: str, what: str) -> Iterator[Finding]:
    """Yield each text that differs from an earlier one by spelling only.

    Args:
        texts: the different values.
        column: the column that holds them.
        what: what they are: "Labels", say.
    """
    known = dict[str, str]()
    for text in map(str, texts):
        plain = plainly(text)
        if plain and (other := known.setdefault(plain, text)) != text:
            yield Finding(
                "near",
                text,
                f"{what} {other!r} and {text!r} of column {column!r} differ by spelling only. Write them alike.",
            )


# --- columns of numbers


def predicts(values: npt.NDArray[Any], labels: npt.NDArray[np.int64]) -> bool:
    """Return whether one column alone tells the label of nearly every row.

    Either each of its few different values has one label, or the rows of each label are an interval of its values.

    Args:
        values: (n,), numbers, or texts.
        labels: (n,), the class of each row.
    """
    n, classes = len(labels), np.unique(labels)
    if n < LEAST_ROWS or not 2 <= len(classes) <= MOST_CLASSES or np.bincount(labels).max() > (1 - 4 * WRONG) * n:
        return False
    known, group = np.unique(values, return_inverse=True)
    if len(known) < 2:
        return False
    counts = np.zeros((len(known), int(classes.max()) + 1))
    np.add.at(counts, (group, labels), 1)
    if 5 * len(known) <= n and n - counts.max(1).sum() <= WRONG * n:
        return True
    if values.dtype.kind not in "iufb":
        return False
    wrong = 0.0
    for label in classes.tolist():
        gain = 2 * counts[:, label] - counts.sum(1)  # of an interval: its rows with the label minus the others
        total = np.concatenate([[0.0], np.cumsum(gain)])
        best = float((total - np.minimum.accumulate(total)).max())
        wrong += float(counts[:, label].sum()) - best
    return wrong / 2 <= WRONG * n


def counts_rows(values: npt.NDArray[Any]) -> bool:
    """Return whether a column numbers the rows: different integers, each the one after another."""
    return tells_rows(values) and bool(values.max() - values.min() == len(values) - 1)


def tells_rows(values: npt.NDArray[Any]) -> bool:
    """Return whether a column of whole numbers has another one in each row, as numbers of patients have."""
    if len(values) < LEAST_ROWS or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        return False
    return bool((values % 1 == 0).all() and len(np.unique(values)) == len(values))


def as_texts(values: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    """Return values as text, each as long as it is: in NumPy's own type all take as much as the longest."""
    return np.array([str(value) for value in values.tolist()], dtype=object)


def zeros(columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[Finding]:
    """Yield the columns of numbers that are 0 in some rows, and far above it in all others.

    Far is one standard deviation of these others. There are at least `LEAST_VALUES` different ones.

    Args:
        columns: (n,) each, by name; NaN where a number is missing.
    """
    for name, values in columns.items():
        others = values[values > 0]
        empty = int((values == 0).sum())
        if not empty or (values < 0).any() or len(np.unique(others)) < LEAST_VALUES or not np.isfinite(others).all():
            continue
        if others.min() >= others.std():
            yield Finding(
                "zero",
                name,
                f"Column {name!r} is 0 in {empty:,} of {plural(len(values), 'row')}, and far above in all others. If 0 "
                "stands for a missing value, empty these cells, and set impute.",
                error=False,
            )


def fills(columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[Finding]:
    """Yield the columns in which a number of several rows is far from all others, as one for a missing value is.

    Far is `FAR` times the range of the others, of which there are at least `LEAST_VALUES` different ones; or below 0,
    where no other is, if it is written as such numbers are, -1 or -99, or all others are above 0 by their deviation.

    Args:
        columns: (n,) each, by name; NaN where a number is missing.
    """
    for name, values in columns.items():
        held = values[np.isfinite(values)]
        for extreme in (held.min(), held.max()) if len(held) else ():
            others = held[held != extreme]
            coded = re.fullmatch("-?9+|-1", f"{extreme:.15g}") is not None
            least = LEAST_CODES if coded else LEAST_VALUES
            if extreme == 0 or len(held) - len(others) < 2 or len(np.unique(others)) < least:
                continue
            nearest = others.min() if extreme < others.min() else others.max()
            below = extreme < 0 <= others.min() and (coded or others.min() >= others.std())
            if below or abs(nearest - extreme) > FAR * (others.max() - others.min()):
                count = len(held) - len(others)
                yield Finding(
                    "fill",
                    name,
                    f"Column {name!r} is {extreme:.15g} in {count:,} of {plural(len(values), 'row')}, and far from it "
                    "in all others. If that stands for a missing value, list it in missing, and set impute.",
                    error=False,
                )


def leaks(columns: Mapping[str, npt.NDArray[Any]], labels: npt.NDArray[np.int64] | None) -> Iterator[Finding]:
    """Yield the columns that tell the label alone, or number the rows; none if there is a single one.

    Args:
        columns: (n,) each, by name.
        labels: (n,), the class of each row; None for targets.
    """
    if len(columns) < 2:
        return
    for name, values in columns.items():
        if labels is not None and predicts(values, labels):
            yield Finding("leak", name, f"Column {name!r} alone predicts the label. If it is not measured, drop it.")
        elif counts_rows(values):
            yield Finding(
                "rows", name, f"Column {name!r} numbers the rows. Drop it, unless it is measured.", error=False
            )
        elif tells_rows(values):
            what = f"Column {name!r} holds another whole number in each row"
            yield Finding("rows", name, f"{what}. If it is a number of a patient, drop it.", error=False)


def merged(wide: npt.NDArray[Any], name: str = "") -> Iterator[Finding]:
    """Yield the inputs whose different values become one in float32.

    Args:
        wide: (n, ...), numbers.
        name: of the input, or of several.
    """
    if not wide.size or wide.dtype.itemsize < 8 or wide.dtype.kind not in "iuf":
        return
    rows = wide.reshape(len(wide), -1)
    with np.errstate(over="ignore", invalid="ignore"):
        span = np.asarray(rows.max(0) - rows.min(0), dtype=np.float64)
        rounding = np.maximum(abs(rows.max(0).astype(np.float64)), abs(rows.min(0).astype(np.float64))) * 2.0**-24
        suspected = np.flatnonzero((span > 0) & np.isfinite(span) & (rounding > MERGED * span))
        found = list[tuple[int, int, int]]()
        for j in suspected:
            before, after = len(np.unique(rows[:, j])), len(np.unique(rows[:, j].astype(np.float32)))
            if after < before:
                found.append((int(j), before, after))
    if found:
        column, before, after = found[0]
        which = name or f"input {column}"
        more = f" ({plural(len(found), 'such input')})" if len(found) > 1 else ""
        yield Finding(
            "distinct",
            which,
            f"{which[:1].upper()}{which[1:]} has {before:,} different values, and {after:,} in float32{more}. "
            "Subtract the mean, and divide by the deviation, in float64 first.",
        )


# --- labels of the parts


def unseen(train: Sequence[int], test: Sequence[int], names: Sequence[object]) -> Iterator[Finding]:
    """Yield the labels of the test part that never occur in training.

    Args:
        train: number of labels of each class in training.
        test: the same of the test part.
        names: of the classes; their numbers are used if there are none.
    """
    missing = [c for c, (ours, theirs) in enumerate(zip(train, test, strict=True)) if theirs and not ours]
    share = sum(test[c] for c in missing) / max(sum(test), 1)
    for c in missing:
        label = names[c] if names else c
        yield Finding(
            "labels",
            str(label),
            f"Test label {label!r} never occurs in training ({100 * share:.3g} % of the test part has such labels). "
            "Correct its spelling, or the parts.",
        )


def clipped(findings: Collection[Finding]) -> list[Finding]:
    """Return at most `SHOWN` findings of each kind."""
    kept, seen = list[Finding](), dict[str, int]()
    for finding in findings:
        seen[finding.code] = seen.get(finding.code, 0) + 1
        if seen[finding.code] <= SHOWN:
            kept.append(finding)
    return kept
